//! The data lanes to one segment, kept, and used by one request at a time.
//!
//! It is not [`mooncake_net::Pool`]: idle lanes are counted over all segments of a process, and an owner that has no
//! room for one more lane is waited for while others come back, not avoided.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_os::Deadline;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;

use super::idle_lanes::{IdleLane, IdleLanes};
use super::options::{LinkOptions, SegmentAddress};
use super::tcp_lane::{Lane, Outcome};
use crate::error::TransferError;
use crate::protocol::frames::{Hello, Status};

/// Most lanes kept without work; more are opened and closed with the load.
const IDLE_MAX: usize = 16;

/// An owner with too many lanes is asked again after this.
const CROWDED: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct LanePool {
    segment: Arc<str>,
    hello: Hello,
    bytes: u64,
    addresses: Vec<SocketAddr>,
    /// The address of this host that lanes come from; none: as the kernel's routes say.
    local: Option<IpAddr>,
    timeouts: (Duration, Duration),
    retry_after: Duration,
    max_lanes: usize,
    all_idle: Arc<IdleLanes>,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The one that came back last is at the end, and used first.
    idle: Vec<IdleLane>,
    in_use: usize,
    closed: bool,
    failed: Option<Failure>,
}

/// The last attempt to connect failed.
#[derive(Debug)]
struct Failure {
    at: Instant,
    why: String,
    /// The owner is there, and has too many lanes; or this process has too many descriptors.
    crowded: bool,
    /// It is this process that has too many descriptors.
    is_own: bool,
    /// No answer came in time: the owner may stand still, and go on in a moment.
    timed_out: bool,
    /// It is not tried again before that.
    pause: Duration,
}

impl LanePool {
    pub(super) fn new(
        address: &SegmentAddress,
        options: &LinkOptions,
        hello: Hello,
        all_idle: Arc<IdleLanes>,
    ) -> Result<LanePool, String> {
        let mut addresses = Vec::new();
        for tcp in &address.tcp {
            // Names would have to be resolved, and that has no deadline.
            addresses.push(tcp.parse().map_err(|_| format!("{tcp:?} is not ip:port or [ip]:port"))?);
        }
        if addresses.is_empty() {
            return Err("its owner gave no TCP address".into());
        }
        Ok(LanePool {
            segment: address.display_name(),
            hello,
            bytes: address.bytes,
            addresses,
            local: None,
            timeouts: (options.connect_timeout, options.stall_timeout),
            retry_after: options.retry_after,
            max_lanes: options.max_lanes.max(1),
            all_idle,
            state: Mutex::default(),
            returned: Condvar::new(),
        })
    }

    /// The same, with lanes from this address of this host.
    pub(super) fn from(self, local: Option<IpAddr>) -> LanePool {
        LanePool { local, ..self }
    }

    /// The address that is tried first.
    pub(super) fn first(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// Runs one request on a lane. `settled` of the outcome is true if no lane could be had.
    pub(super) fn with_lane<T>(
        &self,
        deadline: &Deadline<'_>,
        mut request: impl FnMut(&mut Lane) -> Outcome<T>,
    ) -> Outcome<T> {
        let mut lane = match self.check_out(deadline) {
            Ok(lane) => lane,
            Err(e) => return Outcome { result: Err(e), reusable: false, settled: true },
        };
        let outcome = request(&mut lane);
        self.check_in(outcome.reusable.then_some(lane));
        outcome
    }

    /// Opens a lane, so that the path is known to work.
    pub(super) fn try_connect(&self, deadline: &Deadline<'_>) -> Result<SocketAddr, TransferError> {
        let lane = self.check_out(deadline)?;
        let address = lane.address();
        self.check_in(Some(lane));
        Ok(address)
    }

    /// Whether no owner takes lanes there any more, and none is left: it may be somewhere else by now. One that stands
    /// still, or is crowded, is not.
    pub(super) fn is_refused(&self) -> bool {
        let state = self.state.lock();
        let refused = state.failed.as_ref().is_some_and(|failure| !failure.crowded && !failure.timed_out);
        refused && state.in_use == 0 && state.idle.is_empty()
    }

    /// Whether there is no lane, nor an attempt at one.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.in_use == 0 && state.idle.is_empty()
    }

    /// Closes the lanes that no call has used for a while.
    pub(super) fn close_idle(&self) {
        let over = self.state.lock().part_with_old();
        drop(over);
    }

    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.idle.clear();
        self.returned.notify_all();
    }

    /// A lane that is kept, or a new one, or one that comes back: while others have some, an owner that takes no more
    /// of them is no reason to fail.
    fn check_out(&self, deadline: &Deadline<'_>) -> Result<Lane, TransferError> {
        let began = Instant::now();
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return Err(TransferError::Gone { segment: self.segment.to_string() });
            }
            let (lane, over) = state.take_idle();
            if let Some(lane) = lane {
                state.in_use += 1;
                drop(state);
                drop(over);
                return Ok(lane);
            }
            let now = Instant::now();
            let pause = state.failed.as_ref().map_or(Duration::ZERO, |failure| failure.pause_left(now));
            if state.in_use < self.max_lanes && pause.is_zero() {
                state.in_use += 1;
                let connected = MutexGuard::unlocked(&mut state, || self.connect(deadline));
                match connected {
                    Ok(lane) => {
                        state.failed = None;
                        return Ok(lane);
                    }
                    Err(e) => {
                        state.in_use -= 1;
                        self.returned.notify_one();
                        if matches!(e, TransferError::Interrupted) || deadline.has_passed() {
                            return Err(e);
                        }
                        // What this process lacks says nothing of the owner, and only a lane of this pool can bring it.
                        let failure = Failure::new(&e, self.retry_after);
                        if failure.is_own && state.in_use == 0 {
                            return Err(e);
                        }
                        let is_final = !failure.crowded && state.in_use == 0;
                        state.failed = Some(failure);
                        if is_final {
                            return Err(e);
                        }
                    }
                }
                continue;
            }
            if let Some(failure) = &state.failed
                && !failure.crowded
                && state.in_use == 0
            {
                return Err(failure.again(self.segment.to_string()));
            }
            if MutexGuard::unlocked(&mut state, || deadline.is_interrupted()) {
                return Err(TransferError::Interrupted);
            }
            if deadline.has_passed() {
                let segment = self.segment.to_string();
                // What this process lacks is no word about the owner, and has a remedy.
                if state.failed.as_ref().is_some_and(|failure| failure.is_own) {
                    return Err(TransferError::Broken {
                        segment,
                        what: "no lane was free",
                        source: Errno::MFILE.into(),
                    });
                }
                return Err(TransferError::Timeout { segment, what: "no lane was free", waited: began.elapsed() });
            }
            let slice = if pause.is_zero() { deadline.slice() } else { deadline.slice().min(pause) };
            self.returned.wait_for(&mut state, slice);
        }
    }

    fn check_in(&self, lane: Option<Lane>) {
        let mut state = self.state.lock();
        state.in_use -= 1;
        let over = state.part_with_old();
        let kept = if state.closed || state.idle.len() >= IDLE_MAX { None } else { lane };
        if let Some(idle) = kept.and_then(|lane| self.all_idle.keep(lane)) {
            state.idle.push(idle);
        }
        drop(state);
        drop(over);
        self.returned.notify_one();
    }

    fn connect(&self, deadline: &Deadline<'_>) -> Result<Lane, TransferError> {
        let mut last = TransferError::Gone { segment: self.segment.to_string() };
        for address in &self.addresses {
            let bytes = Some(self.bytes);
            match Lane::open_from(self.local, *address, &self.hello, bytes, &self.segment, self.timeouts, deadline) {
                Ok(lane) => return Ok(lane),
                Err(TransferError::Interrupted) => return Err(TransferError::Interrupted),
                // Of an owner that is there, whatever its other addresses are like.
                Err(_) if Failure::new(&last, self.retry_after).crowded => {}
                Err(e) if last.is_passing() && !e.is_passing() => {}
                Err(e) => last = e,
            }
        }
        Err(last)
    }
}

impl State {
    /// The lane that was used last, if its owner has not hung up; and lanes to be closed without the lock.
    fn take_idle(&mut self) -> (Option<Lane>, Vec<IdleLane>) {
        let mut over = self.part_with_old();
        while let Some(idle) = self.idle.pop() {
            if idle.is_alive() {
                return (Some(idle.check_out()), over);
            }
            over.push(idle);
        }
        (None, over)
    }

    fn part_with_old(&mut self) -> Vec<IdleLane> {
        let now = Instant::now();
        let old = self.idle.iter().take_while(|idle| idle.is_old(now)).count();
        self.idle.drain(..old).collect()
    }
}

impl Failure {
    fn new(error: &TransferError, retry_after: Duration) -> Failure {
        let is_own = error.is_short_of_descriptors();
        let overloaded = matches!(error, TransferError::Refused { status: Status::Overloaded, .. });
        let crowded = is_own || overloaded;
        let pause = if crowded { CROWDED } else { retry_after };
        let timed_out = matches!(error, TransferError::Timeout { .. });
        Failure { at: Instant::now(), why: error.to_string(), crowded, is_own, timed_out, pause }
    }

    /// What a caller hears that comes before it is tried again: the kind of failure stays what it was.
    fn again(&self, segment: String) -> TransferError {
        let (what, ago) = ("not tried again so soon", self.at.elapsed());
        match self.timed_out {
            true => TransferError::Timeout { segment, what, waited: ago },
            false => {
                let source = std::io::Error::other(format!("{} ({ago:?} ago)", self.why));
                TransferError::Broken { segment, what, source }
            }
        }
    }

    fn pause_left(&self, now: Instant) -> Duration {
        (self.at + self.pause).saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests;
