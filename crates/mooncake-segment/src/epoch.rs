//! Epochs of a log: which one an owner obeys, and which one a store's master is in.

/// A generation of a master over a log. A number alone may name two: masters that continue one log from the same place,
/// each without knowing of the other, both begin the epoch after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Epoch {
    /// Its number, which rids carry.
    pub number: u16,
    /// Tells it from others of that number. 0: not known, because an older version does not say, or because the epoch
    /// is a log's first. Then the number alone counts.
    pub id: u32,
}

impl Epoch {
    /// An epoch of which only the number is known.
    pub const fn numbered(number: u16) -> Epoch {
        Epoch { number, id: 0 }
    }

    /// Whether what a master in this epoch knows is known in the other one, which an owner obeys or is to obey. Of two
    /// whose ids are known only the same one is sure to: a higher number may belong to another continuation of the log.
    pub fn knows_what_is_known_in(self, owners: Epoch) -> bool {
        if self.id == 0 || owners.id == 0 { self.number >= owners.number } else { self == owners }
    }

    /// Whether these are two epochs of one number.
    pub fn clashes_with(self, other: Epoch) -> bool {
        self.number == other.number && self.id != other.id && self.id != 0 && other.id != 0
    }

    /// The later of two that do not clash: by number, and of one number the one whose id is known.
    pub fn or_later(self, other: Epoch) -> Epoch {
        if (other.number, other.id != 0) > (self.number, self.id != 0) { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn epoch(number: u16, id: u32) -> Epoch {
        Epoch { number, id }
    }

    #[test]
    fn a_number_stands_for_an_epoch_only_where_no_ids_are_known() {
        for (stores, owners, knows) in [
            (epoch(2, 7), epoch(2, 7), true),
            (epoch(2, 7), epoch(2, 8), false),
            (epoch(3, 7), epoch(2, 8), false),
            (epoch(1, 7), epoch(2, 8), false),
            (epoch(3, 0), epoch(2, 8), true),
            (epoch(1, 0), epoch(2, 8), false),
            (epoch(3, 7), epoch(2, 0), true),
            (epoch(2, 7), epoch(3, 0), false),
            (epoch(2, 0), epoch(2, 0), true),
        ] {
            assert_eq!(stores.knows_what_is_known_in(owners), knows, "{stores:?} {owners:?}");
        }
    }

    #[test]
    fn epochs_clash_when_one_number_has_two_ids() {
        assert!(epoch(2, 7).clashes_with(epoch(2, 8)));
        for other in [epoch(2, 7), epoch(2, 0), epoch(3, 8), epoch(1, 8)] {
            assert!(!epoch(2, 7).clashes_with(other) && !other.clashes_with(epoch(2, 7)), "{other:?}");
        }
        for (one, other, later) in [
            (epoch(2, 7), epoch(3, 0), epoch(3, 0)),
            (epoch(3, 0), epoch(2, 7), epoch(3, 0)),
            (epoch(2, 7), epoch(2, 0), epoch(2, 7)),
            (epoch(2, 0), epoch(2, 7), epoch(2, 7)),
        ] {
            assert_eq!(one.or_later(other), later);
        }
    }
}
