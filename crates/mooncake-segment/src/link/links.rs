//! One link per segment, made at first use by the best path: [`LinkBook`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_ids::SegmentUuid;
use mooncake_os::{Deadline, Permits, ProcessIdentity, WaitError, descriptor_limit, forked, thread, watch_forks};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::Link;
use super::connector::{Connector, Made, NoPath};
use super::networks::THREADS_MAX;
use super::options::{LinkOptions, LinkReport, Path, SegmentAddress};
use super::shared_memory::NoSharedMemory;
use super::shared_memory::give_back_thread::GiveBackThread;
use super::shared_memory::watcher::Watcher;
use crate::epoch::Epoch;
use crate::error::{LinkError, ServerError};
use crate::link_events::LinkEvents;
use crate::machine::{LinkBook, Look, Permit, Unwanted};

/// The links of one store.
#[derive(Debug)]
pub struct Links {
    connector: Arc<Connector>,
    book: Arc<Book>,
}

/// Never held while a link is made, nor while one is dropped: unmapping takes time, too.
#[derive(Debug)]
struct Book {
    links: Mutex<LinkBook<Arc<Link>>>,
    /// A link has been made, or is not made after all.
    changed: Condvar,
    time_origin: Instant,
}

impl Book {
    fn time(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.time_origin)
    }
}

/// The making of a link. Dropped, it is given up.
struct Making<'a> {
    book: &'a Book,
    permit: Permit,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        // Where it has been made, or has failed, there is nothing to give up.
        self.book.links.lock().given_back(self.permit);
        self.book.changed.notify_all();
    }
}

impl Links {
    /// No links yet.
    pub fn new(options: LinkOptions, events: Box<dyn LinkEvents>) -> Result<Links, ServerError> {
        watch_forks();
        let watcher = Watcher::new(Arc::from(events)).map_err(|source| ServerError::Os { what: "eventfd", source })?;
        let links = Mutex::new(LinkBook::new(options.session, options.retry_after));
        Ok(Links {
            connector: Arc::new(Connector {
                options,
                process: ProcessIdentity::current()?,
                watcher,
                give_back_thread: Arc::default(),
                least_epoch: Arc::default(),
                idle_lanes: Arc::default(),
                threads: Arc::new(Permits::new(THREADS_MAX)),
            }),
            book: Arc::new(Book { links, changed: Condvar::new(), time_origin: Instant::now() }),
        })
    }

    /// The link to a segment, made now if there is none.
    pub fn link(&self, address: &SegmentAddress, deadline: &Deadline<'_>) -> Result<Arc<Link>, LinkError> {
        if forked() {
            return Err(LinkError::Forked);
        }
        let book = &*self.book;
        let mut links = book.links.lock();
        let (permit, former) = loop {
            let is_over = |link: &Arc<Link>| link.is_over() || link.is_elsewhere(address);
            match links.look(address.uuid, || book.time(Instant::now()), is_over) {
                Look::Use(link) => return Ok(link),
                Look::Improve(link, permit) => {
                    drop(links);
                    self.improve(permit, address);
                    return Ok(link);
                }
                Look::Make(permit, former) => break (permit, former),
                Look::Wait => {
                    book.changed.wait_for(&mut links, deadline.slice());
                    // The hook may wait for a thread that wants a link.
                    MutexGuard::unlocked(&mut links, || deadline.check()).map_err(|error| ended(error, address))?;
                }
                Look::Avoid { ago, reason, passing } => {
                    return Err(LinkError::Avoided {
                        segment: address.display_name().to_string(),
                        ago,
                        reason,
                        passing,
                    });
                }
                Look::Closed => return Err(LinkError::Closed),
            }
        };
        drop(links);
        let making = Making { book, permit };
        drop(former);
        self.make(&making, address, deadline)
    }

    /// The link for a placement that was reserved in that session. A fence asks
    /// the attachments of the placement's own session only: what another one's
    /// links wrote would land behind it.
    pub fn link_to_write(
        &self,
        session: u64,
        address: &SegmentAddress,
        deadline: &Deadline<'_>,
    ) -> Result<Arc<Link>, LinkError> {
        if session == self.connector.options.session {
            self.link(address, deadline)
        } else {
            Err(LinkError::SessionOver { segment: address.display_name().to_string() })
        }
    }

    fn make(
        &self,
        making: &Making<'_>,
        address: &SegmentAddress,
        deadline: &Deadline<'_>,
    ) -> Result<Arc<Link>, LinkError> {
        let segment = || address.display_name().to_string();
        let made = self.connector.connect(address, deadline);
        let now = Instant::now();
        if made.is_err() {
            deadline.check().map_err(|error| ended(error, address))?;
        }
        let Made { link, better_later } = match made {
            Ok(made) => made,
            // The owner need not be avoided: as soon as there is a descriptor, it is reached.
            Err(NoPath { reason, is_short_of_descriptors: true, .. }) => {
                let limit = descriptor_limit();
                return Err(LinkError::OutOfDescriptors { segment: segment(), limit, reason });
            }
            Err(NoPath { reason, passing, .. }) => {
                making.book.links.lock().failed(making.permit, making.book.time(now), reason.clone(), passing);
                return Err(LinkError::NoPath { segment: segment(), reason, passing });
            }
        };
        match link.path() {
            // No choice to report.
            Path::Local => tracing::debug!(segment = &*address.display_name(), path = %link.path(), "link"),
            path => tracing::info!(segment = &*address.display_name(), %path, reason = link.reason(), "link"),
        }
        let link = Arc::new(link);
        let better_at = better_later.then(|| making.book.time(now) + self.connector.options.retry_after);
        let kept = making.book.links.lock().made(making.permit, link.clone(), better_at);
        kept.map(|()| link.clone()).map_err(|unwanted| {
            discard(&self.connector.give_back_thread, link);
            match unwanted {
                Unwanted::Closed => LinkError::Closed,
                Unwanted::Forgotten => {
                    LinkError::NoPath { segment: segment(), reason: "it has left the pool".into(), passing: false }
                }
            }
        })
    }

    /// Tries shared memory once more on a thread of its own, so that no caller
    /// waits for an owner that still stands still; TCP goes on meanwhile.
    fn improve(&self, permit: Permit, address: &SegmentAddress) {
        let (connector, book, address) = (self.connector.clone(), self.book.clone(), address.clone());
        let improve = move || {
            let LinkOptions { connect_timeout, retry_after, .. } = connector.options;
            match connector.map(&address, &Deadline::at(Instant::now() + connect_timeout)) {
                Ok(link) => {
                    let (path, improved) = (link.path(), book.links.lock().improved(permit, Arc::new(link)));
                    match improved {
                        // A caller that uses the former one still does so until its call ends.
                        Ok(_former) => tracing::info!(segment = &*address.display_name(), %path, "link, after all"),
                        Err(late) => discard(&connector.give_back_thread, late),
                    }
                }
                Err(NoSharedMemory { passing, .. }) => {
                    let again = passing.then(|| book.time(Instant::now()) + retry_after);
                    book.links.lock().not_improved(permit, again);
                }
            }
        };
        if let Err(e) = thread::start(std::thread::Builder::new().name("mooncake-attach".into()), improve) {
            tracing::warn!("no thread to try shared memory again: {e}");
            let again = self.book.time(Instant::now()) + self.connector.options.retry_after;
            self.book.links.lock().not_improved(permit, Some(again));
        }
    }

    /// A segment has another owner, or is somewhere else: what failed where it was, or is over, says nothing of that.
    pub fn begin_anew(&self, uuid: SegmentUuid) {
        if forked() {
            return;
        }
        let over = self.book.links.lock().begin_anew(uuid, |link| link.is_over());
        if let Some(link) = over {
            discard(&self.connector.give_back_thread, link);
        }
    }

    /// The segment is Gone, says the master, which is in this epoch. Mapped peers of a dead owner give its memory back,
    /// all but the pinned extents `(offset, length)` and those of own views; the
    /// mapping ends with the last view. Returns at once: a thread of the links
    /// does the work, and a link that is being made ends when it is made.
    pub fn forget(&self, uuid: SegmentUuid, pinned: &[(u64, u64)], epoch: Epoch) {
        if forked() {
            return;
        }
        let link = self.book.links.lock().forget(uuid);
        // The mapping may outlive its link under views: the watcher knows it too.
        let attachments = self.connector.watcher.attachments(&uuid);
        if !attachments.is_empty() {
            let pinned = pinned.to_vec();
            self.connector
                .give_back_thread
                .later(move || attachments.iter().for_each(|attachment| attachment.forget(&pinned, epoch)));
        }
        if let Some(link) = link {
            discard(&self.connector.give_back_thread, link);
        }
    }

    /// The master's epoch was raised: writes of older placements are refused
    /// here from now on.
    pub fn raise_epoch(&self, epoch: u16) {
        self.connector.least_epoch.raise(epoch);
    }

    /// Closed, and nothing is mapped over them any more, not by a view either.
    pub fn are_over(&self) -> bool {
        self.book.links.lock().is_closed() && self.connector.watcher.is_idle()
    }

    /// The session that they belong to.
    pub fn session(&self) -> u64 {
        self.connector.options.session
    }

    /// See [`LinkBook::part_with_over`]. Returns at once.
    pub fn part_with_over(&self) {
        if forked() {
            return;
        }
        let over = self.book.links.lock().part_with_over(|link| link.is_over());
        over.into_iter().for_each(|link| discard(&self.connector.give_back_thread, link));
    }

    /// Closes TCP lanes that no call has used for some seconds. To be called now and then.
    pub fn close_idle(&self) {
        if forked() {
            return;
        }
        let links: Vec<Arc<Link>> = self.book.links.lock().links().cloned().collect();
        links.iter().for_each(|link| link.close_idle());
    }

    /// Every link that is up.
    pub fn report(&self) -> Vec<LinkReport> {
        let links: Vec<Arc<Link>> = self.book.links.lock().links().cloned().collect();
        links.iter().map(|link| link.report()).collect()
    }

    /// Drops every link. Views and their mappings last as long as the views.
    pub fn close(&self) {
        if forked() {
            return;
        }
        let links = self.book.links.lock().close();
        links.iter().for_each(|link| link.forget());
    }
}

/// Ends a link. Unmapping takes time, too.
fn discard(give_back_thread: &Arc<GiveBackThread>, link: Arc<Link>) {
    link.forget();
    give_back_thread.later(move || drop(link));
}

impl Drop for Links {
    fn drop(&mut self) {
        self.close();
    }
}

/// A call ends before there is a link.
fn ended(error: WaitError, address: &SegmentAddress) -> LinkError {
    match error {
        WaitError::Interrupted => LinkError::Interrupted,
        WaitError::Expired(_) => LinkError::Timeout { segment: address.display_name().to_string() },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use mooncake_ids::Rid;
    use mooncake_memory::{SegmentMemory, Source};

    use super::super::Paths;
    use super::super::fixture::{Quiet, mapping, owner};
    use super::*;

    const FIRST: Epoch = Epoch::numbered(1);
    const RID: Rid = Rid::new(1, 1);

    fn resident(memory: &SegmentMemory) -> u64 {
        rustix::fs::fstat(memory.data_fd()).unwrap().st_blocks as u64 * 512
    }

    #[test]
    fn what_was_said_to_be_viewed_is_kept_when_a_restarted_master_has_forgotten_it() {
        const BYTES: u64 = 1 << 20;
        let (_server, memory, address) = owner(BYTES, Quiet);
        memory.populate_step(BYTES).unwrap();
        let deadline = Deadline::at(Instant::now() + Duration::from_secs(5));
        // Somebody else who has it mapped, and looks at the first 4 KiB.
        let reader = Links::new(mapping(), Box::new(Quiet)).unwrap();
        let _reads = reader.link(&address, &deadline).unwrap();
        let peer = Links::new(mapping(), Box::new(Quiet)).unwrap();
        let _link = peer.link(&address, &deadline).unwrap();
        for attachment in peer.connector.watcher.attachments(&memory.uuid()) {
            attachment.owner_ended();
            attachment.forget(&[(0, 4096)], FIRST);
            assert_eq!(resident(&memory), 4096);
            attachment.forget(&[], FIRST);
            assert_eq!(resident(&memory), 4096, "it may still be viewed");
        }
    }

    #[test]
    fn what_is_viewed_in_an_epoch_that_the_own_master_has_not_shown_is_kept() {
        const BYTES: u64 = 1 << 20;
        let [a, b] = [7, 8].map(|id| Epoch { number: 2, id });
        for (epoch, kept) in [(a, BYTES), (b, 0)] {
            let (server, memory, address) = owner(BYTES, Quiet);
            memory.populate_step(BYTES).unwrap();
            let deadline = Deadline::at(Instant::now() + Duration::from_secs(5));
            server.take_epoch(b).unwrap();
            // Its views are known to the master that the owner obeys.
            let reader = Links::new(mapping(), Box::new(Quiet)).unwrap();
            let _reads = reader.link(&address, &deadline).unwrap();
            let peer = Links::new(mapping(), Box::new(Quiet)).unwrap();
            let _link = peer.link(&address, &deadline).unwrap();
            for attachment in peer.connector.watcher.attachments(&memory.uuid()) {
                attachment.owner_ended();
                attachment.forget(&[], epoch);
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
        drop(links.link(&address, &Deadline::at(Instant::now() + Duration::from_secs(5))).unwrap());
        for attachment in links.connector.watcher.attachments(&memory.uuid()) {
            assert!(attachment.owner_ended(), "as the watcher would say of a dead owner");
        }
        let (release, held) = channel::<()>();
        links.connector.give_back_thread.later(move || assert!(held.recv().is_err(), "nothing is sent"));
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
        let eventually = |holds: &(dyn Fn() -> bool + Sync)| {
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

    fn soon() -> Deadline<'static> {
        Deadline::at(Instant::now() + Duration::from_secs(5))
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
        links.connector.give_back_thread.later(move || done.send(()).unwrap());
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
        let making = Making { book: &links.book, permit: permit(&links, address.uuid) };
        let began = Instant::now();
        assert!(matches!(links.link(&address, &Deadline::at(began)), Err(LinkError::Timeout { .. })));
        let interrupted = Deadline::after(Duration::from_secs(60), &|| true);
        assert!(matches!(links.link(&address, &interrupted), Err(LinkError::Interrupted)));
        assert!(began.elapsed() < Duration::from_secs(30));
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| links.link(&address, &soon()).map(|link| link.path()));
            std::thread::sleep(Duration::from_millis(60));
            drop(making);
            assert_eq!(waits.join().unwrap().unwrap(), Path::SharedMemory, "it goes on when the other has done");
        });
    }

    #[test]
    fn shared_memory_that_comes_too_late_for_its_link_is_not_kept() {
        let (server, _memory, address) = owner(1 << 20, Quiet);
        let links = Links::new(mapping(), Box::new(Quiet)).unwrap();
        let slow = permit(&links, address.uuid);
        let link = Arc::new(links.connector.map(&address, &soon()).unwrap());
        links.book.links.lock().made(slow, link, Some(Duration::ZERO)).unwrap();
        let look = links.book.links.lock().look(address.uuid, || Duration::ZERO, |_| false);
        let Look::Improve(link, tried) = look else { panic!("{look:?}") };
        // The link that is to be improved ends meanwhile.
        links.forget(address.uuid, &[], FIRST);
        drop(link);
        links.improve(tried, &address);
        let until = Instant::now() + Duration::from_secs(5);
        while Arc::strong_count(&links.book) > 1 || server.attached() > 0 {
            assert!(Instant::now() < until, "{} are mapped", server.attached());
            std::thread::yield_now();
        }
        assert_eq!(links.book.links.lock().links().count(), 0);
    }

    /// Somebody makes the link to a segment from now on.
    fn permit(links: &Links, uuid: SegmentUuid) -> Permit {
        let look = links.book.links.lock().look(uuid, || Duration::ZERO, |_| false);
        let Look::Make(permit, _) = look else { panic!("{look:?}") };
        permit
    }

    #[test]
    fn why_no_path_leads_to_a_segment_is_said_of_each() {
        let (_server, _memory, address) = owner(1 << 20, Quiet);
        let elsewhere = SegmentAddress { uuid: SegmentUuid([9; 16]), ..address.clone() };
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
