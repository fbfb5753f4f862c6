//! The way of a put, its repeats, and what it may not do.

use mooncake_core::{
    Config, EndOutcome, Ended, Origin, PinKind, PlacementStrategy, PutConfig, PutStarted, Record, Refused, Remembered,
    RemoveOutcome, StartOutcome,
};

use crate::pool::{self, KIB, Pool, is_busy, is_full, placed, plain};

#[test]
fn a_put_is_readable_once_it_is_ended_and_not_before() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let replicas = pool.reserve(a, "k", 5000);
    assert!(!pool.exists("k") && pool.get("k").is_none());
    assert_eq!(pool.commit(a, &replicas), EndOutcome::Committed);
    let found = pool.get("k").unwrap();
    assert_eq!((found.size, found.crc32c, found.replicas.as_slice()), (5000, 7, &replicas[..]));
    assert_eq!(pool.slot(a, "k", 1), StartOutcome::Exists);
    assert_eq!(pool.core.stats().used_bytes, 5 * KIB);
    pool.check();
}

#[test]
fn rids_grow_and_carry_the_epoch() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let first = pool.put(a, "1", 1)[0].rid;
    let second = pool.put(a, "2", 1)[0].rid;
    assert!(second > first && first.0 & 1 == 0 && first.epoch() == 1);
    pool.core.raise_epoch(pool.now, 9, &mut pool.fx);
    pool.core.epoch_taken(pool.now, a, 9, &[pool::uuid(1)], &mut pool.fx);
    pool.collect();
    let third = pool.put(a, "3", 1)[0].rid;
    assert!(third > second && third.epoch() == 9);
}

#[test]
fn a_retry_gets_the_same_reply_even_from_a_restarted_master() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let origin = pool.origin(a);
    let start = |pool: &mut Pool| {
        let started = pool.core.put_start(pool.now, origin, &[(b"k", 100)], &plain(), false, &mut pool.fx).unwrap();
        pool.collect();
        started
    };
    let first = start(&mut pool);
    assert_eq!(start(&mut pool), first);
    pool.restart(None);
    assert_eq!(start(&mut pool), first);
    // What ends while its owner is away is no success.
    pool.resume(a, &[1], &[], 1).unwrap();
    let PutStarted::Now(slots) = first else { panic!() };
    let replicas = placed(&slots[0]);
    let origin = Origin { answered_below: origin.sequence, ..pool.origin(a) };
    let ended =
        [Ended { replicas: replicas.iter().map(|replica| (replica.rid, true)).collect(), crc32c: 1, stays: false }];
    for _ in 0..3 {
        let outcome = pool.core.put_end(pool.now, origin, &ended, &mut pool.fx).unwrap();
        pool.collect();
        assert_eq!(outcome, [EndOutcome::Committed]);
        pool.restart(None);
    }
    pool.check();
}

#[test]
fn a_reply_is_forgotten_when_the_client_has_it() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let old = pool.origin(a);
    pool.core.remove(pool.now, old, &[b"x"], false, &mut pool.fx).unwrap();
    pool.remove(a, "y", false);
    let error = pool.core.remove(pool.now, old, &[b"x"], false, &mut pool.fx).unwrap_err();
    assert!(matches!(error, Refused::Forgotten { .. }), "{error}");
}

#[test]
fn what_was_abandoned_before_it_came_is_never_done() {
    let mut pool = Pool::with(Config { unanswered_max: 4, ..Config::default() });
    let a = pool.session(1);
    pool.mount(a, 1, 16 * KIB);
    pool.put(a, "k", KIB);
    let origin = |sequence| Origin { session: a, sequence, answered_below: 10 };
    pool.core.remove(pool.now, origin(10), &[b"another"], true, &mut pool.fx).unwrap();
    pool.core.abandon(a, &[3, 10, 12]);
    for key in [b"k", b"l"] {
        let error = pool.core.remove(pool.now, origin(12), &[key], true, &mut pool.fx).unwrap_err();
        assert_eq!(error, Refused::Abandoned { sequence: 12 });
    }
    assert!(pool.exists("k"));
    let outcomes = pool.core.remove(pool.now, origin(10), &[b"another"], true, &mut pool.fx).unwrap();
    assert_eq!(outcomes, [RemoveOutcome::Missing], "it had been done before: that stays its answer");
    pool.core.abandon(a, &(20..60).collect::<Vec<_>>());
    pool.core.abandon(a, &(60..99).collect::<Vec<_>>());
    assert!(pool.core.is_abandoned(origin(63)) && !pool.core.is_abandoned(origin(20)), "a limit holds");
    let outcomes = pool.core.remove(pool.now, origin(11), &[b"k"], true, &mut pool.fx).unwrap();
    assert_eq!(outcomes, [RemoveOutcome::Removed], "what was not abandoned is done");
}

#[test]
fn a_removal_in_slices_is_over_once_its_client_has_gone_on() {
    let (mut pool, a) = Pool::single(16 * KIB);
    let removal = Origin { session: a, sequence: 5, answered_below: 5 };
    assert!(!pool.core.is_abandoned(removal));
    pool.core.abandon(a, &[5]);
    // The request that brings the word brings a higher mark, too.
    let next = Origin { session: a, sequence: 6, answered_below: 6 };
    pool.core.remove(pool.now, next, &[b"another"], true, &mut pool.fx).unwrap();
    assert!(pool.core.is_abandoned(removal) && !pool.core.is_abandoned(next));
    assert!(!pool.core.is_abandoned(Origin { session: a, sequence: 0, answered_below: 0 }), "an operator's");
}

#[test]
fn unanswered_mutations_are_limited() {
    let mut pool = Pool::with(Config { unanswered_max: 4, ..Config::default() });
    let a = pool.session(1);
    for sequence in 1..=4 {
        let origin = Origin { session: a, sequence, answered_below: 1 };
        pool.core.remove(pool.now, origin, &[b"x"], false, &mut pool.fx).unwrap();
    }
    let origin = Origin { session: a, sequence: 5, answered_below: 1 };
    let error = pool.core.remove(pool.now, origin, &[b"x"], false, &mut pool.fx).unwrap_err();
    assert_eq!(error, Refused::TooManyUnanswered(a.0, 4, 4));
    let origin = Origin { session: a, sequence: 5, answered_below: 3 };
    pool.core.remove(pool.now, origin, &[b"x"], false, &mut pool.fx).unwrap();
}

#[test]
fn one_mutation_that_takes_long_does_not_keep_the_replies_of_all_after_it() {
    let mut pool = Pool::with(Config { unanswered_max: 4, ..Config::default() });
    let a = pool.session(1);
    let origin = |sequence| Origin { session: a, sequence, answered_below: 1 };
    let remove = |pool: &mut Pool, sequence| pool.core.remove(pool.now, origin(sequence), &[b"x"], false, &mut pool.fx);
    for sequence in 2..40 {
        pool.core.settle_replies(a, sequence + 1, &[1, sequence]);
        remove(&mut pool, sequence).unwrap();
    }
    remove(&mut pool, 39).expect("its client has said that it waits for that reply");
    let error = remove(&mut pool, 20).unwrap_err();
    assert_eq!(error, Refused::Forgotten { sequence: 20, answered_below: 40 });
    // What was said earlier comes later: the answers that the client has by now stay answered.
    pool.core.settle_replies(a, 40, &[1, 38, 39]);
    pool.core.settle_replies(a, 30, &[1, 29]);
    for sequence in [29, 38] {
        let error = remove(&mut pool, sequence).unwrap_err();
        assert_eq!(error, Refused::Forgotten { sequence, answered_below: 40 });
    }
    assert!(!pool.core.is_abandoned(origin(1)) && pool.core.is_abandoned(origin(20)));
    remove(&mut pool, 1).expect("the one that everybody waited for");
    pool.core.settle_replies(a, 41, &[]);
    assert!(matches!(remove(&mut pool, 1), Err(Refused::Forgotten { .. })));
    for sequence in 41..=44 {
        remove(&mut pool, sequence).unwrap();
    }
    assert_eq!(remove(&mut pool, 45), Err(Refused::TooManyUnanswered(a.0, 4, 4)));
}

#[test]
fn a_repeated_end_of_a_committed_rid_is_committed_and_an_unknown_one_is_superseded() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let replicas = pool.put(a, "k", 100);
    assert_eq!(pool.commit(a, &replicas), EndOutcome::Committed);
    let dropped = pool.reserve(a, "l", 100);
    pool.abort(a, dropped[0].rid, true);
    assert_eq!(pool.commit(a, &dropped), EndOutcome::Superseded);
    let b = pool.session(2);
    let theirs = pool.reserve(b, "m", 100);
    assert_eq!(pool.commit(a, &theirs), EndOutcome::Superseded, "rids of others are not mine to end");
}

#[test]
fn a_repeated_end_is_known_to_a_master_that_began_from_a_snapshot() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let kept = pool.put(a, "kept", 100);
    let removed = pool.put(a, "removed", 100);
    assert_eq!(pool.remove(a, "removed", true), RemoveOutcome::Removed);
    let dropped = pool.reserve(a, "dropped", 100);
    pool.abort(a, dropped[0].rid, true);
    let b = pool.session(2);
    for twice in 0..2 {
        pool.log = pool.core.snapshot().collect();
        pool.restart(None);
        // Under a new sequence: no remembered reply answers it.
        assert_eq!(pool.commit(a, &kept), EndOutcome::Committed, "snapshot {twice}");
        assert_eq!(pool.commit(a, &removed), EndOutcome::Committed, "snapshot {twice}");
        assert_eq!(pool.commit(a, &dropped), EndOutcome::Superseded, "snapshot {twice}");
        assert_eq!(pool.commit(b, &kept), EndOutcome::Superseded, "rids of others are not mine to end");
    }
}

#[test]
fn one_key_in_a_batch_twice_is_placed_once() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let slots = pool.slots(a, &[("k", 100), ("k", 100), ("l", 100)], &plain());
    assert!(matches!(slots[0], StartOutcome::Placed(_)) && slots[1] == StartOutcome::Exists);
    assert!(matches!(slots[2], StartOutcome::Placed(_)));
}

#[test]
fn senseless_puts_are_refused() {
    let (mut pool, a) = Pool::single(64 * KIB);
    assert!(matches!(pool.slot(a, "", 100), StartOutcome::Refused(_)));
    assert!(matches!(pool.slot(a, "k", 0), StartOutcome::Refused(_)));
}

#[test]
fn what_can_never_fit_is_told_at_once_with_figures() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let StartOutcome::TooLarge(reason) = pool.slot(a, "k", 65 * KIB) else { panic!() };
    assert!(reason.contains("65536 bytes"), "{reason}");
    pool.put_with(a, "v", 8 * KIB, &PutConfig { pin: PinKind::Hard, ..plain() });
    pool.pin(a, "v").unwrap();
    let StartOutcome::TooLarge(reason) = pool.slot(a, "k", 57 * KIB) else { panic!() };
    assert!(reason.contains("8192 are pinned"), "{reason}");
    assert!(matches!(pool.slot(a, "k", 56 * KIB), StartOutcome::Placed(_)));
}

#[test]
fn a_pool_that_nobody_lends_memory_to_is_full_at_once_as_owners_may_still_come() {
    let mut empty = Pool::new();
    let session = empty.session(1);
    let StartOutcome::Full(reason) = empty.slot(session, "k", 1) else { panic!() };
    assert!(reason.contains("no client lends memory"), "{reason}");
    let stats = empty.core.stats();
    assert_eq!((stats.counters.put_full, stats.counters.put_too_large), (1, 0));
}

#[test]
fn unfinished_space_is_waited_for_not_too_large() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let b = pool.session(1);
    pool.reserve(a, "k", 40 * KIB);
    assert!(is_full(&pool.slot(b, "l", 40 * KIB)));
}

#[test]
fn unfinished_puts_are_capped_per_session_but_one_put_never_is() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let whole = pool.reserve(a, "k", 60 * KIB);
    let slot = pool.slot(a, "l", KIB);
    assert!(matches!(&slot, StartOutcome::Full(reason) if reason.contains("its limit is 32768")), "{slot:?}");
    let b = pool.session(2);
    assert!(matches!(pool.slot(b, "m", KIB), StartOutcome::Placed(_)), "others are not held up");
    let ticket = pool.park(a, &[("l", KIB)]);
    assert!(matches!(pool.slot(b, "n", KIB), StartOutcome::Placed(_)), "not even by a parked one");
    pool.commit(a, &whole);
    assert!(matches!(pool.woken[&ticket][0], StartOutcome::Placed(_)));
}

#[test]
fn replicas_go_to_different_clients_and_fewer_clients_store_fewer() {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    pool.mount(a, 1, 64 * KIB);
    pool.mount(a, 2, 64 * KIB);
    let three = PutConfig { replica_num: 3, ..plain() };
    assert_eq!(pool.put_with(a, "k", 100, &three).len(), 1);
    pool.mount(b, 3, 64 * KIB);
    for n in 0..20 {
        let replicas = pool.put_with(a, &format!("k{n}"), 100, &three);
        let owners: Vec<_> =
            replicas.iter().map(|replica| pool.core.segment(replica.extent.segment).unwrap().session).collect();
        assert!(owners.len() == 2 && owners[0] != owners[1], "{owners:?}");
    }
    assert_eq!(pool.core.stats().keys, 21);
    pool.check();
}

#[test]
fn preferred_segments_and_the_own_host_come_first() {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    let (one, two) = (pool.mount(a, 1, 64 * KIB), pool.mount(b, 2, 64 * KIB));
    let preferred = PutConfig { preferred_segments: vec!["none".into(), "segment-2".into()], ..plain() };
    let local = PutConfig { prefer_local: true, ..plain() };
    for n in 0..10 {
        assert_eq!(pool.put_with(a, &format!("p{n}"), 100, &preferred)[0].extent.segment, two);
        assert_eq!(pool.put_with(a, &format!("l{n}"), 100, &local)[0].extent.segment, one);
        assert_eq!(pool.put_with(b, &format!("m{n}"), 100, &local)[0].extent.segment, two);
    }
    // A preference is no condition.
    let large = pool.put_with(a, "large", 60 * KIB, &preferred);
    assert_eq!(large[0].extent.segment, one);
}

#[test]
fn of_preferred_segments_each_key_of_a_request_gets_the_first_that_has_room_for_it() {
    let mut pool = Pool::new();
    let a = pool.session(1);
    let (one, two, three) = (pool.mount(a, 1, 4 * KIB), pool.mount(a, 2, 4 * KIB), pool.mount(a, 3, 64 * KIB));
    let preferred = PutConfig { preferred_segments: vec!["segment-1".into(), "segment-2".into()], ..plain() };
    let sizes = [3, 3, 2, 1, 4, 1, 1];
    let keys: Vec<String> = (0..sizes.len()).map(|n| format!("k{n}")).collect();
    let entries: Vec<(&str, u64)> = keys.iter().map(String::as_str).zip(sizes.map(|size| size * KIB)).collect();
    let slots = pool.slots(a, &entries, &preferred);
    let segments: Vec<_> = slots.iter().map(|slot| placed(slot)[0].extent.segment).collect();
    assert_eq!(
        segments,
        [one, two, three, one, three, two, three],
        "what is too large for one is not for the next key"
    );
    pool.check();
}

#[test]
fn a_second_copy_finds_the_one_segment_of_another_owner_beside_very_many_of_the_first_copys() {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    (1..=200).for_each(|id| _ = pool.mount(a, id, 8 * KIB));
    let other = pool.mount(b, 201, 64 * KIB);
    let two = PutConfig { replica_num: 2, ..plain() };
    for n in 0..50 {
        let replicas = pool.put_with(a, &format!("k{n}"), KIB, &two);
        let on_other = replicas.iter().filter(|replica| replica.extent.segment == other).count();
        assert_eq!((replicas.len(), on_other), (2, 1), "k{n}");
    }
    pool.check();
}

#[test]
fn small_keys_of_a_request_lie_side_by_side_and_large_ones_and_requests_are_spread() {
    let mut pool = Pool::new();
    let sessions: Vec<_> = (1..=16).map(|id| pool.session(id)).collect();
    sessions.iter().zip(1..).for_each(|(session, id)| _ = pool.mount(*session, id, 1 << 20));
    let keys: Vec<String> = (0..256).map(|n| format!("k{n}")).collect();
    let entries: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), KIB)).collect();
    let two = PutConfig { replica_num: 2, ..plain() };
    let small: Vec<_> = pool.slots(sessions[0], &entries, &two).iter().map(placed).collect();
    for replica in 0..2 {
        for together in small.chunks(64) {
            let extents: Vec<_> = together.iter().map(|replicas| replicas[replica].extent).collect();
            let next_to = |pair: &[mooncake_core::Extent]| {
                pair[0].segment == pair[1].segment && pair[0].offset + KIB == pair[1].offset
            };
            assert!(extents.windows(2).all(next_to), "{extents:?}");
        }
    }
    let segments_of = |placed: &[StartOutcome]| {
        let segments = placed.iter().map(|slot| pool::placed(slot)[0].extent.segment);
        segments.collect::<std::collections::BTreeSet<_>>().len()
    };
    let large = ["a", "b", "c", "d", "e", "f"].map(|key| (key, 65 * KIB));
    let slots = pool.slots(sessions[0], &large, &plain());
    assert!(segments_of(&slots) > 2, "{slots:?}");
    let alone: Vec<_> = (0..16).map(|n| pool.slot(sessions[0], &format!("alone-{n}"), KIB)).collect();
    assert!(segments_of(&alone) > 4, "{alone:?}");
    pool.check();
}

#[test]
fn random_placement_spreads_and_free_ratio_first_fills_the_emptiest() {
    for (strategy, expect) in [(PlacementStrategy::Random, 8..=56), (PlacementStrategy::FreeRatioFirst, 31..=33)] {
        let mut pool = Pool::with(Config { placement: strategy, ..Config::default() });
        let (a, b) = (pool.session(1), pool.session(2));
        pool.mount(a, 1, 64 * KIB);
        pool.mount(b, 2, 64 * KIB);
        for n in 0..64 {
            pool.put(a, &format!("k{n}"), KIB);
        }
        let used: Vec<u64> = pool.core.segments().map(|segment| segment.used / KIB).collect();
        assert!(expect.contains(&used[0]) && used[0] + used[1] == 64, "{strategy:?}: {used:?}");
    }
}

#[test]
fn a_failed_replica_is_fenced_and_the_good_one_stays() {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    pool.mount(a, 1, 64 * KIB);
    pool.mount(b, 2, 64 * KIB);
    let slots = pool.slots(a, &[("k", 100)], &PutConfig { replica_num: 2, ..plain() });
    let replicas = placed(&slots[0]);
    let owner = pool.core.segment(replicas[0].extent.segment).unwrap().session;
    let outcome = pool.end(a, &[(replicas[0].rid, false), (replicas[1].rid, true)], 7);
    assert_eq!(outcome, EndOutcome::Committed);
    assert_eq!(pool.get("k").unwrap().replicas.as_slice(), &replicas[1..]);
    assert_eq!(pool.take_fences(owner), [(replicas[0].rid, false)]);
    assert_eq!(pool.core.stats().quarantined_extents, 1);
    pool.check();
}

#[test]
fn a_put_without_a_good_replica_is_aborted() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let replicas = pool.reserve(a, "k", 100);
    assert_eq!(pool.end(a, &[(replicas[0].rid, false)], 7), EndOutcome::Aborted);
    assert!(!pool.exists("k"));
    assert!(matches!(pool.slot(a, "k", 100), StartOutcome::Placed(_)), "the key is free at once");
    assert_eq!(pool.core.stats().quarantined_extents, 1);
}

#[test]
fn a_put_under_way_makes_the_key_busy() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let b = pool.session(1);
    pool.reserve(a, "k", 100);
    assert!(is_busy(&pool.slot(b, "k", 100)));
    assert!(is_busy(&pool.slot(a, "k", 100)));
}

#[test]
fn a_writer_that_is_away_yields_its_key_to_the_first_that_wants_it() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let b = pool.session(2);
    let old = pool.reserve(b, "k", 100);
    let other = pool.reserve(b, "other", 100);
    pool.anchor_lost(b);
    let new = pool.reserve(a, "k", 100);
    assert_ne!(new[0].extent.offset, old[0].extent.offset, "its extent is not free yet");
    assert_eq!(pool.take_fences(a), [(old[0].rid, false)], "nobody knows that it writes no more");
    pool.resume(b, &[], &[], 1).unwrap();
    assert_eq!(pool.commit(b, &old), EndOutcome::Superseded);
    assert_eq!(pool.commit(b, &other), EndOutcome::Committed, "and otherwise goes on");
    assert_eq!(pool.commit(a, &new), EndOutcome::Committed);
}

#[test]
fn a_put_that_ends_where_nobody_can_see_it_stores_nothing_and_leaks_nothing() {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    pool.mount(b, 1, 64 * KIB);
    let old = pool.reserve(a, "k", 100);
    pool.anchor_lost(b);
    for _ in 0..2 {
        // Under another sequence, too: no remembered reply answers it.
        assert_eq!(pool.commit(a, &old), EndOutcome::Superseded);
    }
    let waits = pool.park(a, &[("k", 100)]);
    pool.restart(None);
    pool.resume(a, &[], &[], 1).unwrap();
    assert_eq!(pool.commit(a, &old), EndOutcome::Superseded);
    assert!(!pool.woken.contains_key(&waits), "its connection ended with the master");
    pool.resume(b, &[1], &[], 1).unwrap();
    assert!(!pool.exists("k"), "what was no success does not appear");
    assert_eq!(pool.take_fences(b), [(old[0].rid, false)], "asked when its owner is back");
    let new = pool.put(a, "k", 100);
    assert_ne!(new[0].extent.offset, old[0].extent.offset);
    pool.fence_done(b, &[old[0].rid]);
    assert_eq!(pool.core.stats().quarantined_extents, 0);
    pool.check();
}

#[test]
fn an_end_that_may_be_said_again_loses_nothing_while_its_owner_is_away_and_all_when_it_is_gone() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let writer = pool.session(2);
    let [back, overdue] = ["back", "overdue"].map(|key| pool.reserve(writer, key, 100));
    let said = |replicas: &[mooncake_core::Replica]| [(replicas[0].rid, true)];
    pool.anchor_lost(a);
    for replicas in [&back, &overdue] {
        assert_eq!(pool.end_if_live(writer, &said(replicas), 7, true), EndOutcome::Hidden);
    }
    assert!(!pool.exists("back") && pool.core.stats().quarantined_extents == 0);
    // The master may be another one when it is said again.
    pool.restart(None);
    pool.resume(writer, &[], &[], 1).unwrap();
    assert_eq!(pool.end_if_live(writer, &said(&back), 7, true), EndOutcome::Hidden);
    pool.resume(a, &[1], &[], 1).unwrap();
    assert_eq!(pool.end_if_live(writer, &said(&back), 7, true), EndOutcome::Committed);
    assert_eq!(pool.get("back").unwrap().replicas.as_slice(), &back[..]);
    pool.pass(40_000);
    assert_eq!(pool.end_if_live(writer, &said(&overdue), 7, true), EndOutcome::Superseded);
    let [bad, gone] = ["bad", "gone"].map(|key| pool.reserve(writer, key, 100));
    pool.anchor_lost(a);
    assert_eq!(pool.end_if_live(writer, &[(bad[0].rid, false)], 7, true), EndOutcome::Aborted, "no copy is good");
    assert_eq!(pool.end_if_live(writer, &said(&gone), 7, true), EndOutcome::Hidden);
    pool.over(a);
    assert_eq!(pool.end_if_live(writer, &said(&gone), 7, true), EndOutcome::Superseded);
    pool.check();
}

#[test]
fn one_copy_that_can_be_seen_makes_an_end_a_success_and_none_leaves_the_old_value() {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    let one = pool.mount(a, 1, 64 * KIB);
    pool.mount(b, 2, 64 * KIB);
    let two = PutConfig { replica_num: 2, ..plain() };
    let both = placed(&pool.slots(a, &[("both", 100)], &two)[0]);
    let prefer = |name: &str| PutConfig { preferred_segments: vec![name.into()], replace: true, ..plain() };
    let kept = pool.put_with(a, "kept", 100, &prefer("segment-1"));
    let lost = placed(&pool.slots(a, &[("kept", 100)], &prefer("segment-2"))[0]);
    pool.anchor_lost(b);
    assert_eq!(pool.commit(a, &both), EndOutcome::Committed);
    assert_eq!(pool.get("both").unwrap().replicas[0].extent.segment, one);
    assert_eq!(pool.commit(a, &lost), EndOutcome::Superseded);
    assert_eq!(pool.get("kept").unwrap().replicas.as_slice(), &kept[..]);
    pool.resume(b, &[2], &[], 1).unwrap();
    assert_eq!(pool.get("kept").unwrap().replicas.as_slice(), &kept[..]);
    assert_eq!(pool.get("both").unwrap().replicas.len(), 2);
    pool.check();
}

#[test]
fn soft_pins_are_no_longer_than_allowed() {
    let mut pool = Pool::with(Config { soft_pin_ttl_max_ms: 500, ..Config::default() });
    let a = pool.session(1);
    pool.mount(a, 1, 4 * KIB);
    let soft = PutConfig { pin: PinKind::Soft { ttl_ms: 1 << 40 }, ..plain() };
    pool.put_with(a, "soft", KIB, &soft);
    pool.put(a, "plain", KIB);
    pool.pass(600);
    for n in 0..4 {
        pool.put(a, &format!("n{n}"), KIB);
    }
    assert_eq!(pool.keys(), ["n0", "n1", "n2", "n3"], "an unlapsed pin would have outlived n0");
    pool.check();
}

#[test]
fn replies_that_a_client_has_count_for_nothing_at_once_and_are_forgotten_in_steps() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let origin = |sequence| Origin { session: a, sequence, answered_below: 1 };
    for sequence in 2..=600 {
        pool.core.remove(pool.now, origin(sequence), &[b"x"], false, &mut pool.fx).unwrap();
    }
    pool.core.settle_replies(a, 601, &[7]);
    let error = pool.core.remove(pool.now, origin(300), &[b"x"], false, &mut pool.fx).unwrap_err();
    assert_eq!(error, Refused::Forgotten { sequence: 300, answered_below: 601 });
    let kept = |pool: &Pool| pool.core.snapshot().filter(|record| matches!(record, Record::Replied { .. })).count();
    let mut before = kept(&pool);
    loop {
        let more = pool.core.background(pool.now, 100, &mut pool.fx);
        assert!(before - kept(&pool) <= 100, "{} in one step", before - kept(&pool));
        before = kept(&pool);
        if !more {
            break;
        }
    }
    pool.core.remove(pool.now, origin(7), &[b"x"], false, &mut pool.fx).expect("the one that it waits for");
    assert!(before <= 2, "{before} are kept");
}

#[test]
fn segments_of_the_only_owner_with_room_are_looked_at_once_for_the_second_copies_of_all_keys() {
    const SEGMENTS: u8 = 200;
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    for id in 1..=SEGMENTS {
        pool.mount(a, id, 16 * KIB);
    }
    pool.mount(b, SEGMENTS + 1, KIB);
    let hard = PutConfig {
        pin: PinKind::Hard,
        preferred_segments: vec![format!("segment-{}", SEGMENTS + 1)],
        ..PutConfig::default()
    };
    pool.put_with(b, "hard", KIB, &hard);
    let keys: Vec<String> = (0..100).map(|nth| format!("k{nth}")).collect();
    let entries: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), KIB)).collect();
    let before = pool.core.touched();
    let slots = pool.slots(a, &entries, &PutConfig { replica_num: 2, ..PutConfig::default() });
    let touched = pool.core.touched().wrapping_sub(before);
    assert!(slots.iter().all(|slot| pool::placed(slot).len() == 1), "no other owner has room");
    assert!(touched < u32::from(SEGMENTS) * 100 / 4, "{touched} for 100 keys");
}

#[test]
fn why_keys_are_busy_or_too_large_is_said_once_a_request_and_in_no_log() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let b = pool.session(2);
    let keys = ["k1", "k2"];
    keys.iter().for_each(|key| _ = pool.reserve(a, key, KIB));
    let huge = 128 * KIB;
    let entries = [("huge1", huge), ("k1", KIB), ("huge2", 2 * huge), ("k2", KIB)];
    let slots = pool.slots(b, &entries, &plain());
    let [
        StartOutcome::TooLarge(large),
        StartOutcome::Busy(busy),
        StartOutcome::TooLarge(larger),
        StartOutcome::Busy(busier),
    ] = &slots[..]
    else {
        panic!("{slots:?}")
    };
    assert_eq!(large, "the largest segment, segment-1, has 65536 bytes, of which 0 are pinned hard");
    assert_eq!(busy, &format!("session {} is putting this key", a.0));
    assert!(larger.is_empty() && busier.is_empty(), "{slots:?}");
    let logged = pool.log.iter().rev().find_map(|record| match record {
        Record::Replied { session, reply: Remembered::PutStart(slots), .. } if *session == b => Some(slots.clone()),
        _ => None,
    });
    let (large, busy) = (StartOutcome::TooLarge(String::new()), StartOutcome::Busy(String::new()));
    assert_eq!(logged, Some(vec![large.clone(), busy.clone(), large, busy]));
}
