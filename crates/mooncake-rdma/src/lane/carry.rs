//! How work goes over lanes: by all of them from one queue, in the caller's thread.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use mooncake_net::{PollHistory, busy_poll};
use mooncake_os::Deadline;
use mooncake_verbs::{Status, VerbsError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Gone, Lane, Work, drain};

/// A new rail that has not acknowledged a write of nothing by then does not work.
const PROOF_TIME: Duration = Duration::from_millis(200);

/// Why a call was not carried out. Nothing touches its memory any more, unless a card [is stuck](CarryError::stuck).
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct CarryError {
    /// Which lane failed.
    pub lane: usize,
    /// What happened.
    pub reason: Reason,
    /// Which lanes have written: bytes of it may still land at the peer, until the peer says that its ends of them are
    /// gone.
    pub unsettled: Vec<usize>,
    /// Cards that did not stop: until these are gone they may touch the call's memory at any time, which must stay
    /// registered, and as it is.
    pub stuck: Vec<Gone>,
}

/// What ended a call.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// A request failed.
    #[error("{0}")]
    Failed(Status),
    /// The library refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// No byte moved for so long.
    #[error("no byte moved for {0:.1?}")]
    Stalled(Duration),
    /// The deadline.
    #[error("not done in time")]
    Expired,
    /// The caller's hook.
    #[error("interrupted")]
    Interrupted,
}

/// Carries work out by lanes, each of a rail of its own: all of it, or an error, behind which none of the lanes is used
/// again. Each draws from one queue when it has room, so that a rail has as much as it carries: `next` gives the next
/// piece, for the lane of that number. Writes are in the peer's memory then, for whoever looks there: behind the last
/// one of each queue pair a READ of its last byte has completed. `stall` is the longest time in which no request
/// completes.
pub fn carry(
    lanes: &mut [&mut Lane],
    next: &mut dyn FnMut(usize) -> Option<Work>,
    deadline: &Deadline<'_>,
    stall: Duration,
) -> Result<(), CarryError> {
    lanes.iter_mut().for_each(|lane| lane.begin());
    run(lanes, next, &mut Watch::new(deadline, stall)).map_err(|(lane, reason)| end(lanes, lane, reason))
}

/// Writes nothing by each queue pair of a lane.
pub(crate) fn prove(lane: &mut Lane, deadline: &Deadline<'_>) -> Result<(), CarryError> {
    let lanes = &mut [lane];
    let deadline = deadline.within(PROOF_TIME);
    let pushed = lanes[0].push_nothing().map_err(|reason| (0, reason));
    let done = pushed.and_then(|()| complete(lanes, &mut Watch::new(&deadline, PROOF_TIME)));
    done.map_err(|(lane, reason)| end(lanes, lane, reason))
}

type Failure = (usize, Reason);

fn run(
    lanes: &mut [&mut Lane],
    next: &mut dyn FnMut(usize) -> Option<Work>,
    watch: &mut Watch<'_>,
) -> Result<(), Failure> {
    let mut is_all = false;
    while !is_all {
        let mut any = false;
        for (nth, lane) in lanes.iter_mut().enumerate() {
            let filled = lane.fill(&mut || next(nth)).map_err(|reason| (nth, reason))?;
            any |= filled.any;
            is_all |= filled.is_all;
            if is_all {
                break;
            }
        }
        if !any && !is_all {
            wait(lanes, watch)?;
        }
    }
    loop {
        let mut is_read = true;
        for (nth, lane) in lanes.iter_mut().enumerate() {
            is_read &= lane.read_last_bytes().map_err(|reason| (nth, reason))?;
        }
        if is_read {
            return complete(lanes, watch);
        }
        wait(lanes, watch)?;
    }
}

/// Waits until all that was posted has completed.
fn complete(lanes: &mut [&mut Lane], watch: &mut Watch<'_>) -> Result<(), Failure> {
    while lanes.iter().any(|lane| lane.is_busy()) {
        wait(lanes, watch)?;
    }
    Ok(())
}

/// Waits until at least one request has completed.
fn wait(lanes: &mut [&mut Lane], watch: &mut Watch<'_>) -> Result<(), Failure> {
    watch.check_now_and_then().map_err(|reason| (slowest(lanes), reason))?;
    if take_completions(lanes)? {
        return watch.moved();
    }
    // Whether to wait awake is remembered from call to call.
    let history = std::mem::replace(&mut lanes[0].history, PollHistory::new());
    let soon = busy_poll(&history, || match take_completions(lanes) {
        Ok(false) => None,
        done => Some(done),
    });
    lanes[0].history = history;
    if let Some(done) = soon {
        done?;
        return watch.moved();
    }
    loop {
        // One that completes behind the arming is told; one that has completed before it is found by this look.
        for (nth, lane) in lanes.iter().enumerate() {
            lane.queue().arm().map_err(|error| (nth, error.into()))?;
        }
        if take_completions(lanes)? {
            return watch.moved();
        }
        watch.check().map_err(|reason| (slowest(lanes), reason))?;
        let slice = Timespec { tv_sec: 0, tv_nsec: watch.slice().as_nanos().max(1) as i64 };
        let notices: Vec<BorrowedFd<'_>> = lanes.iter().map(|lane| lane.queue().notices_fd()).collect();
        let mut notices: Vec<PollFd<'_>> =
            notices.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        // Interrupted by a signal, or in vain: the next look tells.
        let _ = poll(&mut notices, Some(&slice));
        for (nth, lane) in lanes.iter().enumerate() {
            lane.queue().take_notices().map_err(|error| (nth, error.into()))?;
        }
    }
}

/// The lane that nothing has completed on for longest, of those that have something under way.
fn slowest(lanes: &[&mut Lane]) -> usize {
    let busy = (0..lanes.len()).filter(|nth| lanes[*nth].is_busy());
    busy.min_by_key(|nth| lanes[*nth].moved()).unwrap_or(0)
}

/// Takes what has completed; whether anything has.
fn take_completions(lanes: &mut [&mut Lane]) -> Result<bool, Failure> {
    let mut any = false;
    for (nth, lane) in lanes.iter_mut().enumerate() {
        any |= lane.take_completions().map_err(|reason| (nth, reason))?;
    }
    Ok(any)
}

/// The error of a call that ends here, after the drain of all its lanes.
fn end(lanes: &mut [&mut Lane], lane: usize, reason: Reason) -> CarryError {
    let written = lanes.iter().enumerate().filter(|(_, lane)| lane.has_written());
    let unsettled = written.map(|(nth, _)| nth).collect();
    CarryError { lane, reason, unsettled, stuck: drain(lanes) }
}

/// For how long a call may wait.
struct Watch<'a> {
    deadline: &'a Deadline<'a>,
    stall: Duration,
    /// When a request completed last.
    moved: Instant,
    /// When the caller's hook was asked last.
    asked: Instant,
}

impl<'a> Watch<'a> {
    fn new(deadline: &'a Deadline<'a>, stall: Duration) -> Watch<'a> {
        let now = Instant::now();
        Watch { deadline, stall, moved: now, asked: now }
    }

    fn moved(&mut self) -> Result<(), Failure> {
        self.moved = Instant::now();
        Ok(())
    }

    /// While requests complete all the time, too, the call ends in time.
    fn check_now_and_then(&mut self) -> Result<(), Reason> {
        if self.asked.elapsed() >= Deadline::SLICE { self.check() } else { Ok(()) }
    }

    fn check(&mut self) -> Result<(), Reason> {
        self.asked = Instant::now();
        if self.deadline.is_interrupted() {
            return Err(Reason::Interrupted);
        }
        if self.deadline.has_passed() {
            return Err(Reason::Expired);
        }
        if self.moved.elapsed() >= self.stall {
            return Err(Reason::Stalled(self.stall));
        }
        Ok(())
    }

    fn slice(&self) -> Duration {
        self.deadline.slice().min(self.stall.saturating_sub(self.moved.elapsed()))
    }
}
