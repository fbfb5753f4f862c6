//! Locks on memory that outlives its owners: which processes may still write it, or look at it, that an earlier owner
//! let in (docs/safety.md, rule 26).
//!
//! Each is a shared lock on one byte of the control memory, far behind its end: the byte of the *tenure* of the owner
//! that let the process in. An heir asks for any lock on the bytes of the tenures before its own.

use std::io;
use std::ops::Range;

use mooncake_os::{Lock, OwnFile};

use crate::segment::mapping::Mapping;

/// Byte of tenure 0 among the locks of writers. It never changes: processes of other versions lock there.
const WRITERS_AT: u64 = 1 << 61;

/// The same of viewers.
const VIEWERS_AT: u64 = WRITERS_AT + (1 << 32);

/// What the memory is mapped for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TenureUse {
    /// To be written.
    Writes,
    /// To be looked at in place.
    Views,
}

impl TenureUse {
    fn bytes(self, tenures: Range<u32>) -> Range<u64> {
        let at = match self {
            TenureUse::Writes => WRITERS_AT,
            TenureUse::Views => VIEWERS_AT,
        };
        at + u64::from(tenures.start)..at + u64::from(tenures.end)
    }
}

/// A lock of this process: held until it is dropped, or until the process ends.
#[derive(Debug)]
pub struct TenureLock {
    _file: OwnFile,
}

impl TenureLock {
    /// Takes it, by an open file of its own. Nothing is ever in its way.
    pub fn take(mapping: &Mapping, what: TenureUse, tenure: u32) -> io::Result<TenureLock> {
        let file = OwnFile::reopen(mapping.control_fd(), false)?;
        match file.try_lock(Lock::Shared, what.bytes(tenure..tenure + 1))? {
            true => Ok(TenureLock { _file: file }),
            false => Err(io::Error::new(io::ErrorKind::WouldBlock, "another process has its memory locked alone")),
        }
    }
}

/// A look at the locks of others.
#[derive(Debug)]
pub struct TenureLocks {
    file: OwnFile,
}

impl TenureLocks {
    /// Of that memory.
    pub fn of(mapping: &Mapping) -> io::Result<TenureLocks> {
        OwnFile::reopen(mapping.control_fd(), false).map(|file| TenureLocks { file })
    }

    /// Whether another open file has a lock of a tenure before this one.
    pub fn any_before(&self, tenure: u32, what: TenureUse) -> io::Result<bool> {
        self.file.is_locked_by_another(what.bytes(0..tenure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{SegmentMemory, SegmentOptions};

    #[test]
    fn locks_of_earlier_tenures_are_seen_each_for_its_use_until_the_last_has_ended() {
        let segment = SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap();
        let mapping = segment.mapping();
        let looks = TenureLocks::of(mapping).unwrap();
        let seen = |tenure| [TenureUse::Writes, TenureUse::Views].map(|it| looks.any_before(tenure, it).unwrap());
        let [first, second] = [(); 2].map(|()| TenureLock::take(mapping, TenureUse::Writes, 3).unwrap());
        let view = TenureLock::take(mapping, TenureUse::Views, 4).unwrap();
        assert_eq!([3, 4, 5].map(seen), [[false, false], [true, false], [true, true]]);
        drop(first);
        assert_eq!(seen(5), [true, true], "another process writes");
        drop(second);
        assert_eq!(seen(5), [false, true]);
        drop(view);
        assert_eq!(seen(u32::MAX), [false, false]);
    }
}
