//! How a store reaches segments: of its own process, mapped, or over lanes; and what their owners have asked it.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use mooncake_client::machine::questions::{Question, Questions};
use mooncake_ids::{Rid, SegmentUuid};
use mooncake_segment::Epoch;
use mooncake_segment::machine::{LeastEpoch, LinkBook, Look, Newcomer};
use mooncake_wire::message::{PeerGone, anchor_up};

use crate::attachment::{Attachment, Watcher};
use crate::memory::{Memory, Viewed};
use crate::server::lane::{self, Lane, Unwritten};
use crate::server::{Inside, Served};
use crate::store::Store;
use crate::world::ProcessId;

/// How long messages between hosts take.
const BETWEEN_HOSTS_MICROS: u64 = 400;

/// Where a segment is.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    pub uuid: SegmentUuid,
    pub process: ProcessId,
    /// Its owner's, that is.
    pub is_on_this_host: bool,
}

/// The links of a store, and what is mapped over those of its former sessions.
pub(crate) struct Links {
    /// Of its session.
    book: RefCell<Rc<RefCell<LinkBook<Rc<Link>>>>>,
    attachments: RefCell<Vec<Weak<Attachment>>>,
    least_epoch: LeastEpoch,
}

impl Default for Links {
    fn default() -> Links {
        Links { book: RefCell::new(book_of(0)), attachments: RefCell::default(), least_epoch: LeastEpoch::default() }
    }
}

/// Nothing is tried again later in this world: there is one path, which works or does not.
fn book_of(session: u64) -> Rc<RefCell<LinkBook<Rc<Link>>>> {
    Rc::new(RefCell::new(LinkBook::new(session, Duration::ZERO)))
}

/// A way to one segment.
pub struct Link {
    kind: Kind,
    forgotten: Cell<bool>,
}

enum Kind {
    Local(Rc<Served>, Rc<Inside>),
    Shared(Rc<Attachment>),
    Lane(Address),
}

/// What an owner asks.
pub(crate) struct EpochQuestion {
    place: Place,
    epoch: Epoch,
}

enum Place {
    Attached(Weak<Attachment>),
    Inside(Weak<Inside>),
}

/// The bytes of a view, in place.
pub struct View {
    // Ends before what holds it mapped.
    bytes: Option<Viewed>,
    hold: Hold,
}

enum Hold {
    #[expect(dead_code, reason = "held, and let go of")]
    Inside(Rc<Inside>),
    Attached {
        attachment: Rc<Attachment>,
        offset: u64,
        len: u64,
    },
}

/// What a read or a view has found instead of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// Another placement's stamps.
    Stale,
    /// No way there.
    Lost,
    /// The caller wants to stop.
    Interrupted,
}

/// Bytes to be written.
pub(crate) struct Piece<'a> {
    pub rid: Rid,
    pub offset: u64,
    pub words: &'a [u64],
    /// Longest time between two granules, microseconds.
    pub pace: u64,
}

impl Store {
    /// The link to a segment, made now if there is none.
    pub(crate) async fn link_to(&self, address: &Address) -> Option<Rc<Link>> {
        let (world, book) = (&self.inner.world, self.inner.links.book.borrow().clone());
        let permit = loop {
            let look = book.borrow_mut().look(address.uuid, || world.now(), |link| link.is_over());
            match look {
                Look::Use(link) => return Some(link),
                Look::Make(permit, _) => break permit,
                Look::Wait => world.sleep_micros(500).await,
                Look::Closed => return None,
                Look::Improve(..) | Look::Avoid { .. } => unreachable!("nothing is tried again later"),
            }
        };
        let session = book.borrow().session();
        let Some(link) = self.make_link(address, session).await.map(Rc::new) else {
            book.borrow_mut().given_back(permit);
            return None;
        };
        let kept = book.borrow_mut().made(permit, link.clone(), None);
        if kept.is_err() {
            link.forgotten.set(true);
        }
        kept.ok().map(|()| link)
    }

    async fn make_link(&self, address: &Address, session: u64) -> Option<Link> {
        let Address { uuid, process, is_on_this_host } = *address;
        let server = self.inner.network.servers.of(process, &uuid);
        let kind = if process == self.inner.process {
            let served = server?.find(&uuid)?;
            let store = Rc::downgrade(&self.inner);
            let inside = served.enter(move |inside, epoch| {
                if let Some(inner) = store.upgrade() {
                    Store { inner }.take_epoch_asked(EpochQuestion { place: Place::Inside(inside), epoch });
                }
            });
            Kind::Local(served, inside)
        } else if is_on_this_host {
            let newcomer = Newcomer { session, uuid, knows_pins: true };
            let (world, mark) = (&self.inner.world, self.inner.mark.get());
            if !world.is_calm() {
                world.sleep_micros(world.below(self.inner.network.mix.map_micros)).await;
            }
            let watcher = Asked(Rc::downgrade(&self.inner));
            let opened = Attachment::open(world, self.inner.process, &server?, (newcomer, mark), watcher).await?;
            self.inner.links.attachments.borrow_mut().push(Rc::downgrade(&opened));
            Kind::Shared(opened)
        } else {
            Kind::Lane(address.clone())
        };
        Some(Link { kind, forgotten: Cell::new(false) })
    }

    /// The link for a placement that was reserved in that session.
    pub(crate) async fn link_to_write(&self, session: u64, address: &Address) -> Option<Rc<Link>> {
        if session == self.inner.links.session() { self.link_to(address).await } else { None }
    }

    /// The segment is Gone.
    pub(crate) fn forget_links(&self, uuid: SegmentUuid, pinned: &[(u64, u64)]) {
        let (links, epoch) = (&self.inner.links, self.inner.questions.borrow().epoch());
        let link = links.book.borrow().borrow_mut().forget(uuid);
        for attachment in links.attached().iter().filter(|attachment| attachment.memory.uuid() == uuid) {
            attachment.forget(pinned, epoch);
        }
        if let Some(link) = link {
            link.forgotten.set(true);
        }
    }

    /// Whether the owner of what is mapped over this link waits for this process.
    pub(crate) fn is_waited_for(&self, link: &Link) -> bool {
        let epoch = self.inner.questions.borrow().epoch();
        match &link.kind {
            Kind::Local(_, inside) => inside.is_waited_for_in(epoch),
            Kind::Shared(attachment) => attachment.is_waited_for_in(epoch),
            Kind::Lane(_) => true,
        }
    }

    /// Begins anew for another session.
    pub(crate) fn start_links_over(&self, session: u64) {
        let links = &self.inner.links;
        let former = links.book.replace(book_of(session));
        let former = former.borrow_mut().close();
        former.iter().for_each(|link| link.forgotten.set(true));
    }

    /// This store's master is in this epoch, and knows all pins of this store.
    pub(crate) fn obey(&self, epoch: Epoch) {
        let is_higher = self.inner.questions.borrow_mut().obey(epoch);
        if is_higher {
            self.inner.links.least_epoch.raise(epoch.number);
        }
        let over = self.inner.links.book.borrow().borrow_mut().part_with_over(|link| link.is_over());
        over.iter().for_each(|link| link.forgotten.set(true));
        if !self.inner.pins.borrow().all_listed() {
            return;
        }
        let ready = self.inner.questions.borrow_mut().ready(epoch);
        ready.into_iter().for_each(EpochQuestion::confirm);
    }

    fn take_epoch_asked(&self, question: EpochQuestion) {
        let is_new = self.inner.questions.borrow_mut().ask(question);
        if is_new {
            self.ping();
        }
    }

    // ------------------------------------------------------------------ bytes

    /// Writes over a link.
    pub(crate) async fn write(&self, link: &Link, piece: Piece<'_>) -> Result<(), Unwritten> {
        let (settled, stop) = (|| Unwritten::failed(true), self.interrupt_at());
        let Piece { rid, offset, words, pace } = piece;
        let len = words.len() as u64 * mooncake_ids::GRANULE;
        if link.is_refused() || self.inner.links.least_epoch.check(rid).is_err() {
            return Err(settled());
        }
        match &link.kind {
            Kind::Local(served, _) => {
                let _admitted = served.admit(rid, offset, len, None).map_err(|_| settled())?;
                self.fill(&served.memory, piece).await.map_err(|()| settled())
            }
            Kind::Shared(attachment) => {
                if !attachment.may_write(stop).await {
                    return Err(Unwritten { settled: true, interrupted: self.is_interrupted() });
                }
                let _admitted = attachment.admit(rid, offset, len).map_err(|_| settled())?;
                self.fill(&attachment.memory, piece).await.map_err(|()| settled())
            }
            Kind::Lane(address) => {
                let extent = lane::Extent { rid, offset, words };
                lane::write(&self.inner.world, self.open_lane(address), extent, pace, stop).await
            }
        }
    }

    async fn fill(&self, memory: &Memory, Piece { rid, offset, words, pace }: Piece<'_>) -> Result<(), ()> {
        let world = &self.inner.world;
        world.sleep_micros(world.below(50)).await;
        memory.stamp(rid, offset, words.len() as u64 * mooncake_ids::GRANULE).map_err(|_| ())?;
        for (granule, word) in (offset / mooncake_ids::GRANULE..).zip(words) {
            world.sleep_micros(world.below(pace)).await;
            memory.write(rid, granule, *word);
        }
        Ok(())
    }

    /// Reads over a link.
    pub(crate) async fn read(&self, link: &Link, rid: Rid, offset: u64, len: u64) -> Result<Vec<u64>, Unread> {
        if link.is_refused() {
            return Err(Unread::Lost);
        }
        let memory = match &link.kind {
            Kind::Local(served, _) => &served.memory,
            Kind::Shared(attachment) => &attachment.memory,
            Kind::Lane(address) => {
                let stop = self.interrupt_at();
                let read = lane::read(&self.inner.world, self.open_lane(address), rid, offset, len, stop).await;
                let unread = |()| if self.is_interrupted() { Unread::Interrupted } else { Unread::Lost };
                return read.map_err(unread)?.ok_or(Unread::Stale);
            }
        };
        let mut words = Vec::new();
        for granule in Memory::granules(offset, len) {
            self.inner.world.sleep_micros(self.inner.world.below(200)).await;
            words.push(memory.read(granule));
        }
        if memory.is_stamped(rid, offset, len) { Ok(words) } else { Err(Unread::Stale) }
    }

    fn open_lane(&self, address: &Address) -> Option<Lane> {
        let server = self.inner.network.servers.of(address.process, &address.uuid)?;
        server.open_lane(address.uuid, BETWEEN_HOSTS_MICROS)
    }
}

impl Links {
    fn attached(&self) -> Vec<Rc<Attachment>> {
        let mut attachments = self.attachments.borrow_mut();
        attachments.retain(|attachment| attachment.strong_count() > 0);
        attachments.iter().filter_map(Weak::upgrade).collect()
    }

    /// Breaks the connections under all that is mapped; whether there is any.
    pub fn cut_attachments(&self) -> bool {
        let attached = self.attached();
        attached.iter().for_each(|attachment| attachment.cut());
        !attached.is_empty()
    }

    /// No link is to be had any more. Existing ones end; views over them last as long as they do.
    pub fn close(&self) {
        let links = self.book.borrow().borrow_mut().close();
        links.iter().for_each(|link| link.forgotten.set(true));
    }

    pub fn are_closed(&self) -> bool {
        self.book.borrow().borrow().is_closed()
    }

    /// The segments of other processes that are mapped in this session, as their owners know.
    pub fn mapped(&self) -> Vec<SegmentUuid> {
        let session = self.session();
        self.attached()
            .iter()
            .filter(|it| it.session == session && it.is_introduced())
            .map(|it| it.memory.uuid())
            .collect()
    }

    /// What is mapped of owners that are gone, or have taken it out.
    pub fn remains(&self) -> Vec<SegmentUuid> {
        self.attached().iter().filter(|it| it.is_over()).map(|it| it.memory.uuid()).collect()
    }

    fn session(&self) -> u64 {
        self.book.borrow().borrow().session()
    }

    /// The store is in its first session.
    pub fn begin(&self, session: u64, epoch: u16) {
        self.book.replace(book_of(session));
        self.least_epoch.raise(epoch);
    }
}

impl Link {
    fn is_over(&self) -> bool {
        self.forgotten.get()
            || match &self.kind {
                Kind::Local(served, _) => served.is_removed(),
                Kind::Shared(attachment) => attachment.is_over(),
                Kind::Lane(_) => false,
            }
    }

    fn is_refused(&self) -> bool {
        self.forgotten.get() || matches!(&self.kind, Kind::Local(served, _) if served.is_removed())
    }

    /// Whether nothing is mapped over it.
    pub fn is_lane(&self) -> bool {
        matches!(self.kind, Kind::Lane(_))
    }

    /// A view of a pinned placement's bytes, which the caller sums up.
    pub async fn view(&self, store: &Store, rid: Rid, offset: u64, len: u64) -> Result<(View, Vec<u64>), Unread> {
        if self.is_refused() {
            return Err(Unread::Lost);
        }
        let (memory, hold) = match &self.kind {
            Kind::Local(served, inside) => (&served.memory, Hold::Inside(inside.clone())),
            Kind::Shared(attachment) => {
                // On the list before the look at the bytes, off it again if they are wrong.
                attachment.view_made(offset, len);
                (&attachment.memory, Hold::Attached { attachment: attachment.clone(), offset, len })
            }
            Kind::Lane(_) => return Err(Unread::Lost),
        };
        let mut view = View { bytes: None, hold };
        let mut words = Vec::new();
        for granule in Memory::granules(offset, len) {
            store.inner.world.sleep_micros(store.inner.world.below(100)).await;
            words.push(memory.read(granule));
        }
        if !memory.is_stamped(rid, offset, len) {
            return Err(Unread::Stale);
        }
        view.bytes = Some(memory.view(offset, len));
        Ok((view, words))
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.bytes = None;
        if let Hold::Attached { attachment, offset, len } = &self.hold {
            attachment.view_ended(*offset, *len);
        }
    }
}

impl EpochQuestion {
    fn is_asked_where(&self, other: &EpochQuestion) -> bool {
        match (&self.place, &other.place) {
            (Place::Attached(one), Place::Attached(other)) => Weak::ptr_eq(one, other),
            (Place::Inside(one), Place::Inside(other)) => Weak::ptr_eq(one, other),
            _ => false,
        }
    }

    fn confirm(self) {
        match &self.place {
            Place::Attached(attachment) => attachment.upgrade().inspect(|it| it.confirm(self.epoch)).map(drop),
            Place::Inside(inside) => inside.upgrade().inspect(|it| it.confirm(self.epoch)).map(drop),
        };
    }
}

impl Question for EpochQuestion {
    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn is_moot(&self) -> bool {
        match &self.place {
            Place::Attached(attachment) => attachment.strong_count() == 0,
            Place::Inside(inside) => inside.strong_count() == 0,
        }
    }

    fn repeats(&self, other: &Self) -> bool {
        self.is_asked_where(other) && self.epoch == other.epoch
    }

    fn supersedes(&self, other: &Self) -> bool {
        self.is_asked_where(other) && self.epoch.number > other.epoch.number
    }
}

/// The store that an attachment speaks to.
#[derive(Clone)]
struct Asked(Weak<crate::store::Inner>);

impl Watcher for Asked {
    fn asked(&self, attachment: &Rc<Attachment>, epoch: Epoch) {
        if let Some(inner) = self.0.upgrade() {
            let place = Place::Attached(Rc::downgrade(attachment));
            Store { inner }.take_epoch_asked(EpochQuestion { place, epoch });
        }
    }

    fn owner_gone(&self, uuid: SegmentUuid) {
        if let Some(inner) = self.0.upgrade() {
            Store { inner }.tell(anchor_up::Body::PeerGone(PeerGone { uuid: uuid.0.to_vec().into(), process: None }));
        }
    }
}

/// No questions, and no epoch known yet.
pub(crate) fn no_questions() -> RefCell<Questions<EpochQuestion>> {
    RefCell::new(Questions::new(Epoch::default()))
}
