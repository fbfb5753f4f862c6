//! A segment's memory goes back to the host while peers still map it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use mooncake_ids::Rid;
use mooncake_memory::{
    CopyError, Destination, MemoryError, ReadError, SegmentMemory, SegmentOptions, Source, Verify, crc32c,
};

const BYTES: u64 = 32 << 20;

fn resident(fd: BorrowedFd<'_>) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_blocks as u64 * 512
}

#[test]
fn nothing_is_taken_before_it_is_populated() {
    let segment = SegmentMemory::create(BYTES, SegmentOptions::default()).unwrap();
    assert_eq!((resident(segment.data_fd()), segment.populated()), (0, 0));
    assert_eq!(segment.populate_step(10 << 20).unwrap(), 10 << 20);
    assert_eq!(resident(segment.data_fd()), 10 << 20);
    // A peer makes no pages beyond what it was given.
    let peer = segment.mapping().remap(true).unwrap();
    peer.write(Rid(2), 9 << 20, &[Source::new(&[1; 1 << 20])]).unwrap();
    assert_eq!(resident(segment.data_fd()), 10 << 20);
    assert_eq!(segment.populate_step(u64::MAX).unwrap(), BYTES);
    assert_eq!((resident(segment.data_fd()), segment.populated()), (BYTES, BYTES));
    assert_eq!(segment.populate_step(1).unwrap(), BYTES);
}

#[test]
fn all_but_pinned_extents_goes_back_while_views_live() {
    for by_peer in [false, true] {
        let segment = SegmentMemory::create(BYTES, SegmentOptions::default()).unwrap();
        segment.populate_step(BYTES).unwrap();
        let peer = Arc::new(segment.mapping().remap(false).unwrap());
        let (pinned, other) = (vec![7; 100_000], vec![8; 50_000]);
        let offset = (9 << 20) + 1024;
        let crc = segment.mapping().write(Rid(10), offset, &[Source::new(&pinned)]).unwrap();
        let other_crc = segment.mapping().write(Rid(12), 0, &[Source::new(&other)]).unwrap();
        let view = peer.view(Rid(10), offset, 100_000, Verify::Crc(crc)).unwrap();
        let keep = [(offset, 100_000)];
        if by_peer {
            // As after the owner's death: by a peer that maps it read-only.
            peer.give_back(|| keep.to_vec()).unwrap();
        } else {
            segment.give_back(&keep).unwrap();
            assert!(matches!(segment.populate_step(4096), Err(MemoryError::GivenBack)));
            let late = segment.mapping().stamp_if_newest(Rid(u64::MAX - 1), 0, 1024);
            assert!(matches!(late, Err(CopyError::Superseded { .. })));
        }
        let kept = resident(segment.data_fd()) + resident(segment.control_fd());
        assert!(kept <= 100_000 + 4 * 4096, "{kept} bytes are still taken");
        assert!(view.iter().all(|&byte| byte == 7), "a view changed");
        let mut copy = vec![0; 50_000];
        let read = peer.read(Rid(12), 0, &mut [Destination::new(&mut copy)], Verify::Crc(other_crc));
        assert!(matches!(read, Err(ReadError::Stale { .. })));
        // Once the view ends, a repeat returns the rest.
        drop(view);
        peer.give_back(Vec::new).unwrap();
        assert!(resident(segment.data_fd()) + resident(segment.control_fd()) <= 4096);
    }
}

#[test]
fn no_byte_goes_before_every_reader_can_tell() {
    let segment = SegmentMemory::create(BYTES, SegmentOptions::default()).unwrap();
    segment.populate_step(BYTES).unwrap();
    segment.mapping().write(Rid(2), 0, &[Source::new(&[5; 1 << 20])]).unwrap();
    let peer = segment.mapping().remap(false).unwrap();
    peer.give_back(|| {
        // The owner asks for the pins behind the tombstones and before the first hole.
        assert!(peer.crc(0, 1 << 20).unwrap() == crc32c(&[5; 1 << 20]), "bytes went before the pins were known");
        for granule in 0..1 << 10 {
            assert!(
                !peer.check_stamps(Rid(2), granule << 10, 1024).unwrap(),
                "granule {granule} looks as good as before"
            );
        }
        Vec::new()
    })
    .unwrap();
}

#[test]
fn neighbouring_and_overlapping_pins_are_all_kept() {
    let segment = SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap();
    segment.mapping().write(Rid(2), 0, &[Source::new(&[5; 1 << 20])]).unwrap();
    let keep = [(20 << 10, 5000), (1024, 2048), (21 << 10, 1000), ((1 << 20) - 1024, 1024), (2048, 10_000)];
    let view = segment.view_mapping().unwrap().view(Rid(2), 0, 1 << 20, Verify::Compute).unwrap();
    segment.give_back(&keep).unwrap();
    for (offset, len) in keep {
        assert!(view[offset as usize..][..len as usize].iter().all(|&byte| byte == 5), "{offset}");
    }
    assert!(view[64 << 10..512 << 10].iter().all(|&byte| byte == 0));
}

#[test]
fn a_stale_read_makes_no_new_pages() {
    let segment = SegmentMemory::create(BYTES, SegmentOptions::default()).unwrap();
    segment.mapping().write(Rid(2), 0, &[Source::new(&[5; 1 << 20])]).unwrap();
    let (peer, mut copy) = (segment.mapping().remap(false).unwrap(), vec![0; 1 << 20]);
    peer.read(Rid(2), 0, &mut [Destination::new(&mut copy)], Verify::Skip).unwrap();
    segment.give_back(&[]).unwrap();
    for reader in [&peer, &segment.mapping().remap(false).unwrap()] {
        let read = reader.read(Rid(2), 0, &mut [Destination::new(&mut copy)], Verify::Skip);
        assert!(matches!(read, Err(ReadError::Stale { .. })));
    }
    assert_eq!((resident(segment.data_fd()), resident(segment.control_fd())), (0, 4096));
}

#[test]
fn no_mapped_writer_takes_memory_that_was_given_back_for_fresh() {
    let segment = SegmentMemory::create(BYTES, SegmentOptions::default()).unwrap();
    segment.populate_step(BYTES).unwrap();
    // One that has heard nothing, one that comes later, and the one that gives back.
    let writer = segment.mapping().remap(true).unwrap();
    writer.write(Rid(2), 0, &[Source::new(&[5; 1 << 20])]).unwrap();
    segment.mapping().remap(false).unwrap().give_back(Vec::new).unwrap();
    for writer in [&writer, &segment.mapping().remap(true).unwrap(), segment.mapping()] {
        assert!(writer.is_given_back());
        assert_eq!(writer.max_stamp(0, 4096).unwrap(), u64::MAX);
        let write = writer.write(Rid(4), 0, &[Source::new(&[6; 1 << 20])]);
        assert!(matches!(write, Err(CopyError::Superseded { rid: 4, .. })));
        assert!(matches!(writer.stamp_if_newest(Rid(4), 0, 4096), Err(CopyError::Superseded { .. })));
        writer.tombstone(Rid(4), 0, 1 << 20).unwrap();
    }
    assert_eq!(resident(segment.data_fd()), 0, "pages came back");
    assert!(resident(segment.control_fd()) <= 2 * 4096);
}

#[test]
fn whoever_still_reads_huge_pages_that_were_given_back_gets_no_signal() {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let figure =
        |name: &str| meminfo.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    let (free, page): (u64, u64) = (figure("HugePages_Free:").unwrap_or(0), figure("Hugepagesize:").unwrap_or(0) << 10);
    if free == 0 {
        eprintln!("skipped: this host has no free huge pages (/proc/sys/vm/nr_hugepages)");
        return;
    }
    let options = SegmentOptions { huge_pages: true };
    let segment = SegmentMemory::create(free * page, options).unwrap();
    segment.populate_step(u64::MAX).unwrap();
    let crc = segment.mapping().write(Rid(2), 0, &[Source::new(&[7; 4096])]).unwrap();
    let peer = Arc::new(segment.mapping().remap(false).unwrap());
    // Stands for a reader in the middle of its copy, which has looked at the stamps and not come to these bytes yet.
    let reading = peer.view(Rid(2), 0, 4096, Verify::Crc(crc)).unwrap();
    segment.give_back(&[]).unwrap();
    // Whatever went back to the pool is taken by somebody else, at once.
    let other = SegmentMemory::create(free * page, options);
    let _ = other.as_ref().map(|other| other.populate_step(u64::MAX));
    assert!(reading.iter().all(|byte| *byte == 7), "as good as zeros would be: its stamps are other ones");
    let read = peer.read(Rid(2), 0, &mut [Destination::new(&mut [0; 4096])], Verify::Crc(crc));
    assert!(matches!(read, Err(ReadError::Stale { .. })), "{read:?}");
    // With the last mapping all of them go back.
    drop((segment, reading, peer, other));
    SegmentMemory::create(free * page, options).unwrap().populate_step(u64::MAX).unwrap();
}
