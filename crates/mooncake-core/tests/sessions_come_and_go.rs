//! Live, Hidden and Gone; away and over; what a restart keeps.

use mooncake_core::{
    Absent, EndOutcome, Extent, ListedViews, Push, PutStarted, Refused, RemoveOutcome, STEP_OBJECTS, SegmentState,
    StartOutcome,
};
use mooncake_ids::SessionId;

use crate::pool::{self, KIB, Pool, is_full, plain, secret, uuid};

#[test]
fn objects_of_an_absent_owner_are_hidden_not_forgotten() {
    let (mut pool, a) = Pool::single(16 * KIB);
    let b = pool.session(2);
    pool.put(a, "k", KIB);
    pool.anchor_lost(a);
    assert!(!pool.exists("k") && pool.get("k").is_none() && pool.keys().is_empty());
    let origin = pool.origin(b);
    let asked = pool.core.pin(pool.now, origin, &[b"k", b"no"], &mut pool.fx);
    assert_eq!(asked, Ok(vec![Err(Absent::OwnersAway), Err(Absent::Unknown)]), "stored, and not to be had now");
    assert_eq!((pool.core.stats().keys, pool.core.stats().capacity_bytes), (0, 0));
    assert_eq!(pool.core.segments().next().unwrap().state, SegmentState::Hidden);
    assert!(matches!(pool.slot(b, "l", KIB), StartOutcome::Full(_)), "nothing is placed there");
    pool.resume(a, &[1], &[], 1).unwrap();
    assert!(pool.exists("k"));
    assert_eq!((pool.core.stats().keys, pool.core.stats().capacity_bytes), (1, 16 * KIB));
}

#[test]
fn two_seconds_of_silence_make_a_session_away_and_one_beat_brings_it_back() {
    let (mut pool, a) = Pool::single(16 * KIB);
    pool.put(a, "k", KIB);
    pool.pass_without(1980, &[a]);
    assert!(pool.get("k").is_some());
    pool.pass_without(100, &[a]);
    assert!(pool.get("k").is_none());
    assert_eq!(pool.core.stats().sessions_away, 1);
    pool.core.beat(pool.now, a, &[], &[], &mut pool.fx);
    assert!(pool.get("k").is_some());
}

#[test]
fn of_very_many_sessions_that_fall_silent_each_tick_finds_some_and_leaves_none_out() {
    let mut pool = Pool::new();
    let sessions: Vec<SessionId> = (0..5_000).map(|_| pool.session(1)).collect();
    pool.pass_without(1_000, &[]);
    let lost = |pool: &Pool| pool.core.stats().counters.sessions_lost;
    pool.now = pool.now.plus_ms(1_500);
    // One in five is still there.
    let here = |id: &&SessionId| id.0.is_multiple_of(5);
    sessions.iter().filter(here).for_each(|id| _ = pool.core.beat(pool.now, *id, &[], &[], &mut pool.fx));
    pool.now = pool.now.plus_ms(600);
    let mut ticks = 0;
    while lost(&pool) < 4_000 {
        let before = lost(&pool);
        pool.core.tick(pool.now, &mut pool.fx);
        assert!(lost(&pool) - before <= 128, "{} in one tick", lost(&pool) - before);
        ticks += 1;
        assert!(ticks < 50, "{} are found in {ticks} ticks", lost(&pool));
    }
    (0..10).for_each(|_| pool.core.tick(pool.now, &mut pool.fx));
    assert_eq!(lost(&pool), 4_000, "those that beat are there");
}

#[test]
fn a_master_that_was_itself_stopped_counts_silence_anew() {
    let (mut pool, a) = Pool::single(16 * KIB);
    pool.put(a, "k", KIB);
    let writing = pool.reserve(a, "w", KIB);
    pool.now = pool.now.plus_ms(45_000);
    pool.core.stalled(pool.now);
    pool.core.tick(pool.now, &mut pool.fx);
    assert!(pool.get("k").is_some());
    assert_eq!(pool.commit(a, &writing), EndOutcome::Committed);
}

#[test]
fn ten_minutes_away_is_over_and_over_is_final() {
    let (mut pool, a) = Pool::single(16 * KIB);
    let b = pool.session(2);
    pool.put(a, "k", KIB);
    pool.anchor_lost(a);
    pool.pass(599_000);
    assert!(pool.core.session_spec(a).is_some());
    pool.pass(1_100);
    assert!(pool.core.session_spec(a).is_none());
    assert_eq!(pool.resume(a, &[1], &[], 1), Err(Refused::UnknownSession(a.0)));
    assert_eq!(pool.try_mount(b, 1, 16 * KIB, 0), Err(Refused::SegmentGone([1; 16])), "never mounted again");
    assert!(pool.core.segments().next().is_none());
    pool.restart(None);
    pool.resume(b, &[], &[], 1).unwrap();
    assert_eq!(pool.try_mount(b, 1, 16 * KIB, 0), Err(Refused::SegmentGone([1; 16])));
    pool.check();
}

#[test]
fn a_dead_process_frees_its_keys_and_everybody_hears_which_extents_are_still_viewed() {
    let mut pool = Pool::new();
    let (a, b, c) = (pool.session(1), pool.session(2), pool.session(3));
    let gone = pool.mount(a, 1, 16 * KIB);
    let viewed = pool.put(b, "viewed", KIB);
    pool.put(b, "own", KIB);
    pool.pin(b, "viewed").unwrap();
    pool.pin(a, "own").unwrap();
    let kept = pool.mount(b, 2, 16 * KIB);
    let writing = loop {
        let replicas = pool.reserve(a, &format!("w{:?}", pool.now), KIB);
        if replicas[0].extent.segment == kept {
            break replicas;
        }
        pool.pass(20);
    };
    pool.remove(c, "x", false);
    pool.anchor_lost(c);
    pool.pushes.clear();
    pool.over(a);
    let told = Push::SegmentGone { uuid: uuid(1), number: gone, pinned: vec![viewed[0].extent] };
    assert!(pool.pushes.contains(&(b, told.clone())));
    assert!(!pool.pushes.iter().any(|(to, _)| *to == c));
    assert_eq!(pool.take_fences(b), [(writing[0].rid, false)]);
    pool.resume(c, &[], &[], 1).unwrap();
    assert!(pool.pushes.contains(&(c, told.clone())), "told when it is back");
    assert!(pool.get("viewed").is_none());
    pool.pass(20);
    assert_eq!(pool.core.stats().pins, 1, "views of others outlive the segment");
    pool.check();
    pool.restart(None);
    pool.pushes.clear();
    pool.resume(b, &[2], &[viewed[0].rid], 1).unwrap();
    assert!(pool.pushes.contains(&(b, told)), "told again by a master that forgot whom it told");
    pool.unpin(b, viewed[0].rid);
    assert_eq!(pool.core.stats().pins, 0);
    pool.check();
}

#[test]
fn unmounting_is_gone_too_and_repeats_are_answered() {
    let (mut pool, a) = Pool::single(16 * KIB);
    let b = pool.session(2);
    pool.put(a, "k", KIB);
    let unfinished = pool.reserve(b, "u", KIB);
    let origin = pool.origin(b);
    assert_eq!(
        pool.core.unmount(pool.now, origin, uuid(1), 0, &mut pool.fx),
        Err(Refused::SegmentTaken([1; 16], a.0)),
        "the owner only"
    );
    let origin = pool.origin(a);
    pool.core.unmount(pool.now, origin, uuid(1), 0, &mut pool.fx).unwrap();
    pool.core.unmount(pool.now, origin, uuid(1), 0, &mut pool.fx).unwrap();
    let origin = pool.origin(a);
    pool.core.unmount(pool.now, origin, uuid(1), 0, &mut pool.fx).unwrap();
    pool.collect();
    assert!(pool.get("k").is_none());
    assert_eq!(pool.commit(b, &unfinished), EndOutcome::Superseded);
    assert_eq!(pool.core.stats().unfinished_bytes, 0);
    pool.mount(a, 2, 16 * KIB);
    pool.put(a, "k", KIB);
    pool.check();
}

#[test]
fn a_mount_is_repeated_not_doubled() {
    let mut pool = Pool::new();
    let (a, b) = (pool.session(1), pool.session(2));
    let number = pool.mount(a, 1, 16 * KIB);
    assert_eq!(pool.try_mount(a, 1, 16 * KIB, 0), Ok(number));
    assert_eq!(pool.try_mount(b, 1, 16 * KIB, 0), Err(Refused::SegmentTaken([1; 16], a.0)));
    assert_eq!(pool.try_mount(b, 3, 1023, 0), Err(Refused::SegmentSize(1023)));
    assert_eq!(pool.try_mount(b, 3, 1 << 42, 0), Err(Refused::SegmentSize(1 << 42)));
}

#[test]
fn a_resuming_owner_learns_which_segments_are_gone_and_loses_those_it_does_not_hold() {
    let mut pool = Pool::new();
    let a = pool.session(1);
    pool.mount(a, 1, 16 * KIB);
    pool.mount(a, 2, 16 * KIB);
    pool.anchor_lost(a);
    assert_eq!(pool.resume(a, &[2, 9], &[], 1), Ok(vec![uuid(9)]));
    assert_eq!(pool.core.segments().map(|segment| segment.uuid).collect::<Vec<_>>(), [uuid(2)]);
    pool.check();
}

#[test]
fn the_secret_is_checked() {
    let (mut pool, a) = Pool::single(16 * KIB);
    assert_eq!(pool.core.check_session(a, secret(a)), Ok(()));
    assert_eq!(pool.core.check_session(a, 0), Err(Refused::WrongSecret(a.0)));
    let wrong = pool.core.resume_session(pool.now, a, 0, &[], ListedViews::default(), &mut pool.fx);
    assert_eq!(wrong, Err(Refused::WrongSecret(a.0)));
}

#[test]
fn a_restarted_master_still_knows_every_acknowledged_object() {
    let (mut pool, a) = Pool::single(64 * KIB);
    let keys: Vec<String> = (0..50).map(|n| format!("k{n:02}")).collect();
    for key in &keys {
        pool.put(a, key, 1000);
    }
    let unfinished = pool.reserve(a, "unfinished", KIB);
    pool.restart(None);
    assert_eq!(pool.keys().len(), 0, "invisible until their owner is back");
    assert_eq!(pool.core.stats().capacity_bytes, 0);
    pool.resume(a, &[1], &[], 1).unwrap();
    assert_eq!(pool.keys(), keys);
    assert_eq!(pool.commit(a, &unfinished), EndOutcome::Committed, "under the same epoch a put goes on");
    pool.check();
}

#[test]
fn a_put_replaces_what_nobody_can_see_and_the_old_copy_does_not_come_back() {
    let (mut pool, a) = Pool::single(16 * KIB);
    let b = pool.session(2);
    let old = pool.put(a, "k", KIB);
    pool.put(a, "removed", KIB);
    pool.anchor_lost(a);
    pool.mount(b, 2, 16 * KIB);
    let new = pool.put(b, "k", 2 * KIB);
    assert_eq!(pool.remove(b, "removed", true), RemoveOutcome::Missing);
    pool.resume(a, &[1], &[], 1).unwrap();
    assert_eq!(pool.get("k").unwrap().replicas.as_slice(), &new[..]);
    assert_eq!(pool.keys(), ["k"]);
    assert_ne!(old[0].rid, new[0].rid);
    assert_eq!(pool.core.stats().used_bytes, 2 * KIB);
    pool.check();
}

#[test]
fn a_view_whose_reader_gave_up_before_it_had_the_reply_has_ended() {
    let (mut pool, a) = Pool::single(16 * KIB);
    pool.put(a, "k", KIB);
    pool.pin(a, "k").unwrap();
    let given_up = pool.origin(a).sequence - 1;
    pool.core.settle_replies(a, given_up + 1, &[given_up]);
    pool.resume(a, &[1], &[], 1).unwrap();
    assert_eq!(pool.core.stats().pins, 1, "it still waits");
    pool.core.settle_replies(a, given_up + 1, &[]);
    pool.resume(a, &[1], &[], 1).unwrap();
    assert_eq!((pool.core.stats().pins, pool.core.stats().pinned_bytes), (0, 0));
    // What was said of replies is in no log until the next mutation.
    pool.remove(a, "x", false);
    pool.check();
}

#[test]
fn an_unpin_that_is_said_again_ends_no_other_view() {
    let (mut pool, a) = Pool::single(4 * KIB);
    let reader = pool.session(1);
    let viewed = pool.put(a, "k", KIB)[0];
    // Two views of the same bytes, one of which ends.
    pool.pin(reader, "k").unwrap();
    pool.pin(reader, "k").unwrap();
    let origin = pool.origin(reader);
    let said = |pool: &mut Pool| {
        pool.core.unpin(pool.now, origin, &[viewed.rid], &mut pool.fx).unwrap();
        pool.collect();
        pool.core.stats().pins
    };
    assert_eq!([said(&mut pool), said(&mut pool)], [1, 1]);
    pool.restart(None);
    pool.resume(reader, &[], &[viewed.rid], 1).unwrap();
    assert_eq!(said(&mut pool), 1, "the reply is remembered");
    // Nobody gets what the other one reads.
    pool.resume(a, &[1], &[], 1).unwrap();
    pool.remove(a, "k", true);
    for n in 0..4 {
        assert_ne!(pool.put(a, &format!("k{n}"), KIB)[0].extent, viewed.extent);
    }
    pool.check();
}

#[test]
fn views_that_a_resuming_reader_does_not_list_have_ended() {
    let (mut pool, a) = Pool::single(16 * KIB);
    let rid = pool.put(a, "k", KIB)[0].rid;
    pool.pin(a, "k").unwrap();
    pool.pin(a, "k").unwrap();
    pool.restart(None);
    pool.resume(a, &[1], &[rid], 1).unwrap();
    assert_eq!(pool.core.stats().pins, 2, "the reply that gave the second one may be under way");
    pool.remove(a, "x", false);
    pool.resume(a, &[1], &[rid], 1).unwrap();
    assert_eq!(pool.core.stats().pins, 1);
    pool.resume(a, &[1], &[rid, rid, rid], 1).unwrap();
    assert_eq!(pool.core.stats().pins, 3, "and views that the log lost are noted again");
    pool.resume(a, &[1], &[], 1).unwrap();
    assert_eq!((pool.core.stats().pins, pool.core.stats().pinned_bytes), (0, 0));
    pool.check();
}

#[test]
fn remove_all_takes_what_was_there_at_its_beginning() {
    let (mut pool, a) = Pool::single(1024 * KIB);
    for n in 0..500 {
        pool.put(a, &format!("k{n}"), KIB);
    }
    let early = pool.reserve(a, "early", KIB);
    let mut cursor = mooncake_core::RemoveAll::new(&mut pool.core, false);
    assert!(pool.exists("k400"));
    assert!(!pool.core.remove_all_slice(pool.now, &mut cursor, 100, &mut pool.fx));
    pool.collect();
    pool.commit(a, &early);
    pool.put(a, "late", KIB);
    while !pool.core.remove_all_slice(pool.now, &mut cursor, 100, &mut pool.fx) {}
    pool.collect();
    assert_eq!(cursor.removed, 499);
    assert_eq!(pool.keys(), ["early", "k400", "late"]);
    assert_eq!(pool.remove(a, "k400", false), RemoveOutcome::Protected);
    assert_eq!(pool.remove(a, "k400", true), RemoveOutcome::Removed);
    assert_eq!(pool.remove(a, "k400", true), RemoveOutcome::Missing);
    assert_eq!(pool.remove_all(true), 2);
    pool.check();
}

#[test]
fn views_end_with_a_close_or_with_their_process_and_by_no_clock() {
    let (mut pool, a) = Pool::single(16 * KIB);
    let (b, c) = (pool.session(1), pool.session(1));
    pool.put(a, "k", 4 * KIB);
    for reader in [b, c] {
        pool.pin(reader, "k").unwrap();
        pool.remove(reader, "x", false);
    }
    pool.anchor_lost(c);
    pool.remove(a, "k", true);
    // A client closes its session only after its last view.
    pool.close(b);
    assert!(pool.core.session_spec(b).is_none());
    pool.pass(700_000);
    assert_eq!((pool.core.stats().pins, pool.core.stats().pinned_bytes), (1, 4 * KIB), "away for ever so long");
    pool.check();
    pool.over(c);
    assert_eq!((pool.core.stats().pins, pool.core.stats().used_bytes), (0, 0));
    pool.check();
}

#[test]
fn a_session_that_never_did_anything_ends_with_its_anchor() {
    let (mut pool, a) = Pool::single(16 * KIB);
    let (reader, writer) = (pool.session(2), pool.session(3));
    pool.put(a, "k", KIB);
    assert!(pool.get("k").is_some());
    pool.reserve(writer, "w", KIB);
    pool.anchor_lost(reader);
    pool.anchor_lost(writer);
    assert_eq!(pool.resume(reader, &[], &[], 1), Err(Refused::UnknownSession(reader.0)));
    assert_eq!(pool.resume(writer, &[], &[], 1), Ok(Vec::new()));
    assert_eq!(pool.core.stats().sessions, 2);
    pool.check();
}

#[test]
fn sessions_that_are_away_count_among_all_that_there_may_be() {
    let mut pool = Pool::with(mooncake_core::Config { sessions_max: 3, ..Default::default() });
    for id in 1..=3 {
        let session = pool.session(1);
        pool.mount(session, id, 16 * KIB);
        pool.anchor_lost(session);
    }
    let spec = mooncake_core::SessionSpec { secret: 1, name: String::new(), boot_id: Vec::new(), process: Vec::new() };
    assert_eq!(pool.core.open_session(pool.now, spec, &mut pool.fx), Err(Refused::TooManySessions(3)));
    pool.pass(600_100);
    pool.session(1);
}

#[test]
fn a_segment_that_leaves_is_read_until_its_grace_is_over_and_takes_nothing_new() {
    let mut pool = Pool::new();
    let a = pool.session(1);
    let old = pool.mount(a, 1, 8 * KIB);
    pool.put(a, "k", KIB);
    let under_way = pool.reserve(a, "late", KIB);
    let new = pool.mount(a, 2, 8 * KIB);
    let leave = |pool: &mut Pool, grace_ms| {
        let origin = pool.origin(a);
        pool.core.unmount(pool.now, origin, uuid(1), grace_ms, &mut pool.fx).unwrap();
        pool.collect();
    };
    leave(&mut pool, 1000);
    let view = pool.core.segment(old).unwrap();
    assert!(view.leaving && !view.open);
    assert_eq!(pool.core.stats().segments_closed, 0, "it waits for nobody");
    for n in 0..20 {
        assert_eq!(pool.put(a, &format!("n{n}"), KIB)[0].extent.segment, new, "placed where there is a future");
    }
    // What was placed there before may still end.
    assert_eq!(pool.commit(a, &under_way), EndOutcome::Committed);
    assert!(pool.exists("k") && pool.get("late").is_some());
    // What fits there only fits nowhere.
    assert!(matches!(pool.slot(a, "large", 9 * KIB), StartOutcome::TooLarge(_)));
    pool.check();
    pool.pass(900);
    assert!(pool.get("k").is_some());
    pool.pass(200);
    assert!(pool.get("k").is_none() && pool.core.segment(old).is_none());
    let told = pool.pushes.iter().any(|(to, push)| *to == a && matches!(push, Push::SegmentGone { .. }));
    assert!(told);
    pool.check();
    assert!(pool.try_mount(a, 1, 8 * KIB, 8 * KIB).is_err(), "Gone is for ever");
}

#[test]
fn a_connection_that_ends_before_what_is_gone_was_heard_is_followed_by_one_that_tells_it_again() {
    let (mut pool, a) = Pool::single(8 * KIB);
    let b = pool.session(1);
    pool.mount(b, 2, 8 * KIB);
    pool.over(a);
    let told = |pool: &mut Pool| {
        pool.pushes.clear();
        pool.anchor_lost(b);
        pool.resume(b, &[2], &[], 1).unwrap();
        pool.pushes.iter().any(|(to, push)| *to == b && matches!(push, Push::SegmentGone { .. }))
    };
    assert!(told(&mut pool) && told(&mut pool), "both may have gone down unread");
    let beat = |pool: &mut Pool| {
        pool.now = pool.now.plus_ms(500);
        _ = pool.core.beat(pool.now, b, &[], &[], &mut pool.fx);
    };
    beat(&mut pool);
    assert!(told(&mut pool), "the beat may have come before");
    beat(&mut pool);
    assert!(told(&mut pool), "over another connection");
    beat(&mut pool);
    _ = pool.core.beat(pool.now, b, &[], &[], &mut pool.fx);
    assert!(told(&mut pool), "both may have been on their way");
    beat(&mut pool);
    beat(&mut pool);
    beat(&mut pool);
    assert!(!told(&mut pool), "it has heard it");
    let fresh = pool.session(1);
    pool.mount(fresh, 3, 8 * KIB);
    pool.anchor_lost(fresh);
    pool.pushes.clear();
    pool.resume(fresh, &[3], &[], 1).unwrap();
    assert!(pool.pushes.is_empty(), "it never had it");
}

#[test]
fn a_grace_begins_anew_with_a_restarted_master_and_can_be_cut_short() {
    let (mut pool, a) = Pool::single(8 * KIB);
    pool.put(a, "k", KIB);
    let leave = |pool: &mut Pool, grace_ms| {
        let origin = pool.origin(a);
        pool.core.unmount(pool.now, origin, uuid(1), grace_ms, &mut pool.fx).unwrap();
        pool.collect();
    };
    leave(&mut pool, 1000);
    pool.pass(800);
    pool.check();
    pool.restart(None);
    pool.resume(a, &[1], &[], 1).unwrap();
    pool.pass(800);
    assert!(pool.get("k").is_some());
    assert!(!matches!(pool.slot(a, "new", KIB), StartOutcome::Placed(_)));
    leave(&mut pool, 0);
    assert!(pool.get("k").is_none());
    pool.check();
}

#[test]
fn a_session_lingers_only_while_a_segment_is_there_that_it_has_views_on() {
    let mut pool = Pool::new();
    let (owner, other, reader) = (pool.session(1), pool.session(2), pool.session(1));
    pool.mount(owner, 1, 16 * KIB);
    pool.put(owner, "viewed", KIB);
    pool.pin(reader, "viewed").unwrap();
    pool.anchor_lost(reader);
    pool.pass(601_000);
    assert!(pool.core.session_spec(reader).is_some(), "nothing proves that it does not read any more");
    assert_eq!(pool.core.stats().pins, 1);
    pool.over(owner);
    pool.pass(1_020);
    assert!(pool.core.session_spec(reader).is_none(), "there is nothing left that could be given out again");
    assert_eq!((pool.core.stats().pins, pool.core.session_spec(other).is_some()), (0, true));
    pool.check();
    pool.restart(None);
    assert!(pool.core.session_spec(reader).is_none());
}

#[test]
fn an_owner_that_lingered_hears_what_it_views_of_its_own_memory_and_so_does_everybody() {
    let mut pool = Pool::new();
    let (owner, other) = (pool.session(1), pool.session(1));
    let gone = pool.mount(owner, 1, 16 * KIB);
    let own = pool.put(owner, "own", KIB);
    let kept = pool.mount(other, 2, 16 * KIB);
    let elsewhere = loop {
        let replicas = pool.put(other, &format!("k{:?}", pool.now), KIB);
        if replicas[0].extent.segment == kept {
            break replicas;
        }
        pool.pass(20);
    };
    pool.pin(owner, "own").unwrap();
    let key = format!("k{:?}", pool.now);
    pool.pin(owner, &key).unwrap();
    // It stands still for longer than its session lasts, and nothing proves that it does not read any more.
    pool.anchor_lost(owner);
    pool.pushes.clear();
    pool.pass(601_000);
    let told = Push::SegmentGone { uuid: uuid(1), number: gone, pinned: vec![own[0].extent] };
    assert!(pool.pushes.contains(&(other, told.clone())), "{:?}", pool.pushes);
    pool.resume(owner, &[1], &[own[0].rid, elsewhere[0].rid], 1).unwrap();
    assert!(pool.pushes.contains(&(owner, told)), "it would give back what it views: {:?}", pool.pushes);
    pool.check();
}

#[test]
fn after_the_reboot_of_a_host_no_session_of_it_is_left() {
    let mut pool = Pool::new();
    let (owner, a, b) = (pool.session(1), pool.session(1), pool.session(1));
    pool.mount(owner, 1, 16 * KIB);
    pool.put(owner, "viewed", KIB);
    for session in [owner, a, b] {
        pool.pin(session, "viewed").unwrap();
    }
    for session in [owner, a, b] {
        pool.anchor_lost(session);
    }
    pool.pass(300_000);
    // Also across a restart of the master, which begins the count anew.
    pool.restart(None);
    pool.pass(602_000);
    assert!([owner, a, b].iter().all(|session| pool.core.session_spec(*session).is_none()));
    assert_eq!(pool.core.stats().pins, 0);
    pool.check();
}

#[test]
fn a_peer_that_has_yet_to_hear_of_a_dead_segment_gives_nothing_back_that_a_forgotten_session_may_view() {
    let mut pool = Pool::new();
    let (owner, reader, peer) = (pool.session(1), pool.session(1), pool.session(1));
    let gone = pool.mount(owner, 1, 16 * KIB);
    pool.put(owner, "viewed", KIB);
    pool.pin(reader, "viewed").unwrap();
    pool.remove(peer, "x", false);
    pool.anchor_lost(reader);
    pool.pass(601_000);
    // The reader stands still, the peer is cut off for a moment, and neither knows that the owner is dead.
    pool.anchor_lost(peer);
    pool.over(owner);
    pool.pass(2_000);
    assert!(pool.core.session_spec(reader).is_none(), "nothing can be given out again under its view");
    for _ in 0..2 {
        pool.restart(None);
        pool.pass(1_000);
        pool.pushes.clear();
        pool.resume(peer, &[], &[], 1).unwrap();
        let all = Extent { segment: gone, offset: 0, length: u64::MAX };
        let told = Push::SegmentGone { uuid: uuid(1), number: gone, pinned: vec![all] };
        assert!(pool.pushes.contains(&(peer, told)), "it would give the viewed pages back");
        pool.anchor_lost(peer);
    }
    pool.check();
}

#[test]
fn what_a_reader_of_another_host_had_pinned_comes_back_with_its_retention() {
    let (mut pool, owner) = Pool::single(16 * KIB);
    pool.put(owner, "k", KIB);
    // It pins, finds that it cannot map the memory, copies, and is killed before it unpins: no owner sees its end.
    let (far, near) = (pool.session(2), pool.session(1));
    for reader in [far, near] {
        pool.pin(reader, "k").unwrap();
        pool.anchor_lost(reader);
    }
    pool.pass(601_000);
    assert!(pool.core.session_spec(far).is_none() && pool.core.session_spec(near).is_some());
    assert_eq!(pool.core.stats().pins, 1, "what is mapped needs proof");
    pool.check();
}

#[test]
fn a_session_on_which_much_hangs_ends_in_steps_and_a_log_that_is_cut_behind_any_of_them_goes_on() {
    const MANY: usize = 600;
    let mut pool = Pool::new();
    let (owner, reader) = (pool.session(1), pool.session(2));
    pool.mount(owner, 1, 4_000 * KIB);
    pool.mount(reader, 2, 8 * KIB);
    let put = |pool: &mut Pool, name: &str| -> Vec<mooncake_ids::Rid> {
        let keys: Vec<String> = (0..MANY).map(|n| format!("{name}{n}")).collect();
        let entries: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), KIB)).collect();
        let config = mooncake_core::PutConfig { preferred_segments: vec!["segment-1".into()], ..pool::plain() };
        let slots = pool.slots(reader, &entries, &config);
        slots.iter().map(|slot| pool::placed(slot)[0].rid).collect()
    };
    for rid in put(&mut pool, "viewed") {
        let origin = pool.origin(reader);
        let ended = mooncake_core::Ended { replicas: [(rid, true)].into_iter().collect(), crc32c: 0, stays: false };
        pool.core.put_end(pool.now, origin, &[ended], &mut pool.fx).unwrap();
    }
    let keys: Vec<String> = (0..MANY).map(|n| format!("viewed{n}")).collect();
    let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let origin = pool.origin(reader);
    assert!(pool.core.pin(pool.now, origin, &keys, &mut pool.fx).unwrap().iter().all(Result::is_ok));
    put(&mut pool, "unfinished");
    pool.collect();
    let stats = pool.core.stats();
    assert_eq!((stats.pins, stats.unfinished_puts, stats.segments_live), (MANY as u64, MANY as u64, 2));

    pool.core.process_gone(pool.now, reader, &mut pool.fx);
    let mut steps = 1;
    loop {
        assert!(pool.fx.records.len() <= STEP_OBJECTS + 16, "{} in one step", pool.fx.records.len());
        pool.collect();
        pool.check();
        if !pool.core.keeps_waiting() {
            break;
        }
        // Nothing is placed there, found there or taken from it from the first step on.
        assert_eq!(pool.core.stats().segments_live, 1);
        assert_eq!(pool.core.check_session(reader, secret(reader)), Err(Refused::UnknownSession(reader.0)));
        // A master that starts here knows the session, which is away and ends once more.
        let mut again = pool::replayed(pool.log.clone());
        let mut fx = mooncake_core::Effects::default();
        again.begin(pool.now, None, &mut fx);
        again.process_gone(pool.now, reader, &mut fx);
        while again.keeps_waiting() {
            again.background(pool.now, STEP_OBJECTS, &mut fx);
        }
        again.check_invariants().unwrap();
        assert!(again.session_spec(reader).is_none() && again.stats().unfinished_puts == 0 && again.stats().pins == 0);
        pool.core.background(pool.now, STEP_OBJECTS, &mut pool.fx);
        steps += 1;
    }
    assert!(steps > 4 && pool.core.session_spec(reader).is_none(), "{steps}");
    let stats = pool.core.stats();
    assert_eq!((stats.pins, stats.unfinished_puts, stats.quarantined_extents), (0, 0, MANY as u64));
}

#[test]
fn a_session_with_many_segments_closes_in_steps_and_takes_part_in_nothing_meanwhile() {
    let mut pool = Pool::new();
    let (owner, other) = (pool.session(1), pool.session(2));
    for id in 1..=100 {
        pool.mount(owner, id, 4 * KIB);
    }
    pool.put(owner, "k", KIB);
    let close = |pool: &mut Pool| {
        let is_over = pool.core.close_session(pool.now, owner, &mut pool.fx);
        let records = pool.fx.records.len();
        pool.collect();
        assert!(records <= 64, "{records} in one step");
        is_over
    };
    assert!(!close(&mut pool), "100 segments take longer than one step");
    assert!(pool.get("k").is_none(), "nothing of it is read");
    assert!(is_full(&pool.slot(other, "new", KIB)), "and nothing placed there");
    assert!(pool.core.check_session(owner, secret(owner)).is_err());
    let mut steps = 1;
    while !close(&mut pool) {
        steps += 1;
    }
    assert!((10..30).contains(&steps), "{steps}");
    assert_eq!((pool.core.stats().counters.segments_gone, pool.core.stats().sessions), (100, 1));
    assert!(pool.core.close_session(pool.now, owner, &mut pool.fx), "it is over");
    pool.check();
}

#[test]
fn each_client_is_told_with_what_it_lends_and_holds() {
    let mut pool = Pool::new();
    let (owner, reader) = (pool.session(1), pool.session(2));
    pool.mount(owner, 1, 64 * KIB);
    pool.mount(owner, 2, 64 * KIB);
    pool.put(owner, "k", 3 * KIB);
    let PutStarted::Now(_) = pool.start(reader, &[("unfinished", 2 * KIB)], &plain(), false) else { panic!("room") };
    (0..2).for_each(|_| _ = pool.pin(reader, "k").unwrap());
    let told: Vec<_> = pool.core.clients_from(pool.now, SessionId(0)).collect();
    let figures = told.iter().map(|client| {
        let of_its_own = [client.lent, client.used, client.pinned];
        (client.session, client.segments, of_its_own, client.viewed, client.unfinished)
    });
    assert_eq!(
        figures.collect::<Vec<_>>(),
        [(owner, 2, [128 * KIB, 5 * KIB, 3 * KIB], 0, 0), (reader, 0, [0; 3], 3 * KIB, 2 * KIB),]
    );
    assert!(told.iter().all(|client| client.away_us.is_none() && !client.is_bereft));
    pool.close(reader);
    pool.pass(1_000);
    let told: Vec<_> = pool.core.clients_from(pool.now, SessionId(0)).map(|client| client.session).collect();
    assert_eq!(told, [owner]);
    assert_eq!(pool.core.clients_from(pool.now, SessionId(owner.0 + 1)).count(), 0);
}
