//! Clients that a log names, when a master begins. A client whose process is gone has ended while no master was there.

use std::collections::BTreeSet;

use mooncake_core::Record;
use mooncake_ids::SessionId;
use mooncake_mutant::mutant;
use mooncake_wire::message::ProcessIdentity;

use super::anchor_frames;
use super::core_driver::CoreDriver;

/// What is known about a process that a log names.
#[derive(Debug)]
pub enum Known<P> {
    /// It runs; this tells when it ends.
    Runs(P),
    /// It is gone.
    Gone,
    /// It cannot be judged from here: another host or pid namespace.
    Unknown,
}

/// What a master that begins needs to judge its clients' processes.
pub trait ProcessDriver: CoreDriver {
    /// A process that can be watched.
    type Process;

    /// Looks for a process by its identity.
    fn find(&self, identity: &ProcessIdentity) -> Known<Self::Process>;

    /// Watches a process: when it ends, its session is over.
    fn watch(&self, session: SessionId, process: Self::Process);

    /// Tells people that a client has ended while no master was there.
    fn tell_gone(&self, session: SessionId);
}

/// The sessions that a log leaves open.
#[derive(Debug, Default)]
pub struct LeftOpen {
    sessions: BTreeSet<SessionId>,
}

impl LeftOpen {
    /// Takes note of the log's next record.
    pub fn note<K>(&mut self, record: &Record<K>) {
        match record {
            Record::SessionOpened { session, .. } => _ = self.sessions.insert(*session),
            Record::SessionOver(session) => _ = self.sessions.remove(session),
            _ => {}
        }
    }
}

/// Judges the sessions that a log leaves open, once the core has begun. A session whose process is gone is over at
/// once. One whose process runs is watched.
pub fn judge<D: ProcessDriver>(driver: &D, open: LeftOpen) {
    for session in open.sessions {
        let Some(identity) = driver.read(|core, _| anchor_frames::process_of(core, session)) else { continue };
        let known = match driver.find(&identity) {
            Known::Unknown if mutant!(UnknownProcessesAreGone) => Known::Gone,
            known => known,
        };
        match known {
            Known::Runs(process) => driver.watch(session, process),
            Known::Gone if mutant!(EndsWithoutAMasterAreMissed) => {}
            Known::Gone => {
                driver.tell_gone(session);
                // A log that closed by now says so to the next caller that needs it.
                let _ = driver.apply(|core, now, effects| core.process_gone(now, session, effects));
            }
            Known::Unknown => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::convert::Infallible;

    use mooncake_core::{Core, Effects, Time};
    use mooncake_mutant::{Mutant, is_noticed_by};

    use super::super::testbed::{HOST, Testbed};
    use super::*;

    const ELSEWHERE: [u8; 16] = [8; 16];

    struct Script {
        testbed: RefCell<Testbed>,
        /// Boots whose processes have ended.
        ended: Vec<[u8; 16]>,
        watched: RefCell<Vec<SessionId>>,
        gone: RefCell<Vec<SessionId>>,
    }

    impl CoreDriver for Script {
        type Closed = Infallible;

        fn read<R>(&self, ask: impl FnOnce(&mut Core, Time) -> R) -> R {
            self.testbed.read(ask)
        }

        fn apply<R>(&self, operation: impl FnOnce(&mut Core, Time, &mut Effects) -> R) -> Result<R, Infallible> {
            self.testbed.apply(operation)
        }
    }

    impl ProcessDriver for Script {
        type Process = ();

        fn find(&self, identity: &ProcessIdentity) -> Known<()> {
            match &identity.boot_id[..] {
                boot if self.ended.iter().any(|ended| ended == boot) => Known::Gone,
                boot if boot == HOST => Known::Runs(()),
                _ => Known::Unknown,
            }
        }

        fn watch(&self, session: SessionId, (): ()) {
            self.watched.borrow_mut().push(session);
        }

        fn tell_gone(&self, session: SessionId) {
            self.gone.borrow_mut().push(session);
        }
    }

    #[test]
    fn clients_whose_processes_ended_while_no_master_was_there_are_over_and_those_that_run_are_watched() {
        let mut testbed = Testbed::new();
        let (runs, gone, unknown) = (testbed.open(), testbed.open_on(&[9; 16]), testbed.open_on(&ELSEWHERE));
        let closed = testbed.open();
        testbed.core.close_session(testbed.now, closed.session, &mut testbed.effects);
        let mut open = LeftOpen::default();
        testbed.effects.records.iter().for_each(|record| open.note(record));
        assert_eq!(open.sessions.len(), 3, "one has ended");
        let script = Script {
            testbed: RefCell::new(testbed),
            ended: vec![[9; 16]],
            watched: RefCell::default(),
            gone: RefCell::default(),
        };
        judge(&script, open);
        assert_eq!((script.watched.take(), script.gone.take()), (vec![runs.session], vec![gone.session]));
        let testbed = script.testbed.borrow();
        assert!(testbed.knows(runs) && !testbed.knows(gone) && testbed.knows(unknown));
    }

    #[test]
    fn its_mutants_are_noticed() {
        assert!(is_noticed_by(
            Mutant::EndsWithoutAMasterAreMissed,
            clients_whose_processes_ended_while_no_master_was_there_are_over_and_those_that_run_are_watched
        ));
    }
}
