//! Copies within the host: whether they work with a peer, and the connections for them.

pub(crate) mod connection;
pub(crate) mod mapped;
pub(crate) mod stuck_writes;
pub(crate) mod unreadable;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_net::Pool;
use mooncake_os::{Deadline, boot_id, hex};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::same_host::connection::{Connector, Failure, SameHostConnection};
use super::same_host::mapped::MappedPeers;
use super::same_host::stuck_writes::StuckWrites;
use crate::error::EngineError;
use crate::memory::active_access::ActiveAccess;
use crate::memory::buffers::{Buffer, MemoryObserver};
use crate::memory::mappable::Mappable;
use crate::protocol::ids::EngineId;
use crate::protocol::segment_document::SegmentDocument;
use crate::request::Request;
use crate::transport::context::Context;
use crate::transport::{Path, PathError, PathStatus, PeerInfo, Reach, Transport, pool_limits};

/// After an attempt that failed for the moment there is none for so long.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Longest that a call waits while another one tries; then it takes another path.
const TRIAL_WAIT_MAX: Duration = Duration::from_millis(200);

/// Connections in use at a time by calls to one peer.
const IN_USE_MAX: usize = 64;

/// Copies between the processes of one host.
pub(crate) struct SameHost {
    /// Name of this engine's abstract Unix socket; empty if it has none.
    unix: String,
    mappable: Arc<Mappable>,
    mapped: MappedPeers,
    /// Abandoned writes that targets may still copy.
    stuck_writes: Arc<StuckWrites>,
}

impl SameHost {
    pub fn new(unix: String, mappable: Arc<Mappable>) -> SameHost {
        SameHost { unix, mappable, mapped: MappedPeers::default(), stuck_writes: Arc::default() }
    }

    /// The path to one incarnation of a peer.
    fn path(&self, name: &str, unix: &str, id: EngineId) -> SameHostPath {
        let name: Arc<str> = name.into();
        let stuck_writes = self.stuck_writes.clone();
        let address = connection::Address::new(name.clone(), unix, id, self.mapped.add(), stuck_writes.clone());
        let (connections, state) = (Pool::new(pool_limits(IN_USE_MAX)), Mutex::new(State::Untried(None)));
        SameHostPath { name, id, address, connections, stuck_writes, state, tried: Condvar::new() }
    }
}

impl MemoryObserver for SameHost {
    fn register(&self, buffers: &[Arc<Buffer>]) -> Result<(), EngineError> {
        self.mappable.add(buffers);
        Ok(())
    }

    fn unregister(&self, buffers: &[Arc<Buffer>]) -> Vec<Arc<dyn ActiveAccess>> {
        self.mappable.remove(buffers).into_iter().map(|access| Arc::new(access) as _).collect()
    }
}

impl Transport for SameHost {
    fn name(&self) -> &'static str {
        "same host"
    }

    fn describe(&self, _lent: &[Arc<Buffer>], document: &mut SegmentDocument) {
        if let Some(ours) = &mut document.ours {
            ours.boot = boot_id().map(|boot| hex(&boot)).unwrap_or_default();
            ours.unix.clone_from(&self.unix);
        }
    }

    fn path_to(&self, context: &Context, peer: &PeerInfo<'_>, _: &Deadline<'_>) -> Result<Reach, EngineError> {
        let socket = if context.options.same_host { socket_of(peer.document) } else { Err("turned off here".into()) };
        Ok(match socket {
            Ok((unix, id)) => Reach::Path(Box::new(self.path(peer.name, unix, id))),
            Err(reason) => Reach::Unreachable(reason),
        })
    }

    fn sweep(&self, _now: Instant) {
        self.mapped.forget_ended();
    }

    fn finish(&self, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        self.stuck_writes.wait_for_all(deadline)
    }
}

/// A peer's socket and the id of its incarnation; or why its document rules copies within the host out.
fn socket_of(document: &SegmentDocument) -> Result<(&str, EngineId), String> {
    let ours = document.ours.as_ref().ok_or("the peer is no engine of this kind")?;
    let id = document.engine_id().ok_or("the peer has no usable id")?;
    if ours.unix.is_empty() {
        return Err("turned off at the peer".into());
    }
    let boot = boot_id().map_err(|error| error.to_string())?;
    if hex(&boot) == ours.boot { Ok((&ours.unix, id)) } else { Err("another host".into()) }
}

/// The path to one incarnation of a peer.
struct SameHostPath {
    name: Arc<str>,
    id: EngineId,
    address: connection::Address,
    connections: Pool<SameHostConnection>,
    stuck_writes: Arc<StuckWrites>,
    state: Mutex<State>,
    tried: Condvar,
}

enum State {
    /// Not tried yet, or it failed then, for a reason that may pass.
    Untried(Option<(Instant, String)>),
    Trying,
    Works,
    /// It does not work in this incarnation of the peer.
    Not(String),
}

impl From<Failure> for State {
    fn from(failure: Failure) -> State {
        let now = |reason| State::Untried(Some((Instant::now(), reason)));
        match failure {
            Failure::Unsuitable(reason) => State::Not(reason),
            Failure::NotCopied { reason, .. } | Failure::UnsuitableNow(reason) => now(reason),
            // The caller's deadline says nothing of the path, and a peer that stands still may go on.
            Failure::Failed(error) => now(error.to_string()),
        }
    }
}

impl Path for SameHostPath {
    fn transfer(&self, context: &Context, requests: &[Request], deadline: &Deadline<'_>) -> Result<(), PathError> {
        self.retire_abandoned(context, deadline)?;
        if context.buffers.are_any_on_device(requests) {
            return Err(PathError::Unsuitable(Cow::Borrowed("device memory here")));
        }
        self.try_it(context, deadline)?;
        let by = Connector { context, address: &self.address };
        let transferred =
            self.connections.with(&by, deadline, |connection| connection.transfer(context, requests, deadline));
        transferred.map_err(|failure| match failure {
            Failure::NotCopied { there: true, .. } => PathError::Unsuitable(Cow::Borrowed("device memory at the peer")),
            // A process that may not be read, for instance: the next transport moves the bytes, or says what is wrong.
            Failure::NotCopied { reason, .. } | Failure::Unsuitable(reason) | Failure::UnsuitableNow(reason) => {
                PathError::Unsuitable(Cow::Owned(reason))
            }
            Failure::Failed(error) => PathError::Failed(error),
        })
    }

    fn retire_abandoned(&self, _: &Context, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        self.stuck_writes.wait(self.id, &self.name, deadline)
    }

    fn close_idle(&self, now: Instant) {
        self.connections.close_idle(now);
    }

    fn status(&self) -> PathStatus {
        match &*self.state.lock() {
            State::Untried(None) | State::Trying => PathStatus::Untried,
            State::Untried(Some((_, reason))) => PathStatus::Down(format!("for now: {reason}")),
            State::Works => PathStatus::Up(match self.address.mapped_blocks() {
                0 => "copies between processes".into(),
                blocks => format!("{blocks} blocks of its memory mapped, copies between processes otherwise"),
            }),
            State::Not(reason) => PathStatus::Down(reason.clone()),
        }
    }
}

impl SameHostPath {
    /// Whether copies work: the first call that needs them tries.
    fn try_it(&self, context: &Context, deadline: &Deadline<'_>) -> Result<(), PathError> {
        let until = Instant::now() + TRIAL_WAIT_MAX;
        let mut state = self.state.lock();
        loop {
            match &*state {
                State::Works => return Ok(()),
                State::Not(_) => return Err(PathError::Down),
                State::Untried(Some((at, _))) if at.elapsed() < RETRY_PAUSE => return Err(PathError::Down),
                State::Untried(_) => break,
                State::Trying => {
                    self.tried.wait_for(&mut state, Deadline::SLICE);
                    // The caller's hook may wait for a lock of the caller's, whose holder waits for this one.
                    let enough = || deadline.has_passed() || deadline.is_interrupted() || Instant::now() >= until;
                    if matches!(*state, State::Trying) && MutexGuard::unlocked(&mut state, enough) {
                        return Err(PathError::Unsuitable(Cow::Borrowed(
                            "another call is trying copies within the host",
                        )));
                    }
                }
            }
        }
        *state = State::Trying;
        // Without the lock: other calls take another path meanwhile, and reports read the state.
        drop(state);
        let by = Connector { context, address: &self.address };
        let next = self.connections.try_connect(&by, deadline).map_or_else(State::from, |()| State::Works);
        let works = matches!(next, State::Works);
        if let State::Untried(Some((_, reason))) | State::Not(reason) = &next {
            tracing::debug!(peer = &*self.name, reason, "no copies within the host");
        }
        *self.state.lock() = next;
        self.tried.notify_all();
        if works { Ok(()) } else { Err(PathError::Down) }
    }
}
