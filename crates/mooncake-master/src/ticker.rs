//! The clock of the master: a thread of its own, so that deadlines pass even
//! while every worker is busy. Between two ticks it waits for processes to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mooncake_core::SessionId;

use crate::call::SLICE;
use crate::log::LogClosed;
use crate::shared::Shared;

const TICK: Duration = Duration::from_millis(20);

/// A gap this long between two ticks: this process itself was stopped.
const STALL: Duration = Duration::from_millis(500);

/// Background slices between two ticks; the core is free between any two of them.
const SLICES: usize = 8;

/// How often connections and watches of sessions that are over are cleared.
const SWEEP: Duration = Duration::from_secs(5);

/// The ticking thread; stops when dropped.
#[derive(Debug)]
pub struct Ticker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    /// Starts ticking.
    pub fn start(shared: Arc<Shared>) -> std::io::Result<Ticker> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("ticker".into()).spawn(move || {
            let mut ticking = Ticking { last: Instant::now(), swept: Instant::now(), purging: false };
            while !stopped.load(Ordering::Relaxed) {
                let ended = shared.processes.wait(TICK.saturating_sub(ticking.last.elapsed()));
                if ticking.step(&shared, ended).is_err() {
                    return;
                }
            }
        })?;
        Ok(Ticker { stop, thread: Some(thread) })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the ticker panicked");
        }
    }
}

struct Ticking {
    last: Instant,
    swept: Instant,
    purging: bool,
}

impl Ticking {
    fn step(&mut self, shared: &Shared, ended: Vec<SessionId>) -> Result<(), LogClosed> {
        let gap = self.last.elapsed();
        if gap > STALL {
            tracing::warn!(?gap, "this process was stopped for a while; silence of clients counts from now");
            shared.apply(|core, now, _| core.stalled(now))?;
        }
        for session in ended {
            tracing::info!(session = session.0, "client process is gone");
            shared.apply(|core, now, effects| core.process_gone(now, session, effects))?;
        }
        if gap < TICK {
            return Ok(());
        }
        self.last = Instant::now();
        shared.apply(|core, now, effects| core.tick(now, effects))?;
        let more = purge(shared)?;
        if self.purging
            && !more
            && let Some(freed) = shared.identity.after_bulk_free
        {
            freed();
        }
        self.purging = more;
        if self.swept.elapsed() > SWEEP {
            self.swept = Instant::now();
            sweep(shared);
        }
        Ok(())
    }
}

/// Lets the core clear up behind segments that are gone; true = there is more.
fn purge(shared: &Shared) -> Result<bool, LogClosed> {
    for _ in 0..SLICES {
        if !shared.apply(|core, now, effects| core.background(now, SLICE, effects))? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn sweep(shared: &Shared) {
    let over = |session: SessionId| shared.read(|core, _| core.session_spec(session).is_none());
    shared.connections.end_where(over);
    shared.processes.forget(over);
}
