//! Which epoch a master begins with: by what it found of its log, and by what the host's witness has seen of that.
//!
//! The epoch is kept only if nothing can be missing from the log: rids behind a lost end may be in use. A first and a
//! raised epoch begin with a record of their own, and the log is on the disk before the first rid of it goes out.

use mooncake_core::Epoch;
use mooncake_mutant::mutant;

/// What was found of a log.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    /// LSN of its last frame.
    pub last_lsn: u64,
    /// The epoch that its records end in.
    pub epoch: Epoch,
    /// Boot under which its last file was written, as far as that says so.
    pub last_boot: Option<[u8; 16]>,
}

/// What a witness says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Last LSN that the log has reached in this boot.
    pub lsn: u64,
    /// The epoch that it was in; number 0 where a version has written it that does not say.
    pub epoch: Epoch,
}

impl Seen {
    /// Whether nothing is missing from a log that ends here.
    pub fn vouches_for(&self, last_lsn: u64, epoch: Epoch) -> bool {
        last_lsn >= self.lsn && (self.epoch.number == 0 || self.epoch == epoch)
    }
}

/// A witness of the log on this host.
#[derive(Debug, Clone, Copy)]
pub struct Witnessed {
    /// What it says.
    pub seen: Seen,
    /// Another master holds it, which runs or stands still on another copy of this log. It goes on in the same epoch,
    /// so that nothing vouches for a second one.
    pub held: bool,
}

/// How a master begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// Its epoch.
    pub next_epoch: NextEpoch,
    /// The highest epoch known of the log, which its witness goes on to say until a higher one is in the log.
    pub highest: Epoch,
}

/// The epoch that a master begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextEpoch {
    /// The first one of a log that begins.
    First,
    /// The log's own: its witness vouches for it.
    Kept,
    /// A higher one: nothing vouches that the log is whole.
    Raised(u16),
}

/// Nothing vouches for a log in its last epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoEpochLeft {
    /// Number of the last one.
    pub epoch: u16,
}

impl NextEpoch {
    /// What the core is told when it [begins](mooncake_core::Core::begin).
    pub fn raised(self) -> Option<u16> {
        match self {
            NextEpoch::First | NextEpoch::Kept => None,
            NextEpoch::Raised(number) => Some(number),
        }
    }
}

/// Decides how a master of this boot begins. `found` is `None` where there is no log yet.
pub fn decide(found: Option<Found>, boot_id: &[u8; 16], witness: Option<Witnessed>) -> Result<Start, NoEpochLeft> {
    let last = found.map(|found| found.epoch).unwrap_or_default();
    let seen = witness.map(|witness| witness.seen.epoch).filter(|seen| seen.number > last.number);
    let highest = seen.unwrap_or(last);
    // A witness knows what this boot has written, not what another host has appended since and then lost the end of.
    let own = |found: &Found| found.last_boot == Some(*boot_id);
    let vouched = |found: &Found| {
        witness.is_some_and(|it| {
            (!it.held || mutant!(HeldWitnessVouches)) && it.seen.vouches_for(found.last_lsn, found.epoch)
        })
    };
    let next_epoch = match found {
        Some(found) if (own(&found) && vouched(&found)) || mutant!(EpochIsKept) => NextEpoch::Kept,
        _ if highest.number == u16::MAX => return Err(NoEpochLeft { epoch: highest.number }),
        // The first epoch of a log is begun once, also where nothing is left of it.
        Some(_) => NextEpoch::Raised(highest.number.max(1) + 1),
        None => NextEpoch::First,
    };
    Ok(Start { next_epoch, highest })
}

#[cfg(test)]
mod tests {
    use mooncake_mutant::{Mutant, is_noticed_by};

    use super::*;

    const BOOT: [u8; 16] = [7; 16];
    const SECOND: Epoch = Epoch { number: 2, id: 77 };

    fn found() -> Found {
        Found { last_lsn: 40, epoch: SECOND, last_boot: Some(BOOT) }
    }

    fn seen(lsn: u64, epoch: Epoch) -> Option<Witnessed> {
        Some(Witnessed { seen: Seen { lsn, epoch }, held: false })
    }

    fn next_epoch(found: Found, witness: Option<Witnessed>) -> NextEpoch {
        decide(Some(found), &BOOT, witness).unwrap().next_epoch
    }

    #[test]
    fn an_epoch_is_kept_by_a_witness_that_has_seen_no_more_and_by_nothing_else() {
        assert_eq!(next_epoch(found(), seen(40, SECOND)), NextEpoch::Kept);
        assert_eq!(next_epoch(found(), seen(39, SECOND)), NextEpoch::Kept, "a kill between append and witness");
        assert_eq!(
            next_epoch(found(), seen(40, Epoch::default())),
            NextEpoch::Kept,
            "an older version does not say the epoch"
        );
        let raised = NextEpoch::Raised(3);
        assert_eq!(next_epoch(found(), None), raised, "the host was restarted");
        assert_eq!(next_epoch(found(), seen(41, SECOND)), raised, "the end is lost");
        assert_eq!(
            next_epoch(found(), seen(30, Epoch { id: 78, ..SECOND })),
            raised,
            "another continuation of the log"
        );
        assert_eq!(next_epoch(found(), seen(30, Epoch { number: 1, id: 0 })), raised, "another host has raised it");
        let held = Some(Witnessed { held: true, ..seen(40, SECOND).unwrap() });
        assert_eq!(next_epoch(found(), held), raised, "another master holds it");
        for last_boot in [None, Some([8; 16])] {
            assert_eq!(
                next_epoch(Found { last_boot, ..found() }, seen(40, SECOND)),
                raised,
                "{last_boot:?} wrote last"
            );
        }
    }

    #[test]
    fn an_epoch_is_raised_above_what_the_witness_has_seen_of_a_later_copy() {
        let later = Epoch { number: 9, id: 1 };
        let start = decide(Some(found()), &BOOT, seen(90, later)).unwrap();
        assert_eq!(start, Start { next_epoch: NextEpoch::Raised(10), highest: later });
        let start = decide(Some(found()), &BOOT, seen(90, Epoch { number: 1, id: 0 })).unwrap();
        assert_eq!(start, Start { next_epoch: NextEpoch::Raised(3), highest: SECOND });
    }

    #[test]
    fn the_first_epoch_of_a_log_is_begun_once() {
        let first = decide(None, &BOOT, None).unwrap();
        assert_eq!((first.next_epoch, first.next_epoch.raised()), (NextEpoch::First, None));
        let emptied = Found { last_lsn: 0, epoch: Epoch::default(), last_boot: Some(BOOT) };
        assert_eq!(next_epoch(emptied, None).raised(), Some(2), "nothing is left of it, but it has been begun");
    }

    #[test]
    fn a_log_in_its_last_epoch_goes_on_only_if_it_is_whole() {
        let last = Epoch { number: u16::MAX, id: 5 };
        let found = Found { epoch: last, ..found() };
        assert_eq!(next_epoch(found, seen(40, last)), NextEpoch::Kept);
        assert_eq!(decide(Some(found), &BOOT, None), Err(NoEpochLeft { epoch: u16::MAX }));
    }

    #[test]
    fn its_mutants_are_noticed() {
        for mutant in [Mutant::HeldWitnessVouches, Mutant::EpochIsKept] {
            assert!(is_noticed_by(mutant, an_epoch_is_kept_by_a_witness_that_has_seen_no_more_and_by_nothing_else));
        }
    }
}
