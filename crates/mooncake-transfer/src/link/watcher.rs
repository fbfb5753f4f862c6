//! One thread that listens to the owners of mapped segments and watches for
//! their end. It starts with the first mapping and lasts as long as any view.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use mooncake_memory::{Guarded, has_exited};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};

use super::attachment::Attachment;
use super::options::{EpochQuestion, LinkEvents, Place};
use crate::Uuid;
use crate::attach_pipe::AttachPipe;
use crate::local::Inside;
use crate::reign::Reign;
use crate::wake::Bell;

pub(crate) struct Watcher {
    bell: Arc<Bell>,
    events: Box<dyn LinkEvents>,
    next: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    watched: HashMap<u64, Watched>,
    /// Of attachments that have ended: what they said last is still on its way to an owner that does not read.
    farewells: HashMap<u64, AttachPipe>,
    running: bool,
}

/// The descriptors are held apart from the attachment: watching it does not
/// keep it mapped.
#[derive(Clone)]
struct Watched {
    uuid: Uuid,
    attachment: Weak<Attachment>,
    pidfd: Arc<Guarded<OwnedFd>>,
    stream: Arc<Guarded<UnixStream>>,
    owner_gone: bool,
    hung_up: bool,
}

impl Watcher {
    pub(super) fn new(events: Box<dyn LinkEvents>) -> io::Result<Arc<Watcher>> {
        Ok(Arc::new(Watcher { bell: Arc::new(Bell::new()?), events, next: AtomicU64::new(0), state: Mutex::default() }))
    }

    pub(super) fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    pub(super) fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn watch(self: &Arc<Self>, attachment: &Arc<Attachment>) -> io::Result<()> {
        let mut state = self.state.lock();
        let watched = Watched {
            uuid: attachment.uuid(),
            attachment: Arc::downgrade(attachment),
            pidfd: attachment.pidfd().clone(),
            stream: attachment.stream().clone(),
            owner_gone: false,
            hung_up: false,
        };
        state.watched.insert(attachment.id(), watched);
        self.keep_running(&mut state)?;
        drop(state);
        self.bell.ring();
        Ok(())
    }

    fn keep_running(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        if !state.running {
            let inside = self.clone();
            std::thread::Builder::new().name("mooncake-watch".into()).spawn(move || inside.run())?;
            state.running = true;
        }
        Ok(())
    }

    /// Sends the rest of what an attachment had to say, once its owner reads.
    pub(super) fn flush(self: &Arc<Self>, id: u64, farewell: AttachPipe) {
        let mut state = self.state.lock();
        state.farewells.insert(id, farewell);
        if let Err(e) = self.keep_running(&mut state) {
            tracing::warn!("no thread to tell an owner that its segment is unmapped: {e}");
        }
        drop(state);
        self.bell.ring();
    }

    pub(super) fn unwatch(&self, id: u64) {
        self.state.lock().watched.remove(&id);
        self.bell.ring();
    }

    /// No segment of another process is mapped any more, and their owners know.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.watched.is_empty() && state.farewells.is_empty()
    }

    /// An owner in this process asks to obey a reign.
    pub(crate) fn ask_inside(&self, inside: &Arc<Inside>, reign: Reign) {
        let place = Place::Inside(Arc::downgrade(inside));
        self.events.take_epoch(EpochQuestion { place, uuid: inside.uuid(), reign });
    }

    /// The attachments to a segment that are still mapped.
    pub(super) fn attachments(&self, uuid: &Uuid) -> Vec<Arc<Attachment>> {
        let state = self.state.lock();
        let of_it = state.watched.values().filter(|watched| watched.uuid == *uuid);
        of_it.filter_map(|watched| watched.attachment.upgrade()).collect()
    }

    fn run(&self) {
        loop {
            let (watched, farewells): (Vec<(u64, Watched)>, Vec<_>) = {
                let mut state = self.state.lock();
                state.farewells.retain(|_, farewell| farewell.flush().is_ok() && farewell.is_waiting());
                if state.watched.is_empty() && state.farewells.is_empty() {
                    state.running = false;
                    return;
                }
                let watched = state.watched.iter().map(|(id, watched)| (*id, watched.clone())).collect();
                (watched, state.farewells.values().map(|farewell| farewell.stream().clone()).collect())
            };
            let mut fds = vec![PollFd::from_borrowed_fd(self.bell.fd(), PollFlags::IN)];
            for (_, watched) in &watched {
                // A negative number would be skipped; asking nothing of the bell again does the same.
                let bell = || PollFd::from_borrowed_fd(self.bell.fd(), PollFlags::empty());
                fds.push(if watched.owner_gone { bell() } else { PollFd::new(&**watched.pidfd, PollFlags::IN) });
                let room = watched.attachment.upgrade().is_some_and(|attachment| attachment.wants_room());
                let wanted = if room { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                fds.push(if watched.hung_up { bell() } else { PollFd::new(&**watched.stream, wanted) });
            }
            fds.extend(farewells.iter().map(|stream| PollFd::new(&***stream, PollFlags::OUT)));
            if let Err(e) = poll(&mut fds, None)
                && e != rustix::io::Errno::INTR
            {
                tracing::error!("watching the owners of mapped segments: poll: {e}");
                std::thread::sleep(std::time::Duration::from_millis(100));
                continue;
            }
            let heard: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
            drop(fds);
            if !heard[0].is_empty() {
                self.bell.hush();
            }
            for ((id, watched), flags) in watched.iter().zip(heard[1..].chunks_exact(2)) {
                let Some(attachment) = watched.attachment.upgrade() else { continue };
                if !flags[1].is_empty()
                    && let Some(reign) = attachment.hear()
                {
                    let place = Place::Attached(Arc::downgrade(&attachment));
                    self.events.take_epoch(EpochQuestion { place, uuid: attachment.uuid(), reign });
                }
                attachment.answer();
                let ended = !watched.owner_gone
                    && !flags[0].is_empty()
                    && matches!(has_exited(watched.pidfd.as_fd()), Ok(true));
                if ended && attachment.owner_ended() {
                    self.events.owner_gone(attachment.uuid());
                }
                if let Some(entry) = self.state.lock().watched.get_mut(id) {
                    entry.owner_gone |= ended;
                    entry.hung_up |= attachment.has_hung_up();
                }
            }
        }
    }
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::time::Duration;

    use super::super::fixture::Quiet;
    use super::*;
    use crate::wire::{FRAME_LEN, Frame, Op};

    #[test]
    fn an_owner_that_stood_still_hears_the_farewell_behind_the_answers() {
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
        let watcher = Watcher::new(Box::new(Quiet)).unwrap();
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
