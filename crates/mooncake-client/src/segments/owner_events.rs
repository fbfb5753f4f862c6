//! What the anchor is told of an owner's proofs: at once where the owner has them, and by its server when it gets them.

use std::sync::{Arc, OnceLock};

use mooncake_ids::{Rid, SegmentUuid};
use mooncake_segment::{ProcessGone, ServerEvents};
use mooncake_wire::message::{EpochTaken, FenceDone, anchor_up};

use crate::session::control::Control;

/// Hands what the server proves to the anchor.
pub(crate) struct OwnerEvents {
    control: OnceLock<Arc<Control>>,
}

impl OwnerEvents {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { control: OnceLock::new() })
    }

    /// The server starts before there is a session to report to.
    pub fn report_to(&self, control: Arc<Control>) {
        let _ = self.control.set(control);
    }
}

/// What a server is started with.
pub(crate) struct Reporter(pub Arc<OwnerEvents>);

impl ServerEvents for Reporter {
    fn fenced(&self, uuid: SegmentUuid, rid: Rid) {
        if let Some(control) = self.0.control.get() {
            tell_fenced(control, uuid, rid);
        }
    }

    fn epoch_taken(&self, epoch: u16, uuid: SegmentUuid) {
        if let Some(control) = self.0.control.get() {
            tell_epoch_taken(control, epoch, &[uuid]);
        }
    }

    fn process_gone(&self, gone: ProcessGone) {
        if let Some(control) = self.0.control.get() {
            control.deaths.lock().note(gone);
            control.waker.wake();
        }
    }
}

/// The writer of this placement is shut out for good.
pub(crate) fn tell_fenced(control: &Control, uuid: SegmentUuid, rid: Rid) {
    control.tell(anchor_up::Body::FenceDone(FenceDone { uuid: uuid.0.to_vec().into(), rids: vec![rid.0] }));
}

/// These segments have taken an epoch.
pub(crate) fn tell_epoch_taken(control: &Control, epoch: u16, segments: &[SegmentUuid]) {
    // In writing first: the next owner of memory that outlives this one is to know (docs/safety.md, rule 26).
    let is_noted = |uuid: &&SegmentUuid| {
        let noted = control.kept.get().map_or(Ok(()), |kept| kept.note_taken(**uuid, epoch));
        noted.inspect_err(|error| tracing::error!(%uuid, epoch, %error, "an epoch that is taken is not told")).is_ok()
    };
    let segments = segments.iter().filter(is_noted).map(|uuid| uuid.0.to_vec().into()).collect();
    control.tell(anchor_up::Body::EpochTaken(EpochTaken { epoch: u32::from(epoch), segments }));
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use mooncake_memory::{SegmentMemory, SegmentOptions, Source};
    use mooncake_os::Deadline;
    use mooncake_os::ProcessIdentity;
    use mooncake_segment::{Epoch, Fence, SegmentServer, ServerOptions};

    use super::*;
    use crate::discovery::listen_address::Advertised;
    use crate::machine::anchor_context::AnchorContext;
    use crate::segments::links::{LinkSet, address_of};
    use crate::segments::owner::{Ownership, SegmentOwner};

    const A2: Epoch = Epoch { number: 2, id: 7 };
    const RID: Rid = Rid::new(1, 1);

    /// An owner with a segment that nothing maps and one that a store has written to. What the owner says by itself
    /// goes to one anchor and what its server reports to another, so that a test sees who said it.
    struct Host {
        owner: Arc<SegmentOwner>,
        says: Arc<Control>,
        reports: Arc<Control>,
        free: SegmentUuid,
        mapped: SegmentUuid,
        links: LinkSet,
    }

    impl Host {
        fn new() -> Self {
            let (says, reports) = (Control::alone(), Control::alone());
            let events = OwnerEvents::new();
            events.report_to(reports.clone());
            let options = ServerOptions::new([127, 0, 0, 1].into(), 0, 1);
            let server = SegmentServer::start(options, Box::new(Reporter(events))).unwrap();
            let ownership = Ownership {
                server: server.clone(),
                huge_pages: false,
                name: "owner".into(),
                advertised: Advertised::Addresses(Vec::new()),
                process: ProcessIdentity::current().unwrap(),
                kept: None,
            };
            let owner = SegmentOwner::prepare(says.clone(), ownership).unwrap();
            let memories: Vec<_> = (0..2)
                .map(|_| Arc::new(SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap()))
                .inspect(|memory| server.add(memory.clone(), 1))
                .collect();
            let links = LinkSet::over_shared_memory(Control::alone());
            let memory = &memories[1];
            let address = address_of(&server, memory);
            let deadline = Deadline::at(Instant::now() + Duration::from_secs(5));
            links.link(&address, &deadline).unwrap().write(RID, 0, &[Source::new(b"new")], &deadline).unwrap();
            Host { owner, says, reports, free: memories[0].uuid(), mapped: memory.uuid(), links }
        }

        fn fence(&self, uuid: SegmentUuid) {
            let fence = Fence { uuid, rid: RID, offset: 0, len: 1024, writer: 7, writer_done: false };
            self.owner.fence(fence);
        }
    }

    impl Drop for Host {
        fn drop(&mut self) {
            self.owner.close();
        }
    }

    fn take(context: &mut AnchorContext<'_>) -> Vec<anchor_up::Body> {
        std::mem::take(context.up).into_iter().filter_map(|message| message.body).collect()
    }

    /// What waits for this anchor by now.
    fn now(control: &Control) -> Vec<anchor_up::Body> {
        control.decide(take)
    }

    /// What waits for this anchor as soon as there is something.
    fn soon(control: &Control) -> Vec<anchor_up::Body> {
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            let said = now(control);
            if !said.is_empty() || Instant::now() > until {
                return said;
            }
            std::thread::yield_now();
        }
    }

    fn fence_done(uuid: SegmentUuid) -> Vec<anchor_up::Body> {
        vec![anchor_up::Body::FenceDone(FenceDone { uuid: uuid.0.to_vec().into(), rids: vec![RID.0] })]
    }

    fn epoch_taken(uuid: SegmentUuid) -> Vec<anchor_up::Body> {
        vec![anchor_up::Body::EpochTaken(EpochTaken { epoch: 2, segments: vec![uuid.0.to_vec().into()] })]
    }

    #[test]
    fn a_fence_is_answered_at_once_where_it_is_proven_and_else_when_the_server_has_the_proof() {
        let host = Host::new();
        host.fence(host.free);
        assert_eq!(now(&host.says), fence_done(host.free), "nobody could write there");
        host.fence(host.mapped);
        assert_eq!(soon(&host.reports), fence_done(host.mapped), "the writer has answered");
        assert_eq!(now(&host.says), [], "and nobody before it");
    }

    #[test]
    fn an_epoch_is_reported_at_once_of_what_is_done_and_of_the_rest_when_the_server_has_the_proof() {
        let host = Host::new();
        assert!(host.owner.take_epoch(A2));
        assert_eq!(now(&host.says), epoch_taken(host.free), "not of the one that a store maps");
        assert_eq!(now(&host.reports), [], "whose master is in an earlier one");
        let until = Instant::now() + Duration::from_secs(5);
        while !host.links.has_been_asked(A2) {
            assert!(Instant::now() < until, "no question");
            std::thread::yield_now();
        }
        host.links.obey(A2);
        assert_eq!(soon(&host.reports), epoch_taken(host.mapped));
        assert!(!host.owner.take_epoch(Epoch { number: 2, id: 8 }), "another epoch of that number");
        assert_eq!((now(&host.says), now(&host.reports)), (vec![], vec![]));
    }

    #[test]
    fn a_process_that_ended_is_noted_for_the_anchor() {
        let (events, control) = (OwnerEvents::new(), Control::alone());
        let gone = ProcessGone { session: 7, uuid: SegmentUuid([1; 16]), mark: 3 };
        Reporter(events.clone()).process_gone(gone);
        events.report_to(control.clone());
        Reporter(events).process_gone(gone);
        let told = control.deaths.lock().to_tell(control.now(), A2);
        assert_eq!(told.len(), 1, "the first was seen before there was a session to tell of it: {told:?}");
    }
}
