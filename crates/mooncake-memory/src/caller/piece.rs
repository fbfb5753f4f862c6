//! Pieces of a caller's memory: what a put reads from and a get writes to.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use crate::caller::bounce::Bounce;
use crate::caller::foreign::{self, KERNEL_STEP_BYTES};
use crate::caller::neighbours::Neighbours;
use crate::caller::reach::RunsOut;
use crate::caller::registry::{Memory, Registry};
use crate::caller::trial::{self, Touch, Trial};
use crate::copy::barrier::store_barrier;
use crate::copy::checksum::crc32c_append;
use crate::copy::{self, STREAM_PARTS_FROM, Stores};
use crate::device::{self, Location, Staging};
use crate::error::CopyError;
use crate::range::ForeignRange;

/// How the memory of a piece may be touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Borrowed from Rust: always valid.
    Safe,
    /// Inside a registered range, or known to a device's driver as the host's: checked to be usable, then direct.
    Known(Trial),
    /// Through the kernel only.
    Unknown,
    /// Memory of this device: staged by its driver, see [`device`].
    Device(i32),
}

impl Access {
    pub(crate) fn device(self) -> Option<i32> {
        if let Access::Device(device) = self { Some(device) } else { None }
    }

    fn to(range: ForeignRange, registry: &Registry, writable: bool) -> Result<Access, RunsOut> {
        Ok(match registry.memory_of(range, writable)? {
            Some(Memory::Device(device)) => Access::Device(device),
            Some(Memory::Host { trial, .. }) => Access::Known(trial),
            None => Access::unregistered(range),
        })
    }

    fn unregistered(range: ForeignRange) -> Access {
        let ForeignRange { addr, len } = range;
        if len == 0 {
            return Access::Unknown;
        }
        match device::location_of(addr, len) {
            Ok(Location::Device(device)) => Access::Device(device),
            Ok(Location::Host) => Access::Known(Trial::Possible),
            // The kernel copies ordinary memory. Where it cannot, `foreign` asks the driver again, and returns its
            // error.
            Ok(Location::Unknown) | Err(_) => Access::Unknown,
        }
    }
}

/// The pieces that a list begins with and that lie on the same device, taken off it: the device, and address and length
/// of each.
pub(crate) fn leading_run<P>(
    rest: &mut &[P],
    place: impl Fn(&P) -> (Access, usize, usize),
) -> Option<(i32, Vec<(usize, usize)>)> {
    let device = place(rest.first()?).0.device()?;
    let count = rest.iter().take_while(|piece| place(piece).0.device() == Some(device)).count();
    let (run, others) = rest.split_at(count);
    *rest = others;
    let range = |piece| {
        let (_, addr, len) = place(piece);
        (addr, len)
    };
    Some((device, run.iter().map(range).collect()))
}

/// A piece of memory to read from. An object is the concatenation of pieces.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    pub(crate) ptr: *const u8,
    pub(crate) len: usize,
    pub(crate) access: Access,
    /// Pieces of the same call, if it was told of them: one check may cover several.
    among: Option<&'a Neighbours>,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: a source only reads; borrowed memory is shared, foreign memory is the caller's word.
unsafe impl Send for Source<'_> {}
// SAFETY: as above.
unsafe impl Sync for Source<'_> {}

impl<'a> Source<'a> {
    /// A piece of borrowed memory.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { ptr: bytes.as_ptr(), len: bytes.len(), access: Access::Safe, among: None, memory: PhantomData }
    }

    /// A piece of foreign memory: copied directly if it lies in a registered
    /// range, by its driver if it is a device's, fault-safely through the kernel otherwise.
    /// Refused where it begins in a registered range and runs out of it.
    pub fn foreign(range: ForeignRange, registry: &Registry) -> Result<Source<'static>, RunsOut> {
        Ok(Source::with(range, Access::to(range, registry, false)?))
    }

    /// The pieces of one object; one that is refused refuses the object.
    pub fn all_foreign(ranges: &[ForeignRange], registry: &Registry) -> Result<Vec<Source<'static>>, RunsOut> {
        let mut all = Vec::with_capacity(ranges.len());
        for range in ranges {
            all.push(Source::foreign(*range, registry)?);
        }
        Ok(all)
    }

    /// A piece of foreign memory, for a caller that keeps its list of registered ranges elsewhere and has looked there.
    pub fn unregistered(range: ForeignRange) -> Source<'static> {
        Source::with(range, Access::unregistered(range))
    }

    fn with(range: ForeignRange, access: Access) -> Source<'static> {
        Source {
            ptr: std::ptr::with_exposed_provenance(range.addr),
            len: range.len,
            access,
            among: None,
            memory: PhantomData,
        }
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// No bytes at all.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it is a device's memory, which processors cannot touch.
    pub fn is_on_device(&self) -> bool {
        self.access.device().is_some()
    }

    /// The same piece, which needs no check by itself where a neighbour has made it already.
    pub fn among(self, neighbours: &'a Neighbours) -> Self {
        Self { among: Some(neighbours), ..self }
    }

    /// The bytes up to `mid` and those from it on. Panics if `mid > len`.
    pub fn split_at(self, mid: usize) -> (Self, Self) {
        assert!(mid <= self.len, "split at {mid} of a piece of {} bytes", self.len);
        (Self { len: mid, ..self }, Self { ptr: self.ptr.wrapping_add(mid), len: self.len - mid, ..self })
    }
}

impl Source<'_> {
    /// Copies a piece of host memory to `to` and continues `crc` over exactly what was copied.
    ///
    /// # Safety
    /// `to` is writable for the piece's length and does not overlap it.
    pub(crate) unsafe fn store(&self, mut crc: u32, to: *mut u8, stores: Stores) -> Result<u32, CopyError> {
        debug_assert_eq!(self.access.device(), None);
        if self.access == Access::Unknown {
            let mut buffer = [0; KERNEL_STEP_BYTES];
            let mut done = 0;
            while done < self.len {
                let step = KERNEL_STEP_BYTES.min(self.len - done);
                foreign::read(self.ptr.wrapping_add(done), &mut buffer[..step])?;
                // SAFETY: `done + step` bytes of the destination are the caller's word.
                crc = unsafe { copy::copy_and_checksum(crc, buffer.as_ptr(), to.add(done), step, stores) };
                done += step;
            }
            return Ok(crc);
        }
        if let Access::Known(trial) = self.access {
            check_usable(self.among, self.ptr.addr(), self.len, Touch::Load, trial)?;
        }
        // SAFETY: the source is borrowed, or known and readable at this moment; the destination is the caller's word.
        Ok(unsafe { copy::copy_and_checksum(crc, self.ptr, to, self.len, stores) })
    }
}

/// A piece of memory to write to. An object is the concatenation of pieces.
#[derive(Debug)]
pub struct Destination<'a> {
    pub(crate) ptr: *mut u8,
    pub(crate) len: usize,
    pub(crate) access: Access,
    stores: Stores,
    /// Pieces of the same call, if it was told of them: one check may cover several.
    among: Option<&'a Neighbours>,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: a destination is an exclusive borrow, or foreign memory at the caller's word.
unsafe impl Send for Destination<'_> {}

impl<'a> Destination<'a> {
    /// A piece of borrowed memory.
    pub const fn new(bytes: &'a mut [u8]) -> Self {
        Self::safe(bytes.as_mut_ptr(), bytes.len())
    }

    /// A piece of borrowed memory that a disk is to have from here, and no caller reads: a long one is stored past the
    /// caches. Through them each store may wait for its line (docs/where-the-time-goes.md).
    pub const fn for_disk(bytes: &'a mut [u8]) -> Self {
        let stores = if bytes.len() >= STREAM_PARTS_FROM { Stores::Streaming } else { Stores::Plain };
        Self { stores, ..Self::new(bytes) }
    }

    const fn safe(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len, access: Access::Safe, stores: Stores::Plain, among: None, memory: PhantomData }
    }

    /// A piece of borrowed memory that holds nothing yet. After a successful
    /// read every byte of it is initialised.
    pub const fn uninit(bytes: &'a mut [MaybeUninit<u8>]) -> Self {
        Self::safe(bytes.as_mut_ptr().cast(), bytes.len())
    }

    /// A piece of foreign memory: written directly if it lies in a registered
    /// writable range, by its driver if it is a device's, fault-safely through the kernel otherwise.
    /// Refused where it begins in a registered range and runs out of it.
    pub fn foreign(range: ForeignRange, registry: &Registry) -> Result<Destination<'static>, RunsOut> {
        Ok(Destination::with(range, Access::to(range, registry, true)?))
    }

    /// The pieces of one object; one that is refused refuses the object.
    pub fn all_foreign(ranges: &[ForeignRange], registry: &Registry) -> Result<Vec<Destination<'static>>, RunsOut> {
        let mut all = Vec::with_capacity(ranges.len());
        for range in ranges {
            all.push(Destination::foreign(*range, registry)?);
        }
        Ok(all)
    }

    /// A piece of foreign memory, for a caller that keeps its list of registered ranges elsewhere and has looked there.
    pub fn unregistered(range: ForeignRange) -> Destination<'static> {
        Destination::with(range, Access::unregistered(range))
    }

    fn with(range: ForeignRange, access: Access) -> Destination<'static> {
        Destination {
            ptr: std::ptr::with_exposed_provenance_mut(range.addr),
            len: range.len,
            access,
            stores: Stores::Plain,
            among: None,
            memory: PhantomData,
        }
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// No bytes at all.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it is a device's memory, which processors cannot touch.
    pub fn is_on_device(&self) -> bool {
        self.access.device().is_some()
    }

    /// The same piece for a shorter time, without its neighbours, so that it can be given away and used again.
    pub const fn reborrow(&mut self) -> Destination<'_> {
        let Self { ptr, len, access, stores, .. } = *self;
        Destination { ptr, len, access, stores, among: None, memory: PhantomData }
    }

    /// The same piece, which needs no check by itself where a neighbour has made it already.
    pub fn among(self, neighbours: &'a Neighbours) -> Self {
        Self { among: Some(neighbours), ..self }
    }

    /// The bytes up to `mid` and those from it on. Panics if `mid > len`.
    pub fn split_at(self, mid: usize) -> (Self, Self) {
        assert!(mid <= self.len, "split at {mid} of a piece of {} bytes", self.len);
        let rest = Self { ptr: self.ptr.wrapping_add(mid), len: self.len - mid, ..self };
        (Self { len: mid, ..rest.same_kind(self.ptr) }, rest)
    }

    const fn same_kind(&self, ptr: *mut u8) -> Self {
        Self { ptr, len: 0, access: self.access, stores: self.stores, among: None, memory: PhantomData }
    }
}

impl Destination<'_> {
    /// Fills a piece of host memory from `from` and continues `crc` over exactly what arrived, if `sum`.
    ///
    /// # Safety
    /// `from` is readable for the piece's length and does not overlap it; others may store to it.
    pub(crate) unsafe fn load(&mut self, mut crc: u32, from: *const u8, sum: bool) -> Result<u32, CopyError> {
        debug_assert_eq!(self.access.device(), None);
        if self.access == Access::Unknown {
            let mut buffer = [0; KERNEL_STEP_BYTES];
            let mut done = 0;
            while done < self.len {
                let step = KERNEL_STEP_BYTES.min(self.len - done);
                // SAFETY: `done + step` bytes of the source are the caller's word.
                crc = unsafe { copy::load(crc, from.add(done), buffer.as_mut_ptr(), step, sum, Stores::Plain) };
                foreign::write(&buffer[..step], self.ptr.wrapping_add(done))?;
                done += step;
            }
            return Ok(crc);
        }
        if let Access::Known(trial) = self.access {
            check_usable(self.among, self.ptr.addr(), self.len, Touch::Store, trial)?;
        }
        // SAFETY: the destination is borrowed, or known and writable at this moment; the source is the
        // caller's word.
        let crc = unsafe { copy::load(crc, from, self.ptr, self.len, sum, self.stores) };
        if self.stores == Stores::Streaming {
            // Before a queue or a lock gives the piece to anybody else: these do not order such stores.
            store_barrier();
        }
        Ok(crc)
    }
}

/// Copies bytes to where a disk is to have them: see [`Destination::for_disk`]. Panics if the lengths differ.
pub fn copy_for_disk(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "bytes and the place that they are copied to");
    // SAFETY: both are borrowed, and as long; one of them exclusively, so that they do not overlap.
    let copied = unsafe { Destination::for_disk(to).load(0, from.as_ptr(), false) };
    copied.expect("borrowed memory is there");
}

fn check_usable(
    among: Option<&Neighbours>,
    addr: usize,
    len: usize,
    touch: Touch,
    trial: Trial,
) -> Result<(), CopyError> {
    match among {
        Some(neighbours) => neighbours.check_usable(addr, len, touch, trial),
        None => trial::check_usable(addr, len, touch, trial),
    }
}

/// Bytes of all pieces together; `u64::MAX`, which no extent has, if they are more than can be counted.
pub fn total_of_sources(pieces: &[Source<'_>]) -> u64 {
    pieces.iter().fold(0, |total, piece| total.saturating_add(piece.len as u64))
}

/// Bytes of all pieces together; `u64::MAX`, which no extent has, if they are more than can be counted.
pub fn total_of_destinations(pieces: &[Destination<'_>]) -> u64 {
    pieces.iter().fold(0, |total, piece| total.saturating_add(piece.len as u64))
}

/// The pieces that hold the first `at` bytes of the concatenation, and the rest.
/// Panics if there are not as many.
pub fn split_sources<'a>(pieces: &[Source<'a>], at: u64) -> (Vec<Source<'a>>, Vec<Source<'a>>) {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let mut left = at;
    for piece in pieces {
        let (head, tail) = piece.split_at(left.min(piece.len as u64) as usize);
        left -= head.len as u64;
        before.extend((!head.is_empty()).then_some(head));
        after.extend((!tail.is_empty()).then_some(tail));
    }
    assert_eq!(left, 0, "split at {at} beyond the last piece");
    (before, after)
}

/// The pieces that hold the bytes `from..to` of the concatenation, for a shorter time.
pub fn split_destinations<'a>(pieces: &'a mut [Destination<'_>], from: u64, to: u64) -> Vec<Destination<'a>> {
    let mut start: u64 = 0;
    let mut within = Vec::new();
    for piece in pieces {
        let end = start.saturating_add(piece.len as u64);
        let (first, last) = (from.max(start), to.min(end));
        if first < last {
            let (head, _) = piece.reborrow().split_at((last - start) as usize);
            within.push(head.split_at((first - start) as usize).1);
        }
        start = end;
    }
    within
}

/// Fills the concatenation from the byte `at` on, and returns the CRC-32C of what arrived: one pass where it is host
/// memory. Panics if it ends before the bytes do.
pub fn fill_destinations(pieces: &mut [Destination<'_>], at: u64, bytes: &[u8]) -> Result<u32, CopyError> {
    let mut within = split_destinations(pieces, at, at + bytes.len() as u64);
    assert_eq!(total_of_destinations(&within), bytes.len() as u64, "bytes and the place that they are copied to");
    let (mut left, mut crc, mut bounce) = (bytes, 0, Bounce::new());
    for destination in &mut within {
        let (now, behind) = left.split_at(destination.len);
        if destination.is_on_device() {
            bounce.copy(&Source::new(now), destination)?;
            crc = crc32c_append(crc, now);
        } else {
            // SAFETY: the bytes are borrowed, and what is borrowed or exclusive memory of the caller's is not theirs.
            crc = unsafe { destination.load(crc, now.as_ptr(), true) }?;
        }
        left = behind;
    }
    Ok(crc)
}

/// Continues `crc` over the bytes `from..to` of the concatenation, fault-safely.
pub fn crc_of_sources(crc: u32, pieces: &[Source<'_>], from: u64, to: u64) -> Result<u32, CopyError> {
    let pieces = pieces.iter().map(|piece| ReadSpan { ptr: piece.ptr, len: piece.len, access: piece.access });
    crc_of_pieces(crc, pieces, from, to)
}

/// Continues `crc` over the bytes `from..to` of the concatenation, fault-safely.
/// They must have been written before, by [`crate::recv_destinations`] for instance.
pub fn crc_of_destinations(crc: u32, pieces: &[Destination<'_>], from: u64, to: u64) -> Result<u32, CopyError> {
    let pieces = pieces.iter().map(|piece| ReadSpan { ptr: piece.ptr, len: piece.len, access: piece.access });
    crc_of_pieces(crc, pieces, from, to)
}

/// A range to read, of a source or of a destination.
struct ReadSpan {
    ptr: *const u8,
    len: usize,
    access: Access,
}

fn crc_of_pieces(mut crc: u32, pieces: impl Iterator<Item = ReadSpan>, from: u64, to: u64) -> Result<u32, CopyError> {
    let mut start: u64 = 0;
    for piece in pieces {
        let end = start.saturating_add(piece.len as u64);
        let (first, last) = (from.max(start), to.min(end));
        if first < last {
            let ptr = piece.ptr.wrapping_add((first - start) as usize);
            let len = (last - first) as usize;
            crc = match piece.access {
                Access::Unknown => {
                    let mut buffer = [0; KERNEL_STEP_BYTES];
                    let mut done = 0;
                    while done < len {
                        let step = KERNEL_STEP_BYTES.min(len - done);
                        foreign::read(ptr.wrapping_add(done), &mut buffer[..step])?;
                        crc = crc32c_append(crc, &buffer[..step]);
                        done += step;
                    }
                    crc
                }
                Access::Device(device) => {
                    let sum = |from: *const u8, len: usize| {
                        // SAFETY: a filled slot.
                        crc = unsafe { copy::checksum(crc, from, len) };
                    };
                    Staging::default().gather(device, &[(ptr.addr(), len)], sum)?;
                    crc
                }
                Access::Safe | Access::Known(_) => {
                    if let Access::Known(trial) = piece.access {
                        trial::check_usable(ptr.addr(), len, Touch::Load, trial)?;
                    }
                    // SAFETY: borrowed, or known and readable at this moment.
                    unsafe { copy::checksum(crc, ptr, len) }
                }
            };
        }
        start = end;
    }
    Ok(crc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_pieces_for_a_disk_are_stored_past_the_caches_and_no_others() {
        let mut bytes = vec![0; 2 * STREAM_PARTS_FROM];
        for (len, stores) in [(STREAM_PARTS_FROM - 1, Stores::Plain), (STREAM_PARTS_FROM, Stores::Streaming)] {
            let mut piece = Destination::for_disk(&mut bytes[..len]);
            assert_eq!((piece.stores, piece.reborrow().stores), (stores, stores));
            let (first, second) = piece.split_at(len / 2);
            assert_eq!((first.stores, second.stores), (stores, stores));
        }
        assert_eq!(Destination::new(&mut bytes).stores, Stores::Plain);
        let (from, mut to) = (vec![7; STREAM_PARTS_FROM + 9], vec![0; STREAM_PARTS_FROM + 9]);
        copy_for_disk(&from, &mut to);
        assert_eq!(from, to);
    }
}
