//! Where segments are: the numbers of placements, resolved once.

use std::collections::BTreeMap;

use mooncake_wire::message::Replica;

use super::numbering::Numbering;

/// Segments met so far, each with the way to find it, `A`. Under another numbering they mean nothing.
#[derive(Debug)]
pub struct Directory<A> {
    numbering: Numbering,
    segments: BTreeMap<u32, A>,
}

impl<A> Default for Directory<A> {
    fn default() -> Self {
        Self { numbering: Numbering::default(), segments: BTreeMap::new() }
    }
}

impl<A> Directory<A> {
    /// The segment of a placement, if it has been met.
    #[inline]
    pub fn find(&self, numbering: Numbering, number: u32) -> Option<&A> {
        if self.numbering == numbering { self.segments.get(&number) } else { None }
    }

    /// The segments of some placements that have not been met, each once: the master is to be asked for them.
    #[inline]
    pub fn missing<'r>(&self, numbering: Numbering, replicas: impl Iterator<Item = &'r Replica>) -> Vec<u32> {
        let numbers = replicas.flat_map(|replica| &replica.extents).map(|extent| extent.segment);
        let same = self.numbering == numbering;
        let mut missing: Vec<u32> = numbers.filter(|number| !same || !self.segments.contains_key(number)).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// The master has said where these are. Its numbering may be another one by now.
    pub fn met(&mut self, numbering: Numbering, segments: impl Iterator<Item = (u32, A)>) {
        if self.numbering != numbering {
            *self = Self { numbering, segments: BTreeMap::new() };
        }
        self.segments.extend(segments);
    }

    /// How many have been met.
    pub fn count(&self) -> usize {
        self.segments.len()
    }

    /// The first segment of some kind, and its number.
    pub fn find_where(&self, which: impl Fn(&A) -> bool) -> Option<(u32, &A)> {
        self.segments.iter().find(|(_, segment)| which(segment)).map(|(number, segment)| (*number, segment))
    }

    /// The segment is Gone.
    pub fn forget(&mut self, number: u32) {
        self.segments.remove(&number);
    }

    /// Another session began, perhaps with another master.
    pub fn start_over(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use mooncake_wire::message::Extent;

    use super::*;

    const ONE: Numbering = Numbering { log_id: 1, instance: [1; 16] };
    const TWO: Numbering = Numbering { log_id: 2, instance: [1; 16] };

    fn replica(segments: &[u32]) -> Replica {
        let extents = segments.iter().map(|segment| Extent { segment: *segment, ..Extent::default() });
        Replica { rid: 2, extents: extents.collect() }
    }

    #[test]
    fn each_segment_that_was_not_met_is_asked_for_once() {
        let (mut directory, replicas) = (Directory::default(), [replica(&[3, 1]), replica(&[3, 2])]);
        assert_eq!(directory.missing(ONE, replicas.iter()), [1, 2, 3]);
        directory.met(ONE, [(1, "one"), (3, "three")].into_iter());
        assert_eq!(directory.missing(ONE, replicas.iter()), [2]);
        directory.forget(3);
        assert_eq!(directory.missing(ONE, replicas.iter()), [2, 3]);
        assert_eq!((directory.find(ONE, 1), directory.find(ONE, 3)), (Some(&"one"), None));
        directory.start_over();
        assert_eq!(directory.missing(ONE, replicas.iter()), [1, 2, 3]);
    }

    #[test]
    fn a_number_means_what_the_log_says_that_gave_it_out() {
        let (mut directory, replicas) = (Directory::default(), [replica(&[1, 2])]);
        directory.met(ONE, [(1, "one"), (2, "two")].into_iter());
        assert_eq!((directory.find(TWO, 1), directory.missing(TWO, replicas.iter())), (None, vec![1, 2]));
        directory.met(TWO, [(1, "another")].into_iter());
        assert_eq!((directory.find(TWO, 1), directory.find(TWO, 2)), (Some(&"another"), None));
        assert_eq!(directory.find(ONE, 1), None, "nor by what the lost log gave out");
    }
}
