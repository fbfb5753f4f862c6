//! The state machine: what it is made of, how it begins, and its epochs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::config::Config;
use crate::effect::{Effects, Push, To};
use crate::epoch::Epoch;
use crate::ids::{SegmentNo, Time};
use crate::record::Record;
use crate::state::counters::Counters;
use crate::state::departure::Departure;
use crate::state::endings::Endings;
use crate::state::news::News;
use crate::state::objects::Objects;
use crate::state::pin::Pins;
use crate::state::placement::Random;
use crate::state::promotion::Promotions;
use crate::state::quarantine::Quarantine;
use crate::state::recently_evicted::RecentlyEvicted;
use crate::state::recheck::Recheck;
use crate::state::removals_under_way::RemovalsUnderWay;
use crate::state::reservation::Reservations;
use crate::state::segment::Segments;
use crate::state::session::{GoneTold, RECENTLY_GONE, Sessions};
use crate::state::snapshot_walk::SnapshotWalk;
use crate::state::tellings::Tellings;
use crate::state::tier::Tiers;
use crate::state::waiting_put::WaitQueue;
use crate::state::watermark::Watermark;
use crate::touched::Touched;
use crate::work::{STEP_OBJECTS, Work};
use mooncake_ids::{Rid, SessionId};

/// Directory, pool, sessions and everything that is decided about them. See the crate's documentation.
pub struct Core {
    pub(crate) config: Config,
    pub(crate) epoch: Epoch,
    /// Counter of the last rid of this epoch.
    pub(crate) counter: u64,
    pub(crate) sessions: Sessions,
    pub(crate) segments: Segments,
    pub(crate) tiers: Tiers,
    pub(crate) objects: Objects,
    pub(crate) reservations: Reservations,
    pub(crate) promotions: Promotions,
    pub(crate) quarantine: Quarantine,
    pub(crate) pins: Pins,
    pub(crate) tickets: WaitQueue,
    pub(crate) endings: Endings,
    /// Clients that left, for those that write lines about it.
    pub(crate) departures: Vec<Departure>,
    pub(crate) tellings: Tellings,
    pub(crate) rechecks: BTreeMap<Rid, Recheck>,
    pub(crate) removals: RemovalsUnderWay,
    /// Sessions with views that have ended and are yet to be taken out of the books.
    pub(crate) ending_views: VecDeque<SessionId>,
    /// Number of the last list of views that was compared with the books.
    pub(crate) last_comparison: u64,
    pub(crate) recently_evicted: RecentlyEvicted,
    pub(crate) random: Random,
    pub(crate) epoch_random: Random,
    pub(crate) counts: Counters,
    /// Sessions that may have said that they have replies which are yet to be forgotten.
    pub(crate) settled: BTreeSet<SessionId>,
    /// The session that is looked at next for whether it is there.
    pub(crate) next_watched: SessionId,
    /// Whether the views of those that linger are looked at this time.
    pub(crate) looks_at_lingering: bool,
    /// What may help parked requests.
    pub(crate) news: News,
    /// Objects may lie on segments that are Gone.
    pub(crate) purge: Option<u32>,
    /// The scan must start over when it is through: another segment went.
    pub(crate) purge_again: bool,
    /// Unfinished puts from this slot on may be of earlier epochs: they are over.
    pub(crate) older_puts: Option<u32>,
    /// Segments where something may be in quarantine that is older than the epoch that they obey: it is free.
    pub(crate) obeying: BTreeSet<SegmentNo>,
    /// Which chore the next step in the background begins with.
    pub(crate) next_chore: usize,
    pub(crate) watermark: Watermark,
    /// When the views of lingering sessions are looked at next.
    pub(crate) next_look_at_lingering: Time,
    /// A snapshot that is being taken.
    pub(crate) walk: Option<Box<SnapshotWalk>>,
    /// Entries of the lists above that have been looked at.
    pub(crate) touched: Touched,
}

/// Rids left in an epoch when the next one is begun.
const COUNTER_RESERVE: u64 = 1 << 32;

impl Core {
    /// An empty core. Replay what there is, then [`begin`](Core::begin).
    pub fn new(config: Config) -> Core {
        Core {
            epoch: Epoch::default(),
            counter: 0,
            sessions: Sessions::default(),
            segments: Segments::default(),
            tiers: Tiers::default(),
            objects: Objects::new(config.evict_soft_pinned),
            reservations: Reservations::new(config.reservation_ms),
            promotions: Promotions::default(),
            quarantine: Quarantine::default(),
            pins: Pins::default(),
            tickets: WaitQueue::default(),
            endings: Endings::default(),
            departures: Vec::new(),
            tellings: Tellings::default(),
            rechecks: BTreeMap::new(),
            removals: RemovalsUnderWay::default(),
            ending_views: VecDeque::new(),
            last_comparison: 0,
            recently_evicted: RecentlyEvicted::default(),
            random: Random::new(config.seed),
            epoch_random: Random::new(config.epoch_seed),
            counts: Counters::default(),
            settled: BTreeSet::new(),
            next_watched: SessionId(0),
            looks_at_lingering: false,
            news: News::default(),
            purge: None,
            purge_again: false,
            older_puts: None,
            obeying: BTreeSet::new(),
            next_chore: 0,
            watermark: Watermark::default(),
            next_look_at_lingering: Time(0),
            walk: None,
            touched: Touched::default(),
            config,
        }
    }

    /// Objects that are known, with a Live replica or without.
    pub fn objects(&self) -> usize {
        self.objects.len()
    }

    /// How many entries of its tables have been looked at so far, each as often as it was; from 0 again at the end of
    /// the numbers. Between two calls it says how much was done.
    pub fn touched(&self) -> u32 {
        let tables = [
            self.objects.touched(),
            self.reservations.touched(),
            self.segments.touched().count(),
            self.sessions.touched().count(),
            self.quarantine.touched(),
            self.pins.touched(),
            self.tickets.touched().count(),
            self.touched.count(),
        ];
        tables.into_iter().fold(0, u32::wrapping_add)
    }

    /// The end of the replay: from now on time passes. All sessions are away until their anchors are back. `raised`,
    /// the number of a new epoch, is given when the log could not be proven complete.
    pub fn begin(&mut self, now: Time, raised: Option<u16>, fx: &mut Effects) {
        for (_, session) in self.sessions.iter_mut() {
            session.away = Some(now);
            session.last_heard = now;
            session.gone = GoneTold::heard(self.segments.gone().count().saturating_sub(RECENTLY_GONE));
        }
        self.objects.restart_soft_pins(now);
        self.segments.restart_graces(now);
        self.tiers.restart_without_session(now);
        self.reservations.renew_all(now);
        // The process before this one may have been ended in the middle of it.
        self.older_puts = Some(0);
        match raised {
            Some(number) => self.raise_epoch(now, number, fx),
            None if self.epoch.number == 0 => self.raise_epoch(now, 1, fx),
            None => {}
        }
    }

    /// The epoch: the rids that are handed out carry its number.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Begins an epoch of a higher number: unfinished puts of older ones are no more, and a segment is closed to
    /// placement until its owner obeys this one. A lower or the same number changes nothing.
    pub fn raise_epoch(&mut self, now: Time, number: u16, fx: &mut Effects) {
        if number <= self.epoch.number {
            return;
        }
        self.log(now, Record::Epoch(number), fx);
        self.counts.epoch_raises += 1;
        // The first epoch of a log begins once.
        if number > 1 {
            let counters = self.counters_to_begin(number);
            self.log(now, counters, fx);
        }
        self.older_puts = Some(0);
        self.drop_older_puts(now, &mut Work::step(STEP_OBJECTS), fx);
        let numbers: Vec<SegmentNo> = self.segments.numbers().collect();
        for number in numbers {
            self.open_or_close(number);
        }
        let owners: Vec<SessionId> =
            self.sessions.iter().filter(|(_, s)| !s.segments.is_empty()).map(|(id, _)| id).collect();
        for owner in owners {
            self.push(owner, Push::TakeEpoch(self.epoch), fx);
        }
        self.serve_waiting(now, fx);
    }

    /// The next rid; it is higher than every one before it.
    pub(crate) fn next_rid(&mut self) -> Rid {
        self.counter += 1;
        Rid::new(self.epoch.number, self.counter)
    }

    pub(crate) fn raise_epoch_when_counter_ends(&mut self, now: Time, fx: &mut Effects) {
        if self.counter > Rid::COUNTER_MAX - COUNTER_RESERVE {
            let next = self.epoch.number.checked_add(1).expect("2^62 placements under one log");
            self.raise_epoch(now, next, fx);
        }
    }

    /// Makes one durable change.
    pub(crate) fn log(&mut self, now: Time, record: Record, fx: &mut Effects) {
        if let Err(error) = self.apply(now, &record) {
            panic!("the books contradict each other: {error}");
        }
        fx.records.push(record);
        self.tiers.cold_rests_until = Time(0);
    }

    /// Sends a message to a session that is there. One that is away is told what it has to know when it is back.
    pub(crate) fn push(&mut self, to: SessionId, push: Push, fx: &mut Effects) {
        if self.sessions.get(to).is_some_and(|session| session.away.is_none()) {
            fx.pushes.push((To::Session(to), push));
        }
    }
}
