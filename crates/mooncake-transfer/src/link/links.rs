//! One link per segment, made at first use by the best path.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Instant;

use mooncake_memory::{ProcessIdentity, forked, watch_forks};
use parking_lot::Mutex;

use super::Link;
use super::attachment::NoSharedMemory;
use super::connector::{Connector, Made};
use super::options::{LinkEvents, LinkOptions, LinkReport, Path, SegmentAddress};
use super::reclaimer::Reclaimer;
use super::watcher::Watcher;
use crate::Uuid;
use crate::error::{LinkError, ServerError};
use crate::reign::Reign;
use crate::wait::Wait;

/// The links of one store.
#[derive(Debug)]
pub struct Links {
    connector: Arc<Connector>,
    closed: AtomicBool,
    slots: Mutex<BTreeMap<Uuid, Arc<Slot>>>,
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
    /// When shared memory is to be tried again in place of that link.
    better_at: Option<Instant>,
    failed: Option<(Instant, String)>,
    /// The link was over at the last look.
    was_over: bool,
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
            connector: Arc::new(Connector {
                options,
                process: ProcessIdentity::current()?,
                watcher,
                reclaimer: Arc::default(),
                least_epoch: Arc::default(),
            }),
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

    /// The link for a placement that was reserved in that session. A fence asks
    /// the attachments of the placement's own session only: what another one's
    /// links wrote would land behind it.
    pub fn link_to_write(
        &self,
        session: u64,
        address: &SegmentAddress,
        wait: &Wait<'_>,
    ) -> Result<Arc<Link>, LinkError> {
        if session == self.connector.options.session {
            self.link(address, wait)
        } else {
            Err(LinkError::SessionOver { segment: address.label().to_string() })
        }
    }

    fn link_in(&self, slot: &Arc<Slot>, address: &SegmentAddress, wait: &Wait<'_>) -> Result<Arc<Link>, LinkError> {
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
            let link = link.clone();
            if state.better_at.is_some_and(|at| at <= Instant::now()) {
                let begun = self.improve(slot, address);
                state.better_at = (!begun).then(|| Instant::now() + self.connector.options.retry_after);
            }
            return Ok(link);
        }
        (state.link, state.better_at) = (None, None);
        if let Some((at, reason)) = &state.failed
            && at.elapsed() < self.connector.options.retry_after
        {
            let segment = address.label().to_string();
            return Err(LinkError::Avoided { segment, ago: at.elapsed(), reason: reason.clone() });
        }
        match self.connector.connect(address, wait) {
            Ok(Made { link, better_later }) => {
                match link.path() {
                    // No choice to report.
                    Path::Local => tracing::debug!(segment = &*address.label(), path = %link.path(), "link"),
                    path => {
                        tracing::info!(segment = &*address.label(), %path, reason = link.reason(), "link");
                    }
                }
                let link = Arc::new(link);
                state.better_at = better_later.then(|| Instant::now() + self.connector.options.retry_after);
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

    /// Tries shared memory once more on a thread of its own, so that nobody
    /// waits for an owner that still stands still; TCP goes on meanwhile. False:
    /// there is no thread to be had.
    fn improve(&self, slot: &Arc<Slot>, address: &SegmentAddress) -> bool {
        let (connector, inside, address) = (self.connector.clone(), slot.clone(), address.clone());
        let improve = move || {
            let LinkOptions { connect_timeout, retry_after, .. } = connector.options;
            let mapped = connector.map(&address, &Wait::until(Instant::now() + connect_timeout));
            let mut state = inside.state.lock();
            let mut spare = None;
            match mapped {
                // Whoever uses the former one still does so until its call ends.
                Ok(link) if state.link.is_some() => {
                    tracing::info!(segment = &*address.label(), path = %link.path(), "link, after all");
                    spare = state.link.replace(Arc::new(link));
                }
                Ok(link) => spare = Some(Arc::new(link)),
                Err(NoSharedMemory { passing, .. }) => {
                    state.better_at = passing.then(|| Instant::now() + retry_after);
                }
            }
            drop(state);
            drop(spare);
            discard(&connector.reclaimer, inside.released());
        };
        let spawned = std::thread::Builder::new().name("mooncake-attach".into()).spawn(improve);
        if let Err(e) = &spawned {
            tracing::warn!("no thread to try shared memory again: {e}");
        }
        spawned.is_ok()
    }

    /// The segment is Gone, says the master, which is in this reign. Mapped peers of a dead owner give its memory back,
    /// all but the pinned extents `(offset, length)` and those of own views; the
    /// mapping ends with the last view. Returns at once: a thread of the links
    /// does the work, and a link that is being made ends when it is made.
    pub fn forget(&self, uuid: Uuid, pinned: &[(u64, u64)], reign: Reign) {
        if forked() {
            return;
        }
        let slot = self.slots.lock().remove(&uuid);
        // The mapping may outlive its slot under views: the watcher knows it too.
        let attachments = self.connector.watcher.attachments(&uuid);
        if !attachments.is_empty() {
            let pinned = pinned.to_vec();
            self.connector
                .reclaimer
                .later(move || attachments.iter().for_each(|attachment| attachment.forget(&pinned, reign)));
        }
        if let Some(slot) = slot {
            self.discard(slot.end());
        }
    }

    fn discard(&self, link: Option<Arc<Link>>) {
        discard(&self.connector.reclaimer, link);
    }

    /// The master's epoch was raised: writes of older placements are refused
    /// here from now on.
    pub fn drain_epoch(&self, epoch: u16) {
        self.connector.least_epoch.fetch_max(epoch, Ordering::AcqRel);
    }

    /// Closed, and nothing is mapped over them any more, not by a view either.
    pub fn are_over(&self) -> bool {
        self.closed.load(Ordering::Acquire) && self.connector.watcher.is_idle()
    }

    /// The session that they belong to.
    pub fn session(&self) -> u64 {
        self.connector.options.session
    }

    /// Parts with the links that were over at the last look, too, and so with memory that nobody needs: the next use of a link
    /// would, and there may be none, as of a segment that its master does not know. An owner that hung up because it died is
    /// seen to be dead in between. Returns at once.
    pub fn part_with_over(&self) {
        if forked() {
            return;
        }
        let slots: Vec<Arc<Slot>> = self.slots.lock().values().cloned().collect();
        for slot in slots {
            // One that is locked is being used.
            let over = slot.state.try_lock().and_then(|mut state| {
                let is_over = state.link.as_ref().is_some_and(|link| link.is_over());
                let was_over = std::mem::replace(&mut state.was_over, is_over);
                state.link.take_if(|_| is_over && was_over)
            });
            self.discard(over);
            self.discard(slot.released());
        }
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
        let slots: Vec<Arc<Slot>> = std::mem::take(&mut *self.slots.lock()).into_values().collect();
        for slot in slots {
            if let Some(link) = slot.end() {
                link.forget();
            }
        }
    }
}

/// Ends a link. Unmapping takes time, too.
fn discard(reclaimer: &Arc<Reclaimer>, link: Option<Arc<Link>>) {
    if let Some(link) = link {
        link.forget();
        reclaimer.later(move || drop(link));
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

    use mooncake_memory::{SegmentMemory, Source};

    use super::super::Paths;
    use super::super::fixture::{Quiet, mapping, owner};
    use super::*;

    const FIRST: Reign = Reign::numbered(1);
    const RID: u64 = 1 << 48 | 2;

    fn resident(memory: &SegmentMemory) -> u64 {
        rustix::fs::fstat(memory.data_fd()).unwrap().st_blocks as u64 * 512
    }

    #[test]
    fn what_was_said_to_be_viewed_is_kept_when_a_restarted_master_has_forgotten_it() {
        const BYTES: u64 = 1 << 20;
        let (_server, memory, address) = owner(BYTES, Quiet);
        memory.populate_step(BYTES).unwrap();
        let wait = Wait::until(Instant::now() + Duration::from_secs(5));
        // Somebody else who has it mapped, and looks at the first 4 KiB.
        let reader = Links::new(mapping(), Box::new(Quiet)).unwrap();
        let _reads = reader.link(&address, &wait).unwrap();
        let peer = Links::new(mapping(), Box::new(Quiet)).unwrap();
        let _link = peer.link(&address, &wait).unwrap();
        for attachment in peer.connector.watcher.attachments(&memory.uuid()) {
            attachment.owner_ended();
            attachment.forget(&[(0, 4096)], FIRST);
            assert_eq!(resident(&memory), 4096);
            attachment.forget(&[], FIRST);
            assert_eq!(resident(&memory), 4096, "it may still be viewed");
        }
    }

    #[test]
    fn what_is_viewed_in_a_reign_that_the_own_master_has_not_shown_is_kept() {
        const BYTES: u64 = 1 << 20;
        let [a, b] = [7, 8].map(|id| Reign { epoch: 2, id });
        for (reign, kept) in [(a, BYTES), (b, 0)] {
            let (server, memory, address) = owner(BYTES, Quiet);
            memory.populate_step(BYTES).unwrap();
            let wait = Wait::until(Instant::now() + Duration::from_secs(5));
            server.take_epoch(b).unwrap();
            // Its views are known to the master that the owner obeys.
            let reader = Links::new(mapping(), Box::new(Quiet)).unwrap();
            let _reads = reader.link(&address, &wait).unwrap();
            let peer = Links::new(mapping(), Box::new(Quiet)).unwrap();
            let _link = peer.link(&address, &wait).unwrap();
            for attachment in peer.connector.watcher.attachments(&memory.uuid()) {
                attachment.owner_ended();
                attachment.forget(&[], reign);
                assert_eq!(resident(&memory), kept);
            }
        }
    }

    #[test]
    fn whoever_forgets_a_segment_does_not_wait_for_its_memory() {
        const BYTES: u64 = 4 << 20;
        let (server, memory, address) = owner(BYTES, Quiet);
        memory.populate_step(BYTES).unwrap();
        let links = Links::new(mapping(), Box::new(Quiet)).unwrap();
        drop(links.link(&address, &Wait::until(Instant::now() + Duration::from_secs(5))).unwrap());
        for attachment in links.connector.watcher.attachments(&memory.uuid()) {
            assert!(attachment.owner_ended(), "as the watcher would say of a dead owner");
        }
        let (release, held) = channel::<()>();
        links.connector.reclaimer.later(move || assert!(held.recv().is_err(), "nothing is sent"));
        links.forget(memory.uuid(), &[], FIRST);
        assert_eq!(resident(&memory), BYTES, "punched by the thread that forgot");
        drop(release);
        let until = Instant::now() + Duration::from_secs(5);
        while resident(&memory) > 0 || server.attached() > 0 {
            assert!(Instant::now() < until, "{} bytes, {} attachments are left", resident(&memory), server.attached());
            std::thread::yield_now();
        }
    }

    #[test]
    fn memory_that_its_owner_has_taken_out_is_not_kept_mapped_by_a_link_that_nobody_uses() {
        let (server, memory, address) = owner(1 << 20, Quiet);
        let (_other, _lent, elsewhere) = owner(1 << 20, Quiet);
        let links = Links::new(mapping(), Box::new(Quiet)).unwrap();
        memory.mapping().write(RID, 0, &[Source::new(b"seen")]).unwrap();
        let view = links.link(&address, &soon()).unwrap().view(RID, 0, 4, None).unwrap().unwrap();
        let used = links.link(&elsewhere, &soon()).unwrap();
        server.remove(memory.uuid());
        let eventually = |holds: &dyn Fn() -> bool| {
            let until = Instant::now() + Duration::from_secs(5);
            while !holds() {
                assert!(Instant::now() < until);
                std::thread::yield_now();
            }
        };
        let [attachment] = &links.connector.watcher.attachments(&memory.uuid())[..] else { panic!("one is mapped") };
        eventually(&|| attachment.is_over());
        links.part_with_over();
        assert_eq!(links.report().len(), 2, "it may have died, which is seen a moment later");
        links.part_with_over();
        links.part_with_over();
        assert_eq!(links.report().len(), 1);
        assert_eq!(*view, *b"seen");
        drop(view);
        eventually(&|| Arc::strong_count(attachment) == 1);
        assert!(!used.is_over() && Arc::ptr_eq(&used, &links.link(&elsewhere, &soon()).unwrap()));
    }

    fn soon() -> Wait<'static> {
        Wait::until(Instant::now() + Duration::from_secs(5))
    }

    #[test]
    fn of_two_segments_whose_owners_have_ended_only_the_one_that_is_gone_is_given_back() {
        const BYTES: u64 = 1 << 20;
        let owners = [(); 2].map(|()| owner(BYTES, Quiet));
        let links = Links::new(mapping(), Box::new(Quiet)).unwrap();
        let _links = owners.each_ref().map(|(_, memory, address)| {
            memory.populate_step(BYTES).unwrap();
            links.link(address, &soon()).unwrap()
        });
        let attachments = owners.each_ref().map(|(_, memory, _)| links.connector.watcher.attachments(&memory.uuid()));
        for attachment in attachments.iter().flatten() {
            assert!(attachment.owner_ended());
        }
        links.forget(owners[1].1.uuid(), &[], FIRST);
        let (done, is_done) = channel();
        links.connector.reclaimer.later(move || done.send(()).unwrap());
        is_done.recv_timeout(Duration::from_secs(5)).unwrap();
        assert_eq!(owners.each_ref().map(|(_, memory, _)| resident(memory)), [BYTES, 0]);
        links.forget(owners[0].1.uuid(), &[], FIRST);
        let until = Instant::now() + Duration::from_secs(5);
        while resident(&owners[0].1) > 0 {
            assert!(Instant::now() < until, "{} bytes are left", resident(&owners[0].1));
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_waits_for_a_link_that_another_makes_waits_no_longer_than_it_likes() {
        let (_server, _memory, address) = owner(1 << 20, Quiet);
        let links = Links::new(mapping(), Box::new(Quiet)).unwrap();
        let slot = links.slots.lock().entry(address.uuid).or_default().clone();
        let made = slot.state.lock();
        let began = Instant::now();
        for wait in [Wait::until(began), Wait { deadline: began + Duration::from_secs(60), interrupted: &|| true }] {
            assert!(matches!(links.link(&address, &wait), Err(LinkError::Cancelled { .. })));
        }
        assert!(began.elapsed() < Duration::from_secs(30));
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| links.link(&address, &soon()).map(|link| link.path()));
            std::thread::sleep(Duration::from_millis(60));
            drop(made);
            assert_eq!(waits.join().unwrap().unwrap(), Path::SharedMemory, "it goes on when the other has done");
        });
    }

    #[test]
    fn shared_memory_that_comes_too_late_for_its_link_is_not_kept() {
        let (server, _memory, address) = owner(1 << 20, Quiet);
        let links = Links::new(mapping(), Box::new(Quiet)).unwrap();
        let slot = Arc::new(Slot::default());
        // The link that was to be improved has ended meanwhile.
        assert!(slot.end().is_none() && links.improve(&slot, &address));
        let until = Instant::now() + Duration::from_secs(5);
        while Arc::strong_count(&slot) > 1 || server.attached() > 0 {
            assert!(Instant::now() < until, "{} are mapped", server.attached());
            std::thread::yield_now();
        }
        assert!(slot.state.lock().link.is_none());
    }

    #[test]
    fn why_no_path_leads_to_a_segment_is_said_of_each() {
        let (_server, _memory, address) = owner(1 << 20, Quiet);
        let elsewhere = SegmentAddress { uuid: [9; 16], ..address.clone() };
        let only = Paths::only;
        let none = Paths { local: false, ..only(Path::Local) };
        for (paths, address, reasons) in [
            (
                only(Path::Local),
                &elsewhere,
                &["the segment belongs to another process", "shared memory is switched off"][..],
            ),
            (none, &address, &["the own process's memory is switched off", "TCP is switched off"]),
            (
                only(Path::Local),
                &SegmentAddress { access_key: 5, ..address.clone() },
                &["wrong access key for a segment of this process", "TCP is switched off"],
            ),
            (
                only(Path::SharedMemory),
                &SegmentAddress { unix_socket: String::new(), ..elsewhere.clone() },
                &["its owner offers no shared memory", "TCP is switched off"],
            ),
            (only(Path::SharedMemory), &SegmentAddress { boot_id: [9; 16], ..elsewhere.clone() }, &["another host"]),
            (
                only(Path::SharedMemory),
                &SegmentAddress { unix_socket: "nobody".into(), ..elsewhere.clone() },
                &["no shared memory: its Unix socket does not answer"],
            ),
            (only(Path::Tcp), &elsewhere, &["shared memory is switched off", "no TCP: its owner gave no TCP address"]),
            (
                only(Path::Tcp),
                &SegmentAddress { tcp: vec!["host:1".into()], ..elsewhere.clone() },
                &["no TCP: \"host:1\" is not ip:port or [ip]:port"],
            ),
        ] {
            let links = Links::new(LinkOptions { paths, ..LinkOptions::new(2) }, Box::new(Quiet)).unwrap();
            let Err(LinkError::NoPath { reason, .. }) = links.link(address, &soon()) else { panic!("{reasons:?}") };
            for why in reasons {
                assert!(reason.contains(why), "{reason:?}, not {why:?}");
            }
            assert!(!reason.contains("another process") || reasons[0].contains("another process"), "{reason}");
        }
    }
}
