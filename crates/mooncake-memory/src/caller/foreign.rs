//! Memory that may not be there.
//!
//! A pointer from a caller in another language may be stale, or never have been
//! host memory. Copying through it with plain loads would end the process with
//! a signal; the kernel answers `EFAULT` instead.

use std::io;

use crate::device;
use crate::error::CopyError;
use crate::range::ForeignRange;

/// Bytes per step through the kernel.
pub(crate) const KERNEL_STEP_BYTES: usize = 16 * 1024;

/// Copies from foreign memory into ours.
pub(crate) fn read(from: *const u8, into: &mut [u8]) -> Result<(), CopyError> {
    let len = into.len();
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: len };
    transfer(from.addr(), local, |local, remote| {
        // SAFETY: the local range is exclusively borrowed; the kernel checks the remote one.
        unsafe { libc::process_vm_readv(own_pid(), local, 1, remote, 1, 0) }
    })
}

/// Copies ours into foreign memory.
pub(crate) fn write(from: &[u8], into: *mut u8) -> Result<(), CopyError> {
    let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    transfer(into.addr(), local, |local, remote| {
        // SAFETY: the local range is only read; the kernel checks the remote one, which the maker of the
        // `ForeignRange` gave away.
        unsafe { libc::process_vm_writev(own_pid(), local, 1, remote, 1, 0) }
    })
}

fn transfer(
    addr: usize,
    local: libc::iovec,
    call: impl Fn(*const libc::iovec, *const libc::iovec) -> libc::ssize_t,
) -> Result<(), CopyError> {
    let len = local.iov_len;
    let mut done = 0;
    while done < len {
        let ours = libc::iovec { iov_base: local.iov_base.wrapping_byte_add(done), iov_len: len - done };
        let theirs =
            libc::iovec { iov_base: std::ptr::without_provenance_mut(addr.wrapping_add(done)), iov_len: len - done };
        match call(&raw const ours, &raw const theirs) {
            copied if copied > 0 => done += copied as usize,
            0 => return Err(fault(addr, len)),
            _ => {
                let source = io::Error::last_os_error();
                match source.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EFAULT | libc::EINVAL) => return Err(fault(addr, len)),
                    // A seccomp filter, or a kernel without the call.
                    _ => return Err(CopyError::Unchecked { addr, source }),
                }
            }
        }
    }
    Ok(())
}

/// Why the kernel cannot reach a range: it is not there, or it may be a device's
/// whose driver could not tell.
fn fault(addr: usize, len: usize) -> CopyError {
    match device::location_of(addr, len) {
        Ok(_) => CopyError::Fault { addr, len },
        Err(e) => e.into(),
    }
}

fn own_pid() -> libc::pid_t {
    // SAFETY: always succeeds.
    unsafe { libc::getpid() }
}

impl ForeignRange {
    /// Copies the first bytes of the range out of it, fault-safely. Panics if there are fewer.
    pub fn read_into(&self, bytes: &mut [u8]) -> Result<(), CopyError> {
        assert!(bytes.len() <= self.len, "{} bytes of a range of {}", bytes.len(), self.len);
        read(std::ptr::with_exposed_provenance(self.addr), bytes)
    }

    /// Copies bytes to the start of the range, fault-safely. Panics if there is no room for them.
    pub fn write_from(&self, bytes: &[u8]) -> Result<(), CopyError> {
        assert!(bytes.len() <= self.len, "{} bytes for a range of {}", bytes.len(), self.len);
        write(bytes, std::ptr::with_exposed_provenance_mut(self.addr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::trial::tests::hole;
    use crate::caller::trial::{Touch, Trial, check_usable};
    use crate::file::mapped_file::PAGE;

    #[test]
    fn memory_is_copied_both_ways() {
        let source: Vec<u8> = (0..100_000).map(|i| i as u8).collect();
        let mut copy = vec![0; source.len()];
        read(source.as_ptr(), &mut copy).unwrap();
        assert_eq!(copy, source);
        let mut back = vec![0; source.len()];
        write(&copy, back.as_mut_ptr()).unwrap();
        assert_eq!(back, source);
        check_usable(source.as_ptr().addr(), source.len(), Touch::Load, Trial::Possible).unwrap();
        check_usable(back.as_ptr().addr(), back.len(), Touch::Store, Trial::Possible).unwrap();
    }

    #[test]
    fn memory_that_is_not_there_is_an_error_and_no_signal() {
        let mut bytes = [1; 64];
        for addr in [8, usize::MAX - 100, 1 << 60] {
            let ptr = std::ptr::without_provenance_mut::<u8>(addr);
            assert!(matches!(read(ptr, &mut bytes), Err(CopyError::Fault { .. })), "{addr:#x}");
            assert!(matches!(write(&bytes, ptr), Err(CopyError::Fault { .. })), "{addr:#x}");
            assert!(
                matches!(check_usable(addr, 64, Touch::Load, Trial::Possible), Err(CopyError::Fault { .. })),
                "{addr:#x}"
            );
        }
    }

    #[test]
    fn memory_that_ends_in_the_middle_is_not_copied_in_part_and_called_whole() {
        let (page, addr) = (PAGE as usize, hole());
        for (from, len, there) in [
            (0, page, true),
            (2 * page, page, true),
            (0, page + 1, false),
            (page - 1, 2, false),
            (0, 3 * page, false),
            (page, 1, false),
            (2 * page - 1, 2, false),
        ] {
            let at = std::ptr::without_provenance_mut::<u8>(addr + from);
            let mut bytes = vec![0; len];
            let read = read(at, &mut bytes);
            assert_eq!(read.is_ok(), there, "{from} {len}: {read:?}");
            assert!(!there || bytes.iter().all(|byte| *byte == 7));
            assert_eq!(write(&vec![7; len], at).is_ok(), there, "{from} {len}");
            for touch in [Touch::Load, Touch::Store] {
                assert_eq!(check_usable(addr + from, len, touch, Trial::Possible).is_ok(), there, "{from} {len}");
            }
        }
    }
}
