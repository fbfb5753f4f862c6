//! Mutants: faults that a test switches on in the product's decisions, to see that it notices. Each breaks one promise.
//!
//! Where the code asks [`mutant!`] the answer is `false` when it is compiled, but in test builds: there a thread can
//! have one mutant alive, and its decisions are wrong in that one way.
#![forbid(unsafe_code)]

macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// What is wrong.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mutant {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &[Mutant] = &[$(Mutant::$name,)+];
        }
    };
}

mutants! {
    // ------------------------------------------------------------- owners
    /// An owner says that it has taken an epoch as soon as it is asked.
    EpochIsTakenWhenAsked,
    /// An owner that comes back says of its segments what it was asked, not what they have taken.
    ResumeSaysWhatWasAsked,
    /// An owner asks no process that maps its memory when it fences.
    FenceAsksNobody,
    /// An owner waits for no write through its own process when it fences.
    FenceWaitsForNoWrite,
    /// A closed connection counts as a process's answer about fences.
    ClosedConnectionProvesFences,
    /// A closed connection counts as a process's answer about epochs.
    ClosedConnectionProvesEpochs,
    /// That a process has detached is not heard.
    DetachedIsNotHeard,
    /// The end of a process that maps a segment is not heard.
    EndIsNotHeard,
    /// The end of a reader is not told to the master.
    EndOfReaderIsNotTold,
    /// A store of the owner's own process is not asked for an epoch.
    InsidersAreNotAsked,
    /// An owner that gives memory back forgets what is pinned of it.
    PinnedMemoryIsGivenBack,
    /// A segment whose mount was not answered is held as if it had been.
    UnansweredMountStays,
    /// A segment that is Gone is held on.
    GoneSegmentsAreKept,
    /// Memory that a list has named since is given back, but for the pins that were known before.
    ListedMemoryIsGivenBack,
    /// An owner obeys two epochs of one number.
    BothEpochsAreTaken,
    /// A fence that is asked for again counts as done.
    AskedAgainCountsAsDone,
    /// A writer that is late may leave its stamps over a tombstone.
    TombstonesStayStampedOver,
    /// An heir says that it has taken an epoch while processes of before still write its memory.
    EldersAreNotAwaited,
    /// An heir takes an epoch that processes of before, whose views its master may not know, have not taken.
    EldersViewsAreNotAwaited,
    /// An heir says that a fence is done while processes of before still write its memory.
    FenceForgetsElders,
    /// Memory that outlives its owners is written by a process that holds no lock for that.
    UnlockedPeersWrite,
    // ------------------------------------------------------- kept memory
    /// A session that is kept ends with its process.
    KeptSessionsEnd,
    /// What a process has seen of the end of a segment's owner counts for the one that has it now.
    PeerGoneNamesNoProcess,
    /// Objects are placed in a segment before its heir has taken the epoch.
    HeirsSegmentsStayOpen,
    /// A claim to kept memory counts that was sent before another one.
    OldClaimsAreTaken,
    /// A process takes memory over whose state another one has locked.
    StateIsNotLocked,
    /// An heir lets processes in before the memory has its tenure.
    TenureIsNotWritten,
    // -------------------------------------------------------------- gates
    /// A write may begin where a newer placement or a tombstone is.
    GateIgnoresStamps,
    /// A write of an epoch that is over may begin.
    GateIgnoresEpochs,
    // -------------------------------------------------------------- peers
    /// A peer answers about a fence while it writes.
    PeerAnswersWhileItWrites,
    /// A peer answers about an epoch before its own master knows all of its views.
    PeerAnswersUnasked,
    /// A peer gives back the memory of an owner that lives.
    PeerGivesBackOfTheLiving,
    /// A peer that gives memory back forgets what others have pinned of it.
    PeerForgetsPins,
    /// A peer that gives memory back forgets its own views.
    PeerForgetsOwnViews,
    /// A newcomer looks at memory whose owner does not wait for it.
    NewcomerIsNotWaitedFor,
    /// A peer that gives memory back does so too while another epoch's pins are not known.
    PinsOfAnotherEpochAreForgotten,
    /// A peer writes without its owner's permission.
    WritersNeedNoPermission,
    /// A peer gives its writers' lock up while it writes.
    WritersUnlockEarly,
    /// A peer makes views in memory that outlives its owner before that knows of its lock.
    ViewsNeedNoLock,
    // ------------------------------------------------------------- stores
    /// A master that has answered a list of segments knows what is held, whatever has come and gone meanwhile.
    OutdatedListsCount,
    /// Views that the master says it does not know are taken for known.
    UnknownViewsAreForgotten,
    /// Pins that a list has made void are adopted.
    VoidPinsAreAdopted,
    /// A store that comes back lists none of its views.
    ViewsAreNotListed,
    /// A view begins whether its memory's owner waits for this store or not.
    ViewsAreNotVouchedFor,
    /// A view begins over a pin that the master is known not to know.
    UnknownPinsBeginViews,
    /// Views hold any number of bytes.
    ViewsHoldMoreThanTheyMay,
    /// A store that is closed says goodbye while it has views.
    GoodbyeDoesNotWaitForViews,
    /// A store that has said goodbye is over, whether its master has heard it or not.
    GoodbyeIsSaidOnce,
    /// Another process of the master counts as the one that was there before.
    AnotherMasterCountsAsTheSame,
    /// A store does not remember what it has seen of the log.
    PositionIsForgotten,
    /// A store goes on in two epochs of one number.
    BothEpochsAreFollowed,
    /// What the master has to hear is sent once, whether it came or not.
    FactsAreToldOnce,
    /// The end of a reader is told once, whether the master has taken note of it or not.
    DeathsAreToldOnce,
    /// The master hears that the reply to a pin is here while a list without it is on its way.
    PinsSettleDuringLists,
    /// A store answers owners' questions about any epoch.
    AnyEpochIsObeyed,
    /// A copy that was not written is ended as good.
    UnwrittenCopiesAreGood,
    /// A put whose bytes may still land is aborted as if none could.
    OpenPutsAreSettled,
    /// What becomes of the keys of a put goes to others of the same call.
    OutcomesAreMixedUp,
    /// A replica whose stamps are wrong is not reported.
    StaleReplicasAreNotReported,
    /// A read that was overtaken is a miss without another look.
    OvertakenReadersMiss,
    /// What a put session holds is renewed for ever.
    HeldPutsAreRenewedForEver,
    /// The end of a put session does not wait for writes that are under way.
    EndsDoNotWaitForWrites,
    /// A put session ends although a byte was never written.
    HolesAreEnded,
    /// A put session whose end was sent is aborted without a look at whether that end was carried out.
    AbortsDoNotAsk,
    /// A put session is written after its end was sent.
    SealedSessionsAreWritten,
    /// What ends a put session ends whichever one its key has by then.
    SessionsGoByName,
    /// A get session loses a copy whose owner only stands still.
    PassingFailuresEndGetSessions,
    /// A get session stays although none of what it looked up can be read.
    StaleSessionsStay,
    /// A put that came too late counts as stored.
    SupersededCountsAsStored,
    /// Puts whose bytes move are not renewed.
    MovedPutsAreNotRenewed,
    /// What a put left behind is aborted with one try.
    PlacementsAreAbortedOnce,
    /// A repeated mutation goes under a new number.
    RetriesAreNew,
    /// The master hears of mutations as answered that are not.
    UnansweredCountAsAnswered,
    /// The master does not hear of mutations that nobody waits for any more.
    AbandonedMutationsAreNotTold,
    /// Calls wait for a master that says nothing.
    SilentMastersAreWaitedFor,
    /// A forked child makes calls.
    ForkedChildrenCall,
    /// The end of a put goes to whatever session there is.
    EndsGoToAnySession,
    // ------------------------------------------------------------ masters
    /// What comes on a replaced anchor is obeyed.
    ReplacedAnchorsAreObeyed,
    /// A master goes on in its epoch whatever its log may have lost.
    EpochIsKept,
    /// A master does not believe a client that has seen more than its log holds.
    ClientsAreNotBelieved,
    /// A master believes what those have seen whom it does not know.
    StrangersAreBelieved,
    /// A witness that another master holds vouches for a log.
    HeldWitnessVouches,
    /// What an operation leaves behind is told before it is in the log.
    ToldBeforeLogged,
    /// A list of views that is older than the last one counts.
    OlderListsAreTaken,
    /// A process that a master cannot judge counts as gone.
    UnknownProcessesAreGone,
    /// The end of a process without a master is missed.
    EndsWithoutAMasterAreMissed,
    /// Owners need not have seen the very process end that a session is of.
    MarksAreNotCompared,
    /// A client that is there counts as gone when another one says so.
    LivingClientsAreReportedGone,
    /// A master that stood still counts that as its clients' silence.
    StalledMastersCountSilence,
    /// A master whose anchors nobody has listened to counts that as its clients' silence.
    DeafMastersCountSilence,
    /// A pong confirms what is not in the log yet.
    PongsConfirmUnlogged,
    // -------------------------------------------------------------- tiers
    /// A record counts as that of its place, whichever one lies there.
    RecordsAreNotCompared,
    /// The bytes of a record count as those that were written.
    ChunksAreNotSummed,
    /// A tier says that everything was synced, whatever is being written.
    SyncedToIsTooHigh,
    /// A write that ended behind the begin of a sync counts as synced by it.
    LateWritesCountAsSynced,
    /// What an earlier owner of a tier did not sync stays so.
    EarlierWritesAreNotSynced,
    /// The number of a file is used again.
    FileNumbersAreUsedAgain,
    /// An owner looks at the stamps of what it writes before, and not behind it.
    StampsAreReadOnce,
    /// What an earlier owner had written counts, though the host has lost power since.
    LostWritesAreTrusted,
    /// What was written through the page cache counts before it is synced.
    UnsyncedRecordsCount,
    /// What a disk failed to write is not read back before somebody wants it.
    FailedFilesAreTrusted,
    /// What is being moved out of a tier that is forgotten, or left, meanwhile counts.
    MovesOutliveTheirTier,
    /// What was ordered of a tier's owner stays so when its session is away.
    OrdersOutliveTheirAnchor,
    /// The same when it resumes before the end of its anchor was seen.
    ResumesKeepOrders,
    /// What comes late of what a session said of a tier counts.
    LateWordsOfTiersCount,
    /// A session that is away says that it reads a file system.
    AwaySessionsAnnounce,
    /// Bulk removals pass over objects whose copies are younger.
    RemovalsGoByRid,
    /// A record begins behind the first number of its file.
    RecordsBeginAnywhere,
    // --------------------------------------------------------------- RDMA
    /// A write has ended when it has completed: nothing is read behind it.
    WritesEndWithTheirCompletion,
    /// A call that fails returns without stopping what it has posted.
    DrainsStopNothing,
    /// What a failed write left on its way is not ended at the peer.
    FailedWritesAreNotRetired,
}

#[cfg(feature = "switches")]
mod switches {
    use std::cell::Cell;
    use std::panic::{UnwindSafe, catch_unwind};

    use super::Mutant;

    thread_local! {
        static ALIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Whether it is alive in this thread.
    #[doc(hidden)]
    #[cfg(debug_assertions)]
    pub fn is_alive(mutant: Mutant) -> bool {
        ALIVE.get() == Some(mutant)
    }

    /// Has it alive in this thread while something runs.
    ///
    /// # Panics
    ///
    /// In builds without debug assertions, where none lives.
    pub fn with<R>(mutant: Mutant, run: impl FnOnce() -> R) -> R {
        struct Killed;
        impl Drop for Killed {
            fn drop(&mut self) {
                ALIVE.set(None);
            }
        }
        if cfg!(not(debug_assertions)) {
            panic!("{mutant:?} lives only in builds with debug assertions");
        }
        ALIVE.set(Some(mutant));
        let _killed = Killed;
        run()
    }

    /// Whether a test that goes right without it fails where it is alive.
    pub fn is_noticed_by(mutant: Mutant, test: impl FnOnce() + UnwindSafe) -> bool {
        with(mutant, || catch_unwind(test)).is_err()
    }
}

#[cfg(all(feature = "switches", debug_assertions))]
pub use switches::is_alive;
#[cfg(feature = "switches")]
pub use switches::{is_noticed_by, with};

/// None is: also where an example or a benchmark of a release build is built beside tests.
#[doc(hidden)]
#[cfg(not(all(feature = "switches", debug_assertions)))]
#[inline(always)]
pub const fn is_alive(_: Mutant) -> bool {
    false
}

/// Whether a mutant is alive: `false` but in a test that has it so.
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        $crate::is_alive($crate::Mutant::$name)
    };
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(all(feature = "switches", debug_assertions))]
    fn a_mutant_lives_in_one_thread_for_one_call() {
        use super::{Mutant, with};
        assert!(!mutant!(EpochIsKept));
        with(Mutant::EpochIsKept, || {
            assert!(mutant!(EpochIsKept) && !mutant!(RetriesAreNew));
            assert!(!std::thread::spawn(|| mutant!(EpochIsKept)).join().unwrap());
        });
        assert!(!mutant!(EpochIsKept));
        assert!(Mutant::ALL.contains(&Mutant::RetriesAreNew));
    }
}
