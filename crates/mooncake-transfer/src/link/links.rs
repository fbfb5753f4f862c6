//! One link per segment, made at first use by the best path.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering, fence};
use std::time::Instant;

use mooncake_memory::{ProcessIdentity, forked, watch_forks};
use parking_lot::Mutex;

use super::attachment::Attachment;
use super::options::{LinkEvents, LinkOptions, LinkReport, Path, SegmentAddress};
use super::pool::LanePool;
use super::reclaimer::Reclaimer;
use super::watcher::Watcher;
use super::{Kind, Link};
use crate::error::{LinkError, ServerError};
use crate::wait::Wait;
use crate::wire::{Hello, LANE_VERSION, Purpose};
use crate::{Uuid, local};

/// The links of one store.
#[derive(Debug)]
pub struct Links {
    options: LinkOptions,
    process: ProcessIdentity,
    watcher: Arc<Watcher>,
    reclaimer: Arc<Reclaimer>,
    least_epoch: Arc<AtomicU16>,
    closed: AtomicBool,
    slots: Mutex<HashMap<Uuid, Arc<Slot>>>,
}

#[derive(Debug, Default)]
struct Slot {
    /// No link is to be had of it any more.
    ended: AtomicBool,
    /// Held while a link is being made, so that it is made once.
    state: Mutex<SlotState>,
}

#[derive(Debug, Default)]
struct SlotState {
    link: Option<Arc<Link>>,
    failed: Option<(Instant, String)>,
}

impl Slot {
    /// Gives the link out for the last time. Waits for nobody: if the slot is
    /// locked, [`Slot::released`] does it for who holds it.
    fn end(&self) -> Option<Arc<Link>> {
        self.ended.store(true, Ordering::SeqCst);
        self.released()
    }

    /// To be called after each use of the lock: gives the link if the slot ended meanwhile.
    fn released(&self) -> Option<Arc<Link>> {
        // Either whoever ends the slot finds it unlocked, or whoever unlocks it finds it ended.
        fence(Ordering::SeqCst);
        if self.ended.load(Ordering::SeqCst) { self.state.try_lock()?.link.take() } else { None }
    }
}

impl Links {
    /// No links yet.
    pub fn new(options: LinkOptions, events: Box<dyn LinkEvents>) -> Result<Links, ServerError> {
        watch_forks();
        let watcher = Watcher::new(events).map_err(|source| ServerError::Os { what: "eventfd", source })?;
        Ok(Links {
            options,
            process: ProcessIdentity::current()?,
            watcher,
            reclaimer: Arc::default(),
            least_epoch: Arc::default(),
            closed: AtomicBool::new(false),
            slots: Mutex::default(),
        })
    }

    /// The link to a segment, made now if there is none.
    pub fn link(&self, address: &SegmentAddress, wait: &Wait<'_>) -> Result<Arc<Link>, LinkError> {
        if forked() {
            return Err(LinkError::Forked);
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(LinkError::Closed);
        }
        let slot = self.slots.lock().entry(address.uuid).or_default().clone();
        let made = self.link_in(&slot, address, wait);
        self.discard(slot.released());
        if self.closed.load(Ordering::Acquire) {
            self.discard(slot.end());
            return Err(LinkError::Closed);
        }
        if slot.ended.load(Ordering::Acquire) {
            let (segment, reason) = (address.label().to_string(), "it has left the pool".into());
            return Err(LinkError::NoPath { segment, reason });
        }
        made
    }

    fn link_in(&self, slot: &Slot, address: &SegmentAddress, wait: &Wait<'_>) -> Result<Arc<Link>, LinkError> {
        let mut state = loop {
            if let Some(state) = slot.state.try_lock_for(wait.slice()) {
                break state;
            }
            if wait.is_over() || (wait.interrupted)() {
                return Err(LinkError::Cancelled { segment: address.label().to_string() });
            }
        };
        if let Some(link) = &state.link
            && !link.is_over()
        {
            return Ok(link.clone());
        }
        state.link = None;
        if let Some((at, reason)) = &state.failed
            && at.elapsed() < self.options.retry_after
        {
            let segment = address.label().to_string();
            return Err(LinkError::Avoided { segment, ago: at.elapsed(), reason: reason.clone() });
        }
        match self.connect(address, wait) {
            Ok(link) => {
                tracing::info!(segment = &*address.label(), path = %link.path(), reason = link.reason(), "link");
                let link = Arc::new(link);
                state.failed = None;
                state.link = Some(link.clone());
                Ok(link)
            }
            Err(_) if wait.is_over() || (wait.interrupted)() => {
                Err(LinkError::Cancelled { segment: address.label().to_string() })
            }
            Err(reason) => {
                state.failed = Some((Instant::now(), reason.clone()));
                Err(LinkError::NoPath { segment: address.label().to_string(), reason })
            }
        }
    }

    /// The segment is Gone. Mapped peers of a dead owner give its memory back,
    /// all but the pinned extents `(offset, length)` and those of own views; the
    /// mapping ends with the last view. Returns at once: a thread of the links
    /// does the work, and a link that is being made ends when it is made.
    pub fn forget(&self, uuid: Uuid, pinned: &[(u64, u64)]) {
        if forked() {
            return;
        }
        let slot = self.slots.lock().remove(&uuid);
        // The mapping may outlive its slot under views: the watcher knows it too.
        let attachments = self.watcher.attachments(&uuid);
        if !attachments.is_empty() {
            let pinned = pinned.to_vec();
            self.reclaimer.later(move || attachments.iter().for_each(|attachment| attachment.forget(&pinned)));
        }
        if let Some(slot) = slot {
            self.discard(slot.end());
        }
    }

    /// Ends a link. Unmapping takes time, too.
    fn discard(&self, link: Option<Arc<Link>>) {
        if let Some(link) = link {
            link.forget();
            self.reclaimer.later(move || drop(link));
        }
    }

    /// The master's epoch was raised: writes of older placements are refused
    /// here from now on.
    pub fn drain_epoch(&self, epoch: u16) {
        self.least_epoch.fetch_max(epoch, Ordering::AcqRel);
    }

    /// Every link that is up.
    pub fn report(&self) -> Vec<LinkReport> {
        let slots: Vec<Arc<Slot>> = self.slots.lock().values().cloned().collect();
        // A slot that is locked is being connected: there is nothing to report yet.
        let reports = slots.iter().filter_map(|slot| Some(slot.state.try_lock()?.link.as_ref()?.report())).collect();
        slots.iter().for_each(|slot| self.discard(slot.released()));
        reports
    }

    /// Drops every link. Views and their mappings last as long as the views.
    pub fn close(&self) {
        if forked() {
            return;
        }
        self.closed.store(true, Ordering::Release);
        let slots: Vec<Arc<Slot>> = self.slots.lock().drain().map(|(_, slot)| slot).collect();
        for slot in slots {
            if let Some(link) = slot.end() {
                link.forget();
            }
        }
    }

    fn connect(&self, address: &SegmentAddress, wait: &Wait<'_>) -> Result<Link, String> {
        let paths = self.options.paths;
        let mut reasons: Vec<String> = Vec::new();
        let link = |kind, reason| Link::new(address, kind, reason, self.least_epoch.clone());

        match local::find(&address.uuid) {
            Some(_) if !paths.local => reasons.push("the own process's memory is switched off".into()),
            Some(served) if served.access_key == address.access_key => {
                return Ok(link(Kind::Local(served), "the segment belongs to this process".into()));
            }
            Some(_) => reasons.push("wrong access key for a segment of this process".into()),
            None if paths == super::Paths::only(Path::Local) => {
                reasons.push("the segment belongs to another process".into());
            }
            None => {}
        }

        let hello = Hello {
            version: LANE_VERSION,
            purpose: Purpose::Lane,
            session: self.options.session,
            access_key: address.access_key,
            uuid: address.uuid,
            pid: self.process.pid,
            start_time: self.process.start_time,
        };
        if !paths.shared_memory {
            reasons.push("shared memory is switched off".into());
        } else if address.boot_id != self.process.boot_id {
            reasons.push("another host".into());
        } else if address.unix_socket.is_empty() {
            reasons.push("its owner offers no shared memory".into());
        } else {
            let attach = Hello { purpose: Purpose::Attach, ..hello };
            match Attachment::open(address, &self.options, &attach, &self.watcher, &self.reclaimer, wait) {
                Ok(attachment) => return Ok(link(Kind::Shared(attachment), "same host".into())),
                Err(reason) => reasons.push(format!("no shared memory: {reason}")),
            }
        }

        if paths.tcp {
            let connected = LanePool::new(address, &self.options, hello).and_then(|pool| {
                let at = pool.try_connect(wait).map_err(|e| e.to_string())?;
                Ok((pool, at))
            });
            match connected {
                Ok((pool, at)) => {
                    reasons.push(format!("connected to {at}"));
                    return Ok(link(Kind::Tcp(Box::new(pool)), reasons.join("; ")));
                }
                Err(reason) => reasons.push(format!("no TCP: {reason}")),
            }
        } else {
            reasons.push("TCP is switched off".into());
        }
        Err(reasons.join("; "))
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use mooncake_memory::{SegmentMemory, SegmentOptions, boot_id};

    use super::*;
    use crate::link::{EpochQuestion, Paths};
    use crate::server::{SegmentServer, ServerEvents, ServerOptions};

    struct Quiet;

    impl LinkEvents for Quiet {
        fn owner_gone(&self, _: Uuid) {}
        fn take_epoch(&self, _: EpochQuestion) {}
    }

    impl ServerEvents for Quiet {
        fn fenced(&self, _: Uuid, _: u64) {}
        fn epoch_taken(&self, _: u16, _: Uuid) {}
    }

    fn resident(memory: &SegmentMemory) -> u64 {
        rustix::fs::fstat(memory.data_fd()).unwrap().st_blocks as u64 * 512
    }

    #[test]
    fn whoever_forgets_a_segment_does_not_wait_for_its_memory() {
        const BYTES: u64 = 4 << 20;
        let server = SegmentServer::start(ServerOptions::new([127, 0, 0, 1].into(), 0, 1), Box::new(Quiet)).unwrap();
        let memory = Arc::new(SegmentMemory::create(BYTES, SegmentOptions::default()).unwrap());
        memory.populate_step(BYTES).unwrap();
        server.add(memory.clone(), 1);
        let address = SegmentAddress {
            uuid: memory.uuid(),
            bytes: BYTES,
            name: "owner".into(),
            boot_id: boot_id().unwrap(),
            unix_socket: server.unix_name().into(),
            tcp: Vec::new(),
            access_key: 1,
            process: None,
        };
        let options = LinkOptions { paths: Paths::only(Path::SharedMemory), ..LinkOptions::new(2) };
        let links = Links::new(options, Box::new(Quiet)).unwrap();
        drop(links.link(&address, &Wait::until(Instant::now() + Duration::from_secs(5))).unwrap());
        for attachment in links.watcher.attachments(&memory.uuid()) {
            assert!(attachment.owner_ended(), "as the watcher would say of a dead owner");
        }
        let (release, held) = channel::<()>();
        links.reclaimer.later(move || assert!(held.recv().is_err(), "nothing is sent"));
        links.forget(memory.uuid(), &[]);
        assert_eq!(resident(&memory), BYTES, "punched by the thread that forgot");
        drop(release);
        let until = Instant::now() + Duration::from_secs(5);
        while resident(&memory) > 0 || server.attached() > 0 {
            assert!(Instant::now() < until, "{} bytes, {} attachments are left", resident(&memory), server.attached());
            std::thread::yield_now();
        }
    }
}
