//! Prompts of a trace, scheduled by the proxy's own code onto instances that exist only in virtual time.
//!
//! Each instance computes one prompt after the other at a given rate and keeps the blocks that it used last. What is
//! measured is what a choice of instance can change: how much of the prompts is found in the cache of the instance that
//! computes them, how evenly the rest is spread, and how long prompts take.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use crate::instances::instance::{Instance, Kind, Lease};
use crate::routing::prefix::{BLOCK, History, Prompt};
use crate::routing::scheduling::{Route, Scheduler, Scheduling};

/// Tokens of a block of a trace.
const TRACE_BLOCK: u64 = 512;

/// Bytes of text that a token is taken for.
const TEXT: u64 = 4;

/// The proxy's blocks in one of a trace.
const PARTS: u64 = TRACE_BLOCK * TEXT / BLOCK as u64;

/// One request of a trace, a line of JSON.
#[derive(Debug, Clone, Deserialize)]
pub struct Arrival {
    /// When it came, milliseconds.
    pub timestamp: u64,
    /// Tokens of its prompt.
    pub input_length: u64,
    /// Hashes of its blocks of 512 tokens; equal hashes mean equal beginnings.
    pub hash_ids: Vec<u64>,
}

/// The instances of a simulation.
#[derive(Debug, Clone, Copy)]
pub struct Town {
    /// How many prefill instances there are.
    pub instances: u32,
    /// Tokens that one of them computes in a second.
    pub tokens_per_second: u64,
    /// Tokens whose KV cache one of them holds.
    pub cache_tokens: u64,
    /// Text that the proxy takes for that, bytes.
    pub remembered: usize,
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Tokens found in the cache of the instance that had the prompt, as a share of all.
    pub hit_ratio: f64,
    /// Seconds that the busiest instance computed, by the mean of all.
    pub imbalance: f64,
    /// From a prompt's arrival until it was computed: the median, the 99th percentile and the mean.
    pub p50: Duration,
    /// The 99th percentile.
    pub p99: Duration,
    /// The mean.
    pub mean: Duration,
}

/// An instance in virtual time, microseconds.
#[derive(Debug, Default)]
struct SimulatedEngine {
    queue: VecDeque<(u64, usize, Lease)>,
    computing: Option<(u64, Lease)>,
    busy: u64,
}

/// Runs a trace. Arrivals are taken in the order of their timestamps.
pub fn simulate(trace: &[Arrival], town: Town, scheduling: Scheduling) -> Outcome {
    let name = |number: u32| Instance::new(number, Kind::Prefill, "127.0.0.1:1".parse().expect("it is an address"));
    let fleet: Vec<Arc<Instance>> = (0..town.instances).map(|number| Arc::new(name(number))).collect();
    let scheduler = Scheduler::new(scheduling, town.remembered);
    let mut caches = History::new((town.cache_tokens / TRACE_BLOCK) as usize);
    let mut engines: Vec<SimulatedEngine> = fleet.iter().map(|_| SimulatedEngine::default()).collect();
    // When a computation is over, and which engine's.
    let mut ends: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let (mut hits, mut all, mut times) = (0, 0, Vec::with_capacity(trace.len()));

    let mut order: Vec<usize> = (0..trace.len()).collect();
    order.sort_by_key(|at| trace[*at].timestamp);
    let mut arrivals = order.into_iter().peekable();
    loop {
        let next = arrivals.peek().map(|at| trace[*at].timestamp * 1000);
        let end = ends.peek().map(|Reverse((time, _))| *time);
        // What ends now makes room for what comes now.
        let (now, engine) = match (next, end) {
            (None, None) => break,
            (Some(next), None) => (next, None),
            (Some(next), Some(end)) if next < end => (next, None),
            (_, Some(_)) => {
                let Reverse((time, engine)) = ends.pop().expect("there is one");
                (time, Some(engine))
            }
        };
        let engine = match engine {
            Some(engine) => {
                let (arrived, _lease) = engines[engine].computing.take().expect("it computed");
                times.push(now - arrived);
                engine
            }
            None => {
                let at = arrivals.next().expect("there is one");
                let Route::Prefill(lease) = scheduler.prefill(&fleet, &[], &prompt(&trace[at])) else {
                    unreachable!("all of them are well, and none decodes")
                };
                let engine = lease.instance.number as usize;
                engines[engine].queue.push_back((now, at, lease));
                engine
            }
        };
        if engines[engine].computing.is_none()
            && let Some((arrived, at, lease)) = engines[engine].queue.pop_front()
        {
            let one = &trace[at];
            let known = (caches.seen(engine as u32, &one.hash_ids) as u64 * TRACE_BLOCK).min(one.input_length);
            caches.sent(engine as u32, &one.hash_ids);
            (hits, all) = (hits + known, all + one.input_length);
            let takes = (one.input_length - known).max(1) * 1_000_000 / town.tokens_per_second.max(1);
            engines[engine].busy += takes;
            engines[engine].computing = Some((arrived, lease));
            ends.push(Reverse((now + takes, engine)));
        }
    }
    times.sort_unstable();
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).or(times.last()).copied().unwrap_or(0);
    let busy: Vec<u64> = engines.iter().map(|engine| engine.busy).collect();
    let mean = busy.iter().sum::<u64>() as f64 / busy.len().max(1) as f64;
    Outcome {
        hit_ratio: hits as f64 / (all as f64).max(1.0),
        imbalance: busy.iter().max().copied().unwrap_or(0) as f64 / mean.max(1.0),
        p50: Duration::from_micros(at(0.5)),
        p99: Duration::from_micros(at(0.99)),
        mean: Duration::from_micros(times.iter().sum::<u64>() / (times.len() as u64).max(1)),
    }
}

/// What the proxy would see of it.
fn prompt(one: &Arrival) -> Prompt {
    // A trace's last block may be incomplete; it has a hash all the same.
    let hashes = one.hash_ids.iter().flat_map(|id| (0..PARTS).map(move |part| id * PARTS + part)).collect::<Vec<_>>();
    let blocks = (one.input_length * TEXT).div_ceil(BLOCK as u64).max(hashes.len() as u64);
    Prompt { hashes, blocks }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conversations: each turn goes on from the one before, and there are many at a time.
    fn conversations(count: u64, turns: u64) -> Vec<Arrival> {
        let turn = |conversation: u64, turn: u64| Arrival {
            timestamp: turn * 10_000 + conversation * 10_000 / count,
            input_length: (turn + 1) * 4 * TRACE_BLOCK,
            hash_ids: (0..(turn + 1) * 4).map(|block| conversation * 1_000_000 + block).collect(),
        };
        (0..turns).flat_map(|at| (0..count).map(move |one| turn(one, at))).collect()
    }

    #[test]
    fn what_is_known_is_found_again_and_no_instance_has_all_the_work() {
        let town = Town { instances: 4, tokens_per_second: 20_000, cache_tokens: 1_000_000, remembered: 4_000_000 };
        let trace = conversations(29, 8);
        let of = |scheduling| simulate(&trace, town, scheduling);
        let (turns, aware) = (of(Scheduling::RoundRobin), of(Scheduling::CacheAware));
        // A turn's new part is a fourth of its prompts on average; a cache that has all the rest hits 1 - 8 / 36.
        assert!(aware.hit_ratio > 0.75 && aware.hit_ratio <= 1.0 - 8.0 / 36.0, "{aware:?}");
        assert!(turns.hit_ratio < aware.hit_ratio - 0.1, "{turns:?} {aware:?}");
        assert!(aware.imbalance < 1.3 && aware.mean < turns.mean, "{turns:?} {aware:?}");
        let alone = simulate(&trace[..1], town, Scheduling::LeastLoaded);
        assert_eq!((alone.hit_ratio, alone.p50), (0.0, Duration::from_micros(2048 * 1_000_000 / 20_000)));
        assert!(simulate(&[], town, Scheduling::CacheAware).hit_ratio == 0.0);
    }
}
