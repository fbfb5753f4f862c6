//! A core while it reads its log: what else is learnt from that, and how it gets on.

use std::time::{Duration, Instant};

use mooncake_core::{Config, Core, RecordRef, Reign};

use crate::log::{Progress, Replay};
use crate::machine::processes::LeftOpen;

/// A line of the log that tells how far it is comes once in this time.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// The core, and what the log says besides.
pub struct Replaying {
    pub core: Core,
    /// Sessions that have not ended.
    pub open: LeftOpen,
    /// The last one.
    pub reign: Reign,
    told: Instant,
}

impl Replaying {
    pub fn new(config: Config) -> Replaying {
        Replaying { core: Core::new(config), open: LeftOpen::default(), reign: Reign::default(), told: Instant::now() }
    }

    fn tell(&mut self, Progress { read, total }: Progress) {
        self.told = Instant::now();
        let percent = read * 100 / total.max(1);
        tracing::info!(bytes = read, total, percent, objects = self.core.objects(), "the log is being replayed");
    }
}

impl Replay for Replaying {
    fn apply(&mut self, record: RecordRef<'_>) -> Result<(), String> {
        self.open.note(&record);
        self.reign = self.reign.after(&record);
        self.core.replay(record).map_err(|error| error.to_string())
    }

    fn expect(&mut self, objects: usize) {
        self.core.expect(objects);
    }

    fn foresee(&mut self, records: &[RecordRef<'_>], progress: Progress) {
        self.core.foresee(records);
        if self.told.elapsed() >= TOLD_EVERY {
            self.tell(progress);
        }
    }
}
