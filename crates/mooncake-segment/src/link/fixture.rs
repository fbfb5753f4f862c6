//! What the tests of this crate's inside have in common.

use std::sync::Arc;

use mooncake_ids::{Rid, SegmentUuid};
use mooncake_memory::{SegmentMemory, SegmentOptions};
use mooncake_os::{ProcessIdentity, boot_id};

use super::{LinkOptions, Path, Paths, SegmentAddress};
use crate::link_events::{EpochQuestion, LinkEvents};
use crate::protocol::frames::{FEATURE_KNOWN_PINS, FEATURE_LOCKS, Hello, LANE_VERSION, Purpose};
use crate::server::{SegmentServer, ServerEvents, ServerOptions};

/// Takes no notice of anything.
pub struct Quiet;

impl LinkEvents for Quiet {
    fn owner_gone(&self, _: SegmentUuid, _: Option<ProcessIdentity>) {}
    fn take_epoch(&self, _: EpochQuestion) {}
}

impl ServerEvents for Quiet {
    fn fenced(&self, _: SegmentUuid, _: Rid) {}
    fn epoch_taken(&self, _: u16, _: SegmentUuid) {}
}

/// An owner of a segment of this size that others can map, and the segment's address.
pub fn owner(
    bytes: u64,
    events: impl ServerEvents + 'static,
) -> (Arc<SegmentServer>, Arc<SegmentMemory>, SegmentAddress) {
    let options = ServerOptions::new([127, 0, 0, 1].into(), 0, 1);
    let server = SegmentServer::start(options, Box::new(events)).unwrap();
    let memory = Arc::new(SegmentMemory::create(bytes, SegmentOptions::default()).unwrap());
    server.add(memory.clone(), 1);
    let address = SegmentAddress {
        uuid: memory.uuid(),
        bytes: memory.bytes(),
        name: "owner".into(),
        boot_id: boot_id().unwrap(),
        unix_socket: server.unix_name().into(),
        tcp: Vec::new(),
        access_key: 1,
        process: None,
        tier_file_blocks: 0,
    };
    (server, memory, address)
}

/// How a peer of that owner begins.
pub fn hello(purpose: Purpose, uuid: SegmentUuid) -> Hello {
    Hello {
        version: LANE_VERSION,
        purpose,
        features: FEATURE_KNOWN_PINS | FEATURE_LOCKS,
        session: 2,
        access_key: 1,
        uuid,
        pid: 0,
        start_time: 0,
    }
}

/// How a peer maps that segment.
pub fn mapping() -> LinkOptions {
    LinkOptions { paths: Paths::only(Path::SharedMemory), ..LinkOptions::new(2) }
}
