//! A segment of another process, mapped here: the product's peer of its owner, behind a connection of this world.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use mooncake_ids::{Rid, SegmentUuid};
use mooncake_memory::CopyError;
use mooncake_segment::Epoch;
use mooncake_segment::machine::{
    DETACHED, Denied, Frame, Gate, Heard, Newcomer, Op, Peer, Remains, WritePermission, Writes,
};

use crate::memory::Memory;
use crate::pipe::{Receiver, Sender};
use crate::server::{FromOwner, Server, ToOwner};
use crate::world::{ProcessId, Slot, World};

/// How long an owner may take to give its memory, or the permission to write there.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// How long messages within a host take.
const WITHIN_HOST_MICROS: u64 = 60;

/// Longest time that the end of an owner takes to become known.
const END_IS_KNOWN_MICROS: u64 = 30_000;

/// Longest time until an owner knows which process it is that has its memory mapped.
const INTRODUCED: Duration = Duration::from_millis(50);

/// One attachment. Dropped when nothing of this process is over it any more.
pub(crate) struct Attachment {
    world: World,
    process: ProcessId,
    pub session: u64,
    introduced_at: Duration,
    /// It was cut before that.
    is_stranger: Cell<bool>,
    pub memory: Memory,
    peer: RefCell<Peer>,
    gate: RefCell<Gate<()>>,
    is_writable: Cell<bool>,
    remains: RefCell<Remains>,
    owner: ProcessId,
    owner_gone: Cell<bool>,
    hung_up: Cell<bool>,
    up: Sender<ToOwner>,
    bell: Slot<()>,
}

/// What an attachment has to say to its store.
pub(crate) trait Watcher: Clone + 'static {
    /// The owner asks to obey an epoch.
    fn asked(&self, attachment: &Rc<Attachment>, epoch: Epoch);
    /// The owner's process has ended.
    fn owner_gone(&self, uuid: SegmentUuid);
}

/// A write that passed the gate.
pub(crate) struct Admitted {
    attachment: Rc<Attachment>,
    id: u64,
}

/// Says that nothing is mapped, unless that came to be.
struct SaysUnmapped<'a>(Option<&'a Sender<ToOwner>>);

impl Drop for SaysUnmapped<'_> {
    fn drop(&mut self) {
        if let Some(up) = self.0 {
            let _ = up.send(ToOwner::Frame(DETACHED));
        }
    }
}

impl Attachment {
    /// Has the owner give its memory, and maps it.
    pub async fn open(
        world: &World,
        process: ProcessId,
        server: &Server,
        (newcomer, mark): (Newcomer, u64),
        watcher: impl Watcher,
    ) -> Option<Rc<Attachment>> {
        let (owner, session) = (server.process(), newcomer.session);
        let (up, mut down) = server.connect(WITHIN_HOST_MICROS)?;
        let mut unmapped = SaysUnmapped(Some(&up));
        up.send(ToOwner::Hello(newcomer, process)).ok()?;
        let Some(Ok(FromOwner::Given(memory, epoch))) = world.until(world.now() + ANSWER_TIMEOUT, down.next()).await
        else {
            return None;
        };
        up.send(ToOwner::Frame(Frame { rid: mark, ..Frame::plain(Op::Introduce, 0) })).ok()?;
        unmapped.0 = None;
        drop(unmapped);
        memory.map(process);
        let attachment = Rc::new(Attachment {
            world: world.clone(),
            process,
            session,
            introduced_at: world.now() + INTRODUCED,
            is_stranger: Cell::new(false),
            memory,
            peer: RefCell::new(Peer::new(epoch)),
            gate: RefCell::new(Gate::new(epoch.number)),
            is_writable: Cell::new(false),
            remains: RefCell::default(),
            owner,
            owner_gone: Cell::new(false),
            hung_up: Cell::new(false),
            up,
            bell: Slot::new(world),
        });
        let (weak, inside, of_end) = (Rc::downgrade(&attachment), world.clone(), watcher.clone());
        let bell = attachment.bell.clone();
        world.spawn(process, async move { listen(&inside, &weak, &mut down, &bell, &watcher).await });
        let (weak, inside) = (Rc::downgrade(&attachment), world.clone());
        world.watch(owner, move || {
            let late = inside.below(END_IS_KNOWN_MICROS);
            let world = inside.clone();
            inside.spawn(process, async move {
                world.sleep_micros(late).await;
                if let Some(attachment) = weak.upgrade()
                    && attachment.owner_ended()
                {
                    of_end.owner_gone(attachment.memory.uuid());
                }
            });
        });
        Some(attachment)
    }

    /// Whether the owner knows whose it is.
    pub fn is_introduced(&self) -> bool {
        !self.is_stranger.get() && self.world.now() >= self.introduced_at
    }

    /// The connection to its owner breaks. Its memory stays mapped.
    pub fn cut(&self) {
        self.is_stranger.set(!self.is_introduced());
        (self.up.cutter())();
        self.hung_up.set(true);
        self.bell.set(());
    }

    /// Whether another one is to be made.
    pub fn is_over(&self) -> bool {
        self.hung_up.get() || self.owner_gone.get()
    }

    pub fn is_waited_for_in(&self, epoch: Epoch) -> bool {
        self.peer.borrow().is_waited_for_in(epoch)
    }

    pub fn confirm(&self, epoch: Epoch) {
        self.peer.borrow_mut().confirm(epoch);
        self.bell.set(());
    }

    // ---------------------------------------------------------------- writers

    /// Waits until this process may write there, or its caller wants to stop. False: it may not.
    pub async fn may_write(&self, stop: Option<Duration>) -> bool {
        let by = stop.unwrap_or(Duration::MAX).min(self.world.now() + ANSWER_TIMEOUT);
        loop {
            if self.is_over() {
                return false;
            }
            let permission = self.peer.borrow().write_permission();
            match permission {
                WritePermission::Granted => break,
                WritePermission::Ask(question) => {
                    if self.up.send(ToOwner::Frame(question)).is_err() {
                        return false;
                    }
                    self.peer.borrow_mut().has_asked();
                }
                WritePermission::Awaited => {}
            }
            if self.world.now() >= by {
                return false;
            }
            self.world.sleep_micros(300).await;
        }
        self.is_writable.set(true);
        true
    }

    pub fn admit(self: &Rc<Self>, rid: Rid, offset: u64, len: u64) -> Result<Admitted, Denied> {
        let id = self.gate.borrow_mut().admit(&self.memory, rid, offset, len, ())?;
        Ok(Admitted { attachment: self.clone(), id })
    }

    // ---------------------------------------------------------------- readers

    pub fn view_made(&self, offset: u64, len: u64) {
        self.remains.borrow_mut().view_made(offset, len);
    }

    pub fn view_ended(&self, offset: u64, len: u64) {
        if self.remains.borrow_mut().view_ended(offset, len) {
            self.give_back();
        }
    }

    // -------------------------------------------------------------- give back

    /// The segment is Gone, and this of it is pinned, says a master in this epoch.
    pub fn forget(&self, pinned: &[(u64, u64)], epoch: Epoch) {
        let pinned = self.is_waited_for_in(epoch).then_some(pinned);
        let has_exited = !self.world.is_alive(self.owner);
        {
            let mut remains = self.remains.borrow_mut();
            remains.forget(pinned);
            if has_exited {
                remains.owner_ended();
                self.owner_gone.set(true);
            }
        }
        self.give_back();
    }

    /// True the first time.
    fn owner_ended(&self) -> bool {
        self.owner_gone.set(true);
        let (first, is_due) = {
            let mut remains = self.remains.borrow_mut();
            let first = remains.owner_ended();
            (first, first && remains.calls_for_give_back())
        };
        if is_due {
            self.give_back();
        }
        first
    }

    fn give_back(&self) {
        // One that was killed does nothing more.
        if !self.remains.borrow_mut().begin() || !self.world.is_alive(self.process) {
            return;
        }
        let is_alone = self.memory.is_alone(&self.world);
        let is_asked_by_another = self.peer.borrow().is_asked_by_another();
        let keep = self.remains.borrow().keep(self.memory.bytes(), is_alone, is_asked_by_another);
        self.memory.give_back(&keep);
    }
}

/// Hears the owner, and answers what has become true.
async fn listen<W: Watcher>(
    world: &World,
    weak: &Weak<Attachment>,
    down: &mut Receiver<FromOwner>,
    bell: &Slot<()>,
    watcher: &W,
) {
    loop {
        let heard = RefCell::new(None);
        let has_hung_up = weak.upgrade().is_none_or(|attachment| attachment.hung_up.get());
        match has_hung_up {
            false => world.race(async { *heard.borrow_mut() = Some(down.next().await) }, bell.get()).await,
            true => bell.get().await,
        }
        let Some(attachment) = weak.upgrade() else { return };
        let own = OwnWrites(&attachment);
        let mut asked = None;
        let mut next = heard.into_inner();
        while let Some(said) = next {
            match said {
                Ok(FromOwner::Frame(frame)) => {
                    if let Heard::AskMaster(epoch) = attachment.peer.borrow_mut().heard(&frame, &own) {
                        asked = Some(asked.map_or(epoch, |asked: Epoch| asked.or_later(epoch)));
                    }
                }
                _ => attachment.hung_up.set(true),
            }
            next = down.try_next().map(Ok);
        }
        if let Some(epoch) = asked {
            watcher.asked(&attachment, epoch);
        }
        let mut answers = Vec::new();
        attachment.peer.borrow_mut().answer(&own, usize::MAX, &mut answers);
        for frame in answers {
            let _ = attachment.up.send(ToOwner::Frame(frame));
        }
    }
}

struct OwnWrites<'a>(&'a Attachment);

impl Writes for OwnWrites<'_> {
    fn fence(&self, rid: Rid, offset: u64, len: u64) -> Result<Vec<u64>, CopyError> {
        let OwnWrites(attachment) = self;
        // Before it may write nothing is under way.
        match attachment.is_writable.get() {
            true => attachment.gate.borrow_mut().fence(&attachment.memory, rid, offset, len),
            false => Ok(Vec::new()),
        }
    }

    fn raise_epoch(&self, epoch: u16) -> Vec<u64> {
        self.0.gate.borrow_mut().raise_epoch(epoch)
    }

    fn retain_active(&self, ids: &mut Vec<u64>) {
        self.0.gate.borrow().retain_active(ids);
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let tell = self.attachment.gate.borrow_mut().ended(self.id);
        if tell {
            self.attachment.bell.set(());
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.memory.unmap(self.process);
        // One that was killed says nothing more.
        if self.world.is_alive(self.process) {
            let _ = self.up.send(ToOwner::Frame(DETACHED));
            self.bell.set(());
        }
    }
}
