//! Segments that are Gone: nothing brings one back, and their owners and readers are yet to hear of it.

use std::collections::{BTreeMap, VecDeque};

use crate::ensure::ensure;
use crate::ids::{Extent, SegmentNo};
use mooncake_ids::SegmentUuid;

/// UUIDs of Gone segments remembered: more than owners can still try to bring back.
const GONE_MAX: usize = 65_536;

/// A segment that is Gone.
#[derive(Clone, Copy)]
pub(crate) struct GoneSegment {
    pub uuid: SegmentUuid,
    pub number: SegmentNo,
    /// There may be views on it that no log knows, or may have been: none of it is given back.
    pub kept_whole: bool,
}

impl GoneSegment {
    /// All that any view can hold of it.
    pub fn whole(number: SegmentNo) -> Extent {
        Extent { segment: number, offset: 0, length: u64::MAX }
    }
}

/// Those that are remembered, by how many had gone before each.
#[derive(Default)]
pub(crate) struct GoneSegments {
    by_uuid: BTreeMap<SegmentUuid, u64>,
    by_number: BTreeMap<SegmentNo, u64>,
    /// Oldest first.
    order: VecDeque<GoneSegment>,
    count: u64,
}

impl GoneSegments {
    /// Remembers that a UUID is Gone, and that all of it is to be kept if ever that was said.
    pub fn remember(&mut self, gone: GoneSegment) {
        if let Some(before) = self.by_uuid.get(&gone.uuid) {
            let place = self.place(*before).expect("it is remembered");
            self.order[place].kept_whole |= gone.kept_whole;
            return;
        }
        self.by_uuid.insert(gone.uuid, self.count);
        self.by_number.insert(gone.number, self.count);
        self.order.push_back(gone);
        self.count += 1;
        if self.order.len() > GONE_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_uuid.remove(&oldest.uuid);
            self.by_number.remove(&oldest.number);
        }
    }

    pub fn has(&self, uuid: SegmentUuid) -> bool {
        self.by_uuid.contains_key(&uuid)
    }

    /// Oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = GoneSegment> + '_ {
        self.order.iter().copied()
    }

    /// How many have gone, as far as this process knows.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How many had gone before the oldest one that is remembered.
    pub fn forgotten(&self) -> u64 {
        self.count - self.order.len() as u64
    }

    /// The one before which so many had gone, if it is remembered.
    pub fn at(&self, before: u64) -> Option<GoneSegment> {
        self.order.get(self.place(before)?).copied()
    }

    /// The one that had a number, if it is remembered.
    pub fn of(&self, number: SegmentNo) -> Option<GoneSegment> {
        self.at(*self.by_number.get(&number)?)
    }

    fn place(&self, before: u64) -> Option<usize> {
        usize::try_from(before.checked_sub(self.forgotten())?).ok()
    }

    /// Each is found by its UUID and by its number, and nothing else is.
    pub fn check_invariants(&self) -> Result<(), String> {
        let (ordered, gone, numbered) = (self.order.len(), self.by_uuid.len(), self.by_number.len());
        ensure!(ordered == gone && gone <= GONE_MAX, "{gone} are Gone, {ordered} in order");
        ensure!(numbered == gone, "{gone} are Gone, {numbered} by number");
        for one in self.iter() {
            let number = one.number.0;
            ensure!(self.has(one.uuid), "the UUID of {number} is not Gone");
            let found = self.of(one.number).is_some_and(|found| found.uuid == one.uuid);
            ensure!(found, "{number} is Gone, and not found by its number");
        }
        Ok(())
    }
}
