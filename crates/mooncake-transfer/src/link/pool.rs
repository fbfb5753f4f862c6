//! The data lanes to one segment, kept and lent one request at a time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::lane::{Lane, Outcome};
use super::options::{LinkOptions, SegmentAddress};
use crate::error::TransferError;
use crate::wait::Wait;
use crate::wire::Hello;

/// Most lanes kept without work; more are opened and closed with the load.
const MAX_IDLE: usize = 16;

#[derive(Debug)]
pub(super) struct LanePool {
    peer: Arc<str>,
    hello: Hello,
    bytes: u64,
    addresses: Vec<SocketAddr>,
    timeouts: (Duration, Duration),
    retry_after: Duration,
    max_lanes: usize,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Lane>,
    lent: usize,
    closed: bool,
    /// The last attempt to connect failed then, because of that.
    failed: Option<(Instant, String)>,
}

impl LanePool {
    pub(super) fn new(address: &SegmentAddress, options: &LinkOptions, hello: Hello) -> Result<LanePool, String> {
        let mut addresses = Vec::new();
        for tcp in &address.tcp {
            // Names would have to be resolved, and that has no deadline.
            addresses.push(tcp.parse().map_err(|_| format!("{tcp:?} is not ip:port or [ip]:port"))?);
        }
        if addresses.is_empty() {
            return Err("its owner gave no TCP address".into());
        }
        Ok(LanePool {
            peer: address.label(),
            hello,
            bytes: address.bytes,
            addresses,
            timeouts: (options.connect_timeout, options.data_timeout),
            retry_after: options.retry_after,
            max_lanes: options.max_lanes.max(1),
            state: Mutex::default(),
            returned: Condvar::new(),
        })
    }

    /// Runs one request on a lane. `settled` of the outcome is true if no lane could be had.
    pub(super) fn with_lane<T>(&self, wait: &Wait<'_>, mut request: impl FnMut(&mut Lane) -> Outcome<T>) -> Outcome<T> {
        let mut lane = match self.check_out(wait) {
            Ok(lane) => lane,
            Err(e) => return Outcome { result: Err(e), reusable: false, settled: true },
        };
        let outcome = request(&mut lane);
        self.check_in(outcome.reusable.then_some(lane));
        outcome
    }

    /// Opens the first lane, so that the path is known to work. To be called before the pool is in use.
    pub(super) fn try_connect(&self, wait: &Wait<'_>) -> Result<SocketAddr, TransferError> {
        let (lane, address) = self.connect(wait)?;
        self.state.lock().idle.push(lane);
        Ok(address)
    }

    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.idle.clear();
        self.returned.notify_all();
    }

    fn check_out(&self, wait: &Wait<'_>) -> Result<Lane, TransferError> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return Err(TransferError::Gone { peer: self.peer.to_string() });
            }
            while let Some(lane) = state.idle.pop() {
                if lane.is_alive() {
                    state.lent += 1;
                    return Ok(lane);
                }
            }
            if state.lent < self.max_lanes {
                break;
            }
            if (wait.interrupted)() {
                return Err(TransferError::Interrupted);
            }
            if wait.is_over() {
                let waited = Duration::ZERO;
                return Err(TransferError::Timeout { peer: self.peer.to_string(), what: "no lane was free", waited });
            }
            self.returned.wait_for(&mut state, wait.slice());
        }
        if let Some((at, why)) = &state.failed
            && at.elapsed() < self.retry_after
        {
            let source = std::io::Error::other(format!("{why} ({:?} ago)", at.elapsed()));
            return Err(TransferError::Broken { peer: self.peer.to_string(), what: "not tried again so soon", source });
        }
        state.lent += 1;
        drop(state);
        let connected = self.connect(wait);
        let mut state = self.state.lock();
        match connected {
            Ok((lane, _)) => {
                state.failed = None;
                Ok(lane)
            }
            Err(e) => {
                state.lent -= 1;
                if !matches!(e, TransferError::Interrupted) && !wait.is_over() {
                    state.failed = Some((Instant::now(), e.to_string()));
                }
                drop(state);
                self.returned.notify_one();
                Err(e)
            }
        }
    }

    fn check_in(&self, lane: Option<Lane>) {
        let mut state = self.state.lock();
        state.lent -= 1;
        if let Some(lane) = lane
            && !state.closed
            && state.idle.len() < MAX_IDLE
        {
            state.idle.push(lane);
        }
        drop(state);
        self.returned.notify_one();
    }

    fn connect(&self, wait: &Wait<'_>) -> Result<(Lane, SocketAddr), TransferError> {
        let mut last = TransferError::Gone { peer: self.peer.to_string() };
        for address in &self.addresses {
            match Lane::open(*address, &self.hello, self.bytes, &self.peer, self.timeouts, wait) {
                Ok(lane) => return Ok((lane, *address)),
                Err(TransferError::Interrupted) => return Err(TransferError::Interrupted),
                Err(e) => last = e,
            }
        }
        Err(last)
    }
}

#[cfg(test)]
mod tests;
