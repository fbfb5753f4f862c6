//! Sessions that are kept, and the heirs that take their segments over.

use mooncake_core::{Config, EndOutcome, Inherited, Keep, Refused, SegmentState, StartOutcome};
use mooncake_ids::SessionId;

use crate::pool::{self, KEPT, KIB, Pool, is_full, uuid};

const MINUTE: u64 = 60_000;

/// An owner that is kept, with one object.
fn kept() -> (Pool, SessionId) {
    let (mut pool, a) = Pool::single(16 * KIB);
    pool.put(a, "k", KIB);
    pool.keep(a, MINUTE);
    (pool, a)
}

fn heir(pool: &mut Pool, segments: &[u8]) -> SessionId {
    pool.claim(1, segments).unwrap().session
}

fn take_epoch(pool: &mut Pool, owner: SessionId) {
    let epoch = pool.core.epoch().number;
    pool.core.epoch_taken(pool.now, owner, epoch, &[uuid(1)], &mut pool.fx);
    pool.collect();
}

#[test]
fn what_a_kept_process_held_is_hidden_when_it_ends_and_found_when_its_heir_is_there() {
    let (mut pool, a) = kept();
    let found = pool.get("k");
    pool.over(a);
    assert!(pool.get("k").is_none() && !pool.exists("k"));
    assert_eq!(pool.core.segments().next().unwrap().state, SegmentState::Hidden);
    let origin = pool.origin(a);
    let keep = Keep { ms: MINUTE, secret: KEPT, turn: 0 };
    assert_eq!(pool.core.keep(pool.now, origin, keep, &mut pool.fx), Err(Refused::UnknownSession(a.0)), "it has ended");
    assert_eq!(pool.resume(a, &[1], &[], 1), Err(Refused::UnknownSession(a.0)), "a hello that comes late");
    pool.core.beat(pool.now, a, &[], &[], &mut pool.fx);
    assert!(pool.get("k").is_none(), "a beat that comes late");
    pool.pass(MINUTE - 1_000);
    let heir = heir(&mut pool, &[1]);
    assert_eq!(pool.get("k"), found);
    let segment = pool.core.segments().next().unwrap();
    assert_eq!((segment.session, segment.endpoint), (heir, &b"heir-1"[..]));
    assert!(pool.core.session_spec(a).is_none(), "it is over");
    pool.check();
    pool.pass(2 * MINUTE);
    assert_eq!(pool.get("k"), found, "it is not waited for any more");
}

#[test]
fn nothing_is_placed_there_before_the_heir_has_taken_the_epoch_whatever_master_there_is() {
    let (mut pool, a) = kept();
    let b = pool.session(2);
    pool.over(a);
    let heir = heir(&mut pool, &[1]);
    let is_closed = |pool: &mut Pool| is_full(&pool.slot(b, "new", KIB));
    assert!(is_closed(&mut pool));
    assert!(pool.pin(b, "k").is_none(), "nor does a view begin");
    pool.restart(None);
    pool.resume(b, &[], &[], 1).unwrap();
    pool.resume(heir, &[1], &[], 0).unwrap();
    assert!(pool.get("k").is_some() && is_closed(&mut pool));
    let snapshot: Vec<_> = pool.core.snapshot().collect();
    pool.log = snapshot;
    pool.restart(None);
    pool.resume(b, &[], &[], 1).unwrap();
    pool.resume(heir, &[1], &[], 0).unwrap();
    assert!(is_closed(&mut pool));
    // What its predecessor said before it ended counts for nothing.
    take_epoch(&mut pool, a);
    assert!(is_closed(&mut pool));
    take_epoch(&mut pool, heir);
    pool.put(b, "new", KIB);
    assert!(pool.pin(b, "k").is_some());
    pool.check();
}

#[test]
fn without_an_heir_it_is_over_after_its_time_and_final() {
    let (mut pool, a) = kept();
    pool.over(a);
    pool.pass(MINUTE - 100);
    assert!(pool.core.session_spec(a).is_some());
    pool.pass(200);
    assert!(pool.core.session_spec(a).is_none() && pool.core.segments().next().is_none());
    assert_eq!(pool.claim(1, &[1]), Err(Refused::NotKept));
    let b = pool.session(1);
    assert_eq!(pool.try_mount(b, 1, 16 * KIB, 0), Err(Refused::SegmentGone([1; 16])));
    assert_eq!(pool.core.stats().counters.sessions_died, 1);
    pool.check();
}

#[test]
fn a_master_that_begins_finds_the_end_out_and_waits_anew() {
    let (mut pool, a) = kept();
    pool.over(a);
    pool.pass(MINUTE / 2);
    pool.restart(None);
    assert!(!pool.core.is_bereft(a), "that is found out again");
    pool.over(a);
    pool.pass(MINUTE - 100);
    assert!(pool.core.is_bereft(a));
    heir(&mut pool, &[1]);
    assert!(pool.get("k").is_some());
    pool.check();
}

#[test]
fn a_late_word_about_the_predecessor_changes_nothing_for_the_heir() {
    let (mut pool, a) = kept();
    let b = pool.session(2);
    let unfinished = pool.reserve(b, "u", KIB);
    pool.over(a);
    let heir = heir(&mut pool, &[1]);
    pool.abort(b, unfinished[0].rid, false);
    let pushed = pool.take_fences(heir);
    assert_eq!(pushed, [(unfinished[0].rid, false)]);
    pool.over(a);
    pool.anchor_lost(a);
    pool.fence_done(a, &[unfinished[0].rid]);
    assert_eq!(pool.core.stats().quarantined_bytes, KIB, "its predecessor has not fenced it");
    assert!(pool.get("k").is_some() && !pool.core.is_bereft(heir));
    pool.fence_done(heir, &[unfinished[0].rid]);
    assert_eq!(pool.core.stats().quarantined_bytes, 0);
    pool.check();
}

#[test]
fn the_heir_is_asked_for_the_fences_of_its_predecessor_and_for_those_of_what_that_was_writing() {
    let (mut pool, a) = kept();
    let b = pool.session(2);
    let (own, others) = (pool.reserve(a, "own", KIB), pool.reserve(b, "others", KIB));
    let dropped = pool.reserve(b, "dropped", KIB);
    pool.abort(b, dropped[0].rid, false);
    pool.over(a);
    let heir = heir(&mut pool, &[1]);
    let mut asked: Vec<_> = pool.take_fences(heir).into_iter().map(|(rid, _)| rid).collect();
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked, [own[0].rid, dropped[0].rid]);
    assert_eq!(pool.commit(b, &others), EndOutcome::Committed, "what others write goes on");
    assert!(pool.get("others").is_some());
    pool.check();
}

#[test]
fn a_claim_is_taken_with_the_secret_from_the_same_boot_and_in_its_turn() {
    let (mut pool, a) = kept();
    pool.over(a);
    assert_eq!(pool.claim_as(1, [0; 16], 5, &[1]), Err(Refused::NotKept));
    assert_eq!(pool.claim_as(2, KEPT, 5, &[1]), Err(Refused::NotKept), "no memory outlives a boot");
    assert_eq!(pool.claim_as(1, KEPT, 5, &[]), Err(Refused::NotKept));
    let Inherited { session: first, .. } = pool.claim_as(1, KEPT, 5, &[1]).unwrap();
    assert_eq!(pool.claim_as(1, KEPT, 5, &[1]), Err(Refused::OldClaim(5, 5)), "it lay in a connection");
    let Inherited { session: second, .. } = pool.claim_as(1, KEPT, 6, &[1]).unwrap();
    assert!(pool.core.session_spec(first).is_none(), "its reply was lost, or its process has ended");
    assert_eq!(pool.core.segments().next().unwrap().session, second);
    pool.over(second);
    assert!(pool.core.is_bereft(second), "an heir is kept as its predecessor was");
    pool.check();
}

#[test]
fn a_process_that_could_take_nothing_over_ends_what_its_predecessor_left() {
    let (mut pool, a) = kept();
    pool.over(a);
    assert_eq!(pool.give_up(1, &[2]), Err(Refused::NotKept), "no such segment");
    let Inherited { session: heir, gone } = pool.give_up(1, &[1]).unwrap();
    assert_eq!(gone, []);
    assert!(pool.core.session_spec(a).is_none() && pool.core.segments().next().is_none());
    assert_eq!(pool.try_mount(heir, 1, 16 * KIB, 0), Err(Refused::SegmentGone([1; 16])));
    pool.try_mount(heir, 2, 16 * KIB, 16 * KIB).unwrap();
    pool.over(heir);
    assert!(pool.core.is_bereft(heir), "its own memory is kept as that was");
    pool.check();
}

#[test]
fn a_process_that_is_kept_no_more_ends_as_any() {
    let (mut pool, a) = kept();
    pool.keep(a, 0);
    pool.over(a);
    assert!(pool.core.session_spec(a).is_none() && pool.core.segments().next().is_none());
    let (mut pool, a) = kept();
    pool.close(a);
    assert!(pool.core.session_spec(a).is_none(), "it closed");
    pool.check();
}

#[test]
fn segments_that_the_heir_does_not_hold_are_gone_and_it_learns_which_it_must_not_mount() {
    let (mut pool, a) = kept();
    pool.mount(a, 2, 16 * KIB);
    pool.over(a);
    let inherited = pool.claim(1, &[1, 7]).unwrap();
    assert_eq!(inherited.gone, [uuid(7)]);
    assert_eq!(pool.core.segments().map(|segment| segment.uuid).collect::<Vec<_>>(), [uuid(1)]);
    pool.check();
}

#[test]
fn views_go_on_while_memory_changes_hands() {
    let (mut pool, a) = kept();
    let b = pool.session(1);
    let viewed = pool.pin(b, "k").unwrap().replicas[0].rid;
    pool.over(a);
    let heir = heir(&mut pool, &[1]);
    take_epoch(&mut pool, heir);
    pool.remove(b, "k", true);
    assert_eq!(pool.core.stats().pins, 1);
    let slots = pool.slots(b, &[("big", 16 * KIB)], &pool::plain());
    assert!(!matches!(slots[0], StartOutcome::Placed(_)), "the view holds its bytes");
    pool.unpin(b, viewed);
    pool.put(b, "big", 16 * KIB);
    pool.check();
}

#[test]
fn a_client_whose_end_nobody_can_prove_is_waited_for_as_long_as_it_is_kept() {
    let mut pool = Pool::with(Config { retention_ms: 10_000, ..Config::default() });
    let a = pool.session(1);
    pool.mount(a, 1, 16 * KIB);
    pool.keep(a, MINUTE);
    pool.anchor_lost(a);
    pool.pass(MINUTE - 1_000);
    heir(&mut pool, &[1]);
    pool.check();
}
