//! The schedules notice what they are for: each mutant of the product's decisions is caught by one of the first of
//! them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use mooncake_mutant::{Mutant, with};
use mooncake_sim::Plan;

/// Most schedules of one mutant.
const SCHEDULES: u64 = 200;

/// Longer than that of other schedules, of the first half and of the second: more of them notice.
const TROUBLE: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(60)];

/// What is noticed only by the verdict behind the trouble has to come near its end.
const SHORT_TROUBLE: Duration = Duration::from_secs(20);

/// A schedule that notices, which is tried first; none where none of the first 200 or hardly one does: a test beside
/// the machine, with the mutant alive, shows that it does. `MOONCAKE_MUTANT=VoidPinsAreAdopted` looks for a schedule.
#[expect(clippy::too_many_lines, reason = "a line for each mutant")]
fn known(mutant: Mutant) -> Option<u64> {
    use Mutant::*;
    Some(match mutant {
        ForkedChildrenCall
        | GateIgnoresStamps
        | GoneSegmentsAreKept
        | GoodbyeDoesNotWaitForViews
        | PeerForgetsOwnViews
        | PeerForgetsPins
        | PeerGivesBackOfTheLiving
        | PinnedMemoryIsGivenBack
        | UnansweredCountAsAnswered
        | ViewsAreNotListed => 1,
        EndIsNotHeard
        | EndsGoToAnySession
        | EpochIsTakenWhenAsked
        | FenceAsksNobody
        | FenceWaitsForNoWrite
        | InsidersAreNotAsked
        | WritersNeedNoPermission => 2,
        OpenPutsAreSettled => 5,
        ToldBeforeLogged | UnansweredMountStays => 6,
        ClientsAreNotBelieved | StaleReplicasAreNotReported => 7,
        UnknownProcessesAreGone => 8,
        PeerAnswersWhileItWrites | ResumeSaysWhatWasAsked => 10,
        DetachedIsNotHeard => 11,
        RetriesAreNew => 12,
        UnknownViewsAreForgotten => 14,
        GateIgnoresEpochs => 18,
        SupersededCountsAsStored => 20,
        ClosedConnectionProvesFences => 31,
        ClosedConnectionProvesEpochs => 55,
        AskedAgainCountsAsDone => 58,
        PeerAnswersUnasked => 86,
        ReplacedAnchorsAreObeyed => 103,
        OutcomesAreMixedUp => 160,
        AbandonedMutationsAreNotTold
        | AnotherMasterCountsAsTheSame
        | AnyEpochIsObeyed
        | BothEpochsAreFollowed
        | BothEpochsAreTaken
        | DeafMastersCountSilence
        | DeathsAreToldOnce
        | ChunksAreNotSummed
        | EarlierWritesAreNotSynced
        | EldersAreNotAwaited
        | EldersViewsAreNotAwaited
        | EndOfReaderIsNotTold
        | EndsDoNotWaitForWrites
        | EndsWithoutAMasterAreMissed
        | EpochIsKept
        | FactsAreToldOnce
        | FenceForgetsElders
        | FileNumbersAreUsedAgain
        | GoodbyeIsSaidOnce
        | HeldPutsAreRenewedForEver
        | HeirsSegmentsStayOpen
        | HeldWitnessVouches
        | HolesAreEnded
        | LateWritesCountAsSynced
        | KeptSessionsEnd
        | ListedMemoryIsGivenBack
        | LostWritesAreTrusted
        | LivingClientsAreReportedGone
        | MarksAreNotCompared
        | MovedPutsAreNotRenewed
        | MovesOutliveTheirTier
        | OrdersOutliveTheirAnchor
        | NewcomerIsNotWaitedFor
        | OldClaimsAreTaken
        | OlderListsAreTaken
        | OutdatedListsCount
        | OvertakenReadersMiss
        | PassingFailuresEndGetSessions
        | PeerGoneNamesNoProcess
        | PinsOfAnotherEpochAreForgotten
        | PinsSettleDuringLists
        | PlacementsAreAbortedOnce
        | PongsConfirmUnlogged
        | PositionIsForgotten
        | RecordsAreNotCompared
        | RecordsBeginAnywhere
        | DrainsStopNothing
        | FailedWritesAreNotRetired
        | WritesEndWithTheirCompletion
        | RemovalsGoByRid
        | AbortsDoNotAsk
        | SealedSessionsAreWritten
        | SessionsGoByName
        | SilentMastersAreWaitedFor
        | UnsyncedRecordsCount
        | ResumesKeepOrders
        | LateWordsOfTiersCount
        | AwaySessionsAnnounce
        | FailedFilesAreTrusted
        | StampsAreReadOnce
        | StaleSessionsStay
        | StalledMastersCountSilence
        | StateIsNotLocked
        | StrangersAreBelieved
        | SyncedToIsTooHigh
        | TenureIsNotWritten
        | TombstonesStayStampedOver
        | UnlockedPeersWrite
        | UnknownPinsBeginViews
        | UnwrittenCopiesAreGood
        | ViewsAreNotVouchedFor
        | ViewsHoldMoreThanTheyMay
        | ViewsNeedNoLock
        | VoidPinsAreAdopted
        | WritersUnlockEarly => return None,
    })
}

fn plan(mutant: Mutant, seed: u64) -> Plan {
    let trouble = match mutant {
        Mutant::OutcomesAreMixedUp => SHORT_TROUBLE,
        _ => TROUBLE[usize::from(seed > SCHEDULES / 2)],
    };
    let sessions = matches!(mutant, Mutant::EndsDoNotWaitForWrites | Mutant::HolesAreEnded | Mutant::StaleSessionsStay);
    use Mutant::{ForkedChildrenCall, GoodbyeDoesNotWaitForViews, GoodbyeIsSaidOnce};
    let whims = matches!(mutant, ForkedChildrenCall | GoodbyeDoesNotWaitForViews | GoodbyeIsSaidOnce);
    Plan { seed, trouble, loses_tails: seed % 2 == 1, copies_logs: seed % 4 > 1, whims, sessions }
}

/// The first schedule that notices, and what it says.
fn caught(mutant: Mutant) -> Option<(u64, String)> {
    known(mutant).into_iter().chain(1..=SCHEDULES).find_map(|seed| {
        let outcome = with(mutant, || catch_unwind(AssertUnwindSafe(|| plan(mutant, seed).run())));
        let panic = outcome.err()?;
        let text = panic.downcast_ref::<String>().cloned();
        Some((seed, text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()))
    })
}

#[test]
fn without_a_mutant_the_same_schedules_go_right() {
    let known = Mutant::ALL.iter().filter_map(|mutant| Some(plan(*mutant, known(*mutant)?)));
    let plans: BTreeMap<(u64, Duration, bool), Plan> =
        known.map(|plan| ((plan.seed, plan.trouble, plan.whims), plan)).collect();
    plans.into_values().for_each(|plan| _ = plan.run());
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
            None => {
                println!("{mutant:?}: not noticed, {:.1?}", began.elapsed());
                alive.push(mutant);
            }
        }
    }
    _ = std::panic::take_hook();
    assert!(alive.is_empty(), "not noticed in {SCHEDULES} schedules: {alive:?}");
}
