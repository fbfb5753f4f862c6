//! Foreign pointers are errors at worst, never signals.

use std::ffi::c_void;

use mooncake_ids::Rid;
use mooncake_memory::{
    CopyError, Destination, ForeignRange, ReadError, RegisterError, Registry, SegmentMemory, SegmentOptions, Source,
    Verify, crc_of_sources, crc32c, recv_destinations, send_sources,
};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

/// Pages of our own, unmapped when we say so.
struct Pages {
    base: *mut c_void,
    len: usize,
}

impl Pages {
    fn new(len: usize, fill: u8) -> Self {
        // SAFETY: a fresh mapping, filled within its length.
        unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let base = mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE).unwrap();
            base.cast::<u8>().write_bytes(fill, len);
            Self { base, len }
        }
    }

    fn range(&self) -> ForeignRange {
        // SAFETY: pages of this test's own, borrowed nowhere.
        unsafe { ForeignRange::new(self.base.addr(), self.len) }
    }

    fn unmap_from(&self, at: usize) {
        // SAFETY: pages of this test's own.
        unsafe { munmap(self.base.byte_add(at), self.len - at) }.unwrap();
    }

    fn protect(&self, access: MprotectFlags) {
        // SAFETY: pages of this test's own.
        unsafe { mprotect(self.base, self.len, access) }.unwrap();
    }
}

const LEN: usize = 512 << 10;

fn segment() -> SegmentMemory {
    SegmentMemory::create(4 << 20, SegmentOptions::default()).unwrap()
}

#[test]
fn foreign_memory_goes_in_and_out_registered_or_not() {
    for registered in [false, true] {
        let (segment, registry) = (segment(), Registry::new());
        let (from, to) = (Pages::new(LEN, 0x5a), Pages::new(LEN, 0));
        if registered {
            registry.register(from.range()).unwrap();
            registry.register(to.range()).unwrap();
        }
        let parts = [Source::new(b"head"), Source::foreign(from.range(), &registry).unwrap()];
        let crc = segment.mapping().write(Rid(2), 0, &parts).unwrap();
        assert_eq!(crc_of_sources(0, &parts, 0, 4 + LEN as u64).unwrap(), crc);
        let mut head = [0; 4];
        let destinations = &mut [Destination::new(&mut head), Destination::foreign(to.range(), &registry).unwrap()];
        segment.mapping().read(Rid(2), 0, destinations, Verify::Crc(crc)).unwrap();
        // SAFETY: pages of this test's own.
        let copy = unsafe { std::slice::from_raw_parts(to.base.cast::<u8>(), LEN) };
        assert!(head == *b"head" && copy.iter().all(|&byte| byte == 0x5a));
    }
}

#[test]
fn memory_freed_after_its_registration_is_an_error() {
    let (segment, registry) = (segment(), Registry::new());
    let pages = Pages::new(LEN, 1);
    registry.register(pages.range()).unwrap();
    let crc = segment.mapping().write(Rid(2), 0, &[Source::foreign(pages.range(), &registry).unwrap()]).unwrap();
    pages.unmap_from(LEN / 2);
    let write = segment.mapping().write(Rid(4), 0, &[Source::foreign(pages.range(), &registry).unwrap()]);
    assert!(matches!(write, Err(CopyError::Fault { addr, len: LEN }) if addr == pages.base.addr()));
    segment.mapping().write(Rid(6), 0, &[Source::new(&[1; LEN])]).unwrap();
    let destination = &mut [Destination::foreign(pages.range(), &registry).unwrap()];
    let read = segment.mapping().read(Rid(6), 0, destination, Verify::Crc(crc));
    assert!(matches!(read, Err(ReadError::Copy(CopyError::Fault { .. }))));
}

#[test]
fn memory_made_inaccessible_after_its_registration_is_an_error() {
    let (segment, registry) = (segment(), Registry::new());
    let pages = Pages::new(LEN, 1);
    registry.register(pages.range()).unwrap();
    let crc = segment.mapping().write(Rid(2), 0, &[Source::foreign(pages.range(), &registry).unwrap()]).unwrap();
    let read = || {
        segment.mapping().read(
            Rid(2),
            0,
            &mut [Destination::foreign(pages.range(), &registry).unwrap()],
            Verify::Crc(crc),
        )
    };
    let fault = |read| matches!(read, Err(ReadError::Copy(CopyError::Fault { .. })));
    read().unwrap();
    pages.protect(MprotectFlags::READ);
    assert!(fault(read()), "stored to memory that is read-only by now");
    // What allocators do with a heap that they have trimmed.
    pages.protect(MprotectFlags::empty());
    assert!(fault(read()));
    let source = [Source::foreign(pages.range(), &registry).unwrap()];
    assert!(matches!(segment.mapping().write(Rid(4), 1 << 20, &source), Err(CopyError::Fault { .. })));
    assert!(matches!(crc_of_sources(0, &source, 5, 10_000), Err(CopyError::Fault { .. })));
    pages.protect(MprotectFlags::READ | MprotectFlags::WRITE);
    read().unwrap();
}

#[test]
fn one_inaccessible_page_inside_a_short_piece_is_an_error() {
    const PIECE: usize = 64 << 10;
    let (segment, registry) = (segment(), Registry::new());
    let pages = Pages::new(LEN, 1);
    registry.register(pages.range()).unwrap();
    let write = |offset| {
        // SAFETY: pages of this test's own, borrowed nowhere.
        let piece = unsafe { ForeignRange::new(pages.base.addr() + offset, PIECE) };
        segment.mapping().write(Rid(2), 0, &[Source::foreign(piece, &registry).unwrap()])
    };
    // SAFETY: a page of this test's own, in the middle of the second piece.
    unsafe { mprotect(pages.base.byte_add(PIECE + PIECE / 2), 4096, MprotectFlags::empty()) }.unwrap();
    write(0).unwrap();
    // Wherever in its page it begins.
    for offset in [PIECE, PIECE + 16, PIECE / 2 + 1] {
        assert!(matches!(write(offset), Err(CopyError::Fault { len: PIECE, .. })), "{offset}");
    }
    write(2 * PIECE).unwrap();
}

#[test]
fn a_registered_file_that_was_truncated_is_an_error() {
    let file = rustix::fs::memfd_create("truncated", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, LEN as u64).unwrap();
    // SAFETY: a fresh mapping, unmapped with the process.
    let base = unsafe {
        mmap(std::ptr::null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0).unwrap()
    };
    // SAFETY: pages of this test's own, borrowed nowhere.
    let range = unsafe { ForeignRange::new(base.addr(), LEN) };
    let (segment, registry) = (segment(), Registry::new());
    registry.register(range).unwrap();
    segment.mapping().write(Rid(2), 0, &[Source::foreign(range, &registry).unwrap()]).unwrap();
    rustix::fs::ftruncate(&file, 0).unwrap();
    let write = segment.mapping().write(Rid(4), 1 << 20, &[Source::foreign(range, &registry).unwrap()]);
    assert!(matches!(write, Err(CopyError::Fault { .. })));
    let read = segment.mapping().read(Rid(2), 0, &mut [Destination::foreign(range, &registry).unwrap()], Verify::Skip);
    assert!(matches!(read, Err(ReadError::Copy(CopyError::Fault { .. }))));
}

#[test]
fn pointers_to_nothing_are_errors() {
    let (segment, registry) = (segment(), Registry::new());
    segment.mapping().write(Rid(2), 0, &[Source::new(&[1; 4096])]).unwrap();
    for addr in [0, 8, 1 << 46, usize::MAX - 4000, 0xffff_8000_0000_0000] {
        // SAFETY: nothing is mapped there.
        let range = unsafe { ForeignRange::new(addr, 4096) };
        let write = segment.mapping().write(Rid(4), 8192, &[Source::foreign(range, &registry).unwrap()]);
        assert!(matches!(write, Err(CopyError::Fault { .. })), "{addr:#x}");
        let read =
            segment.mapping().read(Rid(2), 0, &mut [Destination::foreign(range, &registry).unwrap()], Verify::Skip);
        assert!(matches!(read, Err(ReadError::Copy(CopyError::Fault { .. }))), "{addr:#x}");
        assert!(crc_of_sources(0, &[Source::foreign(range, &registry).unwrap()], 0, 4096).is_err());
        assert!(matches!(
            registry.register(range),
            Err(RegisterError::NotReadable { .. } | RegisterError::Invalid { .. })
        ));
    }
}

#[test]
fn read_only_memory_is_never_stored_to() {
    let (segment, registry) = (segment(), Registry::new());
    let pages = Pages::new(LEN, 3);
    pages.protect(MprotectFlags::READ);
    registry.register(pages.range()).unwrap();
    let crc = segment.mapping().write(Rid(2), 0, &[Source::foreign(pages.range(), &registry).unwrap()]).unwrap();
    assert_eq!(crc, crc32c(&[3; LEN]));
    let read =
        segment.mapping().read(Rid(2), 0, &mut [Destination::foreign(pages.range(), &registry).unwrap()], Verify::Skip);
    assert!(matches!(read, Err(ReadError::Copy(CopyError::Fault { .. }))));
    pages.protect(MprotectFlags::empty());
    assert!(matches!(Registry::new().register(pages.range()), Err(RegisterError::NotReadable { .. })));
}

#[test]
fn sockets_and_memory_that_is_not_there_do_not_meet_in_a_signal() {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    let registry = Registry::new();
    let pages = Pages::new(LEN, 9);
    let (left, right) = UnixStream::pair().unwrap();
    let good = Source::foreign(pages.range(), &registry).unwrap().split_at(1000).0;
    assert_eq!(send_sources(left.as_fd(), b"abc", &[good], 1, 700).unwrap(), 700);
    assert_eq!(send_sources(left.as_fd(), b"abc", &[good], 701, u64::MAX).unwrap(), 302);
    let mut bytes = [0; 1002];
    let mut destinations = [Destination::new(&mut bytes[..2]), Destination::new(&mut [])];
    assert_eq!(recv_destinations(right.as_fd(), &mut destinations, 0, 100).unwrap(), 2);
    assert_eq!(bytes[..2], *b"bc");
    assert_eq!(recv_destinations(right.as_fd(), &mut [Destination::new(&mut bytes)], 2, 10).unwrap(), 10);
    assert_eq!(bytes[..13], *b"bc\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x00");
    pages.unmap_from(0);
    let gone = send_sources(left.as_fd(), b"", &[Source::foreign(pages.range(), &registry).unwrap()], 0, u64::MAX);
    assert_eq!(gone.unwrap_err().raw_os_error(), Some(rustix::io::Errno::FAULT.raw_os_error()));
    let gone = recv_destinations(right.as_fd(), &mut [Destination::foreign(pages.range(), &registry).unwrap()], 0, 10);
    assert_eq!(gone.unwrap_err().raw_os_error(), Some(rustix::io::Errno::FAULT.raw_os_error()));
}
