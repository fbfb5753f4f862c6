//! When the metadata is told what is registered: at once, and together where there are many buffers and many changes.
//!
//! The document tells all buffers, so that each is dearer than the one before. Few are told one by one. Of many that follow
//! each other quickly, a thread tells those that have come meanwhile; a peer needs them to find the first, and for nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::engine::Home;
use crate::error::EngineError;

/// So many buffers are told one by one.
const FEW: usize = 64;

/// For so many times as long as the last telling took there is none.
const PAUSE: u32 = 4;

/// A telling that failed is tried again so often.
const TRIES: u32 = 5;

#[derive(Default)]
pub(crate) struct Publisher {
    /// Locked while a document goes out: none overtakes a newer one.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ended: Option<Instant>,
    took: Duration,
    /// A thread will tell what is registered then.
    later: bool,
    withdrawn: bool,
}

impl State {
    fn tell(&mut self, home: &Home) -> Result<(), EngineError> {
        if self.withdrawn {
            return Err(EngineError::Closed);
        }
        let began = Instant::now();
        let told = home.tell();
        self.took = began.elapsed();
        self.ended = Some(Instant::now());
        told
    }

    fn pause(&self) -> Duration {
        let since = self.ended.map_or(Duration::MAX, |ended| ended.elapsed());
        (self.took * PAUSE).saturating_sub(since)
    }
}

impl Publisher {
    /// Tells the metadata what is registered, now or soon. An error is that of now.
    pub fn publish(home: &Arc<Home>) -> Result<(), EngineError> {
        if !home.has_metadata() {
            return Ok(());
        }
        let mut state = home.publisher.state.lock();
        if state.later {
            return Ok(());
        }
        if home.buffers.len() > FEW && !state.pause().is_zero() && !state.withdrawn {
            let builder = std::thread::Builder::new().name("mooncake-publish".into());
            let later = home.clone();
            state.later = mooncake_transfer::thread::start(builder, move || Publisher::publish_later(&later)).is_ok();
            if state.later {
                return Ok(());
            }
        }
        state.tell(home)
    }

    fn publish_later(home: &Home) {
        for nth in 1..=TRIES {
            let pause = home.publisher.state.lock().pause();
            std::thread::sleep(pause);
            let mut state = home.publisher.state.lock();
            if state.withdrawn {
                return;
            }
            // What is registered from here on begins anew.
            state.later = false;
            match state.tell(home) {
                Ok(()) => return,
                Err(error) => tracing::warn!(%error, nth, "the metadata does not name all buffers yet"),
            }
            if nth < TRIES {
                state.later = true;
                drop(state);
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }

    /// Nothing is told after `withdraw`.
    pub fn end(&self, withdraw: impl FnOnce()) {
        let mut state = self.state.lock();
        state.withdrawn = true;
        withdraw();
    }
}
