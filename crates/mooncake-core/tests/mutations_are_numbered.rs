//! Numbers of mutations, of placements and of epochs: each is used once, and what is kept of them has a limit.

use mooncake_core::{
    Config, EndOutcome, Ended, Origin, PutConfig, PutStarted, Record, Refused, SegmentSpec, StartOutcome,
};
use mooncake_ids::Rid;

use crate::pool::{KIB, Pool, durable, placed, plain, replayed, uuid};

/// Takes the numbers that a session has used for another kind of mutation than they were for.
fn is_refused_for_another_kind(pool: &mut Pool, origin: Origin, is_remove: bool) {
    let reused = Refused::SequenceReused { session: origin.session.0, sequence: origin.sequence };
    let refused = match is_remove {
        true => pool.core.unpin(pool.now, origin, &[], &mut pool.fx).unwrap_err(),
        false => pool.core.remove(pool.now, origin, &[b"k"], true, &mut pool.fx).unwrap_err(),
    };
    assert_eq!(refused, reused);
}

#[test]
fn what_is_larger_than_clients_ask_for_at_a_time_is_done_all_the_same_and_counted() {
    let (mut pool, a) = Pool::single(4_096 * KIB);
    let keys: Vec<String> = (0..1_025).map(|n| format!("k{n}")).collect();
    let entries: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), KIB)).collect();
    let (most, more) = entries.split_at(512);
    for (entries, counted) in [(most, 0), (more, 1)] {
        let slots = pool.slots(a, entries, &plain());
        assert!(slots.iter().all(|slot| matches!(slot, StartOutcome::Placed(_))));
        assert_eq!(pool.core.stats().counters.large_requests, counted);
    }
    let (origin, keys) = (pool.origin(a), keys.iter().map(String::as_bytes).collect::<Vec<_>>());
    assert_eq!(pool.core.remove(pool.now, origin, &keys, true, &mut pool.fx).unwrap().len(), 1_025);
    assert_eq!(pool.core.stats().counters.large_requests, 2);
    pool.collect();
    pool.check();
}

#[test]
fn a_number_is_of_one_mutation() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let last = |pool: &Pool| {
        let sequence = pool.sequences[&a];
        Origin { session: a, sequence, answered_below: sequence }
    };
    let mounted = last(&pool);
    is_refused_for_another_kind(&mut pool, mounted, false);
    let replicas = pool.reserve(a, "k", KIB);
    let started = last(&pool);
    is_refused_for_another_kind(&mut pool, started, false);
    pool.commit(a, &replicas);
    let ended = last(&pool);
    is_refused_for_another_kind(&mut pool, ended, false);
    pool.pin(a, "k").unwrap();
    let pinned = last(&pool);
    is_refused_for_another_kind(&mut pool, pinned, false);
    pool.unpin(a, replicas[0].rid);
    let unpinned = last(&pool);
    is_refused_for_another_kind(&mut pool, unpinned, false);
    let given_up = pool.reserve(a, "l", KIB)[0].rid;
    pool.abort(a, given_up, true);
    let aborted = last(&pool);
    is_refused_for_another_kind(&mut pool, aborted, false);
    pool.remove(a, "missing", true);
    let removed = last(&pool);
    is_refused_for_another_kind(&mut pool, removed, true);
    let unmounted = pool.origin(a);
    pool.core.unmount(pool.now, unmounted, uuid(1), 0, &mut pool.fx).unwrap();
    is_refused_for_another_kind(&mut pool, unmounted, false);
}

#[test]
fn what_has_no_number_is_done_each_time() {
    let (mut pool, a) = Pool::single(64 * KIB);
    pool.put(a, "k", KIB);
    let unnumbered = Origin { session: a, sequence: 0, answered_below: 0 };
    for _ in 0..2 {
        pool.core.pin(pool.now, unnumbered, &[b"k"], &mut pool.fx).unwrap();
    }
    assert_eq!(pool.core.stats().pins, 2);
}

#[test]
fn the_answer_is_kept_that_is_the_first_to_be_missing() {
    let (mut pool, owner) = Pool::single(64 * KIB);
    let a = pool.session(2);
    let origin = |sequence, answered_below| Origin { session: a, sequence, answered_below };
    pool.put(owner, "k", KIB);
    let removed = pool.core.remove(pool.now, origin(10, 9), &[b"k"], true, &mut pool.fx).unwrap();
    // Another thread's call says that this one has no answer yet, and its own is the lowest then.
    pool.core.unpin(pool.now, origin(11, 10), &[], &mut pool.fx).unwrap();
    pool.put(owner, "k", KIB);
    let again = pool.core.remove(pool.now, origin(10, 9), &[b"k"], true, &mut pool.fx).unwrap();
    assert_eq!((again, pool.core.stats().counters.replies_repeated), (removed, 1));
    assert!(pool.exists("k"), "it is carried out once");
    pool.core.unpin(pool.now, origin(12, 11), &[], &mut pool.fx).unwrap();
    let late = pool.core.remove(pool.now, origin(10, 9), &[b"k"], true, &mut pool.fx);
    assert_eq!(late, Err(Refused::Forgotten { sequence: 10, answered_below: 11 }));
}

#[test]
fn a_late_request_takes_back_nothing_of_what_its_client_has_said_since() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let origin = |sequence, answered_below| Origin { session: a, sequence, answered_below };
    let mut remove = |sequence, below| pool.core.remove(pool.now, origin(sequence, below), &[b"x"], true, &mut pool.fx);
    for sequence in [10, 11, 12] {
        remove(sequence, 11).unwrap();
    }
    remove(13, 5).unwrap();
    assert_eq!(remove(10, 5), Err(Refused::Forgotten { sequence: 10, answered_below: 11 }));
    assert_eq!(remove(9, 5), Err(Refused::Forgotten { sequence: 9, answered_below: 11 }));
    for sequence in [11, 12, 13] {
        remove(sequence, 11).expect("its answer is kept");
    }
    assert_eq!(pool.core.stats().counters.replies_repeated, 3);
    pool.check_books();
}

#[test]
fn as_many_are_given_up_as_may_be_unanswered() {
    let mut pool = Pool::with(Config { unanswered_max: 4, ..Config::default() });
    let a = pool.session(1);
    let origin = |sequence| Origin { session: a, sequence, answered_below: 1 };
    pool.core.abandon(a, &[1, 2, 3, 4]);
    assert!((1..=4).all(|sequence| pool.core.is_abandoned(origin(sequence))));
    pool.core.abandon(a, &[5, 6, 7, 8, 9]);
    assert!((5..=8).all(|sequence| pool.core.is_abandoned(origin(sequence))));
    // A client that has gone on gives nothing up that it has the answer to.
    pool.core.remove(pool.now, Origin { answered_below: 7, ..origin(20) }, &[b"x"], true, &mut pool.fx).unwrap();
    pool.core.abandon(a, &[6]);
    pool.check_books();
}

#[test]
fn a_late_end_is_known_for_the_last_thousand_commits() {
    let (mut pool, a) = Pool::single(1100 * KIB);
    let mut rids = Vec::new();
    for batch in 0..17 {
        let names: Vec<String> = (0..64).map(|n| format!("{batch}-{n}")).collect();
        let entries: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let slots = pool.slots(a, &entries, &plain());
        let all = slots.iter().map(|slot| placed(slot)[0].rid);
        let ended: Vec<Ended> = all
            .clone()
            .map(|rid| Ended { replicas: [(rid, true)].into_iter().collect(), crc32c: 1, stays: false })
            .collect();
        let origin = pool.origin(a);
        pool.core.put_end(pool.now, origin, &ended, &mut pool.fx).unwrap();
        pool.collect();
        rids.extend(all);
    }
    pool.check();
    let mut again = |rid: Rid| pool.end(a, &[(rid, true)], 1);
    assert_eq!(again(rids[rids.len() - 1024]), EndOutcome::Committed);
    assert_eq!(again(rids[rids.len() - 1025]), EndOutcome::Superseded);
}

#[test]
fn an_epoch_ends_before_its_numbers_do() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let old = pool.reserve(a, "old", KIB);
    pool.log.push(Record::Counters { epoch: 1, rid: Rid::COUNTER_MAX - 5, session: 1, segment: 1 });
    pool.core = replayed(pool.log.clone());
    pool.core.begin(pool.now, None, &mut pool.fx);
    pool.resume(a, &[1], &[], 1).unwrap();
    assert_eq!(pool.core.epoch().number, 1);
    let config = PutConfig::default();
    let origin = pool.origin(a);
    let started = pool.core.put_start(pool.now, origin, &[(b"k", 1)], &config, false, &mut pool.fx).unwrap();
    assert_eq!(pool.core.epoch().number, 2);
    assert!(
        matches!(started, PutStarted::Now(slots) if matches!(slots[0], StartOutcome::Full(_))),
        "its owner is asked"
    );
    pool.collect();
    pool.core.epoch_taken(pool.now, a, 2, &[uuid(1)], &mut pool.fx);
    let new = pool.reserve(a, "k", 1)[0].rid;
    assert!(new > old[0].rid && new.epoch() == 2);
    assert_eq!(pool.commit(a, &old), EndOutcome::Superseded, "it is of the epoch before");
    assert_eq!(durable(&replayed(pool.log.clone())), durable(&pool.core));
}

#[test]
fn no_number_of_a_segment_is_used_twice_even_when_nothing_but_a_snapshot_is_left() {
    let (mut pool, a) = Pool::single(8 * KIB);
    let last = pool.mount(a, 2, 8 * KIB);
    pool.over(a);
    let b = pool.session(2);
    for records in [pool.log.clone(), pool.core.snapshot().collect()] {
        let mut core = replayed(records);
        core.begin(pool.now, None, &mut pool.fx);
        let origin = Origin { session: b, sequence: 1, answered_below: 1 };
        let spec = SegmentSpec { uuid: uuid(3), name: String::new(), bytes: 8 * KIB, endpoint: Vec::new() };
        assert!(core.mount(pool.now, origin, spec, 0, &mut pool.fx).unwrap() > last);
    }
}
