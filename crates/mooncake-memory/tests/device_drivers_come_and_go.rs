//! A driver is found when it appears, and left alone in forked children.

use mooncake_ids::Rid;
use mooncake_memory::{
    Bounce, CopyError, Destination, ForeignRange, Registry, SegmentMemory, SegmentOptions, Source, Verify,
};
use mooncake_os::forked;
use mooncake_test_support::fake_cuda::FakeCuda;

/// One test: forks of several at once would inherit each other's, and a driver appears only once.
#[test]
fn a_driver_that_appears_is_found_and_a_child_never_calls_it() {
    let (segment, registry) = (SegmentMemory::create(8 << 20, SegmentOptions::default()).unwrap(), Registry::new());
    // SAFETY: memory of the test's own that is only read.
    let range = |bytes: &[u8]| unsafe { ForeignRange::new(bytes.as_ptr().expose_provenance(), bytes.len()) };
    let bytes = vec![5; 3000];
    registry.register(range(&bytes[1000..2000])).unwrap();
    segment.mapping().write(Rid(2), 0, &[Source::foreign(range(&bytes), &registry).unwrap()]).unwrap();

    let fake = FakeCuda::load();
    let memory = fake.holding(0, &[6; 3000]);
    let crc = segment.mapping().write(Rid(4), 0, &[Source::foreign(memory.range(), &registry).unwrap()]).unwrap();
    segment
        .mapping()
        .read(Rid(4), 0, &mut [Destination::foreign(memory.range(), &registry).unwrap()], Verify::Crc(crc))
        .unwrap();
    registry.register(memory.part(1000, 1000)).unwrap();
    let made_before = Source::foreign(memory.range(), &registry).unwrap();

    // SAFETY: the child only makes calls that refuse, and ends; no other thread of this process holds a lock.
    match unsafe { libc::fork() } {
        0 => {
            // The fake driver ends a child that calls it with status 97.
            let in_child = Source::foreign(memory.range(), &registry).unwrap();
            let registered = Source::foreign(memory.part(1000, 1000), &registry).unwrap();
            let mut destination = [Destination::foreign(memory.range(), &registry).unwrap()];
            let refused = forked()
                && [made_before, in_child, registered]
                    .iter()
                    .all(|source| matches!(segment.mapping().write(Rid(6), 0, &[*source]), Err(CopyError::Forked)))
                && segment.mapping().read(Rid(4), 0, &mut destination, Verify::Skip).is_err()
                && Bounce::new().sources(&[made_before]).is_err()
                && registry.register(memory.part(100, 100)).is_err();
            drop((segment, registry));
            // SAFETY: ends the child without running anything of its parent's.
            unsafe { libc::_exit(i32::from(!refused)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child just made.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "signal {}", libc::WTERMSIG(status));
            assert_eq!(libc::WEXITSTATUS(status), 0, "97: the child has called the driver");
        }
    }
    segment
        .mapping()
        .read(Rid(4), 0, &mut [Destination::foreign(memory.range(), &registry).unwrap()], Verify::Crc(crc))
        .unwrap();
}
