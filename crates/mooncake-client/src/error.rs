//! What can go wrong with a call, by whose fault.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mooncake_memory::{CopyError, RegisterError, RunsOut};

/// Sort of a failure: what a caller can decide on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The pool has no room for the object.
    NoSpace,
    /// Another put of the key is under way.
    Busy,
    /// A key that no object can have.
    InvalidKey,
    /// An argument makes no sense, or the caller's memory is not there.
    InvalidParams,
    /// No such object.
    NotFound,
    /// The object is there already.
    Exists,
    /// The get or put session of a key ended before its caller ended it.
    SessionOver,
    /// No master answers.
    MasterUnreachable,
    /// A call or a transfer took too long.
    Timeout,
    /// Bytes could not be moved.
    Transfer,
    /// Bytes arrived and are not the object's.
    Checksum,
    /// The store is closed.
    Closed,
    /// This process is a forked child of the one that set the store up.
    Forked,
    /// The caller's interrupt hook ended the call.
    Interrupted,
    /// Asked for something that this build does not have.
    Unsupported,
    /// The store was to have a tier, and its master takes none.
    TiersNotAllowed,
    /// The master refused the call as a whole.
    Refused,
    /// The store could not be set up on this machine.
    Setup,
}

/// Why a call failed. Cheap to clone: every key of a failed batch has one.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{cause}")]
pub struct StoreError {
    #[source]
    cause: Arc<Cause>,
}

impl StoreError {
    /// Sort of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.cause.kind()
    }

    /// What happened, with its figures.
    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    /// It says nothing of an object that it was not read.
    pub(crate) fn is_short_of_descriptors(&self) -> bool {
        matches!(self.cause(), Cause::OutOfDescriptors(_))
    }

    /// Another replica or another try cannot help: it is the caller's own memory, device, or wish.
    pub(crate) fn is_callers(&self) -> bool {
        matches!(
            self.cause(),
            Cause::Fault(_)
                | Cause::Device(_)
                | Cause::InvalidParams(_)
                | Cause::Interrupted
                | Cause::Closed
                | Cause::Forked
        )
    }
}

impl From<Cause> for StoreError {
    fn from(cause: Cause) -> Self {
        Self { cause: Arc::new(cause) }
    }
}

impl From<RunsOut> for StoreError {
    fn from(out: RunsOut) -> Self {
        Cause::RunsOut(out).into()
    }
}

impl From<mooncake_settings::environment::BadVariable> for StoreError {
    fn from(bad: mooncake_settings::environment::BadVariable) -> Self {
        Cause::InvalidParams(bad.to_string()).into()
    }
}

/// What happened: which value, which peer, what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// No room now, even after the wait for it.
    #[error("no room for {bytes} bytes: {reason}")]
    NoSpace {
        /// Size of the object.
        bytes: u64,
        /// What holds the space.
        reason: String,
    },
    /// Larger than every segment less what is pinned hard there.
    #[error("{bytes} bytes can never fit: {reason}")]
    TooLarge {
        /// Size of the object.
        bytes: u64,
        /// What there is.
        reason: String,
    },
    /// Another put of the key is under way.
    #[error("another put of the key is under way: {reason}; try again, or look whether it is there by now")]
    Busy {
        /// What holds the key.
        reason: String,
    },
    /// What the call reserved was taken back before it ended, or its session is over.
    #[error(
        "the call was overtaken: what it reserved expired, or its segment or its session ended ({attempts} tries were \
         made); nothing was stored, make the call again"
    )]
    Superseded {
        /// Tries that were made; 0 where the call could not begin one.
        attempts: u32,
    },
    /// A key that no object can have.
    #[error("a key has 1 to {limit} bytes, not {length}")]
    InvalidKey {
        /// Length of the key.
        length: usize,
        /// Longest key.
        limit: usize,
    },
    /// An argument makes no sense.
    #[error("{0}")]
    InvalidParams(String),
    /// The master refused a put's size or this session's share.
    #[error("put of {bytes} bytes refused: {reason}")]
    PutRefused {
        /// Size of the object.
        bytes: u64,
        /// Why.
        reason: String,
    },
    /// The buffers are smaller than the object.
    #[error("the object has {object} bytes, the buffers given for it {buffers}; pass at least as many")]
    BufferTooSmall {
        /// Size of the object.
        object: u64,
        /// Sum of the buffers.
        buffers: u64,
    },
    /// The caller's memory is not there.
    #[error("{0}; pass memory of this process that stays mapped during the call")]
    Fault(CopyError),
    /// The caller's memory begins in a registered buffer and runs out of it. Nothing was copied.
    #[error(transparent)]
    RunsOut(#[from] RunsOut),
    /// The device that the caller's memory belongs to could not copy it.
    #[error("{0}")]
    Device(CopyError),
    /// A buffer could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// No range is registered at the address.
    #[error("no buffer is registered at {addr:#x}; pass the address that was registered")]
    NotRegistered {
        /// The address.
        addr: usize,
    },
    /// A pattern that is none, or that takes more than linear time.
    #[error("the pattern {pattern:?} cannot be searched for: {reason}")]
    BadPattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A segment that this store does not give (any more).
    #[error("this store has no segment {id}: it was unmounted, or is another store's; name one that a mount returned")]
    NoSuchSegment {
        /// The id.
        id: String,
    },
    /// No such object.
    #[error("no such object")]
    NotFound,
    /// The object that a put session was to make is there already.
    #[error("the object is there already: there is nothing left to put")]
    Exists,
    /// Of a get session: none of the placements that it looked up can be read any more. Of a put session: what it
    /// reserved is no longer its own.
    #[error("the session of this key is over: {reason}; start another one")]
    SessionOver {
        /// What ended it.
        reason: String,
    },
    /// Of a get session: no replica of the object could be read just now, and one may be in a moment. A miss, as of a
    /// plain get.
    #[error(
        "no replica of the object could be read just now: {reason}; its session goes on, read it again in a moment"
    )]
    NotRead {
        /// Why.
        reason: String,
    },
    /// No master answers.
    #[error("master {master} does not answer: {reason}; is mooncake_master running there?")]
    MasterUnreachable {
        /// Addresses tried.
        master: String,
        /// What failed.
        reason: String,
    },
    /// What listens at the master's address is an HTTP server.
    #[error("{address} speaks HTTP; is it the master's metrics port? Its control port is 50051 by default")]
    SpeaksHttp {
        /// Where.
        address: SocketAddr,
    },
    /// What listens at the master's address is an owner of memory.
    #[error(
        "{address} is the data port of a storage node, or of a store that lends memory, and not the master: its \
         control port is 50051 by default"
    )]
    IsOwner {
        /// Where.
        address: SocketAddr,
    },
    /// What listens at the master's address is a storage node.
    #[error(
        "{address} is the port of a storage node and not the master: {}",
        .master.as_ref().map_or("its control port is 50051 by default".to_owned(), |at| format!("its master is {at}"))
    )]
    IsNode {
        /// Where.
        address: SocketAddr,
        /// Which master the node belongs to, if it said so.
        master: Option<String>,
    },
    /// One call took too long while the master lives.
    #[error(
        "master {master} did not answer {what} within {waited:?}, though it is alive; make the call again, and if that \
         goes on, look at its page /metrics/summary for what keeps it busy"
    )]
    CallTimeout {
        /// The master.
        master: String,
        /// The operation.
        what: &'static str,
        /// How long.
        waited: Duration,
    },
    /// All connections that the call may use were in use, by other calls of the same store.
    #[error(
        "{what} waited {queued:?} of its {waited:?} for a connection to master {master}, which is alive: all {limit} \
         that one store has for {calls} were in use. Make fewer calls at a time, or set up another store"
    )]
    NoConnection {
        /// The master.
        master: String,
        /// The operation.
        what: &'static str,
        /// How many connections there are.
        limit: usize,
        /// What they are for.
        calls: &'static str,
        /// How long it waited for one.
        queued: Duration,
        /// How long it took.
        waited: Duration,
    },
    /// Bytes stopped moving.
    #[error("{0}")]
    TransferTimeout(String),
    /// Bytes could not be moved.
    #[error("{0}")]
    Transfer(String),
    /// This process may not open what the call takes. Nothing is wrong with the object, nor with its owner.
    #[error("{0}")]
    OutOfDescriptors(String),
    /// Bytes arrived and are not the object's.
    #[error("{0}")]
    Checksum(String),
    /// The store is closed.
    #[error("the store is closed; set up a new one")]
    Closed,
    /// This process is a forked child.
    #[error(
        "this process was forked from the one that set the store up; set up a new store in a fresh process (spawn, not \
         fork)"
    )]
    Forked,
    /// The caller's interrupt hook ended the call.
    #[error("interrupted")]
    Interrupted,
    /// Asked for something that this build does not have.
    #[error("{0}")]
    Unsupported(String),
    /// The master refused the call as a whole.
    #[error("master {master} refused {what}: {reason}")]
    Refused {
        /// The master.
        master: String,
        /// The operation.
        what: &'static str,
        /// Why.
        reason: String,
    },
    /// The master could make nothing of the arguments.
    #[error("master {master} refused {what}: {reason}")]
    BadRequest {
        /// The master.
        master: String,
        /// The operation.
        what: &'static str,
        /// Why.
        reason: String,
    },
    /// The operator wants no tiers in this pool.
    #[error(
        "master {master} was started with --enable_offload=false: it takes no tier, and this store asks for one below \
         {path}. Leave out what asks for it (enable_ssd_offload, MOONCAKE_OFFLOAD_ENABLED, storage_root_dir, \
         MOONCAKE_STORAGE_ROOT_DIR, --enable_offload of mooncake_client), or start the master without that flag"
    )]
    TiersNotAllowed {
        /// The master.
        master: String,
        /// Where the tier was to be.
        path: String,
    },
    /// An older master does not know what was asked for.
    #[error("master {master} is {software} and does not know {feature}; nothing was done. Upgrade the master first")]
    MasterTooOld {
        /// The master.
        master: String,
        /// What it is, and its version.
        software: String,
        /// What it does not know.
        feature: &'static str,
    },
    /// An answer that makes no sense.
    #[error(
        "master {master} answered {what} with something else; client and master do not fit together: run the same \
         version of both"
    )]
    Protocol {
        /// The master.
        master: String,
        /// The operation.
        what: &'static str,
    },
    /// The local host name is no address of this machine.
    #[error(
        "local_hostname {name:?} is not an address of this machine ({resolved}): {reason}; name this machine, or say \
         with MC_STORE_CLIENT_BIND_ADDRESS what to listen on"
    )]
    NotThisMachine {
        /// The name given.
        name: String,
        /// What it resolves to.
        resolved: String,
        /// What failed.
        reason: String,
    },
    /// No port is free.
    #[error(
        "no free port for data on {address} in {min}..={max}: {reason}; see MC_STORE_CLIENT_MIN_PORT and \
         MC_STORE_CLIENT_MAX_PORT"
    )]
    NoPort {
        /// Address tried.
        address: std::net::IpAddr,
        /// First port of the range.
        min: u16,
        /// Last port of the range.
        max: u16,
        /// Last failure.
        reason: String,
    },
    /// The port asked for cannot be had.
    #[error("cannot listen for data on {address}: {reason}; choose another port, or none to get a free one")]
    PortTaken {
        /// Address asked for.
        address: SocketAddr,
        /// What failed.
        reason: String,
    },
    /// Memory, threads or descriptors for the store could not be had.
    #[error("{what}: {reason}")]
    Setup {
        /// The step that failed.
        what: &'static str,
        /// Why.
        reason: String,
    },
}

impl Cause {
    fn kind(&self) -> ErrorKind {
        match self {
            Cause::NoSpace { .. } | Cause::TooLarge { .. } => ErrorKind::NoSpace,
            Cause::Busy { .. } | Cause::Superseded { .. } => ErrorKind::Busy,
            Cause::InvalidKey { .. } => ErrorKind::InvalidKey,
            Cause::InvalidParams(_)
            | Cause::BadRequest { .. }
            | Cause::BadPattern { .. }
            | Cause::NoSuchSegment { .. }
            | Cause::PutRefused { .. }
            | Cause::BufferTooSmall { .. }
            | Cause::Fault(_)
            | Cause::RunsOut(_)
            | Cause::Register(_)
            | Cause::NotRegistered { .. } => ErrorKind::InvalidParams,
            Cause::NotFound | Cause::NotRead { .. } => ErrorKind::NotFound,
            Cause::Exists => ErrorKind::Exists,
            Cause::SessionOver { .. } => ErrorKind::SessionOver,
            Cause::MasterUnreachable { .. }
            | Cause::SpeaksHttp { .. }
            | Cause::IsOwner { .. }
            | Cause::IsNode { .. } => ErrorKind::MasterUnreachable,
            Cause::CallTimeout { .. } | Cause::NoConnection { .. } | Cause::TransferTimeout(_) => ErrorKind::Timeout,
            Cause::Transfer(_) | Cause::Device(_) | Cause::OutOfDescriptors(_) => ErrorKind::Transfer,
            Cause::Checksum(_) => ErrorKind::Checksum,
            Cause::Closed => ErrorKind::Closed,
            Cause::Forked => ErrorKind::Forked,
            Cause::Interrupted => ErrorKind::Interrupted,
            Cause::TiersNotAllowed { .. } => ErrorKind::TiersNotAllowed,
            Cause::Unsupported(_) | Cause::MasterTooOld { .. } => ErrorKind::Unsupported,
            Cause::Refused { .. } | Cause::Protocol { .. } => ErrorKind::Refused,
            Cause::NotThisMachine { .. } | Cause::NoPort { .. } | Cause::PortTaken { .. } | Cause::Setup { .. } => {
                ErrorKind::Setup
            }
        }
    }
}
