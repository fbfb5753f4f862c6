//! Segments that outlive this process (docs/safety.md, rule 26): taken over at its start, claimed from the master, and
//! held for the next process.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mooncake_ids::SegmentUuid;
use mooncake_memory::SegmentMemory;
use mooncake_os::ProcessIdentity;
use mooncake_segment::SegmentServer;
use mooncake_wire::message::{Endpoint, request};
use parking_lot::{Condvar, Mutex};

use super::{Backing, LentMemory, SegmentOwner, Work, endpoint};
use crate::discovery::listen_address::Advertised;
use crate::error::{Cause, StoreError};
use crate::kept::{Adopted, KeptMemory, Reclaim};
use crate::machine::owner::Told;
use crate::machine::position::epoch_of;
use crate::metrics::Kept;
use crate::session::Session;

/// Between two looks at a holder that may end.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What the master has been told of the memory that outlives this process.
#[derive(Default)]
pub(super) struct Keeping {
    /// None before anything was said.
    said: Mutex<Option<Said>>,
    /// Held by the one who talks to the holder, which may be slow to answer.
    looking: Mutex<()>,
    changed: Condvar,
    over: AtomicBool,
}

/// What a master was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Said {
    /// Number and secret.
    session: (u64, u64),
    /// That the session is to be kept.
    is_wish: bool,
    /// It is: one of before kept sessions keeps none.
    is_kept: bool,
    /// For how long it waits; none of a session that was taken over, for which it waits as long as the owner before
    /// asked.
    time: Option<Duration>,
}

impl Said {
    fn of(session: &Session, is_kept: bool, time: Option<Duration>) -> Said {
        Said { session: (session.id, session.secret), is_wish: is_kept, is_kept, time }
    }
}

/// Memory that the master has given to this process: what it took over, less what is Gone.
pub(crate) struct ClaimedMemory {
    pub adopted: Vec<Adopted>,
    pub gone: Vec<SegmentUuid>,
}

/// How peers reach segments that are kept, for a claim.
pub(crate) fn endpoints(
    kept: &KeptMemory,
    server: &SegmentServer,
    advertised: &Advertised,
    (process, towards_master): (&ProcessIdentity, Option<IpAddr>),
) -> Vec<(SegmentUuid, Endpoint)> {
    let towards_master = towards_master.unwrap_or(server.tcp_addr().ip());
    let each = kept.segments().into_iter().map(|(uuid, access_key)| {
        (uuid, endpoint(process, advertised, towards_master, (access_key, server.unix_name().to_owned())))
    });
    each.collect()
}

impl SegmentOwner {
    /// Serves fresh memory that is to outlive this process, before the master mounts it.
    pub(super) fn serve_kept(
        &self,
        kept: &KeptMemory,
        memory: &Arc<SegmentMemory>,
        access_key: u64,
    ) -> Result<(), StoreError> {
        let failed = |error: std::io::Error| {
            StoreError::from(Cause::Setup { what: "noting memory that is kept", reason: error.to_string() })
        };
        // No later than the epoch in which it is mounted: of an earlier one nothing comes there.
        let taken = epoch_of(&self.control.position());
        let tenure = kept.note_fresh(memory, access_key, taken).map_err(failed)?;
        self.server.inherit(memory.clone(), access_key, tenure).map_err(failed)
    }

    /// Takes charge of segments that this process serves by now, and that the master has given to its session. True if
    /// there are any.
    pub fn take_over(&self, claimed: ClaimedMemory) -> bool {
        self.noted_as_kept();
        let mut any = false;
        if let Some(kept) = &self.kept {
            kept.are_held(claimed.adopted.iter().map(|it| it.memory.uuid()));
        }
        for Adopted { memory, .. } in claimed.adopted {
            let (uuid, populated) = (memory.uuid(), memory.populated());
            if claimed.gone.contains(&uuid) {
                self.renounce(&memory);
                continue;
            }
            any = true;
            let lent = Arc::new(LentMemory {
                backing: Backing::Memory(memory.bytes()),
                memory,
                populated: AtomicU64::new(populated),
                // What the owner before did not come to say.
                reported: AtomicU64::new(0),
                stopped_short: AtomicBool::new(false),
            });
            let mut state = self.state.lock();
            state.mount(None, uuid, lent.clone());
            let mut out = Vec::new();
            let is_held = state.mount_answered(uuid, Told::Done, &mut out);
            drop(state);
            debug_assert!(is_held && out.is_empty(), "nothing has been said of it yet");
            if populated < lent.memory.bytes() {
                let _ = self.work.send(Work::Populate(lent));
            }
        }
        any
    }

    /// Memory that was taken over, and that no master knows any more.
    pub fn renounce(&self, memory: &SegmentMemory) {
        self.server.remove(memory.uuid());
        if let Some(kept) = &self.kept {
            kept.forget(memory.uuid());
        }
    }

    /// What a new session shows for the memory that this process holds; none where there is nothing.
    pub fn claim(&self) -> Option<Reclaim> {
        let kept = self.kept.as_ref().filter(|kept| kept.has_claims())?;
        let towards_master = self.control.session().local_ip;
        Some(kept.claim(endpoints(kept, &self.server, &self.advertised, (&self.process, towards_master))))
    }

    /// The session is kept as the one was whose memory it has claimed.
    pub fn noted_as_kept(&self) {
        *self.keeping.said.lock() = Some(self.news(true, None));
    }

    fn news(&self, is_kept: bool, time: Option<Duration>) -> Said {
        Said::of(&self.control.session(), is_kept, time)
    }

    /// Whether the memory is held, and the master waits for the next process.
    pub fn is_kept(&self) -> bool {
        self.keeping.said.lock().is_some_and(|said| Said { time: None, ..said } == self.news(true, None))
    }

    // ------------------------------------------------------ its own thread

    /// Has the holder hold what there is, and the master wait for the next process, as far as that is not so already.
    pub fn look_after_kept(&self) {
        let Some(kept) = &self.kept else { return };
        let _looking = self.keeping.looking.lock();
        let is_over = self.keeping.over.load(Ordering::Acquire);
        if is_over || self.control.is_stopped() || self.state.lock().is_closing() {
            return;
        }
        let memories: Vec<Arc<SegmentMemory>> =
            self.state.lock().memories().map(|lent| lent.memory.clone()).filter(|it| it.is_sealed()).collect();
        // What is not held any more is offered again behind the word that it is not.
        let is_held = kept.is_held(&memories);
        if !is_held && self.said_to_be_kept() {
            self.say(kept, false);
        }
        let is_held = is_held || !memories.is_empty() && kept.hand_over(&memories);
        if is_held {
            self.say(kept, true);
        }
        if let Some(metrics) = &self.control.metrics {
            let is_kept = self.said_to_be_kept();
            metrics.keeps(Kept { is_kept, tenure: kept.tenure(), awaiting: self.server.awaiting_elders() });
        }
    }

    fn said_to_be_kept(&self) -> bool {
        self.keeping.said.lock().is_some_and(|said| said.is_kept)
    }

    fn say(&self, kept: &KeptMemory, is_kept: bool) {
        let session = self.control.session();
        let news = Said::of(&session, is_kept, Some(kept.time()));
        let is_said = |said: Said| Said { is_kept, ..said } == news;
        if self.keeping.said.lock().is_some_and(is_said) {
            return;
        }
        let keep = kept.keep(is_kept.then(|| kept.time()));
        let (body, limit) = (request::Body::Keep(keep), self.control.lookup_timeout);
        match self.control.finish_in(&session, "the wish to be kept", body, limit) {
            // Another session has begun, with a claim of its own: it is looked at next.
            Ok(None) => {}
            Ok(Some(_)) => {
                tracing::info!(session = news.session.0, is_kept, seconds = kept.time().as_secs(), "memory is kept");
                *self.keeping.said.lock() = Some(news);
            }
            Err(error) if matches!(error.cause(), Cause::MasterTooOld { .. }) => {
                tracing::warn!(%error, "the memory of this process ends with it");
                *self.keeping.said.lock() = Some(Said { is_kept: false, ..news });
            }
            Err(error) => tracing::warn!(%error, "the master does not know yet whether this process's memory is kept"),
        }
    }

    /// Looks after it until the store is closed.
    pub(super) fn keep_memory(&self) {
        let mut next = Instant::now() + LOOK_INTERVAL;
        loop {
            let mut said = self.keeping.said.lock();
            if self.keeping.over.load(Ordering::Acquire) || self.control.is_stopped() {
                return;
            }
            self.keeping.changed.wait_until(&mut said, next);
            drop(said);
            if Instant::now() >= next {
                self.look_after_kept();
                next = Instant::now() + LOOK_INTERVAL;
            }
        }
    }

    /// The thread that looks after it ends; nothing is said of it any more.
    pub fn stop_keeping(&self) {
        self.keeping.over.store(true, Ordering::Release);
        // Whoever looks has looked before this. Who waits has seen that it is over, or is woken up.
        drop(self.keeping.looking.lock());
        drop(self.keeping.said.lock());
        self.keeping.changed.notify_all();
    }
}
