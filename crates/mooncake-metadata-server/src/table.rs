//! The table of what engines publish, bounded.

use std::collections::HashMap;

use bytes::Bytes;

/// Bytes of all entries together.
pub const TOTAL_MAX: usize = 256 << 20;

/// What an entry takes besides its key and its value.
pub const ENTRY: usize = 128;

/// What is published, by key.
#[derive(Debug, Default)]
pub struct Table {
    values: HashMap<String, Bytes>,
    /// Of all entries, as [`size`] counts them.
    bytes: usize,
}

/// What became of a value.
#[derive(Debug, PartialEq, Eq)]
pub enum Written {
    /// It is there.
    Updated,
    /// It was there before.
    Unchanged,
    /// An engine's address, and this other one stands there.
    Taken(Bytes),
    /// There is no room for it.
    Full,
}

impl Table {
    /// A value.
    pub fn get(&self, key: &str) -> Option<Bytes> {
        self.values.get(key).cloned()
    }

    /// Sets a value. An engine's address takes no other one's place than that of `gone`.
    pub fn set(&mut self, key: &str, value: &Bytes, gone: Option<&Bytes>) -> Written {
        let old = self.values.get(key);
        if is_address(key)
            && let Some(old) = old
        {
            if old == value {
                return Written::Unchanged;
            }
            if Some(old) != gone {
                return Written::Taken(old.clone());
            }
        }
        let bytes = self.bytes - old.map_or(0, |old| size(key, old)) + size(key, value);
        if bytes > TOTAL_MAX {
            return Written::Full;
        }
        self.bytes = bytes;
        // A copy: the value is a part of the request, and would keep all of it.
        self.values.insert(key.to_owned(), Bytes::copy_from_slice(value));
        Written::Updated
    }

    /// Whether there was one.
    pub fn remove(&mut self, key: &str) -> bool {
        let Some(value) = self.values.remove(key) else { return false };
        self.bytes -= size(key, &value);
        true
    }
}

fn size(key: &str, value: &Bytes) -> usize {
    key.len() + value.len() + ENTRY
}

/// Whether an engine says under this key where it is.
fn is_address(key: &str) -> bool {
    key.contains("rpc_meta")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_counts_what_it_holds_and_is_bounded() {
        let mut table = Table::default();
        assert_eq!(table.set("key", &Bytes::from_static(b"12345"), None), Written::Updated);
        assert_eq!(table.set("key", &Bytes::from_static(b"1"), None), Written::Updated);
        assert_eq!(table.bytes, 4 + ENTRY);
        assert_eq!(table.set("big", &Bytes::from(vec![0; TOTAL_MAX]), None), Written::Full);
        assert!(table.remove("key") && !table.remove("key"));
        assert_eq!(table.bytes, 0);
    }

    #[test]
    fn empty_entries_count_for_what_they_really_take() {
        let mut table = Table { bytes: TOTAL_MAX - 10 * ENTRY, ..Table::default() };
        let empty = Bytes::new();
        let taken = (0..100).take_while(|number: &u8| table.set(&number.to_string(), &empty, None) == Written::Updated);
        assert_eq!(taken.count(), 9, "the keys have a byte too");
    }

    #[test]
    fn a_value_keeps_nothing_of_what_it_came_with() {
        let request = Bytes::from(vec![7; 64 << 10]);
        let mut table = Table::default();
        assert_eq!(table.set("key", &request.slice(100..101), None), Written::Updated);
        assert!(request.is_unique(), "one byte holds the whole request");
        assert_eq!(table.values["key"], [7u8][..]);
    }
}
