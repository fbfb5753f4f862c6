//! The allocator against a map of granules.

use mooncake_core::Extents;
use proptest::prelude::*;

const TOTAL: u32 = 96;

#[derive(Debug, Clone)]
enum Step {
    Allocate(u32),
    TakeAt(u32, u32),
    FreeNth(usize),
    FreeWrong(u32, u32),
    Populate(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..20u32).prop_map(Step::Allocate),
        2 => (0..TOTAL + 4, 1..20u32).prop_map(|(start, len)| Step::TakeAt(start, len)),
        4 => any::<usize>().prop_map(Step::FreeNth),
        1 => (0..TOTAL, 1..20u32).prop_map(|(start, len)| Step::FreeWrong(start, len)),
        1 => (0..TOTAL + 9).prop_map(Step::Populate),
    ]
}

/// Granules as they are: taken or free, and how far they are populated.
struct Model {
    taken: [bool; TOTAL as usize],
    limit: u32,
}

impl Model {
    fn runs(&self) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for granule in (0..self.limit).filter(|granule| !self.taken[*granule as usize]) {
            match runs.last_mut() {
                Some((start, len)) if *start + *len == granule => *len += 1,
                _ => runs.push((granule, 1)),
            }
        }
        runs
    }

    fn all(&self, start: u32, len: u32, taken: bool) -> bool {
        start + len <= TOTAL && (start..start + len).all(|granule| self.taken[granule as usize] == taken)
    }

    fn set(&mut self, start: u32, len: u32, taken: bool) {
        (start..start + len).for_each(|granule| self.taken[granule as usize] = taken);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn it_agrees_with_a_map_of_granules(steps in proptest::collection::vec(step(), 1..120)) {
        let mut extents = Extents::new(TOTAL);
        let mut model = Model { taken: [false; TOTAL as usize], limit: 0 };
        let mut held: Vec<(u32, u32)> = Vec::new();
        for step in steps {
            match step {
                Step::Allocate(len) => {
                    let found = extents.find(len);
                    let best = model.runs().iter().map(|run| run.1).filter(|run| *run >= len).min();
                    prop_assert_eq!(found.is_some(), best.is_some());
                    if let Some(start) = found {
                        let run = model.runs().into_iter().find(|run| run.0 == start);
                        prop_assert_eq!(run.map(|run| run.1), best, "best fit, at the start of its run");
                        extents.take(start, len).unwrap();
                        model.set(start, len, true);
                        held.push((start, len));
                    }
                }
                Step::TakeAt(start, len) => {
                    let free = model.all(start, len, false);
                    prop_assert_eq!(extents.take(start, len).is_ok(), free);
                    if free {
                        model.limit = model.limit.max(start + len);
                        model.set(start, len, true);
                        held.push((start, len));
                    }
                }
                Step::FreeNth(nth) if !held.is_empty() => {
                    let (start, len) = held.swap_remove(nth % held.len());
                    extents.give(start, len).unwrap();
                    model.set(start, len, false);
                }
                Step::FreeNth(_) => {}
                Step::FreeWrong(start, len) => {
                    if !model.all(start, len, true) {
                        prop_assert!(extents.give(start, len).is_err());
                    }
                }
                Step::Populate(limit) => {
                    extents.raise_limit(limit);
                    model.limit = model.limit.max(limit.min(TOTAL));
                }
            }
            let runs = model.runs();
            prop_assert_eq!(extents.free_runs().collect::<Vec<_>>(), runs.clone());
            prop_assert_eq!(extents.free(), runs.iter().map(|run| run.1).sum::<u32>());
            prop_assert_eq!(extents.largest(), runs.iter().map(|run| run.1).max().unwrap_or(0));
            prop_assert_eq!(extents.limit(), model.limit);
        }
    }
}
