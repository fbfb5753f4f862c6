//! A decode instance answers; until the first byte of its answer another one can take over.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use serde::Deserialize;
use tokio::time;

use crate::admission::Turn;
use crate::fault::Fault;
use crate::forward::account::Account;
use crate::forward::flow::{ATTEMPTS, Asked, another_may_answer, passed_on};
use crate::forward::prefill::PendingTransfer;
use crate::forward::relay::{BodyOf, Relay};
use crate::instances::address::InstanceAddress;
use crate::instances::instance::{Kind, Lease};
use crate::instances::upstream::{Failure, rest_of_body, without_connection};
use crate::proxy::Proxy;

/// What an instance says with an error that is passed on comes within that.
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// An attempt that came to nothing: why, and what the instance says itself.
struct Missed {
    failure: Failure,
    said: Option<Response>,
}

impl From<Failure> for Missed {
    fn from(failure: Failure) -> Missed {
        Missed { failure, said: None }
    }
}

/// An answer for the client.
pub(crate) enum Answer {
    /// All of it.
    Whole(Response),
    /// Its first bytes are there.
    Begun(Box<Begun>, Lease, Turn),
}

impl Proxy {
    /// The answer of the first decode instance that gives one. The first that is asked is to fetch the blocks of
    /// `transfer`: what it did not fetch may be gone, and it and the others then compute the prompt themselves.
    pub async fn decode(
        &self,
        asked: &Asked<'_>,
        body: &Bytes,
        mut is_computed: bool,
        mut transfer: Option<PendingTransfer>,
        turn: Turn,
        account: &mut Account,
    ) -> Result<Answer, Fault> {
        let mut tried = Vec::new();
        let (mut last, mut said) = (None, None);
        while tried.len() < ATTEMPTS {
            let mut available = self.fleet.available(Kind::Decode, &tried);
            if available.is_empty() && may_be_asked_again(last.as_ref()) {
                // There is no other one, and this one had only its connection closed.
                available = self.fleet.available(Kind::Decode, &[]);
            }
            let Some(mut lease) = self.scheduler.decode(&available, &asked.prompt, !is_computed) else { break };
            let mut transfer = transfer.take();
            let body = match &transfer {
                Some(transfer) => asked.fields.for_decode(&transfer.parameters).into(),
                None => body.clone(),
            };
            let begun = tokio::select! {
                begun = self.decode_at(&lease, asked, body) => begun,
                () = lease.instance.hangs.notified() => Err(Failure::Hangs.into()),
                () = lost(transfer.as_mut()) => Err(Failure::NothingToFetch.into()),
            };
            let missed = match begun {
                Ok(begun) => {
                    account.first_byte(&lease.instance);
                    lease.took();
                    lease.computed();
                    return Ok(Answer::Begun(Box::new(begun), lease, turn));
                }
                Err(missed) => missed,
            };
            match missed.failure {
                // It could not fetch, which another one could do no better, and it can compute.
                Failure::NothingToFetch | Failure::Status(_) if transfer.is_some() => account.failed(Kind::Decode),
                _ => {
                    self.note(&lease, &missed.failure, account);
                    tried.push(lease.instance.number);
                }
            }
            is_computed &= transfer.is_none();
            last = Some((missed.failure, lease.instance.address.clone()));
            said = missed.said.or(said);
        }
        match (said, last) {
            (Some(said), _) => Ok(Answer::Whole(said)),
            (None, Some((failure @ Failure::NoConnection(_), _))) => Err(Fault::NoConnection(failure.to_string())),
            (None, Some((failure, address))) => Err(Fault::NoAnswer(format!("{failure} at {address}"))),
            (None, None) if self.fleet.all().iter().any(|one| one.kind == Kind::Decode) => {
                Err(Fault::NoDecode(": all of them have failed lately".into()))
            }
            (None, None) => Err(Fault::NoDecode(": none was added".into())),
        }
    }

    async fn decode_at(&self, lease: &Lease, asked: &Asked<'_>, body: Bytes) -> Result<Begun, Missed> {
        let (authority, timeout) = (lease.instance.address.authority(), self.options.request_timeout);
        let answer = self.upstream.post(&authority, asked.path, asked.headers.clone(), body, timeout).await?;
        let status = answer.status();
        if another_may_answer(status) {
            // Where it would send the client to is no place of the client's.
            let is_error = status.is_client_error() || status.is_server_error();
            let said = if is_error { passed_on(answer, ERROR_BODY_TIMEOUT).await.ok() } else { None };
            return Err(Missed { failure: Failure::Status(status), said });
        }
        // Servers send the head of a stream before they have begun: until a byte is there, another one can take over.
        let (head, mut from) = answer.into_parts();
        let mut first = Bytes::new();
        while first.is_empty() {
            match time::timeout(timeout, from.frame()).await {
                Ok(Some(Ok(frame))) => first = frame.into_data().unwrap_or_default(),
                Ok(Some(Err(error))) => return Err(Failure::BrokeOff(error.to_string()).into()),
                Ok(None) => break,
                Err(_) => return Err(Failure::TimedOut(timeout).into()),
            }
        }
        let begun = Begun { status, headers: head.headers, first, from };
        match begun.failed_at_once() {
            Some(status) => Err(Missed { failure: Failure::Status(status), said: begun.whole().await }),
            None => Ok(begun),
        }
    }
}

/// Returns when there is nothing to be fetched any more, if there was.
async fn lost(transfer: Option<&mut PendingTransfer>) {
    match transfer {
        Some(transfer) => transfer.lost().await,
        None => std::future::pending().await,
    }
}

/// A decode instance's answer, of which the first bytes are there.
pub(crate) struct Begun {
    pub status: StatusCode,
    headers: HeaderMap,
    first: Bytes,
    from: Incoming,
}

impl Begun {
    /// Passes it on.
    pub fn relay(self, stall_timeout: Duration, lease: Lease, turn: Turn, account: Account) -> Response {
        let is_events = self.is_events();
        let Begun { status, mut headers, first, from } = self;
        without_connection(&mut headers);
        if is_events {
            // An error may be added.
            headers.remove(header::CONTENT_LENGTH);
        }
        let relay = Relay::new(from, first, BodyOf { is_events, stall_timeout }, lease, turn, account);
        let mut response = Response::new(Body::new(relay));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }

    /// Whether events can be told from one another, and one be added.
    fn is_events(&self) -> bool {
        let kind = self.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        kind.starts_with("text/event-stream") && !self.headers.contains_key(header::CONTENT_ENCODING)
    }

    /// The status of a stream whose first event is an error: the server sent the head before it knew. None if the error
    /// is the request's fault.
    fn failed_at_once(&self) -> Option<StatusCode> {
        #[derive(Deserialize)]
        struct Event {
            error: Error,
        }
        #[derive(Deserialize)]
        struct Error {
            code: u16,
        }
        let said = self.first.strip_prefix(b"data: {\"error\"").filter(|_| self.is_events())?;
        let event = &self.first[b"data: ".len()..self.first.len() - said.len() + end_of_line(said)];
        let event: Event = serde_json::from_slice(event).ok()?;
        StatusCode::from_u16(event.error.code).ok().filter(|status| another_may_answer(*status))
    }

    /// All of it, if it is short.
    async fn whole(self) -> Option<Response> {
        let Begun { status, mut headers, first, from } = self;
        without_connection(&mut headers);
        headers.remove(header::CONTENT_LENGTH);
        let mut body =
            if from.is_end_stream() { Bytes::new() } else { rest_of_body(from, ERROR_BODY_TIMEOUT).await.ok()? };
        body = [first, body].concat().into();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Some(response)
    }
}

fn end_of_line(text: &[u8]) -> usize {
    text.iter().position(|byte| matches!(byte, b'\r' | b'\n')).unwrap_or(text.len())
}

/// Whether an attempt failed in a way that says nothing about the next one at the same instance: a server that closes
/// an idle connection may do so just when a request is sent over it.
fn may_be_asked_again(last: Option<&(Failure, InstanceAddress)>) -> bool {
    matches!(last, Some((Failure::BrokeOff(_), _)))
}
