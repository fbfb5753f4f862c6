//! The promises of the safety rules, in a world of many processes where everything goes wrong: no wrong byte, nothing
//! handed out twice, no key stuck, and what was acknowledged stays.
//!
//! Each run follows from its seed, which every failure prints. `MOONCAKE_SEEDS=1000` runs more of them,
//! `MOONCAKE_SEED=7` that one.

mod testbed;

use testbed::{Faults, Tally, World};

fn runs(name: &str, seeds: u64, seconds: u64, faults: impl Fn() -> Faults) -> Tally {
    let setting = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds = match setting("MOONCAKE_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=setting("MOONCAKE_SEEDS").unwrap_or(seeds),
    };
    let mut sum = Tally::default();
    for seed in seeds.clone() {
        let mut world = World::new(seed, faults());
        world.run_ms(seconds * 1000);
        let tally = world.conclude();
        sum.puts += tally.puts;
        sum.existed += tally.existed;
        sum.refused += tally.refused;
        sum.superseded += tally.superseded;
        sum.reads += tally.reads;
        sum.misses += tally.misses;
        sum.stale += tally.stale;
        sum.views += tally.views;
        sum.unknown_views += tally.unknown_views;
        sum.refused_lanes += tally.refused_lanes;
        sum.master_restarts += tally.master_restarts;
        sum.crashes += tally.crashes;
        sum.freezes += tally.freezes;
        sum.released += tally.released;
        sum.longest_wait_ms = sum.longest_wait_ms.max(tally.longest_wait_ms);
    }
    println!("{name}, seeds {seeds:?}: {sum:?}");
    sum
}

#[test]
fn without_faults_no_put_waits_longer_than_its_bound_and_none_is_lost() {
    let tally = runs("no faults", 5, 20, Faults::none);
    assert!(tally.puts > 100 && tally.reads > 100 && tally.views > 10, "{tally:?}");
    assert_eq!(tally.superseded, 0);
    assert!(tally.longest_wait_ms <= 1_100, "{tally:?}");
}

#[test]
fn a_network_that_loses_repeats_reorders_and_delays_does_no_harm() {
    let tally = runs("network", 10, 20, Faults::network);
    assert!(tally.puts > 100 && tally.reads > 100, "{tally:?}");
}

#[test]
fn frozen_and_killed_processes_do_no_harm() {
    let faults = || Faults { master_crash: 0, write_us: 60_000, ..Faults::everything() };
    let tally = runs("freeze and crash", 10, 40, faults);
    assert!(tally.crashes > 20 && tally.freezes > 50 && tally.released > 0 && tally.superseded > 0, "{tally:?}");
}

#[test]
fn a_killed_master_forgets_nothing_that_it_acknowledged() {
    let tally = runs("master", 10, 40, Faults::everything);
    assert!(tally.master_restarts > 20, "{tally:?}");
}

#[test]
fn a_master_whose_log_lost_its_end_hands_nothing_out_twice() {
    // Writers are slow, so that many are under way when their reservations are forgotten.
    let faults = || Faults { cut_tail: true, freeze: 3, write_us: 60_000, ..Faults::everything() };
    let tally = runs("cut log", 30, 40, faults);
    assert!(tally.master_restarts > 20 && tally.views > 100 && tally.unknown_views > 10, "{tally:?}");
}
