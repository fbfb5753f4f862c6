//! The memory that this store gives to the pool: made, served, populated in
//! the background, given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use mooncake_memory::{ProcessIdentity, SegmentMemory, SegmentOptions, random_bytes};
use mooncake_transfer::{Fence, SegmentServer, ServerEvents, Uuid, thread};
use mooncake_wire::message::{
    Endpoint, EpochTaken, FenceDone, Mount, Populated, Rechecked, Segment, Unmount, anchor_up, reply, request,
};
use parking_lot::{Condvar, Mutex};

use crate::control::Control;
use crate::directory::wire_process;
use crate::error::{Cause, StoreError};
use crate::host::Advertised;

/// Populated before the first put can come, so that it finds room at once.
const FIRST_STEP: u64 = 4 << 20;

/// Populated between two looks at what else there is to do.
const STEP: u64 = 32 << 20;

/// How long a close waits for the master's word on what is pinned.
const PINS_WAIT: Duration = Duration::from_millis(60);

const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Owner of a store's segment.
pub(crate) struct SegmentOwner {
    control: Arc<Control>,
    server: Arc<SegmentServer>,
    bytes: u64,
    options: SegmentOptions,
    name: String,
    advertised: Advertised,
    process: ProcessIdentity,
    state: Mutex<State>,
    gone: Condvar,
    populated: AtomicU64,
    reported: AtomicU64,
    /// Population has failed: there will not be more.
    stopped_short: AtomicBool,
    epoch: AtomicU16,
    work: Sender<Work>,
}

#[derive(Default)]
struct State {
    current: Option<Arc<SegmentMemory>>,
    /// What views held of the segment when it left the pool.
    pinned: Option<(Uuid, Vec<(u64, u64)>)>,
    closing: bool,
}

enum Work {
    Populate(Arc<SegmentMemory>),
    /// Sum a replica up that somebody found bad: long work for a large one.
    Recheck(Suspect),
    /// Make and mount another segment in the place of one that is Gone.
    Replace,
    /// `None`: nobody knows what is pinned, so nothing is punched.
    GiveBack(Arc<SegmentMemory>, Option<Vec<(u64, u64)>>),
    End,
}

/// A replica that somebody could not verify.
pub(crate) struct Suspect {
    pub uuid: Uuid,
    pub rid: u64,
    pub offset: u64,
    pub length: u64,
    pub crc: u32,
}

/// What of a store's host the master is told.
pub(crate) struct Ownership {
    pub server: Arc<SegmentServer>,
    pub bytes: u64,
    pub huge_pages: bool,
    pub name: String,
    pub advertised: Advertised,
    pub process: ProcessIdentity,
}

impl SegmentOwner {
    /// Starts the thread that looks after segments; there is none yet.
    pub fn prepare(control: Arc<Control>, ownership: Ownership) -> Result<Arc<Self>, StoreError> {
        let (work, queue) = mpsc::channel();
        let owner = Arc::new(SegmentOwner {
            control,
            server: ownership.server,
            bytes: ownership.bytes,
            options: SegmentOptions { huge_pages: ownership.huge_pages },
            name: ownership.name,
            advertised: ownership.advertised,
            process: ownership.process,
            state: Mutex::default(),
            gone: Condvar::new(),
            populated: AtomicU64::new(0),
            reported: AtomicU64::new(0),
            stopped_short: AtomicBool::new(false),
            epoch: AtomicU16::new(0),
            work,
        });
        let thread = std::thread::Builder::new().name("mooncake-owner".into());
        let inside = owner.clone();
        thread::start(thread, move || inside.run(&queue))
            .map_err(|error| Cause::Setup { what: "starting a thread", reason: error.to_string() })?;
        Ok(owner)
    }

    /// Makes the segment, mounts it, and starts to populate it.
    pub fn mount(&self) -> Result<(), StoreError> {
        self.mount_new()
    }

    // ------------------------------------------------------- for the anchor

    /// UUIDs of the segments that are held.
    pub fn held(&self) -> Vec<Uuid> {
        self.state.lock().current.iter().map(|memory| memory.uuid()).collect()
    }

    /// Highest epoch that the segments obey.
    pub fn epoch(&self) -> u16 {
        self.epoch.load(Ordering::Acquire)
    }

    /// What has been populated since the last question.
    pub fn newly_populated(&self) -> Option<Populated> {
        let state = self.state.lock();
        let memory = state.current.as_ref()?;
        let populated = self.populated.load(Ordering::Acquire);
        (self.reported.swap(populated, Ordering::AcqRel) != populated).then(|| Populated {
            uuid: memory.uuid().to_vec().into(),
            bytes: populated,
            failed: self.stopped_short.load(Ordering::Acquire),
        })
    }

    /// Has the next beat tell the figure once more.
    pub fn report_again(&self) {
        self.reported.store(0, Ordering::Release);
    }

    pub fn wants_to_report(&self) -> bool {
        self.reported.load(Ordering::Acquire) != self.populated.load(Ordering::Acquire)
    }

    pub fn fence(&self, fence: Fence) {
        if self.server.fence(fence) {
            tell_fenced(&self.control, fence.uuid, fence.rid);
        }
    }

    pub fn take_epoch(&self, epoch: u16) {
        self.epoch.fetch_max(epoch, Ordering::AcqRel);
        let taken = self.server.take_epoch(epoch);
        tell_epoch_taken(&self.control, epoch, &taken);
    }

    pub fn recheck(&self, suspect: Suspect) {
        let _ = self.work.send(Work::Recheck(suspect));
    }

    fn recheck_now(&self, Suspect { uuid, rid, offset, length, crc }: Suspect) {
        let good = self.server.recheck(uuid, rid, offset, length, crc);
        if !good {
            tracing::warn!(rid = format_args!("{rid:#x}"), offset, length, "a replica in this segment is bad");
        }
        let rechecked = Rechecked { uuid: uuid.to_vec().into(), rid, good };
        self.control.tell(anchor_up::Body::Rechecked(rechecked));
    }

    /// The master says that a segment is Gone, and what of it is pinned. True if it is this store's.
    pub fn segment_gone(&self, uuid: Uuid, pinned: &[(u64, u64)]) -> bool {
        let mut state = self.state.lock();
        if state.closing {
            state.pinned = Some((uuid, pinned.to_vec()));
            self.gone.notify_all();
            return state.current.as_ref().is_some_and(|memory| memory.uuid() == uuid);
        }
        let Some(memory) = state.current.take_if(|memory| memory.uuid() == uuid) else { return false };
        drop(state);
        tracing::warn!(name = self.name, "the master gave this segment up; a new one takes its place");
        let _ = self.work.send(Work::GiveBack(memory, Some(pinned.to_vec())));
        let _ = self.work.send(Work::Replace);
        true
    }

    /// The master does not know the segments that were held (any more), nor who
    /// reads them: they are replaced.
    pub fn replace(&self) {
        let mut state = self.state.lock();
        if state.closing {
            return;
        }
        if let Some(memory) = state.current.take() {
            let _ = self.work.send(Work::GiveBack(memory, None));
        }
        drop(state);
        let _ = self.work.send(Work::Replace);
    }

    // ------------------------------------------------------------ at the end

    /// Takes the segment out of the pool and gives its memory back; the larger
    /// part of that goes on in the background.
    pub fn close(&self) {
        let memory = {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.closing, true) {
                return;
            }
            state.current.clone()
        };
        if let Some(memory) = memory {
            let uuid = memory.uuid();
            let body = request::Body::Unmount(Unmount { uuid: uuid.to_vec().into() });
            let unmounted = self.control.finish("unmount", body, self.control.lookup_timeout);
            let pinned = match unmounted {
                Ok(_) => self.wait_for_pins(uuid),
                Err(error) => {
                    tracing::warn!(%error, "segment not unmounted; the master finds out by itself");
                    None
                }
            };
            self.state.lock().current = None;
            let _ = self.work.send(Work::GiveBack(memory, pinned));
        }
        let _ = self.work.send(Work::End);
    }

    fn wait_for_pins(&self, uuid: Uuid) -> Option<Vec<(u64, u64)>> {
        let deadline = Instant::now() + PINS_WAIT;
        let mut state = self.state.lock();
        loop {
            if let Some((gone, pinned)) = state.pinned.take()
                && gone == uuid
            {
                return Some(pinned);
            }
            if self.gone.wait_until(&mut state, deadline).timed_out() {
                return None;
            }
        }
    }

    // ------------------------------------------------------ its own thread

    fn run(&self, queue: &Receiver<Work>) {
        let mut populating: Option<Arc<SegmentMemory>> = None;
        loop {
            let next = match &populating {
                None => queue.recv().map_err(|_| TryRecvError::Disconnected),
                Some(_) => queue.try_recv(),
            };
            match next {
                Ok(Work::Populate(memory)) => populating = Some(memory),
                Ok(Work::Replace) => self.replace_now(),
                Ok(Work::Recheck(suspect)) => self.recheck_now(suspect),
                Ok(Work::GiveBack(memory, pinned)) => {
                    populating = None;
                    self.give_back(&memory, pinned.as_deref());
                }
                Ok(Work::End) | Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    if let Some(memory) = &populating
                        && !self.populate(memory, STEP)
                    {
                        populating = None;
                    }
                }
            }
        }
        self.server.shutdown();
    }

    /// False when there is nothing left to populate.
    fn populate(&self, memory: &SegmentMemory, step: u64) -> bool {
        match memory.populate_step(step) {
            Ok(populated) => {
                self.populated.store(populated, Ordering::Release);
                self.control.bell.ring();
                populated < memory.bytes()
            }
            Err(error) => {
                tracing::error!(name = self.name, %error, "the segment stays smaller than asked for");
                self.stopped_short.store(true, Ordering::Release);
                self.report_again();
                self.control.bell.ring();
                false
            }
        }
    }

    fn replace_now(&self) {
        while !self.control.is_stopped() && !self.state.lock().closing {
            match self.mount_new() {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(name = self.name, %error, "no new segment mounted yet");
                    std::thread::sleep(RETRY_PAUSE);
                }
            }
        }
    }

    fn mount_new(&self) -> Result<(), StoreError> {
        let setup = |what: &'static str| move |reason: String| StoreError::from(Cause::Setup { what, reason });
        let memory = SegmentMemory::create(self.bytes, self.options)
            .map_err(|error| setup("making the segment")(error.to_string()))?;
        let memory = Arc::new(memory);
        let first = memory
            .populate_step(FIRST_STEP)
            .map_err(|error| setup("filling the segment with memory")(error.to_string()))?;
        self.stopped_short.store(false, Ordering::Release);
        self.populated.store(first, Ordering::Release);
        let access_key = random_key().map_err(|error| setup("making an access key")(error.to_string()))?;
        self.server.add(memory.clone(), access_key);
        let session = self.control.session();
        let towards_master = session.local_ip.unwrap_or(self.server.tcp_addr().ip());
        let segment = Segment {
            number: 0,
            uuid: memory.uuid().to_vec().into(),
            name: self.name.clone(),
            bytes: memory.bytes(),
            session: session.id,
            endpoint: Some(Endpoint {
                boot_id: self.process.boot_id.to_vec().into(),
                unix_socket: self.server.unix_name().to_owned(),
                tcp: self.advertised.texts(towards_master),
                access_key,
                process: Some(wire_process(&self.process)),
            }),
        };
        // Held before the master knows it: a push about it may come first.
        self.state.lock().current = Some(memory.clone());
        let populated = self.populated.load(Ordering::Acquire);
        self.reported.store(populated, Ordering::Release);
        let body = request::Body::Mount(Mount { segment: Some(segment), populated });
        const WHAT: &str = "mount";
        let mounted = self.control.finish(WHAT, body, self.control.lookup_timeout);
        let error = match mounted.map(|answer| answer.body) {
            Ok(reply::Body::Mount(_)) => {
                let _ = self.work.send(Work::Populate(memory));
                return Ok(());
            }
            Ok(_) => self.control.confused(WHAT),
            Err(error) => error,
        };
        self.state.lock().current.take_if(|current| Arc::ptr_eq(current, &memory));
        // Perhaps only the answer was lost: nothing may be placed in memory that nobody serves.
        self.give_back(&memory, None);
        Err(error)
    }

    fn give_back(&self, memory: &SegmentMemory, pinned: Option<&[(u64, u64)]>) {
        if pinned.is_none() && !self.control.is_stopped() && !self.state.lock().closing {
            // It may have been mounted just before it was given up; mostly the master does not know it.
            let body = request::Body::Unmount(Unmount { uuid: memory.uuid().to_vec().into() });
            let _ = self.control.finish("unmount", body, self.control.lookup_timeout);
        }
        if !self.server.remove(memory.uuid()) {
            tracing::warn!(name = self.name, "a data lane did not end in time; its segment goes anyway");
        }
        // Where nobody knows what is pinned, unmapping frees what no process maps.
        if let Some(pinned) = pinned
            && let Err(error) = memory.give_back(pinned)
        {
            tracing::warn!(name = self.name, %error, "memory not given back before its last user ends");
        }
    }
}

impl std::fmt::Debug for SegmentOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SegmentOwner").field("name", &self.name).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Hands what the server proves to the anchor.
pub(crate) struct OwnerEvents {
    control: std::sync::OnceLock<Arc<Control>>,
}

impl OwnerEvents {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { control: std::sync::OnceLock::new() })
    }

    /// The server starts before there is a session to report to.
    pub fn report_to(&self, control: Arc<Control>) {
        let _ = self.control.set(control);
    }
}

/// What a server is started with.
pub(crate) struct Reporter(pub Arc<OwnerEvents>);

impl ServerEvents for Reporter {
    fn fenced(&self, uuid: Uuid, rid: u64) {
        if let Some(control) = self.0.control.get() {
            tell_fenced(control, uuid, rid);
        }
    }

    fn epoch_taken(&self, epoch: u16, uuid: Uuid) {
        if let Some(control) = self.0.control.get() {
            tell_epoch_taken(control, epoch, &[uuid]);
        }
    }
}

fn tell_fenced(control: &Control, uuid: Uuid, rid: u64) {
    control.tell(anchor_up::Body::FenceDone(FenceDone { uuid: uuid.to_vec().into(), rids: vec![rid] }));
}

fn tell_epoch_taken(control: &Control, epoch: u16, segments: &[Uuid]) {
    let segments = segments.iter().map(|uuid| uuid.to_vec().into()).collect();
    control.tell(anchor_up::Body::EpochTaken(EpochTaken { epoch: u32::from(epoch), segments }));
}

/// From the kernel, never 0.
fn random_key() -> std::io::Result<u64> {
    Ok(u64::from_ne_bytes(random_bytes()?) | 1)
}
