//! Whether other users have a segment mapped, when its owner is dead and cannot say.

use std::io;
use std::ops::Range;

use mooncake_os::{Lock, OwnFile};

use crate::segment::mapping::Mapping;

/// A shared lock on a segment's data memory, held for as long as the segment is
/// mapped. It belongs to an open file of its own, so that it tells two users of
/// one process apart as well.
///
/// Whether there are others is only asked, never tried out by taking the lock exclusively: a failing conversion of a
/// `flock` loses the shared lock, and with it the proof for the others that this user still looks at the bytes.
#[derive(Debug)]
pub struct Presence {
    file: OwnFile,
}

/// The bytes of any segment.
const ALL: Range<u64> = 0..1 << 60;

impl Presence {
    /// From now on no other user is alone.
    pub fn announce(mapping: &Mapping) -> io::Result<Self> {
        let file = OwnFile::reopen(mapping.data_fd(), false)?;
        // Nothing is ever in the way of a shared lock here.
        file.try_lock(Lock::Shared, ALL)?;
        Ok(Self { file })
    }

    /// Whether no other user of the segment has announced itself, or all have ended.
    pub fn is_alone(&self) -> io::Result<bool> {
        self.file.is_locked_by_another(ALL).map(|locked| !locked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{SegmentMemory, SegmentOptions};

    #[test]
    fn asking_loses_nothing() {
        let segment = SegmentMemory::create(4096, SegmentOptions::default()).unwrap();
        let [a, b, c] = [(); 3].map(|()| Presence::announce(segment.mapping()).unwrap());
        for _ in 0..3 {
            assert!([&a, &b, &c].iter().all(|presence| !presence.is_alone().unwrap()));
        }
        drop(c);
        assert!(!a.is_alone().unwrap() && !b.is_alone().unwrap());
        drop(a);
        assert!(b.is_alone().unwrap() && b.is_alone().unwrap());
    }
}
