//! Whole pages of this process alone, for I/O that wants aligned memory and may go on after its caller.

use std::io::{self, ErrorKind};
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use mooncake_os::forked;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of a huge page, on hosts whose pages have 4 KiB. On others it costs as much address space, and the host does
/// as it likes.
const HUGE: usize = 2 << 20;

/// Memory, zeroed at first, that begins at a page and that a forked child does not have: what the kernel still writes
/// there for this process reaches no copy of it.
#[derive(Debug)]
pub struct PrivatePages {
    base: NonNull<u8>,
    len: usize,
    /// Keeps the memory mapped: all parts go together, with the last one.
    _mapping: Arc<Mapping>,
}

#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory that belongs to the owner of the pages.
unsafe impl Send for PrivatePages {}
// SAFETY: shared references only read it.
unsafe impl Sync for PrivatePages {}
// SAFETY: whichever thread has it last unmaps it, and nothing but its parts reaches it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl PrivatePages {
    /// So many of `len` bytes each, a multiple of 4,096, side by side, in huge pages where the host has any. A request
    /// of a disk has so many segments at most: each small page is one, and all of a huge page is one, so that a
    /// megabyte of small ones may need two requests. Memory is taken when it is first used.
    pub fn parts(count: usize, len: usize) -> io::Result<Vec<PrivatePages>> {
        assert!(count > 0 && len > 0 && len.is_multiple_of(4_096), "{count} parts of {len} bytes");
        let bytes = count.checked_mul(len).ok_or(ErrorKind::OutOfMemory)?;
        let (mapping, first) = Mapping::new(bytes)?;
        let mapping = Arc::new(mapping);
        let parts = (0..count).map(|nth| {
            // SAFETY: the mapping has room for all of them from the first one on.
            let base = unsafe { first.add(nth * len) };
            PrivatePages { base, len, _mapping: mapping.clone() }
        });
        Ok(parts.collect())
    }
}

impl Mapping {
    /// With room for so many bytes from a place on that is said: of a huge page on, unless they fill none.
    fn new(bytes: usize) -> io::Result<(Mapping, NonNull<u8>)> {
        let of_huge_pages = || bytes.checked_next_multiple_of(HUGE)?.checked_add(HUGE);
        let len = if bytes < HUGE { bytes } else { of_huge_pages().ok_or(ErrorKind::OutOfMemory)? };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) }?;
        let base = NonNull::new(base.cast::<u8>()).expect("a mapping is not at address 0");
        let mapping = Mapping { base, len };
        // SAFETY: the mapping made above; its content stays.
        unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork) }?;
        // SAFETY: the same. A hint: where the host forbids it, small pages do as well.
        let _ = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxHugepage) };
        let above = base.addr().get().next_multiple_of(HUGE) - base.addr().get();
        // SAFETY: of a huge page on it is less than a huge page above the base, and the mapping longer by one.
        let first = if bytes < HUGE { base } else { unsafe { base.add(above) } };
        Ok((mapping, first))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child, which does not have it, something else may be mapped there.
        if !forked() {
            // SAFETY: the mapping is this value's alone, and no part of it is there any more.
            let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

impl Deref for PrivatePages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped readable and zeroed for `len` bytes as long as this lives, which has them alone; changes need
        // `&mut`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for PrivatePages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped writable for `len` bytes as long as this lives, which has them alone, and borrowed
        // exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const PART: usize = 1_088 << 10;

    #[test]
    fn parts_are_zero_aligned_and_ones_own() {
        let mut parts = PrivatePages::parts(3, 8_192).unwrap();
        for (nth, part) in parts.iter_mut().enumerate() {
            assert!(part.iter().all(|byte| *byte == 0));
            assert_eq!((part.len(), part.as_ptr().addr() % 4096), (8_192, 0));
            part.fill(nth as u8 + 1);
        }
        // What is left of them stays.
        drop(parts.remove(1));
        assert!(parts[0].iter().all(|byte| *byte == 1) && parts[1].iter().all(|byte| *byte == 3));
    }

    #[test]
    fn many_parts_lie_in_huge_pages_and_no_forked_child_has_them() {
        for count in [2, 32] {
            let mut parts = PrivatePages::parts(count, PART).unwrap();
            let first = parts[0].as_ptr().addr();
            assert_eq!(first % HUGE, 0);
            assert!(parts.windows(2).all(|two| two[0].as_ptr().addr() + PART == two[1].as_ptr().addr()));
            parts[count - 1].fill(1);
            let flags = flags_at(first);
            assert!(flags.contains(&"dc".to_owned()), "{flags:?}");
            let has_huge_pages = Path::new("/sys/kernel/mm/transparent_hugepage").exists();
            assert_eq!(flags.contains(&"hg".to_owned()), has_huge_pages, "{flags:?}");
        }
    }

    #[test]
    fn more_than_can_be_mapped_is_refused() {
        for (count, len) in [(usize::MAX / 4_096, 8_192), (2, (usize::MAX / 2) & !4_095), (1, 1 << 60)] {
            assert!(PrivatePages::parts(count, len).is_err());
        }
    }

    /// What the kernel says of the mapping in which an address lies.
    fn flags_at(address: usize) -> Vec<String> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_inside = false;
        for line in smaps.lines() {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            if let Some((from, to)) = fields[0].split_once('-') {
                let [from, to] = [from, to].map(|address| usize::from_str_radix(address, 16).unwrap());
                is_inside = (from..to).contains(&address);
            } else if is_inside && fields[0] == "VmFlags:" {
                return fields.into_iter().map(str::to_owned).collect();
            }
        }
        panic!("{address:x} is not mapped")
    }
}
