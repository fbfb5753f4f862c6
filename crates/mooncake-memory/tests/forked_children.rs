//! A forked child neither hides its parent's death nor touches what is its parent's.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use mooncake_ids::Rid;
use mooncake_memory::{
    CommonMemory, CopyError, Destination, MemoryError, SegmentMemory, SegmentOptions, Source, Verify, allocate_shared,
    send_sources,
};
use mooncake_os::{Guarded, forked, watch_forks};

/// Runs `check` in a forked child; the bit of the first false one is its exit status.
fn in_child(check: impl FnOnce() -> Vec<bool>) -> i32 {
    // SAFETY: the child only makes calls of this crate, and `_exit`s; the one thread of a test process that could
    // hold the allocator's lock is this one (a `harness` thread waits).
    match unsafe { libc::fork() } {
        0 => {
            let results = check();
            let status = results.iter().position(|good| !good).map_or(0, |at| at as i32 + 1);
            // SAFETY: ends the child without running anything of its parent's.
            unsafe { libc::_exit(status) }
        }
        child => {
            assert!(child > 0);
            let mut status = 0;
            // SAFETY: waits for the child just made.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "the child died of signal {}", libc::WTERMSIG(status));
            libc::WEXITSTATUS(status)
        }
    }
}

fn is_open(fd: i32) -> bool {
    // SAFETY: asks for flags only.
    unsafe { libc::fcntl(fd, libc::F_GETFD) != -1 }
}

/// One test, because forks of several at once would inherit each other's.
#[test]
fn a_child_closes_refuses_and_leaves_alone() {
    watch_forks();
    let segment = SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap();
    let crc = segment.mapping().write(Rid(2), 0, &[Source::new(&[7; 5000])]).unwrap();
    let view = segment.view_mapping().unwrap().view(Rid(2), 0, 5000, Verify::Crc(crc)).unwrap();
    let peer = Arc::new(segment.mapping().remap(false).unwrap());
    let (near, _far) = UnixStream::pair().unwrap();
    let near = Guarded::new(near);
    // More descriptors than one chunk of the table holds, some given back.
    let many: Vec<_> = (0..600).map(|_| Guarded::new(near.try_clone().unwrap())).collect();
    let file = CommonMemory::make(4096).unwrap().file().unwrap();
    let raw: Vec<i32> = many.iter().chain([&near]).map(|guarded| guarded.as_raw_fd()).collect();
    let segment_fds = [segment.data_fd().as_raw_fd(), segment.control_fd().as_raw_fd()];
    assert!(!forked());

    let status = in_child(|| {
        let mut byte = [0; 10];
        let mut results = vec![
            forked(),
            raw.iter().chain(&segment_fds).all(|&fd| !is_open(fd)),
            matches!(segment.mapping().write(Rid(4), 0, &[Source::new(b"x")]), Err(CopyError::Forked)),
            peer.read(Rid(2), 0, &mut [Destination::new(&mut byte)], Verify::Skip).is_err(),
            matches!(segment.give_back(&[]), Err(MemoryError::Forked)),
            matches!(segment.mapping().remap(false), Err(MemoryError::Forked)),
            matches!(SegmentMemory::create(4096, SegmentOptions::default()), Err(MemoryError::Forked)),
            matches!(allocate_shared(4096), Err(MemoryError::Forked)),
            matches!(CommonMemory::make(4096), Err(MemoryError::Forked)),
            matches!(CommonMemory::map(file, 4096), Err(MemoryError::Forked)),
            send_sources(near.as_fd(), b"x", &[], 0, 1).is_err(),
            // A read-only map under a view is inherited.
            view.iter().all(|&byte| byte == 7),
        ];
        // A number that was its parent's names something of the child's now; dropped handles leave it alone.
        let mine = std::fs::File::open("/dev/null").unwrap();
        drop((near, many, segment, peer));
        results.push(is_open(mine.as_raw_fd()));
        results.push(view.iter().all(|&byte| byte == 7));
        results
    });
    assert_eq!(status, 0, "check {status} failed in the child");
}

/// Dropped in the parent, a socket is closed although a child of it lives on.
#[test]
fn a_living_child_does_not_hide_a_closed_connection() {
    let (near, mut far) = UnixStream::pair().unwrap();
    let near = Guarded::new(near);
    let (hold, mut go) = UnixStream::pair().unwrap();
    // SAFETY: the child makes system calls only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut byte = 0_u8;
        // SAFETY: waits for the parent's word, then ends.
        unsafe {
            libc::read(hold.as_raw_fd(), (&raw mut byte).cast(), 1);
            libc::_exit(0)
        }
    }
    drop(near);
    far.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    assert_eq!(far.read(&mut [0]).unwrap(), 0, "end of stream");
    go.write_all(b"x").unwrap();
    // SAFETY: waits for the child just made.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
}
