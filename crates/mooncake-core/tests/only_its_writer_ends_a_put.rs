//! What a put comes to is said by its writer alone, and of its own replicas.

use mooncake_core::{EndOutcome, PutConfig};

use crate::pool::{KIB, Pool, placed, plain};

#[test]
fn a_bad_copy_that_can_be_seen_makes_no_end_a_success() {
    let mut pool = Pool::new();
    let (writer, a, b) = (pool.session(1), pool.session(2), pool.session(3));
    pool.mount(a, 1, 64 * KIB);
    pool.mount(b, 2, 64 * KIB);
    let two = PutConfig { replica_num: 2, preferred_segments: vec!["segment-1".into()], ..plain() };
    let both = placed(&pool.slots(writer, &[("k", 100)], &two)[0]);
    pool.anchor_lost(a);
    assert_eq!(pool.end(writer, &[(both[0].rid, true), (both[1].rid, false)], 7), EndOutcome::Superseded);
    assert!(!pool.exists("k"));
    assert_eq!(pool.take_fences(b), [(both[1].rid, false)]);
    pool.resume(a, &[1], &[], 1).unwrap();
    assert!(!pool.exists("k"), "what was no success does not appear");
    pool.check();
}

#[test]
fn nobody_else_gives_a_put_up_or_says_that_its_writer_is_done() {
    let mut pool = Pool::new();
    let (writer, owner, other) = (pool.session(1), pool.session(2), pool.session(3));
    pool.mount(owner, 1, 64 * KIB);
    let replicas = pool.reserve(writer, "k", KIB);
    for done in [false, true] {
        pool.abort(other, replicas[0].rid, done);
    }
    assert_eq!(pool.end(other, &[(replicas[0].rid, true)], 7), EndOutcome::Superseded);
    assert_eq!(pool.take_fences(owner), []);
    assert_eq!(pool.commit(writer, &replicas), EndOutcome::Committed);

    let given_up = pool.reserve(writer, "l", KIB)[0].rid;
    pool.abort(writer, given_up, false);
    assert_eq!(pool.take_fences(owner), [(given_up, false)]);
    pool.abort(other, given_up, true);
    assert_eq!(pool.take_fences(owner), [], "it may still be written");
    pool.abort(writer, given_up, true);
    assert_eq!(pool.take_fences(owner), [(given_up, true)]);
    pool.abort(writer, given_up, true);
    assert_eq!(pool.take_fences(owner), [], "the owner has heard it");
    pool.check();
}

#[test]
fn a_writer_is_done_with_those_copies_only_that_it_names() {
    let mut pool = Pool::new();
    let (writer, a, b) = (pool.session(1), pool.session(2), pool.session(3));
    pool.mount(a, 1, 64 * KIB);
    pool.mount(b, 2, 64 * KIB);
    let two = PutConfig { replica_num: 2, preferred_segments: vec!["segment-1".into()], ..plain() };
    for named in [0, 1] {
        let both = placed(&pool.slots(writer, &[("k", 100)], &two)[0]);
        pool.abort(writer, both[named].rid, true);
        assert_eq!(pool.take_fences(a), [(both[0].rid, named == 0)]);
        assert_eq!(pool.take_fences(b), [(both[1].rid, named == 1)]);
    }
    pool.check();
}

#[test]
fn an_owner_that_was_away_hears_whether_the_writer_was_done() {
    let mut pool = Pool::new();
    let (writer, owner) = (pool.session(1), pool.session(2));
    pool.mount(owner, 1, 64 * KIB);
    let rids: Vec<_> = ["a", "b", "c"].iter().map(|key| pool.reserve(writer, key, KIB)[0].rid).collect();
    pool.abort(writer, rids[0], true);
    pool.abort(writer, rids[1], false);
    pool.abort(writer, rids[2], false);
    pool.abort(writer, rids[2], true);
    pool.take_fences(owner);
    for restart in [false, true] {
        match restart {
            false => pool.anchor_lost(owner),
            true => pool.restart(None),
        }
        pool.resume(owner, &[1], &[], 1).unwrap();
        let mut fences = pool.take_fences(owner);
        fences.sort_unstable();
        assert_eq!(fences, [(rids[0], true), (rids[1], false), (rids[2], true)]);
    }
    pool.check();
}
