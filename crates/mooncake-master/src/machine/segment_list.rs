//! All segments as a page needs them: copied a few at a time, so that no call waits while it is written.

use mooncake_core::{Core, SegmentNo, SegmentState};
use mooncake_ids::{SegmentUuid, SessionId};
use mooncake_wire::message;
use prost::Message;

use super::core_driver::CoreDriver;

/// Segments copied while the core is held once.
const AT_ONCE: usize = 256;

/// A segment that is not Gone, as it was a moment ago. Figures are bytes.
pub struct Listed {
    pub name: String,
    pub uuid: SegmentUuid,
    pub session: SessionId,
    pub state: SegmentState,
    pub open: bool,
    pub leaving: bool,
    pub capacity: u64,
    pub populated: u64,
    pub used: u64,
    pub pinned: u64,
    pub quarantined: u64,
    endpoint: Vec<u8>,
}

impl Listed {
    /// How peers reach it.
    pub fn endpoint(&self) -> message::Endpoint {
        message::Endpoint::decode(&self.endpoint[..]).unwrap_or_default()
    }

    pub fn is_live(&self) -> bool {
        self.state == SegmentState::Live
    }
}

/// All of them, by number.
pub fn list<D: CoreDriver>(driver: &D) -> Vec<Listed> {
    let mut all = Vec::new();
    let mut next = Some(SegmentNo(0));
    while let Some(first) = next {
        next = driver.read(|core, _| some(core, first, &mut all));
    }
    all
}

/// Adds some, from one on. The next one is where to go on.
fn some(core: &Core, first: SegmentNo, all: &mut Vec<Listed>) -> Option<SegmentNo> {
    let mut views = core.segments_from(first);
    all.extend(views.by_ref().take(AT_ONCE).map(|view| Listed {
        name: view.name.to_owned(),
        uuid: view.uuid,
        session: view.session,
        state: view.state,
        open: view.open,
        leaving: view.leaving,
        capacity: view.capacity,
        populated: view.populated,
        used: view.used,
        pinned: view.pinned,
        quarantined: view.quarantined,
        endpoint: view.endpoint.to_vec(),
    }));
    views.next().map(|view| view.number)
}
