//! What no policy of eviction exceeds (Belady's MIN).

use std::collections::{BinaryHeap, HashMap};

use crate::trace::Trace;

/// No request asks for the block again.
const NEVER: u32 = u32::MAX;

/// Blocks found by a pool that knows what comes. Between two requests it holds the blocks that come back soonest, as
/// many as it has room for, and nothing that never does (a policy that must keep what it has just stored finds less or
/// as much).
///
/// A block that is held from one request to the next that asks for it is a hit, and takes its room for that interval.
/// So the most hits are the most intervals of which no more overlap than there is room: giving up the one that ends
/// last, whenever there is one too many, leaves as many as any other choice.
///
/// A block takes room here from the request that brings it on. One whose put waits lies in its client's memory
/// meanwhile, so that a pool which has less room than its clients have in hand may find more; what it finds is then the
/// bound that is told.
///
/// Where a block always has the same ones before it, as in a trace of prefix hashes, those come back as soon as it does
/// or sooner. What is found is then a run from a prompt's beginning, and this bounds what engines can use.
pub(crate) struct Bound {
    /// Of each access, the number of the next request that has the block.
    next: Vec<u32>,
}

impl Bound {
    /// Of a trace, for any room.
    pub fn of(trace: &Trace) -> Bound {
        let mut last: HashMap<u32, u32> = HashMap::with_capacity(trace.distinct() as usize);
        let mut next = Vec::with_capacity(trace.blocks() as usize);
        for (nth, request) in trace.requests().enumerate().rev() {
            for block in request.blocks.iter().rev() {
                next.push(last.insert(*block, nth as u32).unwrap_or(NEVER));
            }
        }
        next.reverse();
        Bound { next }
    }

    /// The most blocks that are found with room for so many.
    pub fn best(&self, trace: &Trace, room: u32) -> u64 {
        let (mut ends, mut held, mut hits) = (BinaryHeap::new(), 0, 0);
        // By request, how many of the blocks that are held come back with it.
        let mut found = vec![0_u32; trace.requests().len()];
        let mut next = self.next.iter();
        for (nth, request) in trace.requests().enumerate() {
            hits += u64::from(found[nth]);
            held -= found[nth];
            for end in next.by_ref().take(request.blocks.len()).copied().filter(|end| *end != NEVER) {
                ends.push(end);
                found[end as usize] += 1;
                held += 1;
            }
            // Those that came back are still in the heap, below all that are held.
            while held > room
                && let Some(end) = ends.pop()
            {
                found[end as usize] -= 1;
                held -= 1;
            }
        }
        hits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Dice, trace_of};

    fn best(requests: &[&[i128]], room: u32) -> u64 {
        let trace = trace_of(requests);
        Bound::of(&trace).best(&trace, room)
    }

    #[test]
    fn what_comes_back_soonest_is_kept() {
        // Belady's own kind of example: a loop that is one longer than the room. LRU finds nothing.
        let around: [&[i128]; 9] = [&[1], &[2], &[3], &[1], &[2], &[3], &[1], &[2], &[3]];
        assert_eq!([0, 1, 2, 3].map(|room| best(&around, room)), [0, 2, 4, 6]);
    }

    #[test]
    fn a_request_finds_what_was_there_before_it_and_stores_behind_that() {
        // With room for one: 2 is found by the second request, which stores 1 in its place.
        assert_eq!(best(&[&[2], &[1, 2], &[1]], 1), 2);
    }

    #[test]
    fn no_choice_finds_more() {
        let mut dice = Dice(7);
        for _ in 0..300 {
            let requests: Vec<Vec<i128>> = (0..dice.below(6) + 2)
                .map(|_| (0..dice.below(3) + 1).map(|_| i128::from(dice.below(5))).collect())
                .collect();
            let trace = trace_of(&requests.iter().map(Vec::as_slice).collect::<Vec<_>>());
            for room in 0..4 {
                assert_eq!(Bound::of(&trace).best(&trace, room), exhaustive(&trace, room), "{requests:?}, {room}");
            }
        }
    }

    /// By trying everything: what is held is a set of bits.
    fn exhaustive(trace: &Trace, room: u32) -> u64 {
        let mut states: HashMap<u32, u64> = HashMap::from([(0, 0)]);
        for request in trace.requests() {
            let asked = request.blocks.iter().fold(0_u32, |bits, block| bits | 1 << block);
            let mut after: HashMap<u32, u64> = HashMap::new();
            for (held, hits) in states {
                let hits = hits + u64::from((held & asked).count_ones());
                let all = held | asked;
                for kept in (0..=all).filter(|kept| kept & !all == 0 && kept.count_ones() <= room) {
                    let most = after.entry(kept).or_default();
                    *most = hits.max(*most);
                }
            }
            states = after;
        }
        states.into_values().max().unwrap_or(0)
    }
}
