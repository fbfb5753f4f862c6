//! A call that puts blocks, in rounds, as `mooncake-client/src/machine/put` does it.

use std::collections::VecDeque;

use mooncake_core::{Ended, StartOutcome};
use mooncake_ids::Rid;

/// CRC-32C of a block: there are no bytes to check.
const CRC: u32 = 0;

/// Most keys of one request.
const KEYS_MAX: usize = 512;

/// Most bytes of one request.
const ROUND_BYTES: u64 = 64 << 20;

/// How many blocks of a size one request has.
pub(crate) fn round_of(block_bytes: u64) -> usize {
    usize::try_from(ROUND_BYTES / block_bytes.max(1)).map_or(KEYS_MAX, |blocks| blocks.clamp(1, KEYS_MAX))
}

/// What is left to do of a call.
#[derive(Debug)]
pub(crate) struct Put {
    /// Blocks that are not asked for now.
    pending: VecDeque<u32>,
    /// How many of them this pass over the call's blocks has yet to come to. What it leaves over goes to the next one.
    left: usize,
    /// Blocks that are asked for now.
    pub round: Vec<u32>,
    /// From the second pass on the master is to hold a request until it can be answered.
    pub waits: bool,
    /// Lowest rid that the call was given: what it has stored itself is spared.
    pub first_rid: Option<Rid>,
}

impl Put {
    /// Of blocks that a request has computed.
    pub fn of(blocks: &[u32]) -> Put {
        Put {
            pending: blocks.iter().copied().collect(),
            left: blocks.len(),
            round: Vec::new(),
            waits: blocks.len() == 1,
            first_rid: None,
        }
    }

    /// Goes on to the next round. False where there is none.
    pub fn next_round(&mut self, most: usize) -> bool {
        let count = most.min(self.left);
        self.left -= count;
        self.round = self.pending.drain(..count).collect();
        !self.round.is_empty()
    }

    /// The master's answer to this round: what has a place is written, and to be ended. The second is how many blocks
    /// the call gives up: the master has held their request until its deadline, and placed none of them.
    pub fn answered(&mut self, outcomes: Vec<StartOutcome>) -> (Vec<Ended>, u64) {
        let (mut ended, mut unplaced, mut progress) = (Vec::new(), Vec::new(), false);
        for (block, outcome) in self.round.drain(..).zip(outcomes) {
            match outcome {
                StartOutcome::Placed(replicas) => {
                    progress = true;
                    self.first_rid = replicas.iter().map(|replica| replica.rid).chain(self.first_rid).min();
                    let whole = replicas.iter().map(|replica| (replica.rid, true)).collect();
                    ended.push(Ended { replicas: whole, crc32c: CRC, stays: false });
                }
                StartOutcome::Exists => progress = true,
                _ => unplaced.push(block),
            }
        }
        let mut given_up = 0;
        match self.waits && !progress {
            true => given_up = unplaced.len() as u64,
            false => self.pending.extend(unplaced),
        }
        if self.left == 0 {
            self.waits = true;
            self.left = self.pending.len();
        }
        (ended, given_up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_as_many_blocks_as_a_clients() {
        assert_eq!([0, 1 << 10, 1 << 20, 64 << 20, 1 << 40].map(round_of), [512, 512, 64, 1, 1]);
    }

    #[test]
    fn what_a_round_leaves_over_is_asked_for_once_more_and_waits_then() {
        let full = || StartOutcome::Full(String::new());
        let mut put = Put::of(&[1, 2, 3]);
        assert!(put.next_round(2) && put.round == [1, 2] && !put.waits);
        assert_eq!(put.answered(vec![StartOutcome::Exists, full()]), (vec![], 0));
        assert!(put.next_round(2) && put.round == [3] && !put.waits);
        put.answered(vec![StartOutcome::Exists]);
        assert!(put.next_round(2) && put.round == [2] && put.waits);
        assert_eq!(put.answered(vec![full()]), (vec![], 1));
        assert!(!put.next_round(2));
    }
}
