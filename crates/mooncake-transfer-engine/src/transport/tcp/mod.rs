//! TCP, the transport of last resort: it leads to every engine, and carries memory of every kind.

pub(crate) mod abandoned;
pub(crate) mod connection;
pub(crate) mod stripe_threads;

use std::sync::Arc;
use std::time::Instant;

use super::pool::Pool;
use super::stall::Patience;
use super::tcp::connection::TcpConnection;
use super::tcp::stripe_threads::StripeThreads;
use crate::error::EngineError;
use crate::memory::buffers::{Buffer, MemoryObserver};
use crate::protocol::descriptor::{BufferDescriptor, Descriptor};
use crate::protocol::peer_name;
use crate::request::Request;
use crate::transport::context::Context;
use crate::transport::{Path, PathError, PathStatus, PeerInfo, Reached, Transport};

/// Requests of so many bytes and more are spread over several connections, if there may be several.
const WORTH_STRIPING: u64 = 16 << 20;

/// Mooncake's data protocol over TCP.
pub(crate) struct Tcp {
    /// Where this engine takes data.
    port: u16,
    stripe_threads: Arc<StripeThreads>,
}

impl Tcp {
    pub fn new(port: u16) -> Tcp {
        Tcp { port, stripe_threads: Arc::default() }
    }
}

/// The kernel copies to and from memory that was never registered.
impl MemoryObserver for Tcp {}

impl Transport for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn describe(&self, lent: &[Arc<Buffer>], document: &mut Descriptor) {
        document.protocol.add("tcp");
        document.tcp_data_port = self.port;
        document.tcp_proto_version = 2;
        let name = document.name.clone();
        document.buffers.extend(lent.iter().map(|buffer| BufferDescriptor {
            name: name.clone(),
            addr: buffer.range.addr() as u64,
            length: buffer.range.len() as u64,
        }));
    }

    fn path_to(&self, context: &Context, peer: &PeerInfo<'_>, patience: &Patience<'_>) -> Result<Reached, EngineError> {
        let Some((host, port)) = peer.descriptor.data_at(peer.host) else {
            return Ok(Reached::Unreachable(format!("it offers {:?} and no TCP data port", peer.descriptor.protocol)));
        };
        let addresses = peer_name::resolve(host, port, &context.errands, patience)?;
        let striping = context.options.stripes();
        let lanes = Pool::new(striping.max(64), connection::Address::new(peer.name, addresses, peer.descriptor));
        Ok(Reached::Path(Box::new(TcpPath { lanes, striping, stripe_threads: self.stripe_threads.clone() })))
    }
}

struct TcpPath {
    lanes: Pool<TcpConnection>,
    striping: usize,
    stripe_threads: Arc<StripeThreads>,
}

impl Path for TcpPath {
    fn transfer(&self, context: &Context, requests: &[Request], patience: &Patience<'_>) -> Result<(), PathError> {
        let bytes: u64 = requests.iter().map(|request| request.local.len() as u64).sum();
        if self.striping > 1 && bytes >= WORTH_STRIPING {
            let threads = self.stripe_threads.take(self.striping - 1);
            if threads.count() > 0 {
                return Ok(self.stripe(context, requests, threads.count() + 1, patience)?);
            }
        }
        Ok(self.lanes.with(context, patience, |lane| lane.transfer(context, requests, patience))?)
    }

    fn retire_abandoned(&self, context: &Context, patience: &Patience<'_>) -> Result<(), EngineError> {
        match self.lanes.address().given_up().is_empty() {
            true => Ok(()),
            // A lane names them to the peer before it does anything else.
            false => self.lanes.with(context, patience, |lane| lane.transfer(context, &[], patience)),
        }
    }

    fn close_idle(&self, now: Instant) {
        self.lanes.close_idle(now);
    }

    fn status(&self) -> PathStatus {
        PathStatus::Up(String::new())
    }
}

impl TcpPath {
    /// Spreads requests over so many connections, each but the first with a thread of its own.
    fn stripe(
        &self,
        context: &Context,
        requests: &[Request],
        paths: usize,
        patience: &Patience<'_>,
    ) -> Result<(), EngineError> {
        let bytes: u64 = requests.iter().map(|request| request.local.len() as u64).sum();
        let share = bytes.div_ceil(paths as u64).next_multiple_of(1 << 20);
        let mut strands: Vec<Vec<Request>> = vec![Vec::new()];
        let mut room = share;
        for request in requests {
            let (mut at, len) = (0, request.local.len() as u64);
            while at < len {
                if room == 0 {
                    strands.push(Vec::new());
                    room = share;
                }
                let step = room.min(len - at);
                let local = request.local.part(at as usize, step as usize);
                let strand = strands.last_mut().expect("one at least");
                strand.push(Request { local, remote: request.remote + at, ..*request });
                at += step;
                room -= step;
            }
        }
        let run =
            |strand: &[Request]| self.lanes.with(context, patience, |lane| lane.transfer(context, strand, patience));
        let (first, others) = strands.split_first().expect("one at least");
        std::thread::scope(|scope| {
            let mut result = Ok(());
            let mut started = Vec::new();
            for strand in others {
                let builder = std::thread::Builder::new().name("mooncake-stripe".into());
                match builder.spawn_scoped(scope, || run(strand)) {
                    Ok(thread) => started.push(thread),
                    // One thread does it, too.
                    Err(_) => result = result.and_then(|()| run(strand)),
                }
            }
            result = result.and_then(|()| run(first));
            for other in started {
                let ended =
                    other.join().unwrap_or_else(|_| Err(EngineError::Memory("a stripe's thread panicked".into())));
                result = result.and(ended);
            }
            result
        })
    }
}
