//! Whether a tier's disk is fit to be written. What fails, or stands still, is written no more for a while: it is read
//! as long as that goes well, and tried again.

use std::io::ErrorKind;
use std::time::Duration;

/// A disk that owes an answer for so long gets no orders.
const SLOW_AFTER: Duration = Duration::from_secs(3);

/// One that owes it for so long is not read either, until it has answered.
const HUNG_AFTER: Duration = Duration::from_secs(10);

/// Between two tries of a disk that fails.
const PROBE_EVERY: Duration = Duration::from_secs(60);

/// Writes and syncs that fail, none going well in between, before it counts as failing.
const FAILURES: u32 = 2;

/// What may be done with a tier's disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fitness {
    /// All.
    Good,
    /// It is read, and not written.
    ReadOnly,
    /// It does not answer: nothing.
    Hung,
}

/// What is known of a disk.
#[derive(Debug, Default)]
pub(crate) struct Health {
    failures: u32,
    failing_until: Option<Duration>,
    fitness: Option<Fitness>,
}

impl Health {
    /// Something was written.
    pub fn wrote(&mut self) {
        self.failures = 0;
    }

    /// A write or a sync has failed, or no file could be made.
    pub fn failed(&mut self, now: Duration, kind: ErrorKind) {
        self.failures += 1;
        if self.failures >= FAILURES || kind == ErrorKind::ReadOnlyFilesystem {
            self.fails(now, &kind.to_string());
        }
    }

    /// It is written no more for a while.
    pub fn fails(&mut self, now: Duration, why: &str) {
        if self.failing_until.replace(now + PROBE_EVERY).is_none() {
            tracing::error!(
                why,
                "the disk of the tier fails: it is read and not written, and tried again each minute; the kernel's log \
                 says more (dmesg). A store with another folder keeps a new tier"
            );
        }
    }

    /// What may be done, where the disk has owed an answer for so long.
    pub fn fitness(&mut self, now: Duration, owed_for: Duration) -> Fitness {
        if self.failing_until.is_some_and(|until| until <= now) {
            tracing::info!("the disk of the tier is tried again");
            // One more failure is enough.
            (self.failing_until, self.failures) = (None, FAILURES - 1);
        }
        let fitness = match (owed_for >= HUNG_AFTER, owed_for >= SLOW_AFTER || self.failing_until.is_some()) {
            (true, _) => Fitness::Hung,
            (false, true) => Fitness::ReadOnly,
            (false, false) => Fitness::Good,
        };
        let before = self.fitness.replace(fitness).unwrap_or(Fitness::Good);
        if owed_for >= SLOW_AFTER && before == Fitness::Good {
            tracing::warn!(
                ?owed_for,
                "the disk of the tier does not answer: nothing is written until it does. The kernel's log may say why \
                 (dmesg), and `iostat -x` whether others keep it busy"
            );
        } else if fitness == Fitness::Good && before != Fitness::Good {
            tracing::info!("the disk of the tier answers: it is written again");
        }
        fitness
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_disk_that_fails_twice_is_read_only_until_it_is_tried_again() {
        let mut health = Health::default();
        health.failed(seconds(1), ErrorKind::Other);
        assert_eq!(health.fitness(seconds(1), Duration::ZERO), Fitness::Good, "one file is closed for it");
        health.wrote();
        health.failed(seconds(2), ErrorKind::Other);
        assert_eq!(health.fitness(seconds(2), Duration::ZERO), Fitness::Good, "it went well in between");
        health.failed(seconds(3), ErrorKind::Other);
        assert_eq!(health.fitness(seconds(4), Duration::ZERO), Fitness::ReadOnly);
        assert_eq!(health.fitness(seconds(63), Duration::ZERO), Fitness::Good, "it is tried");
        health.failed(seconds(64), ErrorKind::Other);
        assert_eq!(health.fitness(seconds(64), Duration::ZERO), Fitness::ReadOnly, "and fails at once");
        assert_eq!(health.fitness(seconds(124), Duration::ZERO), Fitness::Good);
        health.wrote();
        health.failed(seconds(125), ErrorKind::Other);
        assert_eq!(health.fitness(seconds(125), Duration::ZERO), Fitness::Good);
    }

    #[test]
    fn a_file_system_that_has_become_read_only_is_at_once() {
        let mut health = Health::default();
        health.failed(seconds(1), ErrorKind::ReadOnlyFilesystem);
        assert_eq!(health.fitness(seconds(1), Duration::ZERO), Fitness::ReadOnly);
    }

    #[test]
    fn a_disk_that_stands_still_gets_no_orders_and_then_no_reads_until_it_answers() {
        let mut health = Health::default();
        let fitness = [2, 3, 9, 10, 500, 0].map(|owed| health.fitness(seconds(500), seconds(owed)));
        let (good, read, hung) = (Fitness::Good, Fitness::ReadOnly, Fitness::Hung);
        assert_eq!(fitness, [good, read, read, hung, hung, good]);
    }
}
