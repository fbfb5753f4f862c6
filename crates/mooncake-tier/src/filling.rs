//! The image of a record, or of a footer, as it goes into writes piece by piece.

use crate::address::Address;
use crate::io_counts::{Parts, WriteFor};

/// Bytes of an object, wherever they lie now.
pub trait Value: Send {
    /// How many.
    fn size(&self) -> u64;

    /// CRC-32C of `len` of them from `at` on; none if they are not there any more.
    fn sum(&self, at: u64, len: u64) -> Option<u32>;

    /// Copies those from `at` on to where a disk is to have them; false if they are not there any more.
    fn copy(&self, at: u64, into: &mut [u8]) -> bool;
}

/// Bytes of a record, or of a footer, on their way into writes.
pub(crate) struct Filling {
    pub head: Vec<u8>,
    /// The value, and where in the image it begins.
    pub value: Option<(Box<dyn Value>, u64)>,
    pub is_gone: bool,
    pub done: u64,
    pub bytes: u64,
    /// None for a footer.
    pub address: Option<Address>,
    /// What the bytes of its value are.
    pub is: WriteFor,
}

impl Filling {
    /// Where its image begins in a file of so many bytes, whose next record begins at `end`.
    pub fn offset_in(&self, end: u64, bytes: u64) -> u64 {
        match self.address {
            Some(_) => end - self.bytes,
            None => bytes - self.bytes,
        }
    }

    /// What its next bytes are, so many.
    pub fn parts(&self, len: u64) -> Parts {
        let (from, end) = (self.done, self.done + len);
        let of_value = self.value.as_ref().map_or(0, |(value, at)| {
            let (first, last) = (from.max(*at), end.min(at + value.size()));
            last.saturating_sub(first)
        });
        let mut parts = Parts::default();
        parts[self.is as usize] += of_value;
        parts[WriteFor::Rest as usize] += len - of_value;
        parts
    }

    /// The next bytes of the image.
    pub fn copy(&mut self, mut into: &mut [u8]) {
        while !into.is_empty() {
            let at = self.done;
            let part = if at < self.head.len() as u64 {
                let rest = &self.head[at as usize..];
                let len = rest.len().min(into.len());
                into[..len].copy_from_slice(&rest[..len]);
                len
            } else {
                self.copy_behind_head(at, into)
            };
            self.done += part as u64;
            into = &mut into[part..];
        }
    }

    /// Bytes of the value, or zeros before and behind it.
    fn copy_behind_head(&mut self, at: u64, into: &mut [u8]) -> usize {
        let Some((value, value_at)) = &self.value else { unreachable!("a footer is a head alone") };
        let (value_at, value_end) = (*value_at, value_at + value.size());
        let until = |end: u64| (end - at).min(into.len() as u64) as usize;
        if at < value_at {
            let len = until(value_at);
            into[..len].fill(0);
            return len;
        }
        if at >= value_end {
            into.fill(0);
            return into.len();
        }
        let len = until(value_end);
        if !value.copy(at - value_at, &mut into[..len]) {
            self.is_gone = true;
            into[..len].fill(0);
        }
        len
    }
}
