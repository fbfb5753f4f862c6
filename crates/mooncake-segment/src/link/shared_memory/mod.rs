//! A segment of another process, mapped here, and the connection that goes with it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use mooncake_ids::{Rid, SegmentUuid};
use mooncake_memory::{CopyError, Expect, Mapping, Presence, TenureLock, TenureUse};
use mooncake_net::{connect_abstract, receive_with_fds};
use mooncake_os::{
    Deadline, Guarded, ProcessIdentity, forked, has_exited, is_short_of_descriptors, peer_credentials, peer_pidfd,
};
use parking_lot::{Condvar, Mutex, RwLock};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::options::{LinkOptions, SegmentAddress};
use super::shared_memory::give_back_thread::GiveBackThread;
use super::shared_memory::watcher::Watcher;
use crate::epoch::Epoch;
use crate::error::TransferError;
use crate::gate::Gate;
use crate::link_events::Asked;
use crate::machine::{DETACHED, Heard, Peer, Remains, WritePermission, Writes};
use crate::protocol::attach_stream::AttachPipe;
use crate::protocol::frames::{FEATURE_INTRODUCTIONS, Frame, HELLO_LEN, Hello, HelloReply, LANE_VERSION, Op, Status};

pub(super) struct Attachment {
    id: u64,
    uuid: SegmentUuid,
    segment: Arc<str>,
    /// Its process, as the address has it.
    owner: Option<ProcessIdentity>,
    /// Taken out at the end: without the last of both mappings there is no `Detached`.
    readable: Option<Arc<Mapping>>,
    writable: RwLock<Option<Arc<Mapping>>>,
    locks: Locks,
    gate: Arc<Gate>,
    pidfd: Arc<Guarded<OwnedFd>>,
    stream: Arc<Guarded<UnixStream>>,
    talk: Mutex<Talk>,
    answered: Condvar,
    /// Tells the other processes that the memory is mapped here.
    presence: Presence,
    remains: Mutex<Remains>,
    /// As in `remains`, for callers that do not lock that.
    owner_gone: AtomicBool,
    hung_up: AtomicBool,
    watcher: Arc<Watcher>,
    give_back_thread: Arc<GiveBackThread>,
}

/// Of memory that outlives its owner (docs/safety.md, rule 26): for its heir these say that this process is there.
#[derive(Default)]
struct Locks {
    /// Of the owner that let this process in; 0: the memory ends with its owner, and is not locked.
    tenure: u32,
    /// Held as long as anything is mapped.
    _views: Option<TenureLock>,
    writes: Mutex<Option<TenureLock>>,
}

struct Talk {
    pipe: AttachPipe,
    peer: Peer,
}

/// The gate of this process's writes, and the mapping that they go through.
struct OwnWrites<'a> {
    gate: &'a Gate,
    writable: Option<Arc<Mapping>>,
}

// Without a writable mapping nothing is under way.
impl Writes for OwnWrites<'_> {
    fn fence(&self, rid: Rid, offset: u64, len: u64) -> Result<Vec<u64>, CopyError> {
        self.writable.as_ref().map_or(Ok(Vec::new()), |mapping| self.gate.fence(mapping, rid, offset, len))
    }

    fn raise_epoch(&self, epoch: u16) -> Vec<u64> {
        self.gate.raise_epoch(epoch)
    }

    fn retain_active(&self, ids: &mut Vec<u64>) {
        self.gate.retain_active(ids);
    }
}

/// Why TCP is used instead.
#[derive(Debug)]
pub(super) struct NoSharedMemory {
    pub reason: String,
    /// It may pass: the owner stood still, or had too much to do.
    pub passing: bool,
    /// No descriptor was left in this process.
    pub is_short: bool,
}

impl From<String> for NoSharedMemory {
    fn from(reason: String) -> NoSharedMemory {
        NoSharedMemory { reason, passing: false, is_short: false }
    }
}

impl NoSharedMemory {
    fn passing(reason: &str) -> NoSharedMemory {
        NoSharedMemory { reason: reason.into(), passing: true, is_short: false }
    }

    /// Something of the kernel's is not to be had; what it says tells for how long.
    fn socket(what: &'static str) -> impl Fn(io::Error) -> NoSharedMemory {
        move |e| {
            let short_of = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
            let passing = match e.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => true,
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => true,
                _ => Errno::from_io_error(&e).is_some_and(|errno| short_of.contains(&errno)),
            };
            NoSharedMemory { reason: format!("{what}: {e}"), passing, is_short: is_short_of_descriptors(&e) }
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
        give_back_thread: &Arc<GiveBackThread>,
        deadline: &Deadline<'_>,
    ) -> Result<Arc<Attachment>, NoSharedMemory> {
        let stream = connect_abstract(&address.unix_socket)
            .map_err(NoSharedMemory::socket("its Unix socket does not answer"))?;
        let stream = Arc::new(stream);
        // The first local to be made is the last to end: what came of the memory has been let go of by then.
        let unmapped = SaysUnmapped(Some(stream.clone()));
        let owner = peer_credentials(&**stream).map_err(|e| format!("its owner cannot be told: {e}"))?;
        if !owner.is_own_user() {
            return Err(format!("its owner is user {}, or looks like it in this user namespace", owner.uid).into());
        }
        let pidfd = owner_pidfd(&stream, address)?;
        let (reply, fds) = say_hello(&stream, hello, address, &deadline.within(options.connect_timeout))?;
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
        let (locks, peer) = Locks::begin(&readable, reply.tenure, reply.epoch)?;
        if let Some(question) = peer.view_question() {
            pipe.send(&question).map_err(NoSharedMemory::socket("its Unix socket"))?;
        }

        let (id, teller) = (watcher.next_id(), watcher.clone());
        let attachment = Arc::new(Attachment {
            id,
            uuid: address.uuid,
            segment: address.display_name(),
            owner: address.process,
            presence: Presence::announce(&readable).map_err(NoSharedMemory::socket("its memory cannot be locked"))?,
            readable: Some(readable),
            writable: RwLock::default(),
            locks,
            gate: Gate::new(reply.epoch.number, Box::new(move || teller.look_at(id))),
            pidfd: Arc::new(Guarded::new(pidfd)),
            talk: Mutex::new(Talk { pipe, peer }),
            stream,
            answered: Condvar::new(),
            remains: Mutex::default(),
            owner_gone: AtomicBool::new(false),
            hung_up: AtomicBool::new(false),
            watcher: watcher.clone(),
            give_back_thread: give_back_thread.clone(),
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

    pub(super) fn uuid(&self) -> SegmentUuid {
        self.uuid
    }

    pub(super) fn owner(&self) -> Option<ProcessIdentity> {
        self.owner
    }

    /// See [`super::Link::is_waited_for_in`].
    pub(super) fn is_waited_for_in(&self, epoch: Epoch) -> bool {
        self.talk.lock().peer.is_waited_for_in(epoch)
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
    pub(super) fn writable(&self, deadline: &Deadline<'_>) -> Result<Arc<Mapping>, TransferError> {
        if let Some(mapping) = &*self.writable.read() {
            return if self.is_over() { Err(self.gone()) } else { Ok(mapping.clone()) };
        }
        let started = Instant::now();
        let mut talk = self.talk.lock();
        loop {
            if self.is_over() {
                return Err(self.gone());
            }
            match talk.peer.write_permission() {
                WritePermission::Granted => break,
                WritePermission::Ask(question) => {
                    self.lock_for_writes()?;
                    talk.pipe.send(&question).map_err(|source| self.broken(source))?;
                    talk.peer.has_asked();
                    if talk.pipe.is_waiting() {
                        self.watcher.look_at(self.id);
                    }
                }
                WritePermission::Awaited => {}
            }
            if deadline.is_interrupted() {
                return Err(TransferError::Interrupted);
            }
            if deadline.has_passed() {
                let what = "the owner did not let its segment be written";
                return Err(TransferError::Timeout {
                    segment: self.segment.to_string(),
                    what,
                    waited: started.elapsed(),
                });
            }
            self.answered.wait_for(&mut talk, deadline.slice());
        }
        // Under the same lock as `part`: behind that nothing is mapped to be written any more.
        let mut writable = self.writable.write();
        if self.is_over() {
            return Err(self.gone());
        }
        if let Some(mapping) = &*writable {
            return Ok(mapping.clone());
        }
        let mapping = self.readable().remap(true);
        let mapping = mapping.map_err(|source| TransferError::Map { segment: self.segment.to_string(), source })?;
        Ok(writable.insert(Arc::new(mapping)).clone())
    }

    /// Before the owner is asked: its heir is to know of it from then on.
    fn lock_for_writes(&self) -> Result<(), TransferError> {
        let Locks { tenure, writes, .. } = &self.locks;
        let mut lock = writes.lock();
        if *tenure != 0 && lock.is_none() {
            let taken = TenureLock::take(self.readable(), TenureUse::Writes, *tenure);
            *lock = Some(taken.map_err(|source| self.broken(source))?);
        }
        Ok(())
    }

    fn broken(&self, source: io::Error) -> TransferError {
        TransferError::Broken { segment: self.segment.to_string(), what: "attach connection", source }
    }

    fn gone(&self) -> TransferError {
        TransferError::Gone { segment: self.segment.to_string() }
    }

    // -------------------------------------------------- what the watcher does

    /// Reads what the owner has to say. Gives the latest epoch that it asks to obey.
    pub(super) fn hear(&self) -> Option<Epoch> {
        let mut asked: Option<Epoch> = None;
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
            match talk.peer.heard(&frame, &self.own_writes()) {
                Heard::Granted => drop(self.answered.notify_all()),
                Heard::AskMaster(epoch) => asked = Some(asked.map_or(epoch, |asked| asked.or_later(epoch))),
                Heard::Question | Heard::Nothing => {}
            }
        }
    }

    /// Answers what has become true.
    pub(super) fn answer(&self) {
        let mut talk = self.talk.lock();
        let Talk { pipe, peer } = &mut *talk;
        // First, so that what is left of the answers behind this waits for a full pipe: its room is what wakes the
        // watcher.
        let _ = pipe.flush();
        let mut answers = Vec::new();
        loop {
            let room = pipe.room();
            peer.answer(&self.own_writes(), room, &mut answers);
            let is_all = answers.len() < room || room == 0;
            for frame in answers.drain(..) {
                // A dead connection is noticed where it is read.
                let _ = pipe.send(&frame);
            }
            if is_all {
                break;
            }
        }
    }

    fn own_writes(&self) -> OwnWrites<'_> {
        OwnWrites { gate: &self.gate, writable: self.writable.read().clone() }
    }

    /// Memory that outlives its owner is written no more once that has ended, or has hung up: an heir may have it. When
    /// the last write has ended it is mapped to be written no more, and then its lock is given up (docs/safety.md,
    /// rule 26). To be called again when a write has ended.
    pub(super) fn part(&self) {
        if self.locks.tenure == 0 || !self.is_over() {
            return;
        }
        let writing = self.gate.close();
        let has_left = {
            let mut talk = self.talk.lock();
            talk.peer.leave(writing);
            talk.peer.has_left(&self.own_writes())
        };
        if has_left {
            drop(self.writable.write().take());
            drop(self.locks.writes.lock().take());
        }
    }

    pub(super) fn wants_room(&self) -> bool {
        self.talk.lock().pipe.is_waiting()
    }

    /// The owner's process has ended. True the first time.
    pub(super) fn owner_ended(self: &Arc<Self>) -> bool {
        self.owner_gone.store(true, Ordering::Release);
        self.answered.notify_all();
        let (first, is_due) = {
            let mut remains = self.remains.lock();
            let first = remains.owner_ended();
            (first, first && remains.calls_for_give_back())
        };
        if is_due {
            self.give_back_later();
        }
        first
    }

    // ------------------------------------------------- giving the memory back

    /// The segment is Gone, says a master in this epoch. If its owner's process is too, or once it is, the
    /// peers give the memory back, all but the pinned extents. Takes its time:
    /// for the give-back thread.
    pub(super) fn forget(&self, pinned: &[(u64, u64)], epoch: Epoch) {
        // Of views that began in another epoch, which the owner obeyed, that master may know nothing.
        let pinned = self.is_waited_for_in(epoch).then_some(pinned);
        let has_exited = matches!(has_exited(self.pidfd.as_fd()), Ok(true));
        {
            let mut remains = self.remains.lock();
            remains.forget(pinned);
            if has_exited {
                remains.owner_ended();
                self.owner_gone.store(true, Ordering::Release);
            }
        }
        self.give_back();
    }

    fn give_back_later(self: &Arc<Self>) {
        let attachment = self.clone();
        self.give_back_thread.later(move || attachment.give_back());
    }

    fn give_back(&self) {
        if !self.remains.lock().begin() {
            return;
        }
        let readable = self.readable();
        let keep = || {
            let is_alone = matches!(self.presence.is_alone(), Ok(true));
            let is_asked_by_another = self.talk.lock().peer.is_asked_by_another();
            self.remains.lock().keep(readable.bytes(), is_alone, is_asked_by_another)
        };
        if let Err(e) = readable.give_back(keep) {
            tracing::warn!(peer = &*self.segment, "giving the memory of a dead owner back: {e}");
        }
    }

    pub(super) fn view_made(&self, offset: u64, len: u64) {
        self.remains.lock().view_made(offset, len);
    }

    /// A view has ended. On a segment that is Gone its bytes go back to the
    /// host, if no other process can hold a view of the same ones.
    pub(super) fn view_ended(self: &Arc<Self>, offset: u64, len: u64) {
        let is_due = self.remains.lock().view_ended(offset, len);
        if is_due {
            self.give_back_later();
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        self.watcher.unwatch(self.id);
        let (readable, writable) = (unmap(self.readable.take()), unmap(self.writable.get_mut().take()));
        if !readable || !writable {
            // They say so to an heir as well.
            std::mem::forget(std::mem::take(&mut self.locks));
            tracing::error!(
                peer = &*self.segment,
                "a peer's memory is still mapped; its owner waits for the end of this process"
            );
            return;
        }
        // The pipe may be full of answers that an owner that stands still has not read.
        if let Ok(false) = self.talk.get_mut().pipe.send_last(&DETACHED) {
            let empty = AttachPipe::new(self.stream.clone());
            self.watcher.flush(self.id, std::mem::replace(&mut self.talk.get_mut().pipe, empty));
        }
    }
}

impl Locks {
    /// Of a process that was just let in. Nothing is written, and no view made, before the owner has heard of them.
    fn begin(readable: &Mapping, tenure: u32, obeyed: Epoch) -> Result<(Locks, Peer), NoSharedMemory> {
        if tenure == 0 {
            return Ok((Locks::default(), Peer::new(obeyed)));
        }
        let views = TenureLock::take(readable, TenureUse::Views, tenure)
            .map_err(NoSharedMemory::socket("its memory cannot be locked"))?;
        Ok((Locks { tenure, _views: Some(views), writes: Mutex::default() }, Peer::of_tenure(obeyed, tenure)))
    }
}

/// Unmaps what its caller has the last of. False: it stays mapped.
fn unmap(mapping: Option<Arc<Mapping>>) -> bool {
    mapping.is_none_or(|mapping| Arc::into_inner(mapping).is_some())
}

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

impl Asked for Attachment {
    /// This process obeys the epoch: see [`Peer::confirm`].
    fn confirm(&self, epoch: Epoch) {
        self.talk.lock().peer.confirm(epoch);
        self.watcher.look_at(self.id);
    }
}

impl std::fmt::Debug for Attachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attachment").field("segment", &self.segment).finish_non_exhaustive()
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

fn say_hello(
    stream: &Guarded<UnixStream>,
    hello: &Hello,
    address: &SegmentAddress,
    deadline: &Deadline<'_>,
) -> Result<(HelloReply, [OwnedFd; 2]), NoSharedMemory> {
    use std::io::Write;
    let text = NoSharedMemory::socket("its Unix socket");
    stream.set_write_timeout(Some(Deadline::SLICE)).map_err(&text)?;
    (&**stream).write_all(&hello.encode()).map_err(&text)?;
    let (mut reply, mut fds) = ([0; HELLO_LEN], Vec::new());
    receive_with_fds(stream, &mut reply, &mut fds, deadline).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => NoSharedMemory::passing("its owner hung up instead of giving its memory"),
        io::ErrorKind::TimedOut => NoSharedMemory::passing("its owner did not answer in time"),
        _ => text(e),
    })?;
    let reply = HelloReply::decode(&reply).ok_or_else(|| "what answers is not a segment server".to_owned())?;
    if reply.status != Status::Ok {
        let passing = reply.status == Status::Overloaded;
        return Err(NoSharedMemory { reason: reply.status.to_string(), passing, is_short: false });
    }
    if reply.version != LANE_VERSION || reply.uuid != address.uuid || reply.bytes != address.bytes {
        return Err("its owner serves another memory".to_owned().into());
    }
    let fds = <[OwnedFd; 2]>::try_from(fds).map_err(|fds| NoSharedMemory {
        reason: format!("{} descriptors came instead of 2: there is no room for more in this process", fds.len()),
        passing: true,
        is_short: true,
    })?;
    Ok((reply, fds))
}

pub(in crate::link) mod give_back_thread;
#[cfg(test)]
mod tests;
pub(in crate::link) mod view;
pub(in crate::link) mod watcher;
