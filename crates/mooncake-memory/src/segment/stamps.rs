//! The stamps in mapped control memory.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::copy::barrier::store_barrier;
use crate::file::mapped_file::MappedFile;
use crate::segment::layout::{self, STAMPS_AT};
use mooncake_ids::Rid;

/// Stamp of every granule of memory that was given back: no rid is newer.
pub(crate) const GIVEN_BACK: u64 = u64::MAX;

/// Stamps of the granules that bytes `offset..offset + len` touch.
///
/// The caller has checked the range. Only a writable mapping may be stored to.
pub(crate) fn of(control: &MappedFile, offset: u64, len: u64) -> &[AtomicU64] {
    let (first, end) = layout::granules(offset, len);
    assert!(STAMPS_AT + end as u64 * layout::STAMP <= control.len(), "granule {end} has no stamp");
    // SAFETY: inside the mapping, aligned because mappings are, and atomics may be shared with other processes.
    unsafe {
        let stamps = control.base().add(STAMPS_AT as usize).cast::<AtomicU64>();
        std::slice::from_raw_parts(stamps.add(first), end - first)
    }
}

/// Stamps for a mapped writer. The barrier is the caller's.
pub(crate) fn store(stamps: &[AtomicU64], rid: Rid) {
    for stamp in stamps {
        stamp.store(rid.0, Ordering::Relaxed);
    }
}

/// Raises every stamp to `to`, or gives the first one that is higher already.
pub(crate) fn raise(stamps: &[AtomicU64], to: u64) -> Result<(), u64> {
    // A look first, so that a refused write leaves no trace in the usual case.
    let newest = newest(stamps);
    if newest > to {
        return Err(newest);
    }
    for stamp in stamps {
        let found = stamp.fetch_max(to, Ordering::Relaxed);
        if found > to {
            return Err(found);
        }
    }
    store_barrier();
    Ok(())
}

/// Raises every stamp that is lower to `to`.
pub(crate) fn raise_all(stamps: &[AtomicU64], to: u64) {
    for stamp in stamps {
        stamp.fetch_max(to, Ordering::Relaxed);
    }
    store_barrier();
}

/// The first stamp that is not `rid`.
pub(crate) fn first_other(stamps: &[AtomicU64], rid: Rid) -> Option<u64> {
    stamps.iter().map(|stamp| stamp.load(Ordering::Relaxed)).find(|&stamp| stamp != rid.0)
}

/// The highest stamp.
pub(crate) fn newest(stamps: &[AtomicU64]) -> u64 {
    stamps.iter().map(|stamp| stamp.load(Ordering::Relaxed)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_write_leaves_no_stamp_and_a_tombstone_is_never_lowered() {
        let stamps = [2, 4, 9].map(AtomicU64::new);
        assert_eq!(raise(&stamps, 6), Err(9));
        assert_eq!(stamps.each_ref().map(|stamp| stamp.load(Ordering::Relaxed)), [2, 4, 9]);

        // A write that begins while its fence stamps.
        let stamps: Vec<AtomicU64> = (0..4096).map(|_| AtomicU64::new(0)).collect();
        for round in 1..200_u64 {
            let (rid, start) = (Rid(2 * round), std::sync::Barrier::new(2));
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    start.wait();
                    // A little later each time.
                    (0..round * 50).for_each(|_| std::hint::spin_loop());
                    raise_all(&stamps, rid.tombstone());
                });
                start.wait();
                let _ = raise(&stamps, rid.0);
            });
            assert_eq!(first_other(&stamps, Rid(rid.tombstone())), None, "round {round}");
        }
    }
}
