//! Where the kernel takes a thread's pages from.

use std::io;

/// `MPOL_PREFERRED`: of that node while it has free pages, of others afterwards.
const PREFERRED: libc::c_int = 1;

const NODES: usize = 1024;

/// Makes the calling thread's new pages come from a NUMA node, as far as it has any left.
pub fn prefer_numa_node(node: u32) -> io::Result<()> {
    let mut mask = [0_u64; NODES / 64];
    let word = mask.get_mut(node as usize / 64);
    *word.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))? |= 1 << (node % 64);
    // SAFETY: the mask has as many bits as are announced and is only read.
    let rc = unsafe { libc::syscall(libc::SYS_set_mempolicy, PREFERRED, mask.as_ptr(), NODES) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
