//! Lanes to tiers, kept for the next read: the peer's end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use mooncake_ids::SegmentUuid;
use mooncake_os::{Deadline, ProcessIdentity};
use parking_lot::Mutex;

use super::options::{LinkOptions, SegmentAddress};
use super::tcp_lane::{Lane, RecordRead};
use crate::error::TransferError;
use crate::protocol::frames::{LANE_REUSED, Purpose};

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

    /// Fills the pieces of one read. The owner proves each byte; with a checksum of the object that is compared, too.
    pub fn read(
        &self,
        tier: &SegmentAddress,
        read: RecordRead<'_, '_>,
        deadline: &Deadline<'_>,
    ) -> Result<(), TransferError> {
        let ended = self.read_all(tier, &mut [read], deadline)?.pop().flatten();
        ended.expect("the first one ends, well or not")
    }

    /// Fills the pieces of several, one behind the other over one lane, whose owner reads ahead; none for those behind
    /// one with which the lane has ended. An error if there is no lane.
    pub fn read_all(
        &self,
        tier: &SegmentAddress,
        reads: &mut [RecordRead<'_, '_>],
        deadline: &Deadline<'_>,
    ) -> Result<Vec<Option<Result<(), TransferError>>>, TransferError> {
        let mut lane = match self.take_idle(tier.uuid) {
            Some(lane) => lane,
            None => self.connect(tier, deadline)?,
        };
        let mut outcomes = lane.read_records(reads, deadline).into_iter();
        let mut reusable = true;
        let ended = reads.iter().map(|read| {
            let outcome = outcomes.next()?;
            reusable &= outcome.reusable;
            Some(outcome.result.and_then(|found| self.came(tier, read, found)))
        });
        let ended = ended.collect();
        if reusable {
            self.keep(tier.uuid, lane);
        }
        Ok(ended)
    }

    fn came(&self, tier: &SegmentAddress, read: &RecordRead<'_, '_>, found: u32) -> Result<(), TransferError> {
        match read.crc {
            Some(expected) if found != expected => Err(TransferError::Checksum {
                segment: tier.display_name().to_string(),
                rid: read.record.rid.0,
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
            match Lane::open(address, &hello, None, &segment, timeouts, deadline) {
                Ok(lane) => return Ok(lane),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::ops::Range;
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use mooncake_ids::Rid;
    use mooncake_memory::{Destination, crc32c};
    use parking_lot::Condvar;

    use super::*;
    use crate::link::fixture::{Quiet, owner};
    use crate::protocol::frames::Status;
    use crate::records::{RecordAddress, RecordError, RecordPart, RecordReads, Records};
    use crate::server::SegmentServer;

    const TIER: SegmentUuid = SegmentUuid([9; 16]);
    const MIB: u64 = 1 << 20;

    /// A tier that has the records of odd counters, and no others; a read of that of counter 5 ends when it is let go.
    #[derive(Debug, Default)]
    struct Odd {
        /// Most reads that were asked for and had not ended.
        ahead: Mutex<usize>,
        let_go: Mutex<bool>,
        changed: Condvar,
    }

    struct OddReads(Arc<Odd>, VecDeque<(RecordAddress, u64, Vec<u8>, Range<usize>)>);

    impl Records for Odd {
        fn reads(self: Arc<Self>) -> Box<dyn RecordReads> {
            Box::new(OddReads(self, VecDeque::new()))
        }

        fn file(&self, _: u64) -> Result<OwnedFd, RecordError> {
            Err(RecordError::Gone)
        }
    }

    fn byte(rid: Rid, at: u64) -> u8 {
        (rid.0 as u8).wrapping_mul(31) ^ (at >> 3) as u8 ^ (at >> 16) as u8
    }

    impl RecordReads for OddReads {
        fn ask(&mut self, record: &RecordAddress, from: u64, bytes: Vec<u8>, into: Range<usize>, _: RecordPart) {
            self.1.push_back((*record, from, bytes, into));
            let mut ahead = self.0.ahead.lock();
            *ahead = self.1.len().max(*ahead);
        }

        fn next(&mut self) -> Option<(Vec<u8>, Result<(), RecordError>)> {
            let (record, from, mut bytes, into) = self.1.pop_front()?;
            if record.rid == rid(5) {
                let mut let_go = self.0.let_go.lock();
                self.0.changed.wait_while_for(&mut let_go, |let_go| !*let_go, Duration::from_secs(20));
            }
            if record.rid.0 / 2 % 2 == 0 {
                return Some((bytes, Err(RecordError::Gone)));
            }
            for (at, byte_) in (from..).zip(&mut bytes[into]) {
                *byte_ = byte(record.rid, at);
            }
            Some((bytes, Ok(())))
        }
    }

    const fn rid(counter: u64) -> Rid {
        Rid::new(1, counter)
    }

    fn tier(records: Arc<Odd>) -> (Arc<SegmentServer>, SegmentAddress, RecordLanes) {
        let (server, _, address) = owner(1 << 20, Quiet);
        server.add_tier(TIER, 1 << 30, 5, records);
        let tcp = vec![server.tcp_addr().to_string()];
        let address =
            SegmentAddress { uuid: TIER, bytes: 1 << 30, access_key: 5, tier_file_blocks: 16, tcp, ..address };
        let options = LinkOptions { stall_timeout: Duration::from_secs(10), ..LinkOptions::new(2) };
        (server, address, RecordLanes::new(options, ProcessIdentity::current().unwrap()))
    }

    /// Reads of whole records with these counters and sizes.
    fn read_all(
        lanes: &RecordLanes,
        tier: &SegmentAddress,
        wanted: &[(u64, u64)],
    ) -> Vec<Option<Result<(), TransferError>>> {
        let mut back: Vec<Vec<u8>> = wanted.iter().map(|(_, size)| vec![0; *size as usize]).collect();
        let mut pieces: Vec<[Destination<'_>; 1]> = back.iter_mut().map(|back| [Destination::new(back)]).collect();
        let reads = wanted.iter().zip(&mut pieces).map(|((counter, size), pieces)| {
            let record = RecordAddress { rid: rid(*counter), offset: 4096, size: *size, key_bytes: 3 };
            let expected: Vec<u8> = (0..*size).map(|at| byte(record.rid, at)).collect();
            RecordRead { record, from: 0, pieces, crc: Some(crc32c(&expected)) }
        });
        let mut reads: Vec<RecordRead<'_, '_>> = reads.collect();
        let deadline = Deadline::at(Instant::now() + Duration::from_secs(20));
        lanes.read_all(tier, &mut reads, &deadline).unwrap()
    }

    #[test]
    fn records_come_in_their_order_and_those_that_are_not_there_hold_up_none_behind_them() {
        let (_server, tier, lanes) = tier(Arc::default());
        let sizes = [0, 1, 4095, MIB, MIB + 1, 3 * MIB + 7, 64 << 10];
        let wanted: Vec<(u64, u64)> = (0..90).map(|nth| (7 + nth, sizes[nth as usize % sizes.len()])).collect();
        for _ in 0..2 {
            let ended = read_all(&lanes, &tier, &wanted);
            for ((counter, size), ended) in wanted.iter().zip(ended) {
                match ended {
                    Some(Ok(())) => assert_eq!(counter % 2, 1, "{size} bytes"),
                    Some(Err(TransferError::Stale { .. })) => assert_eq!(counter % 2, 0, "{size} bytes"),
                    other => panic!("{counter}, {size} bytes: {other:?}"),
                }
            }
        }
        assert_eq!(lanes.reads(), 90);
    }

    #[test]
    fn more_small_records_than_are_asked_for_at_a_time_come_too_with_large_ones_between() {
        let (_server, tier, lanes) = tier(Arc::default());
        let size = |nth: u64| if nth % 100 > 97 { 9 * MIB } else { nth * 37 % 101 };
        let wanted: Vec<(u64, u64)> = (0..1_000).map(|nth| (7 + nth, size(nth))).collect();
        for ((counter, size), ended) in wanted.iter().zip(read_all(&lanes, &tier, &wanted)) {
            match ended {
                Some(Ok(())) => assert_eq!(counter % 2, 1, "{size} bytes"),
                Some(Err(TransferError::Stale { .. })) => assert_eq!(counter % 2, 0, "{size} bytes"),
                other => panic!("{counter}, {size} bytes: {other:?}"),
            }
        }
        assert_eq!(lanes.reads(), 500);
    }

    #[test]
    fn what_was_asked_for_is_read_while_the_first_of_it_is_waited_for() {
        let records = Arc::new(Odd::default());
        let (_server, tier, lanes) = tier(records.clone());
        let wanted: Vec<(u64, u64)> = (0..20).map(|nth| (5 + 2 * nth, 64 << 10)).collect();
        let (held, let_go) = (records.clone(), records);
        let waiting = std::thread::spawn(move || {
            let end = Instant::now() + Duration::from_secs(20);
            while *held.ahead.lock() < 20 && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            *held.let_go.lock() = true;
            held.changed.notify_all();
            *held.ahead.lock()
        });
        let ended = read_all(&lanes, &tier, &wanted);
        assert!(ended.iter().all(|ended| matches!(ended, Some(Ok(())))), "{ended:?}");
        assert_eq!((waiting.join().unwrap(), *let_go.ahead.lock()), (20, 20));
    }

    #[test]
    fn a_tier_that_is_served_no_more_leaves_what_is_behind_to_be_asked_for_again() {
        let (server, tier, lanes) = tier(Arc::default());
        assert!(matches!(read_all(&lanes, &tier, &[(7, 10)])[..], [Some(Ok(()))]));
        server.remove_tier(TIER);
        // The lane ends within a look of its owner's.
        let end = Instant::now() + Duration::from_secs(5);
        let refused = loop {
            let mut back = [0];
            let read = RecordRead {
                record: RecordAddress { rid: rid(7), offset: 4096, size: 1, key_bytes: 3 },
                from: 0,
                pieces: &mut [Destination::new(&mut back)],
                crc: None,
            };
            match lanes.read(&tier, read, &Deadline::at(end)) {
                Err(TransferError::Refused { status, .. }) => break status,
                _ => assert!(Instant::now() < end),
            }
        };
        assert_eq!(refused, Status::UnknownSegment);
    }
}
