//! Which bytes of an object have been written in parts, and their checksum.

use std::collections::BTreeMap;

/// The checksum of what a first one covers followed by so many bytes that a second one covers.
pub type Combine = fn(first: u32, second: u32, len: u64) -> u32;

/// The bytes of an object that are written in any order.
#[derive(Debug)]
pub struct Filling {
    size: u64,
    combine: Combine,
    /// What is written, by first byte. Runs do not touch each other.
    runs: BTreeMap<u64, Run>,
}

#[derive(Debug, Clone, Copy)]
struct Run {
    end: u64,
    /// Of all its bytes; none where a part of what was summed has been written anew.
    sum: Option<u32>,
}

impl Filling {
    /// Nothing of it is written.
    pub fn new(size: u64, combine: Combine) -> Filling {
        Filling { size, combine, runs: BTreeMap::new() }
    }

    /// Whether these are bytes of the object.
    pub fn has(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.size)
    }

    /// A write of these bytes begins: until it has ended their contents are unknown.
    pub fn begin(&mut self, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let end = offset + len;
        while let Some((&start, &run)) = self.runs.range(..end).next_back().filter(|(_, run)| run.end > offset) {
            self.runs.remove(&start);
            if start < offset {
                self.runs.insert(start, Run { end: offset, sum: None });
            }
            if run.end > end {
                self.runs.insert(end, Run { sum: None, ..run });
            }
        }
    }

    /// They have been, with this checksum.
    pub fn written(&mut self, offset: u64, len: u64, sum: u32) {
        if len == 0 {
            return;
        }
        let (mut start, mut whole) = (offset, Run { end: offset + len, sum: Some(sum) });
        if let Some((&before, &run)) = self.runs.range(..offset).next_back().filter(|(_, run)| run.end == offset) {
            self.runs.remove(&before);
            (start, whole) = (before, self.joined(run, whole));
        }
        if let Some(behind) = self.runs.remove(&whole.end) {
            whole = self.joined(whole, behind);
        }
        self.runs.insert(start, whole);
    }

    /// First byte that is not written, and the first behind it that is.
    pub fn first_hole(&self) -> Option<(u64, u64)> {
        let (&start, run) = self.runs.first_key_value().unwrap_or((&self.size, &Run { end: 0, sum: None }));
        match start {
            0 if run.end >= self.size => None,
            0 => Some((run.end, self.runs.range(1..).next().map_or(self.size, |(next, _)| *next))),
            _ => Some((0, start)),
        }
    }

    /// The checksum of the object, of which every byte is written; none where it has to be read to know.
    pub fn sum(&self) -> Option<u32> {
        self.runs.get(&0).filter(|run| run.end == self.size)?.sum
    }

    fn joined(&self, first: Run, second: Run) -> Run {
        let sum = first.sum.zip(second.sum);
        let sum = sum.map(|(a, b)| (self.combine)(a, b, second.end - first.end));
        Run { end: second.end, sum }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const K: u32 = 0x9e37_79b1;

    /// A sum that depends on the order of bytes, and that can be combined as the real one.
    pub(crate) fn sum_of(bytes: &[u8]) -> u32 {
        bytes.iter().fold(0, |sum: u32, byte| sum.wrapping_mul(K).wrapping_add(u32::from(*byte) + 1))
    }

    pub(crate) fn combined(first: u32, second: u32, len: u64) -> u32 {
        (0..len).fold(first, |sum, _| sum.wrapping_mul(K)).wrapping_add(second)
    }

    #[test]
    fn parts_in_any_order_give_the_sum_of_the_whole() {
        let bytes: Vec<u8> = (0..24).collect();
        let cuts = [0_usize, 1, 7, 12, 13, 24];
        let parts: Vec<(usize, usize)> = cuts.windows(2).map(|cut| (cut[0], cut[1])).collect();
        for order in 0..120_usize {
            let (mut left, mut code) = (parts.clone(), order);
            let mut filling = Filling::new(24, combined);
            while !left.is_empty() {
                assert!(filling.sum().is_none() && filling.first_hole().is_some());
                let (from, to) = left.remove(code % left.len());
                code /= left.len() + 1;
                filling.begin(from as u64, (to - from) as u64);
                filling.written(from as u64, (to - from) as u64, sum_of(&bytes[from..to]));
            }
            assert_eq!((filling.first_hole(), filling.sum()), (None, Some(sum_of(&bytes))), "order {order}");
        }
    }

    #[test]
    fn against_a_list_of_bytes_whatever_is_written_and_whatever_fails() {
        const SIZE: u64 = 12;
        let mut state = 7_u64;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        let (mut known, mut read) = (0, 0);
        for _ in 0..4_000 {
            let mut filling = Filling::new(SIZE, combined);
            let mut bytes = [None; SIZE as usize];
            for _ in 0..below(9) {
                let offset = below(SIZE);
                let len = below(SIZE - offset) + 1;
                filling.begin(offset, len);
                let fails = below(6) == 0;
                let values: Vec<u8> = (0..len).map(|_| below(250) as u8).collect();
                for (at, value) in (offset..).zip(&values) {
                    bytes[at as usize] = (!fails).then_some(*value);
                }
                if !fails {
                    filling.written(offset, len, sum_of(&values));
                }
                let hole = bytes.iter().position(Option::is_none).map(|from| {
                    let to = bytes[from..].iter().position(Option::is_some).map_or(bytes.len(), |to| from + to);
                    (from as u64, to as u64)
                });
                assert_eq!(filling.first_hole(), hole, "{filling:?}");
                match (hole, filling.sum()) {
                    (Some(_), sum) => assert_eq!(sum, None),
                    (None, None) => read += 1,
                    (None, Some(sum)) => {
                        let bytes: Vec<u8> = bytes.iter().copied().flatten().collect();
                        assert_eq!(sum, sum_of(&bytes), "{filling:?}");
                        known += 1;
                    }
                }
            }
        }
        assert!(known > 50 && read > 500, "{known} {read}");
    }

    #[test]
    fn what_lies_outside_is_none_of_its_bytes() {
        let filling = Filling::new(10, combined);
        assert!(filling.has(0, 10) && filling.has(10, 0) && !filling.has(10, 1) && !filling.has(u64::MAX, 2));
    }
}
