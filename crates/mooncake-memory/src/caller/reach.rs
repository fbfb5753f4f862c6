//! How far registered memory goes on from an address.
//!
//! A caller that registers a buffer says where it ends. Bytes that begin in one and go on behind it are its
//! neighbours', which the caller did not name: a length that is wrong by a few bytes would overwrite them, and no fault
//! would tell. So all of the bytes are refused before one has moved. Memory that begins outside of all buffers was not
//! meant to be one, and has no known end.

use crate::range::ForeignRange;

/// Bytes that begin in registered memory and run out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{len} bytes at {addr:#x} run out of the registered range of {} bytes at {start:#x}: {} of them lie in it; \
     register the rest, or name no more",
    .end - .start,
    .end - .addr
)]
pub struct RunsOut {
    /// First byte asked for.
    pub addr: usize,
    /// Bytes asked for.
    pub len: usize,
    /// Where the registered range begins.
    pub start: usize,
    /// Where it ends, together with ranges that touch or overlap it.
    pub end: usize,
}

/// A registered range: its first byte, and the one behind its last.
pub type Bounds = (usize, usize);

/// Refuses bytes that begin in a registered range and leave it for memory that is in none; ranges that touch or overlap
/// are one. `before` are the ranges that begin at the first byte or before it, in any order; `behind` the others,
/// ascending.
pub fn check_reach(
    range: ForeignRange,
    before: impl IntoIterator<Item = Bounds>,
    behind: impl IntoIterator<Item = Bounds>,
) -> Result<(), RunsOut> {
    let ForeignRange { addr, len } = range;
    let Some((start, mut end)) = before.into_iter().max_by_key(|(_, end)| *end).filter(|(_, end)| *end > addr) else {
        return Ok(());
    };
    let mut behind = behind.into_iter();
    // By its length: no sum of an address and a length is safe from an overflow.
    while end - addr < len {
        match behind.next() {
            Some((next, next_end)) if next <= end => end = end.max(next_end),
            _ => return Err(RunsOut { addr, len, start, end }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn checked(addr: usize, len: usize, ranges: &[Bounds]) -> Result<(), RunsOut> {
        let mut sorted = ranges.to_vec();
        sorted.sort_unstable();
        let (before, behind) = sorted.split_at(sorted.partition_point(|(start, _)| *start <= addr));
        // SAFETY: only its numbers are looked at.
        let range = unsafe { ForeignRange::new(addr, len) };
        check_reach(range, before.iter().copied(), behind.iter().copied())
    }

    #[test]
    fn bytes_that_leave_a_range_are_refused_and_named() {
        let ranges = [(100, 200), (300, 400)];
        assert_eq!(checked(150, 51, &ranges), Err(RunsOut { addr: 150, len: 51, start: 100, end: 200 }));
        assert_eq!(checked(100, 300, &ranges), Err(RunsOut { addr: 100, len: 300, start: 100, end: 200 }));
        let said = checked(0xb0, 51, &[(0x80, 0xc0)]).unwrap_err().to_string();
        for part in ["51 bytes at 0xb0", "registered range of 64 bytes at 0x80", "16 of them"] {
            assert!(said.contains(part), "{said}");
        }
        for (addr, len) in [(100, 100), (150, 0), (199, 1), (200, 1), (200, 500), (0, 500), (250, 10), (500, 9)] {
            assert_eq!(checked(addr, len, &ranges), Ok(()), "{addr} {len}");
        }
    }

    #[test]
    fn ranges_that_touch_or_overlap_are_one() {
        let ranges = [(100, 200), (150, 160), (200, 300), (250, 400), (401, 500)];
        assert_eq!(checked(120, 280, &ranges), Ok(()));
        assert_eq!(checked(155, 281, &ranges), Err(RunsOut { addr: 155, len: 281, start: 100, end: 400 }));
    }

    #[test]
    fn a_length_that_no_address_space_has_is_refused_and_no_overflow() {
        let last = usize::MAX;
        assert_eq!(checked(150, last, &[(100, 200)]), Err(RunsOut { addr: 150, len: last, start: 100, end: 200 }));
        let top = (last - 10, last);
        assert_eq!(
            checked(last - 5, last, &[top]),
            Err(RunsOut { addr: last - 5, len: last, start: top.0, end: last })
        );
        assert_eq!(checked(last - 5, 5, &[top]), Ok(()));
        assert_eq!(checked(300, last, &[(100, 200)]), Ok(()), "its start is in none");
    }

    /// As the rule reads, byte by byte.
    fn model(addr: usize, len: usize, ranges: &[Bounds]) -> bool {
        let registered = |byte: usize| ranges.iter().any(|(start, end)| (*start..*end).contains(&byte));
        len > 0 && registered(addr) && !(addr..addr + len).all(registered)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn random_ranges_are_refused_where_a_simple_model_refuses_them(
            ranges in vec((0_usize..60, 1_usize..17), 0..7),
            addr in 0_usize..80,
            len in 0_usize..40,
        ) {
            let ranges: Vec<Bounds> = ranges.into_iter().map(|(start, len)| (start, start + len)).collect();
            let checked = checked(addr, len, &ranges);
            prop_assert_eq!(checked.is_err(), model(addr, len, &ranges));
            if let Err(RunsOut { start, end, .. }) = checked {
                // What it names holds the first byte, and ends at the first that is in none.
                prop_assert!(ranges.iter().any(|(from, _)| *from == start) && (start..end).contains(&addr));
                prop_assert!(!model(addr, end - addr, &ranges) && model(addr, end - addr + 1, &ranges));
            }
        }
    }
}
