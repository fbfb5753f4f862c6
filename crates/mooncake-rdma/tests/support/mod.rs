//! Two ends over one fake, and memory that the test looks at as a stranger would.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_memory::{Destination, ForeignRange, Source, crc_of_sources, fill_destinations, leak_shared};
use mooncake_os::Deadline;
use mooncake_rdma::{Lane, Nic, PeerEnd, RdmaOptions, Work};
use mooncake_verbs::{Access, Library, Operation, Region, Remote, devices};

pub const ALL: Access = Access { local_write: true, remote_read: true, remote_write: true, relaxed_ordering: false };
pub const STALL: Duration = Duration::from_secs(3);

/// One end.
pub struct Side {
    pub nic: Arc<Nic>,
    pub memory: ForeignRange,
    pub region: Region,
}

impl Side {
    pub fn new(nth: usize, bytes: usize) -> Side {
        let all = devices(Library::load().unwrap()).unwrap();
        let nic = Nic::open(&all[nth], &RdmaOptions::default()).unwrap();
        let memory = leak_shared(bytes as u64).unwrap();
        let region = Region::register(nic.domain(), memory, ALL, None).unwrap();
        Side { nic, memory, region }
    }

    pub fn fill(&self, at: usize, bytes: &[u8]) {
        let mut into = [Destination::unregistered(self.memory.part(at, bytes.len()))];
        fill_destinations(&mut into, 0, bytes).unwrap();
    }

    pub fn crc(&self, at: usize, len: usize) -> u32 {
        crc_of_sources(0, &[Source::unregistered(self.memory.part(at, len))], 0, len as u64).unwrap()
    }

    pub fn work(&self, operation: Operation, at: usize, len: usize, peer: &Side, to: usize) -> Work {
        Work { operation, local: self.region.piece(at, len).unwrap(), remote: peer.remote(to) }
    }

    pub fn remote(&self, at: usize) -> Remote {
        Remote { addr: (self.memory.addr() + at) as u64, key: self.region.remote_key() }
    }
}

/// A lane, and the peer's end of it.
pub fn lanes(here: &Side, there: &Side) -> (Lane, Lane) {
    let (own, peer) = (Lane::new(&here.nic).unwrap(), Lane::new(&there.nic).unwrap());
    peer.connect(&ends(&own)).unwrap();
    own.connect(&ends(&peer)).unwrap();
    (own, peer)
}

fn ends(lane: &Lane) -> Vec<PeerEnd> {
    let nic = lane.nic();
    let (gid, lid, mtu, reads) = (nic.gid(), nic.lid(), Some(nic.mtu()), Some(nic.reads()));
    let end = |(queue_pair, psn)| PeerEnd { gid, lid, queue_pair, psn, mtu, reads };
    lane.ends().into_iter().map(end).collect()
}

pub fn within(time: Duration) -> Deadline<'static> {
    Deadline::at(Instant::now() + time)
}

/// Bytes by a seed.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(next).collect()
}
