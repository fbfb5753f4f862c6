//! A peer: what it says of itself, and the paths to it.

mod helpers;
mod host_lane;
mod lane;
mod mapped;
mod pace;
mod pool;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mooncake_memory::boot_id;
use parking_lot::Mutex;

use crate::descriptor::Descriptor;
use crate::engine::{Home, Request};
use crate::error::EngineError;
pub(crate) use helpers::Helpers;
use host_lane::HostLane;
use lane::Lane;
pub(crate) use mapped::MappedPeers;
pub(crate) use pace::{Patience, SLICE};
use pool::Pool;

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
    host: Mutex<HostPath>,
    striping: usize,
}

/// Whether bytes go by copies within the host.
enum HostPath {
    /// It has not been tried yet.
    Untried,
    Works(Arc<Pool<HostLane>>),
    Not(String),
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
        let tcp = descriptor.data_addresses(&host)?;
        let tcp = Pool::new(home.options.stripes().max(64), lane::Address::new(name, tcp, &descriptor));
        let host = Mutex::new(HostPath::Untried);
        Ok(Arc::new(Route { descriptor, tcp, host, striping: home.options.stripes() }))
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
        if let Some(lanes) = self.host_lanes(home, name, patience) {
            match lanes.with(home, patience, |lane| lane.transfer(home, requests, patience)) {
                Ok(()) => return Ok(()),
                // A device's memory, or a process that may not be read: TCP knows more, and says what is wrong.
                Err(host_lane::Failure::OtherWay(reason)) => {
                    tracing::debug!(peer = name, reason, "by TCP instead of within the host");
                }
                Err(host_lane::Failure::Broken(error)) => return Err(error),
            }
        }
        let bytes: u64 = requests.iter().map(|request| request.local.len() as u64).sum();
        if self.striping > 1 && bytes >= WORTH_STRIPING {
            let helpers = home.helpers.take(self.striping - 1);
            if helpers.count() > 0 {
                return self.stripe(home, requests, helpers.count() + 1, patience);
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

    /// The way within the host, tried once for each life of the peer.
    fn host_lanes(&self, home: &Home, name: &str, patience: &Patience<'_>) -> Option<Arc<Pool<HostLane>>> {
        let mut path = self.host.lock();
        if let HostPath::Untried = &*path {
            let tried = self.try_host(home, patience);
            match &tried {
                Ok(_) => tracing::info!(peer = name, path = "same host", "link"),
                Err(reason) => tracing::info!(peer = name, path = "tcp", reason, "link"),
            }
            *path = tried.map_or_else(HostPath::Not, HostPath::Works);
        }
        match &*path {
            HostPath::Works(lanes) => Some(lanes.clone()),
            _ => None,
        }
    }

    fn try_host(&self, home: &Home, patience: &Patience<'_>) -> Result<Arc<Pool<HostLane>>, String> {
        if !home.options.same_host {
            return Err("turned off here".into());
        }
        let ours = self.descriptor.ours.as_ref().ok_or("the peer is no engine of this kind")?;
        let id = self.descriptor.engine_id().ok_or("the peer has no usable id")?;
        if ours.unix.is_empty() {
            return Err("turned off at the peer".into());
        }
        let boot = boot_id().map_err(|error| error.to_string())?;
        if mooncake_memory::hex(&boot) != ours.boot {
            return Err("another host".into());
        }
        let lanes = Pool::new(64, host_lane::Address::new(&self.descriptor.name, &ours.unix, id, home.mapped.meet()));
        lanes.try_connect(home, patience).map_err(|error| match error {
            host_lane::Failure::OtherWay(reason) => reason,
            host_lane::Failure::Broken(error) => error.to_string(),
        })?;
        Ok(Arc::new(lanes))
    }

    /// How bytes go, and why.
    pub fn path(&self) -> (&'static str, String) {
        match &*self.host.lock() {
            HostPath::Untried => ("untried", String::new()),
            HostPath::Works(lanes) => match lanes.address().mapped_blocks() {
                0 => ("same host", "copies between processes".into()),
                blocks => {
                    ("same host", format!("{blocks} blocks of its memory mapped, copies between processes otherwise"))
                }
            },
            HostPath::Not(reason) => ("tcp", reason.clone()),
        }
    }
}
