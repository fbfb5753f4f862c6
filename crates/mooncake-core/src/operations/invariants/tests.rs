//! Each kind of damage is found, and named.

use crate::state::object::Object;
use crate::state::objects::ObjectSlot;
use crate::state::segment::HeldBy;
use crate::state::session::Session;
use crate::*;
use mooncake_ids::Rid;
use mooncake_ids::{GRANULE, SegmentUuid, SessionId};

/// A core with something of everything: two owners, an object alone, one of two replicas under views, soft and hard
/// pins, a group, an unfinished replacement, an extent in quarantine, a view of what has left, and a parked request.
struct Pool {
    core: Core,
    fx: Effects,
    sequence: u64,
}

const NOW: Time = Time(1_000_000);
const OWNER: SessionId = SessionId(1);
const OTHER: SessionId = SessionId(2);
const FIRST: SegmentNo = SegmentNo(1);
const SIZE: u64 = 2 * GRANULE;

fn plain() -> PutConfig {
    PutConfig::default()
}

impl Pool {
    fn new() -> Pool {
        let mut pool = Pool { core: Core::new(Config::default()), fx: Effects::default(), sequence: 0 };
        pool.core.begin(NOW, None, &mut pool.fx);
        for (session, segment) in [(OWNER, FIRST), (OTHER, SegmentNo(2))] {
            let (name, process) = (format!("client-{}", session.0), Vec::new());
            let spec = SessionSpec { secret: 1, name: name.clone(), boot_id: vec![1], process };
            assert_eq!(pool.core.open_session(NOW, spec, &mut pool.fx).unwrap(), session);
            let (uuid, endpoint) = (SegmentUuid([segment.0 as u8; 16]), Vec::new());
            let spec = SegmentSpec { uuid, name, bytes: 32 * GRANULE, endpoint };
            let origin = pool.origin(session);
            assert_eq!(pool.core.mount(NOW, origin, spec, 32 * GRANULE, &mut pool.fx).unwrap(), segment);
        }
        pool.put("alone", &plain());
        pool.put("twice", &PutConfig { replica_num: 2, ..plain() });
        pool.put("soft", &PutConfig { pin: PinKind::Soft { ttl_ms: 60_000 }, ..plain() });
        pool.put("hard", &PutConfig { pin: PinKind::Hard, ..plain() });
        pool.put("grouped", &PutConfig { groups: vec![(*b"g").into()], ..plain() });
        pool.put("left", &plain());
        for key in ["twice", "left"] {
            let origin = pool.origin(OTHER);
            pool.core.pin(NOW, origin, &[key.as_bytes()], &mut pool.fx).unwrap();
        }
        let origin = pool.origin(OWNER);
        pool.core.remove(NOW, origin, &[b"left"], true, &mut pool.fx).unwrap();
        let rid = pool.place("given up", &plain())[0].rid;
        let origin = pool.origin(OWNER);
        pool.core.abort(NOW, origin, &[rid], true, &mut pool.fx).unwrap();
        pool.place("alone", &PutConfig { replace: true, ..plain() });
        let origin = pool.origin(OTHER);
        let parked = pool.core.put_start(
            NOW,
            origin,
            &[(b"alone", SIZE)],
            &PutConfig { replace: true, ..plain() },
            true,
            &mut pool.fx,
        );
        assert!(matches!(parked, Ok(PutStarted::Parked(_))), "{parked:?}");
        pool
    }

    fn origin(&mut self, session: SessionId) -> Origin {
        self.sequence += 1;
        Origin { session, sequence: self.sequence, answered_below: 0 }
    }

    fn place(&mut self, key: &str, config: &PutConfig) -> Vec<Replica> {
        let origin = self.origin(OWNER);
        let entries = [(key.as_bytes(), SIZE)];
        let started = self.core.put_start(NOW, origin, &entries, config, false, &mut self.fx).unwrap();
        let PutStarted::Now(outcomes) = started else { panic!("parked without wait") };
        let StartOutcome::Placed(replicas) = &outcomes[0] else { panic!("{outcomes:?}") };
        replicas.to_vec()
    }

    fn put(&mut self, key: &str, config: &PutConfig) {
        let replicas = self.place(key, config).iter().map(|replica| (replica.rid, true)).collect();
        let origin = self.origin(OWNER);
        self.core.put_end(NOW, origin, &[Ended { replicas, crc32c: 7, stays: false }], &mut self.fx).unwrap();
    }
}

fn slot_of(core: &Core, key: &str) -> ObjectSlot {
    core.objects.find(core.objects.hash(key.as_bytes()), key.as_bytes()).unwrap()
}

fn object<'a>(core: &'a Core, key: &str) -> &'a Object {
    core.objects.object(slot_of(core, key))
}

fn session(core: &mut Core) -> &mut Session {
    core.sessions.get_mut(OWNER).unwrap()
}

/// The granules that an object's first replica takes.
fn place_of(core: &Core, key: &str) -> (SegmentNo, u32) {
    let place = object(core, key).places.memory()[0];
    (place.segment, place.granule())
}

#[track_caller]
fn names(damage: impl FnOnce(&mut Core), wrong: &str) {
    let mut core = Pool::new().core;
    damage(&mut core);
    let found = core.check_invariants().expect_err("it was damaged");
    assert!(found.contains(wrong), "{found}");
}

#[test]
fn nothing_is_wrong_with_what_was_not_damaged() {
    Pool::new().core.check_invariants().unwrap();
    Core::new(Config::default()).check_invariants().unwrap();
}

#[test]
fn space_that_is_free_and_held_is_named() {
    let free_an_object = |core: &mut Core| {
        let (segment, granule) = place_of(core, "hard");
        core.segments.give(segment, granule, 2).unwrap();
    };
    names(free_an_object, "are free, and some of them held");
    let free_half = |core: &mut Core| {
        let (segment, granule) = place_of(core, "soft");
        core.segments.give(segment, granule + 1, 1).unwrap();
    };
    names(free_half, "are free, and some of them held");
}

#[test]
fn space_that_nothing_holds_is_named() {
    names(|core| core.segments.take(FIRST, 30, 2).unwrap(), "nothing holds granules (");
    let forget = |core: &mut Core| {
        let rid = core.quarantine.iter().next().unwrap().replica.rid;
        core.quarantine.remove(rid);
    };
    names(forget, "nothing holds granules");
    let lose = |core: &mut Core| {
        let slot = slot_of(core, "grouped");
        core.objects.remove(slot);
    };
    names(lose, "nothing holds granules");
}

#[test]
fn two_holders_of_one_place_are_named() {
    let overlap = |core: &mut Core| {
        let mut entry = *core.quarantine.iter().next().unwrap();
        core.counter += 1;
        let extent = object(core, "hard").places.memory()[0].extent(SIZE);
        entry.replica = Replica { rid: Rid::new(core.epoch.number, core.counter), extent };
        core.quarantine.insert(entry);
    };
    names(overlap, "overlap");
    let same_rid = |core: &mut Core| {
        let mut entry = *core.quarantine.iter().next().unwrap();
        core.quarantine.remove(entry.replica.rid);
        entry.replica.rid = object(core, "hard").id();
        core.quarantine.insert(entry);
    };
    names(same_rid, "a rid has two placements");
}

#[test]
fn an_extent_that_none_can_be_is_named() {
    let moved = |core: &mut Core, offset: u64, length: u64| {
        let mut entry = *core.quarantine.iter().next().unwrap();
        entry.replica.extent = Extent { offset, length, ..entry.replica.extent };
        core.quarantine.remove(entry.replica.rid);
        core.quarantine.insert(entry);
    };
    names(|core| moved(core, 17, SIZE), "are not an extent");
    names(|core| moved(core, 40 * GRANULE, SIZE), "up to where its segment is populated");
    let elsewhere = |core: &mut Core| {
        let mut entry = *core.quarantine.iter().next().unwrap();
        entry.replica.extent.segment = SegmentNo(3);
        core.quarantine.remove(entry.replica.rid);
        core.quarantine.insert(entry);
    };
    names(elsewhere, "in quarantine on SegmentNo(3), which is Gone");
}

fn reopen(core: &mut Core) {
    for number in [1, 2] {
        core.segments.open_or_close(SegmentNo(number), core.epoch.number);
    }
}

#[test]
fn a_rid_from_nowhere_is_named() {
    names(|core| core.counter = 1, "a rid above the last");
    let newer = |core: &mut Core| {
        core.epoch.number = 2;
        reopen(core);
    };
    names(newer, "of epoch 1 in 2");
    names(|core| core.segments.get_mut(FIRST).unwrap().epoch = 2, "obeys epoch 2 of 1");
    let older = |core: &mut Core| {
        core.segments.get_mut(FIRST).unwrap().epoch = 0;
        reopen(core);
    };
    names(older, "its segment obeys Some(0)");
}

#[test]
fn a_wrong_count_of_a_segment_is_named() {
    for by in [HeldBy::Quarantine, HeldBy::Pin, HeldBy::HardPin] {
        names(|core| core.segments.count_held(FIRST, by, 1, true), "pinned hard) are");
    }
    names(|core| core.segments.get_mut(FIRST).unwrap().quarantined += 1, "and counted");
    names(|core| core.segments.get_mut(FIRST).unwrap().hard += 1, "and counted");
    names(|core| core.segments.get_mut(FIRST).unwrap().spec.bytes = GRANULE, "was mounted with 1");
    let end = |core: &mut Core| core.segments.get_mut(FIRST).unwrap().extents.take(31, 1).unwrap();
    names(end, "and noted as");
    names(|core| core.segments.get_mut(FIRST).unwrap().live = false, "listed as the contrary");
    names(|core| _ = core.segments.set_live(FIRST, false), "is open as None");
}

#[test]
fn a_wrong_count_of_objects_is_named() {
    names(|core| core.objects.hard_pinned += 1, "1 are pinned hard, and counted 2");
    names(|core| core.objects.replaced_bytes += 1, "2048 bytes are replaced, and counted 2049");
    names(|core| core.objects.miscount_unwritten(FIRST), "are on no tier, and counted");
    names(|core| core.counts.put_placed += 1, "answered keys of puts");
}

#[test]
fn an_owner_that_is_over_is_named() {
    names(|core| drop(core.sessions.remove(OWNER)), "and sessions have");
    names(|core| session(core).segments.clear(), "and sessions have");
    names(|core| session(core).segments.push(SegmentNo(7)), "which is Gone");
    names(|core| session(core).away = Some(NOW), "is away since Some");
    names(|core| session(core).lingering = true, "is here and lingers");
    names(|core| session(core).host = Some(7), "is on host Some(7)");
    names(|core| session(core).unfinished += 1, "bytes in puts and promotions, and counted [2049, 0]");
    names(|core| session(core).promoting += 1, "bytes in puts and promotions, and counted [2048, 1]");
}

#[test]
fn views_that_are_not_counted_are_named() {
    let more = Extent { segment: FIRST, offset: 0, length: GRANULE };
    let pinned = |core: &Core| core.pins.iter().find(|(_, pin)| pin.object.is_some()).unwrap().0;
    names(|core| core.pins.holds(OTHER, more), "those of SessionId(2) hold 4096 bytes");
    names(|core| core.pins.holds(SessionId(9), more), "holds bytes, and has none");
    names(|core| core.objects.reader_added(slot_of(core, "twice")), "under views, and counted 2");
    names(|core| core.objects.reader_added(slot_of(core, "soft")), "under views, and counted 2");
    names(|core| core.pins.get_mut(pinned(core)).unwrap().views += 1, "and counted Some(2)");
    names(|core| core.pins.get_mut(pinned(core)).unwrap().object = None, "under views, and counted 1");
    names(
        |core| core.pins.get_mut(pinned(core)).unwrap().object = Some(ObjectSlot(99)),
        "slot 99, which has none such",
    );
    names(|core| core.pins.get_mut(pinned(core)).unwrap().extent.offset += GRANULE, "which is pinned at");
    names(|core| _ = session(core).pins.insert(Rid(3), 1), "has one of Rid(3), which is not pinned");
}

#[test]
fn a_replacement_without_a_put_is_named() {
    names(|core| core.objects.hold(slot_of(core, "soft")), "soft is being replaced: true");
    names(|core| core.objects.unhold(NOW, slot_of(core, "alone")), "alone is being replaced: false");
}

#[test]
fn a_parked_request_that_nothing_wakes_is_named() {
    let parked = |core: &mut Core, change: fn(&mut crate::state::waiting_put::WaitingPut)| {
        let origin = core.tickets.iter().next().unwrap().origin;
        let (place, mut parked) = core.tickets.cancel_origin(origin).unwrap();
        change(&mut parked);
        core.tickets.push(parked, Some(place));
    };
    names(|core| parked(core, |parked| parked.waits.keys.clear()), "waits for nothing");
    names(|core| parked(core, |parked| parked.origin.session = SessionId(9)), "of SessionId(9), which is over");
    names(|core| parked(core, |parked| parked.ticket = Ticket(9)), "Some(Ticket(9)) is parked of 1");
    names(|core| parked(core, |parked| parked.entries[0].0 = (*b"soft").into()), "no end of a put tells it");
    let twice = |core: &mut Core| {
        let again = core.tickets.iter().next().unwrap().clone();
        let ticket = core.tickets.next_id();
        core.tickets.push(crate::state::waiting_put::WaitingPut { ticket, ..again }, None);
    };
    names(twice, "the mutation Some((SessionId(2), 21)) is parked twice");
}

#[test]
fn what_stays_on_a_segment_that_is_gone_is_named() {
    let mut pool = Pool::new();
    pool.core.segment_gone(NOW, FIRST, &mut pool.fx);
    pool.core.check_invariants().unwrap();
    pool.core.purge = None;
    let wrong = pool.core.check_invariants().unwrap_err();
    assert!(wrong.contains("which is Gone, and stays"), "{wrong}");
}
