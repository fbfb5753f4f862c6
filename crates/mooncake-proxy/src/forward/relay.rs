//! An instance's answer on its way to the client: its bytes as they are, whole events at a time.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use axum::http::StatusCode;
use bytes::BytesMut;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use crate::admission::Turn;
use crate::counts::End;
use crate::fault;
use crate::forward::account::Account;
use crate::instances::instance::Lease;

/// What ends a stream.
const DONE: [&[u8]; 2] = [b"data: [DONE]\n\n", b"data: [DONE]\r\n\r\n"];

/// An event that is longer goes on in pieces.
const EVENT_MAX: usize = 1 << 20;

/// The body of a client's answer. When it is dropped before its end, the instance's connection goes with it, and the
/// instance stops.
pub(crate) struct Relay {
    from: Option<Incoming>,
    /// What has come and not been passed on: an event's beginning, or what was waited for before the answer was begun.
    held: BytesMut,
    /// So much of it has been searched for the end of an event.
    searched: usize,
    is_events: bool,
    /// The beginning of an event has been passed on that was too long to be held.
    is_torn: bool,
    /// The event that ends a stream has been passed on.
    is_done: bool,
    stall_timeout: Duration,
    overdue: Pin<Box<Sleep>>,
    lease: Lease,
    account: Account,
    _turn: Turn,
}

/// What an answer is like.
pub(crate) struct BodyOf {
    /// Events may be added to it.
    pub is_events: bool,
    /// Nothing may come for so long.
    pub stall_timeout: Duration,
}

/// The answer broke off, and its form has no way to say so but to end in the midst.
#[derive(Debug, thiserror::Error)]
#[error("the answer of the instance broke off: {0}")]
pub(crate) struct BrokeOff(String);

impl Relay {
    /// `first` has come already.
    pub fn new(from: Incoming, first: Bytes, body: BodyOf, lease: Lease, turn: Turn, account: Account) -> Relay {
        let BodyOf { is_events, stall_timeout } = body;
        let (held, overdue) = (BytesMut::from(first), Box::pin(sleep(stall_timeout)));
        let (searched, is_torn, is_done) = (0, false, false);
        let from = Some(from);
        let mut relay = Relay {
            from,
            held,
            searched,
            is_events,
            is_torn,
            is_done,
            stall_timeout,
            overdue,
            lease,
            account,
            _turn: turn,
        };
        relay.end_if_all_is_there();
        relay
    }

    /// An answer whose length is known is over with its last byte: its reader asks for no more.
    fn end_if_all_is_there(&mut self) {
        if self.from.as_ref().is_some_and(HttpBody::is_end_stream) {
            self.end();
        }
    }

    fn end(&mut self) {
        self.from = None;
        self.lease.instance.succeeded();
        self.account.ended(End::Whole);
    }

    /// Goes to the client.
    fn pass(&mut self, bytes: Bytes) -> Poll<Option<Result<Frame<Bytes>, BrokeOff>>> {
        self.account.passed(&bytes);
        self.is_done = self.is_events && DONE.iter().any(|done| bytes.ends_with(done));
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    /// Takes what has come. Mostly it is whole events, and goes on as it is.
    fn take(&mut self, data: Bytes) -> Option<Bytes> {
        if self.held.is_empty() && (!self.is_events || end_of_events(&data, 0) == data.len()) {
            return Some(data).filter(|data| !data.is_empty());
        }
        self.held.extend_from_slice(&data);
        None
    }

    /// What may be passed on of what is held.
    fn ready(&mut self) -> Option<Bytes> {
        let len = match self.is_events {
            true if self.held.len() < EVENT_MAX => end_of_events(&self.held, self.searched),
            is_events => {
                self.is_torn = is_events;
                self.held.len()
            }
        };
        let ready = (len > 0).then(|| self.held.split_to(len).freeze());
        self.searched = self.held.len();
        ready
    }

    /// The instance will say no more.
    fn broke_off(&mut self, why: String) -> Option<Result<Frame<Bytes>, BrokeOff>> {
        if self.is_done && self.held.is_empty() {
            // There was nothing more to say.
            self.end();
            return None;
        }
        let instance = &self.lease.instance;
        instance.failed(std::time::Instant::now(), &why, false);
        tracing::warn!(instance = %instance.address, why, "an answer broke off");
        self.account.ended(End::BrokeOff);
        self.from = None;
        if !self.is_events {
            return Some(Err(BrokeOff(why)));
        }
        // Half an event would be read as a whole one.
        self.held.clear();
        let message = format!("the decode instance {} broke off: {why}", instance.address);
        let error = fault::error(StatusCode::BAD_GATEWAY, &message);
        let before = if self.is_torn { "\n\n" } else { "" };
        Some(Ok(Frame::data(format!("{before}data: {error}\n\ndata: [DONE]\n\n").into())))
    }
}

impl HttpBody for Relay {
    type Data = Bytes;
    type Error = BrokeOff;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokeOff>>> {
        let this = &mut *self;
        loop {
            if let Some(bytes) = this.ready() {
                return this.pass(bytes);
            }
            let Some(from) = &mut this.from else {
                // The last event needs no empty line after it.
                let rest = this.held.split().freeze();
                return if rest.is_empty() { Poll::Ready(None) } else { this.pass(rest) };
            };
            match Pin::new(from).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    let next = Instant::now() + this.stall_timeout;
                    this.overdue.as_mut().reset(next);
                    match frame.into_data() {
                        Ok(data) => {
                            let whole = this.take(data);
                            this.end_if_all_is_there();
                            if let Some(bytes) = whole {
                                return this.pass(bytes);
                            }
                        }
                        Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(this.broke_off(error.to_string())),
                Poll::Ready(None) => this.end(),
                Poll::Pending => {
                    if this.overdue.as_mut().poll(context).is_pending() {
                        return Poll::Pending;
                    }
                    let why = format!("nothing came for {:?}", this.stall_timeout);
                    return Poll::Ready(this.broke_off(why));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.from.is_none() && self.held.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        // The length that the instance has given stands in the headers.
        match &self.from {
            Some(from) if !self.is_events => {
                let mut hint = from.size_hint();
                let held = self.held.len() as u64;
                if let Some(exact) = hint.exact() {
                    hint.set_exact(exact + held);
                }
                hint
            }
            Some(_) => SizeHint::default(),
            None => SizeHint::with_exact(self.held.len() as u64),
        }
    }
}

/// Where the last whole event ends, if it ends at `from` or later.
fn end_of_events(bytes: &[u8], from: usize) -> usize {
    for (at, byte) in bytes.iter().enumerate().skip(from).rev() {
        let before = &bytes[..at];
        if *byte == b'\n' && (before.ends_with(b"\n") || before.ends_with(b"\n\r") || before.ends_with(b"\r\n\r")) {
            return at + 1;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_whole() {
        for (bytes, end) in [
            ("", 0),
            ("data: a", 0),
            ("data: a\n", 0),
            ("data: a\n\n", 9),
            ("data: a\n\nda", 9),
            ("data: a\r\n\r\ndata", 11),
            ("data: a\n\ndata: b\n\n:", 18),
            ("\n", 0),
        ] {
            assert_eq!(end_of_events(bytes.as_bytes(), 0), end, "{bytes:?}");
            assert_eq!(end_of_events(bytes.as_bytes(), end), 0, "{bytes:?}");
        }
    }
}
