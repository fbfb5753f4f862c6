//! The links of a store. They belong to a session; when another one begins,
//! new links are made and the old ones last as long as views over them.

use std::sync::Arc;

use mooncake_ids::SegmentUuid;
use mooncake_os::{Deadline, ProcessIdentity};
use mooncake_segment::{
    Epoch, EpochQuestion, Link, LinkError, LinkEvents, LinkOptions, LinkReport, Links, Path, Paths, RecordFiles,
    RecordLanes, SegmentAddress, ServerError,
};
use mooncake_wire::message::{PeerGone, anchor_up};
use parking_lot::{Mutex, RwLock};

use crate::machine::position::epoch_of;
use crate::machine::questions::{Question, Questions};
use crate::options::StoreOptions;
use crate::process::wire_process;
use crate::segments::direct_reads::DirectReads;
use crate::segments::directory::Directory;
use crate::session::control::Control;

pub(crate) struct LinkSet {
    control: Arc<Control>,
    directory: Arc<Directory>,
    template: LinkOptions,
    current: RwLock<Arc<Links>>,
    former: Mutex<Vec<Arc<Links>>>,
    questions: Arc<Mutex<Questions<EpochQuestion>>>,
    records: RecordLanes,
    direct: DirectReads,
}

impl LinkSet {
    pub fn new(
        options: &StoreOptions,
        mark: u64,
        control: Arc<Control>,
        directory: Arc<Directory>,
    ) -> Result<Self, ServerError> {
        let mut template = LinkOptions::new(control.session().id);
        template.mark = mark;
        template.stall_timeout = options.stall_timeout;
        template.tcp_addresses = options.tcp_addresses.clone();
        template.tcp_address_pause = options.tcp_address_pause;
        if !options.shared_memory {
            template.paths = Paths::only(Path::Tcp);
        }
        let epoch = epoch_of(&control.position());
        let questions = Arc::new(Mutex::new(Questions::new(epoch)));
        let current = make(&template, (&control, &directory), &questions)?;
        current.raise_epoch(epoch.number);
        let process = ProcessIdentity::current()
            .map_err(|source| ServerError::Os { what: "name this process", source: std::io::Error::other(source) })?;
        let files = RecordFiles::new(template.clone(), process);
        let direct = DirectReads::new(
            files,
            options.tier_slots,
            options.tier_engine,
            control.metrics.as_ref().map(|metrics| metrics.tiers.disk()),
        );
        let records = RecordLanes::new(template.clone(), process);
        let (current, former) = (RwLock::new(current), Mutex::default());
        Ok(Self { control, directory, template, current, former, questions, records, direct })
    }

    pub fn link(&self, address: &SegmentAddress, deadline: &Deadline<'_>) -> Result<Arc<Link>, LinkError> {
        let links = self.current.read().clone();
        let link = links.link(address, deadline);
        self.or_where_it_is(link, address, |other| links.link(other, deadline), &links)
    }

    /// Where the owner of a segment does not answer, another process may have its memory, somewhere else.
    fn or_where_it_is(
        &self,
        link: Result<Arc<Link>, LinkError>,
        address: &SegmentAddress,
        again: impl FnOnce(&SegmentAddress) -> Result<Arc<Link>, LinkError>,
        links: &Links,
    ) -> Result<Arc<Link>, LinkError> {
        let is_lost = matches!(&link, Err(LinkError::NoPath { .. } | LinkError::Avoided { .. }));
        match is_lost.then(|| self.directory.moved(&self.control, address)).flatten() {
            Some(other) => {
                links.begin_anew(other.uuid);
                again(&other)
            }
            None => link,
        }
    }

    /// Tiers of this host, read past their owners.
    pub fn direct(&self) -> &DirectReads {
        &self.direct
    }

    /// Objects that were read from tiers, in any way.
    pub fn tier_reads(&self) -> u64 {
        self.records.reads() + self.direct.reads()
    }

    /// Ways to tiers.
    pub fn records(&self) -> &RecordLanes {
        &self.records
    }

    /// The link for a placement that was reserved in that session: see [`Links::link_to_write`].
    pub fn link_to_write(
        &self,
        session: u64,
        address: &SegmentAddress,
        deadline: &Deadline<'_>,
    ) -> Result<Arc<Link>, LinkError> {
        let links = self.current.read().clone();
        let link = links.link_to_write(session, address, deadline);
        self.or_where_it_is(link, address, |other| links.link_to_write(session, other, deadline), &links)
    }

    /// The segment is Gone: see [`Links::forget`].
    pub fn forget(&self, uuid: SegmentUuid, pinned: &[(u64, u64)]) {
        let epoch = self.questions.lock().epoch();
        for links in self.all() {
            links.forget(uuid, pinned, epoch);
        }
    }

    /// Whether the owner at the other end of this link waits for this store before it gives out what this store's
    /// master does not know of.
    ///
    /// An owner waits for the processes that mapped the segment when it was asked to take an epoch. A process that
    /// mapped it later must have its pins from the master that the owner obeys. Until this store has met that master,
    /// its pins may be of the epoch before. When its own master is in a new epoch, this store must first hear from the
    /// owner that that is the one: a question about that epoch (docs/safety.md, rule 18).
    pub fn vouch_for(&self, link: &Link) -> bool {
        // It obeys no other one meanwhile.
        let questions = self.questions.lock();
        link.is_waited_for_in(questions.epoch())
    }

    pub fn report(&self) -> Vec<LinkReport> {
        self.current.read().report()
    }

    /// Another session has begun, of which new links are.
    pub fn start_over(&self) {
        if let Err(error) = self.make_anew() {
            tracing::error!(%error, "no new links for the new session; until there are some its puts fail");
        }
    }

    fn make_anew(&self) -> Result<(), ServerError> {
        let template = LinkOptions { session: self.control.session().id, ..self.template.clone() };
        let links = make(&template, (&self.control, &self.directory), &self.questions)?;
        links.raise_epoch(self.questions.lock().epoch().number);
        let former = std::mem::replace(&mut *self.current.write(), links);
        former.close();
        self.former.lock().push(former);
        self.let_go_of_former();
        Ok(())
    }

    /// This store's master is in this epoch: from now on this store writes nothing older. If the master knows all pins
    /// of this store, owners that asked about this epoch hear so (docs/safety.md, rule 18). Other owners do not, nor
    /// one that asked about an earlier epoch of this master: the same master asks it for this one.
    pub fn obey(&self, epoch: Epoch) {
        let is_higher = self.questions.lock().obey(epoch);
        if is_higher {
            for links in self.all() {
                links.raise_epoch(epoch.number);
            }
        }
        self.look_after();
        if !self.control.pins.lock().all_listed() {
            return;
        }
        let ready = self.questions.lock().ready(epoch);
        for question in ready {
            question.confirm();
        }
    }

    pub fn close(&self) {
        for links in self.all() {
            links.close();
        }
        self.records.close();
        self.direct.close();
    }

    /// Makes the links that could not be made when their session began, and parts with what is over.
    fn look_after(&self) {
        let current = self.current.read().clone();
        if current.session() != self.control.session().id {
            self.start_over();
        }
        self.let_go_of_former();
        for links in self.all() {
            links.part_with_over();
            links.close_idle();
        }
    }

    /// Links of former sessions end with the last view over them.
    fn let_go_of_former(&self) {
        let mut former = self.former.lock();
        let over: Vec<Arc<Links>> = former.extract_if(.., |links| links.are_over()).collect();
        drop(former);
        drop(over);
    }

    fn all(&self) -> Vec<Arc<Links>> {
        let mut all = self.former.lock().clone();
        all.push(self.current.read().clone());
        all
    }
}

/// Where a peer of this host finds a segment that is served with access key 1.
#[cfg(test)]
pub(crate) fn address_of(
    server: &mooncake_segment::SegmentServer,
    memory: &mooncake_memory::SegmentMemory,
) -> SegmentAddress {
    SegmentAddress {
        uuid: memory.uuid(),
        bytes: memory.bytes(),
        name: "owner".into(),
        boot_id: mooncake_os::boot_id().unwrap(),
        unix_socket: server.unix_name().into(),
        tcp: Vec::new(),
        access_key: 1,
        process: None,
        tier_file_blocks: 0,
    }
}

#[cfg(test)]
impl LinkSet {
    /// Links that map also what is of this process.
    pub fn over_shared_memory(control: Arc<Control>) -> Self {
        let mut links =
            LinkSet::new(&StoreOptions::new("127.0.0.1", "127.0.0.1:1"), 1, control, Arc::default()).unwrap();
        links.template.paths = Paths::only(Path::SharedMemory);
        links.start_over();
        links
    }

    /// Whether an owner's question waits.
    pub fn has_been_asked(&self, epoch: Epoch) -> bool {
        self.questions.lock().waiting().iter().any(|question| question.epoch() == epoch)
    }
}

impl std::fmt::Debug for LinkSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkSet").field("options", &self.template).finish_non_exhaustive()
    }
}

fn make(
    options: &LinkOptions,
    (control, directory): (&Arc<Control>, &Arc<Directory>),
    questions: &Arc<Mutex<Questions<EpochQuestion>>>,
) -> Result<Arc<Links>, ServerError> {
    let events = Events { control: control.clone(), directory: directory.clone(), questions: questions.clone() };
    Ok(Arc::new(Links::new(options.clone(), Box::new(events))?))
}

impl Question for EpochQuestion {
    fn epoch(&self) -> Epoch {
        self.epoch()
    }

    fn is_moot(&self) -> bool {
        self.is_moot()
    }

    fn repeats(&self, other: &Self) -> bool {
        self.repeats(other)
    }

    fn supersedes(&self, other: &Self) -> bool {
        self.supersedes(other)
    }
}

struct Events {
    control: Arc<Control>,
    directory: Arc<Directory>,
    questions: Arc<Mutex<Questions<EpochQuestion>>>,
}

impl LinkEvents for Events {
    fn owner_gone(&self, uuid: SegmentUuid, process: Option<ProcessIdentity>) {
        self.directory.owner_ended(uuid);
        let process = process.as_ref().map(wire_process);
        self.control.tell(anchor_up::Body::PeerGone(PeerGone { uuid: uuid.0.to_vec().into(), process }));
    }

    fn take_epoch(&self, question: EpochQuestion) {
        let is_new = self.questions.lock().ask(question);
        if is_new {
            // The next pong says in which epoch the master is.
            self.control.ping();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use mooncake_ids::Rid;
    use mooncake_memory::{SegmentMemory, SegmentOptions, Source};
    use mooncake_segment::{SegmentServer, ServerEvents, ServerOptions};

    use super::*;
    use crate::scripted_master::{hello_reply, wait_for};
    use crate::session::Session;

    struct Quiet;

    impl ServerEvents for Quiet {
        fn fenced(&self, _: SegmentUuid, _: Rid) {}
        fn epoch_taken(&self, _: u16, _: SegmentUuid) {}
    }

    /// An owner, its segment with one object, and a store that maps it.
    fn mapped() -> (Arc<SegmentServer>, SegmentAddress, LinkSet) {
        let server = SegmentServer::start(ServerOptions::new([127, 0, 0, 1].into(), 0, 1), Box::new(Quiet)).unwrap();
        let memory = Arc::new(SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap());
        server.add(memory.clone(), 1);
        memory.mapping().write(RID, 0, &[Source::new(b"seen")]).unwrap();
        let address = address_of(&server, &memory);
        (server, address, LinkSet::over_shared_memory(Control::alone()))
    }

    const RID: Rid = Rid::new(1, 1);

    fn soon() -> Deadline<'static> {
        Deadline::at(Instant::now() + Duration::from_secs(5))
    }

    #[test]
    fn who_comes_after_its_owner_was_asked_is_vouched_for_when_its_master_has_shown_that_epoch() {
        let (server, address, links) = mapped();
        let before = links.link(&address, &soon()).unwrap();
        server.take_epoch(Epoch::numbered(2)).unwrap();
        assert!(links.vouch_for(&before), "the owner waits for it");
        links.start_over();
        let after = links.link(&address, &soon()).unwrap();
        assert!(!links.vouch_for(&after), "the owner does not");
        links.obey(Epoch::numbered(2));
        assert!(links.vouch_for(&after));
    }

    /// Another process, which ends with the test.
    struct Killed(std::process::Child);

    impl Killed {
        fn end(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    impl Drop for Killed {
        fn drop(&mut self) {
            self.end();
        }
    }

    /// Lends a segment until it is killed. Part of the next test.
    #[test]
    fn lender() {
        let Ok(path) = std::env::var("TEST_LENDER") else { return };
        let (server, address, links) = mapped();
        let link = links.link(&address, &soon()).unwrap();
        link.write(RID, 64 << 10, &[Source::new(b"another one")], &soon()).unwrap();
        let process = mooncake_os::ProcessIdentity::current().unwrap();
        let uuid = address.uuid.to_string();
        let text = format!("{uuid}\n{}\n{}\n", server.unix_name(), process.start_time);
        std::fs::write(format!("{path}.new"), text).unwrap();
        std::fs::rename(format!("{path}.new"), path).unwrap();
        loop {
            std::thread::park();
        }
    }

    #[test]
    fn a_segment_that_is_gone_is_given_back_though_a_view_of_an_earlier_session_lasts() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lender");
        let (_, tests) = module_path!().split_once("::").unwrap();
        let lender = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("{tests}::lender")])
            .env("TEST_LENDER", &path)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut lender = Killed(lender);
        wait_for("the lender is there", || path.exists());
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let own = mooncake_os::ProcessIdentity::current().unwrap();
        let process = mooncake_os::ProcessIdentity { pid: lender.0.id(), start_time: lines[2].parse().unwrap(), ..own };
        let address = SegmentAddress {
            uuid: lines[0].parse().unwrap(),
            bytes: 1 << 20,
            name: "owner".into(),
            boot_id: own.boot_id,
            unix_socket: lines[1].into(),
            tcp: Vec::new(),
            access_key: 1,
            process: Some(process),
            tier_file_blocks: 0,
        };
        let links = LinkSet::over_shared_memory(Control::alone());
        let view = links.link(&address, &soon()).unwrap().view(RID, 0, 4, None).unwrap().unwrap();
        // Its memory, as the kernel counts it.
        let files = std::fs::read_dir(format!("/proc/{}/fd", lender.0.id())).unwrap();
        let files = files.map(|entry| entry.unwrap().path());
        let memfds = files
            .filter(|file| std::fs::read_link(file).is_ok_and(|name| name.to_string_lossy().starts_with("/memfd:")));
        let memory = memfds.map(|file| std::fs::File::open(file).unwrap());
        let memory = memory.max_by_key(|file| file.metadata().unwrap().len()).unwrap();
        let blocks = || memory.metadata().unwrap().blocks();
        links.start_over();
        lender.end();
        let before = blocks();
        links.forget(address.uuid, &[]);
        wait_for("all but the view's page is given back", || blocks() < before && blocks() > 0);
        assert_eq!(*view, *b"seen");
    }

    #[test]
    fn a_store_that_is_closed_keeps_no_link_of_any_session() {
        let (_server, address, links) = mapped();
        links.link(&address, &soon()).unwrap();
        links.start_over();
        let view = links.link(&address, &soon()).unwrap().view(RID, 0, 4, None).unwrap().unwrap();
        links.close();
        assert!(links.link(&address, &soon()).is_err() && links.report().is_empty());
        assert_eq!(*view, *b"seen");
    }

    #[test]
    fn links_that_could_not_be_made_when_their_session_began_are_made_when_they_can_be() {
        let (_server, address, links) = mapped();
        let (control, former) = (links.control.clone(), links.control.session());
        let next = Session::new(&hello_reply(9), former.master.clone(), None, &[0; 16]);
        control.set_session(next);
        assert!(links.link_to_write(9, &address, &soon()).is_err(), "there are none yet");
        links.obey(Epoch::numbered(1));
        links.link_to_write(9, &address, &soon()).unwrap();
        assert!(links.link_to_write(former.id, &address, &soon()).is_err());
    }

    #[test]
    fn links_of_a_later_session_write_nothing_of_an_earlier_epoch_either() {
        let (_server, address, links) = mapped();
        links.obey(A3);
        for what in ["the session that heard of it", "the one behind it"] {
            let link = links.link(&address, &soon()).unwrap();
            let old = link.write(Rid::new(2, 1), 1024, &[Source::new(b"late")], &soon());
            assert!(old.is_err(), "{what}");
            link.write(Rid::new(3, 1), 2048, &[Source::new(b"new")], &soon()).expect(what);
            links.start_over();
        }
        // Nor do those that are made when the master has shown an epoch.
        let control = links.control.clone();
        control.position_lock().epoch = 4;
        let late = LinkSet::over_shared_memory(control.clone());
        let (first, options) = (StoreOptions::new("127.0.0.1", "127.0.0.1:1"), 1);
        let first = LinkSet::new(&first, options, control, Arc::default()).unwrap();
        for (links, offset) in [(late, 4096), (first, 5120)] {
            let link = links.link(&address, &soon()).unwrap();
            link.write(Rid::new(3, 2), offset, &[Source::new(b"late")], &soon()).unwrap_err();
            link.write(Rid::new(4, 1), offset, &[Source::new(b"new")], &soon()).unwrap();
        }
    }

    const A2: Epoch = Epoch { number: 2, id: 7 };
    const B2: Epoch = Epoch { number: 2, id: 8 };
    const A3: Epoch = Epoch { number: 3, id: 9 };

    /// Waits until an owner's question is here.
    fn asked(links: &LinkSet, epoch: Epoch) {
        let until = Instant::now() + Duration::from_secs(5);
        while !links.has_been_asked(epoch) {
            assert!(Instant::now() < until, "no question about {epoch:?}");
            std::thread::yield_now();
        }
    }

    /// Whether the owner has heard within a while that all obey an epoch.
    fn is_taken(server: &SegmentServer, address: &SegmentAddress, epoch: u16, within_ms: u64) -> bool {
        let until = Instant::now() + Duration::from_millis(within_ms);
        while server.taken(address.uuid) < epoch && Instant::now() < until {
            std::thread::yield_now();
        }
        server.taken(address.uuid) >= epoch
    }

    #[test]
    fn an_owner_is_told_only_of_the_epoch_that_this_stores_own_master_has_shown() {
        // The same number of another continuation of the log, and a higher one.
        for own in [B2, Epoch { number: 3, id: 8 }] {
            let (server, address, links) = mapped();
            let link = links.link(&address, &soon()).unwrap();
            server.take_epoch(A2).unwrap();
            asked(&links, A2);
            links.obey(own);
            assert!(!is_taken(&server, &address, 2, 100), "{own:?}");
            assert_eq!(links.questions.lock().waiting().len(), 1);
            drop(link);
            links.close();
            assert!(is_taken(&server, &address, 2, 5000), "nothing is mapped any more");
        }
        for own in [A2, Epoch::numbered(2), Epoch::numbered(3)] {
            let (server, address, links) = mapped();
            let _link = links.link(&address, &soon()).unwrap();
            server.take_epoch(A2).unwrap();
            asked(&links, A2);
            links.obey(own);
            assert!(is_taken(&server, &address, 2, 5000), "{own:?}");
        }
        let (server, address, links) = mapped();
        let _link = links.link(&address, &soon()).unwrap();
        server.take_epoch(Epoch::numbered(2)).unwrap();
        asked(&links, Epoch::numbered(2));
        links.obey(A3);
        assert!(is_taken(&server, &address, 2, 5000), "an older master's question is about a number");
    }

    #[test]
    fn an_owner_waits_while_this_store_has_a_view_that_its_master_does_not_know() {
        let (server, address, links) = mapped();
        let _link = links.link(&address, &soon()).unwrap();
        let pins = &links.control.pins;
        let generation = pins.lock().generation();
        let era = pins.lock().adopt(generation, [RID].into_iter()).unwrap();
        pins.lock().start_over();
        links.control.wants.take_ping();
        server.take_epoch(A2).unwrap();
        asked(&links, A2);
        wait_for("the master is asked for its epoch", || links.control.wants.take_ping());
        links.obey(A2);
        assert!(!is_taken(&server, &address, 2, 100));
        assert!(pins.lock().release(era, RID), "the last of them");
        links.obey(A2);
        assert!(is_taken(&server, &address, 2, 5000));
    }

    #[test]
    fn a_segment_that_knows_no_raise_is_viewed_in_the_epoch_that_it_was_mounted_in() {
        let (server, address, links) = mapped();
        server.mounted(address.uuid, A2);
        let link = links.link(&address, &soon()).unwrap();
        for other in [B2, Epoch { number: 3, id: 8 }] {
            links.obey(other);
            assert!(!links.vouch_for(&link), "{other:?} may know nothing of it");
        }
        let (server, address, links) = mapped();
        server.mounted(address.uuid, A2);
        let link = links.link(&address, &soon()).unwrap();
        assert!(!links.vouch_for(&link), "this store's master is in an earlier epoch");
        links.obey(A2);
        assert!(links.vouch_for(&link));
        links.obey(A3);
        assert!(!links.vouch_for(&link), "it may be another master's that the owner does not know of");
        server.take_epoch(A3).unwrap();
        asked(&links, A3);
        assert!(links.vouch_for(&link), "it is the owner's, too, which waits for this store");
    }

    #[test]
    fn of_two_raises_the_second_settles_both() {
        // The owner hears of both before the reader does, and the other way round.
        for reader_first in [false, true] {
            let (server, address, links) = mapped();
            let _link = links.link(&address, &soon()).unwrap();
            if reader_first {
                links.obey(A3);
            }
            server.take_epoch(A2).unwrap();
            asked(&links, A2);
            links.obey(A3);
            assert!(!is_taken(&server, &address, 2, 50));
            server.take_epoch(A3).unwrap();
            asked(&links, A3);
            links.obey(A3);
            assert!(is_taken(&server, &address, 3, 5000), "as the next pong does");
            assert!(links.questions.lock().waiting().is_empty(), "nobody waits for an answer to the first one");
        }
    }

    #[test]
    fn who_comes_after_its_owner_was_asked_is_vouched_for_in_that_very_epoch() {
        let (server, address, links) = mapped();
        server.take_epoch(A2).unwrap();
        links.start_over();
        let link = links.link(&address, &soon()).unwrap();
        assert!(!links.vouch_for(&link), "its master is an epoch behind");
        links.obey(B2);
        assert!(!links.vouch_for(&link), "its master is another one");
        links.obey(A3);
        assert!(!links.vouch_for(&link), "nobody knows yet that it is the owner's, too");
        server.take_epoch(A3).unwrap();
        asked(&links, A3);
        assert!(links.vouch_for(&link), "from now on the owner waits for it");
        links.obey(A3);
        assert!(links.vouch_for(&link));
        assert!(is_taken(&server, &address, 3, 5000));
        let late = links.link(&address, &soon()).unwrap();
        assert!(links.vouch_for(&late));
    }

    #[test]
    fn links_of_former_sessions_go_with_the_last_view_over_them() {
        let (_server, address, links) = mapped();
        let view = links.link(&address, &soon()).unwrap().view(RID, 0, 4, None).unwrap().unwrap();
        for _ in 0..5 {
            links.start_over();
        }
        assert_eq!(links.former.lock().len(), 1, "the one that the view is over");
        assert_eq!(*view, *b"seen");
        drop(view);
        let until = Instant::now() + Duration::from_secs(5);
        while !links.former.lock().is_empty() {
            assert!(Instant::now() < until, "its links stay");
            // As each pong does.
            links.obey(Epoch::default());
        }
    }
}
