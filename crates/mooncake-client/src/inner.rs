//! What all clones of a store share, and what each of its calls begins with.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;

use mooncake_memory::Registry;
use mooncake_net::split_host_port;
use mooncake_os::{Deadline, Guarded, forked};
use mooncake_segment::RATE_MIN;
use mooncake_wire::message::SharedStorage;
use parking_lot::Mutex;

use crate::anchor::StoreContext;
use crate::error::{Cause, StoreError};
use crate::machine::get_session::GetSessions;
use crate::machine::numbering::Numbering;
use crate::metrics::{Metrics, Timer};
use crate::options::{SharedTier, StoreOptions, TierOptions};
use crate::segment_id::SegmentId;
use crate::segments::directory::MetSegments;
use crate::segments::owner::{Backing, Ownership, SegmentOwner};
use crate::segments::owner_events::OwnerEvents;
use crate::segments::server::serve;
use crate::tier::Surroundings;
use crate::tier::shared::{self, Search};

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) shared: Arc<StoreContext>,
    pub(crate) settings: StoreOptions,
    pub(crate) registry: Registry,
    pub(crate) closed: AtomicBool,
    calls: AtomicU64,
    pub(crate) get_sessions: Mutex<GetSessions<MetSegments, Numbering>>,
    /// Cause, and the thread whose call it was.
    pub(crate) last_miss: Mutex<Option<(ThreadId, String)>>,
    pub(crate) anchor: Mutex<Option<JoinHandle<()>>>,
    /// Says now and then what was counted.
    pub(crate) reporter: OnceLock<thread::Thread>,
    /// Held while the owner of segments is made.
    starting: Mutex<()>,
    /// Keeps the port of a client that gives no memory its own.
    _port: Option<Guarded<socket2::Socket>>,
}

impl Inner {
    /// A store whose anchor runs.
    pub(crate) fn new(
        shared: Arc<StoreContext>,
        settings: StoreOptions,
        anchor: JoinHandle<()>,
        port: Option<Guarded<socket2::Socket>>,
    ) -> Inner {
        Inner {
            shared,
            settings,
            registry: Registry::new(),
            closed: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            get_sessions: Mutex::default(),
            last_miss: Mutex::default(),
            anchor: Mutex::new(Some(anchor)),
            reporter: OnceLock::new(),
            starting: Mutex::new(()),
            _port: port,
        }
    }

    /// The owner of this store's segments, made here if there is none yet.
    fn owner(&self) -> Result<Arc<SegmentOwner>, StoreError> {
        let _one = self.starting.lock();
        if let Some(owner) = self.shared.owner.get() {
            return Ok(owner.clone());
        }
        let events = OwnerEvents::new();
        events.report_to(self.shared.control.clone());
        // This store holds the name's own port, so that no other store has the name; data goes to another one.
        let (host, _) = split_host_port(&self.settings.local_hostname).unwrap_or_default();
        let local_hostname = if host.contains(':') { format!("[{host}]") } else { host };
        let options = StoreOptions { local_hostname, ..self.settings.clone() };
        let (server, advertised) = serve(&options, &events)?;
        let ownership = Ownership {
            server,
            huge_pages: self.settings.huge_pages,
            name: self.shared.name.clone(),
            advertised: advertised.advertised,
            process: self.shared.process,
            kept: None,
        };
        let owner = SegmentOwner::prepare(self.shared.control.clone(), ownership)?;
        Ok(self.shared.owner.get_or_init(|| owner).clone())
    }

    /// Gives the pool memory, where none `is_lent` already, and tiers behind it. Where the master takes none, a store
    /// that is to have one is not set up; one that has taken memory over goes on with that, and mounts its tier once it
    /// can.
    pub(crate) fn lend(&self, is_lent: bool, tiers_allowed: bool) -> Result<(), StoreError> {
        if let Some(tier) = self.settings.tiers.first().filter(|_| !tiers_allowed && !is_lent) {
            let master = self.shared.control.masters.to_string();
            return Err(Cause::TiersNotAllowed { master, path: tier.path.display().to_string() }.into());
        }
        if let Some(owner) = self.shared.owner.get().filter(|_| !is_lent) {
            owner.mount(Backing::Memory(self.settings.global_segment_size))?;
        }
        self.settings.tiers.iter().try_for_each(|tier| self.start_tier(tier))
    }

    /// Has this store keep one more tier from now on.
    pub(crate) fn start_tier(&self, options: &TierOptions) -> Result<(), StoreError> {
        start_tier(&self.shared, self.owner()?, options)
    }

    /// Has this store read what others write on a file system that the master names, and write there what lies in its
    /// own memory. Where it is not here, or is of no use, a line says so, and the store works without until it is.
    pub(crate) fn share(&self, storage: SharedStorage) {
        let (store, engine, search) = (self.shared.clone(), self.settings.tier_engine, Search::new(storage));
        let found = move |options| share(&store, &TierOptions { engine, ..options });
        match search.look(&|| false) {
            Ok(options) => found(options),
            Err(reason) => {
                tracing::warn!(%reason, "no part of the file system that clients share (root_fs_dir): this store works \
                     without, and goes on looking for it");
                let (said, control) = (reason.to_string(), self.shared.control.clone());
                if let Err(error) = self.shared.tiers.seek(search, said, control, found) {
                    tracing::warn!(%error, "it is not looked for");
                }
            }
        }
    }

    pub(crate) fn timer(&self) -> Option<Timer<'_>> {
        self.shared.control.metrics.as_ref().map(Metrics::begin)
    }

    /// Before every call.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if forked() {
            return Err(Cause::Forked.into());
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(Cause::Closed.into());
        }
        Ok(())
    }

    /// An interrupted caller never learns the id, and could not take the segment back.
    pub(crate) fn mount(&self, backing: Backing) -> Result<(SegmentId, u64), StoreError> {
        let owner = self.owner()?;
        let mounted = owner.mount(backing)?;
        if self.is_interrupted() {
            if let Err(error) = owner.unmount(mounted.0, Duration::ZERO) {
                tracing::warn!(%error, "a segment stays although its mount was interrupted");
            }
            return Err(Cause::Interrupted.into());
        }
        Ok(mounted)
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.settings.interrupted.as_ref().is_some_and(|interrupted| interrupted())
    }

    /// The stall timeout counts from the last byte moved; this bounds the whole.
    pub(crate) fn transfer_deadline<'a>(&self, bytes: u64, interrupted: &'a (dyn Fn() -> bool + Sync)) -> Deadline<'a> {
        let whole = Duration::from_secs(bytes / RATE_MIN);
        Deadline::after(self.settings.stall_timeout + whole, interrupted)
    }

    /// A number that differs from call to call.
    pub(crate) fn number_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn keep_miss(&self, cause: String) {
        *self.last_miss.lock() = Some((thread::current().id(), cause));
    }
}

fn start_tier(store: &Arc<StoreContext>, owner: Arc<SegmentOwner>, options: &TierOptions) -> Result<(), StoreError> {
    let control = store.control.clone();
    store.tiers.start(options, Surroundings { control, owner, segments: store.clone() })
}

/// The store has its part of the file system that clients share.
fn share(store: &Arc<StoreContext>, options: &TierOptions) {
    let Some(SharedTier { file_system, .. }) = options.shared else { return };
    store.links.direct().shares(shared::folder(file_system, &options.path));
    // Without memory of its own it has nothing to write.
    if let Some(owner) = store.owner.get() {
        match start_tier(store, owner.clone(), options) {
            Ok(()) => return,
            Err(error) => {
                let what = "nothing is written to the file system that clients share (root_fs_dir)";
                tracing::warn!(%error, what, "this store reads there");
            }
        }
    }
    if let Err(error) = store.tiers.announce(file_system, store.control.clone()) {
        tracing::warn!(%error, "the master does not hear that this store has the file system that clients share");
    }
}

#[cfg(test)]
impl Inner {
    /// Only the anchor's thread ends.
    pub(crate) fn end_anchor(&self) {
        self.shared.control.stop();
        self.anchor.lock().take().into_iter().for_each(|anchor| anchor.join().unwrap());
    }
}
