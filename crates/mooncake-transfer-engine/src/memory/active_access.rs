//! Accesses to a buffer that go on when it is unregistered.

use std::fmt::Debug;

use crate::memory::buffers::Buffer;

/// Something that may be inside of a buffer, and that nothing of this process ends.
pub(crate) trait ActiveAccess: Send + Sync + Debug {
    /// Whether it may be to that buffer.
    fn touches(&self, buffer: &Buffer) -> bool;

    /// Whether it is still active.
    fn lasts(&self) -> bool;
}
