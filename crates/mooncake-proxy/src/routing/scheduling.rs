//! Which instance a request goes to.

use std::collections::hash_map::RandomState;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::instances::instance::{Instance, InstanceNo, Kind, Lease};
use crate::request::Fields;
use crate::routing::prefix::{BLOCK, History, Prompt};

/// What a request under way weighs, in blocks to be computed: between two equal instances, the idle one is taken.
const OF_A_REQUEST: u64 = 2;

/// What it costs to have a prompt computed elsewhere than it is decoded: in blocks, once, and for each block that the
/// decode instance then fetches, in parts of one that is computed.
const ELSEWHERE: u64 = 2;
const FETCHED_PARTS: u64 = 4;

/// A block that a decode instance computes holds up all that it decodes meanwhile: it counts as so many.
const DISTURBING: u64 = 3;

/// So many more requests under way are no reason to decode where less of the prompt is known.
const SLACK: u32 = 4;

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

impl Scheduling {
    /// All of them.
    pub const ALL: [Scheduling; 3] = [Scheduling::RoundRobin, Scheduling::LeastLoaded, Scheduling::CacheAware];

    /// As a command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Scheduling::RoundRobin => "round_robin",
            Scheduling::LeastLoaded => "least_loaded",
            Scheduling::CacheAware => "cache_aware",
        }
    }
}

impl FromStr for Scheduling {
    type Err = String;

    fn from_str(text: &str) -> Result<Scheduling, String> {
        let found = Scheduling::ALL.into_iter().find(|one| one.name() == text);
        found.ok_or_else(|| format!("{text:?} is no scheduling: round_robin, least_loaded or cache_aware"))
    }
}

/// Where a prompt is computed.
#[derive(Debug)]
pub(crate) enum Route {
    /// There.
    Prefill(Lease),
    /// Where it is decoded, which is cheaper.
    DecodeOnly,
    /// No prefill instance is in service.
    None,
}

/// Chooses, and remembers what it needs for that.
#[derive(Debug)]
pub(crate) struct Scheduler {
    how: Scheduling,
    rotation: [AtomicUsize; 2],
    hasher: RandomState,
    history: Mutex<History>,
}

impl Scheduler {
    /// `cache` bytes of text are taken to be in an instance's cache.
    pub fn new(how: Scheduling, cache: usize) -> Scheduler {
        let history = Mutex::new(History::new(cache / BLOCK));
        Scheduler { how, rotation: Default::default(), hasher: RandomState::new(), history }
    }

    /// A request's prompt, as far as it matters for the choice.
    pub fn prompt(&self, fields: &Fields<'_>) -> Prompt {
        match self.how {
            Scheduling::CacheAware => Prompt::of(&self.hasher, fields.circumstances(), fields.prompt()),
            _ => Prompt::default(),
        }
    }

    /// Takes one of these prefill instances for a prompt that one of those decode instances will go on with.
    pub fn prefill(&self, from: &[Arc<Instance>], decode: &[Arc<Instance>], prompt: &Prompt) -> Route {
        if self.how != Scheduling::CacheAware {
            return self.take_without_history(from).map_or(Route::None, Route::Prefill);
        }
        let mut history = self.history.lock();
        let new = |one: &Instance| prompt.blocks - history.seen(one.number, &prompt.hashes) as u64;
        let cost = |one: &Instance| new(one) + one.backlog() + u64::from(one.under_way()) * OF_A_REQUEST;
        let Some(best) = self.rotated(from).min_by_key(|one| cost(one)) else { return Route::None };
        if let Some(decode) = best_decode(&history, self.rotated(decode), prompt) {
            let missing = new(decode);
            let there = cost(best) + ELSEWHERE + missing.div_ceil(FETCHED_PARTS);
            if missing * DISTURBING + decode.backlog() <= there {
                return Route::DecodeOnly;
            }
        }
        let lease = best.take(new(best));
        history.sent(best.number, &prompt.hashes);
        Route::Prefill(lease)
    }

    /// Takes one of these decode instances; `computes` if it has to compute the prompt itself. None if there are none.
    pub fn decode(&self, from: &[Arc<Instance>], prompt: &Prompt, computes: bool) -> Option<Lease> {
        if self.how != Scheduling::CacheAware {
            return self.take_without_history(from);
        }
        let mut history = self.history.lock();
        let best = best_decode(&history, self.rotated(from), prompt)?;
        let new = prompt.blocks - history.seen(best.number, &prompt.hashes) as u64;
        let lease = best.take(if computes { new } else { 0 });
        history.sent(best.number, &prompt.hashes);
        Some(lease)
    }

    /// An instance was removed, or lost its cache.
    pub fn forget(&self, instance: InstanceNo) {
        self.history.lock().forget(instance);
    }

    /// These, so that equals take turns.
    fn rotated<'a>(&self, from: &'a [Arc<Instance>]) -> impl Iterator<Item = &'a Arc<Instance>> + Clone + use<'a> {
        let rotation = from.first().map_or(0, |one| {
            let rotation = &self.rotation[usize::from(one.kind == Kind::Decode)];
            rotation.fetch_add(1, Ordering::Relaxed) % from.len()
        });
        from[rotation..].iter().chain(&from[..rotation])
    }

    /// Takes the next one, or of those with the fewest requests the next one: whatever their caches hold.
    fn take_without_history(&self, from: &[Arc<Instance>]) -> Option<Lease> {
        let mut rotated = self.rotated(from);
        let best = match self.how {
            Scheduling::RoundRobin => rotated.next(),
            _ => rotated.min_by_key(|one| one.under_way()),
        };
        Some(best?.take(0))
    }
}

/// Of the decode instances with about the fewest requests, the one that knows most of the prompt.
fn best_decode<'a>(
    history: &History,
    from: impl Iterator<Item = &'a Arc<Instance>> + Clone,
    prompt: &Prompt,
) -> Option<&'a Arc<Instance>> {
    let least = from.clone().map(|one| one.under_way()).min()?;
    let near = from.filter(|one| one.under_way() <= least + SLACK + least / 4);
    near.min_by_key(|one| (usize::MAX - history.seen(one.number, &prompt.hashes), one.under_way()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CACHE: usize = 1 << 20;

    fn fleet(numbers: std::ops::Range<u32>, kind: Kind) -> Vec<Arc<Instance>> {
        let one = |number| Arc::new(Instance::new(number, kind, format!("127.0.0.1:{}", number + 1).parse().unwrap()));
        numbers.map(one).collect()
    }

    fn prefill(scheduler: &Scheduler, fleet: &[Arc<Instance>], prompt: &Prompt) -> Lease {
        match scheduler.prefill(fleet, &[], prompt) {
            Route::Prefill(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    fn prompt(scheduler: &Scheduler, letter: char, blocks: usize) -> Prompt {
        let body = format!(r#"{{"prompt":"{}"}}"#, letter.to_string().repeat(blocks * BLOCK));
        scheduler.prompt(&Fields::of(body.as_bytes()).unwrap())
    }

    #[test]
    fn round_robin_takes_turns_for_each_kind() {
        let scheduler = Scheduler::new(Scheduling::RoundRobin, CACHE);
        let (from, to, any) = (fleet(0..3, Kind::Prefill), fleet(3..5, Kind::Decode), Prompt::default());
        let computed: Vec<u32> = (0..4).map(|_| prefill(&scheduler, &from, &any).instance.number).collect();
        let decoded: Vec<u32> = (0..3).map(|_| scheduler.decode(&to, &any, false).unwrap().instance.number).collect();
        assert_eq!((computed, decoded), (vec![0, 1, 2, 0], vec![3, 4, 3]));
        assert!(matches!(scheduler.prefill(&[], &to, &any), Route::None));
        assert!(scheduler.decode(&[], &any, false).is_none());
    }

    #[test]
    fn the_least_loaded_has_the_fewest_requests_under_way() {
        let scheduler = Scheduler::new(Scheduling::LeastLoaded, CACHE);
        let fleet = fleet(0..3, Kind::Decode);
        let held: Vec<Lease> = (0..5).map(|_| scheduler.decode(&fleet, &Prompt::default(), false).unwrap()).collect();
        let loads: Vec<u32> = fleet.iter().map(|one| one.under_way()).collect();
        assert!(loads.iter().all(|load| (1..=2).contains(load)), "{loads:?}");
        drop(held);
    }

    #[test]
    fn a_prompt_goes_where_its_beginning_is_known_unless_that_one_has_too_much_to_do() {
        let scheduler = Scheduler::new(Scheduling::CacheAware, CACHE);
        let fleet = fleet(0..2, Kind::Prefill);
        let long = prompt(&scheduler, 'a', 20);
        let first = prefill(&scheduler, &fleet, &long).instance.number;
        for _ in 0..6 {
            assert_eq!(prefill(&scheduler, &fleet, &long).instance.number, first);
        }
        // It has been given a prompt of 30 blocks that nobody knows; this one's 20 are computed sooner elsewhere.
        let _busy = fleet[first as usize].take(30);
        assert_eq!(prefill(&scheduler, &fleet, &long).instance.number, 1 - first);
        // What was removed knows nothing any more.
        scheduler.forget(first);
        assert_eq!(scheduler.history.lock().seen(first, &long.hashes), 0);
    }

    #[test]
    fn a_prompt_is_computed_where_it_is_decoded_if_that_is_cheaper() {
        let scheduler = Scheduler::new(Scheduling::CacheAware, CACHE);
        let (from, to) = (fleet(0..1, Kind::Prefill), fleet(1..3, Kind::Decode));
        let long = prompt(&scheduler, 'a', 40);
        assert!(matches!(scheduler.prefill(&from, &to, &long), Route::Prefill(_)), "both are idle, and it is long");
        let there = scheduler.decode(&to, &long, false).unwrap().instance.number;
        assert!(matches!(scheduler.prefill(&from, &to, &long), Route::DecodeOnly), "that one knows all of it now");
        for _ in 0..4 {
            assert_eq!(scheduler.decode(&to, &long, true).unwrap().instance.number, there);
        }
        let other = prompt(&scheduler, 'b', 40);
        let _queue = from[0].take(200);
        assert!(matches!(scheduler.prefill(&from, &to, &other), Route::DecodeOnly), "it would wait for long");
        let computing: Vec<Lease> = (0..6).map(|_| scheduler.decode(&to, &other, true).unwrap()).collect();
        assert!(computing[0].instance.backlog() > 0);
        // What one knows is worth no queue there.
        let places: Vec<u32> = computing.iter().map(|lease| lease.instance.number).collect();
        assert!(places.contains(&1) && places.contains(&2), "{places:?}");
    }
}
