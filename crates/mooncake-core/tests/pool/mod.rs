//! A core with a clock and a log around it, for tests that read like a story.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod tiers;

use std::collections::{BTreeMap, BTreeSet};

use mooncake_core::{
    Claim, Config, Core, Effects, EndOutcome, Ended, Found, Inherited, Keep, ListedViews, Origin, Push, PutConfig,
    PutStarted, Record, Refused, Remembered, RemoveAll, RemoveOutcome, Replica, Resumed, STEP_OBJECTS, SegmentNo,
    SegmentSpec, SessionSpec, Sight, SnapshotPart, SnapshotSlice, StartOutcome, Ticket, Time, To,
};
use mooncake_ids::{Rid, SegmentUuid, SessionId};

pub const KIB: u64 = 1024;

pub struct Pool {
    pub core: Core,
    pub now: Time,
    pub fx: Effects,
    pub log: Vec<Record>,
    pub pushes: Vec<(SessionId, Push)>,
    pub woken: BTreeMap<Ticket, Vec<StartOutcome>>,
    pub sequences: BTreeMap<SessionId, u64>,
    sessions: u64,
    /// That of the last claim to memory that is kept.
    pub turn: u64,
    /// Sessions with an anchor.
    here: BTreeSet<SessionId>,
}

pub fn plain() -> PutConfig {
    PutConfig::default()
}

pub fn secret(session: SessionId) -> u64 {
    session.0 ^ 0x5555
}

/// What heirs show.
pub const KEPT: [u8; 16] = [9; 16];

pub fn uuid(number: u8) -> SegmentUuid {
    SegmentUuid([number; 16])
}

/// The durable state of a core, in an order of its own.
pub fn durable(core: &Core) -> Vec<String> {
    let mut records: Vec<String> = core.snapshot().map(|record| format!("{record:?}")).collect();
    records.sort();
    records
}

pub fn replayed(records: impl IntoIterator<Item = Record>) -> Core {
    let mut core = Core::new(Config::default());
    for record in records {
        core.replay(record.clone()).unwrap_or_else(|error| panic!("{error} at {record:?}"));
    }
    core
}

/// A snapshot that is being taken in slices, and the state that it is of.
pub struct Taken {
    state: Vec<String>,
    /// Records of the log up to the cut.
    logged: usize,
    parts: BTreeMap<SnapshotPart, Vec<Record>>,
}

impl Taken {
    /// Begins one, in the place of a former one.
    pub fn begin(pool: &mut Pool) -> Taken {
        pool.core.begin_snapshot();
        Taken { state: durable(&pool.core), logged: pool.log.len(), parts: BTreeMap::new() }
    }

    /// Goes on; its records once it is through.
    pub fn slice(&mut self, core: &mut Core, most: usize) -> Option<Vec<Record>> {
        let slice = core.snapshot_slice(most).expect("it is taken often enough");
        let Some(SnapshotSlice { part, records }) = slice else {
            core.end_snapshot();
            return Some(std::mem::take(&mut self.parts).into_values().flatten().collect());
        };
        self.parts.entry(part).or_default().extend(records.into_iter().flatten());
        None
    }

    /// It makes the state of its cut again, and with what was logged since the state as it is.
    pub fn check(&self, records: Vec<Record>, pool: &Pool) {
        assert_eq!(
            durable(&replayed(records.clone())),
            self.state,
            "the snapshot is of another state than that of its cut"
        );
        let all = records.into_iter().chain(pool.log[self.logged..].iter().cloned());
        assert_eq!(durable(&replayed(all)), durable(&pool.core), "with the log behind it, it makes another state");
    }

    /// All of what is left, at once.
    pub fn finish(mut self, pool: &mut Pool, most: usize) -> Vec<Record> {
        loop {
            if let Some(records) = self.slice(&mut pool.core, most) {
                self.check(records.clone(), pool);
                return records;
            }
        }
    }
}

impl Pool {
    pub fn new() -> Pool {
        Pool::with(Config::default())
    }

    pub fn with(config: Config) -> Pool {
        let mut pool = Pool {
            core: Core::new(config),
            now: Time(1_000_000),
            fx: Effects::default(),
            log: Vec::new(),
            pushes: Vec::new(),
            woken: BTreeMap::new(),
            sequences: BTreeMap::new(),
            sessions: 0,
            turn: 0,
            here: BTreeSet::new(),
        };
        pool.core.begin(pool.now, None, &mut pool.fx);
        pool.collect();
        pool
    }

    /// One session with one fully populated segment.
    pub fn single(bytes: u64) -> (Pool, SessionId) {
        let mut pool = Pool::new();
        let session = pool.session(1);
        pool.mount(session, 1, bytes);
        (pool, session)
    }

    pub fn collect(&mut self) {
        self.log.append(&mut self.fx.records);
        for (to, push) in self.fx.pushes.drain(..) {
            match to {
                To::Session(session) => self.pushes.push((session, push)),
                To::Everybody => self.pushes.extend(self.here.iter().map(|session| (*session, push.clone()))),
            }
        }
        for (ticket, slots) in self.fx.woken.drain(..) {
            assert!(self.woken.insert(ticket, slots).is_none(), "{ticket:?} answered twice");
        }
    }

    pub fn origin(&mut self, session: SessionId) -> Origin {
        let sequence = self.sequences.entry(session).or_default();
        *sequence += 1;
        Origin { session, sequence: *sequence, answered_below: *sequence }
    }

    pub fn session(&mut self, host: u8) -> SessionId {
        self.sessions += 1;
        let spec = SessionSpec {
            secret: secret(SessionId(self.sessions)),
            name: format!("client-{}", self.sessions),
            boot_id: vec![host],
            process: Vec::new(),
        };
        let session = self.core.open_session(self.now, spec, &mut self.fx).unwrap();
        self.core.set_sight(session, Sight::Tiers);
        self.here.insert(session);
        self.collect();
        session
    }

    pub fn try_mount(&mut self, session: SessionId, id: u8, bytes: u64, populated: u64) -> Result<SegmentNo, Refused> {
        let origin = self.origin(session);
        let spec = SegmentSpec { uuid: uuid(id), name: format!("segment-{id}"), bytes, endpoint: Vec::new() };
        let number = self.core.mount(self.now, origin, spec, populated, &mut self.fx);
        self.collect();
        number
    }

    pub fn mount(&mut self, session: SessionId, id: u8, bytes: u64) -> SegmentNo {
        self.try_mount(session, id, bytes, bytes).unwrap()
    }

    /// Lets time pass as the master sees it: ticks, and heartbeats of those who are there.
    pub fn pass(&mut self, ms: u64) {
        self.pass_without(ms, &[]);
    }

    /// The same, with some sessions silent.
    pub fn pass_without(&mut self, ms: u64, silent: &[SessionId]) {
        let end = self.now.plus_ms(ms);
        while self.now < end {
            self.now = Time((self.now.0 + 20_000).min(end.0));
            for id in (1..=self.sessions).map(SessionId) {
                if self.is_here(id) && !silent.contains(&id) {
                    self.core.beat(self.now, id, &[], &[], &mut self.fx);
                }
            }
            self.core.tick(self.now, &mut self.fx);
            while self.core.background(self.now, STEP_OBJECTS, &mut self.fx) {}
            self.collect();
        }
    }

    pub fn start(&mut self, session: SessionId, entries: &[(&str, u64)], config: &PutConfig, wait: bool) -> PutStarted {
        let origin = self.origin(session);
        let entries: Vec<(&[u8], u64)> = entries.iter().map(|(key, size)| (key.as_bytes(), *size)).collect();
        let started = self.core.put_start(self.now, origin, &entries, config, wait, &mut self.fx).unwrap();
        self.collect();
        started
    }

    pub fn slots(&mut self, session: SessionId, entries: &[(&str, u64)], config: &PutConfig) -> Vec<StartOutcome> {
        match self.start(session, entries, config, false) {
            PutStarted::Now(slots) => slots,
            // Until all is evicted that it needs.
            PutStarted::Parked(ticket) => {
                while !self.woken.contains_key(&ticket) {
                    let more = self.core.background(self.now, STEP_OBJECTS, &mut self.fx);
                    self.collect();
                    assert!(more || self.woken.contains_key(&ticket), "{ticket:?} waits without wait");
                }
                self.woken.remove(&ticket).unwrap()
            }
        }
    }

    pub fn slot(&mut self, session: SessionId, key: &str, size: u64) -> StartOutcome {
        self.slots(session, &[(key, size)], &plain()).remove(0)
    }

    pub fn park(&mut self, session: SessionId, entries: &[(&str, u64)]) -> Ticket {
        match self.start(session, entries, &plain(), true) {
            PutStarted::Parked(ticket) => ticket,
            PutStarted::Now(slots) => panic!("answered at once: {slots:?}"),
        }
    }

    pub fn reserve(&mut self, session: SessionId, key: &str, size: u64) -> Vec<Replica> {
        placed(&self.slot(session, key, size))
    }

    pub fn end(&mut self, session: SessionId, replicas: &[(Rid, bool)], crc32c: u32) -> EndOutcome {
        self.end_if_live(session, replicas, crc32c, false)
    }

    /// `stays`: an end that nobody could see leaves the reservation as it is.
    pub fn end_if_live(
        &mut self,
        session: SessionId,
        replicas: &[(Rid, bool)],
        crc32c: u32,
        stays: bool,
    ) -> EndOutcome {
        let origin = self.origin(session);
        let ended = [Ended { replicas: replicas.iter().copied().collect(), crc32c, stays }];
        let outcome = self.core.put_end(self.now, origin, &ended, &mut self.fx).unwrap();
        self.collect();
        outcome[0]
    }

    pub fn commit(&mut self, session: SessionId, replicas: &[Replica]) -> EndOutcome {
        let rids: Vec<(Rid, bool)> = replicas.iter().map(|replica| (replica.rid, true)).collect();
        self.end(session, &rids, 7)
    }

    pub fn put(&mut self, session: SessionId, key: &str, size: u64) -> Vec<Replica> {
        let replicas = self.reserve(session, key, size);
        assert_eq!(self.commit(session, &replicas), EndOutcome::Committed);
        replicas
    }

    pub fn put_with(&mut self, session: SessionId, key: &str, size: u64, config: &PutConfig) -> Vec<Replica> {
        let slots = self.slots(session, &[(key, size)], config);
        let replicas = placed(&slots[0]);
        assert_eq!(self.commit(session, &replicas), EndOutcome::Committed);
        replicas
    }

    pub fn abort(&mut self, session: SessionId, rid: Rid, writer_done: bool) {
        let origin = self.origin(session);
        self.core.abort(self.now, origin, &[rid], writer_done, &mut self.fx).unwrap();
        self.collect();
    }

    pub fn exists(&mut self, key: &str) -> bool {
        let mut there = false;
        self.core.exists(self.now, Sight::Tiers, [key.as_bytes()].into_iter(), |size| there = size.is_ok());
        there
    }

    pub fn get(&mut self, key: &str) -> Option<Found> {
        let mut all = None;
        self.core.lookup(self.now, SessionId(1), [key.as_bytes()].into_iter(), |found| {
            all = found.ok().map(|found| found.to_found());
        });
        all
    }

    pub fn pin(&mut self, session: SessionId, key: &str) -> Option<Found> {
        let origin = self.origin(session);
        let mut found = self.core.pin(self.now, origin, &[key.as_bytes()], &mut self.fx).unwrap();
        self.collect();
        // Without a replica it is there, and not pinned.
        found.remove(0).ok().filter(|found| !found.replicas.is_empty())
    }

    pub fn unpin(&mut self, session: SessionId, rid: Rid) {
        let origin = self.origin(session);
        self.core.unpin(self.now, origin, &[rid], &mut self.fx).unwrap();
        self.collect();
    }

    pub fn remove(&mut self, session: SessionId, key: &str, force: bool) -> RemoveOutcome {
        let origin = self.origin(session);
        let outcome = self.core.remove(self.now, origin, &[key.as_bytes()], force, &mut self.fx).unwrap();
        self.collect();
        outcome[0]
    }

    pub fn clear(&mut self, session: SessionId, key: &str, segment: &str) -> RemoveOutcome {
        let origin = self.origin(session);
        let outcome = self.core.clear_replicas(self.now, origin, &[key.as_bytes()], segment, &mut self.fx).unwrap();
        self.collect();
        outcome[0]
    }

    pub fn remove_all(&mut self, force: bool) -> u64 {
        let mut cursor = RemoveAll::new(&mut self.core, force);
        while !self.core.remove_all_slice(self.now, &mut cursor, 100, &mut self.fx) {}
        self.collect();
        cursor.removed
    }

    /// Removes in slices what a caller chooses by its key; `between` runs while it is choosing.
    pub fn remove_where(
        &mut self,
        force: bool,
        chosen: impl Fn(&str) -> bool,
        mut between: impl FnMut(&mut Pool),
    ) -> u64 {
        let mut cursor = RemoveAll::new(&mut self.core, force);
        loop {
            let mut picked = Vec::new();
            let done = self.core.remove_candidates(self.now, &mut cursor, 7, 40, |candidate, key| {
                if chosen(std::str::from_utf8(key).unwrap()) {
                    picked.push(candidate);
                }
            });
            between(self);
            self.core.remove_chosen(self.now, &mut cursor, &picked, &mut self.fx);
            self.collect();
            if done {
                return cursor.removed;
            }
        }
    }

    pub fn is_here(&self, session: SessionId) -> bool {
        self.here.contains(&session)
    }

    pub fn anchor_lost(&mut self, session: SessionId) {
        self.here.remove(&session);
        self.core.anchor_lost(self.now, session, &mut self.fx);
        self.collect();
    }

    pub fn resume(
        &mut self,
        session: SessionId,
        segments: &[u8],
        pins: &[Rid],
        epoch: u16,
    ) -> Result<Vec<SegmentUuid>, Refused> {
        let segments: Vec<(u8, u16)> = segments.iter().map(|id| (*id, epoch)).collect();
        self.resume_each(session, &segments, pins).map(|resumed| resumed.gone)
    }

    /// Each segment with the epoch that it has taken.
    pub fn resume_each(
        &mut self,
        session: SessionId,
        segments: &[(u8, u16)],
        pins: &[Rid],
    ) -> Result<Resumed, Refused> {
        let segments: Vec<(SegmentUuid, u16)> = segments.iter().map(|(id, epoch)| (uuid(*id), *epoch)).collect();
        let mut views = ListedViews::new(pins.to_vec());
        self.compare(session, &mut views, 1);
        let result = self.core.resume_session(self.now, session, secret(session), &segments, views, &mut self.fx);
        if result.is_ok() {
            self.core.set_sight(session, Sight::Tiers);
            self.here.insert(session);
        }
        self.collect();
        result
    }

    /// Compares a list with the books, and notes what the log lost.
    pub fn compare(&mut self, session: SessionId, views: &mut ListedViews, budget: usize) {
        loop {
            while !self.core.look_for_views(session, views, budget) {}
            if !views.has_found() {
                return;
            }
            self.core.note_found_views(self.now, session, views, budget, &mut self.fx);
            self.collect();
        }
    }

    pub fn close(&mut self, session: SessionId) {
        self.here.remove(&session);
        self.core.close_session(self.now, session, &mut self.fx);
        self.collect();
    }

    pub fn over(&mut self, session: SessionId) {
        self.here.remove(&session);
        self.core.process_gone(self.now, session, &mut self.fx);
        self.collect();
    }

    pub fn keep(&mut self, session: SessionId, ms: u64) {
        let (origin, turn) = (self.origin(session), self.turn);
        self.core.keep(self.now, origin, Keep { ms, secret: KEPT, turn }, &mut self.fx).unwrap();
        self.collect();
    }

    /// A process that holds these segments claims them.
    pub fn claim(&mut self, host: u8, segments: &[u8]) -> Result<Inherited, Refused> {
        self.turn += 1;
        self.claim_as(host, KEPT, self.turn, segments)
    }

    pub fn claim_as(&mut self, host: u8, secret: [u8; 16], turn: u64, segments: &[u8]) -> Result<Inherited, Refused> {
        let spec = SessionSpec {
            secret: self::secret(SessionId(self.sessions + 1)),
            name: format!("heir-{turn}"),
            boot_id: vec![host],
            process: Vec::new(),
        };
        let segments = segments.iter().map(|id| (uuid(*id), format!("heir-{turn}").into_bytes())).collect();
        self.open_heir(spec, &Claim { secret, turn, segments, lost: Vec::new() })
    }

    /// A process that could take none of these segments over, and wants their session to end.
    pub fn give_up(&mut self, host: u8, lost: &[u8]) -> Result<Inherited, Refused> {
        self.turn += 1;
        let spec = SessionSpec {
            secret: self::secret(SessionId(self.sessions + 1)),
            name: "heir-of-nothing".into(),
            boot_id: vec![host],
            process: Vec::new(),
        };
        let lost = lost.iter().map(|id| uuid(*id)).collect();
        self.open_heir(spec, &Claim { secret: KEPT, turn: self.turn, segments: Vec::new(), lost })
    }

    fn open_heir(&mut self, spec: SessionSpec, claim: &Claim) -> Result<Inherited, Refused> {
        let inherited = self.core.open_heir(self.now, spec, claim, &mut self.fx);
        if let Ok(Inherited { session, .. }) = &inherited {
            self.sessions += 1;
            self.core.set_sight(*session, Sight::Tiers);
            self.here.insert(*session);
        }
        self.collect();
        inherited
    }

    pub fn fence_done(&mut self, owner: SessionId, rids: &[Rid]) {
        self.core.fence_done(self.now, owner, rids, &mut self.fx);
        self.collect();
    }

    /// Fences asked of an owner since the last call.
    pub fn take_fences(&mut self, owner: SessionId) -> Vec<(Rid, bool)> {
        let mut fences = Vec::new();
        self.pushes.retain(|(to, push)| match push {
            Push::Fence { replica, writer_done, .. } if *to == owner => {
                fences.push((replica.rid, *writer_done));
                false
            }
            _ => true,
        });
        fences
    }

    pub fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        let mut cursor = Default::default();
        while !self.core.keys_slice(&mut cursor, 100, |key| keys.push(String::from_utf8(key.to_vec()).unwrap())) {}
        keys.sort();
        keys
    }

    /// The master dies and its successor replays the log.
    pub fn restart(&mut self, epoch: Option<u16>) {
        let before = durable(&self.core);
        self.core = replayed(self.log.clone());
        assert_eq!(durable(&self.core), before, "replay differs");
        self.core.begin(self.now, epoch, &mut self.fx);
        self.here.clear();
        self.collect();
        self.check_books();
    }

    /// The books hold, and the log and a snapshot both make the same state again.
    pub fn check(&self) {
        self.check_books();
        let before = durable(&self.core);
        assert_eq!(durable(&replayed(self.log.clone())), before, "the log gives another state");
        assert_eq!(durable(&replayed(self.core.snapshot())), before, "the snapshot gives another state");
    }

    pub fn check_books(&self) {
        self.core.check_invariants().unwrap_or_else(|wrong| panic!("{wrong}"));
    }
}

pub fn placed(slot: &StartOutcome) -> Vec<Replica> {
    match slot {
        StartOutcome::Placed(replicas) => replicas.to_vec(),
        other => panic!("not placed: {other:?}"),
    }
}

pub fn is_full(slot: &StartOutcome) -> bool {
    matches!(slot, StartOutcome::Full(_))
}

pub fn is_busy(slot: &StartOutcome) -> bool {
    matches!(slot, StartOutcome::Busy(_))
}

pub type Reply = Remembered;
