//! Which reign over a log an owner obeys, and a store's master is in.

/// A master's reign over a log. Its number alone may name two: masters that continue one log from the same place, each
/// without knowing of the other, both begin the epoch after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reign {
    /// Its epoch: the number that rids carry.
    pub epoch: u16,
    /// Tells it from others of that number. 0: not known, because an older version does not say, or because the epoch
    /// is a log's first. Then the number alone counts.
    pub id: u32,
}

impl Reign {
    /// A reign of which only the number is known.
    pub const fn numbered(epoch: u16) -> Reign {
        Reign { epoch, id: 0 }
    }

    /// Whether what a master in this reign knows is known in the other one, which an owner obeys or is to obey. Of two
    /// whose ids are known only the same one is sure to: a higher number may belong to another continuation of the log.
    pub fn knows_what_is_known_in(self, owners: Reign) -> bool {
        if self.id == 0 || owners.id == 0 { self.epoch >= owners.epoch } else { self == owners }
    }

    /// Whether these are two reigns of one number.
    pub fn clashes_with(self, other: Reign) -> bool {
        self.epoch == other.epoch && self.id != other.id && self.id != 0 && other.id != 0
    }

    /// The later of two that do not clash: by number, and of one number the one whose id is known.
    pub fn or_later(self, other: Reign) -> Reign {
        if (other.epoch, other.id != 0) > (self.epoch, self.id != 0) { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn reign(epoch: u16, id: u32) -> Reign {
        Reign { epoch, id }
    }

    #[test]
    fn a_number_stands_for_a_reign_only_where_no_ids_are_known() {
        for (stores, owners, knows) in [
            (reign(2, 7), reign(2, 7), true),
            (reign(2, 7), reign(2, 8), false),
            (reign(3, 7), reign(2, 8), false),
            (reign(1, 7), reign(2, 8), false),
            (reign(3, 0), reign(2, 8), true),
            (reign(1, 0), reign(2, 8), false),
            (reign(3, 7), reign(2, 0), true),
            (reign(2, 7), reign(3, 0), false),
            (reign(2, 0), reign(2, 0), true),
        ] {
            assert_eq!(stores.knows_what_is_known_in(owners), knows, "{stores:?} {owners:?}");
        }
    }

    #[test]
    fn reigns_clash_when_one_number_has_two_ids() {
        assert!(reign(2, 7).clashes_with(reign(2, 8)));
        for other in [reign(2, 7), reign(2, 0), reign(3, 8), reign(1, 8)] {
            assert!(!reign(2, 7).clashes_with(other) && !other.clashes_with(reign(2, 7)), "{other:?}");
        }
        for (one, other, later) in [
            (reign(2, 7), reign(3, 0), reign(3, 0)),
            (reign(3, 0), reign(2, 7), reign(3, 0)),
            (reign(2, 7), reign(2, 0), reign(2, 7)),
            (reign(2, 0), reign(2, 7), reign(2, 7)),
        ] {
            assert_eq!(one.or_later(other), later);
        }
    }
}
