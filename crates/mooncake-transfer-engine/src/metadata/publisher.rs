//! When the metadata is told what is registered: at once, and together where there are many buffers and many changes.
//!
//! The document tells all buffers, so that each is dearer than the one before. Few are told one by one. Of many that
//! follow each other quickly, a thread tells those that have come meanwhile; a peer needs them to find the first, and
//! for nothing else.
//!
//! A service may take long to answer, so that threads speak to it, one after the other, and callers leave them when
//! they have waited enough. What was left goes on, and tells what is registered when its turn has come: never less than
//! what it was for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_os::Deadline;
use parking_lot::Mutex;

use crate::error::EngineError;
use crate::metadata::Registry;

/// So many buffers are told one by one.
const FEW: usize = 64;

/// For so many times as long as the last telling took there is none.
const PAUSE: u32 = 4;

/// A telling that failed is tried again so often.
const TRIES: u32 = 5;

/// Makes the segment document as of now.
pub(crate) type Describe = Box<dyn Fn() -> String + Send + Sync>;

pub(crate) struct Publisher {
    registry: Arc<Registry>,
    /// The engine's.
    name: String,
    describe: Describe,
    /// Held while the service is told: no document overtakes a newer one.
    pen: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ended: Option<Instant>,
    took: Duration,
    /// A document is going out.
    busy: bool,
    /// A thread will tell what is registered then.
    later: bool,
    /// Nothing is told any more.
    ending: bool,
    withdrawn: bool,
}

impl State {
    fn pause(&self) -> Duration {
        let since = self.ended.map_or(Duration::MAX, |ended| ended.elapsed());
        (self.took * PAUSE).saturating_sub(since)
    }
}

impl Publisher {
    /// `describe` is called when the turn of its document has come, under a lock: nothing that it holds may hold this.
    pub fn new(registry: Arc<Registry>, name: &str, describe: Describe) -> Publisher {
        Publisher { registry, name: name.to_owned(), describe, pen: Mutex::default(), state: Mutex::default() }
    }

    /// Says where the engine is, and what it lends.
    pub fn begin(self: &Arc<Self>, host: &str, port: u16, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        let (held, host) = (self.clone(), host.to_owned());
        self.by_thread("taking the name", deadline, move || {
            held.speak(|| {
                held.registry.announce(&held.name, &host, port)?;
                held.tell()
            })
        })?
    }

    /// Tells the metadata what is registered, now or soon; `buffers` is how many there are. An error is that of now;
    /// what was left for want of patience may be told yet.
    pub fn publish(self: &Arc<Self>, buffers: usize, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        {
            let mut state = self.state.lock();
            let many = buffers > FEW;
            if many && state.later {
                return Ok(());
            }
            if many && !state.ending && (state.busy || !state.pause().is_zero()) {
                let builder = std::thread::Builder::new().name("mooncake-publish".into());
                let later = self.clone();
                state.later = mooncake_os::thread::start(builder, move || later.publish_later()).is_ok();
                if state.later {
                    return Ok(());
                }
            }
        }
        let held = self.clone();
        let tell = move || held.speak(|| held.tell());
        self.by_thread("telling it what is registered", deadline, tell)?
    }

    /// The same, and no caller waits for it or learns how it ended.
    pub fn publish_unseen(self: &Arc<Self>, buffers: usize) {
        let _ = self.publish(buffers, &Deadline::after(Duration::ZERO, &|| false));
    }

    fn publish_later(&self) {
        for nth in 1..=TRIES {
            let pause = self.state.lock().pause();
            std::thread::sleep(pause);
            let told = self.speak(|| {
                // What is registered from here on begins anew.
                self.state.lock().later = false;
                self.tell()
            });
            match told {
                Ok(()) | Err(EngineError::Closed) => return,
                Err(error) => tracing::warn!(%error, nth, "the metadata does not name all buffers yet"),
            }
            if nth < TRIES {
                self.state.lock().later = true;
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }

    /// Has a thread make a call of the service; its caller leaves it at the deadline.
    fn by_thread<T: Send + 'static>(
        &self,
        what: &'static str,
        deadline: &Deadline<'_>,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        let called = self.registry.blocking_pool().run(deadline, call);
        called.map_err(EngineError::blocking("the metadata service", what))
    }

    fn tell(&self) -> Result<(), EngineError> {
        self.registry.publish(&self.name, &(self.describe)())
    }

    /// Speaks to the service when no other thread does.
    fn speak(&self, tell: impl FnOnce() -> Result<(), EngineError>) -> Result<(), EngineError> {
        let _pen = self.pen.lock();
        {
            let mut state = self.state.lock();
            if state.ending {
                return Err(EngineError::Closed);
            }
            state.busy = true;
        }
        let began = Instant::now();
        let told = tell();
        let mut state = self.state.lock();
        (state.busy, state.took, state.ended) = (false, began.elapsed(), Some(Instant::now()));
        told
    }

    /// Tells nothing any more, and removes what was told, as far as the caller has patience and in the background
    /// beyond. May be called again.
    pub fn end(self: &Arc<Self>, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        {
            let mut state = self.state.lock();
            state.ending = true;
            if state.withdrawn {
                return Ok(());
            }
        }
        let held = self.clone();
        self.by_thread("taking leave of it", deadline, move || {
            let _pen = held.pen.lock();
            if std::mem::replace(&mut held.state.lock().withdrawn, true) {
                return;
            }
            if let Err(error) = held.registry.withdraw(&held.name) {
                tracing::warn!(%error, "the metadata still names an engine that has ended");
            }
        })
    }
}
