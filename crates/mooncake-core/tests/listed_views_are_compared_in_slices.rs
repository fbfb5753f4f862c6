//! A session that comes back lists its views. However many those are, and whatever is done while they are compared with
//! the books: in the end the books have what it lists and what it may yet hear of.

use mooncake_core::{ListedViews, Record};
use mooncake_ids::{Rid, SessionId};

use crate::pool::{KIB, Pool, durable, secret};

const MANY: u64 = 700;

fn key(nth: u64) -> String {
    format!("k{nth}")
}

/// Very many objects, and a reader with a view of each, the answers to which it has.
fn viewed() -> (Pool, SessionId, Vec<Rid>) {
    let (mut pool, owner) = Pool::single(4_000 * KIB);
    let reader = pool.session(1);
    for nth in 0..MANY {
        pool.put(owner, &key(nth), KIB);
    }
    let view = |pool: &mut Pool, nth| pool.pin(reader, &key(nth)).expect("it is there").replicas[0].rid;
    let rids = (0..MANY).map(|nth| view(&mut pool, nth)).collect();
    let next = pool.origin(reader).sequence;
    pool.core.settle_replies(reader, next, &[]);
    pool.anchor_lost(reader);
    (pool, reader, rids)
}

fn resume(pool: &mut Pool, session: SessionId, views: ListedViews) -> Vec<Rid> {
    let resumed = pool.core.resume_session(pool.now, session, secret(session), &[], views, &mut pool.fx);
    resumed.expect("it is known").unknown_pins
}

fn in_the_background(pool: &mut Pool) {
    loop {
        let more = pool.core.background(pool.now, 100, &mut pool.fx);
        pool.collect();
        pool.check();
        if !more {
            return;
        }
    }
}

#[test]
fn what_changes_while_a_list_is_compared_counts_as_it_is_in_the_end() {
    for seed in 1..40_u64 {
        let mut random = seed;
        let mut below = |count: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % count
        };
        let ((mut pool, reader, rids), (mut other, ..)) = (viewed(), viewed());
        let is_listed: Vec<bool> = rids.iter().map(|_| below(4) > 0).collect();
        let mut list: Vec<Rid> =
            rids.iter().zip(&is_listed).filter(|(_, listed)| **listed).map(|(rid, _)| *rid).collect();
        // Nobody knows of these, and of some it has two.
        list.extend((1..=below(200)).map(|nth| Rid::new(1, 1_000_000 + nth)));
        list.extend((0..below(20)).map(|nth| nth as usize * 7).filter(|nth| is_listed[*nth]).map(|nth| rids[nth]));
        let mut views = ListedViews::new(list.clone());
        let slice = 1 + below(90) as usize;
        while !pool.core.look_for_views(reader, &mut views, slice) || views.has_found() {
            pool.core.note_found_views(pool.now, reader, &mut views, slice, &mut pool.fx);
            pool.collect();
            // At times more than is compared at once in the end.
            let many = if below(30) == 0 { 1 + below(400) } else { 1 };
            for nth in (0..many).map(|_| below(MANY)).collect::<Vec<u64>>() {
                match below(6) {
                    0 => {
                        for pool in [&mut pool, &mut other] {
                            pool.pin(reader, &key(nth));
                        }
                    }
                    1 if !is_listed[nth as usize] => {
                        for pool in [&mut pool, &mut other] {
                            pool.unpin(reader, rids[nth as usize]);
                        }
                    }
                    2 => {
                        for pool in [&mut pool, &mut other] {
                            pool.remove(reader, &key(nth), true);
                        }
                    }
                    _ => {}
                }
            }
        }
        let unknown = resume(&mut pool, reader, views);
        let mut at_once = ListedViews::new(list);
        while !other.core.look_for_views(reader, &mut at_once, 1 << 20) {}
        assert_eq!(resume(&mut other, reader, at_once), unknown, "seed {seed}");
        in_the_background(&mut pool);
        in_the_background(&mut other);
        assert_eq!(pool.core.stats().pins, other.core.stats().pins, "seed {seed}");
        assert_eq!(durable(&pool.core), durable(&other.core), "seed {seed}");
    }
}

#[test]
fn views_that_are_not_listed_have_ended_at_once_and_leave_the_books_in_steps() {
    let (mut pool, reader, rids) = viewed();
    let mut views = ListedViews::new(rids[..1].to_vec());
    while !pool.core.look_for_views(reader, &mut views, 50) {}
    assert!(resume(&mut pool, reader, views).is_empty());
    assert!(pool.fx.records.len() <= 160, "{} records in one hold", pool.fx.records.len());
    pool.collect();
    assert!(pool.core.stats().pins > 500, "the rest is left to the background");
    // What is said of a view that has ended is late.
    let unpinned = |pool: &Pool| pool.log.iter().filter(|record| matches!(record, Record::Unpinned { .. })).count();
    let before = unpinned(&pool);
    pool.unpin(reader, rids[1]);
    assert!(unpinned(&pool) - before <= 256 && pool.core.stats().counters.stale_messages == 1);
    // A view that is taken now is another one.
    let again = pool.pin(reader, &key(2)).expect("it is there").replicas[0].rid;
    assert_eq!(again, rids[2]);
    in_the_background(&mut pool);
    assert_eq!(pool.core.stats().pins, 2, "the one that is listed and the one that was taken since");
    pool.unpin(reader, again);
    pool.unpin(reader, rids[0]);
    assert_eq!(pool.core.stats().pins, 0);
}

#[test]
fn a_session_that_ends_while_its_views_leave_the_books_takes_all_of_them_with_it() {
    let (mut pool, reader, rids) = viewed();
    let mut views = ListedViews::default();
    while !pool.core.look_for_views(reader, &mut views, 50) {}
    resume(&mut pool, reader, views);
    pool.collect();
    // The log has no word of it that the client had its answers: its next request says it.
    pool.unpin(reader, rids[0]);
    assert!(pool.core.stats().pins > 400);
    pool.over(reader);
    in_the_background(&mut pool);
    assert_eq!(pool.core.stats().pins, 0);
}

#[test]
fn views_that_the_log_lost_are_noted_in_steps_before_their_session_is_back() {
    let (mut pool, other, rids) = viewed();
    // The log has no word of it that the other one had its answers: its next request says it.
    pool.unpin(other, rids[0]);
    pool.pin(other, &key(0));
    let reader = pool.session(2);
    // Of the last one it has very many.
    let list: Vec<Rid> = rids.iter().copied().chain([rids[MANY as usize - 1]; 200]).collect();
    let mut views = ListedViews::new(list.clone());
    let mut noted = 0;
    loop {
        while !pool.core.look_for_views(reader, &mut views, 50) {}
        if !views.has_found() {
            break;
        }
        pool.core.note_found_views(pool.now, reader, &mut views, 50, &mut pool.fx);
        assert!(pool.fx.records.len() <= 50, "{} records in one hold", pool.fx.records.len());
        noted += pool.fx.records.len();
        pool.collect();
        pool.check();
        if noted == 100 {
            // It is gone before it is noted, and held by the other one's view; that one lets go of the next.
            pool.remove(other, &key(300), true);
            pool.unpin(other, rids[301]);
        }
    }
    assert_eq!(noted, list.len());
    assert!(resume(&mut pool, reader, views).is_empty());
    assert!(pool.fx.records.len() < 20, "{} records in one hold", pool.fx.records.len());
    pool.collect();
    pool.check();
    assert_eq!(pool.core.stats().pins as usize, list.len() + MANY as usize - 1);
}

#[test]
fn what_changes_very_much_meanwhile_is_compared_once_more_in_slices() {
    let (mut pool, _, rids) = viewed();
    let reader = pool.session(2);
    let mut views = ListedViews::new(rids.clone());
    while !pool.core.look_for_views(reader, &mut views, 50) {}
    for round in 0..20 {
        let before = (pool.log.len(), views.has_found());
        // More than is compared at once in the end; each of them is void in the end, as it is on no list.
        for nth in 0..MANY {
            let rid = pool.pin(reader, &key(nth)).expect("it is there").replicas[0].rid;
            pool.unpin(reader, rid);
        }
        assert!(!pool.core.look_for_views(reader, &mut views, 50), "{before:?} in round {round}: it is not through");
        let mut slices = 1;
        while !pool.core.look_for_views(reader, &mut views, 50) {
            slices += 1;
        }
        assert!((MANY / 50..4 * MANY / 50).contains(&slices), "{slices} slices of 50");
    }
    pool.compare(reader, &mut views, 50);
    pool.collect();
    assert!(resume(&mut pool, reader, views).is_empty());
    assert!(pool.fx.records.len() < 20, "{} records in one hold", pool.fx.records.len());
    pool.collect();
    assert_eq!(pool.core.stats().pins, 2 * MANY);
}
