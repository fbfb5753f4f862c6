//! Which instance a request goes to.

use std::collections::hash_map::RandomState;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::instance::{Instance, Kind, Lease};
use crate::prefix::{History, InstanceNo, blocks};

/// Blocks that are taken to be in an instance's own cache: 200,000 of them are about 50 million tokens' worth of text.
const REMEMBERED: usize = 200_000;

/// What a request under way weighs, in blocks to be computed: between two equal instances, the idle one is taken.
const OF_A_REQUEST: u64 = 2;

/// How instances are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheduling {
    /// One after the other.
    #[default]
    RoundRobin,
    /// The one with the fewest requests under way.
    LeastLoaded,
    /// The one that will have computed the prompt first: what it has queued and what of this prompt is new to it.
    CacheAware,
}

impl FromStr for Scheduling {
    type Err = String;

    fn from_str(text: &str) -> Result<Scheduling, String> {
        match text {
            "round_robin" => Ok(Scheduling::RoundRobin),
            "least_loaded" => Ok(Scheduling::LeastLoaded),
            "cache_aware" => Ok(Scheduling::CacheAware),
            _ => Err(format!("{text:?} is no scheduling: round_robin, least_loaded or cache_aware")),
        }
    }
}

/// Chooses, and remembers what it needs for that.
#[derive(Debug)]
pub(crate) struct Scheduler {
    how: Scheduling,
    turn: [AtomicUsize; 2],
    hasher: RandomState,
    history: Mutex<History>,
}

impl Scheduler {
    pub fn new(how: Scheduling) -> Scheduler {
        let history = Mutex::new(History::new(REMEMBERED));
        Scheduler { how, turn: Default::default(), hasher: RandomState::new(), history }
    }

    /// The names of a prompt's blocks, as far as they matter for the choice.
    pub fn blocks(&self, prompt: &[u8]) -> Vec<u64> {
        match self.how {
            Scheduling::CacheAware => blocks(&self.hasher, prompt),
            _ => Vec::new(),
        }
    }

    /// Takes one of these for a prompt; none if there are none.
    pub fn choose(&self, from: &[Arc<Instance>], blocks: &[u64]) -> Option<Lease> {
        let first = from.first()?;
        let turn = self.turn[usize::from(first.kind == Kind::Decode)].fetch_add(1, Ordering::Relaxed) % from.len();
        // Equals take turns.
        let in_turn = || from[turn..].iter().chain(&from[..turn]);
        // What is decoded is computed elsewhere: there the load alone matters.
        if self.how == Scheduling::CacheAware && first.kind == Kind::Prefill {
            let mut history = self.history.lock();
            let new = |one: &Instance| (blocks.len() - history.seen(one.number, blocks)) as u64;
            let cost = |one: &Instance| new(one) + one.backlog() + u64::from(one.in_flight()) * OF_A_REQUEST;
            let best = in_turn().min_by_key(|one| cost(one))?;
            let lease = best.take(new(best));
            history.sent(best.number, blocks);
            return Some(lease);
        }
        let best = match self.how {
            Scheduling::RoundRobin => in_turn().next()?,
            _ => in_turn().min_by_key(|one| one.in_flight())?,
        };
        Some(best.take(0))
    }

    /// An instance has left, or lost its cache.
    pub fn forget(&self, instance: InstanceNo) {
        self.history.lock().forget(instance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::BLOCK;

    fn fleet(count: u32, kind: Kind) -> Vec<Arc<Instance>> {
        let one = |number| Arc::new(Instance::new(number, kind, format!("127.0.0.1:{}", number + 1).parse().unwrap()));
        (0..count).map(one).collect()
    }

    fn numbers(scheduler: &Scheduler, fleet: &[Arc<Instance>], blocks: &[u64], times: usize) -> Vec<u32> {
        (0..times).map(|_| scheduler.choose(fleet, blocks).unwrap().instance.number).collect()
    }

    #[test]
    fn round_robin_takes_turns_for_each_kind() {
        let (scheduler, prefill, decode) =
            (Scheduler::new(Scheduling::RoundRobin), fleet(3, Kind::Prefill), fleet(2, Kind::Decode));
        assert_eq!(numbers(&scheduler, &prefill, &[], 4), [0, 1, 2, 0]);
        assert_eq!(numbers(&scheduler, &decode, &[], 3), [0, 1, 0]);
        assert!(scheduler.choose(&[], &[]).is_none());
    }

    #[test]
    fn the_least_loaded_has_the_fewest_requests_under_way() {
        let (scheduler, fleet) = (Scheduler::new(Scheduling::LeastLoaded), fleet(3, Kind::Decode));
        let held: Vec<Lease> = (0..5).map(|_| scheduler.choose(&fleet, &[]).unwrap()).collect();
        let loads: Vec<u32> = fleet.iter().map(|one| one.in_flight()).collect();
        assert!(loads.iter().all(|load| (1..=2).contains(load)), "{loads:?}");
        drop(held);
    }

    #[test]
    fn a_prompt_goes_where_its_beginning_is_known_unless_that_one_has_too_much_to_do() {
        let (scheduler, fleet) = (Scheduler::new(Scheduling::CacheAware), fleet(2, Kind::Prefill));
        let prompt = vec![7; 20 * BLOCK];
        let blocks = scheduler.blocks(&prompt);
        let first = numbers(&scheduler, &fleet, &blocks, 1)[0];
        assert_eq!(numbers(&scheduler, &fleet, &blocks, 6), [first; 6]);
        // It has been given a prompt of 30 blocks that nobody knows; this one's 20 are computed sooner elsewhere.
        let _busy = fleet[first as usize].take(30);
        assert_eq!(numbers(&scheduler, &fleet, &blocks, 1), [1 - first]);
        // What has left knows nothing any more.
        scheduler.forget(first);
        assert_eq!(scheduler.history.lock().seen(first, &blocks), 0);
    }
}
