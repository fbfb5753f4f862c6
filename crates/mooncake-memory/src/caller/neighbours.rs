//! Pieces of one call that lie side by side in memory.
//!
//! A short piece has all its pages tried out before it is touched (see [`crate::caller::trial`]), with a system call
//! for each. The pieces of a call are often neighbours: a layer of an engine's cache is one array, of which each key
//! has a block. Then the first of them tries out those behind it too, and they need no call of their own.
//!
//! A caller that takes memory away in the middle of a call is still found out, as far as a check can: what is tried out
//! ahead is at most [`AHEAD`] bytes, and counts for [`FRESH`] and for pieces that follow one after the other. Where
//! anything of it cannot be accessed, each piece is tried out by itself: only those fail that touch it.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::caller::piece::{Access, Destination, Source};
use crate::caller::trial::{self, Touch, Trial};
use crate::error::CopyError;

/// Most bytes that are tried out at once: the last of them are copied a tenth of a millisecond later.
const AHEAD: usize = 1 << 20;

/// How long it counts that something was tried out: a call may have to wait for a path between two of its pieces.
const FRESH: Duration = Duration::from_millis(1);

/// The neighbours among the pieces of one call; they are told of each other by [`Source::among`] and
/// [`Destination::among`].
#[derive(Debug, Default)]
pub struct Neighbours {
    /// Addresses `from..to` of pieces each of which begins where the one before it ends, by `from`.
    rows: Vec<(usize, usize)>,
    tried: Mutex<Option<Tried>>,
}

/// What was tried out `at` some time and is not copied yet: `next..until`.
#[derive(Debug)]
struct Tried {
    at: Instant,
    next: usize,
    until: usize,
}

impl Neighbours {
    /// Those of sources in the order in which they will be read.
    pub fn of_sources<'s>(sources: impl IntoIterator<Item = &'s Source<'s>>) -> Self {
        Self::of(sources.into_iter().map(|source| (source.access, source.ptr.addr(), source.len)))
    }

    /// Those of destinations in the order in which they will be filled.
    pub fn of_destinations<'t>(destinations: impl IntoIterator<Item = &'t Destination<'t>>) -> Self {
        Self::of(
            destinations.into_iter().map(|destination| (destination.access, destination.ptr.addr(), destination.len)),
        )
    }

    fn of(pieces: impl Iterator<Item = (Access, usize, usize)>) -> Self {
        let mut rows = Vec::new();
        // From where, to where, and whether of several pieces.
        let mut row = (0, 0, false);
        let mut keep = |(from, to, several): (usize, usize, bool)| rows.extend(several.then_some((from, to)));
        for (access, addr, len) in pieces {
            let can_join = access == Access::Known(Trial::Possible) && trial::is_tried_out_whole(addr, len);
            row = match row {
                (from, to, _) if can_join && to == addr && from != to => (from, addr + len, true),
                _ => {
                    keep(row);
                    if can_join { (addr, addr + len, false) } else { (0, 0, false) }
                }
            };
        }
        keep(row);
        rows.sort_unstable();
        Self { rows, tried: Mutex::default() }
    }

    /// As [`trial::check_usable`], with a look ahead.
    pub(crate) fn check_usable(&self, addr: usize, len: usize, touch: Touch, trial: Trial) -> Result<(), CopyError> {
        self.check_usable_at(Instant::now, addr, len, touch, trial)
    }

    fn check_usable_at(
        &self,
        now: impl FnOnce() -> Instant,
        addr: usize,
        len: usize,
        touch: Touch,
        trial: Trial,
    ) -> Result<(), CopyError> {
        if let Some(end) = self.end_of_row(addr, len) {
            let (mut tried, now) = (self.tried.lock(), now());
            if let Some(Tried { at, next, until }) = &mut *tried
                && *next == addr
                && len <= *until - addr
                && now.saturating_duration_since(*at) < FRESH
            {
                *next += len;
                return Ok(());
            }
            let until = end.min(addr.saturating_add(AHEAD));
            let can = trial::can_access_all(addr, until - addr, touch);
            *tried = can.then_some(Tried { at: now, next: addr + len, until });
            if can {
                return Ok(());
            }
        }
        trial::check_usable(addr, len, touch, trial)
    }

    /// Where the row ends in which a piece lies.
    fn end_of_row(&self, addr: usize, len: usize) -> Option<usize> {
        let before = self.rows.partition_point(|(from, _)| *from <= addr);
        let (_, end) = *self.rows.get(before.checked_sub(1)?)?;
        (addr < end && len <= end - addr).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::registry::Registry;
    use crate::caller::trial::tests::TRIED;
    use crate::file::mapped_file::PAGE;
    use crate::range::ForeignRange;

    const AREA: usize = 5 << 20;
    const PIECE: usize = 64 << 10;

    /// Registered memory of a test, which parts are taken from.
    struct Area {
        addr: usize,
        registry: Registry,
    }

    impl Area {
        fn new() -> Self {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a fresh mapping, and nothing else uses it.
            let made =
                unsafe { libc::mmap(std::ptr::null_mut(), AREA, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
            assert_ne!(made, libc::MAP_FAILED);
            let addr = made.expose_provenance();
            let registry = Registry::new();
            // SAFETY: as above.
            registry.register(unsafe { ForeignRange::new(addr, AREA) }).unwrap();
            Self { addr, registry }
        }

        fn destination(&self, offset: usize, len: usize) -> Destination<'static> {
            // SAFETY: a part of the mapping, which nothing else uses.
            Destination::foreign(unsafe { ForeignRange::new(self.addr + offset, len) }, &self.registry).unwrap()
        }

        fn row(&self, pieces: usize, len: usize) -> Vec<Destination<'static>> {
            (0..pieces).map(|nth| self.destination(nth * len, len)).collect()
        }

        /// From now on a page has only this access.
        fn protect(&self, offset: usize, access: i32) {
            let page = std::ptr::without_provenance_mut((self.addr + offset) & !(PAGE as usize - 1));
            // SAFETY: a page of the mapping, which nothing else uses.
            assert_eq!(unsafe { libc::mprotect(page, PAGE as usize, access) }, 0);
        }
    }

    impl Drop for Area {
        fn drop(&mut self) {
            // SAFETY: the mapping, of which only addresses are left.
            unsafe { libc::munmap(std::ptr::without_provenance_mut(self.addr), AREA) };
        }
    }

    fn is_usable(neighbours: &Neighbours, now: Instant, piece: &Destination<'_>, touch: Touch) -> bool {
        neighbours.check_usable_at(|| now, piece.ptr.addr(), piece.len, touch, Trial::Possible).is_ok()
    }

    /// Which of the pieces can be used, and how many system calls it took to find that out.
    fn check(neighbours: &Neighbours, pieces: &[Destination<'_>], touch: Touch) -> (Vec<bool>, usize) {
        let (before, now) = (TRIED.get(), Instant::now());
        let usable = |piece: &Destination<'_>| is_usable(neighbours, now, piece, touch);
        (pieces.iter().map(usable).collect(), TRIED.get() - before)
    }

    #[test]
    fn pieces_side_by_side_need_a_call_for_each_mebibyte_and_others_one_each() {
        let area = Area::new();
        for (len, pieces, calls) in [(PIECE, 64, 4), (PIECE, 1, 1), (1_000, 2_000, 2), (700, 3, 1)] {
            let row = area.row(pieces, len);
            assert_eq!(
                check(&Neighbours::of_destinations(&row), &row, Touch::Store),
                (vec![true; pieces], calls),
                "{len}"
            );
        }
        // As the array of an allocator that keeps its own bytes before it.
        let inside_pages: Vec<_> = (0..64).map(|nth| area.destination(16 + nth * PIECE, PIECE)).collect();
        let neighbours = Neighbours::of_destinations(&inside_pages);
        assert_eq!(check(&neighbours, &inside_pages, Touch::Store), (vec![true; 64], 4));
        // Every other piece, and the row from its end on.
        let apart: Vec<_> = (0..32).map(|nth| area.destination(nth * 2 * PIECE, PIECE)).collect();
        let mut back = area.row(32, PIECE);
        back.reverse();
        for pieces in [apart, back] {
            assert_eq!(check(&Neighbours::of_destinations(&pieces), &pieces, Touch::Store), (vec![true; 32], 32));
        }
        // Nobody has looked for its neighbours.
        let row = area.row(32, PIECE);
        assert_eq!(check(&Neighbours::default(), &row, Touch::Store), (vec![true; 32], 32));
    }

    #[test]
    fn of_a_row_only_the_pieces_fail_that_touch_a_page_out_of_reach() {
        // A page of its own piece; one that two pieces share; one that three do.
        for (len, at, fail) in [(PIECE, 5 * PIECE + PIECE / 2, 5..6), (6_000, 36_863, 5..7), (1_500, 8_192, 5..9)] {
            for access in [libc::PROT_READ, libc::PROT_NONE] {
                let area = Area::new();
                area.protect(at, access);
                let row = area.row(40, len);
                let usable = |touch| check(&Neighbours::of_destinations(&row), &row, touch).0;
                let out_of_reach: Vec<_> = (0..40).map(|nth| !fail.contains(&nth)).collect();
                assert_eq!(usable(Touch::Store), out_of_reach, "{len} {at}");
                let read = if access == libc::PROT_READ { vec![true; 40] } else { out_of_reach };
                assert_eq!(usable(Touch::Load), read, "{len} {at}");
            }
        }
    }

    #[test]
    fn memory_that_is_taken_away_between_two_pieces_is_found_out_unless_it_was_just_tried_out() {
        let area = Area::new();
        let row = area.row(64, PIECE);
        let taken = |first: usize, then: usize, access_at: usize| {
            let neighbours = Neighbours::of_destinations(&row);
            assert_eq!(check(&neighbours, &row[first..=first], Touch::Store).0, [true]);
            area.protect(access_at * PIECE, libc::PROT_NONE);
            let (usable, _) = check(&neighbours, &row[then..=then], Touch::Store);
            area.protect(access_at * PIECE, libc::PROT_READ | libc::PROT_WRITE);
            !usable[0]
        };
        assert!(taken(0, AHEAD / PIECE, AHEAD / PIECE), "behind what is tried out ahead");
        assert!(taken(0, 2, 2), "another has come between: a piece was left out");
        assert!(taken(3, 3, 3), "what is copied once more is tried out once more");
        assert!(taken(3, 2, 2), "and so is what lies before it");
    }

    #[test]
    fn what_was_tried_out_a_millisecond_ago_is_tried_out_again() {
        let area = Area::new();
        let row = area.row(4, PIECE);
        let (neighbours, begin) = (Neighbours::of_destinations(&row), Instant::now());
        let usable = |nth: usize, after| is_usable(&neighbours, begin + after, &row[nth], Touch::Store);
        let last_moment = FRESH - Duration::from_nanos(1);
        assert!(usable(0, Duration::ZERO));
        area.protect(2 * PIECE, libc::PROT_NONE);
        assert!(usable(1, last_moment), "with the first");
        assert!(!usable(2, FRESH), "by itself");
    }

    #[test]
    fn what_the_kernel_has_to_copy_or_is_long_is_no_neighbour() {
        let area = Area::new();
        let page = PAGE as usize;
        // SAFETY: a part of the mapping, which nothing else uses.
        let unknown = |at: usize| Destination::unregistered(unsafe { ForeignRange::new(area.addr + at, page) });
        let mut row = area.row(2, page);
        row.extend([unknown(2 * page), area.destination(3 * page, page), area.destination(4 * page, PIECE + 1)]);
        row.push(area.destination(4 * page + PIECE + 1, 0));
        let neighbours = Neighbours::of_destinations(&row);
        assert_eq!(neighbours.rows, [(area.addr, area.addr + 2 * page)]);
    }
}
