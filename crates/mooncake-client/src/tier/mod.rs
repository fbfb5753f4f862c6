//! This store's tiers: folders behind its memory, which it writes as the master orders and serves to others.
//!
//! Each folder has a thread of its own. Words of the master come to it by the anchor; what it says goes back there, or
//! by calls. Its readers are on threads of their lanes.

mod adoption;
mod driver;
mod figures;
mod folder;
mod mark;
mod promoter;
mod records;
pub(crate) mod shared;
mod source;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mooncake_ids::{FileSystemUuid, TierUuid};
use mooncake_wire::message::{
    BadReplica, TierAllOrdered, TierOrder, TierPromote, TierRecheck, TierRetire, TierShared, request,
};
use parking_lot::{Condvar, Mutex};

use crate::error::{Cause, StoreError};
use crate::machine::numbering::Numbering;
use crate::options::TierOptions;
use crate::segments::directory::Directory;
use crate::segments::links::LinkSet;
use crate::segments::owner::SegmentOwner;
use crate::session::control::Control;

pub(crate) use folder::{PoolOf, TierFolder};

/// How long a thread may take besides: for what is being copied, and for the master to know.
const LEAVE_LIMIT: Duration = Duration::from_secs(20);

/// Between two looks whether it has ended.
const JOIN_STEP: Duration = Duration::from_millis(1);

/// Something for the thread that has a folder.
#[derive(Debug, Clone)]
pub(crate) enum Word {
    /// A session has begun or goes on: what was ordered before is over.
    Mount,
    Order(TierOrder),
    Promote(PromoteOrder),
    Retire(TierRetire),
    Recheck(TierRecheck),
    AllOrdered(TierAllOrdered),
    Shared(TierShared),
    /// A master of that log has forgotten a tier, or a segment.
    Gone {
        tier: TierUuid,
        log_id: u64,
    },
    /// The tiers are left; the store's memory goes as well, or stays.
    Close {
        with_memory: bool,
    },
}

/// A copy in memory that the master asks for.
#[derive(Debug, Clone)]
pub(crate) struct PromoteOrder {
    pub promote: TierPromote,
    /// By which the copy's placement is reserved.
    pub session: u64,
    /// Whose number its segment has.
    pub numbering: Numbering,
}

/// Tells the master of a replica that is not what it should be: its owner is to look.
fn report(control: &Arc<Control>, bad: BadReplica) {
    const WHAT: &str = "reporting a bad replica";
    if let Err(error) = control.query_on_any_thread(WHAT, request::Body::BadReplica(bad), control.lookup_timeout) {
        tracing::debug!(%error, "the master does not know of a bad replica yet");
    }
}

/// A store's tiers, as the rest of the store knows them.
#[derive(Debug, Default)]
pub(crate) struct StoreTiers {
    tiers: Mutex<Vec<Arc<StoreTier>>>,
}

/// One of them, as its thread and the store know it.
#[derive(Debug)]
struct StoreTier {
    /// Of the folder that it has; none before it has one.
    uuid: Mutex<Option<TierUuid>>,
    /// Of those that it has adopted.
    adopted: Mutex<Vec<TierUuid>>,
    words: Mutex<Vec<Word>>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// No thread hears any more.
    is_over: AtomicBool,
    /// It is on a file system that clients share, and not this store's own.
    is_shared: bool,
    /// How long it may write after it has heard that the store closes.
    close_limit: Duration,
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

impl Word {
    /// The tier that it is for; none if all of them are to hear it. Words about what is no UUID are for no tier.
    fn tier(&self) -> Option<TierUuid> {
        let uuid = match self {
            Word::Mount | Word::Close { .. } => return None,
            Word::Gone { tier, .. } => return Some(*tier),
            Word::Order(order) => &order.tier,
            Word::Promote(order) => &order.promote.tier,
            Word::Retire(retire) => &retire.tier,
            Word::Recheck(recheck) => &recheck.tier,
            Word::AllOrdered(all) => &all.tier,
            Word::Shared(shared) => &shared.tier,
        };
        Some(TierUuid::try_from(&uuid[..]).unwrap_or(TierUuid([0; 16])))
    }
}

impl StoreTiers {
    /// Takes or makes a folder below the path, and begins to look after it.
    pub fn start(&self, options: &TierOptions, surroundings: Surroundings) -> Result<(), StoreError> {
        // It hears what the anchor says from before it is mounted on.
        let tier = Arc::new(StoreTier::new(options.shared.is_some(), options.close_limit));
        self.tiers.lock().push(tier.clone());
        // A path that cannot be used fails here. Where others have what is there, the thread waits for it.
        let folder = TierFolder::take_or_wait(options, PoolOf::now(&surroundings.control), &[], true);
        let folder = folder.inspect_err(|_| tier.is_over.store(true, Ordering::Release))?;
        tier.is_of(folder.as_ref().map(|folder| folder.uuid));
        let options = options.clone();
        tier.start(move |tier| driver::run(tier, options, folder, &surroundings))
    }

    /// Has a thread look for the file system that the master names until it is `found`. Why it was not there has been
    /// `said`.
    pub fn seek(
        &self,
        search: shared::Search,
        said: String,
        control: Arc<Control>,
        found: impl FnOnce(TierOptions) + Send + 'static,
    ) -> Result<(), StoreError> {
        self.start_shared(move |tier| {
            if let Some(options) = search.until_found(tier, &control, said) {
                found(options);
            }
        })
    }

    /// Whether it has none but on a file system that clients share.
    pub fn is_empty(&self) -> bool {
        self.tiers.lock().iter().all(|tier| tier.is_shared)
    }

    /// Has the master know, with each session, which file system this store shares with others.
    pub fn announce(&self, file_system: FileSystemUuid, control: Arc<Control>) -> Result<(), StoreError> {
        self.start_shared(move |tier| shared::announce(tier, &control, file_system))
    }

    /// Begins a thread that has no folder, and hears of the session and of the end.
    fn start_shared(&self, run: impl FnOnce(&StoreTier) + Send + 'static) -> Result<(), StoreError> {
        let tier = Arc::new(StoreTier::new(true, Duration::ZERO));
        self.tiers.lock().push(tier.clone());
        tier.start(run)
    }

    pub fn hear(&self, word: &Word) {
        let for_one = word.tier();
        let tiers = self.tiers.lock();
        // Folders of those that are Gone lie beside those of all who write to a file system.
        let beside = |tier: &StoreTier| tier.is_shared && matches!(word, Word::Gone { .. });
        let its = tiers.iter().filter(|tier| for_one.is_none_or(|uuid| tier.has(uuid)) || beside(tier));
        its.for_each(|tier| tier.hear(word.clone()));
    }

    /// Has them bring to the disk what was ordered, and what memory alone has if that goes as well, and leaves the
    /// folders to the next owners. Where memory stays, so do those on a file system that clients share.
    pub fn close(&self, with_memory: bool) {
        loop {
            let all = self.tiers.lock().clone();
            let closes = |tier: &Arc<StoreTier>| with_memory || !tier.is_shared;
            let threads = |tier: Arc<StoreTier>| {
                let thread = tier.thread.lock().take();
                Some((thread?, tier))
            };
            let closing: Vec<_> = all.into_iter().filter(closes).filter_map(threads).collect();
            // A search that was about to end may have begun one meanwhile.
            if closing.is_empty() {
                return;
            }
            // All at once: each has its time for that.
            closing.iter().for_each(|(_, tier)| tier.hear(Word::Close { with_memory }));
            let began = Instant::now();
            closing.into_iter().for_each(|(thread, tier)| tier.join(thread, began));
        }
    }
}

/// However a thread ends, nothing waits for it.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl StoreTier {
    /// One that hears, and does nothing yet.
    fn new(is_shared: bool, close_limit: Duration) -> StoreTier {
        StoreTier {
            uuid: Mutex::default(),
            adopted: Mutex::default(),
            words: Mutex::default(),
            changed: Condvar::new(),
            thread: Mutex::default(),
            is_over: AtomicBool::new(false),
            is_shared,
            close_limit,
        }
    }

    fn start(self: &Arc<Self>, run: impl FnOnce(&StoreTier) + Send + 'static) -> Result<(), StoreError> {
        let inside = self.clone();
        let builder = std::thread::Builder::new().name("mooncake-tier".into());
        let started = mooncake_os::thread::start(builder, move || {
            let _over = SetAtEnd(&inside.is_over);
            run(&inside);
        });
        let thread = started.map_err(|error| Cause::Setup { what: "starting a thread", reason: error.to_string() })?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Waits for its thread, but not for ever for one that a disk holds up.
    fn join(&self, thread: JoinHandle<()>, began: Instant) {
        while !thread.is_finished() {
            if began.elapsed() >= self.close_limit + LEAVE_LIMIT {
                tracing::error!(
                    "the disk of a tier does not answer: its thread ends when it does, and until then no other process \
                     has its folder"
                );
                return;
            }
            std::thread::sleep(JOIN_STEP);
        }
        // It only panics if one of its invariants is broken; that has been reported.
        let _ = thread.join();
    }

    /// Words about that tier are for this one from now on.
    fn is_of(&self, uuid: Option<TierUuid>) {
        *self.uuid.lock() = uuid;
    }

    /// Words about these are for this one, too.
    fn has_adopted(&self, uuids: Vec<TierUuid>) {
        *self.adopted.lock() = uuids;
    }

    fn has(&self, uuid: TierUuid) -> bool {
        *self.uuid.lock() == Some(uuid) || self.adopted.lock().contains(&uuid)
    }

    fn hear(&self, word: Word) {
        if !self.is_over.load(Ordering::Acquire) {
            self.words.lock().push(word);
            self.changed.notify_one();
        }
    }

    /// The store wants to close, and its thread has yet to hear of it.
    fn is_closing(&self) -> bool {
        self.words.lock().iter().any(|word| matches!(word, Word::Close { .. }))
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
