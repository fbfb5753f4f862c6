//! A connection of a peer that asks for the segment document, leaves a message, or probes whether the engine lives.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mooncake_os::Guarded;

use super::context::ServerContext;
use super::{Next, PeerConnection};
use crate::local_node::Form;
use crate::notify::Notify;
use crate::protocol::handshake::{Kind, LENGTH_LEN, Message, NotifyBody, missing};
use crate::transport::Answer;

/// Longest for all of a question; and longest pause in the answer.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes read at first. Later reads double what has come: an announced length that is a lie costs no memory.
const FIRST_READ_BYTES: usize = 4 << 10;

/// Most bytes read at a time.
const READ_BYTES_MAX: usize = 64 << 10;

/// Bytes of all long handshakes that are coming in. A single one may exceed them.
const BUDGET_BYTES: usize = 64 << 20;

/// Memory of handshakes that are coming in.
#[derive(Debug, Default)]
pub(crate) struct HandshakeBudget {
    taken: AtomicUsize,
}

/// What one of them has taken of it.
struct BudgetShare {
    of: Arc<HandshakeBudget>,
    bytes: usize,
}

impl BudgetShare {
    /// Takes so many bytes in all; false if that exceeds the budget.
    fn grow(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let before = self.of.taken.fetch_add(more, Ordering::SeqCst);
        let others = before - self.bytes;
        self.bytes += more;
        others == 0 || before + more <= BUDGET_BYTES
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.of.taken.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

pub(super) struct Handshake {
    stream: Guarded<TcpStream>,
    /// When it began, or when the last byte of the answer moved.
    since: Instant,
    share: BudgetShare,
    state: State,
}

enum State {
    Ask(Vec<u8>),
    Answer {
        bytes: Arc<[u8]>,
        sent: usize,
    },
    /// Another thread answers; or it is answered, and the peer is to hang up first.
    Linger,
}

impl Handshake {
    pub fn accept(stream: TcpStream, context: &ServerContext) -> io::Result<PeerConnection> {
        stream.set_nonblocking(true)?;
        let (stream, share) = (Guarded::new(stream), BudgetShare { of: context.handshake_budget.clone(), bytes: 0 });
        Ok(PeerConnection::Handshake(Handshake { stream, since: Instant::now(), share, state: State::Ask(Vec::new()) }))
    }

    /// When it began, or when the last byte of its answer moved.
    pub fn since(&self) -> Instant {
        self.since
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub fn is_overdue(&self, now: Instant) -> bool {
        now.duration_since(self.since) > EXCHANGE_TIMEOUT
    }

    pub fn step(&mut self, context: &ServerContext) -> Next {
        loop {
            match &mut self.state {
                State::Ask(read) => {
                    let wanted = match missing(read, context.options().handshake_max) {
                        Ok(0) => {
                            let Some(asked) = Message::decode(std::mem::take(read).split_off(LENGTH_LEN)) else {
                                return Next::Close;
                            };
                            self.since = Instant::now();
                            if asked.kind == Kind::Connection
                                && let Some(transport) =
                                    context.node.transports.iter().find(|transport| transport.answers_connections())
                            {
                                let Ok(stream) = self.stream.try_clone() else { return Next::Close };
                                let answer = later(Guarded::new(stream), asked.old);
                                transport.answer_connection(&context.node.name, asked.json, answer);
                                self.state = State::Linger;
                                continue;
                            }
                            let Some(answer) = answer(context, asked) else { return Next::Close };
                            self.state = State::Answer { bytes: answer, sent: 0 };
                            continue;
                        }
                        Ok(wanted) => wanted,
                        Err(()) => return Next::Close,
                    };
                    let had = read.len();
                    read.resize(had + wanted.min(had.clamp(FIRST_READ_BYTES, READ_BYTES_MAX)), 0);
                    if read.capacity() > 2 * FIRST_READ_BYTES && !self.share.grow(read.capacity()) {
                        tracing::debug!("too many long handshakes at once; one is cut");
                        return Next::Close;
                    }
                    let count = (&*self.stream).read(&mut read[had..]);
                    read.truncate(had + count.as_ref().map_or(0, |count| *count));
                    match count {
                        Ok(0) => return Next::Close,
                        Ok(_) => {}
                        Err(error) => return after(&error, Next::Read),
                    }
                }
                State::Answer { bytes, sent } => match (&*self.stream).write(&bytes[*sent..]) {
                    Ok(count) => {
                        *sent += count;
                        self.since = Instant::now();
                        if *sent == bytes.len() {
                            let _ = self.stream.shutdown(Shutdown::Write);
                            self.state = State::Linger;
                        }
                    }
                    Err(error) => return after(&error, Next::Write),
                },
                State::Linger => match (&*self.stream).read(&mut [0; 64]) {
                    Err(error) => return after(&error, Next::Read),
                    // Whatever else it sends is ignored.
                    Ok(_) => return Next::Close,
                },
            }
        }
    }
}

fn after(error: &io::Error, wait: Next) -> Next {
    match error.kind() {
        io::ErrorKind::WouldBlock => wait,
        io::ErrorKind::Interrupted => Next::Again,
        _ => Next::Close,
    }
}

/// Answers on another thread. An answer fits into what a socket that nothing was sent on takes at once.
fn later(stream: Guarded<TcpStream>, old: bool) -> Answer {
    Box::new(move |json| {
        let bytes = Message { old, ..Message::new(Kind::Connection, json) }.encode();
        // A peer that has gone finds out by itself.
        let _ = (&*stream).write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
    })
}

fn answer(context: &ServerContext, asked: Message) -> Option<Arc<[u8]>> {
    let json = match asked.kind {
        Kind::Metadata => return Some(context.node.description(form_for(&asked.json))),
        Kind::Probe => r#"{"status":"success"}"#.to_owned(),
        Kind::Notify => {
            let body: NotifyBody = serde_json::from_slice(&asked.json).ok()?;
            context.node.inbox.push(Notify { name: body.name, message: body.notify_msg });
            r#"{"name":"","notify_msg":"success"}"#.to_owned()
        }
        Kind::Connection => {
            let why = "this engine takes part by TCP only: it has no RDMA devices";
            format!(r#"{{"local_nic_path":"","peer_nic_path":"","qp_num":[],"reply_msg":{why:?}}}"#)
        }
    };
    let old = asked.old;
    Some(Message { old, ..Message::new(asked.kind, json) }.encode().into())
}

/// A peer that says of itself that it has TCP alone is told what it can use.
fn form_for(asker: &[u8]) -> Form {
    #[derive(serde::Deserialize)]
    struct Asker {
        protocol: String,
    }
    match serde_json::from_slice::<Asker>(asker) {
        Ok(Asker { protocol }) if protocol == "tcp" => Form::Tcp,
        _ => Form::Whole,
    }
}
