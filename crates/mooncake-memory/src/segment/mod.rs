//! A segment as its owner has it.

pub(crate) mod layout;
pub(crate) mod mapping;
#[doc(hidden)]
pub mod order;
pub(crate) mod presence;
pub(crate) mod stamps;
pub(crate) mod tenure;
pub(crate) mod view;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use mooncake_ids::{GRANULE, SegmentUuid};
use parking_lot::Mutex;

use crate::error::MemoryError;
use crate::file::mapped_file::PAGE;
use crate::file::{file_range, limits, memfd};
use crate::segment::layout::{Header, control_bytes};
use crate::segment::mapping::{Expect, Mapping};
use mooncake_os::random_bytes;

/// How a segment's memory is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct SegmentOptions {
    /// Huge pages of the host's pool (`MFD_HUGETLB`); fails clearly if there are not enough.
    pub huge_pages: bool,
}

/// Sealed data memory and its sealed control memory, mapped writable by the
/// process that owns them.
#[derive(Debug)]
pub struct SegmentMemory {
    mapping: Arc<Mapping>,
    views: OnceLock<Arc<Mapping>>,
    page: u64,
    population: Mutex<Population>,
}

#[derive(Debug)]
struct Population {
    done: u64,
    given_back: bool,
}

impl SegmentMemory {
    /// Makes the memory of a segment: at least `bytes`, rounded up to whole
    /// pages. Nothing is populated yet, so it takes no time; limits of the
    /// process, its memory cgroup and its host are looked at first.
    pub fn create(bytes: u64, options: SegmentOptions) -> Result<Self, MemoryError> {
        if bytes == 0 {
            return Err(MemoryError::InvalidSize { bytes, reason: "it is empty" });
        }
        let page = if options.huge_pages { limits::huge_page_bytes()? } else { PAGE };
        let bytes = bytes
            .checked_next_multiple_of(page)
            .filter(|&bytes| bytes < 1 << 60)
            .ok_or(MemoryError::InvalidSize { bytes, reason: "larger than the address space" })?;
        limits::check(bytes, control_bytes(bytes), options.huge_pages, page)?;
        let data = memfd::create("kv-segment", bytes, options.huge_pages)?;
        let control = memfd::create("kv-segment-control", control_bytes(bytes), false)?;
        let uuid = SegmentUuid(random_bytes().map_err(MemoryError::os("getrandom"))?);
        write_header(control.as_fd(), Header { uuid, bytes })?;
        let mapping = Mapping::map(data, control, Expect { uuid, bytes }, true)?;
        Ok(Self {
            mapping: Arc::new(mapping),
            views: OnceLock::new(),
            page,
            population: Mutex::new(Population { done: 0, given_back: false }),
        })
    }

    /// Makes a segment of a part of an existing file, or of an object of `/dev/shm`: `bytes` from `offset` on, which
    /// begins a page. What was there is overwritten. Any process that may write to such a file can truncate it, so no
    /// peer maps it: its owner serves it over TCP, and a truncation kills that owner's process. A range that another
    /// segment has, of this process or of others, is refused.
    pub fn over_file(path: &Path, offset: u64, bytes: u64) -> Result<Self, MemoryError> {
        let bytes = bytes / GRANULE * GRANULE;
        let data = file_range::open(path, offset, bytes)?;
        let control = memfd::create("kv-segment-control", control_bytes(bytes), false)?;
        let uuid = SegmentUuid(random_bytes().map_err(MemoryError::os("getrandom"))?);
        write_header(control.as_fd(), Header { uuid, bytes })?;
        let mapping = Mapping::map_file(data, offset, control, Expect { uuid, bytes }, true)?;
        Ok(Self {
            mapping: Arc::new(mapping),
            views: OnceLock::new(),
            page: PAGE,
            population: Mutex::new(Population { done: 0, given_back: false }),
        })
    }

    /// The memory of a segment whose earlier owner has ended, by its two descriptors: its seals, its sizes, the layout
    /// of its control memory and its name are what they were, and no process has given it back. So many of its bytes
    /// are populated, as that owner had noted. No limit is looked at: the memory is there.
    pub fn adopt(data: OwnedFd, control: OwnedFd, expect: Expect, populated: u64) -> Result<Self, MemoryError> {
        let huge = memfd::is_of_huge_pages(data.as_fd()).map_err(MemoryError::os("fstatfs of a memfd"))?;
        let mapping = Mapping::map(data, control, expect, true)?;
        if mapping.is_given_back() {
            return Err(MemoryError::GivenBack);
        }
        let page = match huge {
            true => memfd::page_bytes(mapping.data_fd()).map_err(MemoryError::os("fstat of a memfd"))?,
            false => PAGE,
        };
        let done = populated.min(expect.bytes);
        Ok(Self {
            mapping: Arc::new(mapping),
            views: OnceLock::new(),
            page,
            population: Mutex::new(Population { done, given_back: false }),
        })
    }

    /// Whether peers may be given the memory: see [`Mapping::is_sealed`].
    pub fn is_sealed(&self) -> bool {
        self.mapping.is_sealed()
    }

    /// Random name of this memory.
    pub fn uuid(&self) -> SegmentUuid {
        self.mapping.uuid()
    }

    /// Size of the data memory.
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    /// Descriptor of the data memory, to be passed to peers.
    pub fn data_fd(&self) -> BorrowedFd<'_> {
        self.mapping.data_fd()
    }

    /// Descriptor of the control memory, to be passed to peers.
    pub fn control_fd(&self) -> BorrowedFd<'_> {
        self.mapping.control_fd()
    }

    /// The owner's own writable mapping.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// A read-only mapping for views handed out in the owner's own process: it
    /// is inherited by forked children, which the writable one is not. Made at
    /// the first call.
    pub fn view_mapping(&self) -> Result<Arc<Mapping>, MemoryError> {
        if let Some(mapping) = self.views.get() {
            return Ok(Arc::clone(mapping));
        }
        let fresh = Arc::new(self.mapping.remap(false)?);
        Ok(Arc::clone(self.views.get_or_init(|| fresh)))
    }

    /// Populates up to `max_bytes` more (at least a page) and says how many bytes
    /// are populated from the start on. Called in the background until that is
    /// all of them.
    pub fn populate_step(&self, max_bytes: u64) -> Result<u64, MemoryError> {
        let mut population = self.population.lock();
        if population.given_back {
            return Err(MemoryError::GivenBack);
        }
        let start = population.done;
        let step = max_bytes.clamp(1, self.bytes()).next_multiple_of(self.page);
        let end = (start + step).min(self.bytes());
        self.mapping.populate(start, end).map_err(|source| MemoryError::Populate {
            populated: start,
            bytes: self.bytes(),
            source,
        })?;
        population.done = end;
        Ok(end)
    }

    /// Bytes populated so far, from the start on.
    pub fn populated(&self) -> u64 {
        self.population.lock().done
    }

    /// Gives the memory back to the host, all but the extents `(offset, len)` in
    /// `keep`: [`Mapping::give_back`]. Population ends.
    pub fn give_back(&self, keep: &[(u64, u64)]) -> Result<(), MemoryError> {
        self.population.lock().given_back = true;
        self.mapping.give_back(|| keep.to_vec())
    }
}

fn write_header(control: BorrowedFd<'_>, header: Header) -> Result<(), MemoryError> {
    let raw = header.encode();
    let written = rustix::io::pwrite(control, &raw, 0)
        .map_err(|errno| MemoryError::os("writing the header of a control memfd")(errno.into()))?;
    assert_eq!(written, raw.len(), "a page of a memfd takes a header at once");
    Ok(())
}
