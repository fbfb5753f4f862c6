//! Errors of segments, copies, reads, registrations and devices.

use std::io;
use std::time::Duration;

/// A segment could not be made, mapped, populated or given back.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// A system call failed.
    #[error("{what}: {source}")]
    Os {
        /// The step that failed.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A size that no segment can have.
    #[error("a segment of {bytes} bytes cannot be made: {reason}")]
    InvalidSize {
        /// The size asked for.
        bytes: u64,
        /// Why not.
        reason: &'static str,
    },
    /// A file that cannot be memory of a segment.
    #[error("{path} from byte {offset} on, {bytes} bytes, cannot be a segment: {reason}")]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        bytes: u64,
        /// Why not.
        reason: String,
    },
    /// A limit of this process, its memory cgroup or its host is too low.
    #[error(
        "{wanted} bytes are wanted, but {limit} leaves {available} bytes; lower the segment size or raise the limit"
    )]
    Limit {
        /// Bytes asked for, stamps included.
        wanted: u64,
        /// Bytes that the limit leaves.
        available: u64,
        /// The limit, with its figures.
        limit: String,
    },
    /// Huge pages were asked for and the host has not enough of them free.
    #[error(
        "{wanted} huge pages of {page_bytes} bytes are wanted, {free} are free (total {total}, reserved {reserved}); \
         raise vm.nr_hugepages or turn huge pages off"
    )]
    HugePages {
        /// Pages wanted.
        wanted: u64,
        /// Bytes of one page.
        page_bytes: u64,
        /// Pages free and not reserved.
        free: u64,
        /// Pages in the pool.
        total: u64,
        /// Pages promised to others.
        reserved: u64,
    },
    /// A descriptor whose size its owner could still change: mapping it would
    /// let that owner kill this process.
    #[error("the {which} descriptor is not a sealed memfd (seals {seals:#x}, needed {needed:#x}): not mapped")]
    NotSealed {
        /// "data" or "control".
        which: &'static str,
        /// Seals found; 0 when it cannot be sealed at all.
        seals: u32,
        /// Seals needed.
        needed: u32,
    },
    /// A descriptor of another size than announced.
    #[error("the {which} descriptor has {actual} bytes instead of {expected}: not mapped")]
    WrongSize {
        /// "data" or "control".
        which: &'static str,
        /// Bytes announced.
        expected: u64,
        /// Bytes found.
        actual: u64,
    },
    /// The control memory does not begin as one of ours does.
    #[error("the control memory is not one of this version: {reason}")]
    BadHeader {
        /// What differs.
        reason: String,
    },
    /// The memory is another segment's.
    #[error("the memory belongs to segment {found}, not to {expected}")]
    WrongUuid {
        /// UUID announced.
        expected: String,
        /// UUID in the memory.
        found: String,
    },
    /// The kernel could not provide the pages.
    #[error("population stopped at {populated} of {bytes} bytes: {source}")]
    Populate {
        /// Bytes that are populated.
        populated: u64,
        /// Size of the segment.
        bytes: u64,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The memory has been given back already.
    #[error("the segment's memory has been given back")]
    GivenBack,
    /// The operation needs a writable mapping.
    #[error("the segment is mapped read-only")]
    ReadOnly,
    /// This process is a forked child of the one that made the mapping.
    #[error("this process was forked from the one that uses the segment; set up a new store in a fresh process")]
    Forked,
}

impl MemoryError {
    pub(crate) fn os(what: &'static str) -> impl FnOnce(io::Error) -> MemoryError {
        move |source| MemoryError::Os { what, source }
    }
}

/// Bytes could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The caller's memory is not mapped, or not with the access needed.
    #[error("{len} bytes at {addr:#x} are not accessible memory of this process")]
    Fault {
        /// Start of the piece.
        addr: usize,
        /// Its length.
        len: usize,
    },
    /// The driver of the device that the caller's memory belongs to refused a call.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// All pinned memory that device memory is copied through was in use for too long.
    #[error(
        "no pinned memory for a copy from or to device {device}: all {rings} parts were in use for {waited:?}; copy \
         from fewer threads, or look why the device stands still"
    )]
    NoStaging {
        /// Ordinal of the device.
        device: i32,
        /// Rings that there are.
        rings: usize,
        /// How long one was waited for.
        waited: Duration,
    },
    /// Foreign memory cannot be reached safely on this host.
    #[error("memory at {addr:#x} is not registered and cannot be copied fault-safely here ({source}); register it")]
    Unchecked {
        /// Start of the piece.
        addr: usize,
        /// Answer of `process_vm_readv` or `process_vm_writev`.
        source: io::Error,
    },
    /// The extent lies outside of the segment.
    #[error("offset {offset} + {len} bytes lies outside of a segment of {bytes} bytes")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// Length.
        len: u64,
        /// Size of the segment.
        bytes: u64,
    },
    /// The mapping is read-only.
    #[error("the segment is mapped read-only")]
    ReadOnly,
    /// The page tables could not be filled.
    #[error("the segment's pages at offset {offset} cannot be reached: {source}")]
    Populate {
        /// Where.
        offset: u64,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A newer placement, or a tombstone, covers part of the extent.
    #[error("write of rid {rid:#x} refused: the extent carries the newer stamp {found:#x}")]
    Superseded {
        /// Rid of the refused write.
        rid: u64,
        /// Stamp found.
        found: u64,
    },
    /// This process is a forked child of the one that made the mapping.
    #[error("this process was forked from the one that uses the segment")]
    Forked,
}

/// A read did not give the object.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The extent is another placement's by now: look the key up again.
    #[error("the extent no longer carries rid {rid:#x} but {found:#x}")]
    Stale {
        /// Rid of the placement that was read.
        rid: u64,
        /// The first other stamp.
        found: u64,
    },
    /// The bytes are this placement's and yet wrong: report the replica.
    #[error("checksum {actual:#010x} instead of {expected:#010x} over the bytes of rid {rid:#x}")]
    Checksum {
        /// Rid of the placement.
        rid: u64,
        /// CRC-32C that the writer reported.
        expected: u32,
        /// CRC-32C of the bytes.
        actual: u32,
    },
    /// The bytes could not be copied.
    #[error(transparent)]
    Copy(#[from] CopyError),
}

/// A range could not be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The range is empty or wraps around.
    #[error("{len} bytes at {addr:#x} are no range of memory")]
    Invalid {
        /// Start.
        addr: usize,
        /// Length.
        len: usize,
    },
    /// Another range starts at the same address.
    #[error("a range of {registered} bytes is already registered at {addr:#x}; unregister it first")]
    Already {
        /// Start.
        addr: usize,
        /// Length of the registered one.
        registered: usize,
    },
    /// Part of the range is not readable memory of this process.
    #[error("{len} bytes at {addr:#x} are not all readable memory of this process")]
    NotReadable {
        /// Start.
        addr: usize,
        /// Length.
        len: usize,
    },
    /// The driver of a device failed when it was asked about the range.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The probe itself failed.
    #[error("{len} bytes at {addr:#x} could not be probed: {source}")]
    Probe {
        /// Start.
        addr: usize,
        /// Length.
        len: usize,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A call of a device's driver failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{call} for {len} bytes at {addr:#x} of device {device} failed: {name} ({code})")]
pub struct DeviceError {
    /// Name of the call.
    pub call: &'static str,
    /// The driver's name of the error.
    pub name: &'static str,
    /// Its number.
    pub code: i32,
    /// Device memory that the call was about; 0 if about none.
    pub addr: usize,
    /// Its length in bytes.
    pub len: usize,
    /// Ordinal of the device; -1 if it was not known yet.
    pub device: i32,
}
