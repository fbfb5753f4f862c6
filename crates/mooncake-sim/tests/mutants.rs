//! The schedules notice what they are for: each mutant of the product's decisions is caught by one of the first of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use mooncake_mutant::{Mutant, with};
use mooncake_sim::Plan;

/// Most schedules of one mutant.
const SCHEDULES: u64 = 200;

/// A schedule that notices, which is tried first; none where none of the first has noticed yet. Those mutants are killed by
/// tests of their machines, and `MOONCAKE_MUTANT=GateIgnoresEpochs` looks for a schedule.
fn known(mutant: Mutant) -> Option<u64> {
    use Mutant::*;
    Some(match mutant {
        ClientsAreNotBelieved | PeerForgetsOwnViews => 1,
        FenceWaitsForNoWrite | EndIsNotHeard | PeerGivesBackOfTheLiving => 2,
        UnansweredMountStays => 3,
        EndOfReaderIsNotTold | PinnedMemoryIsGivenBack | PeerForgetsPins => 5,
        EpochIsTakenWhenAsked | OpenPutsAreSettled => 6,
        FenceAsksNobody => 8,
        ResumeSaysWhatWasAsked | UnknownViewsAreForgotten => 10,
        GateIgnoresStamps => 11,
        ClosedConnectionProvesEpochs => 19,
        RetriesAreNew => 21,
        PeerAnswersWhileItWrites => 23,
        FarewellIsNotHeard => 35,
        UnwrittenCopiesAreGood | OutcomesAreMixedUp => 36,
        InsidersAreNotAsked => 43,
        PeerAnswersUnasked => 46,
        EpochIsKept => 55,
        StaleReplicasAreNotReported => 73,
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
fn mutants_are_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    let only = std::env::var("MOONCAKE_MUTANT").ok();
    let mut alive = Vec::new();
    for &mutant in Mutant::ALL {
        let is_looked_for = match &only {
            Some(only) => *only == format!("{mutant:?}"),
            None => known(mutant).is_some(),
        };
        if !is_looked_for {
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
