//! Which instances have seen the beginning of a prompt: the proxy's own history, by blocks.
//!
//! A prompt is cut into blocks of bytes, and each block has a hash of itself and of all before it, so that equal
//! hashes mean equal beginnings. The proxy does not know what an engine still has in its cache. It assumes the
//! blocks that it sent there last, as many as fit.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher};

use crate::instances::instance::InstanceNo;

/// Bytes of a block: some 250 tokens of English.
pub(crate) const BLOCK: usize = 1024;

/// Longest beginning that is looked at, in blocks. What follows makes no choice better.
const BLOCKS_MAX: usize = 1024;

/// A prompt, for the choice of an instance.
#[derive(Debug, Default)]
pub(crate) struct Prompt {
    /// The hashes of its blocks, first to last, each of all blocks up to it; an incomplete last one has none.
    pub hashes: Vec<u64>,
    /// Blocks that it has, the incomplete one and those beyond the longest beginning too.
    pub blocks: u64,
}

impl Prompt {
    /// `circumstances` have a part in every hash.
    pub fn of<'a>(hasher: &RandomState, circumstances: impl Iterator<Item = &'a [u8]>, prompt: &[u8]) -> Prompt {
        let mut state = hasher.build_hasher();
        for one in circumstances {
            state.write_usize(one.len());
            state.write(one);
        }
        let mut before = state.finish();
        let hash = |block: &[u8]| {
            let mut state = hasher.build_hasher();
            state.write_u64(before);
            state.write(block);
            before = state.finish();
            before
        };
        let hashes = prompt.chunks_exact(BLOCK).take(BLOCKS_MAX).map(hash).collect();
        Prompt { hashes, blocks: prompt.len().div_ceil(BLOCK) as u64 }
    }
}

/// What was sent where.
#[derive(Debug)]
pub(crate) struct History {
    /// Blocks remembered for each instance.
    most: usize,
    by_instance: HashMap<InstanceNo, Sent>,
    clock: u64,
}

/// The blocks sent to one instance, by when they were last.
#[derive(Debug, Default)]
struct Sent {
    last: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
}

impl History {
    pub fn new(most: usize) -> History {
        History { most, by_instance: HashMap::new(), clock: 0 }
    }

    /// How many of a prompt's first blocks, by their hashes, an instance has seen.
    pub fn seen(&self, instance: InstanceNo, hashes: &[u64]) -> usize {
        let Some(sent) = self.by_instance.get(&instance) else { return 0 };
        hashes.iter().take_while(|hash| sent.last.contains_key(*hash)).count()
    }

    /// A prompt goes to an instance. Its end is forgotten before its beginning, which others may share.
    pub fn sent(&mut self, instance: InstanceNo, hashes: &[u64]) {
        let sent = self.by_instance.entry(instance).or_default();
        for hash in hashes.iter().rev() {
            self.clock += 1;
            if let Some(before) = sent.last.insert(*hash, self.clock) {
                sent.order.remove(&before);
            }
            sent.order.insert(self.clock, *hash);
        }
        while sent.order.len() > self.most {
            let (_, hash) = sent.order.pop_first().expect("it has more than it may");
            sent.last.remove(&hash);
        }
    }

    /// An instance was removed, or lost what it had.
    pub fn forget(&mut self, instance: InstanceNo) {
        self.by_instance.remove(&instance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_hashes_mean_equal_beginnings() {
        let hasher = RandomState::new();
        let of =
            |model: &'static str, prompt: &[u8]| Prompt::of(&hasher, [model.as_bytes()].into_iter(), prompt).hashes;
        let prompt: Vec<u8> = (0..5 * BLOCK).map(|n| (n / 7) as u8).collect();
        let all = of("m", &prompt);
        assert_eq!(all.len(), 5);
        assert_eq!(of("m", &prompt[..3 * BLOCK + 9]), all[..3]);
        assert_eq!(Prompt::of(&hasher, std::iter::empty(), &prompt[..3 * BLOCK + 9]).blocks, 4);
        let mut other = prompt.clone();
        other[0] ^= 1;
        assert!(of("another", &prompt).iter().zip(&all).all(|(one, two)| one != two));
        assert!(
            of("m", &other).iter().zip(&all).all(|(one, two)| one != two),
            "the hash of a block is of all before it, too"
        );
    }

    #[test]
    fn the_beginning_is_remembered_longest() {
        let mut history = History::new(4);
        history.sent(1, &[1, 2, 3]);
        assert_eq!((history.seen(1, &[1, 2, 9]), history.seen(2, &[1]), history.seen(1, &[2])), (2, 0, 1));
        history.sent(1, &[1, 2, 4, 5]);
        assert_eq!((history.seen(1, &[1, 2, 4, 5]), history.seen(1, &[1, 2, 3])), (4, 2));
        history.sent(1, &[7, 8]);
        assert_eq!(history.seen(1, &[1, 2, 4, 5]), 2, "what came after them has gone first");
        history.forget(1);
        assert_eq!(history.seen(1, &[7]), 0);
    }
}
