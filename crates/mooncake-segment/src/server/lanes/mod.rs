//! The data lanes of an owner: thousands that stand idle, and a few threads for those with a request.
//!
//! All lanes lie in one `epoll`, each armed for one event. A request wakes one
//! worker, which takes the lane out, serves that request and lays the lane back;
//! the kernel wakes the worker that went to sleep last. While all are busy,
//! lanes with requests wait there in the order in which the requests came, and
//! none is refused.
//!
//! Where another worker waits for the other lanes, one that has answered *stays*
//! at its lane for a moment: a caller that asks again at once finds it in `recv`,
//! with no event to arm and no worker to wake.
//!
//! A worker whose peer may let it wait in the middle of a request is *held up*:
//! others have to be there for the rest. So their number grows with the lanes
//! that move many bytes, up to a bound, and not with the lanes that ask. A peer that
//! stands still for a moment has its lane put aside, until it goes on or its time
//! is over: it keeps no worker.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::num::NonZero;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use mooncake_ids::SegmentUuid;
use parking_lot::{Condvar, Mutex};

use super::tcp_lane::{End, Lane, LaneControl, Worker};
use crate::alarm::Alarm;
use crate::gate::WriterConnection;
use crate::protocol::frames::{LANE_KEPT, Status};
use crate::readiness::{Readiness, Ready};
use mooncake_os::{Waker, thread};

/// A worker that had nothing to do for so long ends, if another one waits.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Ample for the small buffers of a worker.
const STACK: usize = 256 << 10;

/// So many workers at most stay at lanes. As many as a client keeps lanes to an owner: where some of the lanes that it
/// uses at the same time are laid back after each request, they cost more than all of them with a thread of their own.
const STAYING: usize = 16;

/// Stand for the waker and the alarm among the numbers of lanes.
const BELL: u64 = 0;
const ALARM: u64 = u64::MAX;

/// Lanes are closed for want of descriptors so many at a time, and for want of places by this share of all: they have
/// to be looked for.
const CLOSED_AT_ONCE: usize = 64;

/// After a thread could not be made another one is not tried before.
const NO_THREAD: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Lanes {
    readiness: Readiness,
    /// Rung once, and never hushed: it wakes every worker.
    end: Waker,
    max_lanes: usize,
    max_workers: usize,
    /// Wakes one worker when time is over for lanes that are put aside: the others rest meanwhile.
    alarm: Alarm,
    table: Mutex<Table>,
    /// A lane has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    lanes: HashMap<u64, Held>,
    /// Those in the middle of a request that no worker has, by when they are lost.
    aside: BTreeSet<(Instant, u64)>,
    /// The alarm goes off then: no later than the first of those ends.
    alarm: Option<Instant>,
    last: u64,
    workers: Workers,
    stopping: bool,
}

#[derive(Debug)]
struct Held {
    control: Arc<LaneControl>,
    /// `None`: a worker has it.
    idle: Option<(Lane, Instant)>,
}

#[derive(Debug, Default)]
struct Workers {
    all: usize,
    /// They wait for a request of any lane.
    waiting: usize,
    held_up: usize,
    /// They serve requests of one lane for as long as those come.
    staying: usize,
    /// A thread could not be made then.
    refused: Option<Instant>,
}

impl Workers {
    /// Whether another one is needed for the requests of other lanes.
    fn are_short(&self, most: usize) -> bool {
        let wanted = self.waiting == 0 && self.all < self.held_up + self.staying + hands() && self.all < most;
        wanted && self.refused.is_none_or(|refused| refused.elapsed() >= NO_THREAD)
    }

    /// A worker is at the end of its request.
    fn is_done(&mut self, worker: &mut Worker<'_>) {
        self.held_up -= usize::from(std::mem::take(&mut worker.held_up));
        self.staying -= usize::from(std::mem::take(&mut worker.stays));
    }
}

/// Workers that are not held up can use so many processors.
fn hands() -> usize {
    static HANDS: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, NonZero::get).clamp(2, 16));
    *HANDS
}

impl Lanes {
    pub(super) fn new(max_lanes: usize, max_workers: usize) -> io::Result<Arc<Lanes>> {
        let lanes = Lanes {
            readiness: Readiness::new()?,
            end: Waker::new()?,
            max_lanes: max_lanes.max(1),
            max_workers: max_workers.max(1),
            alarm: Alarm::new()?,
            table: Mutex::default(),
            ended: Condvar::new(),
        };
        lanes.readiness.add(lanes.end.fd(), BELL, Ready::IN)?;
        lanes.readiness.add(lanes.alarm.fd(), ALARM, Alarm::WANTED)?;
        Ok(Arc::new(lanes))
    }

    /// Takes a lane in, unless its segment `is_removed`: asked under the lock under which [`Lanes::cut`] looks for
    /// lanes. `welcome` tells the peer that it is in.
    pub(super) fn add(
        self: &Arc<Self>,
        lane: Lane,
        is_removed: impl Fn() -> bool,
        welcome: impl Fn(&Lane) -> bool,
    ) -> Result<(), Status> {
        let mut table = self.table.lock();
        if is_removed() || table.stopping {
            return Err(Status::UnknownSegment);
        }
        let share = (self.max_lanes / CLOSED_AT_ONCE).max(1);
        if table.lanes.len() >= self.max_lanes && table.close_idle(share) == 0 {
            return Err(Status::Overloaded);
        }
        if table.workers.all == 0 {
            self.start_worker(&mut table);
        }
        if table.workers.all == 0 {
            return Err(Status::Overloaded);
        }
        table.last += 1;
        let id = table.last;
        // Before it can ask anything. A lane that cannot be told, or watched, is broken already.
        if welcome(&lane) && self.readiness.add(lane.fd(), id, armed(&lane)).is_ok() {
            let held = Held { control: lane.control().clone(), idle: Some((lane, Instant::now())) };
            table.lanes.insert(id, held);
        }
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.table.lock().lanes.len()
    }

    /// Closes lanes that have long been idle; the process has too few descriptors.
    pub(super) fn make_room(&self) {
        self.table.lock().close_idle(CLOSED_AT_ONCE);
    }

    /// Ends the lanes of a segment: those at a worker as soon as that notices.
    pub(super) fn cut(&self, uuid: SegmentUuid) {
        let mut table = self.table.lock();
        for held in table.lanes.values().filter(|held| held.control.uuid() == uuid) {
            held.control.cut();
        }
        // On a lane that no worker has, nothing is under way.
        table.lanes.retain(|_, held| held.control.uuid() != uuid || held.idle.is_none());
    }

    /// Whether none of a segment's lanes is left, waited for until the end of this slice.
    pub(super) fn are_gone(&self, uuid: SegmentUuid, slice: Duration) -> bool {
        let mut table = self.table.lock();
        let is_left = |table: &Table| table.lanes.values().any(|held| held.control.uuid() == uuid);
        if is_left(&table) {
            self.ended.wait_for(&mut table, slice);
        }
        !is_left(&table)
    }

    /// Ends every lane and every worker.
    pub(super) fn stop(&self) {
        let mut table = self.table.lock();
        table.stopping = true;
        for held in table.lanes.values() {
            held.control.cut();
        }
        table.lanes.retain(|_, held| held.idle.is_none());
        drop(table);
        self.end.wake();
    }

    fn start_worker(self: &Arc<Self>, table: &mut Table) {
        let inside = self.clone();
        let builder = std::thread::Builder::new().name("mooncake-lane".into()).stack_size(STACK);
        match thread::start(builder, move || inside.work()) {
            Ok(_detached) => {
                table.workers.all += 1;
                table.workers.waiting += 1;
            }
            Err(e) => {
                table.workers.refused = Some(Instant::now());
                tracing::warn!(workers = table.workers.all, "no further thread for data lanes: {e}");
            }
        }
    }

    fn work(self: &Arc<Self>) {
        let mut worker = Worker::new(self);
        while let Some(id) = self.next_ready() {
            let Some(mut lane) = self.take(id) else { continue };
            let ended = loop {
                match lane.serve_one(&mut worker) {
                    Ok(true) if self.stays(&mut worker) => {}
                    Ok(_) => break None,
                    Err(end) => break Some(end),
                }
            };
            if let Some(End::Bad(why)) = &ended
                && !lane.control().is_cut()
            {
                tracing::debug!(peer = %lane.peer(), "data lane ended: {why}");
            }
            self.lay_back(id, lane, ended.is_none(), &mut worker);
        }
    }

    /// Whether a worker that has answered waits for the lane's next request: no other lane has to wait for that.
    fn stays(&self, worker: &mut Worker<'_>) -> bool {
        let mut table = self.table.lock();
        let workers = &mut table.workers;
        workers.is_done(worker);
        worker.stays = workers.waiting > 0 && workers.staying < STAYING;
        workers.staying += usize::from(worker.stays);
        worker.stays
    }

    /// A lane with a request; none when this worker is to end. It counts as waiting until [`Lanes::take`].
    fn next_ready(&self) -> Option<u64> {
        loop {
            // One at a time: what this worker does not serve at once is for the others.
            let ready = match self.readiness.wait::<1>(Some(IDLE_TIMEOUT)) {
                Ok(mut ready) => ready.next().map(|(id, _)| id),
                // The descriptor is closed in a forked child only, which has no such thread.
                Err(e) => {
                    tracing::error!("data lanes: epoll_wait: {e}");
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            let mut table = match ready {
                Some(BELL) | None => self.table.lock(),
                Some(ALARM) => {
                    let mut table = self.table.lock();
                    self.end_overdue(&mut table);
                    table
                }
                id => return id,
            };
            if table.stopping || ready.is_none() && (table.workers.waiting > 1 || table.lanes.is_empty()) {
                table.workers.all -= 1;
                table.workers.waiting -= 1;
                return None;
            }
        }
    }

    fn take(self: &Arc<Self>, id: u64) -> Option<Lane> {
        let mut table = self.table.lock();
        // Closed in the moment of its request: it counts as waiting still.
        let (lane, _) = table.lanes.get_mut(&id)?.idle.take()?;
        if let Some(until) = lane.until() {
            table.aside.remove(&(until, id));
        }
        table.workers.waiting -= 1;
        if table.workers.are_short(self.max_workers) {
            self.start_worker(&mut table);
        }
        Some(lane)
    }

    fn lay_back(&self, id: u64, lane: Lane, goes_on: bool, worker: &mut Worker<'_>) {
        let control = lane.control().clone();
        let mut table = self.table.lock();
        table.workers.waiting += 1;
        table.workers.is_done(worker);
        if goes_on && !control.is_cut() && !table.stopping {
            let armed = armed(&lane);
            if let Some(until) = lane.until() {
                table.aside.insert((until, id));
                self.set_alarm(&mut table);
            }
            if let Some(held) = table.lanes.get_mut(&id) {
                held.idle = Some((lane, Instant::now()));
            }
            drop(table);
            // The worker that this wakes finds the lane there. A lane that cannot be armed gets no request either.
            if self.readiness.change(control.fd(), id, armed).is_err() {
                self.table.lock().lanes.remove(&id);
                self.ended.notify_all();
            }
            return;
        }
        table.lanes.remove(&id);
        drop(table);
        drop(lane);
        self.ended.notify_all();
    }

    /// Ends the lanes whose peers have stood still for too long in the middle of a request.
    fn end_overdue(&self, table: &mut Table) {
        let now = Instant::now();
        while let Some((until, id)) = table.aside.first().copied()
            && until <= now
        {
            table.aside.pop_first();
            // Some have been cut, and are gone.
            if let Some(Held { idle: Some((lane, _)), .. }) = table.lanes.get(&id) {
                tracing::debug!(peer = %lane.peer(), "data lane ended: its peer stands still in the middle of a \
                    request");
                table.lanes.remove(&id);
                self.ended.notify_all();
            }
        }
        table.alarm = None;
        self.set_alarm(table);
    }

    /// One that goes off too early, as its lane has gone on, is set anew then.
    fn set_alarm(&self, table: &mut Table) {
        if let Some((until, _)) = table.aside.first().copied()
            && table.alarm.is_none_or(|alarm| until < alarm)
        {
            table.alarm = Some(until);
            self.alarm.set(until);
        }
    }

    /// The worker of a lane may have to wait in the middle of a request.
    pub(super) fn held_up(self: &Arc<Self>) {
        let mut table = self.table.lock();
        table.workers.held_up += 1;
        if table.workers.are_short(self.max_workers) {
            self.start_worker(&mut table);
        }
    }
}

/// What an idle lane waits for, once.
fn armed(lane: &Lane) -> Ready {
    lane.wanted() | Ready::ONESHOT
}

impl Table {
    /// Closes the lanes that have been idle for longest, so many at most, and says how many those were.
    fn close_idle(&mut self, most: usize) -> usize {
        let now = Instant::now();
        let idle = |(id, held): (&u64, &Held)| {
            let (_, since) = held.idle.as_ref().filter(|(lane, _)| lane.until().is_none())?;
            (now.saturating_duration_since(*since) >= LANE_KEPT).then_some((*since, *id))
        };
        let mut idle: Vec<(Instant, u64)> = self.lanes.iter().filter_map(idle).collect();
        idle.sort_unstable();
        let is_unused = |held: &Held| held.idle.as_ref().is_some_and(|(lane, _)| !lane.has_request());
        let unused = idle.iter().filter(|(_, id)| self.lanes.get(id).is_some_and(is_unused));
        let ids: Vec<u64> = unused.take(most).map(|(_, id)| *id).collect();
        for id in &ids {
            if let Some(held) = self.lanes.remove(id) {
                held.control.cut();
            }
        }
        ids.len()
    }
}

#[cfg(test)]
mod tests;
