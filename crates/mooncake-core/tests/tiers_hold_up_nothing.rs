//! A tier that is slow, full or spent holds up no put and no other tier, and what there is no end of is done in turn.

use crate::pool::tiers::{WINDOW, WithTiers, mount, tier_uuid, whole};
use crate::pool::{KIB, Pool, plain};
use mooncake_core::{
    Config, Offload, OrdersAnswered, PlacementStrategy, Promotion, PutConfig, PutStarted, RemoveOutcome, STEP_OBJECTS,
    StartOutcome, TierMount, TierState,
};
use mooncake_ids::{Rid, SessionId};

const ON_EVICT: Offload = Offload { on_evict: true, force_evict: false };

/// Two owners, on hosts of their own, that have what they put: of so much memory each, and with a tier each.
fn two(config: Config, bytes: [u64; 2]) -> (Pool, [SessionId; 2]) {
    let mut pool = Pool::with(Config { placement: PlacementStrategy::LocalFirst, ..config });
    let owners = [1, 2].map(|host| pool.session(host));
    for ((owner, number), bytes) in owners.into_iter().zip(1..).zip(bytes) {
        pool.mount(owner, number, bytes);
        pool.mount_tier(owner, number, true, whole([])).unwrap();
    }
    (pool, owners)
}

/// What the owner of a tier has been asked to write since the last question.
fn ordered(pool: &mut Pool, owner: SessionId) -> Vec<String> {
    pool.orders(owner).into_iter().map(|order| order.key).collect()
}

/// Steps in the background until nothing is left to do, of at most so many.
fn steps(pool: &mut Pool, most: usize) -> usize {
    let steps = (0..most).take_while(|_| pool.core.background(pool.now, STEP_OBJECTS, &mut pool.fx)).count();
    pool.collect();
    steps
}

/// The owner could write none of what it was to.
fn write_none(pool: &mut Pool, session: SessionId, number: u8, window: u64) {
    let orders: Vec<(Rid, Option<u64>)> =
        pool.orders_of(session, number).iter().map(|order| (order.rid, None)).collect();
    assert!(!orders.is_empty(), "it is asked to write something");
    pool.written(session, number, &orders);
    let answered = OrdersAnswered { window, ..OrdersAnswered::default() };
    pool.core.orders_answered(pool.now, session, tier_uuid(number), &answered, &mut pool.fx);
    pool.collect();
}

/// Whether a put that may wait has room at once.
fn has_room_at_once(pool: &mut Pool, session: SessionId, key: &str, size: u64) -> bool {
    match pool.start(session, &[(key, size)], &plain(), true) {
        PutStarted::Now(slots) => matches!(slots[0], StartOutcome::Placed(_)),
        PutStarted::Parked(_) => false,
    }
}

#[test]
fn no_put_waits_for_what_no_tier_will_write() {
    let a_put_waits = |config: Config, size: u64, window: u64, records_max: u64, has_tier: bool| {
        let mut pool = Pool::with(Config { placement: PlacementStrategy::LocalFirst, ..config });
        let [session, other] = [1, 2].map(|host| pool.session(host));
        for (session, number) in [(session, 1), (other, 2)] {
            pool.mount(session, number, 16 * size);
            // Whose tier writes, so that the pool is never silent.
            if has_tier || session == other {
                let records_max = Some(if session == other { u64::MAX } else { records_max });
                let mount = TierMount { records_max, ..mount(number, true, whole([])) };
                pool.core.mount_tier(pool.now, session, mount, &mut pool.fx).unwrap();
            }
        }
        (0..16).for_each(|nth| _ = pool.put(session, &format!("k{nth}"), size));
        (0..16).for_each(|nth| _ = pool.put(other, &format!("other/{nth}"), size));
        pool.pass(20);
        for (session, number, window) in [(session, 1, window), (other, 2, WINDOW)] {
            if !pool.core.tiers().all(|tier| tier.session != session || tier.ordered == 0) {
                write_none(&mut pool, session, number, window);
            }
        }
        pool.pass(20);
        let waits = !has_room_at_once(&mut pool, session, "new", size);
        assert!(waits || !pool.exists("k0"), "the coldest one is lost");
        pool.check();
        waits
    };
    let any = u64::MAX;
    assert!(a_put_waits(Config::default(), 4 * KIB, WINDOW, any, true), "its tier writes");
    assert!(!a_put_waits(Config::default(), 4 * KIB, WINDOW, any, false), "its host has no tier");
    assert!(!a_put_waits(Config::default(), 4 * KIB, 0, any, true), "its disk fails");
    assert!(!a_put_waits(Config::default(), 4 * KIB, WINDOW, 0, true), "its tier has as many records as it may");
    assert!(!a_put_waits(Config::default(), 256 * KIB, WINDOW, any, true), "it is too large for the tier");
    let spent = Config { tier_fills_per_day: 1e-6, ..Config::default() };
    assert!(!a_put_waits(spent, 4 * KIB, WINDOW, any, true), "what may be written in a day is");
}

#[test]
fn what_a_call_has_just_stored_stays_though_no_tier_will_write_it() {
    let (mut pool, [first, second]) = two(Config::default(), [64 * KIB; 2]);
    pool.core.leave_tier(pool.now, second, tier_uuid(2), false, &mut pool.fx);
    (0..16).for_each(|nth| _ = pool.put(first, &format!("first/{nth}"), 4 * KIB));
    pool.pass(20);
    let own: Vec<String> = (0..16).map(|nth| format!("own/{nth}")).collect();
    let rids: Vec<Rid> = own.iter().map(|key| pool.put(second, key, 4 * KIB)[0].rid).collect();
    let call = PutConfig { first_rid: Some(rids[0]), ..plain() };
    let PutStarted::Parked(ticket) = pool.start(second, &[("new", 4 * KIB)], &call, true) else {
        panic!("the tier has it written what was there before")
    };
    pool.pass(300);
    assert!(matches!(pool.woken.remove(&ticket).unwrap()[0], StartOutcome::Placed(_)));
    assert!(own.iter().all(|key| pool.core.peek(key.as_bytes()).is_some()));
    pool.check();
}

#[test]
fn a_tier_that_takes_no_more_now_holds_up_no_other_one_where_only_what_is_cold_is_written() {
    let (mut pool, [slow, other]) = two(Config { offload: ON_EVICT, ..Config::default() }, [64 * KIB; 2]);
    for nth in 0..64 {
        if nth < 16 {
            pool.put(slow, &format!("slow/{nth}"), 4 * KIB);
        }
        pool.put(other, &format!("other/{nth}"), KIB);
    }
    pool.pass(20);
    // Of one segment an eighth is under order at a time. The coldest are one in ten of all.
    assert_eq!(ordered(&mut pool, slow), ["slow/0", "slow/1"]);
    assert_eq!(ordered(&mut pool, other), ["other/0", "other/1", "other/2", "other/3"]);
    pool.check();
}

#[test]
fn what_is_new_is_written_to_each_tier_in_turn_and_before_what_was_there_when_a_tier_came() {
    let (mut pool, [first, second]) = two(Config::default(), [64 << 20, 64 * KIB]);
    let tick = |pool: &mut Pool| {
        pool.core.tick(pool.now, &mut pool.fx);
        pool.collect();
    };
    // There is more of it for one tier than a step has time for.
    (0..600).for_each(|nth| _ = pool.put(first, &format!("k{nth}"), KIB));
    pool.put(second, "new", KIB);
    (0..2).for_each(|_| tick(&mut pool));
    assert_eq!(ordered(&mut pool, second), ["new"]);
    // A tier comes anew, and there are very many objects that it may be for.
    let third = pool.session(3);
    pool.mount(third, 3, 64 << 20);
    (0..8_000).for_each(|nth| _ = pool.put(third, &format!("other/{nth}"), KIB));
    pool.pass(200);
    pool.core.leave_tier(pool.now, first, tier_uuid(1), false, &mut pool.fx);
    pool.mount_tier(first, 1, false, whole([])).unwrap();
    pool.put(second, "newer", KIB);
    tick(&mut pool);
    assert_eq!(ordered(&mut pool, second), ["newer"]);
    pool.check();
}

#[test]
fn what_cannot_be_written_is_counted_once_and_looked_for_again_a_second_later() {
    let mut pool = Pool::with(Config { offload: ON_EVICT, ..Config::default() });
    let owner = pool.session(1);
    pool.mount(owner, 1, 1_000 * KIB);
    let full = TierMount { records_max: Some(0), ..mount(1, true, whole([])) };
    pool.core.mount_tier(pool.now, owner, full, &mut pool.fx).unwrap();
    (0..1_000).for_each(|nth| _ = pool.put(owner, &format!("k{nth}"), KIB));
    pool.pass(20);
    let refused = |pool: &Pool| pool.core.stats().counters.tier_orders_refused;
    assert_eq!(refused(&pool), 100, "one in ten");
    let looks = |pool: &mut Pool, ms| {
        let before = pool.core.touched();
        pool.pass(ms);
        pool.core.touched().wrapping_sub(before)
    };
    let at_once = looks(&mut pool, 800);
    let later = looks(&mut pool, 400);
    assert!(later > at_once + 100, "{later} looks once it is looked again, {at_once} before");
    assert_eq!(refused(&pool), 100);
    // Its disk is well again, which no log knows.
    let none = TierMount { records_max: None, ..mount(1, false, whole([])) };
    pool.core.leave_tier(pool.now, owner, tier_uuid(1), false, &mut pool.fx);
    pool.core.mount_tier(pool.now, owner, none, &mut pool.fx).unwrap();
    for window in [0, WINDOW] {
        let answered = OrdersAnswered { window, ..OrdersAnswered::default() };
        pool.core.orders_answered(pool.now, owner, tier_uuid(1), &answered, &mut pool.fx);
        pool.pass(1_100);
        assert_eq!(!pool.orders(owner).is_empty(), window > 0);
    }
    pool.check();
}

#[test]
fn a_put_that_waits_has_the_coldest_written_though_others_were_the_coldest_when_nothing_was_left_to_write() {
    let mut pool = Pool::with(Config { offload: ON_EVICT, ..Config::default() });
    let owner = pool.session(1);
    pool.mount(owner, 1, 64 * KIB);
    pool.mount_tier(owner, 1, true, whole([])).unwrap();
    (0..32).for_each(|nth| _ = pool.put(owner, &format!("k{nth}"), 2 * KIB));
    pool.pass(20);
    let cold: Vec<String> = (0..4).map(|nth| format!("k{nth}")).collect();
    assert_eq!(pool.write_all(owner, 1, 0), 4);
    pool.pass(1_000);
    assert!(pool.orders(owner).is_empty(), "all that is cold is written");
    // A look-up protects them, of which no log knows.
    assert!(cold.iter().all(|key| pool.exists(key)));
    let ticket = pool.park(owner, &[("new", 2 * KIB)]);
    pool.pass(40);
    assert!(pool.write_all(owner, 1, 4) > 0);
    assert!(matches!(pool.woken.remove(&ticket).unwrap()[0], StartOutcome::Placed(_)));
    assert_eq!(pool.core.stats().counters.evicted_unwritten_objects, 0);
    pool.check();
}

/// Two owners of whom the first one has the 600 coldest objects, and the second one these keys on its tier alone, and
/// no room that is free.
fn full_of_others(config: Config, keys: &[&str]) -> (Pool, SessionId) {
    let (mut pool, [first, second]) = two(config, [600 * KIB, 64 * KIB]);
    for (nth, key) in keys.iter().enumerate() {
        pool.put(second, key, KIB);
        pool.pass(20);
        assert_eq!(pool.write_all(second, 2, nth as u64), 1);
    }
    (0..600).for_each(|nth| _ = pool.put(first, &format!("first/{nth}"), KIB));
    pool.put(second, "filler", 64 * KIB);
    assert_eq!(pool.remove(second, "filler", true), RemoveOutcome::Removed);
    pool.pass(20);
    (pool, second)
}

#[test]
fn a_copy_finds_room_behind_however_many_colder_objects_of_other_hosts() {
    let (mut pool, owner) = full_of_others(Config::default(), &["k"]);
    for nth in 0..16 {
        pool.put(owner, &format!("second/{nth}"), 4 * KIB);
        pool.pass(20);
        pool.write_all(owner, 2, 10 + nth);
    }
    assert_eq!(pool.replicas("k").len(), 1, "it is on the tier alone");
    let tries = (1..=4).find(|_| {
        assert!(pool.exists("k"));
        pool.pass(40);
        !pool.promotions(owner).is_empty()
    });
    assert!(tries.is_some());
    assert_eq!(pool.core.stats().counters.evicted_unwritten_objects, 0);
    pool.check();
}

#[test]
fn what_was_read_and_waits_for_room_is_no_work_without_end() {
    let promotion = Promotion { prefetch: false, on_hit: true, threshold: 1 };
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let (mut pool, owner) = full_of_others(Config { promotion, ..Config::default() }, &keys);
    pool.put(owner, "large", 64 * KIB);
    keys.iter().for_each(|key| assert_eq!(pool.replicas(key).len(), 1, "and it is read"));
    for _ in 0..3 {
        pool.now = pool.now.plus_ms(20);
        pool.core.tick(pool.now, &mut pool.fx);
        let steps = steps(&mut pool, 20);
        assert!(steps < 5, "{steps} steps find no room");
    }
    assert_eq!(pool.remove(owner, "large", true), RemoveOutcome::Removed);
    pool.pass(40);
    assert_eq!(pool.promotions(owner).len(), keys.len(), "there is room now");
    pool.check();
}

/// A tier that is looked at over so many slots for what its folder does not prove, and another owner.
fn checking(objects: usize) -> (Pool, SessionId) {
    let (mut pool, [first, second]) = two(Config::default(), [64 * KIB, 64 << 20]);
    pool.put(first, "k", KIB);
    pool.pass(20);
    assert_eq!(pool.write_all(first, 1, 0), 1);
    pool.core.leave_tier(pool.now, second, tier_uuid(2), false, &mut pool.fx);
    (0..objects).for_each(|nth| _ = pool.put(second, &format!("second/{nth}"), KIB));
    pool.mount_tier(first, 1, false, whole([])).unwrap();
    (pool, second)
}

fn is_checking(pool: &Pool) -> bool {
    pool.core.tiers().any(|tier| tier.state == TierState::Checking)
}

#[test]
fn a_long_job_in_the_background_holds_up_none_behind_it_however_few_steps_each_tick_has() {
    let (mut pool, owner) = checking(40_000);
    pool.mount_tier(owner, 2, false, whole([])).unwrap();
    pool.put(owner, "new", KIB);
    let ticks = (1..).find(|_| {
        pool.core.tick(pool.now, &mut pool.fx);
        pool.collect();
        !pool.orders(owner).is_empty() || !is_checking(&pool)
    });
    assert!(is_checking(&pool), "writing waits for the end of that, {ticks:?} ticks");
}

#[test]
fn many_slots_are_looked_at_in_a_step_for_what_a_folder_does_not_prove() {
    let (mut pool, _) = checking(10_000);
    let steps = (1..).find(|_| {
        pool.core.background(pool.now, STEP_OBJECTS, &mut pool.fx);
        !is_checking(&pool)
    });
    pool.collect();
    assert!(steps.unwrap() <= 12, "{steps:?} steps for 10,000 slots");
    assert!(pool.replicas("k").len() == 1, "it is in memory alone");
    pool.check();
}
