//! What can go wrong with a transfer, and the number that callers of other languages get for it.

use std::io;
use std::time::Duration;

use mooncake_memory::RunsOut;
use mooncake_os::{BlockingError, WaitError};

/// A call of the engine failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// An argument that cannot be meant.
    #[error("{0}")]
    InvalidArgument(String),
    /// More requests than the batch was made for.
    #[error("a batch made for {capacity} requests has {queued} and is given {more} more")]
    TooManyRequests {
        /// What it was made for.
        capacity: usize,
        /// What it has.
        queued: usize,
        /// What was to be added.
        more: usize,
    },
    /// The range is not, or no longer, inside one registered buffer.
    #[error("{len} bytes at {addr:#x} are not inside one buffer that {owner} has registered")]
    NotRegistered {
        /// Whose memory.
        owner: String,
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// Memory of this process that begins in a registered buffer runs out of it. Nothing was moved.
    #[error(transparent)]
    RunsOut(#[from] RunsOut),
    /// Requests of the batch are still under way.
    #[error("{unfinished} requests of the batch are still under way; wait for them first")]
    BatchBusy {
        /// How many.
        unfinished: usize,
    },
    /// The id names no batch: it was freed, or never given out.
    #[error("{0:#x} is no batch of this engine: it was freed, or is another's")]
    NoSuchBatch(u64),
    /// A part of the range is registered already.
    #[error("{len} bytes at {addr:#x} overlap the registered buffer of {other_len} bytes at {other:#x}")]
    Overlap {
        /// First byte.
        addr: usize,
        /// Bytes.
        len: usize,
        /// The buffer that is there.
        other: usize,
        /// Its bytes.
        other_len: usize,
    },
    /// Copies are still under way to or from a buffer that is being unregistered.
    #[error(
        "the buffer at {addr:#x} is still in use after {waited:?}; it takes no new requests. Unregister it again to \
         wait on"
    )]
    BufferBusy {
        /// First byte.
        addr: usize,
        /// How long ago that began.
        waited: Duration,
    },
    /// The engine is closed, and calls that use their callers' memory have not ended yet.
    #[error(
        "{calls} calls of the engine are still under way after {waited:?}; memory that they use is not free yet. Close \
         it again to wait on"
    )]
    CallsUnderWay {
        /// How many.
        calls: usize,
        /// How long they were waited for.
        waited: Duration,
    },
    /// A name that no address was found for.
    #[error("{name:?} cannot be resolved: {reason}")]
    Dns {
        /// The name.
        name: String,
        /// Why not.
        reason: String,
    },
    /// A connection could not be made, or broke.
    #[error("{peer}: {what}: {source}")]
    Socket {
        /// The peer.
        peer: String,
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refuses something that the engine needs for itself.
    #[error("this engine: {what}: {source}")]
    Os {
        /// What was asked for.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The peer says what cannot be understood.
    #[error("{peer} does not speak as an engine does: {reason}")]
    Malformed {
        /// The peer.
        peer: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The metadata service could not be asked, or does not know the name.
    #[error("metadata: {0}")]
    Metadata(String),
    /// Another engine has the name in the metadata service.
    #[error("metadata: {name:?} is the name of the engine at {at}")]
    NameTaken {
        /// The name.
        name: String,
        /// Where the handshakes of the other one are answered, as far as is known.
        at: String,
    },
    /// Not done by its deadline.
    #[error("{peer}: {what} took longer than {waited:.1?}")]
    Timeout {
        /// The peer.
        peer: String,
        /// What was waited for.
        what: &'static str,
        /// How long.
        waited: Duration,
    },
    /// It did not answer in time, and has not since. It is asked in the background, and used again once it answers.
    #[error("{peer} has not answered for {since:.1?}; it is used again once it does")]
    Unresponsive {
        /// The peer.
        peer: String,
        /// How long ago that was found.
        since: Duration,
    },
    /// The caller's own memory is not there, or a device's driver refuses.
    #[error("{0}")]
    Memory(String),
    /// A thread of the engine panicked: a bug of the engine.
    #[error("{0}")]
    Panicked(String),
    /// The caller's hook ended the call.
    #[error("the call was interrupted")]
    Interrupted,
    /// The engine has been closed.
    #[error("the engine is closed")]
    Closed,
    /// This process was forked from the one that made the engine.
    #[error("this process was forked from the one that made the engine; make a new one")]
    Forked,
}

impl EngineError {
    /// Mooncake's number for it, negative.
    pub fn code(&self) -> i32 {
        match self {
            EngineError::InvalidArgument(_) | EngineError::NoSuchBatch(_) | EngineError::Interrupted => -1,
            EngineError::TooManyRequests { .. } => -2,
            EngineError::NotRegistered { .. } | EngineError::RunsOut(_) => -3,
            EngineError::BatchBusy { .. } | EngineError::BufferBusy { .. } | EngineError::CallsUnderWay { .. } => -4,
            EngineError::Overlap { .. } => -7,
            EngineError::Dns { .. } => -101,
            EngineError::Socket { .. }
            | EngineError::Os { .. }
            | EngineError::Timeout { .. }
            | EngineError::Unresponsive { .. } => -102,
            EngineError::Malformed { .. } => -103,
            EngineError::Metadata(_) | EngineError::NameTaken { .. } => -200,
            EngineError::Closed | EngineError::Forked => -202,
            EngineError::Memory(_) | EngineError::Panicked(_) => -302,
        }
    }

    pub(crate) fn os(what: &'static str) -> impl FnOnce(io::Error) -> EngineError {
        move |source| EngineError::Os { what, source }
    }

    pub(crate) fn socket(peer: &str, what: &'static str) -> impl FnOnce(io::Error) -> EngineError {
        let peer = peer.to_owned();
        move |source| EngineError::Socket { peer, what, source }
    }

    /// The end of a wait for what a peer does.
    pub(crate) fn waiting(peer: &str, what: &'static str) -> impl FnOnce(WaitError) -> EngineError {
        move |error| match error {
            WaitError::Interrupted => EngineError::Interrupted,
            WaitError::Expired(waited) => EngineError::Timeout { peer: peer.to_owned(), what, waited },
        }
    }

    /// A call that a thread makes for its caller, to a peer or a service.
    pub(crate) fn blocking(peer: &str, what: &'static str) -> impl FnOnce(BlockingError) -> EngineError {
        move |error| match error {
            BlockingError::Wait(error) => EngineError::waiting(peer, what)(error),
            BlockingError::Start(source) => EngineError::Os { what: "start a thread", source },
            BlockingError::Full(_) => unreachable!("the engine's pool refuses no work"),
            BlockingError::Panicked => EngineError::Panicked(format!("{peer}: {what}: {error}")),
        }
    }

    pub(crate) fn malformed(peer: &str, reason: impl Into<String>) -> EngineError {
        EngineError::Malformed { peer: peer.to_owned(), reason: reason.into() }
    }

    /// The peer may be another one by now than its segment document says: worth a fresh look.
    pub(crate) fn is_perhaps_stale(&self) -> bool {
        matches!(self, EngineError::NotRegistered { .. } | EngineError::Socket { .. } | EngineError::Malformed { .. })
    }
}
