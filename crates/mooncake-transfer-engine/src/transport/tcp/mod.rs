//! TCP, the transport of last resort: it reaches every engine, and carries memory of every kind.

pub(crate) mod abandoned;
pub(crate) mod connection;
mod networks;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use mooncake_net::{LocalNetworks, ONE_ADDRESS_BYTES_MAX, Pool};
use mooncake_os::{Deadline, Permit, Permits, thread};

use super::tcp::connection::Address;
use super::tcp::networks::{Network, Networks};
use crate::error::EngineError;
use crate::memory::buffers::{Buffer, MemoryObserver};
use crate::protocol::peer_name;
use crate::protocol::segment_document::{BufferDescriptor, SegmentDocument};
use crate::request::Request;
use crate::transport::context::Context;
use crate::transport::{Path, PathError, PathStatus, PeerInfo, Reach, Transport, pool_limits};

/// Requests of so many bytes and more are spread over several connections, if there may be several.
const STRIPED_BYTES_MIN: u64 = 16 << 20;

/// Most threads of an engine at a time that large requests have beside their callers' own.
const STRIPE_THREADS_MAX: usize = 16;

/// Connections in use at a time by calls to one peer, or more if a single request may have more.
const IN_USE_MAX: usize = 64;

/// Mooncake's data protocol over TCP.
pub(crate) struct Tcp {
    /// This engine's data port.
    port: u16,
    /// Where it is in each of this host's networks, if peers are told that.
    at: Vec<SocketAddr>,
    /// Threads beside the callers' own, for all callers and all peers together.
    stripe_threads: Arc<Permits>,
}

impl Tcp {
    pub fn new(port: u16, at: Vec<SocketAddr>) -> Tcp {
        Tcp { port, at, stripe_threads: Arc::new(Permits::new(STRIPE_THREADS_MAX)) }
    }
}

/// The kernel copies to and from memory that was never registered.
impl MemoryObserver for Tcp {}

impl Transport for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn describe(&self, lent: &[Arc<Buffer>], document: &mut SegmentDocument) {
        document.tcp_data_port = self.port;
        document.tcp_proto_version = 2;
        if let Some(first) = self.at.first() {
            // For engines that know of one alone.
            document.tcp_data_host = first.ip().to_string();
        }
        if let Some(ours) = &mut document.ours {
            ours.tcp_addresses = self.at.iter().map(SocketAddr::to_string).collect();
        }
        if document.protocol.has("rdma") {
            // A document has one protocol: engines of other makes refuse a list.
            if let Some(ours) = &mut document.ours {
                ours.tcp = true;
            }
            return;
        }
        document.protocol.add("tcp");
        let name = document.name.clone();
        document.buffers.extend(lent.iter().map(|buffer| BufferDescriptor {
            name: name.clone(),
            addr: buffer.range.addr() as u64,
            length: buffer.range.len() as u64,
            rkey: Vec::new(),
            lkey: Vec::new(),
        }));
    }

    fn path_to(&self, context: &Context, peer: &PeerInfo<'_>, deadline: &Deadline<'_>) -> Result<Reach, EngineError> {
        let Some((host, port)) = peer.document.data_at(peer.host) else {
            return Ok(Reach::Unreachable(format!("it offers {:?} and no TCP data port", peer.document.protocol)));
        };
        let striping = context.options.stripes();
        let pool = || Pool::new(pool_limits(striping.max(IN_USE_MAX)));
        let several = peer.document.data_in_networks(peer.name)?;
        let all = if several.len() > 1 {
            let own = &context.options.tcp_addresses;
            let near = if own.is_empty() { LocalNetworks::default() } else { LocalNetworks::now() };
            let address = Address::new(peer.name, several.clone(), peer.document);
            let network = |(nth, at): (usize, &SocketAddr)| {
                let local = near.local_end(own, nth, at.ip());
                Network { address: address.at(*at, local), connections: pool() }
            };
            several.iter().enumerate().map(network).collect()
        } else {
            let addresses = peer_name::resolve(host, port, &context.blocking_pool, deadline)?;
            vec![Network { address: Address::new(peer.name, addresses, peer.document), connections: pool() }]
        };
        let networks = Networks::new(all, context.options.tcp_address_pause);
        let stripe_threads = self.stripe_threads.clone();
        Ok(Reach::Path(Box::new(TcpPath { networks, striping, stripe_threads })))
    }
}

struct TcpPath {
    networks: Networks,
    striping: usize,
    stripe_threads: Arc<Permits>,
}

impl Path for TcpPath {
    fn transfer(&self, context: &Context, requests: &[Request], deadline: &Deadline<'_>) -> Result<(), PathError> {
        let bytes: u64 = requests.iter().map(|request| request.local.len() as u64).sum();
        if self.networks.len() > 1 {
            return Ok(self.transfer_over_networks(context, requests, bytes, deadline)?);
        }
        if self.striping > 1 && bytes >= STRIPED_BYTES_MIN {
            let threads = Permit::up_to(&*self.stripe_threads, self.striping - 1);
            if threads.count() > 0 {
                return Ok(self.transfer_striped(context, requests, threads.count() + 1, deadline)?);
            }
        }
        Ok(self.transfer_by_one(context, requests, deadline)?)
    }

    fn retire_abandoned(&self, context: &Context, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        match self.networks.has_abandoned() {
            false => Ok(()),
            // A connection names them to the peer before it does anything else.
            true => self.transfer_by_one(context, &[], deadline),
        }
    }

    fn close_idle(&self, now: Instant) {
        self.networks.iter().for_each(|network| network.connections.close_idle(now));
    }

    fn status(&self) -> PathStatus {
        PathStatus::Up(match (self.networks.in_use().len(), self.networks.len()) {
            (1, 1) => String::new(),
            (used, all) if used == all => format!("over {all} addresses"),
            (used, all) => format!("over {used} of {all} addresses, the others failed a moment ago"),
        })
    }
}

impl TcpPath {
    /// Carries requests out over one connection.
    fn transfer_by_one(
        &self,
        context: &Context,
        requests: &[Request],
        deadline: &Deadline<'_>,
    ) -> Result<(), EngineError> {
        self.networks.transfer_by_one(context, requests, deadline)
    }

    /// Carries requests out over one of several addresses, or, if they are large, over all of them. Very large ones get
    /// as many connections as if there were one address.
    fn transfer_over_networks(
        &self,
        context: &Context,
        requests: &[Request],
        bytes: u64,
        deadline: &Deadline<'_>,
    ) -> Result<(), EngineError> {
        if bytes <= ONE_ADDRESS_BYTES_MAX {
            return self.transfer_by_one(context, requests, deadline);
        }
        let in_use = self.networks.in_use();
        let each = if bytes >= STRIPED_BYTES_MIN { self.striping.div_ceil(in_use.len()) } else { 1 };
        let threads = Permit::up_to(&*self.stripe_threads, in_use.len() * each - 1);
        let lanes: Vec<usize> = in_use.iter().copied().cycle().take(threads.count() + 1).collect();
        if lanes.len() == 1 {
            return self.transfer_by_one(context, requests, deadline);
        }
        // Reads and writes one after the other: see `TcpConnection::transfer`.
        let mut runs = requests.chunk_by(|one, next| one.opcode == next.opcode);
        runs.try_for_each(|run| self.networks.transfer_spread(context, run, &lanes, deadline))
    }

    /// Spreads requests over so many connections, each but the first with a thread of its own. The stripes are whole
    /// MiB.
    fn transfer_striped(
        &self,
        context: &Context,
        requests: &[Request],
        connections: usize,
        deadline: &Deadline<'_>,
    ) -> Result<(), EngineError> {
        let bytes: u64 = requests.iter().map(|request| request.local.len() as u64).sum();
        let share = bytes.div_ceil(connections as u64).next_multiple_of(1 << 20);
        let mut stripes: Vec<Vec<Request>> = vec![Vec::new()];
        let mut room = share;
        for request in requests {
            let (mut at, len) = (0, request.local.len() as u64);
            while at < len {
                if room == 0 {
                    stripes.push(Vec::new());
                    room = share;
                }
                let step = room.min(len - at);
                let local = request.local.part(at as usize, step as usize);
                let stripe_requests = stripes.last_mut().expect("one at least");
                stripe_requests.push(Request { local, remote: request.remote + at, ..*request });
                at += step;
                room -= step;
            }
        }
        let run = |stripe_requests: &[Request]| self.transfer_by_one(context, stripe_requests, deadline);
        let (first, others) = stripes.split_first().expect("one at least");
        std::thread::scope(|scope| {
            let mut result = Ok(());
            let mut started = Vec::new();
            for stripe_requests in others {
                let builder = std::thread::Builder::new().name("mooncake-stripe".into());
                match thread::start_scoped(scope, builder, || run(stripe_requests)) {
                    Ok(thread) => started.push(thread),
                    // Without a thread of its own a stripe goes out on this one.
                    Err(_) => result = result.and_then(|()| run(stripe_requests)),
                }
            }
            result = result.and_then(|()| run(first));
            for other in started {
                let ended =
                    other.join().unwrap_or_else(|_| Err(EngineError::Panicked("a stripe's thread panicked".into())));
                result = result.and(ended);
            }
            result
        })
    }
}
