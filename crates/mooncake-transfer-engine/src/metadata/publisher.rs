//! Publishes what is registered to the metadata service: at once, or several changes together.
//!
//! The document lists every buffer, so each registration costs more than the last. Few buffers are published one by
//! one. Of many that follow each other quickly, a thread publishes those that have come meanwhile. Peers do not need
//! them: they use the document to find the first buffer, and for nothing else.
//!
//! A service may take long to answer. So threads call it, one after the other, and a caller leaves its thread at its
//! deadline. A thread that was left goes on, and publishes what is registered when its turn comes: never less than what
//! its caller had registered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_os::Deadline;
use parking_lot::Mutex;

use crate::error::EngineError;
use crate::metadata::EngineDirectory;

/// Up to so many buffers are published one by one.
const SINGLY_PUBLISHED_MAX: usize = 64;

/// After one call of the service there is none for so many times as long as it took.
const PAUSE_FACTOR: u32 = 4;

/// How often a thread that publishes several changes tries.
const TRIES_MAX: u32 = 5;

/// Makes the segment document as of now.
pub(crate) type Describe = Box<dyn Fn() -> String + Send + Sync>;

pub(crate) struct Publisher {
    directory: Arc<EngineDirectory>,
    /// The engine's name.
    name: String,
    describe: Describe,
    /// Held during a call of the service: no document overtakes a newer one.
    service_call: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ended: Option<Instant>,
    took: Duration,
    /// A call of the service is under way.
    busy: bool,
    /// A thread will publish what is registered by then.
    later: bool,
    /// Nothing is published any more.
    ending: bool,
    withdrawn: bool,
}

impl State {
    fn pause(&self) -> Duration {
        let since = self.ended.map_or(Duration::MAX, |ended| ended.elapsed());
        (self.took * PAUSE_FACTOR).saturating_sub(since)
    }
}

impl Publisher {
    /// `describe` is called under a lock, when the turn of its document has come. Nothing that it captures may hold the
    /// publisher.
    pub fn new(directory: Arc<EngineDirectory>, name: &str, describe: Describe) -> Publisher {
        Publisher {
            directory,
            name: name.to_owned(),
            describe,
            service_call: Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// Announces where the engine answers handshakes, and publishes what it lends.
    pub fn begin(self: &Arc<Self>, host: &str, port: u16, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        let (held, host) = (self.clone(), host.to_owned());
        self.by_thread("taking the name", deadline, move || {
            held.call(|| {
                held.directory.announce(&held.name, &host, port)?;
                held.publish_now()
            })
        })?
    }

    /// Publishes what is registered, now or soon; `buffers` is how many there are. An error is that of now. A call that
    /// was left at the deadline may succeed yet.
    pub fn publish(self: &Arc<Self>, buffers: usize, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        {
            let mut state = self.state.lock();
            let many = buffers > SINGLY_PUBLISHED_MAX;
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
        let publish = move || held.call(|| held.publish_now());
        self.by_thread("telling it what is registered", deadline, publish)?
    }

    /// The same, and no caller waits for it or learns how it ended.
    pub fn publish_unseen(self: &Arc<Self>, buffers: usize) {
        let _ = self.publish(buffers, &Deadline::after(Duration::ZERO, &|| false));
    }

    fn publish_later(&self) {
        for nth in 1..=TRIES_MAX {
            let pause = self.state.lock().pause();
            std::thread::sleep(pause);
            let told = self.call(|| {
                // What is registered from here on needs another call.
                self.state.lock().later = false;
                self.publish_now()
            });
            match told {
                Ok(()) | Err(EngineError::Closed) => return,
                Err(error) => tracing::warn!(%error, nth, "the metadata does not name all buffers yet"),
            }
            if nth < TRIES_MAX {
                self.state.lock().later = true;
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }

    /// Has a thread call the service, and leaves it at the deadline.
    fn by_thread<T: Send + 'static>(
        &self,
        what: &'static str,
        deadline: &Deadline<'_>,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        let called = self.directory.blocking_pool().run(deadline, call);
        called.map_err(EngineError::blocking("the metadata service", what))
    }

    fn publish_now(&self) -> Result<(), EngineError> {
        self.directory.publish(&self.name, &(self.describe)())
    }

    /// Calls the service when no other thread does.
    fn call(&self, call: impl FnOnce() -> Result<(), EngineError>) -> Result<(), EngineError> {
        let _one = self.service_call.lock();
        {
            let mut state = self.state.lock();
            if state.ending {
                return Err(EngineError::Closed);
            }
            state.busy = true;
        }
        let began = Instant::now();
        let result = call();
        let mut state = self.state.lock();
        (state.busy, state.took, state.ended) = (false, began.elapsed(), Some(Instant::now()));
        result
    }

    /// Publishes nothing any more, and removes this engine's documents: until the deadline, and in the background
    /// afterwards. May be called again.
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
            let _one = held.service_call.lock();
            if std::mem::replace(&mut held.state.lock().withdrawn, true) {
                return;
            }
            if let Err(error) = held.directory.withdraw(&held.name) {
                tracing::warn!(%error, "the metadata still names an engine that has ended");
            }
        })
    }
}
