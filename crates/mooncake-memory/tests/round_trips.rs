//! What is written is read, in any pieces.

use std::sync::Arc;

use mooncake_ids::{GRANULE, Rid};
use mooncake_memory::{
    CopyError, Destination, ForeignRange, Mapping, ReadError, Registry, SegmentMemory, SegmentOptions, Source, Verify,
    crc_of_destinations, crc_of_sources, crc32c, split_sources, total_of_destinations, total_of_sources,
};
use proptest::prelude::*;

const BYTES: u64 = 16 << 20;

fn segment() -> SegmentMemory {
    SegmentMemory::create(BYTES, SegmentOptions::default()).unwrap()
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Cuts `len` bytes at the given fractions.
fn cuts(len: usize, at: &[u16]) -> Vec<usize> {
    let mut cuts: Vec<usize> = at.iter().map(|&cut| len * usize::from(cut) / usize::from(u16::MAX)).collect();
    cuts.extend([0, len]);
    cuts.sort_unstable();
    cuts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_pieces_in_are_any_pieces_out(
        len in prop_oneof![0_usize..5000, 250_000_usize..270_000, Just(3 << 20)],
        granule in 0_u64..64,
        into in proptest::collection::vec(any::<u16>(), 0..40),
        out in proptest::collection::vec(any::<u16>(), 0..40),
        seed in any::<u64>(),
    ) {
        let segment = segment();
        let reader = segment.mapping().remap(false).unwrap();
        let data = pattern(len, seed);
        let offset = granule * GRANULE;
        let sources: Vec<Source> = cuts(len, &into).windows(2).map(|cut| Source::new(&data[cut[0]..cut[1]])).collect();
        let crc = segment.mapping().write(Rid(42), offset, &sources).unwrap();
        prop_assert_eq!(crc, crc32c(&data));
        prop_assert_eq!(crc_of_sources(0, &sources, 0, len as u64).unwrap(), crc);

        let mut copy = vec![0; len];
        let mut rest = &mut copy[..];
        let mut destinations = Vec::new();
        for cut in cuts(len, &out).windows(2) {
            let (piece, tail) = rest.split_at_mut(cut[1] - cut[0]);
            destinations.push(Destination::new(piece));
            rest = tail;
        }
        prop_assert_eq!(reader.read(Rid(42), offset, &mut destinations, Verify::Crc(crc)).unwrap(), crc);
        prop_assert_eq!(crc_of_destinations(0, &destinations, 0, len as u64).unwrap(), crc);
        drop(destinations);
        prop_assert!(copy == data);
        prop_assert_eq!(segment.mapping().crc(offset, len as u64).unwrap(), crc);
    }

    #[test]
    fn pieces_split_anywhere_are_the_whole(len in 1_usize..600_000, at in any::<u16>(), seed in any::<u64>()) {
        let data = pattern(len, seed);
        let parts = [Source::new(&data[..len / 3]), Source::new(&data[len / 3..])];
        let mid = (len * usize::from(at) / usize::from(u16::MAX)) as u64;
        let (head, tail) = split_sources(&parts, mid);
        prop_assert_eq!((total_of_sources(&head), total_of_sources(&tail)), (mid, len as u64 - mid));
        let crc = crc_of_sources(0, &head, 0, mid).unwrap();
        prop_assert_eq!(crc_of_sources(crc, &tail, 0, len as u64 - mid).unwrap(), crc32c(&data));
    }
}

#[test]
fn a_later_placement_makes_a_read_stale() {
    let segment = segment();
    let data = pattern(10_000, 1);
    let crc = segment.mapping().write(Rid(10), 2048, &[Source::new(&data)]).unwrap();
    let mut copy = vec![0; data.len()];
    assert_eq!(segment.mapping().crc_of(Rid(10), 2048, 10_000).unwrap(), crc);
    let mut read = |rid, verify| segment.mapping().read(rid, 2048, &mut [Destination::new(&mut copy)], verify);
    assert_eq!(read(Rid(10), Verify::Crc(crc)).unwrap(), crc);
    // The last granule only.
    segment.mapping().write(Rid(12), 2048 + 9 * GRANULE, &[Source::new(b"x")]).unwrap();
    assert!(matches!(read(Rid(10), Verify::Crc(crc)), Err(ReadError::Stale { rid: 10, found: 12 })));
    assert!(matches!(read(Rid(10), Verify::Skip), Err(ReadError::Stale { .. })));
    assert!(matches!(segment.mapping().read(Rid(10), 2048, &mut [], Verify::Compute), Ok(0)), "no granule, no stamp");
    assert!(matches!(segment.mapping().crc_of(Rid(10), 2048, 10_000), Err(ReadError::Stale { rid: 10, found: 12 })));
    assert_eq!(segment.mapping().crc_of(Rid(10), 2048 + 500, 100).unwrap(), crc32c(&data[500..600]));
    let mut head = [0; 100];
    let range = segment.mapping().read(Rid(10), 2048 + 500, &mut [Destination::new(&mut head)], Verify::Skip);
    assert!(range.is_ok() && head == data[500..600], "granules that were not copied do not matter");
    assert!(!segment.mapping().check_stamps(Rid(10), 2048, 10_000).unwrap());
    assert_eq!(segment.mapping().max_stamp(2048, 10_000).unwrap(), 12);
}

#[test]
fn bytes_for_a_disk_are_the_objects_however_they_lie() {
    let segment = segment();
    let data = pattern(400_000, 7);
    let crc = segment.mapping().write(Rid(10), 0, &[Source::new(&data)]).unwrap();
    for len in [0, 1, 4096, 16_383, 16_384, 65_536, 65_600, 400_000] {
        for (from, to) in [(0, 0), (1, 0), (0, 3), (13, 63), (64, 16)] {
            let len = len.min(data.len() - from);
            let mut slot = vec![0xa5; len + 200];
            let verify = if len == data.len() { Verify::Crc(crc) } else { Verify::Skip };
            let (first, second) = Destination::for_disk(&mut slot[to..to + len]).split_at(len / 3);
            segment.mapping().read(Rid(10), from as u64, &mut [first, second], verify).unwrap();
            assert!(slot[to..to + len] == data[from..from + len], "{len} bytes from {from} to {to}");
            assert!(slot[..to].iter().chain(&slot[to + len..]).all(|byte| *byte == 0xa5));
        }
    }
}

#[test]
fn a_flipped_byte_is_a_checksum_error_and_not_stale() {
    let segment = segment();
    let data = pattern(300_000, 2);
    let crc = segment.mapping().write(Rid(10), 0, &[Source::new(&data)]).unwrap();
    segment.mapping().write(Rid(10), 70_000, &[Source::new(&[data[70_000] ^ 4])]).unwrap();
    let mut copy = vec![0; data.len()];
    let read = segment.mapping().read(Rid(10), 0, &mut [Destination::new(&mut copy)], Verify::Crc(crc));
    assert!(matches!(read, Err(ReadError::Checksum { rid: 10, expected, .. }) if expected == crc));
    let mapping = segment.view_mapping().unwrap();
    assert!(matches!(mapping.view(Rid(10), 0, 300_000, Verify::Crc(crc)), Err(ReadError::Checksum { .. })));
}

#[test]
fn a_write_older_than_any_stamp_is_refused() {
    let segment = segment();
    let mapping = segment.mapping();
    mapping.stamp_if_newest(Rid(20), 0, 4096).unwrap();
    mapping.stamp_if_newest(Rid(20), 0, 4096).unwrap();
    mapping.tombstone(Rid(20), 0, 4096).unwrap();
    assert!(matches!(mapping.stamp_if_newest(Rid(20), 0, 4096), Err(CopyError::Superseded { rid: 20, found: 21 })));
    mapping.stamp_if_newest(Rid(22), 1024, 1024).unwrap();
    mapping.tombstone(Rid(20), 0, 4096).unwrap();
    assert!(mapping.check_stamps(Rid(22), 1024, 1024).unwrap(), "a tombstone never lowers a stamp");
    assert!(mapping.check_stamps(Rid(21), 2048, 2048).unwrap());
}

#[test]
fn extents_outside_of_the_segment_are_refused() {
    let segment = segment();
    let mapping = segment.mapping();
    let mut byte = [0; 2];
    for offset in [BYTES - 1, BYTES, u64::MAX, u64::MAX - 1] {
        assert!(matches!(mapping.write(Rid(2), offset, &[Source::new(&[1, 2])]), Err(CopyError::OutOfRange { .. })));
        let read = mapping.read(Rid(2), offset, &mut [Destination::new(&mut byte)], Verify::Skip);
        assert!(matches!(read, Err(ReadError::Copy(CopyError::OutOfRange { .. }))));
        assert!(mapping.stamp_if_newest(Rid(2), offset, 2).is_err() && mapping.crc(offset, 2).is_err());
        assert!(mapping.tombstone(Rid(2), offset, 2).is_err() && mapping.check_stamps(Rid(2), offset, 2).is_err());
    }
    let reader: Mapping = mapping.remap(false).unwrap();
    assert!(matches!(reader.write(Rid(2), 0, &[Source::new(&[1])]), Err(CopyError::ReadOnly)));
    assert!(matches!(reader.stamp_if_newest(Rid(2), 0, 1), Err(CopyError::ReadOnly)));
}

#[test]
fn pieces_whose_sizes_wrap_around_touch_nothing() {
    let (segment, registry) = (segment(), Registry::new());
    let (mapping, before) = (segment.mapping(), pattern(300_000, 4));
    let crc = mapping.write(Rid(2), 0, &[Source::new(&before)]).unwrap();
    let bytes = [7; 8192];
    let half = 1 << 63;
    let shapes: [&[usize]; 5] =
        [&[half, half + 4096], &[half + 4096, half], &[usize::MAX, 4097], &[4096, usize::MAX, 1], &[half, half]];
    for sizes in shapes {
        // SAFETY: no piece is ever used: all of them together fit nowhere.
        let ranges = || sizes.iter().map(|&len| unsafe { ForeignRange::new(bytes.as_ptr().addr(), len) });
        let sources: Vec<Source> = ranges().map(|range| Source::foreign(range, &registry).unwrap()).collect();
        let mut destinations: Vec<Destination> =
            ranges().map(|range| Destination::foreign(range, &registry).unwrap()).collect();
        assert_eq!((total_of_sources(&sources), total_of_destinations(&destinations)), (u64::MAX, u64::MAX));
        for offset in [0, 1 << 20] {
            assert!(matches!(mapping.write(Rid(4), offset, &sources), Err(CopyError::OutOfRange { .. })));
            let read = mapping.read(Rid(2), offset, &mut destinations, Verify::Skip);
            assert!(matches!(read, Err(ReadError::Copy(CopyError::OutOfRange { .. }))));
        }
    }
    let mut after = vec![0; before.len()];
    mapping.read(Rid(2), 0, &mut [Destination::new(&mut after)], Verify::Crc(crc)).unwrap();
    assert_eq!(bytes, [7; 8192]);
}

#[test]
fn a_view_outlives_its_segment() {
    let segment = segment();
    let data = pattern(100_000, 3);
    let crc = segment.mapping().write(Rid(4), 5 * GRANULE, &[Source::new(&data)]).unwrap();
    let peer = Arc::new(segment.mapping().remap(false).unwrap());
    let view = peer.view(Rid(4), 5 * GRANULE, 100_000, Verify::Crc(crc)).unwrap();
    drop((segment, peer));
    assert!(view[..] == data[..]);
}
