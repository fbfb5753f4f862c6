//! A pool of many objects: the master's core and log, without clients and without memory.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use mooncake_core::{
    Config, Core, Effects, Ended, Origin, Push, PutConfig, PutStarted, STEP_OBJECTS, SegmentSpec, SessionSpec, Sight,
    StartOutcome, Ticket, Time, To,
};
use mooncake_ids::{GRANULE, Rid, SegmentUuid, SessionId};
use mooncake_master::log::{Folder, Log, LogError, Sink};

use crate::holds::Holds;

/// Bytes of a key.
pub const KEY: usize = 64;

/// Keys of one request.
pub const REQUEST: usize = 512;

/// How large it is.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Objects, which fill it.
    pub objects: u64,
    /// Segments, each of a session of its own.
    pub segments: u64,
    /// Replicas of each object.
    pub replicas: u32,
}

/// The pool.
pub struct Pool {
    /// Its state.
    pub core: Core,
    /// What its clients would write to.
    pub log: Arc<Log>,
    /// The clock, which stands still until a case moves it.
    pub now: Time,
    /// How long its operations took.
    pub holds: Holds,
    /// Requests that were answered behind the operation that did it.
    pub woken: Vec<(Ticket, Vec<StartOutcome>)>,
    size: Size,
    sequence: u64,
    /// Objects that have had a key.
    keys: u64,
    /// Extents that owners are asked about.
    fences: Vec<(SessionId, Rid)>,
    /// Requests that wait, or have waited, and whose they are.
    parked: BTreeMap<Ticket, u64>,
}

/// The key of an object.
pub fn key(number: u64) -> [u8; KEY] {
    let mut key = *b"model/tensor-parallel-rank-0/layers/pages/0000000000000000000000";
    let text = format!("{number:022x}");
    key[KEY - text.len()..].copy_from_slice(text.as_bytes());
    key
}

impl Pool {
    /// An empty one, with its sessions and segments. `log` is where they are noted.
    pub fn new(size: Size, log: Log) -> Pool {
        let config = Config { unfinished_share_max: 1.0, ..Config::default() };
        let mut pool = Pool {
            core: Core::new(config),
            log: Arc::new(log),
            now: Time(1),
            holds: Holds::default(),
            woken: Vec::new(),
            size,
            sequence: 0,
            keys: size.objects,
            fences: Vec::new(),
            parked: BTreeMap::new(),
        };
        pool.quietly(|core, now, fx| core.begin(now, None, fx));
        for number in 1..=size.segments {
            pool.open(number);
            pool.mount(number, size.objects.div_ceil(size.segments) * u64::from(size.replicas) * GRANULE);
        }
        pool
    }

    /// With all its objects, of one granule each.
    pub fn fill(&mut self) {
        let mut next = 0;
        while next < self.size.objects {
            let end = (next + REQUEST as u64).min(self.size.objects);
            let keys: Vec<[u8; KEY]> = (next..end).map(key).collect();
            self.put(1 + next % self.size.segments, &keys, "put_start");
            next = end;
        }
    }

    fn open(&mut self, number: u64) {
        let spec = SessionSpec {
            secret: number,
            name: format!("host-{number}:12345"),
            boot_id: number.to_le_bytes().to_vec(),
            process: vec![7; 40],
        };
        self.quietly(|core, now, fx| core.open_session(now, spec, fx)).expect("there is room for sessions");
    }

    /// The memory of a session.
    pub fn mount(&mut self, session: u64, bytes: u64) {
        self.mount_as(session, &format!("host-{session}:12345"), bytes);
    }

    /// The same, by another name.
    pub fn mount_as(&mut self, session: u64, name: &str, bytes: u64) {
        let origin = self.origin(session);
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&session.to_le_bytes());
        uuid[8..].copy_from_slice(&self.sequence.to_le_bytes());
        let spec = SegmentSpec { uuid: SegmentUuid(uuid), name: name.to_owned(), bytes, endpoint: vec![9; 60] };
        self.quietly(|core, now, fx| core.mount(now, origin, spec, bytes, fx)).expect("a new segment");
    }

    /// The next request of a session.
    pub fn origin(&mut self, session: u64) -> Origin {
        self.sequence += 1;
        Origin { session: SessionId(session), sequence: self.sequence, answered_below: self.sequence }
    }

    /// Puts objects, to the end. `kind` is what the beginning counts as.
    pub fn put(&mut self, session: u64, keys: &[[u8; KEY]], kind: &'static str) {
        let rids = self.reserve(session, keys, kind);
        self.end(session, rids, "put_end");
    }

    /// Begins puts of objects of one granule: the placements.
    pub fn reserve(&mut self, session: u64, keys: &[[u8; KEY]], kind: &'static str) -> Vec<Vec<Rid>> {
        self.reserve_with(session, keys, &PutConfig { replica_num: self.size.replicas, ..PutConfig::default() }, kind)
    }

    /// The same as is asked for. A request that has to have its turn for its evictions gets it.
    pub fn reserve_with(
        &mut self,
        session: u64,
        keys: &[[u8; KEY]],
        config: &PutConfig,
        kind: &'static str,
    ) -> Vec<Vec<Rid>> {
        let started = self.start(session, keys, GRANULE, config, true, kind);
        let PutStarted::Now(slots) = started else { return Vec::new() };
        let placed = |slot: StartOutcome| match slot {
            StartOutcome::Placed(replicas) => Some(replicas.iter().map(|replica| replica.rid).collect()),
            _ => None,
        };
        slots.into_iter().filter_map(placed).collect()
    }

    /// Begins puts.
    pub fn start(
        &mut self,
        session: u64,
        keys: &[[u8; KEY]],
        bytes: u64,
        config: &PutConfig,
        wait: bool,
        kind: &'static str,
    ) -> PutStarted {
        self.start_sized(session, keys, &vec![bytes; keys.len()], config, wait, kind)
    }

    /// Begins puts of several sizes.
    pub fn start_sized(
        &mut self,
        session: u64,
        keys: &[[u8; KEY]],
        sizes: &[u64],
        config: &PutConfig,
        wait: bool,
        kind: &'static str,
    ) -> PutStarted {
        let entries: Vec<(&[u8], u64)> = keys.iter().map(|key| &key[..]).zip(sizes.iter().copied()).collect();
        let origin = self.origin(session);
        let started = self.hold(kind, |core, now, fx| core.put_start(now, origin, &entries, config, wait, fx));
        let started = started.expect("a known session");
        if let PutStarted::Parked(ticket) = started {
            self.parked.insert(ticket, session);
        }
        started
    }

    /// Nobody waits any more, and what was placed for those that did is given back.
    pub fn give_up(&mut self) {
        let parked = std::mem::take(&mut self.parked);
        for ticket in parked.keys() {
            self.hold("a put that waits is given up", |core, now, fx| core.cancel_ticket(now, *ticket, fx));
        }
        for (ticket, slots) in std::mem::take(&mut self.woken) {
            let placed = slots.into_iter().filter_map(|slot| match slot {
                StartOutcome::Placed(replicas) => Some(replicas.into_iter().map(|replica| replica.rid)),
                _ => None,
            });
            let (rids, origin): (Vec<Rid>, _) = (placed.flatten().collect(), self.origin(parked[&ticket]));
            self.quietly(|core, now, fx| core.abort(now, origin, &rids, true, fx)).expect("a known session");
        }
        self.answer_fences("owners answer for what is given up");
        self.refill();
    }

    /// What was looked up has lapsed, and objects are put until one has to leave for them.
    pub fn refill(&mut self) {
        self.pass(3_000, |_| false);
        while self.core.stats().protected_objects > 0 {
            self.quietly(|core, now, fx| core.tick(now, fx));
        }
        let evicted = |pool: &Pool| pool.core.stats().counters.evicted_objects;
        let before = evicted(self);
        while evicted(self) == before {
            let from = self.fresh(REQUEST as u64);
            let keys: Vec<[u8; KEY]> = (from..from + REQUEST as u64).map(key).collect();
            self.put(1, &keys, "put_start, 512 keys in a full pool");
            assert!(self.parked.is_empty(), "nothing speaks for anything");
        }
    }

    /// Owners answer what they were asked.
    pub fn answer_fences(&mut self, kind: &'static str) {
        let mut asked: BTreeMap<SessionId, Vec<Rid>> = BTreeMap::new();
        for (owner, rid) in std::mem::take(&mut self.fences) {
            asked.entry(owner).or_default().push(rid);
        }
        for (owner, rids) in asked {
            for rids in rids.chunks(REQUEST) {
                self.hold(kind, |core, now, fx| core.fence_done(now, owner, rids, fx));
            }
        }
    }

    /// What owners were asked is of no interest any more.
    pub fn forget_fences(&mut self) {
        self.fences.clear();
    }

    /// How large it is.
    pub fn size(&self) -> Size {
        self.size
    }

    /// What a segment can hold.
    pub fn segment_bytes(&self) -> u64 {
        self.size.objects.div_ceil(self.size.segments) * u64::from(self.size.replicas) * GRANULE
    }

    /// So many keys that were never used: the first of them.
    pub fn fresh(&mut self, count: u64) -> u64 {
        self.keys += count;
        self.keys - count
    }

    /// Sessions besides the first ones and the last two, which cases end.
    pub fn others(&self, count: u64) -> std::ops::Range<u64> {
        10..(10 + count).min(self.size.segments - 2)
    }

    /// The segments that a session has.
    pub fn segments_of(&self, session: u64) -> Vec<(SegmentUuid, u16)> {
        let its = self.core.segments().filter(|segment| segment.session == SessionId(session));
        its.map(|segment| (segment.uuid, self.core.epoch().number)).collect()
    }

    /// Keys of the objects that were put last.
    pub fn newest(&self, count: usize) -> Vec<[u8; KEY]> {
        (0..self.keys).rev().map(key).filter(|key| self.core.peek(key).is_some()).take(count).collect()
    }

    /// An object on each segment, as far as some looking finds.
    pub fn one_of_each_segment(&self) -> Vec<[u8; KEY]> {
        let mut found = BTreeMap::new();
        for number in (0..self.keys).rev() {
            if found.len() as u64 == self.size.segments || self.keys - number > 200 * self.size.segments {
                break;
            }
            let key = key(number);
            if let Some(segment) =
                self.core.peek(&key).and_then(|object| Some(object.replicas().next()?.extent.segment))
            {
                found.entry(segment).or_insert(key);
            }
        }
        found.into_values().collect()
    }

    /// A look-up of everything.
    pub fn protect_all(&mut self) {
        for from in (0..self.keys).step_by(REQUEST) {
            let keys: Vec<[u8; KEY]> = (from..from + REQUEST as u64).map(key).collect();
            self.quietly(|core, now, _| core.exists(now, Sight::Tiers, keys.iter().map(|key| &key[..]), |_| {}));
        }
    }

    /// Ends puts.
    pub fn end(&mut self, session: u64, rids: Vec<Vec<Rid>>, kind: &'static str) {
        let ended: Vec<Ended> = rids
            .into_iter()
            .map(|rids| Ended { replicas: rids.into_iter().map(|rid| (rid, true)).collect(), crc32c: 1, stays: false })
            .collect();
        let origin = self.origin(session);
        self.hold(kind, |core, now, fx| core.put_end(now, origin, &ended, fx)).expect("a known session");
    }

    /// One operation under the lock, as a master carries it out: with what it leaves queued for the log.
    pub fn hold<R>(&mut self, kind: &'static str, operation: impl FnOnce(&mut Core, Time, &mut Effects) -> R) -> R {
        let Pool { core, log, now, holds, .. } = self;
        let mut fx = Effects::default();
        let before = core.touched();
        let (result, pushes, woken, number) = holds.measure(kind, || {
            let result = operation(core, *now, &mut fx);
            // The queue takes them in the same hold; here they are for the cases to see.
            let (pushes, woken) = (std::mem::take(&mut fx.pushes), std::mem::take(&mut fx.woken));
            let answered: usize = woken.iter().map(|(_, slots)| slots.len()).sum();
            let steps = fx.records.len() + pushes.len() + answered;
            ((result, pushes, woken, log.enqueue(&mut fx)), steps)
        });
        holds.touched(kind, core.touched().wrapping_sub(before));
        self.note(pushes);
        self.woken.extend(woken);
        if let Some(number) = number {
            self.log.commit(number, |_| {}).expect("the log is open");
        }
        result
    }

    /// What makes a case, and is none of it.
    pub fn quietly<R>(&mut self, operation: impl FnOnce(&mut Core, Time, &mut Effects) -> R) -> R {
        let mut fx = Effects::default();
        let result = operation(&mut self.core, self.now, &mut fx);
        self.note(std::mem::take(&mut fx.pushes));
        self.woken.append(&mut fx.woken);
        if let Some(number) = self.log.enqueue(&mut fx) {
            self.log.commit(number, |_| {}).expect("the log is open");
        }
        result
    }

    fn note(&mut self, pushes: Vec<(To, Push)>) {
        self.fences.extend(pushes.into_iter().filter_map(|(to, push)| match (to, push) {
            (To::Session(owner), Push::Fence { replica, .. }) => Some((owner, replica.rid)),
            _ => None,
        }));
    }

    /// Time passes, and every session but some beats.
    pub fn pass(&mut self, milliseconds: u64, silent: impl Fn(u64) -> bool) {
        self.now = self.now.plus_ms(milliseconds);
        for number in (1..=self.size.segments).filter(|number| !silent(*number)) {
            self.quietly(|core, now, fx| core.beat(now, SessionId(number), &[], &[], fx));
        }
    }

    /// The clock's turn, until nothing is left to do.
    pub fn tick(&mut self, kind: &'static str) {
        self.hold(kind, |core, now, fx| core.tick(now, fx));
        while self.hold(kind, |core, now, fx| core.background(now, STEP_OBJECTS, fx)) {}
    }
}

/// A log to write to.
pub fn log_in(folder: Option<&Path>) -> Result<Log, LogError> {
    let sink = folder.map(|path| Sink::open(Folder::open(path)?, 1, 0, [7; 16], None)).transpose()?;
    Ok(Log::new(1, 0, sink, false))
}
