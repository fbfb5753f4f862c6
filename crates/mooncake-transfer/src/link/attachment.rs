//! A peer's segment, mapped here, and the connection that goes with it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use mooncake_memory::{Expect, Guarded, Mapping, Presence, forked, has_exited, peer_credentials, peer_pidfd, recv_fds};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::options::{LinkOptions, SegmentAddress};
use super::reclaimer::Reclaimer;
use super::watcher::Watcher;
use crate::Uuid;
use crate::attach_pipe::AttachPipe;
use crate::error::TransferError;
use crate::gate::Gate;
use crate::reign::Reign;
use crate::wait::{SLICE, Wait};
use crate::wire::{FEATURE_INTRODUCTIONS, Frame, HELLO_LEN, Hello, HelloReply, LANE_VERSION, Op, Status};

pub(super) struct Attachment {
    id: u64,
    uuid: Uuid,
    peer: Arc<str>,
    /// Taken out at the end, so that the farewell follows the unmapping.
    readable: Option<Arc<Mapping>>,
    writable: OnceLock<Arc<Mapping>>,
    gate: Arc<Gate>,
    pidfd: Arc<Guarded<OwnedFd>>,
    stream: Arc<Guarded<UnixStream>>,
    talk: Mutex<Talk>,
    answered: Condvar,
    /// Tells the other processes that the memory is mapped here.
    presence: Presence,
    views: Mutex<HashMap<(u64, u64), usize>>,
    owner_gone: AtomicBool,
    hung_up: AtomicBool,
    /// Set once the segment is Gone: the pinned extents that the master named.
    forgotten: Mutex<Option<Vec<(u64, u64)>>>,
    /// The reclaimer has it on its list.
    queued: AtomicBool,
    watcher: Arc<Watcher>,
    reclaimer: Arc<Reclaimer>,
}

struct Talk {
    pipe: AttachPipe,
    upgrade: Upgrade,
    quiesces: Vec<Quiesce>,
    /// Latest reign that this process said that it obeys; first the one that the segment was mounted in, or its owner asked
    /// for, when it let this process in.
    obeyed: Reign,
    epochs: Vec<EpochAsked>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Upgrade {
    No,
    Asked,
    Granted,
}

struct Quiesce {
    writing: Vec<u64>,
    frame: Frame,
}

struct EpochAsked {
    reign: Reign,
    writing: Vec<u64>,
    confirmed: bool,
}

/// Why TCP is used instead.
#[derive(Debug)]
pub(super) struct NoSharedMemory {
    pub reason: String,
    /// It may pass: the owner stood still, or had too much to do.
    pub passing: bool,
}

impl From<String> for NoSharedMemory {
    fn from(reason: String) -> NoSharedMemory {
        NoSharedMemory { reason, passing: false }
    }
}

impl NoSharedMemory {
    fn passing(reason: &str) -> NoSharedMemory {
        NoSharedMemory { reason: reason.into(), passing: true }
    }

    /// A socket is not of use; what the kernel says tells for how long.
    fn socket(what: &'static str) -> impl Fn(io::Error) -> NoSharedMemory {
        move |e| {
            let short_of = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
            let passing = match e.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => true,
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => true,
                _ => Errno::from_io_error(&e).is_some_and(|errno| short_of.contains(&errno)),
            };
            NoSharedMemory { reason: format!("{what}: {e}"), passing }
        }
    }
}

impl Attachment {
    /// Gets the owner's descriptors and maps them.
    pub(super) fn open(
        address: &SegmentAddress,
        options: &LinkOptions,
        hello: &Hello,
        watcher: &Arc<Watcher>,
        reclaimer: &Arc<Reclaimer>,
        wait: &Wait<'_>,
    ) -> Result<Arc<Attachment>, NoSharedMemory> {
        let stream =
            connect(&address.unix_socket).map_err(NoSharedMemory::socket("its Unix socket does not answer"))?;
        let stream = Arc::new(stream);
        // The first local to be made is the last to end: what came of the memory has been let go of by then.
        let unmapped = SaysUnmapped(Some(stream.clone()));
        let owner = peer_credentials(&**stream).map_err(|e| format!("its owner cannot be told: {e}"))?;
        if !owner.is_own_user() {
            return Err(format!("its owner is user {}, or looks like it in this user namespace", owner.uid).into());
        }
        let pidfd = owner_pidfd(&stream, address)?;
        let deadline = wait.deadline.min(Instant::now() + options.connect_timeout);
        let (reply, fds) = say_hello(&stream, hello, address, Wait { deadline, ..*wait })?;
        let mut pipe = AttachPipe::new(stream.clone());
        if reply.features & FEATURE_INTRODUCTIONS != 0 && options.mark != 0 {
            // Before the first byte is mapped: from then on the end of this process has to be provable.
            let introduction = Frame { rid: options.mark, ..Frame::plain(Op::Introduce, 0) };
            pipe.send(&introduction).map_err(NoSharedMemory::socket("its Unix socket"))?;
        }
        let [data, control] = fds;
        let expect = Expect { uuid: address.uuid, bytes: address.bytes };
        let readable = Arc::new(Mapping::map(data, control, expect, false).map_err(|e| e.to_string())?);
        stream.set_nonblocking(true).map_err(|e| e.to_string())?;

        let bell = watcher.bell().clone();
        let attachment = Arc::new(Attachment {
            id: watcher.next_id(),
            uuid: address.uuid,
            peer: address.label(),
            presence: Presence::announce(&readable).map_err(|e| format!("its memory cannot be locked: {e}"))?,
            readable: Some(readable),
            writable: OnceLock::new(),
            gate: Gate::new(reply.reign.epoch, Box::new(move || bell.ring())),
            pidfd: Arc::new(Guarded::new(pidfd)),
            talk: Mutex::new(Talk {
                pipe,
                upgrade: Upgrade::No,
                quiesces: Vec::new(),
                obeyed: reply.reign,
                epochs: Vec::new(),
            }),
            stream,
            answered: Condvar::new(),
            views: Mutex::default(),
            owner_gone: AtomicBool::new(false),
            hung_up: AtomicBool::new(false),
            forgotten: Mutex::default(),
            queued: AtomicBool::new(false),
            watcher: watcher.clone(),
            reclaimer: reclaimer.clone(),
        });
        // From now on the attachment itself says it, when it is dropped.
        unmapped.not_yet();
        watcher.watch(&attachment).map_err(|e| e.to_string())?;
        Ok(attachment)
    }

    pub(super) fn has_hung_up(&self) -> bool {
        self.hung_up.load(Ordering::Acquire)
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// See [`super::Link::is_waited_for_in`].
    pub(super) fn is_waited_for_in(&self, reign: Reign) -> bool {
        let talk = self.talk.lock();
        let asked = talk.epochs.iter().map(|asked| asked.reign);
        std::iter::once(talk.obeyed).chain(asked).any(|owners| reign.knows_what_is_known_in(owners))
    }

    pub(super) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    pub(super) fn pidfd(&self) -> &Arc<Guarded<OwnedFd>> {
        &self.pidfd
    }

    pub(super) fn stream(&self) -> &Arc<Guarded<UnixStream>> {
        &self.stream
    }

    /// The mapping for reads and views.
    pub(super) fn readable(&self) -> &Arc<Mapping> {
        self.readable.as_ref().expect("only taken out when the attachment is dropped")
    }

    /// Whether new links should be made instead of using this one.
    pub(super) fn is_over(&self) -> bool {
        self.has_hung_up() || self.owner_gone.load(Ordering::Acquire)
    }

    /// The mapping for writes. Made at the first one, with the owner's consent:
    /// from then on the owner waits for this process when it fences.
    pub(super) fn writable(&self, wait: &Wait<'_>) -> Result<&Arc<Mapping>, TransferError> {
        if let Some(mapping) = self.writable.get() {
            return if self.is_over() { Err(self.gone()) } else { Ok(mapping) };
        }
        let started = Instant::now();
        let mut talk = self.talk.lock();
        loop {
            if self.is_over() {
                return Err(self.gone());
            }
            match talk.upgrade {
                Upgrade::Granted => break,
                Upgrade::No => {
                    talk.pipe.send(&Frame::plain(Op::Upgrade, 0)).map_err(|source| self.broken(source))?;
                    talk.upgrade = Upgrade::Asked;
                }
                Upgrade::Asked => {}
            }
            if (wait.interrupted)() {
                return Err(TransferError::Interrupted);
            }
            if wait.is_over() {
                let what = "the owner did not let its segment be written";
                return Err(TransferError::Timeout { peer: self.peer.to_string(), what, waited: started.elapsed() });
            }
            self.answered.wait_for(&mut talk, wait.slice());
        }
        if let Some(mapping) = self.writable.get() {
            return Ok(mapping);
        }
        let mapping = self.readable().remap(true);
        let mapping = mapping.map_err(|source| TransferError::Map { peer: self.peer.to_string(), source })?;
        Ok(self.writable.get_or_init(|| Arc::new(mapping)))
    }

    fn broken(&self, source: io::Error) -> TransferError {
        TransferError::Broken { peer: self.peer.to_string(), what: "attach connection", source }
    }

    fn gone(&self) -> TransferError {
        TransferError::Gone { peer: self.peer.to_string() }
    }

    // -------------------------------------------------- what the watcher does

    /// Reads what the owner has to say. Gives the latest reign that it asks to obey.
    pub(super) fn hear(&self) -> Option<Reign> {
        let mut asked: Option<Reign> = None;
        let mut talk = self.talk.lock();
        loop {
            let frame = match talk.pipe.receive() {
                Ok(Some(frame)) => frame,
                Ok(None) => return asked,
                Err(_) => {
                    self.hung_up.store(true, Ordering::Release);
                    self.answered.notify_all();
                    return asked;
                }
            };
            match frame.op {
                Op::Upgraded => {
                    talk.upgrade = Upgrade::Granted;
                    self.answered.notify_all();
                }
                Op::Quiesce => {
                    // Without a writable mapping nothing can be under way.
                    let writing = self.writable.get().map(|m| self.gate.fence(m, frame.rid, frame.offset, frame.len));
                    let writing = writing.transpose().ok().flatten().unwrap_or_default();
                    talk.quiesces.push(Quiesce { writing, frame });
                }
                Op::TakeEpoch => {
                    let writing = self.gate.raise_epoch(frame.epoch);
                    let reign = frame.reign();
                    talk.epochs.push(EpochAsked { reign, writing, confirmed: false });
                    asked = Some(asked.map_or(reign, |asked| asked.or_later(reign)));
                }
                // A later version's message that needs no answer.
                _ => {}
            }
        }
    }

    /// Answers what has become true.
    pub(super) fn answer(&self) {
        let mut talk = self.talk.lock();
        let Talk { pipe, quiesces, epochs, .. } = &mut *talk;
        let send = |pipe: &mut AttachPipe, frame: Frame| {
            // A dead connection is noticed where it is read.
            let _ = pipe.send(&frame);
        };
        quiesces.retain_mut(|quiesce| {
            self.gate.retain_active(&mut quiesce.writing);
            if !quiesce.writing.is_empty() || !pipe.has_room() {
                return true;
            }
            let Frame { rid, offset, len, .. } = quiesce.frame;
            if let Some(mapping) = self.writable.get() {
                // The writes that were waited for may have stamped over the
                // owner's tombstone; a later one must still find it.
                let _ = mapping.tombstone(rid, offset, len);
            }
            send(pipe, Frame { op: Op::Quiesced, ..quiesce.frame });
            false
        });
        epochs.retain_mut(|asked| {
            self.gate.retain_active(&mut asked.writing);
            if !asked.confirmed || !asked.writing.is_empty() || !pipe.has_room() {
                return true;
            }
            send(pipe, Frame::plain(Op::EpochTaken, asked.reign.epoch));
            false
        });
        let _ = pipe.flush();
    }

    pub(super) fn wants_room(&self) -> bool {
        self.talk.lock().pipe.is_waiting()
    }

    /// The owner's process has ended. True the first time.
    pub(super) fn owner_ended(self: &Arc<Self>) -> bool {
        let first = !self.owner_gone.swap(true, Ordering::AcqRel);
        self.answered.notify_all();
        if first {
            self.give_back_later();
        }
        first
    }

    /// This process obeys the reign. What it was asked for before that needs no answer of its own: an owner that asks for a
    /// higher epoch waits for that one only.
    pub(super) fn confirm_epoch(&self, reign: Reign) {
        let mut talk = self.talk.lock();
        talk.obeyed = talk.obeyed.or_later(reign);
        for asked in talk.epochs.iter_mut().filter(|asked| asked.reign.epoch <= reign.epoch) {
            asked.confirmed = true;
        }
        drop(talk);
        self.watcher.bell().ring();
    }

    // ------------------------------------------------- giving the memory back

    /// The segment is Gone. If its owner's process is too, or once it is, the
    /// peers give the memory back, all but the pinned extents. Takes its time:
    /// for the reclaimer's thread.
    pub(super) fn forget(&self, pinned: &[(u64, u64)]) {
        {
            // Told twice, by a master that was restarted meanwhile: what it has forgotten may still be viewed.
            let mut forgotten = self.forgotten.lock();
            let keep = forgotten.get_or_insert_default();
            let more = pinned.iter().filter(|extent| !keep.contains(extent)).copied().collect::<Vec<_>>();
            keep.extend(more);
        }
        if matches!(has_exited(self.pidfd.as_fd()), Ok(true)) {
            self.owner_gone.store(true, Ordering::Release);
        }
        self.give_back();
    }

    fn give_back_later(self: &Arc<Self>) {
        if self.forgotten.lock().is_none() || self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let attachment = self.clone();
        self.reclaimer.later(move || {
            attachment.queued.store(false, Ordering::Release);
            attachment.give_back();
        });
    }

    fn give_back(&self) {
        let Some(pinned) = self.forgotten.lock().clone() else { return };
        if !self.owner_gone.load(Ordering::Acquire) {
            return;
        }
        let readable = self.readable();
        let keep = || {
            // Nobody else is left: what others had pinned is of no use any more. Those who are, are asked for by
            // their locks and not by the master, which may be away.
            let alone = matches!(self.presence.is_alone(), Ok(true));
            // The owner asked for a reign that this store's master has not shown: that one may not know of all views.
            let asked_by_another = || self.talk.lock().epochs.iter().any(|asked| !asked.confirmed);
            let mut keep = match alone {
                true => Vec::new(),
                false if asked_by_another() => vec![(0, readable.bytes())],
                false => pinned,
            };
            keep.extend(self.views.lock().keys());
            keep
        };
        if let Err(e) = readable.give_back(keep) {
            tracing::warn!(peer = &*self.peer, "giving the memory of a dead owner back: {e}");
        }
    }

    pub(super) fn view_made(&self, offset: u64, len: u64) {
        *self.views.lock().entry((offset, len)).or_insert(0) += 1;
    }

    /// A view has ended. On a segment that is Gone its bytes go back to the
    /// host, if no other process can hold a view of the same ones.
    pub(super) fn view_ended(self: &Arc<Self>, offset: u64, len: u64) {
        {
            let mut views = self.views.lock();
            let Some(count) = views.get_mut(&(offset, len)) else { return };
            *count -= 1;
            if *count > 0 {
                return;
            }
            views.remove(&(offset, len));
        }
        self.give_back_later();
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        self.watcher.unwatch(self.id);
        self.readable = None;
        self.writable = OnceLock::new();
        // The pipe may be full of answers that an owner that stands still has not read.
        if let Ok(false) = self.talk.get_mut().pipe.send_last(&DETACHED) {
            let empty = AttachPipe::new(self.stream.clone());
            self.watcher.flush(self.id, std::mem::replace(&mut self.talk.get_mut().pipe, empty));
        }
    }
}

const DETACHED: Frame = Frame::plain(Op::Detached, 0);

/// An attempt to map a segment. However it ends early, its owner is told that
/// nothing is mapped: the descriptors were let go of, or are never received.
/// Until then it waits for this process with every epoch.
struct SaysUnmapped(Option<Arc<Guarded<UnixStream>>>);

impl SaysUnmapped {
    /// The attempt was a success.
    fn not_yet(mut self) {
        self.0 = None;
    }
}

impl Drop for SaysUnmapped {
    fn drop(&mut self) {
        if let Some(stream) = &self.0
            && !forked()
        {
            // There is room behind a hello. An owner that closed the connection has not put this process on record.
            let _ = rustix::net::send(&***stream, &DETACHED.encode(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }
}

impl std::fmt::Debug for Attachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attachment").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// The pidfd of the process that listens there, and no other's.
fn owner_pidfd(stream: &Guarded<UnixStream>, address: &SegmentAddress) -> Result<OwnedFd, String> {
    if let Ok(pidfd) = peer_pidfd(&**stream) {
        return Ok(pidfd);
    }
    let identity = address.process.as_ref().ok_or("the end of its owner's process could not be proven")?;
    match identity.pidfd() {
        Ok(Some(pidfd)) => Ok(pidfd),
        Ok(None) => Err("its owner's process is gone".into()),
        Err(e) => Err(format!("the end of its owner's process could not be proven: {e}")),
    }
}

/// Does not wait: a listener whose queue is full belongs to a stopped process.
fn connect(name: &str) -> io::Result<Guarded<UnixStream>> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    let stream = Guarded::new(UnixStream::from(OwnedFd::from(socket)));
    stream.set_nonblocking(true)?;
    socket2::SockRef::from(&*stream).connect(&socket2::SockAddr::unix(format!("\0{name}"))?)?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn say_hello(
    stream: &Guarded<UnixStream>,
    hello: &Hello,
    address: &SegmentAddress,
    wait: Wait<'_>,
) -> Result<(HelloReply, [OwnedFd; 2]), NoSharedMemory> {
    use std::io::Write;
    let text = NoSharedMemory::socket("its Unix socket");
    stream.set_read_timeout(Some(SLICE)).map_err(&text)?;
    stream.set_write_timeout(Some(SLICE)).map_err(&text)?;
    (&**stream).write_all(&hello.encode()).map_err(&text)?;
    let mut reply = [0; HELLO_LEN];
    let (mut have, mut fds) = (0, Vec::new());
    while have < HELLO_LEN {
        match recv_fds(stream.as_fd(), &mut reply[have..], &mut fds) {
            Ok(0) => return Err(NoSharedMemory::passing("its owner hung up instead of giving its memory")),
            Ok(count) => have += count,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                if wait.is_over() || (wait.interrupted)() {
                    return Err(NoSharedMemory::passing("its owner did not answer in time"));
                }
            }
            Err(e) => return Err(text(e)),
        }
    }
    let reply = HelloReply::decode(&reply).ok_or_else(|| "what answers is not a segment server".to_owned())?;
    if reply.status != Status::Ok {
        let passing = reply.status == Status::Overloaded;
        return Err(NoSharedMemory { reason: reply.status.to_string(), passing });
    }
    if reply.version != LANE_VERSION || reply.uuid != address.uuid || reply.bytes != address.bytes {
        return Err("its owner serves another memory".to_owned().into());
    }
    let fds = <[OwnedFd; 2]>::try_from(fds).map_err(|fds| format!("{} descriptors came instead of 2", fds.len()))?;
    Ok((reply, fds))
}
