//! Readers that this store's server saw end, until the master has taken note of them. That it has the message is not
//! enough: it may have to wait for the end of the reader's own connection first, and forgets that in a restart. What it
//! has taken note of it may forget with the end of its log: a master in another epoch is told of all again.

use std::collections::VecDeque;
use std::time::Duration;

use mooncake_mutant::mutant;
use mooncake_segment::{Epoch, ProcessGone};
use mooncake_wire::message::{ReaderGone, anchor_up};

/// Most of them. Beyond it the oldest that the master has taken note of gives way, else the oldest. A segment server
/// has at most that many attachments.
const DEATHS_MAX: usize = 4096;

/// A master that was told and has not answered sees the reader's own connection as one that may still be alive; that
/// ends within 15 s. It may have been restarted, or this connection lost, before it did.
const AGAIN: Duration = Duration::from_secs(20);

/// The list.
#[derive(Debug, Default)]
pub struct Deaths {
    list: VecDeque<Death>,
    /// Of the master that was told last.
    epoch: Epoch,
}

#[derive(Debug)]
struct Death {
    gone: ProcessGone,
    told: Option<Duration>,
    /// The master of that epoch has taken note of it.
    taken: bool,
}

impl Deaths {
    /// Another one.
    pub fn note(&mut self, gone: ProcessGone) {
        if self.list.len() == DEATHS_MAX {
            let taken = self.list.iter().position(|death| death.taken);
            self.list.remove(taken.unwrap_or(0));
        }
        self.list.push_back(Death { gone, told: None, taken: false });
    }

    /// What the master, which is in this epoch, is to be told now.
    pub fn to_tell(&mut self, now: Duration, epoch: Epoch) -> Vec<anchor_up::Body> {
        if std::mem::replace(&mut self.epoch, epoch) != epoch {
            self.list.iter_mut().for_each(|death| (death.told, death.taken) = (None, false));
        }
        let is_due = |death: &&mut Death| death.told.is_none_or(|told| now.saturating_sub(told) >= AGAIN);
        let due = self.list.iter_mut().filter(|death| !death.taken).filter(is_due);
        let told = due.map(|death| {
            death.told = Some(now);
            death.taken = mutant!(DeathsAreToldOnce);
            let ProcessGone { session, uuid, mark } = death.gone;
            anchor_up::Body::ReaderGone(ReaderGone { session, uuid: uuid.0.to_vec().into(), mark })
        });
        told.collect()
    }

    /// Another connection: the master may have missed what was sent over the last one.
    pub fn tell_again(&mut self) {
        self.list.iter_mut().for_each(|death| death.told = None);
    }

    /// The master need not be told any more in this epoch what was seen at that segment. The same process may have
    /// ended at others: each is judged for itself.
    pub fn taken(&mut self, session: u64, uuid: &[u8]) {
        let of_it = |death: &&mut Death| death.gone.session == session && death.gone.uuid.0 == *uuid;
        self.list.iter_mut().filter(of_it).for_each(|death| death.taken = true);
    }

    /// Another session: its master knows nothing of the readers of the last one's segments.
    pub fn start_over(&mut self) {
        self.list.clear();
    }
}

#[cfg(test)]
mod tests {
    use mooncake_ids::SegmentUuid;
    use mooncake_mutant::{Mutant, is_noticed_by};

    use super::*;

    fn sessions(bodies: Vec<anchor_up::Body>) -> Vec<u64> {
        let session = |body: &anchor_up::Body| match body {
            anchor_up::Body::ReaderGone(gone) => gone.session,
            other => panic!("{other:?}"),
        };
        bodies.iter().map(session).collect()
    }

    const A1: Epoch = Epoch { number: 1, id: 0 };

    fn gone(session: u64) -> ProcessGone {
        ProcessGone { session, uuid: SegmentUuid([1; 16]), mark: 9 }
    }

    #[test]
    fn a_death_is_told_until_the_master_has_taken_note_of_it() {
        let (mut deaths, start) = (Deaths::default(), Duration::from_secs(1));
        deaths.note(gone(5));
        deaths.note(gone(6));
        assert_eq!(sessions(deaths.to_tell(start, A1)), [5, 6]);
        assert_eq!(sessions(deaths.to_tell(start + AGAIN / 2, A1)), [0; 0], "it has been told");
        deaths.note(ProcessGone { uuid: SegmentUuid([2; 16]), ..gone(5) });
        assert_eq!(sessions(deaths.to_tell(start, A1)), [5]);
        deaths.taken(5, &[2; 16]);
        deaths.tell_again();
        assert_eq!(sessions(deaths.to_tell(start, A1)), [5, 6], "seen elsewhere");
        deaths.taken(5, &[1; 16]);
        assert_eq!(sessions(deaths.to_tell(start + AGAIN, A1)), [6], "no answer for so long");
        deaths.tell_again();
        assert_eq!(sessions(deaths.to_tell(start + AGAIN, A1)), [6], "over another connection");
        deaths.start_over();
        deaths.tell_again();
        assert_eq!(sessions(deaths.to_tell(start, A1)), [0; 0]);
    }

    #[test]
    fn a_master_in_another_epoch_is_told_what_the_last_one_had_taken_note_of() {
        let (mut deaths, now) = (Deaths::default(), Duration::from_secs(1));
        deaths.note(gone(5));
        deaths.note(gone(6));
        assert_eq!(sessions(deaths.to_tell(now, A1)), [5, 6]);
        deaths.taken(5, &[1; 16]);
        deaths.tell_again();
        assert_eq!(sessions(deaths.to_tell(now, A1)), [6]);
        // Its log may have lost the end of that session.
        for epoch in [Epoch { number: 2, id: 7 }, Epoch { number: 2, id: 8 }, Epoch { number: 3, id: 8 }] {
            assert_eq!(sessions(deaths.to_tell(now, epoch)), [5, 6]);
            deaths.taken(5, &[1; 16]);
            assert_eq!(sessions(deaths.to_tell(now + AGAIN, epoch)), [6]);
        }
        // Where there are too many, those are forgotten that are told no more, and else the oldest.
        (0..DEATHS_MAX as u64 - 1).for_each(|session| deaths.note(gone(100 + session)));
        assert_eq!(sessions(deaths.to_tell(now, A1))[..2], [6, 100]);
        [101, 104].iter().for_each(|session| deaths.taken(*session, &[1; 16]));
        (0..3).for_each(|session| deaths.note(gone(10_000 + session)));
        deaths.tell_again();
        assert_eq!(sessions(deaths.to_tell(now, A1))[..4], [100, 102, 103, 105]);
    }

    #[test]
    fn there_are_not_more_than_can_be_attached() {
        let mut deaths = Deaths::default();
        (0..DEATHS_MAX as u64 + 3).for_each(|session| deaths.note(gone(session)));
        let told = sessions(deaths.to_tell(Duration::ZERO, A1));
        assert_eq!((told.len(), told[0]), (DEATHS_MAX, 3));
    }

    #[test]
    fn its_mutants_are_noticed() {
        assert!(is_noticed_by(Mutant::DeathsAreToldOnce, a_death_is_told_until_the_master_has_taken_note_of_it));
    }
}
