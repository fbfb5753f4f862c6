//! Transports: how bytes go from one engine's memory to another's, as all else in the engine knows it.
//!
//! An engine has a list of them, the best first, and tries them in that order for each peer and each call. One more is
//! one more implementation in the list that `Engine::start` makes:
//!
//! - what peers need to reach it goes into the document by [`describe`](Transport::describe);
//! - its keys to memory come and go as it [observes](MemoryObserver) what is registered;
//! - its [`Path`] to a peer is all that the rest of the engine knows of it.

pub(crate) mod context;
pub(crate) mod rdma;
pub(crate) mod same_host;
pub(crate) mod stall;
pub(crate) mod tcp;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_net::PoolLimits;
use mooncake_os::{Deadline, WaitError};

use crate::error::EngineError;
use crate::memory::buffers::{Buffer, MemoryObserver};
use crate::protocol::segment_document::SegmentDocument;
use crate::request::Request;
use crate::transport::context::Context;

/// Connections that a path keeps to a peer: so many in use at a time, and the engine's rules for the rest.
pub(crate) fn pool_limits(in_use_max: usize) -> PoolLimits {
    let (idle_time_max, retry_after) = (Duration::from_secs(30), Duration::from_secs(1));
    PoolLimits { in_use_max, idle_max: 16, idle_time_max, retry_after }
}

/// The error of a call for which all connections to its peer stayed in use.
pub(crate) fn none_free(peer: &str, error: WaitError) -> EngineError {
    EngineError::waiting(peer, "waiting for a connection that is free")(error)
}

/// The error of a call that does not connect, as that failed a moment ago.
pub(crate) fn too_soon(peer: &str, reason: &str, ago: Duration) -> EngineError {
    let source = std::io::Error::other(format!("{reason} ({ago:?} ago)"));
    EngineError::Socket { peer: peer.to_owned(), what: "not tried again so soon", source }
}

/// The transports of an engine, in the order in which they are tried.
pub(crate) type Transports = Arc<[Arc<dyn Transport>]>;

pub(crate) trait Transport: MemoryObserver {
    /// As logs and reports name it.
    fn name(&self) -> &'static str;

    /// Adds to the segment document what peers need to reach this engine, and the buffers that it lends.
    fn describe(&self, lent: &[Arc<Buffer>], document: &mut SegmentDocument);

    /// Looks for the path to a peer, by what its document says.
    fn path_to(&self, context: &Context, peer: &PeerInfo<'_>, deadline: &Deadline<'_>) -> Result<Reach, EngineError>;

    /// Whether it [answers](Transport::answer_connection) peers that want queue pairs connected.
    fn answers_connections(&self) -> bool {
        false
    }

    /// Answers such a peer, soon, and not on this thread.
    fn answer_connection(&self, _own_name: &str, _asked: Vec<u8>, _answer: Answer) {}

    /// Lets go of what is kept for peers that have ended. Called now and then.
    fn sweep(&self, _now: Instant) {}

    /// At the engine's end: waits until nothing that this transport began touches memory of this engine any more.
    fn finish(&self, _deadline: &Deadline<'_>) -> Result<(), EngineError> {
        Ok(())
    }
}

/// Is given the JSON of an answer.
pub(crate) type Answer = Box<dyn FnOnce(String) + Send>;

/// How transports ask peers by their handshakes.
pub(crate) trait Directory: Send + Sync {
    /// As peers know this engine.
    fn own_name(&self) -> &str;

    /// What a peer says of itself at this moment.
    fn document(&self, peer: &str, deadline: &Deadline<'_>) -> Result<SegmentDocument, EngineError>;

    /// Asks a peer to connect queue pairs, and gives the JSON of its answer.
    fn ask_to_connect(&self, peer: &str, json: String, deadline: &Deadline<'_>) -> Result<Vec<u8>, EngineError>;
}

/// A peer whose document is known.
pub(crate) struct PeerInfo<'a> {
    /// The name that it was opened by.
    pub name: &'a str,
    /// Where its handshakes are answered.
    pub host: &'a str,
    pub document: &'a SegmentDocument,
}

/// Whether a transport reaches a peer, and by which path.
pub(crate) enum Reach {
    Path(Box<dyn Path>),
    /// There is no path in this incarnation of the peer, for this reason.
    Unreachable(String),
}

/// A transport's path to one incarnation of a peer.
pub(crate) trait Path: Send + Sync {
    /// Carries requests out, in the caller's thread: all of them, or an error. After an error some may have been
    /// carried out, and nothing touches the local memory any more. Bytes of writes that were abandoned on this path do
    /// not land after those of these requests.
    fn transfer(&self, context: &Context, requests: &[Request], deadline: &Deadline<'_>) -> Result<(), PathError>;

    /// On return nothing lands any more of writes that were abandoned on this path, so that another path may be used.
    fn retire_abandoned(&self, context: &Context, deadline: &Deadline<'_>) -> Result<(), EngineError>;

    /// Closes connections that no call needs.
    fn close_idle(&self, now: Instant);

    /// At the engine's end: closes connections that no call uses.
    fn close(&self) {}

    fn status(&self) -> PathStatus;
}

/// Why requests were not carried out.
pub(crate) enum PathError {
    /// The path does not work, as its [status](Path::status) says. The next transport is tried.
    Down,
    /// The path works, but not for these requests, for this reason. The next transport is tried.
    Unsuitable(Cow<'static, str>),
    /// It failed, and no other transport would help.
    Failed(EngineError),
}

impl From<EngineError> for PathError {
    fn from(error: EngineError) -> PathError {
        PathError::Failed(error)
    }
}

/// What is known of a path.
pub(crate) enum PathStatus {
    Untried,
    /// It works; with details for reports, if there are any.
    Up(String),
    /// It does not work, for this reason.
    Down(String),
}
