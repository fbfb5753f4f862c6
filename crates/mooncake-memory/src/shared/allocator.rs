//! Memory that callers get from us: for their own data, aligned and populated.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous};

use crate::addresses::Addresses;
use crate::error::MemoryError;
use crate::file::mapped_file::PAGE;
use crate::file::{limits, memfd};
use crate::range::ForeignRange;
use crate::shared::revision_page::advance_all;
use mooncake_os::{Guarded, forked};

/// Most blocks of this process's own whose files stay open for peers that would map them: descriptors are few, and
/// blocks may be many. Common memory does not count: no process could share it without its file.
const FILES_MAX: usize = 256;

/// What was handed out and not taken back.
static HANDED_OUT: Mutex<HandedOut> = Mutex::new(HandedOut { by_addr: BTreeMap::new(), files: 0, last_id: 0 });

struct HandedOut {
    by_addr: BTreeMap<usize, Block>,
    /// Of blocks that are this process's own.
    files: usize,
    last_id: u64,
}

struct Block {
    addresses: Arc<Addresses>,
    file: Option<File>,
}

struct File {
    id: u64,
    fd: Guarded<OwnedFd>,
    /// Its pages end with this mapping: no other process has any business with them afterwards.
    sole: bool,
    /// A descriptor was handed out: another process may have the file too.
    given: bool,
}

/// A block of this process's memory that other processes can map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedBlock {
    /// Its number in this process: never 0, never used again.
    pub id: u64,
    /// First address.
    pub addr: usize,
    /// Bytes, whole pages.
    pub len: usize,
}

/// The block of shared memory that a range lies in, if there is one that others can map.
pub fn shared_block(addr: usize, len: usize) -> Option<SharedBlock> {
    let handed_out = HANDED_OUT.lock();
    let (_, block) = handed_out.by_addr.range(..=addr).next_back()?;
    let id = block.file.as_ref()?.id;
    block.addresses.has(addr, len).then_some(SharedBlock { id, addr: block.addresses.base, len: block.addresses.len })
}

/// A descriptor of a block, to be given to a process that may map it. None if the block has been freed.
pub fn shared_block_file(id: u64) -> Option<OwnedFd> {
    let mut handed_out = HANDED_OUT.lock();
    let mut files = handed_out.by_addr.values_mut().filter_map(|block| block.file.as_mut());
    let file = files.find(|file| file.id == id)?;
    if forked() {
        return None;
    }
    file.given = true;
    file.fd.try_clone().ok()
}

/// Makes shared memory (a sealed memfd of its own) of at least `bytes`, whole
/// pages, populated and zero. Returns its address; [`free_host_memory`] ends it.
/// Limits of the process, its memory cgroup and its host are looked at first.
pub fn allocate_shared(bytes: u64) -> Result<usize, MemoryError> {
    make_shared(bytes, true)
}

/// The same for memory that other processes go on to use when this one has freed it: the pages live as long as any
/// process maps them.
pub(crate) fn allocate_common(bytes: u64) -> Result<SharedBlock, MemoryError> {
    Ok(block_at(make_shared(bytes, false)?))
}

/// Maps memory that another process has made by [`allocate_common`] and sent; [`free_host_memory`] ends the mapping.
/// Refuses what its maker could still shorten.
pub(crate) fn map_common(fd: OwnedFd, bytes: u64) -> Result<SharedBlock, MemoryError> {
    let len = whole(bytes, PAGE)?;
    memfd::check(fd.as_fd(), "shared", len as u64)?;
    Ok(block_at(map_file(fd, len, false)?))
}

/// The block of common memory just made at an address.
fn block_at(addr: usize) -> SharedBlock {
    shared_block(addr, 1).expect("just made, and its file is kept")
}

fn make_shared(bytes: u64, sole: bool) -> Result<usize, MemoryError> {
    if forked() {
        return Err(MemoryError::Forked);
    }
    let len = whole(bytes, PAGE)?;
    limits::check(len as u64, 0, false, PAGE)?;
    map_file(memfd::create("kv-host-memory", len as u64, false)?, len, sole)
}

fn map_file(fd: OwnedFd, len: usize, sole: bool) -> Result<usize, MemoryError> {
    if forked() {
        return Err(MemoryError::Forked);
    }
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let made = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, &fd, 0) };
    let base = made.map_err(|errno| MemoryError::os("mmap of host memory")(errno.into()))?;
    hand_out(base.addr(), len, Some((fd, sole)));
    Ok(base.expose_provenance())
}

/// The same for as long as the process lives.
pub fn leak_shared(bytes: u64) -> Result<ForeignRange, MemoryError> {
    let addr = allocate_shared(bytes)?;
    // Forgotten here, so that no caller can free what another one still uses.
    let block = HANDED_OUT.lock().take(addr);
    drop(block);
    // SAFETY: mapped, writable and never unmapped; no Rust object lives in it.
    Ok(unsafe { ForeignRange::new(addr, bytes as usize) })
}

/// Makes private zero memory of at least `bytes` in huge pages of the host's
/// pool or, where there are not enough, in ordinary ones that the kernel may
/// merge. Pages come with the first access.
pub fn allocate_huge(bytes: u64) -> Result<usize, MemoryError> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let huge = limits::huge_page_bytes().unwrap_or(PAGE);
    let len = whole(bytes, huge)?;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    if let Ok(base) = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE | MapFlags::HUGETLB) } {
        hand_out(base.addr(), len, None);
        return Ok(base.expose_provenance());
    }
    let len = whole(bytes, PAGE)?;
    limits::check(len as u64, 0, false, PAGE)?;
    // SAFETY: as above.
    let made = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) };
    let base = made.map_err(|errno| MemoryError::os("mmap of host memory")(errno.into()))?;
    // SAFETY: the mapping just made; contents do not change. Where the host forbids it, small pages do as well.
    let _ = unsafe { madvise(base, len, Advice::LinuxHugepage) };
    hand_out(base.addr(), len, None);
    Ok(base.expose_provenance())
}

/// Takes memory back that one of the above made; false if there is none at that address. Its addresses are free once no
/// [`AddressHold`](crate::AddressHold) has them, and no memory until then.
///
/// # Safety
/// Nothing uses that memory any more.
pub unsafe fn free_host_memory(addr: usize) -> bool {
    let Some(block) = HANDED_OUT.lock().take(addr) else { return false };
    if let Some(file) = block.file.as_ref().filter(|_| !forked()) {
        if file.given {
            // Processes that copy to or from it without asking find out, also where it is still lent by mistake.
            advance_all();
        }
        if file.sole {
            // A process that still maps it keeps the mapping, and no pages. If that fails, they end with the last
            // mapping.
            let _ = memfd::punch(file.fd.as_fd(), 0, block.addresses.len as u64);
        }
    }
    // SAFETY: mapped by one of the above and given up by its user.
    unsafe { block.addresses.free() };
    true
}

/// Asks the kernel for huge pages inside a range that is about to be filled for
/// the first time; a hint, and none at all for short ranges.
///
/// # Safety
/// The range is memory of the caller's.
pub unsafe fn prefer_huge_pages(base: *mut u8, len: usize) {
    const WORTH_IT: usize = 4 << 20;
    if len < WORTH_IT {
        return;
    }
    let skipped = base.addr().next_multiple_of(PAGE as usize) - base.addr();
    let inside = (len - skipped) & !(PAGE as usize - 1);
    // SAFETY: whole pages inside the caller's memory; contents do not change.
    let _ = unsafe { madvise(base.wrapping_add(skipped).cast(), inside, Advice::LinuxHugepage) };
}

fn hand_out(addr: usize, len: usize, file: Option<(OwnedFd, bool)>) {
    let mut handed_out = HANDED_OUT.lock();
    let file = file.filter(|(_, sole)| !sole || handed_out.files < FILES_MAX).map(|(fd, sole)| {
        handed_out.files += usize::from(sole);
        handed_out.last_id += 1;
        File { id: handed_out.last_id, fd: Guarded::new(fd), sole, given: false }
    });
    let addresses = Addresses::of_mapping(addr, len);
    handed_out.by_addr.insert(addr, Block { addresses, file });
}

impl HandedOut {
    fn take(&mut self, addr: usize) -> Option<Block> {
        let block = self.by_addr.remove(&addr)?;
        self.files -= usize::from(block.file.as_ref().is_some_and(|file| file.sole));
        Some(block)
    }
}

fn whole(bytes: u64, page: u64) -> Result<usize, MemoryError> {
    let reason = if bytes == 0 { "it is empty" } else { "larger than the address space" };
    let rounded = bytes.checked_next_multiple_of(page).filter(|&rounded| rounded > 0 && rounded < 1 << 47);
    rounded.map(|rounded| rounded as usize).ok_or(MemoryError::InvalidSize { bytes, reason })
}

#[cfg(test)]
mod tests {
    use mooncake_test_support::mapped_range;

    use super::*;
    use crate::addresses::hold_addresses;
    use crate::shared::peer_memory::PeerMemory;
    use crate::shared::revision_page::{ALONE, RevisionPage};

    fn touch(addr: usize, len: usize) {
        let base: *mut u8 = ptr::with_exposed_provenance_mut(addr);
        for at in [0, len / 2, len - 1] {
            // SAFETY: inside memory of at least `len` bytes that this test alone has.
            unsafe {
                assert_eq!(base.add(at).read(), 0);
                base.add(at).write(7);
            }
        }
    }

    #[test]
    fn memory_is_zero_whole_pages_and_taken_back_once() {
        for allocate in [allocate_shared, allocate_huge] {
            let addr = allocate(100_001).unwrap();
            assert_eq!(addr % PAGE as usize, 0);
            touch(addr, 102_400);
            // SAFETY: nobody else has it.
            unsafe {
                assert!(!free_host_memory(addr + 4096));
                assert!(free_host_memory(addr));
                assert!(!free_host_memory(addr));
            }
        }
    }

    #[test]
    fn shared_memory_is_found_by_its_ranges_and_is_empty_for_others_once_freed() {
        let _alone = ALONE.lock();
        let addr = allocate_shared(100_000).unwrap();
        let block = shared_block(addr + 10, 50_000).unwrap();
        assert_eq!((block.addr, block.len), (addr, 102_400));
        assert!(shared_block(addr + 102_000, 401).is_none() && shared_block(addr - 1, 1).is_none());
        let peer = PeerMemory::map(&shared_block_file(block.id).unwrap(), block.len as u64).unwrap();
        let theirs = peer.range(4096, 3).unwrap();
        theirs.write_from(b"abc").unwrap();
        let mut found = [0; 3];
        // SAFETY: inside memory that this test alone has.
        unsafe { ForeignRange::new(addr + 4096, 3) }.read_into(&mut found).unwrap();
        assert_eq!(&found, b"abc");
        assert!(peer.range(102_399, 2).is_none() && peer.range(u64::MAX, 2).is_none());
        // SAFETY: nobody uses it.
        assert!(unsafe { free_host_memory(addr) });
        theirs.read_into(&mut found).unwrap();
        assert_eq!(found, [0; 3], "its pages are gone, for whoever maps it too");
        assert!(shared_block(addr, 1).is_none() && shared_block_file(block.id).is_none());
    }

    #[test]
    fn addresses_of_freed_memory_are_nobodys_while_they_are_held() {
        let _alone = ALONE.lock();
        for allocate in [allocate_shared, allocate_huge] {
            let addr = allocate(64 << 10).unwrap();
            assert!(hold_addresses(addr + 4096, 64 << 20).is_none());
            let held = [(addr, 64 << 10), (addr + 8192, 10)].map(|(addr, len)| hold_addresses(addr, len).unwrap());
            drop(hold_addresses(addr, 1));
            assert_eq!(mapped_range(addr).unwrap().access, "rw-");
            assert!(!held[0].is_freed());
            // SAFETY: nobody uses it.
            assert!(unsafe { free_host_memory(addr) });
            assert!(hold_addresses(addr, 1).is_none());
            // SAFETY: nothing is mapped there that anybody has.
            let late = unsafe { ForeignRange::new(addr + 8192, 3) };
            for held in held {
                for at in [addr, addr + 8192, addr + (64 << 10) - 1] {
                    assert_eq!(mapped_range(at).unwrap().access, "---");
                }
                assert!(held.is_freed());
                assert!(late.write_from(b"abc").is_err() && late.read_into(&mut [0; 3]).is_err());
                drop(held);
            }
            assert!(mapped_range(addr).is_none_or(|range| range.access != "---"), "its addresses are free again");
        }
    }

    #[test]
    fn boards_tell_of_the_end_of_memory_that_others_may_have() {
        let _alone = ALONE.lock();
        let board = RevisionPage::new().unwrap();
        for is_given in [false, true] {
            let (addr, before) = (allocate_shared(4096).unwrap(), board.get());
            let _file = is_given.then(|| shared_block_file(shared_block(addr, 1).unwrap().id).unwrap());
            // SAFETY: nobody uses it.
            assert!(unsafe { free_host_memory(addr) });
            assert_eq!(board.get() - before, u64::from(is_given));
        }
    }

    #[test]
    fn common_memory_stays_with_those_who_map_it() {
        let _alone = ALONE.lock();
        let block = allocate_common(5000).unwrap();
        let other = map_common(shared_block_file(block.id).unwrap(), 5000).unwrap().addr;
        assert_ne!(other, block.addr);
        // SAFETY: both are this test's.
        let (ours, theirs) = unsafe { (ForeignRange::new(block.addr, 3), ForeignRange::new(other, 3)) };
        ours.write_from(b"abc").unwrap();
        // SAFETY: nobody uses it.
        assert!(unsafe { free_host_memory(block.addr) });
        let mut found = [0; 3];
        theirs.read_into(&mut found).unwrap();
        assert_eq!(&found, b"abc");
        // SAFETY: as above.
        assert!(unsafe { free_host_memory(other) });
        assert!(map_common(OwnedFd::from(std::fs::File::open("/dev/zero").unwrap()), 5000).is_err());
    }

    #[test]
    fn sizes_that_cannot_be_had_are_errors() {
        for allocate in [allocate_shared, allocate_huge] {
            for bytes in [0, 1 << 46, u64::MAX] {
                assert!(allocate(bytes).is_err(), "{bytes}");
            }
        }
    }

    /// The first byte of a file.
    fn first_byte(file: &OwnedFd) -> u8 {
        let mut byte = [0];
        assert_eq!(rustix::io::pread(file, &mut byte, 0), Ok(1));
        byte[0]
    }

    #[test]
    fn each_block_has_a_number_and_a_file_of_its_own_and_ends_where_it_ends() {
        let _alone = ALONE.lock();
        let addrs = [10_000, 4096, 20_000].map(|bytes| allocate_shared(bytes).unwrap());
        let blocks = addrs.map(|addr| shared_block(addr, 1).unwrap());
        for (nth, block) in (1..).zip(&blocks) {
            // SAFETY: the first byte of memory that this test alone has.
            unsafe { ptr::with_exposed_provenance_mut::<u8>(block.addr).write(nth) };
        }
        for (nth, block) in (1..).zip(&blocks) {
            assert_eq!(first_byte(&shared_block_file(block.id).unwrap()), nth, "another one's memory");
            assert!(blocks.iter().filter(|other| other.id == block.id).count() == 1 && block.id != 0);
            let (end, len) = (block.addr + block.len, block.len);
            assert_eq!([shared_block(block.addr, len), shared_block(end - 1, 1)], [Some(*block); 2]);
            for (addr, len) in [(block.addr, len + 1), (block.addr + 1, len), (end - 1, 2), (end - 1, usize::MAX)] {
                assert_ne!(shared_block(addr, len), Some(*block));
            }
            // Behind it there may be another one's, and it is not this one's.
            for addr in [end, end + 1, end + (1 << 40)] {
                assert_ne!(shared_block(addr, 1).map(|block| block.id), Some(block.id));
            }
        }
        let highest = blocks.iter().map(|block| block.id).max().unwrap();
        for addr in addrs {
            // SAFETY: nobody uses it.
            assert!(unsafe { free_host_memory(addr) });
        }
        assert!(blocks.iter().all(|block| shared_block_file(block.id).is_none()));
        let next = allocate_shared(4096).unwrap();
        assert!(shared_block(next, 1).unwrap().id > highest, "a number that somebody may still know");
        // SAFETY: nobody uses it.
        assert!(unsafe { free_host_memory(next) });
    }

    #[test]
    fn memory_that_its_maker_could_still_shorten_is_not_common() {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
        let made = |bytes, seals| {
            let fd = memfd_create("common", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&fd, bytes).unwrap();
            fcntl_add_seals(&fd, seals).unwrap();
            fd
        };
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::SHRINK | SealFlags::GROW] {
            assert!(matches!(map_common(made(8192, seals), 8192), Err(MemoryError::NotSealed { .. })));
        }
        for bytes in [4096, 12_288] {
            assert!(matches!(map_common(made(bytes, all), 8192), Err(MemoryError::WrongSize { .. })));
        }
        let block = map_common(made(8192, all), 8000).unwrap();
        assert_eq!(block.len, 8192);
        // SAFETY: this test's.
        assert!(unsafe { free_host_memory(block.addr) });
    }

    #[test]
    fn a_size_that_cannot_be_had_is_said_to_be_that_and_why() {
        let invalid = |bytes| match whole(bytes, PAGE) {
            Err(error @ MemoryError::InvalidSize { .. }) => error.to_string(),
            other => panic!("{bytes}: {other:?}"),
        };
        assert!(invalid(0).contains("empty"), "{}", invalid(0));
        for bytes in [1 << 47, (1 << 47) - 4095, u64::MAX, u64::MAX - 4096] {
            assert!(invalid(bytes).contains("address space"), "{}", invalid(bytes));
        }
        for (bytes, len) in [(1, 4096), (4096, 4096), (4097, 8192), ((1 << 47) - 4096, (1 << 47) - 4096)] {
            assert_eq!(whole(bytes, PAGE).unwrap(), len);
        }
        for allocate in [allocate_shared, allocate_huge] {
            let error = allocate(1 << 46).unwrap_err();
            assert!(matches!(error, MemoryError::Limit { wanted, available, .. } if available < wanted), "{error}");
        }
    }
}
