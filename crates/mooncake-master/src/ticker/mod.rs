//! The clock of the master: a thread of its own, so that deadlines pass even
//! while every worker is busy. Between two ticks it waits for processes to end.
//! What a tick does is decided in [`crate::machine::ticker`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use mooncake_core::{Departure, STEP_OBJECTS};
use mooncake_ids::SessionId;

use crate::machine::ticker::{self, News, TickDriver};
use crate::shared::Shared;

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
            let mut ticker = ticker::Ticker::new(shared.uptime());
            while !stopped.load(Ordering::Relaxed) {
                let ended = shared.processes.wait(ticker.pause(shared.uptime()));
                if ticker.step(&*shared, &ended).is_err() {
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

impl TickDriver for Shared {
    fn now(&self) -> Duration {
        self.uptime()
    }

    fn deaf(&self) -> Duration {
        self.threads.pulse.silence()
    }

    fn tell(&self, news: News) {
        match news {
            News::StoodStill(gap) => {
                tracing::warn!(
                    ?gap,
                    "this process was stopped for a while, or its log's disk was; silence of clients counts from now"
                );
            }
            News::IsDeaf(silence) => {
                tracing::warn!(
                    ?silence,
                    "the thread that hears clients stands still; their silence does not count while it does. Look at \
                     this machine's load"
                );
            }
            News::WearsOut { owner, fills_per_day } => {
                tracing::warn!(
                    owner,
                    fills_per_day,
                    "in the last hour a tier was written as if it were filled more often than most drives last for: \
                     compare with the drive's writes per day (DWPD), and see --tier_writes_per_day and \
                     --offload_on_evict"
                );
            }
            News::LeftUnwritten { objects, bytes } => {
                tracing::warn!(
                    objects,
                    bytes,
                    "memory was needed for new objects before these were on a tier: they are gone. Puts are faster \
                     than the disk: more memory gives it time, and a tier on each of several disks \
                     (MOONCAKE_OFFLOAD_FILE_STORAGE_PATHS) writes more"
                );
            }
            News::Left(Departure { session, name, reason, in_order: true, .. }) => {
                tracing::info!(session = session.0, name, reason, "client left");
            }
            // It lent nothing, or an heir has taken its segments over before it ended.
            News::Left(Departure { session, name, reason, segments: 0, .. }) => {
                tracing::info!(session = session.0, name, reason, "client ended; no memory went with it");
            }
            News::Left(Departure { session, name, reason, segments, lent, used, .. }) => {
                let session = session.0;
                tracing::warn!(session, name, reason, segments, lent, used, "client lost; what it had lent is gone");
            }
        }
    }

    fn purged(&self) {
        if let Some(freed) = self.identity.after_bulk_free {
            freed();
        }
    }

    fn sweep(&self) {
        // The core is asked behind their locks: newcomers wait for those, and there may be thousands of sessions.
        let mut sessions: BTreeSet<SessionId> = self.clients.sessions();
        sessions.extend(self.connections.sessions());
        sessions.extend(self.processes.sessions());
        let sessions: Vec<SessionId> = sessions.into_iter().collect();
        let mut over: BTreeSet<SessionId> = BTreeSet::new();
        for sessions in sessions.chunks(STEP_OBJECTS) {
            self.read(|core, _| {
                over.extend(sessions.iter().filter(|session| core.session_spec(**session).is_none()));
            });
        }
        self.connections.end_where(|session| over.contains(&session));
        self.processes.forget(|session| over.contains(&session));
        self.clients.forget(|session| over.contains(&session));
    }
}

#[cfg(test)]
mod tests;
