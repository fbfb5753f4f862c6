//! The free space of one segment, in granules.
//!
//! Only free runs are kept, by start and by length: an extent in use costs nothing here, its holder knows where it
//! lies. Placing is best fit, lowest offset first among equals, so that objects of one size leave holes that fit the
//! next one.

use std::collections::{BTreeMap, BTreeSet, btree_map, btree_set};

use crate::ensure::ensure;

/// A request that does not fit the books: the caller's records contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExtentError {
    /// Some of the granules are in use already, or freed twice.
    #[error("granules {start}..{end} overlap others")]
    Overlap {
        /// First granule.
        start: u64,
        /// One past the last.
        end: u64,
    },
    /// It lies outside the segment.
    #[error("granules {start}..{end} lie outside the segment of {total}")]
    Outside {
        /// First granule.
        start: u64,
        /// One past the last.
        end: u64,
        /// Granules of the segment.
        total: u32,
    },
}

/// Free runs below the populated limit of a segment.
#[derive(Debug)]
pub struct Extents {
    total: u32,
    /// Granules at and above it are not handed out yet.
    limit: u32,
    free: u32,
    by_start: BTreeMap<u32, u32>,
    by_len: BTreeSet<(u32, u32)>,
}

impl Extents {
    /// A segment of `total` granules of which none is populated.
    pub fn new(total: u32) -> Self {
        Extents { total, limit: 0, free: 0, by_start: BTreeMap::new(), by_len: BTreeSet::new() }
    }

    /// Granules of the segment.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Granules that may be handed out.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Free granules below the limit.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Granules of the longest free run.
    pub fn largest(&self) -> u32 {
        self.by_len.last().map_or(0, |run| run.0)
    }

    /// Granules that the run at the limit will have when all of the segment is populated.
    pub fn to_come(&self) -> u32 {
        let last = self.by_start.last_key_value().filter(|(start, len)| *start + *len == self.limit);
        self.total - self.limit + last.map_or(0, |(_, len)| *len)
    }

    /// Number of free runs: 1 when nothing is fragmented.
    pub fn runs(&self) -> usize {
        self.by_len.len()
    }

    /// More of the segment is populated. A lower limit than before changes nothing.
    pub fn raise_limit(&mut self, limit: u32) {
        let limit = limit.min(self.total);
        if limit > self.limit {
            let old = std::mem::replace(&mut self.limit, limit);
            self.insert(old, limit - old);
        }
    }

    /// No more of the segment will ever be populated: it ends at the limit, above which nothing was handed out.
    pub fn end_at_limit(&mut self) {
        self.total = self.limit;
    }

    /// Where `len` granules would go now.
    pub fn find(&self, len: u32) -> Option<u32> {
        debug_assert!(len > 0);
        self.by_len.range((len, 0)..).next().map(|run| run.1)
    }

    /// Takes exactly these granules. Beyond the limit it raises the limit: a log can know of extents before the owner
    /// has said how much is populated.
    pub fn take(&mut self, start: u32, len: u32) -> Result<(), ExtentError> {
        let end = self.check(start, len)?;
        let overlap = ExtentError::Overlap { start: start.into(), end: end.into() };
        if end > self.limit {
            let free_up_to_limit = |run: &(u32, u32)| run.0 + run.1 == self.limit;
            if start < self.limit && !self.run_at(start).as_ref().is_some_and(free_up_to_limit) {
                return Err(overlap);
            }
            self.raise_limit(end);
        }
        let (run, run_len) = self.run_at(start).filter(|run| run.0 + run.1 >= end).ok_or(overlap)?;
        self.remove(run, run_len);
        if run < start {
            self.index(run, start - run);
        }
        if run + run_len > end {
            self.index(end, run + run_len - end);
        }
        self.free -= len;
        Ok(())
    }

    /// Gives granules back, joining them with free neighbours.
    pub fn give(&mut self, start: u32, len: u32) -> Result<(), ExtentError> {
        let end = self.check(start, len)?;
        let overlap = Err(ExtentError::Overlap { start: start.into(), end: end.into() });
        if end > self.limit || self.by_start.range(start..end).next().is_some() {
            return overlap;
        }
        if self.run_at(start).is_some_and(|run| run.0 + run.1 > start) {
            return overlap;
        }
        self.insert(start, len);
        Ok(())
    }

    /// Free runs in order: (start, granules).
    pub fn free_runs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.by_start.iter().map(|(start, len)| (*start, *len))
    }

    /// Both orders name the same free runs, which lie apart from each other and below the limit.
    pub(crate) fn check_invariants(&self) -> Result<(), String> {
        let Extents { total, limit, free, by_start, by_len } = self;
        ensure!(limit <= total, "{limit} granules are populated of {total}");
        let (mut end, mut sum) = (None, 0);
        for (start, len) in self.free_runs() {
            ensure!(len > 0 && end.is_none_or(|end| end < start), "the free run at {start} begins before {end:?} ends");
            ensure!(
                by_len.contains(&(len, start)),
                "the free run at {start} of {len} granules cannot be found by length"
            );
            sum += u64::from(len);
            end = Some(start + len);
        }
        ensure!(end.is_none_or(|end| end <= *limit), "granule {end:?} is free, which is above the limit of {limit}");
        ensure!(by_len.len() == by_start.len(), "{} free runs by length, {} by start", by_len.len(), by_start.len());
        ensure!(sum == u64::from(*free), "{sum} granules are free, and counted {free}");
        Ok(())
    }

    /// What is left of it with its segment.
    pub fn into_remains(self) -> Remains {
        Remains { by_start: self.by_start.into_iter(), by_len: self.by_len.into_iter() }
    }

    fn check(&self, start: u32, len: u32) -> Result<u32, ExtentError> {
        match start.checked_add(len) {
            Some(end) if end <= self.total && len > 0 => Ok(end),
            _ => Err(ExtentError::Outside {
                start: start.into(),
                end: u64::from(start) + u64::from(len),
                total: self.total,
            }),
        }
    }

    /// The free run that begins at or before a granule.
    fn run_at(&self, granule: u32) -> Option<(u32, u32)> {
        self.by_start.range(..=granule).next_back().map(|(start, len)| (*start, *len))
    }

    fn insert(&mut self, mut start: u32, mut len: u32) {
        self.free += len;
        if let Some((before, before_len)) = self.run_at(start)
            && before + before_len == start
        {
            self.remove(before, before_len);
            start = before;
            len += before_len;
        }
        if let Some(after_len) = self.by_start.get(&(start + len)).copied() {
            self.remove(start + len, after_len);
            len += after_len;
        }
        self.index(start, len);
    }

    fn index(&mut self, start: u32, len: u32) {
        self.by_start.insert(start, len);
        self.by_len.insert((len, start));
    }

    fn remove(&mut self, start: u32, len: u32) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }
}

/// The books of a segment that is Gone. Of a million free runs they take the kernel and the caches tens of milliseconds
/// to free, and are freed in steps.
pub struct Remains {
    by_start: btree_map::IntoIter<u32, u32>,
    by_len: btree_set::IntoIter<(u32, u32)>,
}

impl Remains {
    /// Frees so many runs at most. False when nothing was left.
    pub fn give_back(&mut self, runs: usize) -> bool {
        let freed = self.by_start.by_ref().take(runs).count() + self.by_len.by_ref().take(runs).count();
        freed > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_segment_is_freed_in_steps() {
        let mut extents = Extents::new(100);
        extents.raise_limit(100);
        (1..100).step_by(2).for_each(|start| extents.take(start, 1).unwrap());
        let mut remains = extents.into_remains();
        assert_eq!((0..).take_while(|_| remains.give_back(16)).count(), 50_usize.div_ceil(16));
    }

    #[test]
    fn best_fit_prefers_the_tightest_hole() {
        let mut extents = Extents::new(100);
        extents.raise_limit(100);
        extents.take(0, 100).unwrap();
        extents.give(10, 8).unwrap();
        extents.give(30, 4).unwrap();
        extents.give(50, 4).unwrap();
        assert_eq!(
            (extents.find(4), extents.find(3), extents.find(5), extents.find(9)),
            (Some(30), Some(30), Some(10), None)
        );
        assert_eq!((extents.largest(), extents.runs()), (8, 3));
    }

    #[test]
    fn freeing_twice_and_taking_twice_are_refused() {
        let mut extents = Extents::new(64);
        extents.take(8, 8).unwrap();
        assert_eq!(extents.limit(), 16);
        assert!(extents.take(12, 8).is_err());
        assert!(extents.take(8, 1).is_err());
        assert!(extents.take(60, 8).is_err());
        assert!(extents.give(0, 4).is_err());
        assert!(extents.give(4, 8).is_err());
        assert!(extents.give(12, 8).is_err());
        extents.give(8, 8).unwrap();
        assert!(extents.give(8, 8).is_err());
        assert_eq!(extents.free_runs().collect::<Vec<_>>(), [(0, 16)]);
    }

    #[test]
    fn nothing_is_handed_out_above_the_populated_limit() {
        let mut extents = Extents::new(64);
        assert_eq!(extents.find(1), None);
        extents.raise_limit(10);
        assert_eq!((extents.find(10), extents.find(11)), (Some(0), None));
        extents.raise_limit(5);
        assert_eq!((extents.limit(), extents.to_come()), (10, 64));
        extents.take(2, 7).unwrap();
        assert_eq!(extents.to_come(), 55);
        extents.take(9, 1).unwrap();
        assert_eq!(extents.to_come(), 54);
        extents.give(2, 8).unwrap();
        extents.raise_limit(1000);
        assert_eq!((extents.largest(), extents.to_come()), (64, 64));
        let mut ended = Extents::new(64);
        ended.raise_limit(10);
        ended.end_at_limit();
        ended.raise_limit(20);
        assert_eq!((ended.total(), ended.limit(), ended.largest()), (10, 10, 10));
        assert!(ended.take(8, 4).is_err());
    }
}
