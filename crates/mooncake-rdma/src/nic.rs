//! One port of a device, as its user has it open.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use mooncake_os::Deadline;
use mooncake_verbs::{
    CompletionQueue, Connection, Context, Device, Domain, EventKind, Gid, LinkLayer, Mtu, Port, PortState, QueuePair,
    QueuePairOptions, Subject, VerbsError,
};

use crate::gid_choice::{self, Candidate};
use crate::options::RdmaOptions;
use crate::worker::{Worker, WorkerError};

/// A network card (NIC): one port of a device with verbs, and the domain of its user's memory.
pub struct Nic {
    context: Arc<Context>,
    domain: Arc<Domain>,
    port_number: u8,
    port: Port,
    /// Its address for peers.
    address: Candidate,
    options: RdmaOptions,
    /// Calls that hang where a card is dying: one at a time, and none on a thread that serves others.
    worker: Worker,
    is_down: AtomicBool,
    queue_pairs: AtomicU32,
}

/// Why a device is not used.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// A call failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The device has no such port.
    #[error("{device} has {ports} ports, and none of number {port} (MC_IB_PORT)")]
    NoPort {
        /// The device.
        device: String,
        /// How many it has.
        ports: u8,
        /// Which was asked for.
        port: u8,
    },
    /// Nothing is plugged in, or the other side is off.
    #[error("port {port} of {device} is down (state {state})")]
    Down {
        /// The device.
        device: String,
        /// Its port.
        port: u8,
        /// The library's number.
        state: i32,
    },
    /// No address that peers can reach.
    #[error("port {port} of {device} has no address of RoCE v2 or InfiniBand: give its network device one")]
    NoAddress {
        /// The device.
        device: String,
        /// Its port.
        port: u8,
    },
    /// The address that was asked for is none.
    #[error("port {port} of {device} has nothing at GID index {index} (MC_GID_INDEX)")]
    NoSuchAddress {
        /// The device.
        device: String,
        /// Its port.
        port: u8,
        /// What was asked for.
        index: u8,
    },
}

impl Nic {
    /// Opens a device's port and makes a domain on it. It may take as long as the firmware does.
    pub fn open(device: &Device, options: &RdmaOptions) -> Result<Arc<Nic>, NicError> {
        let context = Context::open(device)?;
        let (name, number) = (|| device.name().to_owned(), options.port);
        let ports = context.limits().ports;
        if number == 0 || number > ports {
            return Err(NicError::NoPort { device: name(), ports, port: number });
        }
        let port = context.port(number)?;
        if let PortState::Not(state) = port.state {
            return Err(NicError::Down { device: name(), port: number, state });
        }
        let address = match options.gid_index {
            None => {
                let best = gid_choice::candidates(&context, number, &port)?.into_iter().next();
                best.ok_or_else(|| NicError::NoAddress { device: name(), port: number })?
            }
            Some(index) => {
                let gid = context.gid(number, index.into())?;
                if gid.is_zero() {
                    return Err(NicError::NoSuchAddress { device: name(), port: number, index });
                }
                Candidate { index, gid, is_routed: true, netdev: None }
            }
        };
        Ok(Arc::new(Nic {
            domain: Domain::new(&context)?,
            context,
            port_number: number,
            port,
            address,
            options: options.clone(),
            worker: Worker::start().map_err(|error| VerbsError::Refused {
                verb: "start a thread",
                device: name(),
                errno: error.raw_os_error().unwrap_or(11),
            })?,
            is_down: AtomicBool::new(false),
            queue_pairs: AtomicU32::new(0),
        }))
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        self.context.device().name()
    }

    /// Its address for peers.
    pub fn gid(&self) -> Gid {
        self.address.gid
    }

    /// The place of that address in the port's table.
    pub fn gid_index(&self) -> u8 {
        self.address.index
    }

    /// Its address in a subnet of InfiniBand.
    pub fn lid(&self) -> u16 {
        self.port.lid
    }

    /// What it is plugged into.
    pub fn link_layer(&self) -> LinkLayer {
        self.port.link_layer
    }

    /// The largest packet of its connections: the link's, unless less is asked for.
    pub fn mtu(&self) -> Mtu {
        self.port.mtu.min(self.options.mtu)
    }

    /// READs under way of one queue pair that it asks for and answers.
    pub fn reads(&self) -> u8 {
        self.context.limits().reads.clamp(1, 16)
    }

    /// Which memory its queue pairs reach.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// The device in use.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// How it was opened.
    pub fn options(&self) -> &RdmaOptions {
        &self.options
    }

    /// Queue pairs that it has now.
    pub fn queue_pairs(&self) -> u32 {
        self.queue_pairs.load(Ordering::Relaxed)
    }

    /// Nothing can be sent by it at this moment, as far as it has told.
    pub fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    /// Takes what the device has told since the last look. Each event is acknowledged before it is acted upon, and only
    /// sets a flag.
    pub fn take_events(&self) {
        while let Ok(Some(event)) = self.context.next_event() {
            let is_own_port = event.subject == Subject::Port(self.port_number);
            match event.kind {
                EventKind::PortActive if is_own_port => self.is_down.store(false, Ordering::Relaxed),
                EventKind::PortDown if is_own_port => self.is_down.store(true, Ordering::Relaxed),
                EventKind::DeviceFatal => self.is_down.store(true, Ordering::Relaxed),
                _ => {}
            }
            tracing::debug!(nic = self.name(), ?event, "a device told");
        }
    }

    /// Makes a call that may hang where the card is dying, on the card's own thread, and waits for it until then.
    pub fn run<T: Send + 'static>(
        &self,
        deadline: &Deadline<'_>,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkerError> {
        self.worker.run(deadline, call)
    }

    /// The same for a job that nobody waits for.
    pub fn give(&self, job: impl FnOnce() + Send + 'static) -> Result<(), WorkerError> {
        self.worker.give(Box::new(job))
    }

    /// A queue pair with its completions in a queue of this card.
    pub(crate) fn queue_pair(self: &Arc<Nic>, queue: &Arc<CompletionQueue>) -> Result<CountedQueuePair, VerbsError> {
        let send_depth = self.options.send_depth.min(self.context.limits().send_depth).max(4);
        let options = QueuePairOptions { send_depth, pieces: 1, inline_bytes: 0 };
        let inner = QueuePair::new(&self.domain, queue, options)?;
        self.queue_pairs.fetch_add(1, Ordering::Relaxed);
        Ok(CountedQueuePair { inner: Some(inner), nic: self.clone(), depth: send_depth })
    }

    /// How one of its queue pairs is connected to a peer's.
    pub(crate) fn connection(&self, peer: &PeerEnd, own_psn: u32) -> Connection {
        let traffic = (self.options.traffic_class.unwrap_or(0), self.options.service_level.unwrap_or(0));
        Connection {
            port: self.port_number,
            gid_index: self.gid_index(),
            partition: self.options.partition,
            peer_gid: peer.gid,
            peer_lid: peer.lid,
            peer_queue_pair: peer.queue_pair,
            mtu: peer.mtu.map_or(self.mtu(), |theirs| theirs.min(self.mtu())),
            first_packets: (own_psn, peer.psn),
            reads: peer.reads.map_or((self.reads(), self.reads()), |theirs| {
                let both = theirs.min(self.reads()).max(1);
                (both, both)
            }),
            traffic,
            timeout: 14,
            // Soft-RoCE takes 7 for "for ever": a peer that is gone would never be told.
            retries: 6,
        }
    }
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nic {} {}", self.name(), self.gid().address())
    }
}

/// A peer's end of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerEnd {
    /// Its address.
    pub gid: Gid,
    /// Its address in a subnet of InfiniBand.
    pub lid: u16,
    /// The number of its queue pair.
    pub queue_pair: u32,
    /// The number of the first packet that it sends.
    pub psn: u32,
    /// The largest packet that it takes, if it says so; else both sides must have the same by their settings.
    pub mtu: Option<Mtu>,
    /// READs under way that it can have, if it says so.
    pub reads: Option<u8>,
}

/// A queue pair that counts among its card's until it is destroyed.
pub(crate) struct CountedQueuePair {
    inner: Option<QueuePair>,
    nic: Arc<Nic>,
    depth: u32,
}

impl CountedQueuePair {
    /// Requests that may be under way.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Destroys it; what could not be destroyed comes back.
    pub fn destroy(mut self) -> Result<(), (CountedQueuePair, VerbsError)> {
        let Some(inner) = self.inner.take() else { return Ok(()) };
        match inner.destroy() {
            Ok(()) => Ok(()),
            Err((inner, error)) => {
                self.inner = Some(inner);
                Err((self, error))
            }
        }
    }
}

impl std::ops::Deref for CountedQueuePair {
    type Target = QueuePair;

    fn deref(&self) -> &QueuePair {
        self.inner.as_ref().expect("there until it is destroyed")
    }
}

impl Drop for CountedQueuePair {
    fn drop(&mut self) {
        drop(self.inner.take());
        self.nic.queue_pairs.fetch_sub(1, Ordering::Relaxed);
    }
}
