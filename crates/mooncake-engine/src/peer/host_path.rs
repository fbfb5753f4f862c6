//! Whether bytes go to a peer by copies within the host, and its connections for that.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_memory::boot_id;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::host_lane::{self, Failure, HostLane};
use super::pace::{Patience, SLICE};
use super::pool::Pool;
use crate::descriptor::Descriptor;
use crate::engine::Home;

/// An attempt that failed for the moment is not repeated before.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Longest that a call waits while another one finds out; then it goes by TCP.
const MOMENT: Duration = Duration::from_millis(200);

pub(super) struct HostPath {
    state: Mutex<State>,
    found_out: Condvar,
}

enum State {
    /// It has not been tried yet, or failed then for a reason that may pass.
    Untried(Option<(Instant, String)>),
    Trying,
    Works(Arc<Pool<HostLane>>),
    /// For all of this life of the peer.
    Not(String),
}

/// Why it does not work.
enum Unmet {
    Ever(String),
    Now(String),
}

impl From<Failure> for Unmet {
    fn from(failure: Failure) -> Unmet {
        match failure {
            Failure::OtherWay(reason) => Unmet::Ever(reason),
            Failure::NotNow(reason) => Unmet::Now(reason),
            // The caller's patience says nothing of the path, and a peer that stands still may go on.
            Failure::Broken(error) => Unmet::Now(error.to_string()),
        }
    }
}

impl HostPath {
    pub fn new() -> HostPath {
        HostPath { state: Mutex::new(State::Untried(None)), found_out: Condvar::new() }
    }

    /// The connections, tried by the first who needs them. None: by TCP, this time at least.
    pub fn lanes(
        &self,
        home: &Home,
        name: &str,
        descriptor: &Descriptor,
        patience: &Patience<'_>,
    ) -> Option<Arc<Pool<HostLane>>> {
        let until = Instant::now() + MOMENT;
        let mut state = self.state.lock();
        loop {
            match &*state {
                State::Works(lanes) => return Some(lanes.clone()),
                State::Not(_) => return None,
                State::Untried(Some((at, _))) if at.elapsed() < RETRY_AFTER => return None,
                State::Untried(_) => break,
                State::Trying => {
                    self.found_out.wait_for(&mut state, SLICE);
                    // The caller's hook may wait for a lock of the caller's, whose holder waits for this one.
                    let enough = || patience.is_over() || (patience.interrupted)() || Instant::now() >= until;
                    if matches!(*state, State::Trying) && MutexGuard::unlocked(&mut state, enough) {
                        return None;
                    }
                }
            }
        }
        *state = State::Trying;
        // Without the lock: others go another way meanwhile, and see how things stand.
        drop(state);
        let next = match try_it(home, descriptor, patience) {
            Ok(lanes) => {
                tracing::info!(peer = name, path = "same host", "link");
                State::Works(lanes)
            }
            Err(Unmet::Ever(reason)) => {
                tracing::info!(peer = name, path = "tcp", reason, "link");
                State::Not(reason)
            }
            Err(Unmet::Now(reason)) => {
                tracing::debug!(peer = name, path = "tcp", reason, "link, for now");
                State::Untried(Some((Instant::now(), reason)))
            }
        };
        let found = match &next {
            State::Works(lanes) => Some(lanes.clone()),
            _ => None,
        };
        *self.state.lock() = next;
        self.found_out.notify_all();
        found
    }

    /// Its connections, if it is known to work.
    pub fn known(&self) -> Option<Arc<Pool<HostLane>>> {
        match &*self.state.lock() {
            State::Works(lanes) => Some(lanes.clone()),
            _ => None,
        }
    }

    /// How bytes go, and why.
    pub fn report(&self) -> (&'static str, String) {
        match &*self.state.lock() {
            State::Untried(None) | State::Trying => ("untried", String::new()),
            State::Untried(Some((_, reason))) => ("tcp", format!("for now: {reason}")),
            State::Works(lanes) => match lanes.address().mapped_blocks() {
                0 => ("same host", "copies between processes".into()),
                blocks => {
                    ("same host", format!("{blocks} blocks of its memory mapped, copies between processes otherwise"))
                }
            },
            State::Not(reason) => ("tcp", reason.clone()),
        }
    }
}

fn try_it(home: &Home, descriptor: &Descriptor, patience: &Patience<'_>) -> Result<Arc<Pool<HostLane>>, Unmet> {
    let ever = |reason: &str| Unmet::Ever(reason.to_owned());
    if !home.options.same_host {
        return Err(ever("turned off here"));
    }
    let ours = descriptor.ours.as_ref().ok_or_else(|| ever("the peer is no engine of this kind"))?;
    let id = descriptor.engine_id().ok_or_else(|| ever("the peer has no usable id"))?;
    if ours.unix.is_empty() {
        return Err(ever("turned off at the peer"));
    }
    let boot = boot_id().map_err(|error| Unmet::Ever(error.to_string()))?;
    if mooncake_memory::hex(&boot) != ours.boot {
        return Err(ever("another host"));
    }
    let address = host_lane::Address::new(&descriptor.name, &ours.unix, id, home.mapped.meet());
    let lanes = Pool::new(64, address);
    lanes.try_connect(home, patience)?;
    Ok(Arc::new(lanes))
}
