//! Slots found by a hash, in many small tables that grow and shrink one at a time: no insert has to move all of them.

use hashbrown::HashTable;

/// Tables of a large index: of ten million slots one has some thousands, which it moves in tens of microseconds.
pub(crate) const LARGE: usize = 2_048;

/// Tables of one that has a tenth of that.
pub(crate) const SMALL: usize = 512;

/// A table of so few slots moves them in no time.
const SMALL_ROOM: usize = 14;

/// Room of a table that stays when it is empty: slots that come and go one at a time would else take and give back
/// memory each time.
const ROOM_MIN: usize = 7;

/// A slot that is found. Half of its hash is kept with it: a table that grows does not have to look at what all its
/// slots hold, each of which it would wait for.
#[derive(Debug, Clone, Copy)]
struct Found {
    slot: u32,
    /// The bits of the hash that a table uses: its lowest 24 and its top 8.
    bits: u32,
}

/// How many of them are the lowest.
const LOW: u32 = 24;

impl Found {
    fn new(hash: u64, slot: u32) -> Found {
        Found { slot, bits: bits_of(hash) }
    }

    /// As good as the hash that it was made of, for a table of up to 2 to the power of [`LOW`] places.
    fn hash(&self) -> u64 {
        let (low, top) = (self.bits & ((1 << LOW) - 1), self.bits >> LOW);
        u64::from(top) << (LOW + u32::BITS) | u64::from(low)
    }
}

fn bits_of(hash: u64) -> u32 {
    (hash >> (u64::BITS - u32::BITS)) as u32 & !((1 << LOW) - 1) | hash as u32 & ((1 << LOW) - 1)
}

pub(crate) struct Index {
    tables: Box<[HashTable<Found>]>,
    len: usize,
}

impl Index {
    /// With so many tables, a power of two.
    pub fn new(tables: usize) -> Index {
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
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let bits = bits_of(hash);
        let found = self.tables[self.number(hash)].find(hash, |found| found.bits == bits && is_it(found.slot))?;
        Some(found.slot)
    }

    /// Nearly always the slot of a hash, if there is any: found without a look at what it holds.
    #[inline]
    pub fn likely(&self, hash: u64) -> Option<u32> {
        self.find(hash, |_| true)
    }

    /// Adds a slot that is not there.
    pub fn insert(&mut self, hash: u64, slot: u32) {
        let number = self.number(hash);
        let table = &mut self.tables[number];
        let (len, room) = (table.len(), table.capacity());
        if room > SMALL_ROOM && len >= full(room, number) {
            table.reserve(room + 1 - len, Found::hash);
        }
        table.insert_unique(hash, Found::new(hash, slot), Found::hash);
        self.len += 1;
    }

    /// Makes the tables as large as they will be with so many slots, before there are any: they need not grow to it.
    pub fn expect(&mut self, slots: usize) {
        let each = slots / self.tables.len();
        for (number, table) in self.tables.iter_mut().enumerate().filter(|(_, table)| table.is_empty()) {
            let mut room = SMALL_ROOM;
            while each >= full(room, number) {
                room *= 2;
            }
            if room > SMALL_ROOM {
                *table = HashTable::with_capacity(room);
            }
        }
    }

    /// Takes a slot out, if it is there. Memory is given back with what it was for.
    pub fn remove(&mut self, hash: u64, slot: u32) -> bool {
        self.take(hash, |other| other == slot).is_some()
    }

    /// Takes the slot out that is found.
    #[inline]
    pub fn take(&mut self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let (number, bits) = (self.number(hash), bits_of(hash));
        let table = &mut self.tables[number];
        let found = table.find_entry(hash, |found| found.bits == bits && is_it(found.slot)).ok()?;
        let (Found { slot, .. }, _) = found.remove();
        self.len -= 1;
        let (len, room) = (table.len(), table.capacity());
        if len == 0 && room > ROOM_MIN {
            *table = HashTable::new();
        } else if room > SMALL_ROOM && len < room / 8 + room / 8 * share(number) / 256 {
            table.shrink_to(len * 2, Found::hash);
        }
        Some(slot)
    }

    #[cfg(test)]
    pub fn clear(&mut self) {
        self.tables.iter_mut().for_each(HashTable::clear);
    }
}

/// Slots with which a table of that room grows. All are filled alike: each has its own point at which it grows, so that
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

    fn hash(slot: u32) -> u64 {
        (u64::from(slot) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn room(index: &Index) -> usize {
        index.tables.iter().map(HashTable::capacity).sum()
    }

    #[test]
    fn no_change_moves_more_than_a_table_and_few_changes_move_one() {
        let mut index = Index::new(SMALL);
        let (all, many) = (200_000, 512);
        // What a change moves is the table whose room it changes.
        let (mut most, mut in_row) = ((0, 0), 0);
        let mut note = |index: &Index, nth: u32, number: usize, before: usize| {
            let table = &index.tables[number];
            let moved = if table.capacity() == before { 0 } else { table.len() };
            in_row += moved;
            most.0 = most.0.max(moved);
            if nth % many == many - 1 {
                most.1 = most.1.max(std::mem::take(&mut in_row));
            }
        };
        for slot in 0..all {
            let number = index.number(hash(slot));
            let before = index.tables[number].capacity();
            index.insert(hash(slot), slot);
            // Hashbrown's small sizes grow by themselves.
            note(&index, slot, number, before);
        }
        assert_eq!(index.len(), all as usize);
        let room_when_full = room(&index);
        assert!((0..all).all(|slot| index.find(hash(slot), |other| other == slot).is_some()));
        for slot in 0..all {
            let number = index.number(hash(slot));
            let before = index.tables[number].capacity();
            assert!(index.remove(hash(slot), slot));
            note(&index, slot, number, before);
        }
        assert_eq!(index.len(), 0);
        assert!(room(&index) <= SMALL * ROOM_MIN, "memory is given back");
        // A table has 400 of them in the end.
        let mut expected = Index::new(SMALL);
        expected.expect(all as usize);
        let before = room(&expected);
        (0..all).for_each(|slot| expected.insert(hash(slot), slot));
        assert!(
            room(&expected) <= before * 9 / 8,
            "{} grew from {before}, though it was known how many come",
            room(&expected)
        );
        assert!(room(&expected) <= room_when_full * 9 / 8, "{} for what takes {room_when_full}", room(&expected));
        assert!(most.1 <= 20 * all as usize / SMALL, "{most:?} slots were moved by {many} changes");
    }

    #[test]
    fn a_slot_is_found_again_when_its_table_has_grown() {
        let mut index = Index::new(1);
        // Hashes that differ only where a table looks, and only where it does not.
        let hashes: Vec<u64> = (0..4_096).map(|n| n << 57 | n << 30 | (n % 61)).collect();
        hashes.iter().zip(0..).for_each(|(hash, slot)| index.insert(*hash, slot));
        for (hash, slot) in hashes.iter().zip(0..) {
            assert_eq!(index.find(*hash, |other| other == slot), Some(slot));
        }
    }
}
