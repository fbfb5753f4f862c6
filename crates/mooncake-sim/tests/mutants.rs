//! The schedules notice what they are for: each mutant of the product's decisions is caught by one of the first of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use mooncake_mutant::{Mutant, with};
use mooncake_sim::Plan;

/// Most schedules of one mutant.
const SCHEDULES: u64 = 200;

/// A schedule that noticed when it was last looked for, which is tried first.
fn known(mutant: Mutant) -> Option<u64> {
    use Mutant::*;
    Some(match mutant {
        EpochIsTakenWhenAsked | PinnedMemoryIsGivenBack | OpenPutsAreSettled => 4,
        ResumeSaysWhatWasAsked => 82,
        FenceAsksNobody => 12,
        FenceWaitsForNoWrite | PeerForgetsOwnViews => 2,
        FarewellIsNotHeard => 23,
        EndIsNotHeard | PeerGivesBackOfTheLiving => 1,
        EndOfReaderIsNotTold => 15,
        InsidersAreNotAsked => 14,
        UnansweredMountStays | PeerForgetsPins => 5,
        GateIgnoresStamps => 9,
        PeerAnswersWhileItWrites => 31,
        PeerAnswersUnasked | UnknownViewsAreForgotten => 22,
        PinsSettleDuringLists => 147,
        OutcomesAreMixedUp => 21,
        StaleReplicasAreNotReported => 44,
        RetriesAreNew => 6,
        _ => return None,
    })
}

/// The first schedule that notices, and what it says.
fn caught(mutant: Mutant) -> Option<(u64, String)> {
    known(mutant).into_iter().chain(1..=SCHEDULES).find_map(|seed| {
        let (loses_tails, copies_logs) = (seed % 3 == 1, seed % 3 == 2);
        let plan = Plan { seed, trouble: Duration::from_secs(6), loses_tails, copies_logs };
        let outcome = with(mutant, || catch_unwind(AssertUnwindSafe(|| plan.run())));
        let panic = outcome.err()?;
        let text = panic.downcast_ref::<String>().cloned();
        Some((seed, text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()))
    })
}

#[test]
fn each_mutant_is_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    let only = std::env::var("MOONCAKE_MUTANT").ok();
    let mut alive = Vec::new();
    for &mutant in Mutant::ALL {
        if only.as_ref().is_some_and(|only| *only != format!("{mutant:?}")) {
            continue;
        }
        let began = Instant::now();
        match caught(mutant) {
            Some((seed, how)) => {
                let how: String = how.replace('\n', " ").chars().take(110).collect();
                println!("{mutant:?}: schedule {seed}, {:.1?}: {how}", began.elapsed());
            }
            None => alive.push(mutant),
        }
    }
    assert!(alive.is_empty(), "not noticed in {SCHEDULES} schedules: {alive:?}");
}
