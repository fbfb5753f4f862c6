//! The links of a store. They belong to a session; when another one begins,
//! new links are made and the old ones last as long as views over them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use mooncake_transfer::{
    EpochQuestion, Link, LinkError, LinkEvents, LinkOptions, LinkReport, Links, Path, Paths, SegmentAddress,
    ServerError, Uuid, Wait,
};
use mooncake_wire::message::{PeerGone, anchor_up};
use parking_lot::{Mutex, RwLock};

use crate::control::Control;
use crate::options::StoreOptions;

pub(crate) struct LinkSet {
    control: Arc<Control>,
    template: LinkOptions,
    current: RwLock<Arc<Links>>,
    former: Mutex<Vec<Arc<Links>>>,
    questions: Arc<Mutex<Vec<EpochQuestion>>>,
    epoch: AtomicU16,
}

impl LinkSet {
    pub fn new(options: &StoreOptions, mark: u64, control: Arc<Control>) -> Result<Self, ServerError> {
        let mut template = LinkOptions::new(control.session().id);
        template.mark = mark;
        template.data_timeout = options.data_timeout;
        if !options.shared_memory {
            template.paths = Paths::only(Path::Tcp);
        }
        let questions = Arc::default();
        let current = make(&template, &control, &questions)?;
        Ok(Self {
            control,
            template,
            current: RwLock::new(current),
            former: Mutex::default(),
            questions,
            epoch: AtomicU16::new(0),
        })
    }

    pub fn link(&self, address: &SegmentAddress, wait: &Wait<'_>) -> Result<Arc<Link>, LinkError> {
        let links = self.current.read().clone();
        links.link(address, wait)
    }

    /// The link for a placement that was reserved in that session: see [`Links::link_to_write`].
    pub fn link_to_write(
        &self,
        session: u64,
        address: &SegmentAddress,
        wait: &Wait<'_>,
    ) -> Result<Arc<Link>, LinkError> {
        let links = self.current.read().clone();
        links.link_to_write(session, address, wait)
    }

    /// The segment is Gone: see [`Links::forget`].
    pub fn forget(&self, uuid: Uuid, pinned: &[(u64, u64)]) {
        for links in self.all() {
            links.forget(uuid, pinned);
        }
    }

    pub fn report(&self) -> Vec<LinkReport> {
        self.current.read().report()
    }

    /// Begins anew for another session.
    pub fn start_over(&self) -> Result<(), ServerError> {
        let template = LinkOptions { session: self.control.session().id, ..self.template.clone() };
        let links = make(&template, &self.control, &self.questions)?;
        links.drain_epoch(self.epoch.load(Ordering::Acquire));
        let former = std::mem::replace(&mut *self.current.write(), links);
        former.close();
        self.former.lock().push(former);
        Ok(())
    }

    /// The master reigns in this epoch, and knows all pins of this store:
    /// nothing older is written from now on, and owners that asked are told so.
    pub fn obey(&self, epoch: u16) {
        if self.epoch.fetch_max(epoch, Ordering::AcqRel) < epoch {
            for links in self.all() {
                links.drain_epoch(epoch);
            }
        }
        if !self.control.pins.all_listed() {
            return;
        }
        let ready: Vec<EpochQuestion> = {
            let mut questions = self.questions.lock();
            let (ready, rest) = std::mem::take(&mut *questions).into_iter().partition(|asked| asked.epoch() <= epoch);
            *questions = rest;
            ready
        };
        for question in ready {
            question.confirm();
        }
    }

    pub fn close(&self) {
        for links in self.all() {
            links.close();
        }
    }

    fn all(&self) -> Vec<Arc<Links>> {
        let mut all = self.former.lock().clone();
        all.push(self.current.read().clone());
        all
    }
}

impl std::fmt::Debug for LinkSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkSet").field("options", &self.template).finish_non_exhaustive()
    }
}

fn make(
    options: &LinkOptions,
    control: &Arc<Control>,
    questions: &Arc<Mutex<Vec<EpochQuestion>>>,
) -> Result<Arc<Links>, ServerError> {
    let events = Events { control: control.clone(), questions: questions.clone() };
    Ok(Arc::new(Links::new(options.clone(), Box::new(events))?))
}

struct Events {
    control: Arc<Control>,
    questions: Arc<Mutex<Vec<EpochQuestion>>>,
}

impl LinkEvents for Events {
    fn owner_gone(&self, uuid: Uuid) {
        self.control.tell(anchor_up::Body::PeerGone(PeerGone { uuid: uuid.to_vec().into() }));
    }

    fn take_epoch(&self, question: EpochQuestion) {
        self.questions.lock().push(question);
        // The next pong says which epoch the master reigns in.
        self.control.ping();
    }
}
