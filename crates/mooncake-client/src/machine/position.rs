//! The position in the log: what a client remembers of it, and which epoch it is of.

use mooncake_mutant::mutant;
use mooncake_segment::Epoch;
use mooncake_wire::message::LogPosition;

/// The epoch that a position is of.
pub fn epoch_of(position: &LogPosition) -> Epoch {
    Epoch { number: position.epoch as u16, id: position.epoch_id }
}

/// Raises what a client remembers of the log to what a reply shows. Another
/// log counts only with an epoch of a higher number: that is how a newer one is known. The same epoch under another log
/// id is the same log: its master has lost the file and goes on.
///
/// Of two epochs of one number neither may go on with this client, whichever of the two its next hello
/// reaches: so it shows more of that number than any log holds. True when that has just been found out: that hello is
/// due.
///
/// Masters of older versions do not say which epoch they are in: what is known of it stays.
#[must_use]
pub fn raise(highest: &mut LogPosition, seen: &LogPosition) -> bool {
    let clashes = seen.log_id == highest.log_id && epoch_of(seen).clashes_with(epoch_of(highest));
    if clashes && !mutant!(BothEpochsAreFollowed) {
        return std::mem::replace(&mut highest.lsn, u64::MAX) != u64::MAX;
    }
    let newer = if seen.is_of_log_of(highest) {
        (seen.epoch, seen.lsn) > (highest.epoch, highest.lsn)
    } else {
        seen.epoch > highest.epoch
    };
    if newer && !mutant!(PositionIsForgotten) {
        let known = if (seen.log_id, seen.epoch) == (highest.log_id, highest.epoch) { highest.epoch_id } else { 0 };
        *highest = LogPosition { epoch_id: if seen.epoch_id == 0 { known } else { seen.epoch_id }, ..*seen };
    }
    false
}

#[cfg(test)]
mod tests {
    use mooncake_mutant::{Mutant, is_noticed_by};

    use super::*;

    fn at(log_id: u64, epoch: u32, lsn: u64) -> LogPosition {
        LogPosition { log_id, epoch, lsn, epoch_id: 0 }
    }

    #[test]
    fn the_highest_position_is_remembered() {
        let mut highest = LogPosition::default();
        for (seen, then) in [
            (at(7, 1, 5), at(7, 1, 5)),
            (at(7, 1, 4), at(7, 1, 5)),
            (at(7, 2, 1), at(7, 2, 1)),
            // An older log, or a new one that does not know this one yet.
            (at(8, 1, 100), at(7, 2, 1)),
            (at(8, 3, 0), at(8, 3, 0)),
            (at(7, 2, 9), at(8, 3, 0)),
        ] {
            assert!(!raise(&mut highest, &seen));
            assert_eq!(highest, then, "{seen:?}");
        }
    }

    #[test]
    fn the_epoch_is_remembered_with_the_position() {
        let of = |epoch_id, position| LogPosition { epoch_id, ..position };
        let mut highest = of(0, at(7, 1, 5));
        for (seen, then) in [
            (of(11, at(7, 2, 0)), of(11, at(7, 2, 0))),
            (of(11, at(7, 2, 3)), of(11, at(7, 2, 3))),
            (of(11, at(7, 2, 1)), of(11, at(7, 2, 3))),
            (of(12, at(8, 2, 9)), of(11, at(7, 2, 3))),
            // A master of an older version in between does not say.
            (of(0, at(7, 2, 2)), of(11, at(7, 2, 3))),
            (of(0, at(7, 2, 4)), of(11, at(7, 2, 4))),
            (of(11, at(7, 2, 5)), of(11, at(7, 2, 5))),
            (of(13, at(8, 3, 0)), of(13, at(8, 3, 0))),
            // Of the next epoch, and of another log, nothing is known yet.
            (of(0, at(8, 4, 0)), of(0, at(8, 4, 0))),
            (of(14, at(8, 4, 1)), of(14, at(8, 4, 1))),
            (of(0, at(9, 5, 0)), of(0, at(9, 5, 0))),
        ] {
            assert!(!raise(&mut highest, &seen));
            assert_eq!(highest, then, "{seen:?}");
        }
    }

    #[test]
    fn an_epoch_whose_log_was_lost_is_followed_under_the_next_log_id() {
        let of = |epoch_id, position| LogPosition { epoch_id, ..position };
        let mut highest = of(11, at(7, 2, 5));
        for (seen, then) in [
            (of(11, at(8, 2, 6)), of(11, at(8, 2, 6))),
            // Said before the loss.
            (of(11, at(7, 2, 4)), of(11, at(8, 2, 6))),
            (of(12, at(9, 2, 99)), of(11, at(8, 2, 6))),
            (of(0, at(9, 2, 99)), of(11, at(8, 2, 6))),
        ] {
            assert!(!raise(&mut highest, &seen));
            assert_eq!(highest, then, "{seen:?}");
        }
    }

    #[test]
    fn who_has_seen_two_epochs_of_one_number_shows_more_than_either_holds() {
        for lsn in [1, 9] {
            let mut highest = LogPosition { epoch_id: 11, ..at(7, 2, 5) };
            let other = |lsn| LogPosition { epoch_id: 12, ..at(7, 2, lsn) };
            assert!(raise(&mut highest, &other(lsn)), "a hello is due");
            assert_eq!((highest.epoch, highest.lsn), (2, u64::MAX));
            assert!(!raise(&mut highest, &other(100)), "once");
            assert_eq!((highest.epoch, highest.lsn), (2, u64::MAX), "until that epoch is over");
            let next = LogPosition { epoch_id: 13, ..at(7, 3, 6) };
            assert!(!raise(&mut highest, &next));
            assert_eq!(highest, next);
        }
    }

    #[test]
    fn its_mutants_are_noticed() {
        assert!(is_noticed_by(
            Mutant::BothEpochsAreFollowed,
            who_has_seen_two_epochs_of_one_number_shows_more_than_either_holds
        ));
        assert!(is_noticed_by(Mutant::PositionIsForgotten, the_highest_position_is_remembered));
    }
}
