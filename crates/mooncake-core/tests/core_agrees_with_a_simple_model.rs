//! Random operations on a core, against a model that keeps everything in plain maps.
//!
//! After each step: the core's own books hold, the objects are those of the model, the space in use is what is
//! accounted for, nobody waits for longer than a put may, and the log and a snapshot both make the same state again; so
//! does a snapshot that was taken in slices between the steps, of the state in which it was begun. A mutation that
//! is repeated, by this master or by one that has replayed its log, changes nothing and is answered as it was.

use std::collections::{BTreeMap, BTreeSet};

use mooncake_core::{
    Config, EndOutcome, Ended, Extent, Inherited, Origin, PinKind, Populated, Push, PutConfig, PutStarted, Record,
    RemoveOutcome, Replica, SegmentNo, SegmentState, StartOutcome, Ticket, Time,
};
use mooncake_ids::{GRANULE, Rid, SessionId};
use proptest::prelude::*;

use crate::pool::{KIB, Pool, Taken, durable, plain, replayed, uuid};

#[derive(Debug, Clone)]
enum Step {
    Start { session: usize, keys: Vec<u8>, size: u64, replicas: u32, pin: u8, wait: bool, replace: bool },
    End { nth: usize, good: u8, stays: bool },
    Abort { nth: usize, done: bool },
    Exists(u8),
    Get(u8),
    Pin { session: usize, key: u8 },
    Unpin(usize),
    Remove { session: usize, key: u8, force: bool },
    Clear { session: usize, key: u8, on: Option<u8> },
    RemoveAll(bool),
    RemoveSome { last: u8, force: bool },
    Fence(usize),
    Pass(u64),
    AnchorLost(usize),
    Resume(usize),
    Over(usize),
    Keep { session: usize, ms: u64 },
    Claim { session: usize, all: bool },
    Open,
    Mount { session: usize, granules: u64, populated: u64 },
    Unmount { nth: usize, grace_ms: u64 },
    Bad { key: u8, good: bool },
    RaiseEpoch,
    TakeEpoch(usize),
    Populate { granules: u64, failed: bool },
    Restart(bool),
    Repeat(usize),
    Slice(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let session = 0..4usize;
    let key = 0..24u8;
    prop_oneof![
        12 => (
            session.clone(), proptest::collection::vec(key.clone(), 1..4), 1..9 * KIB, 1..3u32, 0..7u8, any::<bool>(),
            any::<bool>(),
        )
            .prop_map(|(session, keys, size, replicas, pin, wait, replace)| {
                Step::Start { session, keys, size, replicas, pin, wait, replace }
            }),
        14 => (any::<usize>(), 0..8u8, any::<bool>()).prop_map(|(nth, good, stays)| Step::End { nth, good, stays }),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(nth, done)| Step::Abort { nth, done }),
        3 => key.clone().prop_map(Step::Exists),
        3 => key.clone().prop_map(Step::Get),
        3 => (session.clone(), key.clone()).prop_map(|(session, key)| Step::Pin { session, key }),
        3 => any::<usize>().prop_map(Step::Unpin),
        3 => (session.clone(), key.clone(), any::<bool>())
            .prop_map(|(session, key, force)| Step::Remove { session, key, force }),
        2 => (session.clone(), key.clone(), proptest::option::of(1..4u8))
            .prop_map(|(session, key, on)| Step::Clear { session, key, on }),
        1 => any::<bool>().prop_map(Step::RemoveAll),
        1 => (0..10u8, any::<bool>()).prop_map(|(last, force)| Step::RemoveSome { last, force }),
        4 => any::<usize>().prop_map(Step::Fence),
        3 => (20..1500u64).prop_map(Step::Pass),
        1 => session.clone().prop_map(Step::AnchorLost),
        2 => session.clone().prop_map(Step::Resume),
        1 => session.clone().prop_map(Step::Over),
        2 => (session.clone(), 0..4u64).prop_map(|(session, s)| Step::Keep { session, ms: s * 700 }),
        2 => (session.clone(), prop::bool::weighted(0.9)).prop_map(|(session, all)| Step::Claim { session, all }),
        1 => Just(Step::Open),
        3 => (session.clone(), 4..40u64, 0..40u64)
            .prop_map(|(session, granules, populated)| Step::Mount { session, granules, populated }),
        1 => (any::<usize>(), 0..3u64).prop_map(|(nth, s)| Step::Unmount { nth, grace_ms: s * 700 }),
        1 => (key, any::<bool>()).prop_map(|(key, good)| Step::Bad { key, good }),
        1 => Just(Step::RaiseEpoch),
        2 => session.prop_map(Step::TakeEpoch),
        2 => (0..65u64, prop::bool::weighted(0.2)).prop_map(|(granules, failed)| Step::Populate { granules, failed }),
        1 => any::<bool>().prop_map(Step::Restart),
        5 => (0..4usize).prop_map(Step::Repeat),
        20 => (1..5usize).prop_map(Step::Slice),
    ]
}

fn name(key: u8) -> String {
    // Some longer than what fits inside an object.
    if key.is_multiple_of(3) { format!("a-rather-long-key-with-a-number-{key}") } else { format!("k{key}") }
}

/// What was put: its size, checksum and replicas.
#[derive(Debug, Clone, PartialEq)]
struct Value {
    size: u64,
    crc32c: u32,
    replicas: Vec<Replica>,
}

/// What the writer said of a put.
#[derive(Debug, Clone, PartialEq)]
struct Said {
    key: String,
    size: u64,
    crc32c: u32,
    good: Vec<Rid>,
}

/// A request that waits, in the master.
struct Parked {
    since: Time,
    session: SessionId,
    keys: Vec<String>,
    size: u64,
}

/// The last mutation of a session, which has not said yet that it has the answer.
#[derive(Debug, Clone)]
enum Asked {
    Start { entries: Vec<(String, u64)>, config: PutConfig, wait: bool, told: Told },
    End { outcomes: Vec<(Rid, bool)>, crc32c: u32, told: EndOutcome },
    Abort { rid: Rid, done: bool },
    Pin { key: String, told: Option<Rid> },
    Unpin(Rid),
    Remove { key: String, force: bool, told: RemoveOutcome },
}

/// How far the answer to a put's beginning is.
#[derive(Debug, Clone)]
enum Told {
    Slots(Vec<StartOutcome>),
    Waits(Ticket),
    /// It waited, in a master that has ended.
    Nothing,
}

/// Longest wait for room, and one tick more.
const LONGEST_WAIT_MS: u64 = 1_020;

struct World {
    pool: Pool,
    sessions: Vec<SessionId>,
    unfinished: Vec<(SessionId, String, u64, Vec<Replica>)>,
    views: Vec<(SessionId, Rid)>,
    fences: BTreeSet<(SessionId, Rid)>,
    parked: BTreeMap<Ticket, Parked>,
    /// With their numbers.
    asked: BTreeMap<SessionId, (u64, Asked)>,
    model: BTreeMap<String, Value>,
    /// By first rid, as the log says.
    reserved: BTreeMap<Rid, (String, u64, Vec<Replica>)>,
    /// By first rid, as the writers were told.
    ended: BTreeMap<Rid, Said>,
    /// Keys whose value is being replaced, by the first rid of the replacement.
    replacing: BTreeMap<Rid, Vec<u8>>,
    gone: BTreeSet<SegmentNo>,
    kept: BTreeSet<SessionId>,
    /// Their heirs have yet to take the epoch.
    inherited: BTreeSet<SegmentNo>,
    /// The step is one that takes values whatever holds them.
    removing: bool,
    seen: usize,
    crc: u32,
    next_segment: u8,
    /// A snapshot that is being taken.
    taken: Option<Taken>,
}

impl World {
    fn new() -> World {
        let mut pool = Pool::with(Config { retention_ms: 20_000, ..Config::default() });
        let sessions = (1..=4).map(|host| pool.session(host)).collect();
        let mut world = World {
            pool,
            sessions,
            unfinished: Vec::new(),
            views: Vec::new(),
            fences: BTreeSet::new(),
            parked: BTreeMap::new(),
            asked: BTreeMap::new(),
            model: BTreeMap::new(),
            reserved: BTreeMap::new(),
            ended: BTreeMap::new(),
            replacing: BTreeMap::new(),
            gone: BTreeSet::new(),
            kept: BTreeSet::new(),
            inherited: BTreeSet::new(),
            removing: false,
            seen: 0,
            crc: 0,
            next_segment: 0,
            taken: None,
        };
        world.mount(0, 32, 32);
        world.mount(1, 24, 10);
        world
    }

    fn mount(&mut self, session: usize, granules: u64, populated: u64) {
        if self.next_segment < 250 {
            self.next_segment += 1;
            let (bytes, populated) = (granules * GRANULE, populated.min(granules) * GRANULE);
            let mounted = self.pool.try_mount(self.sessions[session], self.next_segment, bytes, populated);
            let is_reused = mounted.as_ref().is_ok_and(|number| self.gone.contains(number));
            assert!(!is_reused, "{mounted:?} is another segment's, which is gone");
        }
    }

    /// Takes what an operation did into the model: evictions, replicas lost, fences asked for, parked ones answered.
    fn observe(&mut self) {
        self.pool.collect();
        for record in &self.pool.log[self.seen..] {
            match record {
                Record::Reserved { key, size, replicas, .. } | Record::ReservedWith { key, size, replicas, .. } => {
                    if let Record::ReservedWith { replaces: true, .. } = record {
                        self.replacing.insert(replicas[0].rid, key.to_vec());
                    }
                    let key = String::from_utf8(key.to_vec()).unwrap();
                    let is_closed = |replica: &Replica| self.inherited.contains(&replica.extent.segment);
                    assert!(!replicas.iter().any(is_closed), "{key} is placed where earlier writers may still write");
                    self.reserved.insert(replicas[0].rid, (key, *size, replicas.to_vec()));
                }
                Record::Committed { reservation, good, crc32c } => {
                    let first = self
                        .reserved
                        .iter()
                        .find(|(_, (_, _, replicas))| replicas.iter().any(|replica| replica.rid == *reservation))
                        .map(|(rid, _)| *rid);
                    let (key, size, mut replicas) = self.reserved.remove(&first.unwrap()).unwrap();
                    self.replacing.remove(&first.unwrap());
                    if let Some(mut said) = self.ended.remove(&replicas[0].rid) {
                        // Replicas on a segment that went meanwhile are none.
                        let on = |rid| replicas.iter().find(|replica| replica.rid == rid).unwrap().extent.segment;
                        said.good.retain(|rid| !self.gone.contains(&on(*rid)));
                        assert_eq!(said, Said { key: key.clone(), size, crc32c: *crc32c, good: good.to_vec() });
                    }
                    replicas.retain(|replica| good.contains(&replica.rid));
                    self.model.insert(key, Value { size, crc32c: *crc32c, replicas });
                }
                Record::Dropped(rid) => {
                    let replacing = self.reserved.iter().find(|(_, (_, _, all))| all.iter().any(|r| r.rid == *rid));
                    let first = *replacing.expect("only unfinished puts are dropped").0;
                    self.replacing.remove(&first);
                    self.reserved.remove(&first);
                }
                Record::Removed { key, .. } => {
                    let held = self.replacing.values().any(|held| held[..] == key[..]);
                    assert!(self.removing || !held, "evicted while a replacement of it was being written");
                    self.model.remove(std::str::from_utf8(key).unwrap());
                }
                Record::ReplicaDropped { key, rid } => {
                    let key = String::from_utf8(key.to_vec()).unwrap();
                    let value = self.model.get_mut(&key).expect("only objects lose replicas");
                    value.replicas.retain(|replica| replica.rid != *rid);
                    if value.replicas.is_empty() {
                        self.model.remove(&key);
                    }
                }
                Record::SegmentGone(number) => {
                    // A put goes on as long as one of its places is there.
                    self.gone.insert(*number);
                    let (reserved, gone) = (&self.reserved, &self.gone);
                    let there = |replica: &Replica| !gone.contains(&replica.extent.segment);
                    self.replacing.retain(|first, _| reserved[first].2.iter().any(there));
                    for value in self.model.values_mut() {
                        value.replicas.retain(|replica| replica.extent.segment != *number);
                    }
                    self.model.retain(|_, value| !value.replicas.is_empty());
                }
                Record::SessionKept { session, ms: 0, .. } => _ = self.kept.remove(session),
                Record::SessionKept { session, .. } => _ = self.kept.insert(*session),
                Record::SegmentMoved { number, .. } => _ = self.inherited.insert(*number),
                Record::SegmentTookEpoch { number, .. } => _ = self.inherited.remove(number),
                Record::SessionOver(session) => self.views.retain(|(reader, _)| reader != session),
                _ => {}
            }
        }
        self.seen = self.pool.log.len();
        for (owner, push) in std::mem::take(&mut self.pool.pushes) {
            if let Push::Fence { replica, .. } = push {
                self.fences.insert((owner, replica.rid));
            }
        }
        for (ticket, slots) in std::mem::take(&mut self.pool.woken) {
            let parked = self.parked.remove(&ticket);
            let Parked { session, keys, size, .. } = parked.expect("only those that wait are answered, and once");
            self.note_slots(session, &keys, size, &slots);
            if let Some((_, Asked::Start { told, .. })) = self.asked.get_mut(&session)
                && matches!(told, Told::Waits(waits) if *waits == ticket)
            {
                *told = Told::Slots(slots);
            }
        }
    }

    fn note_slots(&mut self, session: SessionId, keys: &[String], size: u64, slots: &[StartOutcome]) {
        for (key, slot) in keys.iter().zip(slots) {
            if let StartOutcome::Placed(replicas) = slot {
                self.unfinished.push((session, key.clone(), size, replicas.to_vec()));
            }
        }
    }

    fn live(&self, segment: SegmentNo) -> bool {
        self.pool.core.segment(segment).is_some_and(|segment| segment.state == SegmentState::Live)
    }

    fn visible(&self, key: &str) -> Option<&Value> {
        self.model.get(key).filter(|value| value.replicas.iter().any(|replica| self.live(replica.extent.segment)))
    }

    fn known(&self, session: SessionId) -> bool {
        self.pool.core.session_spec(session).is_some() && !self.pool.core.is_bereft(session)
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each step")]
    fn run(&mut self, step: &Step) {
        let now = self.pool.now;
        self.removing = matches!(step, Step::Remove { .. } | Step::RemoveAll(_) | Step::RemoveSome { .. });
        match step {
            Step::Start { session, keys, size, replicas, pin, wait, replace } => {
                let session = self.sessions[*session];
                if !self.known(session) {
                    return;
                }
                let pin = match pin {
                    0 => PinKind::Soft { ttl_ms: 3000 },
                    1 => PinKind::Hard,
                    2 => PinKind::Cleared,
                    _ => PinKind::None,
                };
                // By key, so that a replacement asks for the group that the value is in.
                let group = |key: &u8| if key.is_multiple_of(4) { Box::default() } else { Box::from([b'g', key % 3]) };
                let groups = if size.is_multiple_of(3) { Vec::new() } else { keys.iter().map(group).collect() };
                let config = PutConfig { replica_num: *replicas, pin, replace: *replace, groups, ..plain() };
                let names: Vec<String> = keys.iter().map(|key| name(*key)).collect();
                let there = self.visible(&names[0]).is_some();
                let entries: Vec<(&str, u64)> = names.iter().map(|key| (key.as_str(), *size)).collect();
                let told = match self.pool.start(session, &entries, &config, *wait) {
                    PutStarted::Now(slots) => {
                        // The first key may push out a later one of the same batch.
                        assert_eq!(slots[0] == StartOutcome::Exists, there && !replace);
                        self.note_slots(session, &names, *size, &slots);
                        Told::Slots(slots)
                    }
                    PutStarted::Parked(ticket) => {
                        self.parked.insert(ticket, Parked { since: now, session, keys: names.clone(), size: *size });
                        Told::Waits(ticket)
                    }
                };
                let entries = names.into_iter().map(|key| (key, *size)).collect();
                self.note(session, Asked::Start { entries, config, wait: *wait, told });
            }
            Step::End { nth, good, stays } if !self.unfinished.is_empty() => {
                let (session, key, size, replicas) = self.unfinished.swap_remove(nth % self.unfinished.len());
                if !self.known(session) {
                    return;
                }
                self.crc += 1;
                let outcomes: Vec<(Rid, bool)> =
                    replicas.iter().enumerate().map(|(n, replica)| (replica.rid, *good > n as u8)).collect();
                let expected = self.end_of(&replicas, &outcomes, *stays);
                let outcome = self.pool.end_if_live(session, &outcomes, self.crc, *stays);
                assert_eq!(outcome, expected);
                let asked = Asked::End { outcomes: outcomes.clone(), crc32c: self.crc, told: outcome };
                self.note(session, asked);
                if outcome == EndOutcome::Hidden {
                    return self.unfinished.push((session, key, size, replicas));
                }
                if outcome == EndOutcome::Committed {
                    let good = outcomes.into_iter().filter_map(|(rid, good)| good.then_some(rid)).collect();
                    self.ended.insert(replicas[0].rid, Said { key, size, crc32c: self.crc, good });
                }
            }
            Step::Abort { nth, done } if !self.unfinished.is_empty() => {
                let (session, _, _, replicas) = self.unfinished.swap_remove(nth % self.unfinished.len());
                if self.known(session) {
                    self.pool.abort(session, replicas[0].rid, *done);
                    self.note(session, Asked::Abort { rid: replicas[0].rid, done: *done });
                }
            }
            Step::Exists(key) => {
                let there = self.pool.exists(&name(*key));
                assert_eq!(there, self.visible(&name(*key)).is_some());
            }
            Step::Get(key) => {
                let found = self.pool.get(&name(*key));
                assert_eq!(found.is_some(), self.visible(&name(*key)).is_some());
            }
            Step::Pin { session, key } => {
                let session = self.sessions[*session];
                if self.known(session) {
                    let told = self.pool.pin(session, &name(*key)).map(|found| found.replicas[0].rid);
                    self.views.extend(told.map(|rid| (session, rid)));
                    self.note(session, Asked::Pin { key: name(*key), told });
                }
            }
            Step::Unpin(nth) if !self.views.is_empty() => {
                let (session, rid) = self.views.swap_remove(nth % self.views.len());
                self.pool.unpin(session, rid);
                self.note(session, Asked::Unpin(rid));
            }
            Step::Remove { session, key, force } => {
                let session = self.sessions[*session];
                if !self.known(session) {
                    return;
                }
                let there = self.visible(&name(*key)).is_some();
                let told = self.pool.remove(session, &name(*key), *force);
                self.note(session, Asked::Remove { key: name(*key), force: *force, told });
                match told {
                    RemoveOutcome::Removed => assert!(there),
                    RemoveOutcome::Protected => assert!(there && !force),
                    RemoveOutcome::Missing | RemoveOutcome::Busy => assert!(!there),
                }
            }
            Step::Clear { session, key, on } => {
                let session = self.sessions[*session];
                if !self.known(session) {
                    return;
                }
                let segment = on.map(|id| format!("segment-{id}")).unwrap_or_default();
                let before = self.visible(&name(*key)).map(|value| value.replicas.clone());
                let told = self.pool.clear(session, &name(*key), &segment);
                self.observe();
                let is_on_it = |replica: &Replica| {
                    let view = self.pool.core.segment(replica.extent.segment);
                    segment.is_empty() || view.is_some_and(|view| view.name == segment)
                };
                let after = self.model.get(&name(*key)).map(|value| value.replicas.clone());
                let Some(before) = before else {
                    return assert!(matches!(told, RemoveOutcome::Missing | RemoveOutcome::Busy), "{told:?}");
                };
                let left: Vec<Replica> = before.iter().filter(|replica| !is_on_it(replica)).copied().collect();
                match told {
                    RemoveOutcome::Removed => {
                        assert!(left.len() < before.len());
                        assert_eq!(after.unwrap_or_default(), left);
                        let viewed = |replica: &Replica| self.views.iter().any(|(_, rid)| *rid == replica.rid);
                        assert!(!before.iter().any(viewed), "under a view");
                    }
                    told => {
                        assert_eq!(after.as_ref(), Some(&before), "{told:?}");
                        assert!(told != RemoveOutcome::Missing || left.len() == before.len());
                    }
                }
            }
            Step::RemoveAll(force) => {
                let there = self.model.keys().filter(|key| self.visible(key).is_some()).count() as u64;
                let evicted = self.pool.core.stats().counters.evicted_objects;
                let removed = self.pool.remove_all(*force);
                // Between two slices a put that waits is given room, and may evict for it what is still there.
                let gone = removed + self.pool.core.stats().counters.evicted_objects - evicted;
                assert!(if *force { gone == there } else { gone <= there });
            }
            Step::RemoveSome { last, force } => {
                let ends = |key: &str| key.ends_with(char::from(b'0' + *last));
                let there = self.model.keys().filter(|key| ends(key) && self.visible(key).is_some()).count() as u64;
                let evicted = self.pool.core.stats().counters.evicted_objects;
                let removed = self.pool.remove_where(*force, ends, |_| {});
                let evicted = self.pool.core.stats().counters.evicted_objects - evicted;
                assert!(removed <= there && (!*force || removed + evicted >= there), "{removed}, {evicted} of {there}");
            }
            Step::Fence(nth) if !self.fences.is_empty() => {
                let (owner, rid) = *self.fences.iter().nth(nth % self.fences.len()).unwrap();
                self.fences.remove(&(owner, rid));
                self.pool.fence_done(owner, &[rid]);
            }
            Step::Pass(ms) => self.pool.pass(*ms),
            Step::AnchorLost(session) => self.pool.anchor_lost(self.sessions[*session]),
            Step::Resume(session) => self.resume(self.sessions[*session]),
            Step::Over(session) => self.pool.over(self.sessions[*session]),
            Step::Keep { session, ms } if self.known(self.sessions[*session]) => {
                self.pool.keep(self.sessions[*session], *ms);
            }
            Step::Claim { session: nth, all } => {
                let session = self.sessions[*nth];
                let host = self.pool.core.session_spec(session).map_or(0, |spec| spec.boot_id[0]);
                let is_its = |id: &u8| self.pool.core.segment_owner(uuid(*id)) == Some(session);
                let mut held: Vec<u8> = (1..=self.next_segment).filter(is_its).collect();
                if !all {
                    held.pop();
                }
                let claimable = self.kept.contains(&session) && !held.is_empty();
                let inherited = self.pool.claim(host, &held);
                assert_eq!(inherited.is_ok(), claimable, "{inherited:?}");
                if let Ok(Inherited { session, gone }) = inherited {
                    self.sessions[*nth] = session;
                    assert_eq!(gone, []);
                }
            }
            Step::Open => {
                let is_over = |session: &SessionId| self.pool.core.session_spec(*session).is_none();
                if let Some(nth) = self.sessions.iter().position(is_over) {
                    self.sessions[nth] = self.pool.session(nth as u8);
                }
            }
            Step::Mount { session, granules, populated } if self.known(self.sessions[*session]) => {
                self.mount(*session, *granules, *populated);
            }
            Step::Unmount { nth, grace_ms } => {
                let all: Vec<_> = self.pool.core.segments().map(|segment| (segment.session, segment.uuid)).collect();
                if !all.is_empty() && self.known(all[nth % all.len()].0) {
                    let (owner, uuid) = all[nth % all.len()];
                    let origin = self.pool.origin(owner);
                    self.pool.core.unmount(now, origin, uuid, *grace_ms, &mut self.pool.fx).unwrap();
                }
            }
            Step::Bad { key, good } => {
                let Some(value) = self.visible(&name(*key)) else { return };
                let Replica { rid, extent: Extent { segment, .. } } = value.replicas[0];
                let owner = self.pool.core.segment(segment).unwrap().session;
                self.pool.core.bad_replica(now, owner, name(*key).as_bytes(), rid, &mut self.pool.fx);
                self.pool.core.rechecked(now, owner, rid, *good, &mut self.pool.fx);
            }
            Step::RaiseEpoch => {
                let next = self.pool.core.epoch().number + 1;
                self.pool.core.raise_epoch(now, next, &mut self.pool.fx);
            }
            Step::TakeEpoch(session) => {
                let all: Vec<_> = (1..=self.next_segment).map(uuid).collect();
                let epoch = self.pool.core.epoch().number;
                self.pool.core.epoch_taken(now, self.sessions[*session], epoch, &all, &mut self.pool.fx);
            }
            Step::Populate { granules, failed } => {
                let populated = |id| Populated { uuid: uuid(id), bytes: granules * GRANULE, failed: *failed };
                let all: Vec<_> = (1..=self.next_segment).map(populated).collect();
                for session in self.sessions.clone() {
                    if self.pool.is_here(session) {
                        self.pool.core.beat(now, session, &[], &all, &mut self.pool.fx);
                    }
                }
            }
            Step::Restart(raise) => {
                self.parked.clear();
                self.taken = None;
                for (_, asked) in self.asked.values_mut() {
                    if let Asked::Start { told: told @ Told::Waits(_), .. } = asked {
                        *told = Told::Nothing;
                    }
                }
                let epoch = self.pool.core.epoch().number + 1;
                self.pool.restart(raise.then_some(epoch));
                for session in self.sessions.clone() {
                    self.resume(session);
                }
            }
            Step::Repeat(session) => self.repeat(self.sessions[*session]),
            Step::Slice(most) => {
                let mut taken = self.taken.take().unwrap_or_else(|| Taken::begin(&mut self.pool));
                match taken.slice(&mut self.pool.core, *most) {
                    Some(records) => taken.check(records, &self.pool),
                    None => self.taken = Some(taken),
                }
            }
            _ => {}
        }
    }

    fn note(&mut self, session: SessionId, asked: Asked) {
        self.asked.insert(session, (self.pool.sequences[&session], asked));
    }

    /// What an End comes to. It is of the whole reservation, however many of its places are left.
    fn end_of(&self, replicas: &[Replica], outcomes: &[(Rid, bool)], stays: bool) -> EndOutcome {
        let there = |replica: &Replica| !self.gone.contains(&replica.extent.segment);
        if !self.reserved.contains_key(&replicas[0].rid) || !replicas.iter().any(there) {
            return EndOutcome::Superseded;
        }
        let is_good = |replica: &&Replica| there(replica) && outcomes.contains(&(replica.rid, true));
        let good: Vec<&Replica> = replicas.iter().filter(is_good).collect();
        match good.iter().any(|replica| self.live(replica.extent.segment)) {
            true => EndOutcome::Committed,
            false if good.is_empty() => EndOutcome::Aborted,
            false if stays => EndOutcome::Hidden,
            false => EndOutcome::Superseded,
        }
    }

    /// Asks the last thing of a session once more, as a client does whose connection broke.
    fn repeat(&mut self, session: SessionId) {
        let Some((sequence, asked)) = self.asked.get(&session).cloned() else { return };
        // One that it sent behind it, a mount or an unmount, says that it has this answer.
        if !self.known(session) || sequence != self.pool.sequences[&session] {
            return;
        }
        let origin = Origin { session, sequence, answered_below: sequence };
        let (now, logged) = (self.pool.now, self.pool.log.len());
        let Pool { core, fx, .. } = &mut self.pool;
        match asked {
            Asked::Start { entries, config, wait, told } => {
                let keys: Vec<String> = entries.iter().map(|(key, _)| key.clone()).collect();
                let size = entries[0].1;
                let entries: Vec<(&[u8], u64)> = entries.iter().map(|(key, size)| (key.as_bytes(), *size)).collect();
                let again = core.put_start(now, origin, &entries, &config, wait, fx).unwrap();
                let waited = match &told {
                    Told::Slots(slots) => {
                        let PutStarted::Now(again) = again else { panic!("{again:?} after {slots:?}") };
                        assert_eq!(without_reasons(again), without_reasons(slots.clone()));
                        assert!(fx.is_empty(), "a repeat changes something");
                        return;
                    }
                    Told::Waits(ticket) => self.parked.remove(ticket),
                    Told::Nothing => None,
                };
                self.pool.collect();
                let again = match again {
                    PutStarted::Now(slots) => {
                        self.note_slots(session, &keys, size, &slots);
                        Told::Slots(slots)
                    }
                    PutStarted::Parked(ticket) => {
                        let since = waited.map_or(now, |parked| parked.since);
                        self.parked.insert(ticket, Parked { since, session, keys, size });
                        Told::Waits(ticket)
                    }
                };
                if let Some((_, Asked::Start { told, .. })) = self.asked.get_mut(&session) {
                    *told = again;
                }
                return;
            }
            Asked::End { outcomes, crc32c, told } => {
                let ended = [Ended { replicas: outcomes.into_iter().collect(), crc32c, stays: false }];
                assert_eq!(core.put_end(now, origin, &ended, fx), Ok(vec![told]));
            }
            Asked::Abort { rid, done } => assert_eq!(core.abort(now, origin, &[rid], done, fx), Ok(())),
            Asked::Pin { key, told } => {
                let found = core.pin(now, origin, &[key.as_bytes()], fx).unwrap();
                assert_eq!(found[0].as_ref().ok().and_then(|found| Some(found.replicas.first()?.rid)), told);
            }
            Asked::Unpin(rid) => assert_eq!(core.unpin(now, origin, &[rid], fx), Ok(())),
            Asked::Remove { key, force, told } => {
                assert_eq!(core.remove(now, origin, &[key.as_bytes()], force, fx), Ok(vec![told]));
            }
        }
        self.pool.collect();
        assert_eq!(self.pool.log.len(), logged, "a repeat changes something");
    }

    fn resume(&mut self, session: SessionId) {
        let held: Vec<u8> =
            (1..=self.next_segment).filter(|id| self.pool.core.segment_owner(uuid(*id)) == Some(session)).collect();
        let views = self.views.iter().filter(|(reader, _)| *reader == session);
        let pins: Vec<Rid> = views.map(|(_, rid)| *rid).collect();
        let _ = self.pool.resume(session, &held, &pins, 1);
    }

    fn check(&mut self) {
        self.pool.check_books();
        let core = &self.pool.core;
        for (ticket, Parked { since, .. }) in &self.parked {
            assert!(self.pool.now <= since.plus_ms(LONGEST_WAIT_MS), "{ticket:?} waits since {since:?}");
        }
        let state = durable(core);
        assert_eq!(durable(&replayed(core.snapshot())), state, "the snapshot gives another state");
        let mut visible: Vec<String> = self.model.keys().filter(|key| self.visible(key).is_some()).cloned().collect();
        visible.sort();
        assert_eq!(self.pool.keys(), visible);
        let stats = core.stats();
        assert_eq!(stats.keys as usize, visible.len());
        assert_eq!(stats.pins as usize, self.views.len());
        let held = self.replacing.values().filter_map(|key| self.model.get(std::str::from_utf8(key).unwrap()));
        let bytes: u64 = held.map(|value| value.size * value.replicas.len() as u64).sum();
        // What lay on a segment that went is dropped a little later.
        assert!(stats.replaced_bytes >= bytes && (stats.replaced_bytes == 0 || !self.replacing.is_empty()));
        for record in core.snapshot() {
            if let Record::Object { key, size, crc32c, replicas, .. }
            | Record::GroupedObject { key, size, crc32c, replicas, .. }
            | Record::TieredObject { key, size, crc32c, replicas, .. } = record
            {
                let value = &self.model[std::str::from_utf8(&key).unwrap()];
                assert_eq!((value.size, value.crc32c, value.replicas.as_slice()), (size, crc32c, replicas.as_slice()));
            }
        }
        for segment in core.segments() {
            let used: u64 = core.snapshot().map(|record| granules_on(&record, segment.number)).sum::<u64>();
            let zombies = zombie_granules(core, segment.number);
            assert_eq!(segment.used / GRANULE, used + zombies, "space of segment {:?}", segment.number);
            assert!(segment.used <= segment.populated && segment.populated <= segment.capacity);
        }
    }
}

fn granules_on(record: &Record, segment: SegmentNo) -> u64 {
    let of = |extent: &Extent| if extent.segment == segment { extent.length.div_ceil(GRANULE) } else { 0 };
    match record {
        Record::Object { replicas, .. }
        | Record::GroupedObject { replicas, .. }
        | Record::TieredObject { replicas, .. }
        | Record::Reserved { replicas, .. }
        | Record::ReservedWith { replicas, .. } => replicas.iter().map(|replica| of(&replica.extent)).sum(),
        Record::Quarantined { replica, .. } => of(&replica.extent),
        _ => 0,
    }
}

/// Space held by views over what has left.
fn zombie_granules(core: &mooncake_core::Core, segment: SegmentNo) -> u64 {
    let mut zombies = BTreeMap::new();
    for record in core.snapshot() {
        if let Record::Pinned { rid, extent, key: None, .. } = record
            && extent.segment == segment
        {
            zombies.insert(rid, extent.length.div_ceil(GRANULE));
        }
    }
    zombies.values().sum()
}

/// Why a key was not placed is told as it is then, and no log has it.
fn without_reasons(mut slots: Vec<StartOutcome>) -> Vec<StartOutcome> {
    for slot in &mut slots {
        if let StartOutcome::Full(reason) | StartOutcome::TooLarge(reason) | StartOutcome::Busy(reason) = slot {
            reason.clear();
        }
    }
    slots
}

/// Keys of different lengths lie apart, so that they are removed in different slices.
#[test]
fn a_put_that_waits_may_evict_what_a_removal_of_all_has_not_come_to_yet() {
    let start = |keys: &[u8], size, replicas, pin, wait| Step::Start {
        session: 0,
        keys: keys.to_vec(),
        size,
        replicas,
        pin,
        wait,
        replace: false,
    };
    let steps = [
        start(&[1], 1025, 1, 0, false),
        start(&[2], 8193, 1, 2, false),
        start(&[3], 8193, 1, 2, false),
        Step::End { nth: 13347151976532839766, good: 1, stays: false },
        start(&[4], 5121, 2, 0, false),
        start(&[5], 1, 2, 0, false),
        Step::End { nth: 2577549650004616939, good: 0, stays: false },
        Step::End { nth: 1945781102179421957, good: 1, stays: false },
        Step::End { nth: 2618786648255754276, good: 1, stays: false },
        start(&[5], 7169, 2, 0, true),
        Step::RemoveAll(true),
    ];
    let mut world = World::new();
    for step in &steps {
        world.run(step);
        world.observe();
        world.check();
    }
    assert_eq!(world.pool.core.stats().counters.evicted_objects, 1);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 120, max_shrink_iters: 4000, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn books_hold_objects_are_found_and_replay_gives_the_same_state(
        steps in proptest::collection::vec(step(), 1..120)
    ) {
        let mut world = World::new();
        for step in &steps {
            world.run(step);
            world.observe();
            world.check();
        }
        if let Some(taken) = world.taken.take() {
            taken.finish(&mut world.pool, 3);
        }
        let state = durable(&world.pool.core);
        prop_assert_eq!(durable(&replayed(world.pool.log.clone())), state, "the log gives another state");
    }
}
