//! Values found by a hash, in many small tables that grow and shrink one at a time: no insert has to move all of them.

use hashbrown::HashTable;

/// Tables of a large index.
pub(crate) const LARGE: usize = 8_192;

/// Tables of one that has a tenth of that.
pub(crate) const SMALL: usize = 512;

/// A table of so few values moves them in no time.
const FEW: usize = 14;

pub(crate) struct Index<T> {
    tables: Box<[HashTable<T>]>,
    len: usize,
}

impl<T> Index<T> {
    /// With so many tables, a power of two.
    pub fn new(tables: usize) -> Index<T> {
        debug_assert!(tables.is_power_of_two());
        Index { tables: (0..tables).map(|_| HashTable::new()).collect(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn number(&self, hash: u64) -> usize {
        // The tables use the lowest and the top bits themselves.
        (hash >> 40) as usize & (self.tables.len() - 1)
    }

    #[inline]
    pub fn find(&self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<&T> {
        self.tables[self.number(hash)].find(hash, is_it)
    }

    /// Adds a value that is not there. `hash_of` gives the hash of any of them.
    pub fn insert(&mut self, hash: u64, value: T, hash_of: impl Fn(&T) -> u64) {
        let number = self.number(hash);
        let table = &mut self.tables[number];
        let (len, room) = (table.len(), table.capacity());
        if room > FEW && len >= full(room, number) {
            table.reserve(room + 1 - len, &hash_of);
        }
        table.insert_unique(hash, value, hash_of);
        self.len += 1;
    }

    /// Makes the tables as large as they will be with so many values, before there are any: they need not grow to it.
    pub fn expect(&mut self, values: usize) {
        let each = values / self.tables.len();
        for (number, table) in self.tables.iter_mut().enumerate().filter(|(_, table)| table.is_empty()) {
            let mut room = FEW;
            while each >= full(room, number) {
                room *= 2;
            }
            if room > FEW {
                *table = HashTable::with_capacity(room);
            }
        }
    }

    /// Takes a value out. Memory is given back with what it was for.
    pub fn remove(&mut self, hash: u64, is_it: impl FnMut(&T) -> bool, hash_of: impl Fn(&T) -> u64) -> Option<T> {
        let number = self.number(hash);
        let table = &mut self.tables[number];
        let (value, _) = table.find_entry(hash, is_it).ok()?.remove();
        self.len -= 1;
        let (len, room) = (table.len(), table.capacity());
        if room > FEW && len < room / 8 + room / 8 * share(number) / 256 {
            table.shrink_to(len * 2, hash_of);
        }
        Some(value)
    }

    #[cfg(test)]
    pub fn clear(&mut self) {
        self.tables.iter_mut().for_each(HashTable::clear);
    }
}

/// Values with which a table of that room grows. All are filled alike: each has its own point at which it grows, so that
/// they do not all do it at the same time.
fn full(room: usize, number: usize) -> usize {
    room / 2 + room / 2 * share(number) / 256
}

/// A number below 256 for each table, spread evenly.
fn share(number: usize) -> usize {
    number.wrapping_mul(0x9e37_79b9) >> 16 & 255
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(value: u64) -> u64 {
        (value + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn no_change_moves_more_than_a_table_and_few_changes_move_one() {
        let mut index: Index<u64> = Index::new(SMALL);
        let moved = std::cell::Cell::new(0);
        let hash_of = |value: &u64| {
            moved.set(moved.get() + 1);
            hash(*value)
        };
        let (all, many) = (200_000, 512);
        let mut most = (0, 0);
        let mut note = |nth: u64, in_row: &mut u64| {
            *in_row += moved.take();
            most.0 = most.0.max(*in_row);
            if nth % many == many - 1 {
                most.1 = most.1.max(std::mem::take(in_row));
            }
        };
        let mut in_row = 0;
        for value in 0..all {
            index.insert(hash(value), value, hash_of);
            note(value, &mut in_row);
        }
        assert_eq!(index.len(), all as usize);
        let room_when_full = index.tables.iter().map(HashTable::capacity).sum::<usize>();
        assert!((0..all).all(|value| index.find(hash(value), |other| *other == value).is_some()));
        for value in 0..all {
            assert_eq!(index.remove(hash(value), |other| *other == value, hash_of), Some(value));
            note(value, &mut in_row);
        }
        assert_eq!((index.len(), index.tables.iter().map(HashTable::capacity).max() <= Some(FEW)), (0, true));
        // A table has 400 of them in the end.
        let mut expected: Index<u64> = Index::new(SMALL);
        expected.expect(all as usize);
        (0..all).for_each(|value| expected.insert(hash(value), value, hash_of));
        let (few, room) =
            (moved.take(), |index: &Index<u64>| index.tables.iter().map(HashTable::capacity).sum::<usize>());
        assert!(few < all / 8, "{few} of {all} values were moved, of which it was known how many come");
        assert!(room(&expected) <= room_when_full * 9 / 8, "{} for what takes {room_when_full}", room(&expected));
        assert!(most.1 <= 20 * all / SMALL as u64, "{most:?} values were moved by {many} changes");
    }
}
