//! Stale placements and damaged bytes are errors, on every path.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mooncake_ids::Rid;
use mooncake_memory::{Destination, Source};
use mooncake_segment::{Path, Paths, TransferError};

use crate::support::*;

const PATHS: [Path; 3] = [Path::Local, Path::SharedMemory, Path::Tcp];

/// Ends the writer however the reader ends.
struct EndsWith<'a>(&'a AtomicBool);

impl Drop for EndsWith<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_stale_rid_never_returns_bytes() {
    let owner = Owner::new(4 * MIB);
    for path in PATHS {
        let (links, _noticed) = links(Paths::only(path));
        let link = links.link(&owner.address(), &soon()).unwrap();
        for len in [1u64, 4096, 40_000, 2 * MIB] {
            let base = (path as u64 * 100 + u64::from(len.ilog2())) * 100;
            let (old, new) = (rid(1, base + 1), rid(1, base + 2));
            link.write(old, 0, &[Source::new(&pattern(len, 1))], &soon()).unwrap();
            // The last granule alone is somebody else's by now.
            let last = (len - 1) / 1024 * 1024;
            link.write(new, last, &[Source::new(&[7])], &soon()).unwrap();
            let mut back = vec![0; len as usize];
            let e = link.read(old, 0, &mut [Destination::new(&mut back)], None, &soon()).unwrap_err();
            assert!(e.is_stale(), "{path} {len}: {e}");
            assert!(path == Path::Tcp || link.view(old, 0, len, None).unwrap_err().is_stale());
            // Granules that still are its own can be read.
            if last > 0 {
                link.read(old, 0, &mut [Destination::new(&mut back[..last as usize])], None, &soon()).unwrap();
            }
        }
    }
}

#[test]
fn neither_a_tombstone_nor_zero_is_ever_read() {
    let owner = Owner::new(MIB);
    owner.memory.mapping().tombstone(rid(1, 1), 0, 1024).unwrap();
    for path in PATHS {
        let (links, _noticed) = links(Paths::only(path));
        let link = links.link(&owner.address(), &soon()).unwrap();
        for (rid, offset) in [(Rid(rid(1, 1).tombstone()), 0), (Rid(0), 4096)] {
            assert!(link.read(rid, offset, &mut [Destination::new(&mut [0])], None, &soon()).is_err());
            assert!(link.view(rid, offset, 1, None).is_err());
            assert!(link.write(rid, offset, &[Source::new(&[0])], &soon()).unwrap_err().settled);
        }
    }
}

#[test]
fn the_trailer_of_a_tcp_read_tells_what_happened_while_its_bytes_were_sent() {
    use std::io::{Read, Write};
    let owner = Owner::new(64 * MIB);
    let mapping = owner.memory.mapping();
    let len = 48 * MIB;
    for (overtaken, status) in [(false, 0), (true, 1)] {
        let old = rid(1, 1 + u64::from(overtaken));
        mapping.write(old, 0, &[Source::new(&pattern(len, 1))]).unwrap();
        // So little room that most of the bytes are still in the segment.
        let mut lane = lane_by_hand(&owner.address(), Some(64 << 10));
        lane.write_all(&request_by_hand(1, old, 0, len)).unwrap();
        let mut reply = [0; 32];
        lane.read_exact(&mut reply).unwrap();
        assert_eq!(reply[4], 0, "begun");
        if overtaken {
            // Of the very last granule, after the owner has looked at it once.
            mapping.write(rid(1, 9), len - 1024, &[Source::new(&[7; 1024])]).unwrap();
        }
        let mut bytes = vec![0; len as usize];
        lane.read_exact(&mut bytes).unwrap();
        let mut trailer = [0; 16];
        lane.read_exact(&mut trailer).unwrap();
        assert_eq!(trailer[4], status);
    }
}

#[test]
fn a_read_that_is_overtaken_in_mid_copy_is_stale_and_never_torn() {
    let owner = Owner::new(8 * MIB);
    let len = 3 * MIB;
    for path in [Path::SharedMemory, Path::Tcp] {
        let (links, _noticed) = links(Paths::only(path));
        let link = links.link(&owner.address(), &soon()).unwrap();
        let mapping = owner.memory.mapping().clone();
        let stop = AtomicBool::new(false);
        let newest = AtomicU64::new(rid(1, path as u64 * 1_000_000 + 1).0);
        let start = Rid(newest.load(Ordering::SeqCst));
        mapping.write(start, 0, &[Source::new(&vec![1u8; len as usize])]).unwrap();
        std::thread::scope(|scope| {
            let (stop, newest, mapping) = (&stop, &newest, &mapping);
            scope.spawn(move || {
                let mut fill = 1u8;
                let mut rid = start;
                while !stop.load(Ordering::SeqCst) {
                    (fill, rid) = (fill.wrapping_add(1), Rid(rid.0 + 2));
                    mapping.write(rid, 0, &[Source::new(&vec![fill; len as usize])]).unwrap();
                    newest.store(rid.0, Ordering::SeqCst);
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
            });
            let reader = EndsWith(stop);
            let (mut good, mut stale) = (0, 0);
            let mut back = vec![0; len as usize];
            let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
            while (good < 20 || stale < 20) && std::time::Instant::now() < until {
                let rid = Rid(newest.load(Ordering::SeqCst));
                match link.read(rid, 0, &mut [Destination::new(&mut back)], None, &soon()) {
                    Ok(()) => {
                        good += 1;
                        let fill = ((rid.0 - start.0) / 2 + 1) as u8;
                        assert!(back.iter().all(|byte| *byte == fill), "torn read over {path}");
                    }
                    Err(e) => {
                        assert!(e.is_stale(), "{e}");
                        stale += 1;
                    }
                }
            }
            drop(reader);
            assert!(good > 0 && stale > 0, "{path}: {good} good, {stale} stale");
        });
    }
}

#[test]
fn one_flipped_byte_gives_checksum_on_every_path() {
    let owner = Owner::new(4 * MIB);
    for path in PATHS {
        let (links, _noticed) = links(Paths::only(path));
        let link = links.link(&owner.address(), &soon()).unwrap();
        let mut data = pattern(MIB, 3);
        let rid = rid(1, path as u64 + 1);
        let crc = link.write(rid, 0, &[Source::new(&data)], &soon()).unwrap();
        assert!(owner.server.recheck(owner.memory.uuid(), rid, 0, MIB, crc));
        data[12_345] ^= 1;
        owner.memory.mapping().write(rid, 0, &[Source::new(&data)]).unwrap();
        let mut back = vec![0; data.len()];
        let e = link.read(rid, 0, &mut [Destination::new(&mut back)], Some(crc), &soon()).unwrap_err();
        assert!(matches!(e, TransferError::Checksum { .. }), "{e}");
        if path != Path::Tcp {
            let e = link.view(rid, 0, MIB, Some(crc)).unwrap_err();
            assert!(matches!(e, TransferError::Checksum { .. }), "{e}");
        }
        assert!(!owner.server.recheck(owner.memory.uuid(), rid, 0, MIB, crc));
        // The lane is in step all the same.
        link.read(rid, 0, &mut [Destination::new(&mut back)], None, &soon()).unwrap();
        assert_eq!(back, data);
    }
}
