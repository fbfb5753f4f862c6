//! What forked children must not keep of a parent's devices.

use std::os::fd::{BorrowedFd, RawFd};

use mooncake_os::Guarded;
use rustix::mm::{Advice, madvise};

/// A descriptor of the library's, which closes it: a forked child closes its own copy at once.
#[derive(Debug)]
pub(crate) struct LentFd {
    guarded: Option<Guarded<BorrowedFd<'static>>>,
}

impl LentFd {
    /// # Safety
    /// The library keeps it open until [`give_back`](LentFd::give_back).
    pub(crate) unsafe fn new(fd: RawFd) -> LentFd {
        // SAFETY: the caller's word.
        LentFd { guarded: Some(Guarded::new(unsafe { BorrowedFd::borrow_raw(fd) })) }
    }

    pub(crate) fn get(&self) -> BorrowedFd<'_> {
        **self.guarded.as_ref().expect("it is given back when its owner goes")
    }

    /// From here on no child closes it, and the library may. A child that is forked in between keeps a descriptor,
    /// instead of closing a stranger's.
    pub(crate) fn give_back(&mut self) {
        self.guarded = None;
    }
}

/// Keeps the mappings of RDMA devices that this process has from its children: one that inherited them would hold the
/// device's file, and with it queue pairs and registered memory, behind its parent's death. A user calls it when it has
/// made queue pairs or queues of completions, each of which has mappings. What cannot be read or advised is left as
/// it is: a child then holds it until it ends.
pub fn keep_from_children() {
    let Ok(maps) = std::fs::read("/proc/self/maps") else {
        return;
    };
    for (from, to) in device_mappings(&maps) {
        // SAFETY: the advice says only what a child inherits; of a mapping that is gone, and another in its place,
        // a child lacks that one, which is the worst that a process that forks beside this call meets.
        let _ = unsafe { madvise(std::ptr::with_exposed_provenance_mut(from), to - from, Advice::LinuxDontFork) };
    }
}

/// Address ranges of RDMA devices in the text of `/proc/PID/maps`.
fn device_mappings(maps: &[u8]) -> impl Iterator<Item = (usize, usize)> {
    let is_of_device = |line: &&[u8]| line.windows(17).any(|part| part == b"/dev/infiniband/u");
    maps.split(|byte| *byte == b'\n').filter(is_of_device).filter_map(|line| {
        let range = std::str::from_utf8(line.split(|byte| *byte == b' ').next()?).ok()?;
        let (from, to) = range.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        Some((address(from)?, address(to)?)).filter(|(from, to)| from < to)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_devices_are_found_among_others() {
        let maps = b"7f2f5c000000-7f2f5c021000 rw-p 00000000 00:00 0 \n\
            7f2f60a7e000-7f2f60a80000 rw-s 00001000 00:06 93                 /dev/infiniband/uverbs0\n\
            7f2f60a80000-7f2f60a81000 r--p 00000000 fe:00 11 /usr/lib/libibverbs.so.1.14.44.0\n\
            7f2f60a90000-7f2f60a91000 -w-s 00000000 00:06 94                 /dev/infiniband/uverbs12\n\
            nonsense /dev/infiniband/uverbs3\n";
        let found: Vec<(usize, usize)> = device_mappings(maps).collect();
        assert_eq!(found, [(0x7f2f_60a7_e000, 0x7f2f_60a8_0000), (0x7f2f_60a9_0000, 0x7f2f_60a9_1000)]);
    }
}
