//! RDMA: cards write and read a peer's memory, and no thread of the peer takes part.
//!
//! [`Rdma`] is what an engine has of it: its cards, what they know of its memory, and the ends of lanes that peers have
//! connected. [`path::RdmaPath`] is the initiator's side.

mod connector;
mod keys;
mod passive;
mod path;
mod plan;
mod rail;
mod ring;
mod working_memory;

use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_os::Deadline;
use mooncake_rdma::{Nic, RdmaOptions, Topology};
use mooncake_verbs::{Device, Library, devices};

use crate::error::EngineError;
use crate::memory::active_access::ActiveAccess;
use crate::memory::buffers::{Buffer, MemoryObserver};
use crate::protocol::segment_document::{BufferDescriptor, DeviceDescriptor, SegmentDocument};
use crate::transport::context::Context;
use crate::transport::{Answer, PeerInfo, Reach, Transport};
use passive::PassiveLanes;
use path::RdmaPath;
use working_memory::WorkingMemory;

/// The engine's cards and what it has made on them.
pub(crate) struct Rdma {
    nics: Arc<[Arc<Nic>]>,
    /// Which of them are near which memory.
    topology: Arc<Topology>,
    memory: Arc<WorkingMemory>,
    passive: Arc<PassiveLanes>,
}

impl Rdma {
    /// Opens the devices that the topology names, or all if there is none; else the reason why there is no RDMA, in
    /// words for an operator.
    pub fn open(topology: Option<&Topology>, options: &RdmaOptions) -> Result<Rdma, String> {
        let library = Library::load().map_err(|error| error.to_string())?;
        let all = devices(library).map_err(|error| error.to_string())?;
        if all.is_empty() {
            return Err("this host has no RDMA device (ibv_devices shows none)".into());
        }
        let place = |device: &Device| (device.name().to_owned(), device.path().to_path_buf());
        let discovered = || Topology::of_devices(all.iter().map(place));
        let topology = topology.cloned().unwrap_or_else(discovered);
        let wanted = topology.devices();
        let mut reasons = Vec::new();
        let mut nics = Vec::new();
        for name in &wanted {
            match all.iter().find(|device| device.name() == *name) {
                Some(device) => match Nic::open(device, options) {
                    Ok(nic) => nics.push(nic),
                    Err(error) => reasons.push(error.to_string()),
                },
                None => reasons.push(format!("there is no device {name}")),
            }
        }
        if nics.is_empty() {
            let names: Vec<&str> = all.iter().map(|device| device.name()).collect();
            return Err(match reasons.is_empty() {
                true => format!("none of its devices ({}) is wanted, active and may be opened", names.join(", ")),
                false => reasons.join("; "),
            });
        }
        reasons.iter().for_each(|reason| tracing::warn!(reason, "an RDMA device is not used"));
        let names: Vec<&str> = nics.iter().map(|nic| nic.name()).collect();
        let topology = Arc::new(topology.only(&names));
        let nics: Arc<[Arc<Nic>]> = nics.into();
        let memory = Arc::new(WorkingMemory::new(nics.clone()));
        let passive = Arc::new(PassiveLanes::default());
        for nic in &*nics {
            let (gid, gid_index, mtu) = (nic.gid().address(), nic.gid_index(), nic.mtu().bytes());
            tracing::info!(nic = nic.name(), %gid, gid_index, mtu, "RDMA device");
        }
        Ok(Rdma { nics, topology, memory, passive })
    }
}

impl MemoryObserver for Rdma {
    fn register(&self, buffers: &[Arc<Buffer>]) -> Result<(), EngineError> {
        self.memory.register(buffers);
        Ok(())
    }

    fn unregister(&self, buffers: &[Arc<Buffer>]) -> Vec<Arc<dyn ActiveAccess>> {
        self.memory.unregister(buffers)
    }
}

impl Transport for Rdma {
    fn name(&self) -> &'static str {
        "rdma"
    }

    fn describe(&self, lent: &[Arc<Buffer>], document: &mut SegmentDocument) {
        document.protocol.add("rdma");
        document.devices = self
            .nics
            .iter()
            .map(|nic| DeviceDescriptor { name: nic.name().to_owned(), lid: nic.lid(), gid: nic.gid().to_string() })
            .collect();
        document.priority_matrix = serde_json::to_value(&*self.topology).ok();
        for buffer in lent {
            let Some(known) = self.memory.of(buffer) else {
                if let Some(ours) = &mut document.ours {
                    ours.tcp_only.push((buffer.range.addr() as u64, buffer.range.len() as u64));
                }
                continue;
            };
            document.buffers.extend(known.chunks().map(|(chunk, keys)| BufferDescriptor {
                name: buffer.location.clone(),
                addr: chunk.addr,
                length: chunk.len,
                lkey: vec![0; keys.len()],
                rkey: keys,
            }));
        }
    }

    fn path_to(&self, _context: &Context, peer: &PeerInfo<'_>, _deadline: &Deadline<'_>) -> Result<Reach, EngineError> {
        if !peer.document.protocol.has("rdma") || peer.document.devices.is_empty() {
            return Ok(Reach::Unreachable(format!("it offers {:?} and no RDMA device", peer.document.protocol)));
        }
        Ok(Reach::Path(Box::new(RdmaPath::new(&self.nics, self.topology.clone(), self.memory.clone(), peer))))
    }

    fn sweep(&self, _now: Instant) {
        self.nics.iter().for_each(|nic| nic.take_events());
    }

    fn answers_connections(&self) -> bool {
        true
    }

    fn answer_connection(&self, own_name: &str, asked: Vec<u8>, answer: Answer) {
        passive::answer(&self.passive, &self.nics, own_name, asked, answer);
    }

    fn finish(&self, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        self.passive.close(deadline)
    }
}

/// Longest that a call waits for a card's thread beyond its own deadline.
const CARD_TIME: Duration = Duration::from_secs(5);
