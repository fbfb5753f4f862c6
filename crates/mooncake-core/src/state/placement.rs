//! Where a new replica goes.

use smallvec::SmallVec;

use crate::config::PlacementStrategy;
use crate::ids::SegmentNo;
use crate::state::segment::{Open, Segments};
use mooncake_ids::SessionId;

/// Segments that [`PlacementStrategy::FreeRatioFirst`] compares; and those of which one is taken by chance before all
/// are gone through.
const SAMPLE: usize = 6;

/// Granules of one request that lie side by side: small objects that were put together are found, read and evicted
/// together, and cost the master one segment's books instead of one's each.
const SIDE_BY_SIDE: u32 = 64;

/// Segments that one look at a request tries for what it would rather have: eight for each key of a large one.
const PREFERRED_TRIED: usize = 4_096;

/// Segments with evictions that are looked at one by one.
const GAINED: usize = 8;

/// A small generator (xorshift64*): placement and epochs need spread, not secrecy, and the same choices for the same
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
    /// To be tried first.
    pub preferred: Preference,
    /// To be tried next: those of its own host.
    pub local: Preference,
    pub strategy: PlacementStrategy,
    /// Else beside the key before: where its first replica went, its second and so on.
    pub beside: SmallVec<[Option<Beside>; 2]>,
    /// No segment but these owners' has room.
    pub alone: Option<Alone>,
}

/// Owners of replicas besides which none has what another replica needs, as a request has found once for all of its
/// keys: an owner may have thousands of segments, which are gone through to find that out.
#[derive(Debug, Clone)]
pub(crate) struct Alone {
    owners: SmallVec<[SessionId; 2]>,
    /// So many granules and more.
    granules: u32,
    /// Where something was evicted since: those may have it.
    gained: SmallVec<[SegmentNo; GAINED]>,
}

impl Alone {
    pub fn of(owners: &[SessionId], granules: u32) -> Option<Alone> {
        (!owners.is_empty()).then(|| Alone { owners: SmallVec::from_slice(owners), granules, gained: SmallVec::new() })
    }

    /// Something was evicted there. False when that has happened in too many segments to look at each of them.
    pub fn gains(&mut self, number: SegmentNo) -> bool {
        if self.gained.contains(&number) {
            return true;
        }
        let has_place = self.gained.len() < GAINED;
        if has_place {
            self.gained.push(number);
        }
        has_place
    }

    /// One that has it by now, where `room` says how much each has that is none of the owners'.
    fn choose(&mut self, granules: u32, room: impl Fn(SegmentNo) -> Option<u32>) -> Option<SegmentNo> {
        let least = self.granules;
        let has = |number: &SegmentNo, granules: u32| room(*number).is_some_and(|room| room >= granules);
        self.gained.retain(|number| has(number, least));
        self.gained.iter().copied().find(|number| has(number, granules))
    }

    pub fn are(&self, owners: &[SessionId], granules: u32) -> bool {
        self.owners[..] == *owners && granules >= self.granules
    }
}

/// A segment that was chosen for nothing but its room.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Beside {
    segment: SegmentNo,
    /// Granules of the request that are still to go there.
    left: u32,
}

/// Segments that a request would rather have, and what it has learnt about them: there may be as many as in the pool,
/// all of them full, and each of its keys asks.
#[derive(Debug, Default)]
pub(crate) struct Preference {
    /// In order.
    segments: SmallVec<[SegmentNo; 4]>,
    /// Those before this one are full for so many granules and more.
    from: usize,
    granules: u32,
    tried: usize,
}

impl Preference {
    pub fn of(segments: impl IntoIterator<Item = SegmentNo>) -> Preference {
        Preference { segments: segments.into_iter().collect(), ..Preference::default() }
    }

    /// The first one that has a run of so many granules, and an owner that is not among these.
    fn choose(&mut self, among: &Segments, granules: u32, owners: &[SessionId]) -> Option<SegmentNo> {
        // Where more did not fit, less may.
        if granules < self.granules {
            self.from = 0;
        }
        self.granules = granules;
        let mut are_full = true;
        for place in self.from..self.segments.len() {
            if self.tried == PREFERRED_TRIED {
                return None;
            }
            self.tried += 1;
            let open = among.open_one_of(self.segments[place]);
            let has_room = open.filter(|open| open.largest >= granules);
            if has_room.is_some_and(|open| !owners.contains(&open.session)) {
                return Some(self.segments[place]);
            }
            are_full &= has_room.is_none();
            if are_full {
                self.from = place + 1;
            }
        }
        None
    }
}

/// A segment with room for `granules` granules now, of a session that is not in `owners`, those of the replicas
/// before.
pub(crate) fn choose(
    segments: &Segments,
    granules: u32,
    owners: &[SessionId],
    wishes: &mut Wishes,
    random: &mut Random,
) -> Option<SegmentNo> {
    let open = segments.open();
    if segments.longest_run() < granules || open.is_empty() {
        return None;
    }
    let fits = |open: &Open| open.largest >= granules && !owners.contains(&open.session);
    for preference in [&mut wishes.preferred, &mut wishes.local] {
        if let Some(number) = preference.choose(segments, granules, owners) {
            return Some(number);
        }
    }
    let nth = owners.len();
    if wishes.beside.len() <= nth {
        wishes.beside.resize(nth + 1, None);
    }
    let beside = wishes.beside[nth].filter(|beside| beside.left >= granules);
    let beside = beside.filter(|beside| segments.open_one_of(beside.segment).is_some_and(fits));
    let Beside { segment, left } = match beside {
        Some(beside) => beside,
        None => {
            let segment = match wishes.alone.as_mut().filter(|alone| alone.are(owners, granules)) {
                Some(alone) => {
                    let others = |number| segments.open_one_of(number).filter(|open| !owners.contains(&open.session));
                    alone.choose(granules, |number| Some(others(number)?.largest))?
                }
                None => {
                    let Some(segment) = choose_for_room(segments, granules, owners, wishes.strategy, random) else {
                        wishes.alone = Alone::of(owners, granules);
                        return None;
                    };
                    segment
                }
            };
            Beside { segment, left: SIDE_BY_SIDE }
        }
    };
    wishes.beside[nth] = Some(Beside { segment, left: left.saturating_sub(granules) });
    Some(segment)
}

fn choose_for_room(
    segments: &Segments,
    granules: u32,
    owners: &[SessionId],
    strategy: PlacementStrategy,
    random: &mut Random,
) -> Option<SegmentNo> {
    let open = segments.open();
    let fits = |open: &Open| open.largest >= granules && !owners.contains(&open.session);
    if strategy == PlacementStrategy::FreeRatioFirst {
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
    let from_start =
        |start| segments.with_room(start..open.len(), granules).chain(segments.with_room(0..start, granules));
    // An owner of very many segments has them side by side.
    for _ in 0..SAMPLE {
        let by_chance = from_start(random.below(open.len())).next();
        if let Some(open) = by_chance.filter(|open| fits(open)) {
            return Some(open.number);
        }
    }
    from_start(random.below(open.len())).find(|open| fits(open)).map(|open| open.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_small_for_one_key_is_there_for_a_smaller_one() {
        let mut alone = Alone::of(&[SessionId(1)], 10).unwrap();
        let room = |number: SegmentNo| [None, Some(90), Some(5)][number.0 as usize];
        for number in [0, 1, 2] {
            assert!(alone.gains(SegmentNo(number)));
        }
        assert_eq!(alone.choose(100, room), None);
        assert_eq!(alone.choose(10, room), Some(SegmentNo(1)));
        assert!((0..).map(|number| alone.gains(SegmentNo(10 + number))).take(GAINED).any(|kept| !kept));
    }
}
