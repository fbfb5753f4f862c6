//! What hangs on a segment that goes, on a session that expires or on an epoch that ends may be very much. It counts
//! for nothing at once, is cleared away in steps, and a master that ends between any two of them has a successor that
//! is right.

use std::collections::BTreeSet;

use mooncake_core::{
    Core, Effects, EndOutcome, Extent, Origin, Push, PutConfig, Record, Refused, RemoveOutcome, Replica, STEP_OBJECTS,
    StartOutcome, To,
};
use mooncake_ids::{Rid, SessionId};

use crate::pool::{self, KIB, Pool, Taken, is_full, plain, replayed, uuid};

const MANY: usize = 700;

fn keys(name: &str) -> Vec<String> {
    (0..MANY).map(|nth| format!("{name}{nth}")).collect()
}

fn on(segments: &[u8]) -> PutConfig {
    let preferred_segments: Vec<String> = segments.iter().map(|id| format!("segment-{id}")).collect();
    PutConfig { replica_num: preferred_segments.len() as u32, preferred_segments, ..PutConfig::default() }
}

/// Begins puts of very many keys.
fn reserve(pool: &mut Pool, writer: SessionId, name: &str, config: &PutConfig) -> Vec<Vec<Replica>> {
    let keys = keys(name);
    let entries: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), KIB)).collect();
    pool.slots(writer, &entries, config).iter().map(pool::placed).collect()
}

fn put_and_view(pool: &mut Pool, writer: SessionId, reader: SessionId, name: &str, config: &PutConfig) -> Vec<Extent> {
    let put = reserve(pool, writer, name, config);
    put.iter().for_each(|replicas| assert_eq!(pool.commit(writer, replicas), EndOutcome::Committed));
    keys(name).iter().for_each(|key| assert!(pool.pin(reader, key).is_some()));
    put.iter().map(|replicas| replicas[0].extent).collect()
}

/// Does what is left in steps of a few, and looks at all of it behind each.
fn in_steps(pool: &mut Pool, mut look: impl FnMut(&mut Pool)) -> usize {
    let mut steps = 0;
    loop {
        pool.check();
        look(pool);
        let more = pool.core.background(pool.now, 100, &mut pool.fx);
        assert!(pool.fx.records.len() <= 100 + 16, "{} records in one step", pool.fx.records.len());
        pool.collect();
        steps += 1;
        if !more {
            return steps;
        }
    }
}

/// A master that goes on from the log as it is now, when it is through with what is left.
fn successor(pool: &Pool) -> (Core, Effects) {
    let (mut core, mut fx) = (replayed(pool.log.clone()), Effects::default());
    core.begin(pool.now, None, &mut fx);
    core.check_invariants().unwrap();
    while core.background(pool.now, STEP_OBJECTS, &mut fx) {}
    core.check_invariants().unwrap();
    (core, fx)
}

#[test]
fn puts_on_a_segment_that_goes_are_over_at_once_and_go_on_elsewhere() {
    let mut pool = Pool::new();
    let (owner, other, writer) = (pool.session(1), pool.session(2), pool.session(3));
    pool.mount(owner, 1, 4_000 * KIB);
    pool.mount(other, 2, 4_000 * KIB);
    let alone = reserve(&mut pool, writer, "alone", &on(&[1]));
    let twice = reserve(&mut pool, writer, "twice", &on(&[1, 2]));
    let waits = pool.park(other, &[("alone699", KIB)]);
    let origin = pool.origin(owner);
    pool.core.unmount(pool.now, origin, uuid(1), 0, &mut pool.fx).unwrap();
    pool.collect();
    // Before anything is cleared away: the last ones of each kind.
    let last = |puts: &[Vec<Replica>], nth: usize| puts[MANY - nth].clone();
    assert_eq!(pool.commit(writer, &last(&alone, 2)), EndOutcome::Superseded);
    assert_eq!(pool.commit(writer, &last(&twice, 2)), EndOutcome::Committed);
    assert!(pool.exists(&format!("twice{}", MANY - 2)));
    let lost = last(&twice, 3).iter().find(|replica| replica.extent.segment == alone[0][0].extent.segment).copied();
    pool.abort(writer, lost.unwrap().rid, false);
    assert_eq!(pool.commit(writer, &last(&twice, 3)), EndOutcome::Committed, "what is lost names no put any more");
    let again = pool.slot(other, &format!("alone{}", MANY - 4), KIB);
    assert!(matches!(again, StartOutcome::Placed(_)), "the key is free: {again:?}");
    pool.commit(other, &pool::placed(&again));
    let steps = in_steps(&mut pool, |pool| _ = successor(pool));
    assert!(steps > 5, "{steps}");
    assert!(matches!(pool.woken[&waits][..], [StartOutcome::Placed(_)]), "its key was one of those that are free");
    let stats = pool.core.stats();
    assert_eq!((stats.unfinished_puts as usize, stats.quarantined_extents), (MANY - 2 + 1, 0));
    assert_eq!(pool.commit(writer, &twice[0]), EndOutcome::Committed);
    assert_eq!(pool.commit(writer, &alone[0]), EndOutcome::Superseded);
}

#[test]
fn everybody_is_told_all_that_very_many_views_hold_of_a_segment_that_goes() {
    let mut pool = Pool::new();
    let (owner, reader, peer) = (pool.session(1), pool.session(1), pool.session(1));
    let number = pool.mount(owner, 1, 4_000 * KIB);
    pool.mount(peer, 2, 4_000 * KIB);
    let viewed = put_and_view(&mut pool, owner, reader, "alone", &on(&[1]));
    put_and_view(&mut pool, owner, reader, "twice", &on(&[2, 1]));
    let rids: Vec<Rid> = keys("alone").iter().map(|key| pool.get(key).unwrap().replicas[0].rid).collect();
    pool.pushes.clear();
    let origin = pool.origin(owner);
    pool.core.unmount(pool.now, origin, uuid(1), 0, &mut pool.fx).unwrap();
    pool.collect();
    // One ends while they are gone through, another session comes and hears of the segment too.
    pool.unpin(reader, rids[5]);
    pool.anchor_lost(peer);
    pool.resume(peer, &[2], &[], 1).unwrap();
    let steps = in_steps(&mut pool, |pool| _ = successor(pool));
    assert!(steps > 5, "{steps}");
    let mut told = 0;
    for (to, push) in &pool.pushes {
        let Push::SegmentGone { number: of, pinned, .. } = push else { continue };
        assert_eq!(*of, number);
        let named: BTreeSet<u64> = pinned.iter().map(|extent| extent.offset).collect();
        let left = viewed.iter().enumerate().filter(|(nth, _)| *nth != 5).map(|(_, extent)| extent.offset);
        assert!(left.into_iter().all(|offset| named.contains(&offset)), "{to:?} would give views back");
        told += 1;
    }
    assert_eq!(told, 4, "three at once, and the one that came back");
    assert_eq!(pool.core.stats().pins as usize, 2 * MANY - 1);
}

#[test]
fn a_session_with_very_many_views_is_forgotten_in_steps_and_what_it_may_read_is_kept_at_each() {
    let mut pool = Pool::new();
    let (owner, reader, peer) = (pool.session(1), pool.session(1), pool.session(1));
    let number = pool.mount(owner, 1, 4_000 * KIB);
    put_and_view(&mut pool, owner, reader, "k", &on(&[1]));
    pool.anchor_lost(reader);
    pool.pass(590_000);
    // Everybody is told while the reader, which stands still, is forgotten.
    pool.over(owner);
    pool.pushes.clear();
    pool.now = pool.now.plus_ms(20_000);
    pool.core.beat(pool.now, peer, &[], &[], &mut pool.fx);
    pool.core.tick(pool.now, &mut pool.fx);
    pool.collect();
    let whole = Extent { segment: number, offset: 0, length: u64::MAX };
    let steps = in_steps(&mut pool, |pool| {
        let forgotten = pool.log.iter().position(|record| matches!(record, Record::SegmentForgotten { .. }));
        let first = pool.log.iter().position(|record| matches!(record, Record::Unpinned { .. }));
        assert!(first.is_none_or(|first| forgotten.is_some_and(|at| at < first)), "a view is lost to a peer");
        let (mut core, mut fx) = successor(pool);
        let views = mooncake_core::ListedViews::default();
        fx.pushes.clear();
        core.resume_session(pool.now, peer, pool::secret(peer), &[], views, &mut fx).unwrap();
        while core.background(pool.now, STEP_OBJECTS, &mut fx) {}
        let told = fx.pushes.iter().find_map(|(to, push)| match push {
            Push::SegmentGone { pinned, .. } if *to == To::Session(peer) => Some(pinned.clone()),
            _ => None,
        });
        let told = told.expect("it is told again");
        assert!(told == [whole] || told.len() >= MANY, "{} extents of {MANY} are kept", told.len());
    });
    assert!(steps > 5 && pool.core.session_spec(reader).is_none(), "{steps}");
    let told: Vec<_> = pool.pushes.iter().filter(|(_, push)| matches!(push, Push::SegmentGone { .. })).collect();
    for (to, push) in &told {
        let Push::SegmentGone { pinned, .. } = push else { unreachable!() };
        assert!(*pinned == [whole] || pinned.len() == MANY, "{to:?} would give back what the reader may read");
    }
    assert_eq!((pool.core.stats().pins, told.is_empty()), (0, false));
}

#[test]
fn puts_of_an_earlier_epoch_are_over_at_once_and_dropped_in_steps() {
    let (mut pool, owner) = Pool::single(4_000 * KIB);
    let writer = pool.session(2);
    let puts = reserve(&mut pool, writer, "k", &PutConfig::default());
    pool.core.raise_epoch(pool.now, 2, &mut pool.fx);
    pool.collect();
    assert_eq!(pool.commit(writer, &puts[MANY - 1]), EndOutcome::Superseded);
    assert!(is_full(&pool.slot(owner, &format!("k{}", MANY - 2), KIB)), "free, and nothing is open");
    let steps = in_steps(&mut pool, |pool| {
        let (core, _) = successor(pool);
        assert_eq!((core.stats().unfinished_puts, core.stats().quarantined_extents as usize), (0, MANY));
    });
    assert!(steps > 2, "{steps}");
    assert_eq!(pool.core.stats().quarantined_extents as usize, MANY);
    // The owner's word for the epoch is its word for all that is older.
    pool.core.epoch_taken(pool.now, owner, 2, &[uuid(1)], &mut pool.fx);
    pool.collect();
    in_steps(&mut pool, |pool| assert_eq!(successor(pool).0.stats().quarantined_extents, 0));
    assert_eq!(pool.core.stats().quarantined_extents, 0);
    assert!(matches!(pool.slot(writer, "whole", 4_000 * KIB), StartOutcome::Placed(_)));
}

#[test]
fn an_owner_that_is_back_is_asked_for_each_of_very_many_fences() {
    let mut pool = Pool::new();
    let (owner, writer) = (pool.session(1), pool.session(2));
    pool.mount(owner, 1, 4_000 * KIB);
    pool.mount(owner, 2, 4_000 * KIB);
    let mut rids: Vec<Rid> = Vec::new();
    for (name, segment) in [("k", 1), ("l", 2)] {
        rids.extend(reserve(&mut pool, writer, name, &on(&[segment])).iter().map(|replicas| replicas[0].rid));
    }
    pool.anchor_lost(owner);
    for rid in &rids {
        pool.abort(writer, *rid, true);
    }
    pool.pushes.clear();
    pool.resume(owner, &[1, 2], &[], 1).unwrap();
    let at_once = pool.take_fences(owner).len();
    assert!(at_once <= STEP_OBJECTS, "{at_once} in one hold");
    pool.resume(owner, &[1, 2], &[], 1).unwrap();
    in_steps(&mut pool, |_| {});
    let asked: BTreeSet<Rid> = pool.take_fences(owner).into_iter().map(|(rid, _)| rid).collect();
    assert_eq!(asked, rids.into_iter().collect());
}

fn unmount(pool: &mut Pool, owner: SessionId, id: u8) {
    let origin = pool.origin(owner);
    pool.core.unmount(pool.now, origin, uuid(id), 0, &mut pool.fx).unwrap();
    pool.collect();
}

/// Takes a snapshot in slices while segments go, and what they leave behind is cleared away in steps or met by
/// operations. The cut is so many steps behind the end of the first segment, or so many slices before it.
fn snapshot_beside_clearing(behind: usize, slices_before: usize, most: usize) {
    let mut pool = Pool::new();
    let (owner, other, reader) = (pool.session(1), pool.session(2), pool.session(3));
    (1..=3).for_each(|id| _ = pool.mount(if id == 1 { owner } else { other }, id, 40_000 * KIB));
    put_and_view(&mut pool, owner, reader, "alone", &on(&[1]));
    put_and_view(&mut pool, owner, reader, "twice", &on(&[1, 2]));
    let viewed: Vec<Rid> = keys("twice").iter().map(|key| pool.get(key).unwrap().replicas[0].rid).collect();
    for replicas in reserve(&mut pool, other, "aborted", &on(&[1])) {
        pool.abort(other, replicas[0].rid, false);
    }
    let writes_alone = reserve(&mut pool, other, "writes alone", &on(&[1]));
    let writes_twice = reserve(&mut pool, other, "writes twice", &on(&[1, 2]));
    let mut taken = (behind == 0).then(|| Taken::begin(&mut pool));
    for _ in 0..slices_before {
        assert_eq!(taken.as_mut().unwrap().slice(&mut pool.core, most), None);
    }
    unmount(&mut pool, owner, 1);
    for step in 1.. {
        let mut more = pool.core.background(pool.now, 100, &mut pool.fx);
        pool.collect();
        if step == behind {
            taken = Some(Taken::begin(&mut pool));
        }
        // From the end, which is cleared away last.
        let met = MANY - step;
        if step <= MANY {
            pool.commit(other, &writes_twice[met]);
            pool.commit(other, &writes_alone[met]);
            let again = pool.slot(other, &format!("writes alone{met}"), KIB);
            assert!(matches!(again, StartOutcome::Placed(_)), "{again:?}");
            pool.remove(owner, &format!("twice{met}"), true);
            pool.unpin(reader, viewed[met]);
            more = true;
        }
        if step == 4 {
            unmount(&mut pool, other, 2);
        }
        if let Some(mut walk) = taken.take() {
            match walk.slice(&mut pool.core, most) {
                Some(records) => return walk.check(records, &pool),
                None => taken = Some(walk),
            }
        }
        assert!(more || taken.is_some(), "it was never begun");
    }
}

#[test]
fn a_snapshot_is_of_its_cut_whatever_segments_left_behind_and_whenever_that_is_cleared_away() {
    for (behind, slices_before) in [(0, 0), (0, 2), (0, 12), (0, 40), (1, 0), (3, 0), (5, 0), (8, 0), (40, 0)] {
        for most in [100, 300, 2_000] {
            if behind > 0 || slices_before * most < 2 * MANY * 3 {
                snapshot_beside_clearing(behind, slices_before, most);
            }
        }
    }
}

#[test]
fn an_owners_word_for_an_epoch_is_one_hold_however_many_segments_it_has() {
    let mut pool = Pool::new();
    let (owner, writer) = (pool.session(1), pool.session(2));
    let segments = [1, 2, 3, 4, 5];
    for id in segments {
        pool.mount(owner, id, 8_000 * KIB);
        reserve(&mut pool, writer, &format!("k{id}-"), &on(&[id]));
    }
    pool.core.raise_epoch(pool.now, 2, &mut pool.fx);
    pool.collect();
    in_steps(&mut pool, |_| {});
    assert_eq!(pool.core.stats().quarantined_extents as usize, segments.len() * MANY);
    pool.core.epoch_taken(pool.now, owner, 2, &segments.map(uuid), &mut pool.fx);
    let records = pool.fx.records.len();
    assert!(records <= STEP_OBJECTS, "{records} records in one hold");
    pool.collect();
    assert!(in_steps(&mut pool, |pool| assert_eq!(successor(pool).0.stats().quarantined_extents, 0)) > 5);
    assert_eq!(pool.core.stats().quarantined_extents, 0);
}

#[test]
fn very_many_segments_that_their_owner_holds_no_more_when_it_is_back_go_in_steps_and_are_seen_by_none() {
    const SEGMENTS: u8 = 100;
    let mut pool = Pool::new();
    let (owner, writer) = (pool.session(1), pool.session(2));
    for id in 1..=SEGMENTS {
        pool.mount(owner, id, 16 * KIB);
        pool.put_with(writer, &format!("k{id}"), KIB, &on(&[id]));
    }
    pool.anchor_lost(owner);
    pool.resume(owner, &[7], &[], 1).unwrap();
    let at_once = pool.log.iter().filter(|record| matches!(record, Record::SegmentGone(_))).count();
    assert!(at_once <= 4, "{at_once} in one hold");
    let steps = in_steps(&mut pool, |pool| {
        assert_eq!(pool.keys(), ["k7"]);
        assert!(pool.get("k8").is_none() && pool.get("k7").is_some());
        let (mut core, mut fx) = successor(pool);
        core.resume_session(pool.now, owner, pool::secret(owner), &[(uuid(7), 1)], Default::default(), &mut fx)
            .unwrap();
        assert_eq!(core.stats().capacity_bytes, 16 * KIB);
    });
    assert!(steps > 10 && pool.core.stats().capacity_bytes == 16 * KIB, "{steps} steps");
    assert!(matches!(pool.slot(writer, "k8", KIB), StartOutcome::Placed(_)));
}

#[test]
fn no_mutation_of_a_session_that_ends_is_carried_out_twice_though_its_replies_go_in_steps() {
    let mut pool = Pool::new();
    let (owner, writer) = (pool.session(1), pool.session(2));
    pool.mount(owner, 1, 4_000 * KIB);
    pool.put(owner, "k", KIB);
    let removal = Origin { answered_below: 0, ..pool.origin(writer) };
    let removed = pool.core.remove(pool.now, removal, &[b"k"], true, &mut pool.fx).unwrap();
    assert_eq!(removed, [RemoveOutcome::Removed]);
    pool.collect();
    // Nothing but their replies is left of these.
    let keys = keys("large");
    let entries: Vec<(&[u8], u64)> = keys.iter().map(|key| (key.as_bytes(), 1 << 30)).collect();
    for _ in 0..20 {
        let origin = Origin { answered_below: 0, ..pool.origin(writer) };
        pool.core.put_start(pool.now, origin, &entries, &plain(), false, &mut pool.fx).unwrap();
    }
    pool.collect();
    pool.put(owner, "k", KIB);
    pool.pass_without(3_000, &[writer]);
    pool.now = pool.now.plus_ms(601_000);
    pool.core.tick(pool.now, &mut pool.fx);
    pool.collect();
    let mut seen = 0;
    in_steps(&mut pool, |pool| {
        // A snapshot of this moment is all that a power failure leaves.
        let (mut core, mut fx) = (replayed(pool.core.snapshot().collect::<Vec<_>>()), Effects::default());
        core.begin(pool.now, None, &mut fx);
        let held = [(uuid(1), 1)];
        core.resume_session(pool.now, owner, pool::secret(owner), &held, Default::default(), &mut fx).unwrap();
        let secret = pool::secret(writer);
        if core.resume_session(pool.now, writer, secret, &[], Default::default(), &mut fx).is_err() {
            return;
        }
        let again = core.remove(pool.now, removal, &[b"k"], true, &mut fx);
        assert!(matches!(again, Ok(_) | Err(Refused::Forgotten { .. })), "{again:?}");
        assert!(core.peek(b"k").is_some(), "the newer value was removed: {again:?}");
        seen += 1;
    });
    let is_over = pool.log.iter().any(|record| *record == Record::SessionOver(writer));
    assert!(seen > 2 && is_over, "{seen} steps before it was over");
}
