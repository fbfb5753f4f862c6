//! A core while it reads its log: what else is learnt from that, and how it gets on.

use std::time::{Duration, Instant};

use mooncake_core::{Config, Core, Epoch, RecordRef};

use crate::log::{Progress, Replay};
use crate::machine::processes::LeftOpen;

/// Time between two lines of output that tell how far the replay has come.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// The core, and what the log says besides.
pub struct Replaying {
    pub core: Core,
    /// Sessions that have not ended.
    pub open: LeftOpen,
    /// The last one.
    pub epoch: Epoch,
    told: Instant,
}

impl Replaying {
    pub fn new(config: Config) -> Replaying {
        Replaying { core: Core::new(config), open: LeftOpen::default(), epoch: Epoch::default(), told: Instant::now() }
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
        self.epoch = self.epoch.after(&record);
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

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// Lines of output.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);

    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            self.0 += &format!("{field}={value:?} ");
        }
    }

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            let mut line = Line(String::new());
            event.record(&mut line);
            self.0.lock().unwrap().push(line.0);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_long_replay_says_each_second_how_far_it_is_and_a_short_one_nothing() {
        let lines = Lines::default();
        tracing::subscriber::with_default(lines.clone(), || {
            let mut replaying = Replaying::new(Config::default());
            let progress = |read| Progress { read, total: 4_000 };
            replaying.foresee(&[], progress(10));
            replaying.told -= TOLD_EVERY;
            replaying.foresee(&[], progress(1_000));
            replaying.foresee(&[], progress(1_001));
            replaying.told -= TOLD_EVERY;
            replaying.foresee(&[], progress(2_000));
        });
        let lines = lines.0.lock().unwrap();
        let [first, second] = &lines[..] else { panic!("{lines:?}") };
        assert!(first.contains("bytes=1000 total=4000 percent=25 objects=0"), "{first}");
        assert!(second.contains("bytes=2000 total=4000 percent=50 objects=0"), "{second}");
    }
}
