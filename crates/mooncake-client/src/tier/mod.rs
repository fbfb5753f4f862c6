//! This store's tier: a folder behind its memory, which it writes as the master orders and serves to others.
//!
//! A thread of its own has the folder. Words of the master come to it by the anchor; what it says goes back there, or
//! by calls. Its readers are on threads of their lanes.

mod driver;
mod folder;
mod promoter;
mod records;
mod source;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use mooncake_wire::message::{TierOrder, TierPromote, TierRecheck, TierRetire};
use parking_lot::{Condvar, Mutex};

use crate::error::{Cause, StoreError};
use crate::machine::numbering::Numbering;
use crate::options::TierOptions;
use crate::segments::directory::Directory;
use crate::segments::links::LinkSet;
use crate::segments::owner::SegmentOwner;
use crate::session::control::Control;

pub(crate) use folder::TierFolder;

/// Something for the thread that has the folder.
#[derive(Debug)]
pub(crate) enum Word {
    /// A session has begun or goes on: what was ordered before is over.
    Mount,
    Order(TierOrder),
    Promote(PromoteOrder),
    Retire(TierRetire),
    Recheck(TierRecheck),
    /// The store closes.
    Close,
}

/// A copy in memory that the master asks for.
#[derive(Debug)]
pub(crate) struct PromoteOrder {
    pub promote: TierPromote,
    /// By which the copy's placement is reserved.
    pub session: u64,
    /// Whose number its segment has.
    pub numbering: Numbering,
}

/// A store's tier, as the rest of the store knows it.
#[derive(Debug)]
pub(crate) struct StoreTier {
    words: Mutex<Vec<Word>>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// No thread hears any more.
    is_over: AtomicBool,
}

/// What the threads need of the store.
#[derive(Clone)]
pub(crate) struct Surroundings {
    pub control: Arc<Control>,
    pub owner: Arc<SegmentOwner>,
    /// How it reaches memory of others on this host.
    pub segments: Arc<dyn RemoteSegments>,
}

/// Ways to segments, for what is to be written and lies with another process.
pub(crate) trait RemoteSegments: Send + Sync {
    fn directory(&self) -> &Directory;
    fn links(&self) -> &LinkSet;
}

impl StoreTier {
    /// One that hears, and does nothing yet.
    pub fn new() -> Arc<StoreTier> {
        Arc::new(StoreTier {
            words: Mutex::default(),
            changed: Condvar::new(),
            thread: Mutex::default(),
            is_over: AtomicBool::new(false),
        })
    }

    /// Takes or makes a folder below the path, and begins to look after it.
    pub fn start(self: &Arc<Self>, options: &TierOptions, surroundings: Surroundings) -> Result<(), StoreError> {
        // A path that cannot be used fails here. Where others have what is there, the thread waits for it.
        let folder = TierFolder::take_or_wait(options, &surroundings.control, &[], true)?;
        let (inside, options) = (self.clone(), options.clone());
        let builder = std::thread::Builder::new().name("mooncake-tier".into());
        let started = mooncake_os::thread::start(builder, move || {
            driver::run(&inside, options, folder, &surroundings);
            inside.is_over.store(true, Ordering::Release);
        });
        let thread = started.map_err(|error| Cause::Setup { what: "starting a thread", reason: error.to_string() })?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    pub fn hear(&self, word: Word) {
        if !self.is_over.load(Ordering::Acquire) {
            self.words.lock().push(word);
            self.changed.notify_one();
        }
    }

    /// Has it bring to the disk what there is, and leaves the folder to the next owner.
    pub fn close(&self) {
        self.hear(Word::Close);
        if let Some(thread) = self.thread.lock().take() {
            // It only panics if one of its invariants is broken; that has been reported.
            let _ = thread.join();
        }
    }

    /// The store wants to close, and its thread has yet to hear of it.
    fn is_closing(&self) -> bool {
        self.words.lock().iter().any(|word| matches!(word, Word::Close))
    }

    /// What has come, waited for so long at most if nothing has.
    fn heard(&self, wait: Duration) -> Vec<Word> {
        let mut words = self.words.lock();
        if words.is_empty() && !wait.is_zero() {
            self.changed.wait_for(&mut words, wait);
        }
        std::mem::take(&mut words)
    }
}
