//! The line about what was counted, now and then.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::{self, Builder, Thread};
use std::time::{Duration, Instant};

use crate::inner::Inner;

/// Longest time between two lines: what a clock can still add.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Logs a line every so often, until the store is closed; unparked, the thread looks whether it is.
pub(crate) fn start(store: &Arc<Inner>, every: Duration) -> io::Result<Thread> {
    let store = Arc::downgrade(store);
    let builder = Builder::new().name("mooncake-report".into());
    let thread = mooncake_os::thread::start(builder, move || run(&store, every))?;
    Ok(thread.thread().clone())
}

fn run(store: &Weak<Inner>, every: Duration) {
    let (mut last, mut said) = (None, String::new());
    loop {
        let at = Instant::now() + every.min(LONGEST);
        while let Some(left) = at.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            thread::park_timeout(left);
            if store.upgrade().is_none_or(|store| store.closed.load(Ordering::Acquire)) {
                return;
            }
        }
        let Some(store) = store.upgrade() else { return };
        let Some(metrics) = &store.shared.control.metrics else { return };
        let (now, reading) = (Instant::now(), metrics.read());
        // A thread that had to wait for a processor has counted for longer than it was to.
        let since = last.as_ref().filter(|_| store.settings.metric_bandwidth);
        let since = since.map(|(at, then)| (then, now.duration_since(*at)));
        let line = reading.summary(since);
        // An unused store says so once.
        if line != said {
            tracing::info!("Client Metrics: {line}");
            said = line;
        }
        last = Some((now, reading));
    }
}
