//! How long operations hold the lock of the core.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::thread::{Events, Thread, cpu_time};

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
}

impl Kind {
    /// What all but one of a thousand take less than, or as long as.
    pub fn p999(&self) -> Duration {
        let mut sorted = self.cpu.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * 999).div_ceil(1_000);
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
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

    /// How many there were.
    pub fn count(&self) -> usize {
        self.by_kind.values().map(|kind| kind.cpu.len()).sum()
    }

    /// Each kind, in the order in which they came first.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Kind)> + '_ {
        self.order.iter().map(|kind| (*kind, &self.by_kind[kind]))
    }
}
