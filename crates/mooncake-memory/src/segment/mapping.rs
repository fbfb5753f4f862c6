//! A mapped segment.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::caller::piece::{Destination, Source, leading_run, total_of_destinations, total_of_sources};
use crate::copy::barrier::{load_barrier, store_barrier};
use crate::copy::{self, STREAM_PARTS_FROM, Stores};
use crate::device::Staging;
use crate::error::{CopyError, MemoryError, ReadError};
use crate::file::mapped_file::MappedFile;
use crate::file::mapped_file::PAGE;
use crate::file::memfd;
use crate::segment::layout::{self, HEADER_LEN, Header, STAMPS_AT};
use crate::segment::order::{read_in_order, write_in_order};
use crate::segment::stamps;
use crate::segment::view::MappedView;
use mooncake_ids::{Rid, SegmentUuid};
use mooncake_os::{Guarded, forked};

/// Page tables are filled in blocks of this many bytes at their first use: enough
/// for the system call not to matter, little enough for a first small read not
/// to wait for milliseconds.
const BLOCK: u64 = 256 << 10;

/// Objects of this size on are written past the caches: they would only push out what is in them.
const STREAM_FROM: u64 = 256 << 10;

/// What the owner of a segment announced about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expect {
    /// Name of the memory.
    pub uuid: SegmentUuid,
    /// Size of the data memory.
    pub bytes: u64,
}

/// What a read checks besides the stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// Nothing; the checksum is not computed and 0 is returned.
    Skip,
    /// Nothing; the checksum is computed and returned.
    Compute,
    /// The CRC-32C of the bytes is this.
    Crc(u32),
}

/// One view of a segment's data and control memory, read-only or writable.
///
/// Other processes store to the same memory at any time. Nothing here depends on
/// their not doing so but the contents of a [`MappedView`], which a pin protects.
#[derive(Debug)]
pub struct Mapping {
    uuid: SegmentUuid,
    writable: bool,
    data: MappedFile,
    control: MappedFile,
    data_fd: Arc<Guarded<OwnedFd>>,
    /// Where the data memory begins in a file that is not sealed, which only its owner maps.
    file_offset: Option<u64>,
    control_fd: Arc<Guarded<OwnedFd>>,
    /// One bit per block whose page tables are full.
    filled: Box<[AtomicU64]>,
}

impl Mapping {
    /// Maps a segment by its two descriptors, after a look at their seals and
    /// sizes, and checks the name that the memory itself carries.
    pub fn map(data: OwnedFd, control: OwnedFd, expect: Expect, writable: bool) -> Result<Self, MemoryError> {
        if forked() {
            return Err(MemoryError::Forked);
        }
        memfd::check(data.as_fd(), "data", expect.bytes)?;
        Self::map_checked(Arc::new(Guarded::new(data)), None, Arc::new(Guarded::new(control)), expect, writable)
    }

    /// Maps a part of a file, in the process of the segment's owner. Others may truncate the file: then a touch of the
    /// memory is a SIGBUS, which is why no other process is ever given it.
    pub(crate) fn map_file(
        data: OwnedFd,
        offset: u64,
        control: OwnedFd,
        expect: Expect,
        writable: bool,
    ) -> Result<Self, MemoryError> {
        if forked() {
            return Err(MemoryError::Forked);
        }
        Self::map_checked(Arc::new(Guarded::new(data)), Some(offset), Arc::new(Guarded::new(control)), expect, writable)
    }

    fn map_checked(
        data: Arc<Guarded<OwnedFd>>,
        file_offset: Option<u64>,
        control: Arc<Guarded<OwnedFd>>,
        expect: Expect,
        writable: bool,
    ) -> Result<Self, MemoryError> {
        memfd::check(control.as_fd(), "control", layout::control_bytes(expect.bytes))?;
        let control_map = MappedFile::new(control.as_fd(), layout::control_bytes(expect.bytes), writable)?;
        check_header(&control_map, expect)?;
        let data_map = MappedFile::new_at(data.as_fd(), file_offset.unwrap_or(0), expect.bytes, writable)?;
        let blocks = expect.bytes.div_ceil(BLOCK);
        Ok(Self {
            uuid: expect.uuid,
            writable,
            data: data_map,
            control: control_map,
            data_fd: data,
            file_offset,
            control_fd: control,
            filled: (0..blocks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    /// Another mapping of the same memory: a reader's first put needs a writable one. It takes no descriptors of its
    /// own.
    pub fn remap(&self, writable: bool) -> Result<Self, MemoryError> {
        if forked() {
            return Err(MemoryError::Forked);
        }
        let expect = Expect { uuid: self.uuid, bytes: self.bytes() };
        if self.file_offset.is_none() {
            memfd::check(self.data_fd(), "data", expect.bytes)?;
        }
        Self::map_checked(self.data_fd.clone(), self.file_offset, self.control_fd.clone(), expect, writable)
    }

    /// Name of the memory.
    pub fn uuid(&self) -> SegmentUuid {
        self.uuid
    }

    /// Size of the data memory.
    pub fn bytes(&self) -> u64 {
        self.data.len()
    }

    /// Whether bytes can be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Descriptor of the data memory.
    pub fn data_fd(&self) -> BorrowedFd<'_> {
        self.data_fd.as_fd()
    }

    /// Descriptor of the control memory.
    pub fn control_fd(&self) -> BorrowedFd<'_> {
        self.control_fd.as_fd()
    }

    /// Writes an object: stamps, barrier, bytes, barrier. Returns the CRC-32C of
    /// exactly the bytes written.
    pub fn write(&self, rid: Rid, offset: u64, pieces: &[Source<'_>]) -> Result<u32, CopyError> {
        self.write_part(rid, offset, pieces, total_of_sources(pieces))
    }

    /// [`Mapping::write`] of a part of an object of `whole` bytes.
    pub fn write_part(&self, rid: Rid, offset: u64, pieces: &[Source<'_>], whole: u64) -> Result<u32, CopyError> {
        let len = total_of_sources(pieces);
        let stamps = self.stamps_to_write(offset, len)?;
        self.refuse_given_back(rid)?;
        self.fill(offset, len)?;
        let stores =
            if whole >= STREAM_FROM && len >= STREAM_PARTS_FROM as u64 { Stores::Streaming } else { Stores::Plain };
        write_in_order(|| stamps::store(stamps, rid), store_barrier, || self.store_pieces(offset, pieces, len, stores))
    }

    /// Reads bytes of an object: the bytes, barrier, the stamps of the granules
    /// that they lie in. Fills all pieces, from any byte of the extent on.
    pub fn read(
        &self,
        rid: Rid,
        offset: u64,
        pieces: &mut [Destination<'_>],
        verify: Verify,
    ) -> Result<u32, ReadError> {
        let len = total_of_destinations(pieces);
        let stamps = self.stamps(offset, len)?;
        self.fill_for(rid, offset, len)?;
        let load = || self.load_pieces(offset, pieces, len, verify != Verify::Skip);
        let (copied, other) = read_in_order(load, load_barrier, || stamps::first_other(stamps, rid));
        judge(rid, copied?, other, verify)
    }

    /// A view of the bytes of a pinned object, verified once, in place.
    ///
    /// Its contents are promised for as long as the pin is held. In an owner's
    /// own process, take it from [`crate::SegmentMemory::view_mapping`].
    pub fn view(self: &Arc<Self>, rid: Rid, offset: u64, len: u64, verify: Verify) -> Result<MappedView, ReadError> {
        self.look(rid, offset, len, verify)?;
        Ok(MappedView::new(Arc::clone(self), offset, len))
    }

    /// CRC-32C of bytes of an object, in place: as [`Mapping::read`] would return it.
    pub fn crc_of(&self, rid: Rid, offset: u64, len: u64) -> Result<u32, ReadError> {
        self.look(rid, offset, len, Verify::Compute)
    }

    /// Reads bytes of an object where they lie, for their checksum unless that is to be skipped, and then its stamps.
    fn look(&self, rid: Rid, offset: u64, len: u64, verify: Verify) -> Result<u32, ReadError> {
        let stamps = self.stamps(offset, len)?;
        self.fill_for(rid, offset, len)?;
        let sum = || if verify == Verify::Skip { 0 } else { self.sum(offset, len) };
        let (crc, other) = read_in_order(sum, load_barrier, || stamps::first_other(stamps, rid));
        judge(rid, crc, other, verify)
    }

    /// CRC-32C of bytes in place.
    pub fn crc(&self, offset: u64, len: u64) -> Result<u32, CopyError> {
        self.check(offset, len)?;
        self.fill(offset, len)?;
        Ok(self.sum(offset, len))
    }

    /// Stamps an extent for a remote writer, unless any of it carries a newer
    /// stamp, tombstones included: [`CopyError::Superseded`]. Atomic against
    /// [`Mapping::tombstone`] granule by granule: a fence that follows sees
    /// either no such write, or one that the caller had entered as under way
    /// before it called this.
    pub fn stamp_if_newest(&self, rid: Rid, offset: u64, len: u64) -> Result<(), CopyError> {
        let stamps = self.stamps_to_write(offset, len)?;
        self.refuse_given_back(rid)?;
        stamps::raise(stamps, rid.0).map_err(|found| CopyError::Superseded { rid: rid.0, found })
    }

    /// The barrier of a reader, then whether every granule carries the rid: after
    /// bytes were taken by other means than [`Mapping::read`].
    pub fn check_stamps(&self, rid: Rid, offset: u64, len: u64) -> Result<bool, CopyError> {
        let stamps = self.stamps(offset, len)?;
        load_barrier();
        Ok(stamps::first_other(stamps, rid).is_none())
    }

    /// Highest stamp of an extent; higher than any rid if the memory has been given back.
    pub fn max_stamp(&self, offset: u64, len: u64) -> Result<u64, CopyError> {
        let newest = stamps::newest(self.stamps(offset, len)?);
        // Behind the stamps: they are gone only after this is set.
        load_barrier();
        Ok(if self.is_given_back() { stamps::GIVEN_BACK } else { newest })
    }

    /// Whether a process has begun to give the memory back: nothing is to be written any more.
    pub fn is_given_back(&self) -> bool {
        // SAFETY: in the first page of the mapping, aligned because mappings are, and never stored to through here.
        let word = unsafe { &*self.control.base().add(layout::GIVEN_BACK_AT as usize).cast::<AtomicU64>() };
        word.load(Ordering::Acquire) != 0
    }

    /// Raises the stamps of an extent to the tombstone of a rid; newer ones stay.
    pub fn tombstone(&self, rid: Rid, offset: u64, len: u64) -> Result<(), CopyError> {
        let stamps = self.stamps_to_write(offset, len)?;
        // Nothing is written there any more; the stamps' pages need not come back for that.
        if !self.is_given_back() {
            stamps::raise_all(stamps, rid.tombstone());
        }
        Ok(())
    }

    /// Gives the memory back to the host, all but the extents `(offset, len)` in
    /// `keep`: a mark that refuses writes, tombstones over every stamp, barrier, holes. For the owner, or for
    /// a peer once the owner is proven gone; a read-only mapping can do it too.
    /// Views of kept extents stay as they are, everything else reads as zeros.
    /// Huge pages of the host's pool go back with the last mapping, all of them: see `holes`.
    ///
    /// `keep` is asked behind the tombstones: a view that it does not know of
    /// then is never handed out, because its stamps are other ones.
    pub fn give_back(&self, keep: impl FnOnce() -> Vec<(u64, u64)>) -> Result<(), MemoryError> {
        if forked() {
            return Err(MemoryError::Forked);
        }
        self.mark_given_back().map_err(MemoryError::os("marking a control memfd"))?;
        self.bury_stamps().map_err(MemoryError::os("tombstones over a control memfd"))?;
        store_barrier();
        if self.file_offset.is_some() {
            // The file's owner decides what becomes of it.
            return self.punch_stamps();
        }
        let page = memfd::page_bytes(self.data_fd()).map_err(MemoryError::os("fstat of a memfd"))?;
        let huge = memfd::is_of_huge_pages(self.data_fd()).map_err(MemoryError::os("fstatfs of a memfd"))?;
        for (from, to) in holes(self.bytes(), if huge { Pages::OfPool } else { Pages::Of(page) }, keep()) {
            memfd::punch(self.data_fd(), from, to).map_err(MemoryError::os("punching a hole into a data memfd"))?;
        }
        self.punch_stamps()
    }

    /// Whether no process can take the memory away from its mappers; else only its owner may map it.
    pub fn is_sealed(&self) -> bool {
        self.file_offset.is_none()
    }

    /// The tombstones have done their work. Readers find 0, which is no rid either. Writers would take that for an
    /// extent that was never used, but find the mark.
    fn punch_stamps(&self) -> Result<(), MemoryError> {
        memfd::punch(self.control_fd(), STAMPS_AT, self.control.len())
            .map_err(MemoryError::os("punching a hole into a control memfd"))
    }

    /// Address of bytes in the segment, for the kernel or a view. Page tables are full.
    pub(crate) fn bytes_at(&self, offset: u64, len: u64) -> Result<*mut u8, CopyError> {
        self.check(offset, len)?;
        self.fill(offset, len)?;
        Ok(self.at(offset))
    }

    /// Makes the pages of a range, and of its stamps, as the owner.
    pub(crate) fn populate(&self, start: u64, end: u64) -> std::io::Result<()> {
        self.data.make_pages(start, end)?;
        let (from, to) = stamp_pages(start, end);
        self.control.make_pages(from, to)?;
        (start.div_ceil(BLOCK)..end / BLOCK).for_each(|block| self.mark(block));
        Ok(())
    }

    /// Address of a byte in the segment.
    pub(crate) fn address(&self, offset: u64) -> *const u8 {
        self.at(offset)
    }

    fn at(&self, offset: u64) -> *mut u8 {
        self.data.base().wrapping_add(offset as usize)
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), CopyError> {
        if forked() {
            return Err(CopyError::Forked);
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.bytes() => Ok(()),
            _ => Err(CopyError::OutOfRange { offset, len, bytes: self.bytes() }),
        }
    }

    fn stamps(&self, offset: u64, len: u64) -> Result<&[AtomicU64], CopyError> {
        self.check(offset, len)?;
        Ok(stamps::of(&self.control, offset, len))
    }

    fn stamps_to_write(&self, offset: u64, len: u64) -> Result<&[AtomicU64], CopyError> {
        if self.writable { self.stamps(offset, len) } else { Err(CopyError::ReadOnly) }
    }

    fn sum(&self, offset: u64, len: u64) -> u32 {
        // SAFETY: the caller has checked the range; others may store to it, then the sum is of no use and the stamps
        // say so.
        unsafe { copy::checksum(0, self.at(offset), len as usize) }
    }

    /// Stores the pieces to `len` bytes from `offset` on, which the caller has
    /// checked. A piece that does not fit there is refused, whatever was counted before.
    fn store_pieces(&self, offset: u64, pieces: &[Source<'_>], len: u64, stores: Stores) -> Result<u32, CopyError> {
        let (mut done, mut crc) = (0, 0);
        let mut staging = Staging::default();
        let mut rest = pieces;
        while let Some((piece, others)) = rest.split_first() {
            if let Some((device, ranges)) = leading_run(&mut rest, |piece| (piece.access, piece.ptr.addr(), piece.len))
            {
                let run = total(&ranges);
                let mut at = self.within(offset, len, done, run)?;
                staging.gather(device, &ranges, |from, len| {
                    // SAFETY: a filled slot; the steps of the run together are the run, which lies in the checked
                    // range.
                    unsafe {
                        crc = copy::copy_and_checksum(crc, from, at, len, stores);
                        at = at.add(len);
                    }
                })?;
                done += run as u64;
                continue;
            }
            let at = self.within(offset, len, done, piece.len)?;
            // SAFETY: the piece lies in the checked range.
            crc = unsafe { piece.store(crc, at, stores) }?;
            done += piece.len as u64;
            rest = others;
        }
        Ok(crc)
    }

    /// Fills the pieces from `len` bytes from `offset` on, which the caller has checked.
    fn load_pieces(&self, offset: u64, pieces: &mut [Destination<'_>], len: u64, sum: bool) -> Result<u32, CopyError> {
        let (mut done, mut crc) = (0, 0);
        let mut staging = Staging::default();
        let mut index = 0;
        while index < pieces.len() {
            let mut rest = &pieces[index..];
            if let Some((device, ranges)) = leading_run(&mut rest, |piece| (piece.access, piece.ptr.addr(), piece.len))
            {
                let run = total(&ranges);
                let mut at = self.within(offset, len, done, run)?.cast_const();
                staging.scatter(device, &ranges, |to, len| {
                    // SAFETY: a free slot; the steps of the run together are the run, which lies in the checked range.
                    unsafe {
                        crc = copy::load(crc, at, to, len, sum, Stores::Plain);
                        at = at.add(len);
                    }
                })?;
                done += run as u64;
                index += ranges.len();
                continue;
            }
            let piece = &mut pieces[index];
            let at = self.within(offset, len, done, piece.len)?;
            // SAFETY: the piece lies in the checked range.
            crc = unsafe { piece.load(crc, at, sum) }?;
            done += piece.len as u64;
            index += 1;
        }
        staging.finish()?;
        Ok(crc)
    }

    /// Address of a piece behind the `done` bytes before it, all inside `len` bytes from `offset` on.
    fn within(&self, offset: u64, len: u64, done: u64, piece: usize) -> Result<*mut u8, CopyError> {
        if piece as u64 > len - done {
            return Err(CopyError::OutOfRange { offset: offset + done, len: piece as u64, bytes: self.bytes() });
        }
        Ok(self.at(offset + done))
    }

    /// Prepares a read. An extent that is stale already is not worth copying,
    /// and if its memory was given back a load would make new pages. What is
    /// read afterwards is judged by the stamps afterwards all the same.
    fn fill_for(&self, rid: Rid, offset: u64, len: u64) -> Result<(), ReadError> {
        // The stamps' pages are not to come back either.
        let found = if len > 0 && self.is_given_back() {
            Some(stamps::GIVEN_BACK)
        } else {
            stamps::first_other(stamps::of(&self.control, offset, len), rid)
        };
        if let Some(found) = found {
            return Err(ReadError::Stale { rid: rid.0, found });
        }
        Ok(self.fill(offset, len)?)
    }

    /// Fills the page tables of all blocks that a range touches. Handed out
    /// extents lie in memory that the owner has populated, so this makes no new
    /// pages but in the owner's last block.
    fn fill(&self, offset: u64, len: u64) -> Result<(), CopyError> {
        let (mut block, end) = blocks(offset, len);
        while block < end {
            if self.has(block) {
                block += 1;
                continue;
            }
            let first = block;
            while block < end && !self.has(block) {
                block += 1;
            }
            self.fill_blocks(first, block).map_err(|source| CopyError::Populate { offset: first * BLOCK, source })?;
        }
        Ok(())
    }

    fn fill_blocks(&self, first: u64, end: u64) -> std::io::Result<()> {
        let (from, to) = (first * BLOCK, (end * BLOCK).min(self.bytes()));
        if self.writable && self.file_offset.is_some() {
            // The file's system makes room for a page with its first store.
            self.data.make_pages(from, to)?;
        } else {
            self.data.map_pages(from, to)?;
        }
        let (stamps_from, stamps_to) = stamp_pages(from, to);
        self.control.map_pages(stamps_from, stamps_to)?;
        (first..end).for_each(|block| self.mark(block));
        Ok(())
    }

    fn has(&self, block: u64) -> bool {
        self.filled[(block / 64) as usize].load(Ordering::Relaxed) & 1 << (block % 64) != 0
    }

    fn mark(&self, block: u64) {
        self.filled[(block / 64) as usize].fetch_or(1 << (block % 64), Ordering::Relaxed);
    }

    fn refuse_given_back(&self, rid: Rid) -> Result<(), CopyError> {
        if self.is_given_back() {
            return Err(CopyError::Superseded { rid: rid.0, found: stamps::GIVEN_BACK });
        }
        Ok(())
    }

    /// By `pwrite`, which needs no writable mapping. For ever: a UUID that is Gone never comes back.
    fn mark_given_back(&self) -> std::io::Result<()> {
        rustix::io::pwrite(self.control_fd(), &1_u64.to_ne_bytes(), layout::GIVEN_BACK_AT)?;
        store_barrier();
        Ok(())
    }

    /// A tombstone over every stamp that has a page. By `pwrite`, which needs no writable mapping.
    fn bury_stamps(&self) -> std::io::Result<()> {
        let tombstones = vec![0xff_u8; 64 << 10];
        let mut from = STAMPS_AT;
        while let Some((start, end)) = memfd::next_data(self.control_fd(), from)? {
            let mut at = start.max(STAMPS_AT);
            while at < end {
                let len = (end - at).min(tombstones.len() as u64);
                at += rustix::io::pwrite(self.control_fd(), &tombstones[..len as usize], at)? as u64;
            }
            from = end;
        }
        Ok(())
    }
}

/// Bytes of all ranges; `usize::MAX`, which no extent has, if they are more than can be counted.
fn total(ranges: &[(usize, usize)]) -> usize {
    ranges.iter().fold(0, |total, (_, len)| total.saturating_add(*len))
}

/// Blocks `first..end` that a range touches.
const fn blocks(offset: u64, len: u64) -> (u64, u64) {
    (offset / BLOCK, (offset + len).div_ceil(BLOCK))
}

/// Pages of the control memory that hold the stamps of a range.
fn stamp_pages(start: u64, end: u64) -> (u64, u64) {
    let (first, last) = layout::granules(start, end - start);
    let at = |granule: usize| STAMPS_AT + granule as u64 * layout::STAMP;
    (at(first) / PAGE * PAGE, at(last).next_multiple_of(PAGE))
}

/// The stamps decide first: bytes of another placement may well have another checksum.
fn judge(rid: Rid, crc: u32, other: Option<u64>, verify: Verify) -> Result<u32, ReadError> {
    if let Some(found) = other {
        return Err(ReadError::Stale { rid: rid.0, found });
    }
    match verify {
        Verify::Crc(expected) if expected != crc => Err(ReadError::Checksum { rid: rid.0, expected, actual: crc }),
        _ => Ok(crc),
    }
}

fn check_header(control: &MappedFile, expect: Expect) -> Result<(), MemoryError> {
    let mut raw = [0; HEADER_LEN];
    // SAFETY: the control memory begins with a whole page.
    unsafe { std::ptr::copy_nonoverlapping(control.base().cast_const(), raw.as_mut_ptr(), HEADER_LEN) };
    let header = Header::decode(&raw).map_err(|reason| MemoryError::BadHeader { reason })?;
    if header.uuid != expect.uuid {
        let (expected, found) = (expect.uuid.to_string(), header.uuid.to_string());
        return Err(MemoryError::WrongUuid { expected, found });
    }
    if header.bytes != expect.bytes {
        let reason = format!("it says {} bytes instead of {}", header.bytes, expect.bytes);
        return Err(MemoryError::BadHeader { reason });
    }
    Ok(())
}

/// What a segment's memory is made of.
#[derive(Debug, Clone, Copy)]
enum Pages {
    /// Of so many bytes each, from the host's memory.
    Of(u64),
    /// Huge pages of the host's pool.
    OfPool,
}

/// What goes back to the host of a segment's memory: the ranges `(from, to)` that lie in none of the extents to be
/// kept.
///
/// A process in the middle of a copy there meets zeros, which its stamps then tell it to throw away. With huge pages of
/// the pool it would need a page of the pool for that. Where the pool is empty by then, the kernel sends a signal
/// instead of zeros: so no hole is punched into them. They go back when the last process has unmapped them.
fn holes(bytes: u64, pages: Pages, keep: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let Pages::Of(page) = pages else { return Vec::new() };
    let mut kept: Vec<(u64, u64)> =
        keep.into_iter().map(|(offset, len)| (offset, offset.saturating_add(len).min(bytes))).collect();
    kept.sort_unstable();
    let mut start = 0;
    let mut holes = Vec::new();
    for (offset, end) in kept.into_iter().chain([(bytes, bytes)]) {
        // Pages that a kept extent shares with others stay whole.
        let to = offset / page * page;
        if start < to {
            holes.push((start, to));
        }
        start = start.max(end.next_multiple_of(page));
    }
    holes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::registry::Registry;
    use crate::range::ForeignRange;
    use crate::segment::{SegmentMemory, SegmentOptions};

    /// The reader's destination is a stamp of what it reads, and the bytes that land there are a later placement's id:
    /// so the overtaking falls between the reader's first look at the stamps and its last.
    #[test]
    fn a_read_that_is_overtaken_anywhere_in_mid_copy_is_stale() {
        const GRANULES: usize = 10;
        let segment = SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap();
        let mapping = segment.mapping();
        let later: Vec<u8> = 4_u64.to_ne_bytes().repeat(GRANULES * mooncake_ids::GRANULE as usize / 8);
        for (granule, verify) in
            [0, 5, GRANULES - 1].into_iter().flat_map(|at| [(at, Verify::Skip), (at, Verify::Compute)])
        {
            mapping.write(Rid(2), 0, &[Source::new(&later)]).unwrap();
            let stamp = mapping.control.base().addr() + STAMPS_AT as usize + granule * 8;
            // SAFETY: a word of a mapping that outlives the range and that is only used as an atomic elsewhere.
            let stamp = unsafe { ForeignRange::new(stamp, 8) };
            let mut rest = vec![0; later.len() - 8];
            let mut pieces = [Destination::foreign(stamp, &Registry::new()).unwrap(), Destination::new(&mut rest)];
            let read = mapping.read(Rid(2), 0, &mut pieces, verify);
            assert!(matches!(read, Err(ReadError::Stale { rid: 2, found: 4 })), "granule {granule}: {read:?}");
        }
    }

    #[test]
    fn pages_go_back_but_kept_ones_and_those_of_the_huge_pool() {
        let keep = || vec![(9_000, 100), (4_096, 1), (40_000, u64::MAX)];
        assert_eq!(holes(65_536, Pages::Of(4_096), keep()), [(0, 4_096), (12_288, 36_864)]);
        assert_eq!(holes(65_536, Pages::Of(4_096), Vec::new()), [(0, 65_536)]);
        assert_eq!(
            holes(65_536, Pages::Of(4_096), vec![(0, 40_000), (4_096, 1)]),
            [(40_960, 65_536)],
            "one in another"
        );
        assert_eq!(holes(4 << 20, Pages::Of(2 << 20), vec![(0, 1)]), [(2 << 20, 4 << 20)], "transparent huge pages");
        assert_eq!(holes(4 << 20, Pages::OfPool, vec![(0, 1)]), []);
        assert_eq!(holes(4 << 20, Pages::OfPool, Vec::new()), [], "somebody may be in the middle of a copy");
    }

    #[test]
    fn a_header_of_another_memory_than_the_one_that_comes_with_it_is_refused() {
        let segment = SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap();
        let copies = || [segment.data_fd(), segment.control_fd()].map(|fd| fd.try_clone_to_owned().unwrap());
        let expect = Expect { uuid: segment.uuid(), bytes: 1 << 20 };
        for (uuid, bytes, fits) in [
            (expect.uuid, (1 << 20) - 4096, false),
            (SegmentUuid([9; 16]), 1 << 20, false),
            (expect.uuid, 1 << 20, true),
        ] {
            let raw = Header { uuid, bytes }.encode();
            assert_eq!(rustix::io::pwrite(segment.control_fd(), &raw, 0), Ok(raw.len()));
            for writable in [false, true] {
                let [data, control] = copies();
                assert_eq!(Mapping::map(data, control, expect, writable).is_ok(), fits);
            }
        }
    }
}
