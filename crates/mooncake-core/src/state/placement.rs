//! Where a new replica goes.

use smallvec::SmallVec;

use crate::config::PlacementStrategy;
use crate::ids::SegmentNo;
use crate::state::segment::{Open, Segments};
use mooncake_ids::SessionId;

/// Segments that [`PlacementStrategy::FreeRatioFirst`] compares.
const SAMPLE: usize = 6;

/// A small generator (xorshift64*): placement and reigns need spread, not secrecy, and the same choices for the same
/// seed.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        ((u64::from(self.bits()) * bound as u64) >> 32) as usize
    }

    pub fn bits(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }
}

/// What one put wishes.
pub(crate) struct Wishes {
    /// To be tried first, in order.
    pub preferred: SmallVec<[SegmentNo; 4]>,
    /// Host to be tried next.
    pub host: Option<u32>,
    pub strategy: PlacementStrategy,
}

/// A segment with room for `need` granules now, of a session that is not in `used`.
pub(crate) fn choose(
    segments: &Segments,
    need: u32,
    used: &[SessionId],
    wishes: &Wishes,
    random: &mut Random,
) -> Option<SegmentNo> {
    let open = segments.open();
    if segments.longest_run() < need || open.is_empty() {
        return None;
    }
    let fits = |open: &Open| open.largest >= need && !used.contains(&open.session);
    for number in &wishes.preferred {
        if segments.open_one_of(*number).is_some_and(fits) {
            return Some(*number);
        }
    }
    let start = random.below(open.len());
    let mut from_start = segments.with_room(start..open.len(), need).chain(segments.with_room(0..start, need));
    if wishes.host.is_some()
        && let Some(open) = from_start.clone().find(|open| open.host == wishes.host && fits(open))
    {
        return Some(open.number);
    }
    if wishes.strategy == PlacementStrategy::FreeRatioFirst {
        let sample = (0..SAMPLE.min(open.len())).map(|step| {
            // All of a few segments, random ones of many.
            let index = if open.len() <= SAMPLE { step } else { random.below(open.len()) };
            &open[index]
        });
        let emptiest = sample.filter(|open| fits(open)).max_by(|a, b| {
            let (a, b) = (u64::from(a.free) * u64::from(b.total), u64::from(b.free) * u64::from(a.total));
            a.cmp(&b)
        });
        if let Some(open) = emptiest {
            return Some(open.number);
        }
    }
    from_start.find(|open| fits(open)).map(|open| open.number)
}
