//! Readers of an extent that a writer reuses never take a torn copy for an object.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mooncake_ids::Rid;
use mooncake_memory::{Destination, Mapping, ReadError, SegmentMemory, SegmentOptions, Source, Verify, crc32c};

/// Longest wait for a read that is overtaken.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Every 8 bytes of an object hold its rid.
fn object(rid: Rid, len: usize) -> Vec<u8> {
    rid.0.to_le_bytes().iter().copied().cycle().take(len).collect()
}

fn is_whole(rid: Rid, bytes: &[u8]) -> bool {
    bytes.chunks_exact(8).all(|word| word == rid.0.to_le_bytes())
}

/// One writer under two readers for a while; returns good and stale reads.
fn stress(len: usize, stamps_only: bool) -> (u64, u64) {
    let segment = SegmentMemory::create(8 << 20, SegmentOptions::default()).unwrap();
    segment.populate_step(8 << 20).unwrap();
    let writer: &Mapping = segment.mapping();
    // What a master would say: the placement that was committed last.
    let committed = AtomicU64::new(2);
    writer.write(Rid(2), 0, &[Source::new(&object(Rid(2), len))]).unwrap();
    let stop = AtomicBool::new(false);
    let (good, stale) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let reader = segment.mapping().remap(false).unwrap();
                let mut copy = vec![0; len];
                while !stop.load(Ordering::Relaxed) {
                    let rid = Rid(committed.load(Ordering::Acquire));
                    let verify = if stamps_only { Verify::Skip } else { Verify::Compute };
                    match reader.read(rid, 0, &mut [Destination::new(&mut copy)], verify) {
                        Ok(crc) => {
                            assert!(is_whole(rid, &copy), "a torn read of rid {} passed the stamps", rid.0);
                            assert!(stamps_only || crc == crc32c(&copy));
                            good.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(ReadError::Stale { .. }) => {
                            stale.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        let (least, most) = (Instant::now() + Duration::from_millis(700), Instant::now() + TIMEOUT);
        let mut rid = Rid(2);
        // Longer on a busy machine, where readers and writer take longer to meet.
        while Instant::now() < least || stale.load(Ordering::Relaxed) == 0 && Instant::now() < most {
            rid.0 += 2;
            writer.write(rid, 0, &[Source::new(&object(rid, len))]).unwrap();
            committed.store(rid.0, Ordering::Release);
        }
        stop.store(true, Ordering::Relaxed);
    });
    (good.into_inner(), stale.into_inner())
}

#[test]
fn every_torn_read_of_streaming_stores_is_caught() {
    for stamps_only in [false, true] {
        let (good, stale) = stress(1 << 20, stamps_only);
        assert!(stale > 0, "readers and writer never met ({good} good reads)");
    }
}

#[test]
fn every_torn_read_of_plain_stores_is_caught() {
    for stamps_only in [false, true] {
        let (good, stale) = stress(100 << 10, stamps_only);
        assert!(stale > 0, "readers and writer never met ({good} good reads)");
    }
}

/// A checksum error would be reported as a bad replica, although nothing is wrong with the object's successor.
#[test]
fn a_view_that_is_overtaken_in_mid_look_is_stale_and_no_bad_replica() {
    const LEN: u64 = 1 << 20;
    let segment = SegmentMemory::create(8 << 20, SegmentOptions::default()).unwrap();
    segment.populate_step(8 << 20).unwrap();
    let objects: Vec<(Vec<u8>, u32)> =
        (0..2_u64).map(|at| object(Rid(at), LEN as usize)).map(|bytes| (bytes.clone(), crc32c(&bytes))).collect();
    let content = |rid: Rid| &objects[(rid.0 / 2 % 2) as usize];
    segment.mapping().write(Rid(2), 0, &[Source::new(&content(Rid(2)).0)]).unwrap();
    let (committed, stop) = (AtomicU64::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rid = Rid(2);
            while !stop.load(Ordering::Relaxed) {
                rid.0 += 2;
                segment.mapping().write(rid, 0, &[Source::new(&content(rid).0)]).unwrap();
                committed.store(rid.0, Ordering::Release);
            }
        });
        let reader = Arc::new(segment.mapping().remap(false).unwrap());
        let (least, most) = (Instant::now() + Duration::from_millis(500), Instant::now() + TIMEOUT);
        let (mut stale, mut wrong) = (0, None);
        while (Instant::now() < least || stale == 0 && Instant::now() < most) && wrong.is_none() {
            let rid = Rid(committed.load(Ordering::Acquire));
            match reader.view(rid, 0, LEN, Verify::Crc(content(rid).1)) {
                Ok(_) => {}
                Err(ReadError::Stale { .. }) => stale += 1,
                Err(error) => wrong = Some(error),
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(wrong.is_none(), "{wrong:?}");
        assert!(stale > 0, "reader and writer never met");
    });
}
