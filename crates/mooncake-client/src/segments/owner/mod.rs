//! The memory that this store gives to the pool: made, served, populated in
//! the background, given back, as [`crate::machine::owner`] and [`crate::machine::lending`] decide.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::DerefMut;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::Duration;

use mooncake_ids::SegmentUuid;
use mooncake_memory::{MemoryError, SegmentMemory, SegmentOptions};
use mooncake_os::thread;
use mooncake_os::{ProcessIdentity, random_bytes};
use mooncake_segment::{Epoch, Fence, SegmentServer};
use mooncake_wire::message::{Endpoint, Mount, Populated, Rechecked, Segment, anchor_up, reply, request};
use parking_lot::{Condvar, Mutex};

use crate::descriptors::{self, LENT};
use crate::discovery::listen_address::Advertised;
use crate::error::{Cause, StoreError};
use crate::kept::KeptMemory;
use crate::machine::lending::{self, LendingDriver};
use crate::machine::owner::{Output, Owner, Pinned, SEGMENTS_MAX};
use crate::machine::position::epoch_of;
use crate::machine::ready;
use crate::machine::session::Recheck;
use crate::process::wire_process;
use crate::segment_id::SegmentId;
use crate::segments::owner_events::{tell_epoch_taken, tell_fenced};
use crate::session::control::Control;

mod kept;
#[cfg(test)]
mod tests;

use kept::Keeping;
pub(crate) use kept::{ClaimedMemory, endpoints};

/// Populated before the first put can come, so that it finds room at once.
const FIRST_STEP_BYTES: u64 = 4 << 20;

/// Populated between two looks at what else there is to do.
const STEP_BYTES: u64 = 32 << 20;

const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// What a segment is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Fresh memory of so many bytes.
    Memory(u64),
    /// Part of an existing file, which no peer maps.
    File { path: PathBuf, offset: u64, bytes: u64 },
}

/// Owner of a store's segments.
pub(crate) struct SegmentOwner {
    control: Arc<Control>,
    server: Arc<SegmentServer>,
    options: SegmentOptions,
    name: String,
    advertised: Advertised,
    process: ProcessIdentity,
    state: Mutex<Owner<Arc<LentMemory>>>,
    gone: Condvar,
    work: Sender<Work>,
    /// Where its memory outlives this process.
    kept: Option<Arc<KeptMemory>>,
    keeping: Keeping,
}

/// The memory of one segment as it is now.
pub(crate) struct LentMemory {
    backing: Backing,
    memory: Arc<SegmentMemory>,
    populated: AtomicU64,
    reported: AtomicU64,
    /// Population has failed: there will not be more.
    stopped_short: AtomicBool,
}

enum Work {
    Populate(Arc<LentMemory>),
    /// Sum up a replica that a reader found bad: long work for a large one.
    Recheck(Recheck),
    /// Make and mount another segment in the place of one that is Gone.
    Replace(SegmentId, Backing),
    /// `None`: the owner does not know what is pinned, and punches nothing.
    GiveBack(Arc<LentMemory>, Option<Pinned>),
    End,
}

/// What of a store's host the master is told.
pub(crate) struct Ownership {
    pub server: Arc<SegmentServer>,
    pub huge_pages: bool,
    pub name: String,
    pub advertised: Advertised,
    pub process: ProcessIdentity,
    /// Where the memory is to outlive this process.
    pub kept: Option<Arc<KeptMemory>>,
}

impl SegmentOwner {
    /// Starts the thread that looks after segments; there is none yet.
    pub fn prepare(control: Arc<Control>, ownership: Ownership) -> Result<Arc<Self>, StoreError> {
        let (work, queue) = mpsc::channel();
        let owner = Arc::new(SegmentOwner {
            control,
            server: ownership.server,
            options: SegmentOptions { huge_pages: ownership.huge_pages },
            name: ownership.name,
            advertised: ownership.advertised,
            process: ownership.process,
            state: Mutex::default(),
            gone: Condvar::new(),
            work,
            kept: ownership.kept,
            keeping: Keeping::default(),
        });
        let thread = std::thread::Builder::new().name("mooncake-owner".into());
        let inside = owner.clone();
        let failed = |error: std::io::Error| Cause::Setup { what: "starting a thread", reason: error.to_string() };
        thread::start(thread, move || inside.run(&queue)).map_err(failed)?;
        if owner.kept.is_some() {
            let thread = std::thread::Builder::new().name("mooncake-keep".into());
            let inside = owner.clone();
            thread::start(thread, move || inside.keep_memory()).map_err(failed)?;
        }
        Ok(owner)
    }

    /// Makes a segment, mounts it, and starts to populate it.
    pub fn mount(&self, backing: Backing) -> Result<(SegmentId, u64), StoreError> {
        let held = self.state.lock().count();
        descriptors::warn_if_too_few(held + 1, "segments that this store lends", LENT);
        if !self.state.lock().has_room() {
            let reason = format!("it has {SEGMENTS_MAX} already, the most there may be; unmount one first");
            return Err(Cause::Setup { what: "another segment of this store", reason }.into());
        }
        self.mount_new(None, backing)
    }

    /// Takes a segment out of the pool and gives its memory back: at once, or when the grace is over, in which it is
    /// only read.
    pub fn unmount(&self, id: SegmentId, grace: Duration) -> Result<(), StoreError> {
        ready(lending::unmount(self, id, grace))
    }

    fn endpoint(&self, access_key: u64, unix_socket: String) -> Endpoint {
        let towards_master = self.control.session().local_ip.unwrap_or(self.server.tcp_addr().ip());
        endpoint(&self.process, &self.advertised, towards_master, (access_key, unix_socket))
    }

    // --------------------------------------------------------- for the tier

    /// What serves this store's segments, and its tier.
    pub fn server(&self) -> &SegmentServer {
        &self.server
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// How readers reach its tier.
    pub fn tier_endpoint(&self, access_key: u64) -> Endpoint {
        self.endpoint(access_key, self.server.unix_name().to_owned())
    }

    /// A segment that this store lends.
    pub fn memory(&self, uuid: SegmentUuid) -> Option<Arc<SegmentMemory>> {
        let state = self.state.lock();
        let lent = state.memories().find(|lent| lent.memory.uuid() == uuid);
        lent.map(|lent| lent.memory.clone())
    }

    // ------------------------------------------------------- for the anchor

    /// The segments that are held, each with the highest epoch that it has taken.
    #[cfg(test)]
    pub fn held(&self) -> Vec<(SegmentUuid, u16)> {
        self.state.lock().held(|uuid| self.server.taken(uuid))
    }

    /// The segments that are held, for the hello with which the store comes back, each with the highest epoch that it
    /// has taken: not with one that is still waited for.
    pub fn list(&self) -> Vec<(SegmentUuid, u16)> {
        let mut listed = self.state.lock().list(|uuid| self.server.taken(uuid));
        if let Some(kept) = &self.kept {
            // What it does not have in writing it does not say (docs/safety.md, rule 26).
            listed.iter_mut().filter(|(uuid, taken)| kept.note_taken(*uuid, *taken).is_err()).for_each(|it| it.1 = 0);
        }
        listed
    }

    /// What has been populated since the last question.
    pub fn newly_populated(&self) -> Vec<Populated> {
        let state = self.state.lock();
        let news = state.memories().filter_map(|lent| {
            let populated = lent.populated.load(Ordering::Acquire);
            (lent.reported.swap(populated, Ordering::AcqRel) != populated).then(|| Populated {
                uuid: lent.memory.uuid().0.to_vec().into(),
                bytes: populated,
                failed: lent.stopped_short.load(Ordering::Acquire),
            })
        });
        news.collect()
    }

    /// Has the next beat tell the figures once more.
    pub fn report_again(&self) {
        self.state.lock().memories().for_each(|lent| lent.reported.store(0, Ordering::Release));
    }

    pub fn wants_to_report(&self) -> bool {
        let news =
            |lent: &Arc<LentMemory>| lent.reported.load(Ordering::Acquire) != lent.populated.load(Ordering::Acquire);
        self.state.lock().memories().any(news)
    }

    pub fn fence(&self, fence: Fence) {
        if self.server.fence(fence) {
            tell_fenced(&self.control, fence.uuid, fence.rid);
        }
    }

    /// False: it obeys another epoch of that number, so that the master is told nothing.
    pub fn take_epoch(&self, asked: Epoch) -> bool {
        match self.server.take_epoch(asked) {
            Ok(taken) => tell_epoch_taken(&self.control, asked.number, &taken),
            Err(error) => {
                tracing::error!(
                    name = self.name,
                    %error,
                    "two masters continue one log; segments take no epoch that both have begun"
                );
                return false;
            }
        }
        true
    }

    pub fn recheck(&self, recheck: Recheck) {
        let _ = self.work.send(Work::Recheck(recheck));
    }

    fn recheck_now(&self, Recheck { uuid, rid, offset, length, crc }: Recheck) {
        let good = self.server.recheck(uuid, rid, offset, length, crc);
        if !good {
            tracing::warn!(rid = format_args!("{:#x}", rid.0), offset, length, "a replica in this segment is bad");
        }
        let rechecked = Rechecked { uuid: uuid.0.to_vec().into(), rid: rid.0, good };
        self.control.tell(anchor_up::Body::Rechecked(rechecked));
    }

    /// The master says that a segment is Gone, and what of it is pinned. It may be this store's.
    pub fn segment_gone(&self, uuid: SegmentUuid, pinned: &[(u64, u64)]) {
        let mut out = Vec::new();
        if self.state.lock().segment_gone(uuid, pinned, &mut out) {
            self.gone.notify_all();
        }
        self.hand_over(out);
    }

    /// The master has answered the last list: it does not know these segments (any more), nor their readers.
    pub fn list_answered(&self, gone: impl Fn(&SegmentUuid) -> bool) {
        lending::list_answered(self, gone);
    }

    // ------------------------------------------------------------ at the end

    /// Takes the segments out of the pool and gives their memory back; the larger
    /// part of that goes on in the background.
    pub fn close(&self) {
        self.stop_keeping();
        ready(lending::close(self));
        if let Some(kept) = &self.kept {
            kept.forget_all();
        }
        let _ = self.work.send(Work::End);
    }

    // ------------------------------------------------------ its own thread

    fn run(&self, queue: &Receiver<Work>) {
        let mut populating: VecDeque<Arc<LentMemory>> = VecDeque::new();
        loop {
            let next = match populating.is_empty() {
                true => queue.recv().map_err(|_| TryRecvError::Disconnected),
                false => queue.try_recv(),
            };
            match next {
                Ok(Work::Populate(lent)) => populating.push_back(lent),
                Ok(Work::Replace(id, backing)) => self.replace_now(id, &backing),
                Ok(Work::Recheck(recheck)) => self.recheck_now(recheck),
                Ok(Work::GiveBack(lent, pinned)) => {
                    populating.retain(|other| !Arc::ptr_eq(other, &lent));
                    ready(lending::give_back(self, lent.memory.uuid(), &lent, pinned.as_ref()));
                }
                Ok(Work::End) | Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    if let Some(lent) = populating.front()
                        && !self.populate(lent, STEP_BYTES)
                    {
                        populating.pop_front();
                    }
                }
            }
        }
        self.server.shutdown();
    }

    /// False when there is nothing left to populate.
    fn populate(&self, lent: &LentMemory, step: u64) -> bool {
        match lent.memory.populate_step(step) {
            Ok(populated) => {
                lent.populated.store(populated, Ordering::Release);
                if let Some(kept) = &self.kept {
                    kept.note_populated(lent.memory.uuid(), populated);
                }
                self.control.waker.wake();
                populated < lent.memory.bytes()
            }
            Err(error) => {
                tracing::error!(name = self.name, %error, "the segment stays smaller than asked for");
                lent.stopped_short.store(true, Ordering::Release);
                lent.reported.store(0, Ordering::Release);
                self.control.waker.wake();
                false
            }
        }
    }

    fn replace_now(&self, id: SegmentId, backing: &Backing) {
        while !self.control.is_stopped() && !self.state.lock().is_closing() {
            match self.mount_new(Some(id), backing.clone()) {
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(name = self.name, %error, "no new segment mounted yet");
                    std::thread::sleep(RETRY_PAUSE);
                }
            }
        }
    }

    fn make(&self, backing: &Backing) -> Result<SegmentMemory, StoreError> {
        match backing {
            Backing::Memory(bytes) => SegmentMemory::create(*bytes, self.options),
            Backing::File { path, offset, bytes } => SegmentMemory::over_file(path, *offset, *bytes),
        }
        .map_err(|error| match error {
            MemoryError::File { .. } => Cause::InvalidParams(error.to_string()).into(),
            error => Cause::Setup { what: "making the segment", reason: error.to_string() }.into(),
        })
    }

    fn mount_new(&self, id: Option<SegmentId>, backing: Backing) -> Result<(SegmentId, u64), StoreError> {
        let setup = |what: &'static str| move |reason: String| StoreError::from(Cause::Setup { what, reason });
        let memory = Arc::new(self.make(&backing)?);
        let first = memory
            .populate_step(FIRST_STEP_BYTES)
            .map_err(|error| setup("filling the segment with memory")(error.to_string()))?;
        let access_key = random_key().map_err(|error| setup("making an access key")(error.to_string()))?;
        match self.kept.as_ref().filter(|_| matches!(backing, Backing::Memory(_))) {
            Some(kept) => self.serve_kept(kept, &memory, access_key)?,
            None => self.server.add(memory.clone(), access_key),
        }
        let session = self.control.session();
        // No process is to ask for memory that its owner alone may map (docs/safety.md, rule 21).
        let unix_socket = if memory.is_sealed() { self.server.unix_name().to_owned() } else { String::new() };
        let segment = Segment {
            number: 0,
            uuid: memory.uuid().0.to_vec().into(),
            name: self.name.clone(),
            bytes: memory.bytes(),
            session: session.id,
            endpoint: Some(self.endpoint(access_key, unix_socket)),
            tier_file_blocks: 0,
            file_system: bytes::Bytes::new(),
        };
        let lent = Arc::new(LentMemory {
            backing,
            memory,
            populated: AtomicU64::new(first),
            reported: AtomicU64::new(first),
            stopped_short: AtomicBool::new(false),
        });
        let (uuid, bytes) = (lent.memory.uuid(), lent.memory.bytes());
        let mount = Mount { segment: Some(segment), populated: first };
        let id = ready(lending::mount(self, id, (uuid, lent), mount))?;
        self.look_after_kept();
        Ok((id, bytes))
    }
}

/// How peers reach what this process serves.
fn endpoint(
    process: &ProcessIdentity,
    advertised: &Advertised,
    towards_master: IpAddr,
    (access_key, unix_socket): (u64, String),
) -> Endpoint {
    Endpoint {
        boot_id: process.boot_id.to_vec().into(),
        unix_socket,
        tcp: advertised.texts(towards_master),
        access_key,
        process: Some(wire_process(process)),
    }
}

impl LendingDriver for SegmentOwner {
    type Memory = Arc<LentMemory>;

    fn now(&self) -> Duration {
        self.control.now()
    }

    fn owner(&self) -> impl DerefMut<Target = Owner<Arc<LentMemory>>> {
        self.state.lock()
    }

    fn is_stopped(&self) -> bool {
        self.control.is_stopped()
    }

    async fn finish(&self, what: &'static str, body: request::Body) -> Result<reply::Body, StoreError> {
        self.control.finish(what, body, self.control.lookup_timeout).map(|reply| reply.body)
    }

    async fn finish_now(&self, what: &'static str, body: request::Body) -> Result<reply::Body, StoreError> {
        self.control.finish_now(what, body, self.control.lookup_timeout).map(|reply| reply.body)
    }

    fn confused(&self, what: &'static str) -> StoreError {
        self.control.confused(what)
    }

    fn resume_anew(&self) {
        self.control.resume_anew();
    }

    fn mounted(&self, uuid: SegmentUuid, lent: Arc<LentMemory>) {
        self.server.mounted(uuid, epoch_of(&self.control.position()));
        let _ = self.work.send(Work::Populate(lent));
    }

    async fn wait_for_pins(&self, uuid: SegmentUuid, until: Duration) {
        let (mut state, until) = (self.state.lock(), self.control.instant(until));
        while state.waits_for_pins(uuid) && !self.gone.wait_until(&mut state, until).timed_out() {}
    }

    async fn free(&self, lent: &Arc<LentMemory>, pinned: Option<&Pinned>) {
        if !self.server.remove(lent.memory.uuid()) {
            tracing::warn!(name = self.name, "a data lane did not end in time; its segment goes anyway");
        }
        // Where the owner does not know what is pinned, unmapping frees what no process maps (docs/safety.md, rule 23).
        if let Some(pinned) = pinned
            && let Err(error) = lent.memory.give_back(pinned)
        {
            tracing::warn!(name = self.name, %error, "memory not given back before its last user ends");
        }
        if let Some(kept) = &self.kept {
            kept.forget(lent.memory.uuid());
        }
    }

    /// Leaves to the owner's thread what takes long.
    fn hand_over(&self, out: Vec<Output<Arc<LentMemory>>>) {
        for output in out {
            let work = match output {
                Output::GiveBack { memory, pinned } => Work::GiveBack(memory, pinned),
                Output::Replace { id, memory } => {
                    tracing::warn!(name = self.name, "the master gave this segment up; a new one takes its place");
                    Work::Replace(id, memory.backing.clone())
                }
            };
            let _ = self.work.send(work);
        }
    }
}

impl std::fmt::Debug for SegmentOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SegmentOwner").field("name", &self.name).finish_non_exhaustive()
    }
}

/// From the kernel, never 0.
pub(crate) fn random_key() -> std::io::Result<u64> {
    Ok(u64::from_ne_bytes(random_bytes()?) | 1)
}
