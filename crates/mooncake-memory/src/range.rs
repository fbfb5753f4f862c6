//! Ranges of memory that are known by address.

/// A range of memory known by address only, as FFI callers give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignRange {
    pub(crate) addr: usize,
    pub(crate) len: usize,
}

impl ForeignRange {
    /// Takes an address and a length at the caller's word.
    ///
    /// The memory need not be mapped: what is not is reported as
    /// [`CopyError::Fault`](crate::CopyError::Fault) when it is used.
    ///
    /// # Safety
    /// Whatever of the range *is* mapped must be memory that this library may read, and write where the range is used
    /// as a [`Destination`](crate::Destination), for as long as the range is used or registered: no Rust object lives
    /// there that is borrowed elsewhere, and no thread unmaps it during a call that uses it.
    pub const unsafe fn new(addr: usize, len: usize) -> Self {
        Self { addr, len }
    }

    /// A part of it. Panics if that is not inside.
    pub const fn part(&self, offset: usize, len: usize) -> Self {
        assert!(offset <= self.len && len <= self.len - offset, "outside of the range");
        Self { addr: self.addr + offset, len }
    }

    /// First byte's address.
    pub const fn addr(&self) -> usize {
        self.addr
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// No bytes at all.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}
