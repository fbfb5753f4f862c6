//! Nothing that its owner could still change is mapped.

use std::os::fd::OwnedFd;

use mooncake_ids::{Rid, SegmentUuid};
use mooncake_memory::{Destination, Expect, Mapping, MemoryError, SegmentMemory, SegmentOptions, Source, Verify};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

const BYTES: u64 = 1 << 20;

fn segment() -> SegmentMemory {
    SegmentMemory::create(BYTES, SegmentOptions::default()).unwrap()
}

fn copies(segment: &SegmentMemory) -> (OwnedFd, OwnedFd) {
    (segment.data_fd().try_clone_to_owned().unwrap(), segment.control_fd().try_clone_to_owned().unwrap())
}

fn unsealed(bytes: u64) -> OwnedFd {
    let fd = memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, bytes).unwrap();
    fd
}

#[test]
fn an_unsealed_or_half_sealed_memfd_is_refused() {
    let segment = segment();
    let expect = Expect { uuid: segment.uuid(), bytes: BYTES };
    for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::SHRINK | SealFlags::GROW] {
        let data = unsealed(BYTES);
        fcntl_add_seals(&data, seals).unwrap();
        let map = Mapping::map(data, copies(&segment).1, expect, false);
        assert!(matches!(map, Err(MemoryError::NotSealed { which: "data", .. })));
        let control = unsealed(8192 + 4096);
        fcntl_add_seals(&control, seals).unwrap();
        let map = Mapping::map(copies(&segment).0, control, expect, false);
        assert!(matches!(map, Err(MemoryError::NotSealed { which: "control", .. })));
    }
    let null = std::fs::File::open("/dev/null").unwrap().into();
    let map = Mapping::map(null, copies(&segment).1, expect, false);
    assert!(matches!(map, Err(MemoryError::NotSealed { seals: 0, .. })));
}

#[test]
fn another_size_or_name_than_announced_is_refused() {
    let (segment, other) = (segment(), SegmentMemory::create(BYTES * 2, SegmentOptions::default()).unwrap());
    let (data, control) = copies(&segment);
    let map = Mapping::map(data, control, Expect { uuid: segment.uuid(), bytes: BYTES * 2 }, false);
    assert!(
        matches!(map, Err(MemoryError::WrongSize { which: "data", expected, actual: BYTES }) if expected == BYTES * 2)
    );
    let map = Mapping::map(copies(&segment).0, copies(&other).1, Expect { uuid: segment.uuid(), bytes: BYTES }, false);
    assert!(matches!(map, Err(MemoryError::WrongSize { which: "control", .. })));
    let (data, control) = copies(&segment);
    let map = Mapping::map(data, control, Expect { uuid: SegmentUuid([9; 16]), bytes: BYTES }, false);
    assert!(matches!(map, Err(MemoryError::WrongUuid { .. })));
    let (data, control) = (copies(&segment).0, unsealed(BYTES / 128 + 4096));
    fcntl_add_seals(&control, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    let map = Mapping::map(data, control, Expect { uuid: segment.uuid(), bytes: BYTES }, false);
    assert!(matches!(map, Err(MemoryError::BadHeader { .. })));
}

#[test]
fn nobody_can_resize_a_segment() {
    let segment = segment();
    for bytes in [0, BYTES / 2, BYTES * 2] {
        assert!(ftruncate(segment.data_fd(), bytes).is_err());
        assert!(ftruncate(segment.control_fd(), bytes).is_err());
    }
    assert!(fcntl_add_seals(segment.data_fd(), SealFlags::WRITE).is_err());
    let mode = rustix::fs::fstat(segment.data_fd()).unwrap().st_mode;
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_segment_is_out_of_core_dumps_and_forked_children() {
    let segment = segment();
    let view = segment.view_mapping().unwrap();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let inode = |fd: std::os::fd::BorrowedFd<'_>| rustix::fs::fstat(fd).unwrap().st_ino.to_string();
    for fd in [segment.data_fd(), segment.control_fd(), view.data_fd()] {
        let (mut entries, mut inside) = (0, false);
        let mut readable_only = false;
        for line in smaps.lines() {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            if fields.len() >= 5 && fields[0].contains('-') {
                inside = fields[4] == inode(fd);
                readable_only = fields[1].starts_with("r--");
            } else if inside && fields[0] == "VmFlags:" {
                entries += 1;
                assert!(fields.contains(&"dd"), "{line}");
                assert_eq!(fields.contains(&"dc"), !readable_only, "{line}");
            }
        }
        assert_eq!(entries, 2);
    }
}

#[test]
fn a_size_that_cannot_be_had_is_refused_with_figures() {
    let error = SegmentMemory::create(1 << 50, SegmentOptions::default()).unwrap_err();
    let MemoryError::Limit { wanted, available, .. } = &error else { panic!("{error}") };
    assert!(*wanted > 1 << 50 && *available < 1 << 50);
    assert!(error.to_string().contains(&available.to_string()), "{error}");
    assert!(matches!(SegmentMemory::create(0, SegmentOptions::default()), Err(MemoryError::InvalidSize { .. })));
    assert!(SegmentMemory::create(u64::MAX, SegmentOptions::default()).is_err());
    let odd = SegmentMemory::create(5000, SegmentOptions::default()).unwrap();
    assert_eq!(odd.bytes(), 8192);
}

#[test]
fn huge_pages_are_used_or_refused_with_figures() {
    let options = SegmentOptions { huge_pages: true };
    let free = std::fs::read_to_string("/proc/meminfo").unwrap();
    let free = free.lines().find_map(|line| line.strip_prefix("HugePages_Free:")?.trim().parse::<u64>().ok());
    let wanted = (free.unwrap_or(0) + 1) << 30;
    let error = SegmentMemory::create(wanted, options).unwrap_err();
    assert!(matches!(error, MemoryError::HugePages { .. }), "{error}");
    if free.unwrap_or(0) >= 2 {
        let segment = SegmentMemory::create(3 << 20, options).unwrap();
        assert_eq!(segment.bytes(), 4 << 20);
        assert_eq!(segment.populate_step(u64::MAX).unwrap(), 4 << 20);
        segment.mapping().write(Rid(2), 1024, &[Source::new(b"huge")]).unwrap();
        let mut copy = [0; 4];
        segment.mapping().read(Rid(2), 1024, &mut [Destination::new(&mut copy)], Verify::Compute).unwrap();
        assert_eq!(copy, *b"huge");
        segment.give_back(&[]).unwrap();
    }
}
