//! How long operations hold the lock of the core.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::thread::{Events, Thread, cpu_time};

/// Holds before and behind one that count as its place in another run: hashes differ from run to run, and with them how
/// work is spread over neighbours.
const NEARBY: usize = 16;

/// Those of one kind.
#[derive(Debug, Default, Clone)]
pub struct Kind {
    /// Each one's time on the processor of the thread that held it.
    pub cpu: Vec<Duration>,
    /// The longest.
    pub longest: Duration,
    /// Longest time that others had to wait, which counts what else the machine did meanwhile.
    pub wall: Duration,
    /// What happened to the thread in the longest one.
    pub events: Events,
    /// The most that one left behind: records, messages, and keys of requests that it answered.
    pub steps: usize,
    /// The most entries of the core's tables that one looked at.
    pub touched: u32,
}

impl Kind {
    /// What all but one of a thousand take less than, or as long as.
    pub fn p999(&self) -> Duration {
        let mut sorted = self.cpu.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * 999).div_ceil(1_000);
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }

    /// The longest that has to do with the work: runs that did the same had one as long at the same place. What the
    /// machine does meanwhile (the time that a host gives to others, an interrupt) counts as processor time of the
    /// thread, and does not come again at the same place.
    pub fn recurring(runs: &[&Kind]) -> Duration {
        let most = runs.iter().map(|run| run.cpu.len()).max().unwrap_or(0);
        let around = |run: &Kind, at: usize| {
            let at = at.min(run.cpu.len().saturating_sub(1));
            let window = &run.cpu[at.saturating_sub(NEARBY)..run.cpu.len().min(at + NEARBY + 1)];
            window.iter().max().copied().unwrap_or_default()
        };
        (0..most).filter_map(|at| runs.iter().map(|run| around(run, at)).min()).max().unwrap_or_default()
    }

    /// All together.
    pub fn sum(&self) -> Duration {
        self.cpu.iter().sum()
    }
}

impl Default for Holds {
    fn default() -> Holds {
        Holds::new()
    }
}

/// Of each kind of operation.
#[derive(Debug)]
pub struct Holds {
    by_kind: BTreeMap<&'static str, Kind>,
    /// In which order they came.
    order: Vec<&'static str>,
    thread: Option<Thread>,
}

impl Holds {
    /// None yet. All of them are to be of the thread that calls.
    pub fn new() -> Holds {
        Holds { by_kind: BTreeMap::new(), order: Vec::new(), thread: Thread::this().ok() }
    }

    /// Does something and notes how long that took, and how much it says that it left behind.
    pub fn measure<R>(&mut self, kind: &'static str, hold: impl FnOnce() -> (R, usize)) -> R {
        let events = |thread: &Option<Thread>| thread.as_ref().map(Thread::events).unwrap_or_default();
        let before = events(&self.thread);
        let (began, wall) = (cpu_time(), Instant::now());
        let (result, steps) = hold();
        let (cpu, wall) = (cpu_time() - began, wall.elapsed());
        let events = events(&self.thread) - before;
        let kind = self.by_kind.entry(kind).or_insert_with(|| {
            self.order.push(kind);
            Kind::default()
        });
        if cpu > kind.longest {
            (kind.longest, kind.events) = (cpu, events);
        }
        kind.cpu.push(cpu);
        kind.wall = kind.wall.max(wall);
        kind.steps = kind.steps.max(steps);
        result
    }

    /// Notes how many entries of the core's tables the last one of a kind looked at.
    pub fn touched(&mut self, kind: &'static str, touched: u32) {
        let kind = self.by_kind.get_mut(kind).expect("it was measured");
        kind.touched = kind.touched.max(touched);
    }

    /// How many there were.
    pub fn count(&self) -> usize {
        self.by_kind.values().map(|kind| kind.cpu.len()).sum()
    }

    /// Those of one kind.
    pub fn of(&self, kind: &str) -> Option<&Kind> {
        self.by_kind.get(kind)
    }

    /// Each kind, in the order in which they came first.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Kind)> + '_ {
        self.order.iter().map(|kind| (*kind, &self.by_kind[kind]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(longer: &[(usize, u64)]) -> Kind {
        let mut cpu = vec![Duration::from_micros(100); 1_000];
        longer.iter().for_each(|(at, micros)| cpu[*at] = Duration::from_micros(*micros));
        Kind { cpu, ..Kind::default() }
    }

    #[test]
    fn a_hold_that_is_long_in_one_run_only_does_not_recur_and_one_that_is_long_in_all_does() {
        let runs =
            [run(&[(10, 9_000), (500, 700)]), run(&[(503, 800), (900, 5_000)]), run(&[(499, 600), (300, 4_000)])];
        assert_eq!(Kind::recurring(&runs.each_ref()), Duration::from_micros(600));
        assert_eq!(Kind::recurring(&[&runs[0]]), Duration::from_micros(9_000), "one run alone cannot tell");
    }

    #[test]
    fn runs_of_different_lengths_are_compared_up_to_the_end_of_the_longer_one() {
        let (short, long) = (Kind { cpu: vec![Duration::from_micros(300); 5], ..Kind::default() }, run(&[(999, 400)]));
        assert_eq!(Kind::recurring(&[&short, &long]), Duration::from_micros(300));
        assert_eq!(Kind::recurring(&[]), Duration::ZERO);
    }
}
