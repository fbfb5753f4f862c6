//! The schedules notice what they are for: each mutant of the product's decisions is caught by one of the first of them.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use mooncake_mutant::{Mutant, with};
use mooncake_sim::Plan;

/// Most schedules of one mutant.
const SCHEDULES: u64 = 200;

/// Longer than that of other schedules: more of them notice.
const TROUBLE: Duration = Duration::from_secs(20);

/// A schedule that notices, which is tried first; none where none of the first has noticed yet. Those mutants are killed by
/// tests of their machines, and `MOONCAKE_MUTANT=NewcomerIsNotWaitedFor` looks for a schedule.
fn known(mutant: Mutant) -> Option<u64> {
    use Mutant::*;
    Some(match mutant {
        EndIsNotHeard | UnansweredMountStays | PeerAnswersWhileItWrites | EndsGoToAnySession => 1,
        FenceWaitsForNoWrite => 2,
        EpochIsTakenWhenAsked | PinnedMemoryIsGivenBack | ClientsAreNotBelieved => 3,
        GateIgnoresStamps => 5,
        ResumeSaysWhatWasAsked | FarewellIsNotHeard => 6,
        OpenPutsAreSettled => 8,
        InsidersAreNotAsked => 9,
        FenceAsksNobody | PeerForgetsPins | PeerForgetsOwnViews | UnknownViewsAreForgotten => 10,
        StaleReplicasAreNotReported => 11,
        RetriesAreNew => 14,
        PeerGivesBackOfTheLiving => 20,
        UnwrittenCopiesAreGood => 42,
        EpochIsKept => 65,
        OutcomesAreMixedUp => 92,
        ClosedConnectionProvesEpochs => 93,
        VoidPinsAreAdopted => 109,
        AnyReignIsObeyed => 130,
        PeerAnswersUnasked => 131,
        PinsSettleDuringLists => 165,
        ReplacedAnchorsAreObeyed => 172,
        ClosedConnectionProvesFences => 180,
        _ => return None,
    })
}

fn plan(seed: u64) -> Plan {
    Plan { seed, trouble: TROUBLE, loses_tails: seed % 2 == 1, copies_logs: seed % 4 > 1 }
}

/// The first schedule that notices, and what it says.
fn caught(mutant: Mutant) -> Option<(u64, String)> {
    known(mutant).into_iter().chain(1..=SCHEDULES).find_map(|seed| {
        let outcome = with(mutant, || catch_unwind(AssertUnwindSafe(|| plan(seed).run())));
        let panic = outcome.err()?;
        let text = panic.downcast_ref::<String>().cloned();
        Some((seed, text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()))
    })
}

#[test]
fn without_a_mutant_the_same_schedules_go_right() {
    let seeds: BTreeSet<u64> = Mutant::ALL.iter().filter_map(|mutant| known(*mutant)).collect();
    seeds.into_iter().for_each(|seed| _ = plan(seed).run());
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
