//! The product's own logic in a world in which connections break, processes freeze and die, machines start again, and logs
//! lose their ends: no wrong byte is read, no view changes, nothing lands behind a fence, and once all is calm every store
//! has a session, what was acknowledged is there, and nobody holds or waits for anything that is not there.
//!
//! Each schedule follows from its seed, which every failure prints. `MOONCAKE_SEEDS=1000` runs more of them, `MOONCAKE_SEED=7`
//! that one.

use std::time::{Duration, Instant};

use mooncake_sim::{Plan, Sum};

const PLAN: Plan = Plan { seed: 0, trouble: Duration::from_secs(6), loses_tails: false, copies_logs: false };

fn runs(name: &str, seeds: u64, plan: Plan) -> Sum {
    let setting = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds = match setting("MOONCAKE_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=setting("MOONCAKE_SEEDS").unwrap_or(seeds),
    };
    let began = Instant::now();
    let mut sum = Sum::default();
    for seed in seeds.clone() {
        sum.add(&Plan { seed, ..plan }.run());
    }
    println!("{name}, seeds {seeds:?}, {:?}: {sum:?}", began.elapsed());
    sum
}

#[test]
fn whatever_goes_wrong_no_promise_is_broken_and_all_comes_to_rest() {
    let sum = runs("trouble", 40, PLAN);
    assert_eq!(sum.calls.suspects, 0, "no replica is bad");
}

#[test]
fn nor_where_logs_lose_their_ends() {
    runs("lost ends", 40, Plan { loses_tails: true, ..PLAN });
}

#[test]
fn nor_where_two_masters_go_on_with_copies_of_one_log() {
    runs("copies", 40, Plan { copies_logs: true, ..PLAN });
}
