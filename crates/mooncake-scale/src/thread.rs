//! What the kernel says of the thread that runs here.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time on the processor of the thread that calls. It counts what the machine does on that processor meanwhile and the
/// kernel does not tell apart: interrupts, and on some hosts the time that the host gives to others.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The page faults of one thread, and how often another thread took the processor from it.
#[derive(Debug)]
pub struct Thread {
    stat: File,
    status: File,
}

/// So many there have been.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Events {
    /// Faults for pages that the kernel had to clear or to map first.
    pub faults: u64,
    /// Times that it was taken off the processor, though it had more to do.
    pub preempted: u64,
}

impl Thread {
    /// The one that calls.
    pub fn this() -> io::Result<Thread> {
        Ok(Thread { stat: File::open("/proc/thread-self/stat")?, status: File::open("/proc/thread-self/status")? })
    }

    /// What it has had until now.
    pub fn events(&self) -> Events {
        let mut text = [0; 4_096];
        let mut read = |file: &File| {
            let length = file.read_at(&mut text, 0).unwrap_or(0);
            String::from_utf8_lossy(&text[..length]).into_owned()
        };
        let (stat, status) = (read(&self.stat), read(&self.status));
        // Behind the name, which may contain anything, minor faults are the eighth field.
        let faults = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(7)?.parse().ok());
        let preempted = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
        Events {
            faults: faults.unwrap_or(0),
            preempted: preempted.and_then(|count| count.trim().parse().ok()).unwrap_or(0),
        }
    }
}

impl std::ops::Sub for Events {
    type Output = Events;
    fn sub(self, before: Events) -> Events {
        Events { faults: self.faults - before.faults, preempted: self.preempted - before.preempted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_touches_new_pages_is_seen_to_fault() {
        let thread = Thread::this().unwrap();
        let before = thread.events();
        let pages = std::hint::black_box(vec![1_u8; 8 << 20]);
        let after = thread.events() - before;
        assert!(after.faults >= 4, "{after:?} behind {} bytes", pages.len());
    }
}
