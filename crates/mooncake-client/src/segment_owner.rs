//! The memory that this store gives to the pool: made, served, populated in
//! the background, given back, as [`crate::machine::owner`] decides.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::Duration;

use mooncake_memory::{MemoryError, ProcessIdentity, SegmentMemory, SegmentOptions, random_bytes, uuid_of, uuid_text};
use mooncake_transfer::{Fence, ProcessGone, Reign, SegmentServer, ServerEvents, Uuid, thread};
use mooncake_wire::message::{
    Endpoint, EpochTaken, FenceDone, Mount, Populated, Rechecked, Segment, Unmount, anchor_up, reply, request,
};
use parking_lot::{Condvar, Mutex};

use crate::control::Control;
use crate::directory::wire_process;
use crate::error::{Cause, StoreError};
use crate::host::Advertised;
use crate::machine::owner::{MAX_SEGMENTS, Output, Owner, Pinned, Told, Unmount as Unmounting, must_resume};
use crate::machine::position::reign_of;
use crate::machine::session::Recheck;

/// Populated before the first put can come, so that it finds room at once.
const FIRST_STEP: u64 = 4 << 20;

/// Populated between two looks at what else there is to do.
const STEP: u64 = 32 << 20;

const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Name of a segment that a store gives to the pool, its own for good: it stays when the memory has to be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub [u8; 16]);

/// Two decimal numbers, as the master's pages name it.
impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&uuid_text(&self.0))
    }
}

impl FromStr for SegmentId {
    type Err = StoreError;

    /// What [`fmt::Display`] writes; anything else names no segment.
    fn from_str(text: &str) -> Result<Self, StoreError> {
        uuid_of(text).map(SegmentId).ok_or_else(|| Cause::NoSuchSegment { id: text.to_owned() }.into())
    }
}

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
    state: Mutex<Owner<Arc<Held>>>,
    gone: Condvar,
    work: Sender<Work>,
}

/// One segment as it is now.
struct Held {
    backing: Backing,
    memory: Arc<SegmentMemory>,
    populated: AtomicU64,
    reported: AtomicU64,
    /// Population has failed: there will not be more.
    stopped_short: AtomicBool,
}

enum Work {
    Populate(Arc<Held>),
    /// Sum a replica up that somebody found bad: long work for a large one.
    Recheck(Recheck),
    /// Make and mount another segment in the place of one that is Gone.
    Replace(SegmentId, Backing),
    /// `None`: nobody knows what is pinned, so nothing is punched.
    GiveBack(Arc<Held>, Option<Pinned>),
    End,
}

/// What of a store's host the master is told.
pub(crate) struct Ownership {
    pub server: Arc<SegmentServer>,
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
            options: SegmentOptions { huge_pages: ownership.huge_pages },
            name: ownership.name,
            advertised: ownership.advertised,
            process: ownership.process,
            state: Mutex::default(),
            gone: Condvar::new(),
            work,
        });
        let thread = std::thread::Builder::new().name("mooncake-owner".into());
        let inside = owner.clone();
        thread::start(thread, move || inside.run(&queue))
            .map_err(|error| Cause::Setup { what: "starting a thread", reason: error.to_string() })?;
        Ok(owner)
    }

    /// Makes a segment, mounts it, and starts to populate it.
    pub fn mount(&self, backing: Backing) -> Result<(SegmentId, u64), StoreError> {
        if !self.state.lock().has_room() {
            let reason = format!("it has {MAX_SEGMENTS} already, the most there may be; unmount one first");
            return Err(Cause::Setup { what: "another segment of this store", reason }.into());
        }
        self.mount_new(None, backing)
    }

    /// Takes a segment out of the pool and gives its memory back: at once, or when the grace is over, in which it is only
    /// read.
    pub fn unmount(&self, id: SegmentId, grace: Duration) -> Result<(), StoreError> {
        let unmount = self.state.lock().unmount(id, grace);
        let unmount = unmount.ok_or_else(|| StoreError::from(Cause::NoSuchSegment { id: id.to_string() }))?;
        self.carry_out_unmount(unmount)
    }

    // ------------------------------------------------------- for the anchor

    /// The segments that are held, each with the highest epoch that it has taken: not with one that is still waited for.
    pub fn held(&self) -> Vec<(Uuid, u16)> {
        self.state.lock().held(|uuid| self.server.taken(uuid))
    }

    /// What has been populated since the last question.
    pub fn newly_populated(&self) -> Vec<Populated> {
        let state = self.state.lock();
        let news = state.memories().filter_map(|held| {
            let populated = held.populated.load(Ordering::Acquire);
            (held.reported.swap(populated, Ordering::AcqRel) != populated).then(|| Populated {
                uuid: held.memory.uuid().to_vec().into(),
                bytes: populated,
                failed: held.stopped_short.load(Ordering::Acquire),
            })
        });
        news.collect()
    }

    /// Has the next beat tell the figures once more.
    pub fn report_again(&self) {
        self.state.lock().memories().for_each(|held| held.reported.store(0, Ordering::Release));
    }

    pub fn wants_to_report(&self) -> bool {
        let news = |held: &Arc<Held>| held.reported.load(Ordering::Acquire) != held.populated.load(Ordering::Acquire);
        self.state.lock().memories().any(news)
    }

    pub fn fence(&self, fence: Fence) {
        if self.server.fence(fence) {
            tell_fenced(&self.control, fence.uuid, fence.rid);
        }
    }

    /// False: it obeys another reign of that epoch, so that the master is told nothing.
    pub fn take_epoch(&self, asked: Reign) -> bool {
        match self.server.take_epoch(asked) {
            Ok(taken) => tell_epoch_taken(&self.control, asked.epoch, &taken),
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
            tracing::warn!(rid = format_args!("{rid:#x}"), offset, length, "a replica in this segment is bad");
        }
        let rechecked = Rechecked { uuid: uuid.to_vec().into(), rid, good };
        self.control.tell(anchor_up::Body::Rechecked(rechecked));
    }

    /// The master says that a segment is Gone, and what of it is pinned. It may be this store's.
    pub fn segment_gone(&self, uuid: Uuid, pinned: &[(u64, u64)]) {
        let mut out = Vec::new();
        if self.state.lock().segment_gone(uuid, pinned, &mut out) {
            self.gone.notify_all();
        }
        self.hand_over(out);
    }

    /// The master does not know these segments (any more), nor who reads them: they are replaced.
    pub fn replace(&self, gone: impl Fn(&Uuid) -> bool) {
        let mut out = Vec::new();
        self.state.lock().replace(gone, &mut out);
        self.hand_over(out);
    }

    /// Leaves to the owner's thread what takes long.
    fn hand_over(&self, out: Vec<Output<Arc<Held>>>) {
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

    // ------------------------------------------------------------ at the end

    /// Takes the segments out of the pool and gives their memory back; the larger
    /// part of that goes on in the background.
    pub fn close(&self) {
        let Some(leaving) = self.state.lock().close() else { return };
        for unmount in leaving {
            self.state.lock().begin(&unmount);
            if let Err(error) = self.carry_out_unmount(unmount) {
                tracing::warn!(%error, "segment not unmounted; the master finds out by itself");
            }
        }
        self.state.lock().closed();
        let _ = self.work.send(Work::End);
    }

    /// Asks the master to unmount a segment, and gives its memory back if that is to be at once.
    fn carry_out_unmount(&self, unmount: Unmounting<Arc<Held>>) -> Result<(), StoreError> {
        let body = request::Body::Unmount(Unmount { uuid: unmount.uuid.to_vec().into(), grace_ms: unmount.grace_ms });
        let unmounted = self.control.finish("unmount", body, self.control.lookup_timeout).map(drop);
        let mut out = Vec::new();
        let mut state = self.state.lock();
        if let Some(deadline) = state.unmount_answered(self.control.now(), &unmount, told(&unmounted), &mut out) {
            let deadline = self.control.instant(deadline);
            while state.waits_for_pins(unmount.uuid) && !self.gone.wait_until(&mut state, deadline).timed_out() {}
            state.take_back(unmount, &mut out);
        }
        drop(state);
        self.hand_over(out);
        unmounted
    }

    // ------------------------------------------------------ its own thread

    fn run(&self, queue: &Receiver<Work>) {
        let mut populating: VecDeque<Arc<Held>> = VecDeque::new();
        loop {
            let next = match populating.is_empty() {
                true => queue.recv().map_err(|_| TryRecvError::Disconnected),
                false => queue.try_recv(),
            };
            match next {
                Ok(Work::Populate(held)) => populating.push_back(held),
                Ok(Work::Replace(id, backing)) => self.replace_now(id, &backing),
                Ok(Work::Recheck(recheck)) => self.recheck_now(recheck),
                Ok(Work::GiveBack(held, pinned)) => {
                    populating.retain(|other| !Arc::ptr_eq(other, &held));
                    self.give_back(&held.memory, pinned.as_ref());
                }
                Ok(Work::End) | Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    if let Some(held) = populating.front()
                        && !self.populate(held, STEP)
                    {
                        populating.pop_front();
                    }
                }
            }
        }
        self.server.shutdown();
    }

    /// False when there is nothing left to populate.
    fn populate(&self, held: &Held, step: u64) -> bool {
        match held.memory.populate_step(step) {
            Ok(populated) => {
                held.populated.store(populated, Ordering::Release);
                self.control.bell.ring();
                populated < held.memory.bytes()
            }
            Err(error) => {
                tracing::error!(name = self.name, %error, "the segment stays smaller than asked for");
                held.stopped_short.store(true, Ordering::Release);
                held.reported.store(0, Ordering::Release);
                self.control.bell.ring();
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
            .populate_step(FIRST_STEP)
            .map_err(|error| setup("filling the segment with memory")(error.to_string()))?;
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
                // Nobody is to ask for memory that nobody is given.
                unix_socket: if memory.is_sealed() { self.server.unix_name().to_owned() } else { String::new() },
                tcp: self.advertised.texts(towards_master),
                access_key,
                process: Some(wire_process(&self.process)),
            }),
        };
        let held = Arc::new(Held {
            backing,
            memory,
            populated: AtomicU64::new(first),
            reported: AtomicU64::new(first),
            stopped_short: AtomicBool::new(false),
        });
        let (uuid, bytes) = (held.memory.uuid(), held.memory.bytes());
        let id = self.state.lock().mount(id, uuid, held.clone());
        let body = request::Body::Mount(Mount { segment: Some(segment), populated: first });
        const WHAT: &str = "mount";
        let mounted = match self.control.finish_now(WHAT, body, self.control.lookup_timeout) {
            Ok(answer) if matches!(answer.body, reply::Body::Mount(_)) => Ok((id, bytes)),
            Ok(_) => Err(self.control.confused(WHAT)),
            Err(error) => Err(error),
        };
        let is_held = self.state.lock().mount_answered(uuid, told(&mounted));
        if is_held {
            self.server.mounted(uuid, reign_of(&self.control.position()));
            let _ = self.work.send(Work::Populate(held));
        } else {
            self.give_back(&held.memory, None);
        }
        mounted
    }

    fn give_back(&self, memory: &SegmentMemory, pinned: Option<&Pinned>) {
        if self.state.lock().must_unmount(pinned) && !self.control.is_stopped() {
            let body = request::Body::Unmount(Unmount { uuid: memory.uuid().to_vec().into(), grace_ms: 0 });
            let unmounted = self.control.finish("unmount", body, self.control.lookup_timeout);
            if let Err(error) = &unmounted
                && must_resume(told(&unmounted))
            {
                // The list of what is held, which says as much, goes to the master as soon as it answers again.
                tracing::debug!(name = self.name, %error, "the master is told of it when it is back");
                self.control.resume_anew();
            }
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

/// What the master said.
fn told<T>(answer: &Result<T, StoreError>) -> Told {
    match answer.as_ref().map_err(StoreError::cause) {
        Ok(_) => Told::Done,
        Err(Cause::Refused { .. } | Cause::BadRequest { .. }) => Told::Refused,
        Err(_) => Told::Unanswered,
    }
}

impl std::fmt::Debug for SegmentOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SegmentOwner").field("name", &self.name).finish_non_exhaustive()
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

    fn process_gone(&self, gone: ProcessGone) {
        if let Some(control) = self.0.control.get() {
            control.deaths.lock().note(gone);
            control.bell.ring();
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
pub(crate) fn random_key() -> std::io::Result<u64> {
    Ok(u64::from_ne_bytes(random_bytes()?) | 1)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use mooncake_memory::{Source, boot_id};
    use mooncake_transfer::{SegmentAddress, ServerOptions, Wait};
    use mooncake_wire::message::{HelloReply, LogPosition};

    use super::*;
    use crate::connection::Address;
    use crate::link_set::LinkSet;
    use crate::machine::parts::Parts;
    use crate::master_address::MasterAddress;
    use crate::options::StoreOptions;
    use crate::session::Session;

    const A2: Reign = Reign { epoch: 2, id: 7 };
    const RID: u64 = 1 << 48 | 2;

    fn control() -> Arc<Control> {
        let options = StoreOptions::new("127.0.0.1", "127.0.0.1:1");
        let masters = MasterAddress::parse(&options.master).unwrap();
        let at = Address::Tcp(([127, 0, 0, 1], 1).into());
        let session = Session::new(&HelloReply { session: 7, ..HelloReply::default() }, at, None, &[0; 16]);
        let position = LogPosition { log_id: 1, epoch: 1, lsn: 1, reign: 0 };
        Arc::new(Control::new(&options, masters, session, position).unwrap())
    }

    /// An owner with a segment that nothing maps and one that a store has written to. What the owner says by itself goes to
    /// one anchor and what its server reports to another, so that a test sees who said it.
    struct Host {
        owner: Arc<SegmentOwner>,
        says: Arc<Control>,
        reports: Arc<Control>,
        free: Uuid,
        mapped: Uuid,
        links: LinkSet,
    }

    impl Host {
        fn new() -> Self {
            let (says, reports) = (control(), control());
            let events = OwnerEvents::new();
            events.report_to(reports.clone());
            let options = ServerOptions::new([127, 0, 0, 1].into(), 0, 1);
            let server = SegmentServer::start(options, Box::new(Reporter(events))).unwrap();
            let ownership = Ownership {
                server: server.clone(),
                huge_pages: false,
                name: "owner".into(),
                advertised: Advertised::Addresses(Vec::new()),
                process: ProcessIdentity::current().unwrap(),
            };
            let owner = SegmentOwner::prepare(says.clone(), ownership).unwrap();
            let memories: Vec<_> = (0..2)
                .map(|_| Arc::new(SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap()))
                .inspect(|memory| server.add(memory.clone(), 1))
                .collect();
            let links = LinkSet::over_shared_memory(control());
            let memory = &memories[1];
            let address = SegmentAddress {
                uuid: memory.uuid(),
                bytes: memory.bytes(),
                name: "owner".into(),
                boot_id: boot_id().unwrap(),
                unix_socket: server.unix_name().into(),
                tcp: Vec::new(),
                access_key: 1,
                process: None,
            };
            let wait = Wait::until(Instant::now() + Duration::from_secs(5));
            links.link(&address, &wait).unwrap().write(RID, 0, &[Source::new(b"new")], &wait).unwrap();
            Host { owner, says, reports, free: memories[0].uuid(), mapped: memory.uuid(), links }
        }

        fn fence(&self, uuid: Uuid) {
            let fence = Fence { uuid, rid: RID, offset: 0, len: 1024, writer: 7, writer_done: false };
            self.owner.fence(fence);
        }
    }

    impl Drop for Host {
        fn drop(&mut self) {
            self.owner.close();
        }
    }

    fn take(parts: &mut Parts<'_>) -> Vec<anchor_up::Body> {
        std::mem::take(parts.up).into_iter().filter_map(|message| message.body).collect()
    }

    /// What waits for this anchor by now.
    fn now(control: &Control) -> Vec<anchor_up::Body> {
        control.decide(take)
    }

    /// What waits for this anchor as soon as there is something.
    fn soon(control: &Control) -> Vec<anchor_up::Body> {
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            let said = now(control);
            if !said.is_empty() || Instant::now() > until {
                return said;
            }
            std::thread::yield_now();
        }
    }

    fn fence_done(uuid: Uuid) -> Vec<anchor_up::Body> {
        vec![anchor_up::Body::FenceDone(FenceDone { uuid: uuid.to_vec().into(), rids: vec![RID] })]
    }

    fn epoch_taken(uuid: Uuid) -> Vec<anchor_up::Body> {
        vec![anchor_up::Body::EpochTaken(EpochTaken { epoch: 2, segments: vec![uuid.to_vec().into()] })]
    }

    #[test]
    fn a_fence_is_answered_at_once_where_it_is_proven_and_else_when_the_server_has_the_proof() {
        let host = Host::new();
        host.fence(host.free);
        assert_eq!(now(&host.says), fence_done(host.free), "nobody could write there");
        host.fence(host.mapped);
        assert_eq!(soon(&host.reports), fence_done(host.mapped), "the writer has answered");
        assert_eq!(now(&host.says), [], "and nobody before it");
    }

    #[test]
    fn an_epoch_is_reported_at_once_of_what_is_done_and_of_the_rest_when_the_server_has_the_proof() {
        let host = Host::new();
        assert!(host.owner.take_epoch(A2));
        assert_eq!(now(&host.says), epoch_taken(host.free), "not of the one that a store maps");
        assert_eq!(now(&host.reports), [], "whose master is in an earlier one");
        let until = Instant::now() + Duration::from_secs(5);
        while !host.links.has_been_asked(A2) {
            assert!(Instant::now() < until, "no question");
            std::thread::yield_now();
        }
        host.links.obey(A2);
        assert_eq!(soon(&host.reports), epoch_taken(host.mapped));
        assert!(!host.owner.take_epoch(Reign { epoch: 2, id: 8 }), "another reign of that epoch");
        assert_eq!((now(&host.says), now(&host.reports)), (vec![], vec![]));
    }

    #[test]
    fn a_process_that_ended_is_noted_for_the_anchor() {
        let (events, control) = (OwnerEvents::new(), control());
        let gone = ProcessGone { session: 7, uuid: [1; 16], mark: 3 };
        Reporter(events.clone()).process_gone(gone);
        events.report_to(control.clone());
        Reporter(events).process_gone(gone);
        let told = control.deaths.lock().to_tell(control.now());
        assert_eq!(told.len(), 1, "the first was seen before there was a session to tell of it: {told:?}");
    }
}
