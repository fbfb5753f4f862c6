//! Points of the curve: what pools of several sizes find.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use mooncake_ids::{GRANULE, granules};

use crate::bound::Bound;
use crate::pool::Pool;
use crate::put::round_of;
use crate::trace::Trace;

/// Within this share of the least size the search for it ends.
const NEAR_ENOUGH: f64 = 0.02;

/// What a simulated pool is like.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Bytes of a block: they say how many of them a client puts at a time.
    pub block_bytes: u64,
    /// How long an existence query protects what it found.
    pub lookup_protect_ms: u64,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { block_bytes: 1 << 20, lookup_protect_ms: 2_000 }
    }
}

impl Rules {
    /// How many blocks so many bytes have room for. A block takes whole granules.
    pub fn room_of(&self, bytes: u64) -> u64 {
        bytes / (granules(self.block_bytes.max(1)) * GRANULE)
    }

    /// Bytes that room for so many blocks takes.
    pub fn bytes_of(&self, room: u32) -> u64 {
        u64::from(room).saturating_mul(granules(self.block_bytes.max(1)) * GRANULE)
    }
}

/// What a pool of a size finds of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Blocks that it has room for.
    pub room: u32,
    /// Blocks found from the beginnings of prompts up to the first that is missing: engines use these.
    pub found: u64,
    /// Blocks found anywhere in prompts.
    pub any: u64,
    /// The most blocks that a pool of this size could find if it knew what comes.
    pub best: u64,
    /// Blocks that were not stored: there was no room for them in time.
    pub not_stored: u64,
}

/// A pool of one size.
pub fn point(trace: &Trace, rules: &Rules, room: u32) -> Point {
    simulate(trace, &Bound::of(trace), rules, room)
}

/// Pools of several sizes, as many at a time as there are processors. `done` is told how many are through.
pub fn points(trace: &Trace, rules: &Rules, rooms: &[u32], done: impl Fn(usize) + Sync) -> Vec<Point> {
    let bound = Bound::of(trace);
    let (next, through) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(room) = rooms.get(next.fetch_add(1, Ordering::Relaxed)) {
            let point = simulate(trace, &bound, rules, *room);
            let mut through = through.lock().unwrap_or_else(PoisonError::into_inner);
            through.push(point);
            done(through.len());
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from).min(rooms.len());
    thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(work);
        }
        work();
    });
    let through = through.into_inner().unwrap_or_else(PoisonError::into_inner);
    let of = |room: &u32| *through.iter().find(|point| point.room == *room).expect("each was simulated");
    rooms.iter().map(of).collect()
}

/// The smallest pool, or nearly, that finds so many blocks. `known` are points of which the search begins; none of them
/// may find as much. `done` is told how many sizes were tried.
pub fn least(trace: &Trace, rules: &Rules, goal: u64, known: &[Point], done: impl Fn(usize)) -> Option<Point> {
    let bound = Bound::of(trace);
    let finds = |point: &&Point| point.found >= goal;
    let mut enough = match known.iter().filter(finds).min_by_key(|point| point.room) {
        Some(point) => *point,
        None => Some(simulate(trace, &bound, rules, trace.distinct())).filter(|point| point.found >= goal)?,
    };
    let below = known.iter().filter(|point| point.found < goal && point.room < enough.room);
    let mut too_small = below.map(|point| point.room).max().unwrap_or(0);
    for tried in 1.. {
        let between = enough.room - too_small;
        if between <= 1 || f64::from(between) <= NEAR_ENOUGH * f64::from(enough.room) {
            break;
        }
        // In the middle of the two as people think of sizes: as many times the one as the other is times it.
        let middle = (f64::from(too_small.max(1)) * f64::from(enough.room)).sqrt() as u32;
        let point = simulate(trace, &bound, rules, middle.clamp(too_small + 1, enough.room - 1));
        match point.found >= goal {
            true => enough = point,
            false => too_small = point.room,
        }
        done(tried);
    }
    Some(enough)
}

fn simulate(trace: &Trace, bound: &Bound, rules: &Rules, room: u32) -> Point {
    let mut pool = Pool::new(room, round_of(rules.block_bytes), rules.lookup_protect_ms);
    let (mut found, mut any) = (0, 0);
    for request in trace.requests() {
        let at_once = pool.request(request);
        found += at_once.leading;
        any += at_once.any;
    }
    Point { room, found, any, best: bound.best(trace, room).max(any), not_stored: pool.given_up }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Dice, trace_of};

    fn rooms(trace: &Trace, rooms: &[u32]) -> Vec<Point> {
        points(trace, &Rules::default(), rooms, |_| ())
    }

    #[test]
    fn a_pool_that_finds_what_its_clients_have_in_hand_is_its_own_bound() {
        // The second block's put waits, as the first one was looked up a moment ago.
        let asked = [(0, 1), (10_000, 1), (10_000, 2), (10_500, 1), (11_100, 2)];
        let line = |(at, block)| format!("{{\"timestamp\":{at},\"hash_ids\":[{block}]}}\n");
        let text: String = asked.into_iter().map(line).collect();
        let trace = Trace::read(text.as_bytes()).unwrap();
        assert!(Bound::of(&trace).best(&trace, 1) < rooms(&trace, &[1])[0].found, "it is no bound then");
        for point in rooms(&trace, &[1, 2, 3]) {
            assert!(point.any <= point.best, "{point:?}");
        }
    }

    #[test]
    fn a_loop_that_is_longer_than_the_pool_finds_nothing_where_half_could_be_found() {
        let around: Vec<&[i128]> = [&[1_i128][..], &[2], &[3]].into_iter().cycle().take(12).collect();
        let found: Vec<(u64, u64)> =
            rooms(&trace_of(&around), &[1, 2, 3]).iter().map(|at| (at.found, at.best)).collect();
        assert_eq!(found, [(0, 3), (0, 6), (9, 9)]);
    }

    #[test]
    fn more_memory_finds_more_and_never_more_than_the_bound() {
        let mut dice = Dice(3);
        // A tree of prefixes: a prompt is a way from its root.
        let way = |dice: &mut Dice| {
            let mut node = 1;
            let deep = dice.below(6) + 1;
            (0..deep)
                .map(|_| {
                    node = node * 3 + i128::from(dice.below(2));
                    node
                })
                .collect::<Vec<i128>>()
        };
        let requests: Vec<Vec<i128>> = (0..200).map(|_| way(&mut dice)).collect();
        let trace = trace_of(&requests.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let all = trace.distinct();
        let points = rooms(&trace, &(1..=all).collect::<Vec<u32>>());
        for pair in points.windows(2) {
            assert!(pair[0].best <= pair[1].best && pair[0].any <= pair[1].any, "{pair:?}");
        }
        for point in &points {
            assert!(point.found <= point.any && point.any <= point.best, "{point:?}");
        }
        let last = points.last().unwrap();
        assert_eq!([last.found, last.any, last.best], [trace.blocks() - u64::from(all); 3]);
    }

    #[test]
    fn a_block_takes_whole_granules() {
        let rules = Rules { block_bytes: 1_500, ..Rules::default() };
        assert_eq!([2_047, 2_048, 6_143].map(|bytes| rules.room_of(bytes)), [0, 1, 2]);
        assert_eq!(rules.bytes_of(3), 6_144);
    }

    #[test]
    fn the_least_size_is_found_from_any_points() {
        let mut dice = Dice(5);
        let requests: Vec<[i128; 1]> = (0..400).map(|_| [i128::from(dice.below(40))]).collect();
        let trace = trace_of(&requests.iter().map(|request| &request[..]).collect::<Vec<_>>());
        let all = rooms(&trace, &(1..=trace.distinct()).collect::<Vec<u32>>());
        let goal = all.last().unwrap().found * 9 / 10;
        let smallest = *all.iter().find(|point| point.found >= goal).unwrap();
        for known in [vec![], vec![all[0]], vec![all[3], all[30], *all.last().unwrap()], vec![all[38]]] {
            assert_eq!(least(&trace, &Rules::default(), goal, &known, |_| ()), Some(smallest), "{known:?}");
        }
        assert_eq!(least(&trace, &Rules::default(), trace.blocks(), &[], |_| ()), None);
    }
}
