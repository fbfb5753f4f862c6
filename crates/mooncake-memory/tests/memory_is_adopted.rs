//! A segment's memory comes to another owner by its descriptors.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use mooncake_ids::{Rid, SegmentUuid};
use mooncake_memory::{Destination, Expect, MemoryError, SealedFile, SegmentMemory, SegmentOptions, Source, Verify};

const BYTES: u64 = 8 << 20;

fn descriptors(segment: &SegmentMemory) -> [OwnedFd; 2] {
    [segment.data_fd(), segment.control_fd()].map(|fd| fd.try_clone_to_owned().unwrap())
}

fn adopt(segment: &SegmentMemory, expect: Expect, populated: u64) -> Result<SegmentMemory, MemoryError> {
    let [data, control] = descriptors(segment);
    SegmentMemory::adopt(data, control, expect, populated)
}

fn expect(segment: &SegmentMemory) -> Expect {
    Expect { uuid: segment.uuid(), bytes: segment.bytes() }
}

#[test]
fn what_was_written_is_read_under_the_next_owner_and_what_was_not_populated_is() {
    let first = SegmentMemory::create(BYTES, SegmentOptions::default()).unwrap();
    first.populate_step(2 << 20).unwrap();
    let value = vec![7; 100_000];
    let crc = first.mapping().write(Rid(2), 4096, &[Source::new(&value)]).unwrap();
    let expect = expect(&first);
    let second = {
        let [data, control] = descriptors(&first);
        drop(first);
        SegmentMemory::adopt(data, control, expect, 2 << 20).unwrap()
    };
    assert_eq!((second.uuid(), second.populated()), (expect.uuid, 2 << 20));
    let mut read = vec![0; 100_000];
    second.mapping().read(Rid(2), 4096, &mut [Destination::new(&mut read)], Verify::Crc(crc)).unwrap();
    assert_eq!(read, value);
    assert_eq!(second.populate_step(u64::MAX).unwrap(), BYTES);
    second.mapping().write(Rid(4), 7 << 20, &[Source::new(&value)]).unwrap();
    assert!(second.is_sealed());
}

#[test]
fn memory_that_was_given_back_or_is_not_what_was_noted_is_refused() {
    let segment = SegmentMemory::create(BYTES, SegmentOptions::default()).unwrap();
    let good = expect(&segment);
    assert!(adopt(&segment, Expect { uuid: SegmentUuid([9; 16]), ..good }, 0).is_err());
    assert!(adopt(&segment, Expect { bytes: BYTES * 2, ..good }, 0).is_err());
    assert_eq!(adopt(&segment, good, u64::MAX).unwrap().populated(), BYTES);
    // Another layout of the control memory: the version is behind its magic.
    let control = std::fs::File::from(segment.control_fd().try_clone_to_owned().unwrap());
    control.write_all_at(&2_u32.to_le_bytes(), 8).unwrap();
    assert!(matches!(adopt(&segment, good, 0), Err(MemoryError::BadHeader { .. })));
    control.write_all_at(&1_u32.to_le_bytes(), 8).unwrap();
    segment.give_back(&[]).unwrap();
    assert!(matches!(adopt(&segment, good, 0), Err(MemoryError::GivenBack)));
}

#[test]
fn a_sealed_file_is_read_as_it_was_written_and_an_unsealed_one_is_refused() {
    let file = SealedFile::create("test", 8192).unwrap();
    file.write(b"state", 4096).unwrap();
    let copy = SealedFile::adopt(file.as_fd().try_clone_to_owned().unwrap(), 8192).unwrap();
    assert_eq!(copy.read().unwrap()[4096..4101], *b"state");
    assert!(SealedFile::adopt(file.as_fd().try_clone_to_owned().unwrap(), 4096).is_err());
    let unsealed = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&unsealed, 8192).unwrap();
    assert!(matches!(SealedFile::adopt(unsealed, 8192), Err(MemoryError::NotSealed { .. })));
}
