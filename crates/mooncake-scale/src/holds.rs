//! How long operations hold the lock of the core.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The longest of one kind.
#[derive(Debug, Default, Clone, Copy)]
pub struct Longest {
    /// So many there were.
    pub count: u64,
    /// Longest time on the processor of the thread that held it.
    pub cpu: Duration,
    /// Longest time that others had to wait, which counts what else the machine did meanwhile.
    pub wall: Duration,
    /// Of all together, on the processor.
    pub sum: Duration,
    /// The most that one left behind: records, messages, and keys of requests that it answered.
    pub steps: usize,
}

/// Of each kind of operation.
#[derive(Debug, Default)]
pub struct Holds {
    by_kind: BTreeMap<&'static str, Longest>,
    /// In which order they came.
    order: Vec<&'static str>,
}

impl Holds {
    /// Does something and notes how long that took, and how much it says that it left behind.
    pub fn measure<R>(&mut self, kind: &'static str, hold: impl FnOnce() -> (R, usize)) -> R {
        let (began, wall) = (thread_cpu(), Instant::now());
        let (result, steps) = hold();
        let (cpu, wall) = (thread_cpu() - began, wall.elapsed());
        let longest = self.by_kind.entry(kind).or_insert_with(|| {
            self.order.push(kind);
            Longest::default()
        });
        longest.count += 1;
        longest.cpu = longest.cpu.max(cpu);
        longest.wall = longest.wall.max(wall);
        longest.sum += cpu;
        longest.steps = longest.steps.max(steps);
        result
    }

    /// Each kind, in the order in which they came first.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Longest)> + '_ {
        self.order.iter().map(|kind| (*kind, self.by_kind[kind]))
    }
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
