//! A local card and a peer's, and the lanes between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mooncake_net::Pool;
use mooncake_os::{hex, random_bytes};
use mooncake_rdma::{Nic, RailState};
use parking_lot::Mutex;

use super::connector::{LANES_MAX, PooledLane, Slot, Slots};
use crate::transport::pool_limits;

/// Longest pause of a rail that fails again and again.
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// One rail to one incarnation of a peer.
pub(crate) struct Rail {
    /// The place of the local card among the engine's.
    pub number: usize,
    pub nic: Arc<Nic>,
    /// The place of the peer's card among its own.
    pub peer_number: usize,
    pub peer_nic: String,
    pub lanes: Pool<PooledLane>,
    pub slots: Arc<Slots>,
    /// Lanes with writes that failed: until the peer has destroyed their ends there, bytes may land.
    pub unsettled: Mutex<Vec<Unsettled>>,
    pause: Mutex<Option<Pause>>,
    /// Bytes of calls that are under way.
    in_flight: AtomicU64,
    /// Queue pairs of a lane of the peer's, where that has said so; else 0.
    pub peer_count: AtomicUsize,
    /// Keeps the lanes of this link apart from those of another one between the same two engines.
    pub tag: String,
}

/// A lane with a write that failed.
#[derive(Debug)]
pub(crate) struct Unsettled {
    /// What a peer of ours knows it by.
    pub id: String,
    /// Its number: an engine of another make destroys its end when another lane is connected under it.
    pub slot: Option<Slot>,
}

/// The rail failed, and is left out for a while.
#[derive(Debug, Clone)]
struct Pause {
    until: Instant,
    long: Duration,
    reason: String,
}

impl Rail {
    /// A rail of each local card: to the peer's of the same name, else to the one at its place, else to any.
    pub fn of_all(nics: &[Arc<Nic>], peer: &[String]) -> Vec<Rail> {
        let tag = hex(&random_bytes::<4>().unwrap_or_default());
        let rail = |(number, nic): (usize, &Arc<Nic>)| {
            let same = peer.iter().position(|name| name == nic.name());
            let peer_number = same.unwrap_or(number % peer.len());
            Rail {
                number,
                nic: nic.clone(),
                peer_number,
                peer_nic: peer[peer_number].clone(),
                lanes: Pool::new(pool_limits(LANES_MAX)),
                slots: Arc::default(),
                unsettled: Mutex::default(),
                pause: Mutex::default(),
                in_flight: AtomicU64::new(0),
                peer_count: AtomicUsize::new(0),
                tag: tag.clone(),
            }
        };
        nics.iter().enumerate().map(rail).collect()
    }

    /// What a plan has to know of it, where these cards are near.
    pub fn state(&self, near: &[&str]) -> RailState {
        RailState {
            is_near: near.contains(&self.nic.name()),
            is_healthy: self.paused().is_none() && !self.nic.is_down(),
            in_flight: self.in_flight.load(Ordering::Relaxed),
        }
    }

    /// Why it is left out, if it is.
    pub fn paused(&self) -> Option<String> {
        let pause = self.pause.lock();
        pause.as_ref().filter(|pause| Instant::now() < pause.until).map(|pause| pause.reason.clone())
    }

    /// Leaves it out: for longer each time that it fails without having worked in between. Calls that fail beside each
    /// other fail once.
    pub fn leave_out(&self, peer: &str, reason: &str) {
        self.lanes.close_all_idle();
        let mut pause = self.pause.lock();
        if pause.as_ref().is_some_and(|pause| Instant::now() < pause.until) {
            return;
        }
        let long = pause.as_ref().map_or(self.nic.options().rail_pause, |before| 2 * before.long).min(PAUSE_MAX);
        tracing::warn!(peer, nic = self.nic.name(), peer_nic = self.peer_nic, reason, ?long, "a rail is left out");
        *pause = Some(Pause { until: Instant::now() + long, long, reason: reason.to_owned() });
    }

    /// It has carried a call.
    pub fn worked(&self) {
        *self.pause.lock() = None;
    }

    /// Counts bytes of a call as under way as long as the answer lives.
    pub fn count(&self, bytes: u64) -> InFlight<'_> {
        self.in_flight.fetch_add(bytes, Ordering::Relaxed);
        InFlight { rail: self, bytes }
    }
}

pub(crate) struct InFlight<'a> {
    rail: &'a Rail,
    bytes: u64,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.rail.in_flight.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
