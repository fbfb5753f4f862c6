//! Quarantine, epochs, rechecks: what only the owner of the memory can say.

use mooncake_core::{Absent, EndOutcome, Push, PutConfig, Resumed, StartOutcome};
use mooncake_ids::SegmentUuid;

use crate::pool::{KIB, Pool, is_full, placed, plain, replayed, uuid};

#[test]
fn an_abnormal_end_frees_the_key_at_once_and_the_extent_only_on_the_owners_word() {
    let (mut pool, a) = Pool::single(4 * KIB);
    let b = pool.session(2);
    let old = pool.reserve(b, "k", 3 * KIB);
    pool.abort(b, old[0].rid, false);
    assert_eq!(pool.take_fences(a), [(old[0].rid, false)]);
    let new = pool.reserve(a, "k", KIB);
    assert_eq!(new[0].extent.offset, 3 * KIB);
    assert_eq!(pool.commit(a, &new), EndOutcome::Committed);
    pool.pass(60_000);
    pool.restart(None);
    pool.resume(a, &[1], &[], 1).unwrap();
    assert_eq!(pool.take_fences(a), [(old[0].rid, false)], "asked again");
    assert!(!matches!(pool.slot(a, "l", 3 * KIB), StartOutcome::Placed(_)), "no clock frees it");
    pool.fence_done(b, &[old[0].rid]);
    assert_eq!(pool.core.stats().quarantined_extents, 1, "nobody but the owner");
    pool.fence_done(a, &[old[0].rid, old[0].rid]);
    assert_eq!(pool.core.stats().quarantined_extents, 0);
    pool.check();
}

#[test]
fn a_writer_that_says_later_that_it_is_done_is_heard() {
    let (mut pool, a) = Pool::single(4 * KIB);
    let b = pool.session(2);
    let rid = pool.reserve(b, "k", KIB)[0].rid;
    pool.pass(31_000);
    assert_eq!(pool.take_fences(a), [(rid, false)], "its deadline passed");
    pool.abort(b, rid, true);
    assert_eq!(pool.take_fences(a), [(rid, true)]);
    pool.check();
}

#[test]
fn bytes_that_move_renew_a_put_and_silence_ends_it() {
    let (mut pool, a) = Pool::single(4 * KIB);
    let moving = pool.reserve(a, "moving", KIB);
    let still = pool.reserve(a, "still", KIB);
    for _ in 0..3 {
        pool.pass(20_000);
        pool.core.beat(pool.now, a, &[moving[0].rid], &[], &mut pool.fx);
    }
    assert_eq!(pool.commit(a, &moving), EndOutcome::Committed);
    assert_eq!(pool.commit(a, &still), EndOutcome::Superseded);
    assert_eq!(pool.core.stats().counters.puts_expired, 1);
}

#[test]
fn a_new_epoch_ends_older_puts_and_closes_segments_until_their_owners_obey() {
    let (mut pool, a) = Pool::single(16 * KIB);
    pool.put(a, "kept", KIB);
    let old = pool.reserve(a, "k", KIB);
    pool.restart(Some(7));
    assert_eq!(pool.core.epoch().number, 7);
    pool.resume(a, &[1], &[], 1).unwrap();
    assert!(pool.pushes.contains(&(a, Push::TakeEpoch(pool.core.epoch()))));
    assert_eq!(pool.take_fences(a), [(old[0].rid, false)]);
    assert_eq!(pool.commit(a, &old), EndOutcome::Superseded);
    assert!(pool.exists("kept"), "reads go on");
    assert!(is_full(&pool.slot(a, "k", KIB)));
    assert_eq!(pool.core.stats().segments_closed, 1);
    let ticket = pool.park(a, &[("k", KIB)]);
    pool.core.epoch_taken(pool.now, a, 6, &[uuid(1)], &mut pool.fx);
    assert_eq!(pool.core.stats().segments_closed, 1);
    pool.core.epoch_taken(pool.now, a, 7, &[uuid(1)], &mut pool.fx);
    pool.collect();
    let replicas = placed(&pool.woken[&ticket][0]);
    assert_eq!(replicas[0].rid.epoch(), 7);
    assert_eq!(pool.core.stats().quarantined_extents, 0, "obeying proves what a fence would");
    assert!(pool.exists("kept"), "nothing was evicted for lack of open segments");
    pool.check();
}

#[test]
fn no_view_begins_where_a_writer_of_an_earlier_epoch_may_still_write() {
    let (mut pool, a) = Pool::single(16 * KIB);
    let in_one = pool.put(a, "k", KIB);
    pool.restart(Some(7));
    pool.resume(a, &[1], &[], 1).unwrap();
    assert_eq!(pool.pin(a, "k"), None, "a reservation that the log has lost may be of these bytes");
    let origin = pool.origin(a);
    let mut asked = || pool.core.pin(pool.now, origin, &[b"k", b"no"], &mut pool.fx).unwrap();
    let (first, repeated) = (asked(), asked());
    assert!(
        matches!(&first[..], [Ok(found), Err(Absent::Unknown)] if found.size == KIB && found.replicas.is_empty()),
        "to be copied"
    );
    assert_eq!(repeated, first, "also where the answer was lost");
    pool.collect();
    assert_eq!(pool.core.stats().pins, 0);
    assert!(pool.get("k").is_some_and(|found| found.replicas.to_vec() == in_one), "it is read");
    pool.core.epoch_taken(pool.now, a, 7, &[uuid(1)], &mut pool.fx);
    pool.collect();
    assert_eq!(pool.pin(a, "k").map(|found| found.replicas.to_vec()), Some(in_one));
    pool.check();
}

#[test]
fn an_owner_that_obeys_already_is_not_asked() {
    let (mut pool, a) = Pool::single(16 * KIB);
    pool.restart(Some(7));
    pool.resume(a, &[1], &[], 7).unwrap();
    assert!(!pool.pushes.iter().any(|(_, push)| matches!(push, Push::TakeEpoch(_))));
    assert!(matches!(pool.slot(a, "k", KIB), StartOutcome::Placed(_)));
    pool.restart(None);
    assert_eq!(pool.core.epoch().number, 7);
}

#[test]
fn a_segment_opens_when_it_has_taken_the_epoch_whatever_others_of_its_owner_have() {
    let (mut pool, a) = Pool::single(16 * KIB);
    pool.mount(a, 2, 16 * KIB);
    pool.restart(Some(7));
    let closed = |pool: &Pool| {
        let closed = pool.core.segments().filter(|segment| !segment.open).map(|segment| segment.uuid);
        closed.collect::<Vec<_>>()
    };
    assert_eq!(pool.resume_each(a, &[(1, 7), (2, 0)], &[]), Ok(Resumed::default()));
    assert_eq!(closed(&pool), [uuid(2)]);
    assert!(pool.pushes.contains(&(a, Push::TakeEpoch(pool.core.epoch()))), "the other one is asked for again");
    for taken in [6, 8] {
        pool.resume_each(a, &[(1, 7), (2, taken)], &[]).unwrap();
        assert_eq!(closed(&pool), [uuid(2)], "not this epoch");
    }
    pool.resume_each(a, &[(1, 0), (2, 7)], &[]).unwrap();
    assert!(closed(&pool).is_empty(), "what it had taken it has");
    pool.check();
}

#[test]
fn views_that_a_log_lost_are_noted_again_or_named() {
    let (mut pool, a) = Pool::single(16 * KIB);
    let b = pool.session(2);
    let there = pool.put(a, "there", KIB)[0].rid;
    let removed = pool.put(a, "removed", KIB)[0].rid;
    pool.pin(b, "removed");
    pool.remove(a, "removed", true);
    let kept = pool.log.len();
    let lost = pool.put(a, "lost", KIB)[0].rid;
    for key in ["there", "lost"] {
        pool.pin(a, key);
    }
    pool.log.truncate(kept);
    pool.core = replayed(pool.log.clone());
    pool.restart(Some(7));

    let listed = [lost, there, removed, lost];
    for _ in 0..2 {
        let resumed = pool.resume_each(a, &[(1, 0)], &listed).unwrap();
        assert_eq!(resumed.unknown_pins, [lost, lost], "once per view, each time");
        assert_eq!(pool.core.stats().pins, 3);
    }
    pool.resume(b, &[], &[removed], 0).unwrap();
    assert_eq!(pool.core.stats().pins, 3, "a's of two objects, b's of one");
    assert_eq!(pool.resume_each(a, &[(1, 0)], &[removed]).unwrap(), Resumed::default());
    assert_eq!(pool.core.stats().pins, 2, "the place of a removed object is held by both readers' word");
    pool.check();
}

#[test]
fn of_a_segment_that_goes_before_it_has_taken_the_epoch_nothing_is_given_back() {
    let (mut pool, a) = Pool::single(16 * KIB);
    let b = pool.session(2);
    pool.mount(a, 2, 16 * KIB);
    pool.restart(Some(7));
    pool.resume_each(a, &[(1, 7), (2, 0)], &[]).unwrap();
    pool.resume(b, &[], &[], 0).unwrap();
    pool.over(a);
    for restarted in [false, true] {
        let told = pool.pushes.drain(..).filter_map(|(to, push)| match push {
            Push::SegmentGone { uuid, pinned, .. } if to == b => Some((uuid, pinned.iter().map(|e| e.length).sum())),
            _ => None,
        });
        let told: Vec<(SegmentUuid, u64)> = told.collect();
        let wanted = [(uuid(1), 0), (uuid(2), u64::MAX)];
        assert_eq!(told, wanted, "views that no log knows may lie anywhere there; {restarted}");
        pool.restart(None);
        pool.resume(b, &[], &[], 0).unwrap();
    }
}

#[test]
fn a_replica_found_bad_is_dropped_on_its_owners_word_only() {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    pool.mount(a, 1, 16 * KIB);
    pool.mount(b, 2, 16 * KIB);
    let replicas = pool.put_with(a, "k", 100, &PutConfig { replica_num: 2, ..plain() });
    let owner = |pool: &Pool, n: usize| pool.core.segment(replicas[n].extent.segment).unwrap().session;
    let other = if owner(&pool, 0) == a { b } else { a };
    for good in [true, false] {
        pool.core.bad_replica(pool.now, a, b"k", replicas[0].rid, &mut pool.fx);
        pool.core.bad_replica(pool.now, b, b"k", replicas[0].rid, &mut pool.fx);
        pool.collect();
        let asked = pool.pushes.iter().filter(|(_, push)| matches!(push, Push::Recheck { crc32c: 7, .. })).count();
        assert_eq!(asked, 1, "once, however many complain");
        pool.pushes.clear();
        pool.core.rechecked(pool.now, other, replicas[0].rid, false, &mut pool.fx);
        pool.core.rechecked(pool.now, owner(&pool, 0), replicas[0].rid, good, &mut pool.fx);
        pool.collect();
        assert_eq!(pool.get("k").unwrap().replicas.len(), if good { 2 } else { 1 });
    }
    pool.core.bad_replica(pool.now, a, b"k", replicas[1].rid, &mut pool.fx);
    pool.core.rechecked(pool.now, owner(&pool, 1), replicas[1].rid, false, &mut pool.fx);
    pool.collect();
    assert!(!pool.exists("k"));
    assert_eq!((pool.core.stats().counters.replicas_bad, pool.core.stats().used_bytes), (2, 0));
    pool.put(a, "k", 100);
    pool.check();
}

#[test]
fn an_object_that_lost_the_replica_under_a_view_can_be_evicted_when_the_view_has_ended() {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    pool.mount(a, 1, 4 * KIB);
    pool.mount(b, 2, 4 * KIB);
    pool.put_with(a, "k", KIB, &PutConfig { replica_num: 2, ..plain() });
    let viewed = pool.pin(b, "k").unwrap().replicas[0];
    pool.core.bad_replica(pool.now, b, b"k", viewed.rid, &mut pool.fx);
    let owner = pool.core.segment(viewed.extent.segment).unwrap().session;
    pool.core.rechecked(pool.now, owner, viewed.rid, false, &mut pool.fx);
    pool.collect();
    assert_eq!(pool.get("k").unwrap().replicas.len(), 1);
    pool.unpin(b, viewed.rid);
    pool.pass(10_000);
    for key in ["l", "m"] {
        pool.put(a, key, 4 * KIB);
    }
    assert!(!pool.exists("k"), "its room was needed");
    pool.check();
}
