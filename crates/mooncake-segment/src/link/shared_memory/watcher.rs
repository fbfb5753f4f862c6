//! One thread that listens to the owners of mapped segments and watches for
//! their end. It starts with the first mapping and lasts as long as any view.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mooncake_ids::SegmentUuid;
use mooncake_os::has_exited;
use parking_lot::Mutex;

use super::Attachment;
use crate::link_events::{EpochQuestion, LinkEvents};
use crate::protocol::attach_stream::AttachPipe;
use crate::readiness::{Readiness, Ready, Watch, words_and};
use mooncake_os::{Waker, thread};

/// So many events are taken at a time.
const AT_ONCE: usize = 64;

/// Number of the waker. All others are that of an attachment, times four, and which of its descriptors it is.
const BELL: u64 = 0;
const OWNER: u64 = 1;
const STREAM: u64 = 2;
const DETACHING: u64 = 3;

pub(crate) struct Watcher {
    waker: Waker,
    readiness: Arc<Readiness>,
    events: Arc<dyn LinkEvents>,
    last: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    watched: HashMap<u64, Watched>,
    /// Attachments that may have to tell their owner something of which no descriptor tells.
    due: HashSet<u64>,
    /// Of attachments that have ended: what they said last is still on its way to an owner that does not read.
    detaching: HashMap<u64, (AttachPipe, Watch<UnixStream>)>,
    running: bool,
}

/// The descriptors are held apart from the attachment: watching it does not
/// keep it mapped.
struct Watched {
    uuid: SegmentUuid,
    attachment: Weak<Attachment>,
    /// Until its process has ended.
    owner: Option<Watch<OwnedFd>>,
    /// Until the owner has hung up.
    stream: Option<Watch<UnixStream>>,
}

impl Watcher {
    pub(in crate::link) fn new(events: Arc<dyn LinkEvents>) -> io::Result<Arc<Watcher>> {
        let (waker, readiness) = (Waker::new()?, Arc::new(Readiness::new()?));
        readiness.add(waker.fd(), BELL, Ready::IN)?;
        Ok(Arc::new(Watcher { waker, readiness, events, last: AtomicU64::new(0), state: Mutex::default() }))
    }

    /// What a store wants to hear of its links.
    pub(in crate::link) fn events(&self) -> &Arc<dyn LinkEvents> {
        &self.events
    }

    pub(in crate::link) fn next_id(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(in crate::link) fn watch(self: &Arc<Self>, attachment: &Arc<Attachment>) -> io::Result<()> {
        let (id, wanted) = (attachment.id(), words_and(attachment.wants_room()));
        // Locked before the first event can come: the thread finds the attachment in the table then.
        let mut state = self.state.lock();
        let watched = Watched {
            uuid: attachment.uuid(),
            attachment: Arc::downgrade(attachment),
            owner: Some(self.readiness.watch(attachment.pidfd().clone(), id * 4 + OWNER, Ready::IN)?),
            stream: Some(self.readiness.watch(attachment.stream().clone(), id * 4 + STREAM, wanted)?),
        };
        state.watched.insert(id, watched);
        self.keep_running(&mut state)
    }

    fn keep_running(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        if !state.running {
            let inside = self.clone();
            thread::start(std::thread::Builder::new().name("mooncake-watch".into()), move || inside.run())?;
            state.running = true;
        }
        Ok(())
    }

    /// Something has become true that an attachment may have to tell its owner.
    pub(in crate::link) fn look_at(&self, id: u64) {
        self.state.lock().due.insert(id);
        self.waker.wake();
    }

    /// Sends the rest of what an attachment had to say, once its owner reads.
    pub(in crate::link) fn flush(self: &Arc<Self>, id: u64, pipe: AttachPipe) {
        // Until the owner has read it, a fence or an epoch there may wait for this process (docs/safety.md, rules 7 and
        // 18).
        let mut state = self.state.lock();
        match self.readiness.watch(pipe.stream().clone(), id * 4 + DETACHING, Ready::OUT) {
            Ok(watch) => drop(state.detaching.insert(id, (pipe, watch))),
            Err(e) => tracing::warn!("an owner is not told that its segment is unmapped: {e}"),
        }
        if let Err(e) = self.keep_running(&mut state) {
            tracing::warn!("no thread to tell an owner that its segment is unmapped: {e}");
        }
    }

    pub(in crate::link) fn unwatch(&self, id: u64) {
        let mut state = self.state.lock();
        state.watched.remove(&id);
        if state.is_idle() {
            // The thread has nothing to wait for any more.
            self.waker.wake();
        }
    }

    /// No segment of another process is mapped any more, and their owners know.
    pub(in crate::link) fn is_idle(&self) -> bool {
        self.state.lock().is_idle()
    }

    /// The attachments to a segment that are still mapped.
    pub(in crate::link) fn attachments(&self, uuid: &SegmentUuid) -> Vec<Arc<Attachment>> {
        let state = self.state.lock();
        let of_it = state.watched.values().filter(|watched| watched.uuid == *uuid);
        of_it.filter_map(|watched| watched.attachment.upgrade()).collect()
    }

    fn run(&self) {
        loop {
            {
                // In one step: an attachment or a `Detached` that comes later starts the next thread.
                let mut state = self.state.lock();
                if state.is_idle() {
                    state.due.clear();
                    state.running = false;
                    return;
                }
            }
            let ready = match self.readiness.wait::<AT_ONCE>(None) {
                Ok(ready) => ready,
                Err(e) => {
                    tracing::error!("watching the owners of mapped segments: epoll_wait: {e}");
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            for (number, _) in ready {
                let id = number / 4;
                match number % 4 {
                    BELL => {
                        self.waker.clear();
                        let due = std::mem::take(&mut self.state.lock().due);
                        due.into_iter().for_each(|id| self.attend(id, false));
                    }
                    DETACHING => self.say_detached(id),
                    which => self.attend(id, which == OWNER),
                }
            }
        }
    }

    /// Hears what the owner has said, answers what can be answered, and looks whether the owner `may_have_ended`.
    fn attend(&self, id: u64, may_have_ended: bool) {
        let watched = |watched: &Watched| Some((watched.attachment.upgrade()?, watched.stream.is_some()));
        // Locked for this look only: an attachment whose last reference is dropped takes the lock to leave the table.
        let Some((attachment, speaks)) = self.state.lock().watched.get(&id).and_then(watched) else { return };
        // What the owner said before it ended still counts.
        if speaks && let Some(epoch) = attachment.hear() {
            let asked: Weak<Attachment> = Arc::downgrade(&attachment);
            self.events.take_epoch(EpochQuestion::new(asked, attachment.uuid(), epoch));
        }
        attachment.answer();
        // The pidfd proves the end of the owner; a closed connection proves nothing (docs/safety.md, rules 7 and 23).
        let ended = may_have_ended && matches!(has_exited(attachment.pidfd().as_fd()), Ok(true));
        if ended && attachment.owner_ended() {
            self.events.owner_gone(attachment.uuid(), attachment.owner());
        }
        attachment.part();
        let (hung_up, wants_room) = (attachment.has_hung_up(), attachment.wants_room());
        if let Some(watched) = self.state.lock().watched.get_mut(&id) {
            // Both stay ready from then on, and would wake the thread for ever.
            watched.owner.take_if(|_| ended);
            watched.stream.take_if(|_| hung_up);
            if let Some(stream) = &mut watched.stream {
                stream.want(words_and(wants_room));
            }
        }
    }

    fn say_detached(&self, id: u64) {
        let mut state = self.state.lock();
        if let Some((pipe, _)) = state.detaching.get_mut(&id)
            && (pipe.flush().is_err() || !pipe.is_waiting())
        {
            state.detaching.remove(&id);
        }
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.watched.is_empty() && self.detaching.is_empty()
    }
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use mooncake_os::Guarded;
    use std::io::{Read, Write};

    use super::*;
    use crate::link::fixture::Quiet;
    use crate::protocol::frames::{FRAME_LEN, Frame, Op};

    #[test]
    fn an_owner_that_stood_still_hears_that_its_peer_has_detached_behind_the_answers() {
        let (mine, mut theirs) = UnixStream::pair().unwrap();
        mine.set_nonblocking(true).unwrap();
        let stream = Arc::new(Guarded::new(mine));
        let mut full = 0;
        while (&**stream).write(&[0; FRAME_LEN]).is_ok() {
            full += FRAME_LEN;
        }
        let mut pipe = AttachPipe::new(stream);
        pipe.send(&Frame::plain(Op::EpochTaken, 2)).unwrap();
        assert!(!pipe.send_last(&Frame::plain(Op::Detached, 0)).unwrap(), "there is room for it now");
        let watcher = Watcher::new(Arc::new(Quiet)).unwrap();
        watcher.flush(1, pipe);
        theirs.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        theirs.read_exact(&mut vec![0; full]).unwrap();
        for op in [Op::EpochTaken, Op::Detached] {
            let mut frame = [0; FRAME_LEN];
            theirs.read_exact(&mut frame).unwrap();
            assert_eq!(Frame::decode(&frame).map(|frame| frame.op), Some(op));
        }
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "closed behind its last word");
    }
}
