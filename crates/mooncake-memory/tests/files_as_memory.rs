//! Parts of existing files as a segment's memory.

use std::os::fd::AsRawFd;
use std::path::PathBuf;

use mooncake_ids::Rid;
use mooncake_memory::{Destination, MemoryError, SegmentMemory, SegmentOptions, Source, Verify};

struct File(PathBuf);

impl File {
    fn new(name: &str, bytes: u64) -> File {
        let path = PathBuf::from(format!("/dev/shm/mooncake-memory-{name}-{}", std::process::id()));
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        File(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const RID: Rid = Rid::new(1, 1);

#[test]
fn bytes_lie_in_the_file_behind_the_offset_and_stamps_beside_it() {
    let file = File::new("offset", 1 << 20);
    let memory = SegmentMemory::over_file(&file.0, 8192, 100_000).unwrap();
    assert_eq!(memory.bytes(), 99_328, "whole granules");
    assert!(!memory.is_sealed());
    assert_eq!(memory.populate_step(1 << 30).unwrap(), 99_328);
    let bytes: Vec<u8> = (0..5000_u32).map(|n| (n * 7) as u8).collect();
    let crc = memory.mapping().write(RID, 2048, &[Source::new(&bytes)]).unwrap();
    let written = std::fs::read(&file.0).unwrap();
    assert!(written[8192 + 2048..][..5000] == bytes[..]);
    assert_eq!(written.iter().filter(|byte| **byte != 0).count(), bytes.iter().filter(|byte| **byte != 0).count());
    let mut read = vec![0; 5000];
    memory.mapping().read(RID, 2048, &mut [Destination::new(&mut read)], Verify::Crc(crc)).unwrap();
    assert_eq!(read, bytes);
    assert!(memory.mapping().write(RID, 99_328 - 100, &[Source::new(&bytes)]).is_err(), "it ends where it ends");

    let view = memory.view_mapping().unwrap().view(RID, 2048, 5000, Verify::Crc(crc)).unwrap();
    memory.give_back(&[]).unwrap();
    assert!(memory.mapping().write(Rid(RID.0 + 2), 2048, &[Source::new(&bytes)]).is_err(), "given back");
    assert_eq!(view[..], bytes[..], "the file stays as it was");
    assert!(std::fs::read(&file.0).unwrap() == written);
}

#[test]
fn a_range_is_one_segments_until_its_memory_is_gone() {
    let file = File::new("lock", 1 << 20);
    let first = SegmentMemory::over_file(&file.0, 0, 64 << 10).unwrap();
    for (offset, bytes) in [(0, 64 << 10), (60 << 10, 64 << 10), (0, 1 << 20)] {
        let refused = SegmentMemory::over_file(&file.0, offset, bytes).unwrap_err();
        assert!(matches!(refused, MemoryError::File { .. }) && refused.to_string().contains("another segment"));
    }
    let behind = SegmentMemory::over_file(&file.0, 64 << 10, 64 << 10).unwrap();
    assert_ne!(first.uuid(), behind.uuid());
    drop(first);
    SegmentMemory::over_file(&file.0, 0, 64 << 10).unwrap();
}

#[test]
fn memory_of_a_segment_is_not_made_another_one() {
    let segment = SegmentMemory::create(64 << 10, SegmentOptions::default()).unwrap();
    for fd in [segment.data_fd(), segment.control_fd()] {
        let own = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let others = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd()));
        for path in [own, others] {
            let refused = SegmentMemory::over_file(&path, 0, 4096).unwrap_err();
            assert!(matches!(refused, MemoryError::File { .. }) && refused.to_string().contains("sealed"), "{refused}");
        }
    }
}
