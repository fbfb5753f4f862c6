//! A peer: what it says of itself, and the paths to it.

mod given_up;
mod host_lane;
mod host_path;
mod lane;
mod lingering;
mod mapped;
mod pace;
mod pool;
mod routes;
mod stripe_threads;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::address;
use crate::descriptor::Descriptor;
use crate::engine::{Home, Request};
use crate::error::EngineError;
use host_path::HostPath;
use lane::Lane;
pub(crate) use lingering::Lingering;
pub(crate) use mapped::MappedPeers;
pub(crate) use pace::{Pace, Patience, SLICE};
use pool::Pool;
pub(crate) use routes::Routes;
pub(crate) use stripe_threads::StripeThreads;

/// Requests of so many bytes and more are spread over several connections, if there may be several.
const WORTH_STRIPING: u64 = 16 << 20;

/// A peer that has been opened.
pub(crate) struct Peer {
    pub name: String,
    /// Replaced when the peer turns out to be another one than it was.
    route: Mutex<Arc<Route>>,
    pub traffic: Traffic,
}

/// What has gone to and from a peer.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub bytes: AtomicU64,
    pub requests: AtomicU64,
    pub failed: AtomicU64,
}

/// The way to one life of a peer.
pub(crate) struct Route {
    pub descriptor: Descriptor,
    tcp: Pool<Lane>,
    host: HostPath,
    striping: usize,
}

impl Peer {
    /// Asks the peer for its description.
    pub fn open(home: &Home, name: &str, patience: &Patience<'_>) -> Result<Peer, EngineError> {
        let route = Mutex::new(Route::find(home, name, patience)?);
        Ok(Peer { name: name.to_owned(), route, traffic: Traffic::default() })
    }

    pub fn route(&self) -> Arc<Route> {
        self.route.lock().clone()
    }

    /// Carries requests out, in the caller's thread. All or an error; then some of them may have been carried out.
    pub fn transfer(&self, home: &Home, requests: &[Request], patience: &Patience<'_>) -> Result<(), EngineError> {
        let mut route = self.route();
        let mut result = route.transfer(home, &self.name, requests, patience);
        if let Err(error) = &result
            && error.is_perhaps_stale()
            && !patience.is_over()
        {
            // Restarted under its name, or with other buffers: once more if it says something new.
            match Route::find(home, &self.name, patience) {
                Ok(fresh) if !fresh.is_same_life(&route) => {
                    tracing::info!(peer = self.name, %error, "the peer is another one than before");
                    *self.route.lock() = fresh.clone();
                    route = fresh;
                    result = route.transfer(home, &self.name, requests, patience);
                }
                Ok(_) => {}
                Err(_) => return result,
            }
        }
        let bytes = requests.iter().map(|request| request.local.len() as u64).sum();
        match &result {
            Ok(()) => self.traffic.bytes.fetch_add(bytes, Ordering::Relaxed),
            Err(_) => self.traffic.failed.fetch_add(1, Ordering::Relaxed),
        };
        self.traffic.requests.fetch_add(requests.len() as u64, Ordering::Relaxed);
        result
    }
}

impl Route {
    /// Fetches the description.
    fn find(home: &Home, name: &str, patience: &Patience<'_>) -> Result<Arc<Route>, EngineError> {
        let (mut descriptor, host) = home.look_up(name, patience)?;
        // What is lent there is asked for when it is wanted; of thousands of buffers nothing else is to be kept.
        descriptor.buffers.truncate(1);
        descriptor.buffers.shrink_to_fit();
        let (host, port) = descriptor.data_at(&host)?;
        let tcp = address::resolve(host, port, &home.errands, patience)?;
        let tcp = Pool::new(home.options.stripes().max(64), lane::Address::new(name, tcp, &descriptor));
        let route = Route { descriptor, tcp, host: HostPath::new(), striping: home.options.stripes() };
        let route = Arc::new(route);
        home.routes.keep(&route);
        Ok(route)
    }

    fn is_same_life(&self, other: &Route) -> bool {
        let key = |route: &Route| (route.descriptor.engine_id(), route.descriptor.tcp_data_port);
        key(self) == key(other)
    }

    fn transfer(
        &self,
        home: &Home,
        name: &str,
        requests: &[Request],
        patience: &Patience<'_>,
    ) -> Result<(), EngineError> {
        home.lingering.wait(self.descriptor.engine_id(), name, patience)?;
        if let Some(lanes) = self.host.lanes(home, name, &self.descriptor, patience) {
            if !self.tcp.address().given_up().is_empty() {
                // What went by TCP before must not land after this.
                self.tcp.with(home, patience, |lane| lane.transfer(home, &[], patience))?;
            }
            match lanes.with(home, patience, |lane| lane.transfer(home, requests, patience)) {
                Ok(()) => return Ok(()),
                // A device's memory, or a process that may not be read: TCP knows more, and says what is wrong.
                Err(host_lane::Failure::OtherWay(reason) | host_lane::Failure::NotNow(reason)) => {
                    tracing::debug!(peer = name, reason, "by TCP instead of within the host");
                    // It may be at what was asked for still, where its connection ended.
                    home.lingering.wait(self.descriptor.engine_id(), name, patience)?;
                }
                Err(host_lane::Failure::Broken(error)) => return Err(error),
            }
        }
        let bytes: u64 = requests.iter().map(|request| request.local.len() as u64).sum();
        if self.striping > 1 && bytes >= WORTH_STRIPING {
            let threads = home.stripe_threads.take(self.striping - 1);
            if threads.count() > 0 {
                return self.stripe(home, requests, threads.count() + 1, patience);
            }
        }
        self.tcp.with(home, patience, |lane| lane.transfer(home, requests, patience))
    }

    /// Spreads requests over so many connections, each but the first with a thread of its own.
    fn stripe(
        &self,
        home: &Home,
        requests: &[Request],
        ways: usize,
        patience: &Patience<'_>,
    ) -> Result<(), EngineError> {
        let bytes: u64 = requests.iter().map(|request| request.local.len() as u64).sum();
        let share = bytes.div_ceil(ways as u64).next_multiple_of(1 << 20);
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
        let run = |strand: &[Request]| self.tcp.with(home, patience, |lane| lane.transfer(home, strand, patience));
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

    /// Lets go of connections that nobody needs.
    fn sweep(&self, now: Instant) {
        self.tcp.sweep(now);
        if let Some(lanes) = self.host.known() {
            lanes.sweep(now);
        }
    }

    /// How bytes go, and why.
    pub fn path(&self) -> (&'static str, String) {
        self.host.report()
    }
}
