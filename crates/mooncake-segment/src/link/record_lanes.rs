//! Lanes to tiers, kept for the next read: the peer's end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use mooncake_ids::SegmentUuid;
use mooncake_memory::{Destination, total_of_destinations};
use mooncake_os::{Deadline, ProcessIdentity};
use parking_lot::Mutex;

use super::options::{LinkOptions, SegmentAddress};
use super::tcp_lane::{Lane, Span};
use crate::error::TransferError;
use crate::protocol::frames::{LANE_REUSED, Purpose};
use crate::records::RecordAddress;

/// Lanes to one tier that are kept without work.
const IDLE_MAX: usize = 8;

/// Lanes of one process to the owners of tiers.
#[derive(Debug)]
pub struct RecordLanes {
    options: LinkOptions,
    process: ProcessIdentity,
    idle: Mutex<HashMap<SegmentUuid, Vec<(Lane, Instant)>>>,
    reads: AtomicU64,
}

impl RecordLanes {
    /// None yet.
    pub fn new(options: LinkOptions, process: ProcessIdentity) -> RecordLanes {
        RecordLanes { options, process, idle: Mutex::default(), reads: AtomicU64::new(0) }
    }

    /// Fills the pieces with bytes of a record from one on. The owner proves each of them; with `crc` all of them
    /// together have that checksum, too.
    pub fn read(
        &self,
        tier: &SegmentAddress,
        record: &RecordAddress,
        from: u64,
        pieces: &mut [Destination<'_>],
        crc: Option<u32>,
        deadline: &Deadline<'_>,
    ) -> Result<(), TransferError> {
        let mut lane = match self.take_idle(tier.uuid) {
            Some(lane) => lane,
            None => self.connect(tier, deadline)?,
        };
        let len = total_of_destinations(pieces);
        let span = Span { rid: record.rid, offset: from, len };
        let outcome = lane.read_record(record, span, pieces, crc.is_some(), deadline);
        if outcome.reusable {
            self.keep(tier.uuid, lane);
        }
        match (outcome.result?, crc) {
            (found, Some(expected)) if found != expected => Err(TransferError::Checksum {
                segment: tier.display_name().to_string(),
                rid: record.rid.0,
                expected,
                actual: found,
            }),
            _ => {
                self.reads.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Reads that gave what was asked for.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Ends those that are kept.
    pub fn close(&self) {
        self.idle.lock().clear();
    }

    fn take_idle(&self, uuid: SegmentUuid) -> Option<Lane> {
        let mut idle = self.idle.lock();
        let lanes = idle.get_mut(&uuid)?;
        while let Some((lane, since)) = lanes.pop() {
            if since.elapsed() < LANE_REUSED && lane.is_alive() {
                return Some(lane);
            }
        }
        idle.remove(&uuid);
        None
    }

    fn keep(&self, uuid: SegmentUuid, lane: Lane) {
        let mut idle = self.idle.lock();
        let lanes = idle.entry(uuid).or_default();
        lanes.retain(|(_, since)| since.elapsed() < LANE_REUSED);
        if lanes.len() < IDLE_MAX {
            lanes.push((lane, Instant::now()));
        }
    }

    fn connect(&self, tier: &SegmentAddress, deadline: &Deadline<'_>) -> Result<Lane, TransferError> {
        let hello = tier.hello(Purpose::Lane, self.options.session, &self.process);
        let (segment, timeouts): (Arc<str>, _) =
            (tier.display_name(), (self.options.connect_timeout, self.options.stall_timeout));
        let unreached = |what: String| TransferError::Broken {
            segment: segment.to_string(),
            what: "reach the owner of a tier",
            source: std::io::Error::other(what),
        };
        let mut failed = unreached("its owner gave no TCP address".into());
        for address in &tier.tcp {
            let Ok(address) = address.parse() else {
                failed = unreached(format!("{address:?} is not ip:port or [ip]:port"));
                continue;
            };
            match Lane::open(address, &hello, tier.bytes, &segment, timeouts, deadline) {
                Ok(lane) => return Ok(lane),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}
