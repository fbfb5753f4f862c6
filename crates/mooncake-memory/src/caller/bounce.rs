//! Host memory that stands for device memory where a socket is at the other end.

use std::mem::MaybeUninit;

use crate::caller::piece::{Access, Destination, Source};
use crate::copy::Stores;
use crate::device::Staging;
use crate::error::CopyError;

/// Host stand-ins for the device pieces of a chunk. Its memory is made when the
/// first is met, as large as the largest chunk needs, and kept. The ring of pinned memory is
/// held only while bytes go through it, never while a peer is waited for.
#[derive(Debug, Default)]
pub struct Bounce {
    memory: Box<[MaybeUninit<u8>]>,
}

impl Bounce {
    /// Without memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether any of the pieces needs a stand-in to be sent.
    pub fn is_needed_for_sources(pieces: &[Source<'_>]) -> bool {
        pieces.iter().any(Source::is_on_device)
    }

    /// Whether any of the pieces needs a stand-in to be received into.
    pub fn is_needed_for_destinations(pieces: &[Destination<'_>]) -> bool {
        pieces.iter().any(Destination::is_on_device)
    }

    /// Copies a piece to another one of the same length, where one of them may be a device's, or both. After a failure
    /// to read, the destination is as it was; after another one it may hold anything.
    pub fn copy(&mut self, from: &Source<'_>, into: &mut Destination<'_>) -> Result<(), CopyError> {
        assert_eq!(from.len, into.len, "bytes of a piece and of the one that it is copied to");
        if from.is_on_device() {
            self.sources(std::slice::from_ref(from))?;
        } else {
            self.reserve(from.len);
            // SAFETY: there is room for all of it, in memory that nothing else uses.
            unsafe { from.store(0, self.memory.as_mut_ptr().cast(), Stores::Plain)? };
        }
        if into.is_on_device() {
            return self.deliver(std::slice::from_mut(into));
        }
        // SAFETY: filled above with as many bytes.
        unsafe { into.load(0, self.memory.as_ptr().cast(), false) }.map(drop)
    }

    /// The pieces with the device's bytes copied to host memory.
    pub fn sources<'a>(&'a mut self, pieces: &[Source<'a>]) -> Result<Vec<Source<'a>>, CopyError> {
        self.reserve(on_devices(pieces.iter().map(|piece| (piece.access, piece.len))));
        let base = self.memory.as_mut_ptr().cast::<u8>();
        let mut end = base;
        let mut staging = Staging::default();
        let mut rest = pieces;
        while let Some((device, ranges)) = next_run(&mut rest, |piece| (piece.access, piece.ptr.addr(), piece.len)) {
            staging.gather(device, &ranges, |from, len| {
                // SAFETY: the steps of all runs together are the device's bytes, for which there is room.
                unsafe {
                    std::ptr::copy_nonoverlapping(from, end, len);
                    end = end.add(len);
                }
            })?;
        }
        let mut at = base.cast_const();
        let stand_in = |piece: &Source<'a>| {
            if !piece.is_on_device() {
                return *piece;
            }
            // SAFETY: filled above, and borrowed for as long as the pieces are.
            let bytes = unsafe { std::slice::from_raw_parts(at, piece.len) };
            at = at.wrapping_add(piece.len);
            Source::new(bytes)
        };
        Ok(pieces.iter().map(stand_in).collect())
    }

    /// The pieces with host memory in the place of the device's, to be filled
    /// and then [delivered](Bounce::deliver).
    pub fn destinations<'a>(&'a mut self, pieces: &'a mut [Destination<'_>]) -> Vec<Destination<'a>> {
        self.reserve(on_devices(pieces.iter().map(|piece| (piece.access, piece.len))));
        let mut free = &mut self.memory[..];
        let stand_in = |piece: &'a mut Destination<'_>| {
            if !piece.is_on_device() {
                return piece.reborrow();
            }
            let (bytes, rest) = std::mem::take(&mut free).split_at_mut(piece.len);
            free = rest;
            Destination::uninit(bytes)
        };
        pieces.iter_mut().map(stand_in).collect()
    }

    /// Copies what the stand-ins of these pieces were filled with to the device.
    /// All of it must have been filled.
    pub fn deliver(&mut self, pieces: &mut [Destination<'_>]) -> Result<(), CopyError> {
        let mut at = self.memory.as_ptr().cast::<u8>();
        let end = at.wrapping_add(self.memory.len());
        let mut staging = Staging::default();
        let mut rest: &[Destination<'_>] = pieces;
        while let Some((device, ranges)) = next_run(&mut rest, |piece| (piece.access, piece.ptr.addr(), piece.len)) {
            staging.scatter(device, &ranges, |to, len| {
                assert!(len <= end.addr() - at.addr(), "more is delivered than there were stand-ins for");
                // SAFETY: inside the memory, as was just checked; it is filled, by the caller's word.
                unsafe {
                    std::ptr::copy_nonoverlapping(at, to, len);
                    at = at.add(len);
                }
            })?;
        }
        staging.finish()
    }

    fn reserve(&mut self, bytes: usize) {
        if self.memory.len() < bytes {
            self.memory = Box::new_uninit_slice(bytes);
        }
    }
}

/// Bytes of the pieces that are a device's.
fn on_devices(pieces: impl Iterator<Item = (Access, usize)>) -> usize {
    let devices = pieces.filter(|(access, _)| access.device().is_some());
    devices.fold(0_usize, |total, (_, len)| total.saturating_add(len))
}

/// The next run of device pieces, past the host's before it.
pub(crate) fn next_run<P>(
    rest: &mut &[P],
    place: impl Fn(&P) -> (Access, usize, usize),
) -> Option<(i32, Vec<(usize, usize)>)> {
    let start = rest.iter().position(|piece| place(piece).0.device().is_some())?;
    *rest = &rest[start..];
    crate::caller::piece::leading_run(rest, place)
}
