//! One committed object, as small as it gets: a pool holds tens of millions.

use std::num::{NonZeroU32, NonZeroU64};

use smallvec::SmallVec;

use crate::ids::{Extent, Replica, SegmentNo, Time};
use crate::slab::{Link, Linked};
use crate::state::writers::WriterNo;
use mooncake_ids::{GRANULE, Rid, TIER_BLOCK};

/// Longest key that is kept without memory of its own: most keys of engines are shorter.
const INLINE: usize = 78;

/// The key of an unfinished put; those of objects lie beside them in the slab. Short ones need no allocation of their
/// own.
#[derive(Clone)]
pub(crate) enum Key {
    Inline { len: u8, bytes: [u8; INLINE] },
    Heap(Box<[u8]>),
}

impl Key {
    pub fn new(key: &[u8]) -> Key {
        if key.len() <= INLINE {
            let mut bytes = [0; INLINE];
            bytes[..key.len()].copy_from_slice(key);
            Key::Inline { len: key.len() as u8, bytes }
        } else {
            Key::Heap(key.into())
        }
    }

    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Key::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Key::Heap(bytes) => bytes,
        }
    }
}

/// Replicas that an object has at most; masters allow fewer.
pub(crate) const REPLICAS_MAX: usize = u8::MAX as usize;

/// A replica without the length, which all replicas of an object share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub rid: Rid,
    pub segment: SegmentNo,
    /// Its first granule and one more: what cannot be 0 tells [`Places`] apart without a byte of its own.
    above: NonZeroU32,
}

impl Place {
    pub fn new(rid: Rid, segment: SegmentNo, granule: u32) -> Place {
        Place { rid, segment, above: NonZeroU32::MIN.saturating_add(granule) }
    }

    /// Of a replica that has been checked to end at a granule of a 32-bit number.
    pub fn of(replica: &Replica) -> Place {
        Place::new(replica.rid, replica.extent.segment, (replica.extent.offset / GRANULE) as u32)
    }

    pub fn granule(&self) -> u32 {
        self.above.get() - 1
    }

    pub fn replica(&self, size: u64) -> Replica {
        Replica { rid: self.rid, extent: self.extent(size) }
    }

    pub fn extent(&self, size: u64) -> Extent {
        Extent { segment: self.segment, offset: u64::from(self.granule()) * GRANULE, length: size }
    }
}

/// A record on a tier, without its length, which is the object's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TierPlace {
    pub rid: Rid,
    pub tier: SegmentNo,
    /// Its first block and one more, so that none takes no room of its own.
    above: NonZeroU64,
}

impl TierPlace {
    pub fn new(rid: Rid, tier: SegmentNo, address: u64) -> TierPlace {
        TierPlace { rid, tier, above: NonZeroU64::MIN.saturating_add(address) }
    }

    /// Of a replica on a tier.
    pub fn of(replica: &Replica) -> TierPlace {
        TierPlace::new(replica.rid, replica.extent.segment, replica.extent.offset / TIER_BLOCK)
    }

    /// Blocks since the tier's first file.
    pub fn address(&self) -> u64 {
        self.above.get() - 1
    }

    pub fn replica(&self, size: u64) -> Replica {
        let extent = Extent { segment: self.tier, offset: self.address() * TIER_BLOCK, length: size };
        Replica { rid: self.rid, extent }
    }
}

/// Where an object lies. Nearly always in memory, once; a box only for anything else, with a short pointer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Places {
    /// One place in memory, by whose rid the object is known.
    One(Place),
    More(Box<MorePlaces>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MorePlaces {
    object_id: Rid,
    memory: SmallVec<[Place; 1]>,
    tier: Option<TierPlace>,
}

impl Places {
    pub fn new(object_id: Rid, memory: &[Place], tier: Option<TierPlace>) -> Places {
        match (memory, tier) {
            ([place], None) if place.rid == object_id => Places::One(*place),
            _ => Places::More(Box::new(MorePlaces { object_id, memory: SmallVec::from_slice(memory), tier })),
        }
    }

    /// Of a new object: the lowest rid is its id.
    pub fn of_new(memory: &[Place]) -> Places {
        let lowest = memory.iter().map(|place| place.rid).min();
        Places::new(lowest.expect("an object lies somewhere"), memory, None)
    }

    /// Those in memory.
    #[inline]
    pub fn memory(&self) -> &[Place] {
        match self {
            Places::One(place) => std::slice::from_ref(place),
            Places::More(more) => &more.memory,
        }
    }

    /// The one on a tier.
    #[inline]
    pub fn tier(&self) -> Option<TierPlace> {
        match self {
            Places::One(_) => None,
            Places::More(more) => more.tier,
        }
    }

    /// The lowest rid with which the object was committed. It stays while places come and go.
    #[inline]
    pub fn object_id(&self) -> Rid {
        match self {
            Places::One(place) => place.rid,
            Places::More(more) => more.object_id,
        }
    }

    /// Segments and the tier that it lies on.
    pub fn segments(&self) -> impl Iterator<Item = SegmentNo> + '_ {
        self.memory().iter().map(|place| place.segment).chain(self.tier().map(|place| place.tier))
    }

    /// Rids of all places.
    pub fn rids(&self) -> impl Iterator<Item = Rid> + '_ {
        self.memory().iter().map(|place| place.rid).chain(self.tier().map(|place| place.rid))
    }
}

/// A time in six bytes, which are enough for nine years of the clock; later ones are that one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Until([u8; 6]);

impl Until {
    const LAST: u64 = (1 << 48) - 1;

    #[inline]
    fn time(self) -> Time {
        let [a, b, c, d, e, f] = self.0;
        Time(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }
}

impl From<Time> for Until {
    #[inline]
    fn from(time: Time) -> Until {
        let [_, _, a, b, c, d, e, f] = time.0.min(Until::LAST).to_be_bytes();
        Until([a, b, c, d, e, f])
    }
}

impl PartialEq<Time> for Until {
    #[inline]
    fn eq(&self, time: &Time) -> bool {
        self.time() == *time
    }
}

impl PartialOrd<Time> for Until {
    #[inline]
    fn partial_cmp(&self, time: &Time) -> Option<std::cmp::Ordering> {
        self.time().partial_cmp(time)
    }
}

/// [`crate::PinKind`] without the lifetime, which lies in a side table of the few that have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    None,
    Soft,
    /// It was soft pinned, which has lapsed.
    Lapsed,
    Hard,
}

/// The list that an object is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListedIn {
    /// None: held by a reader or a pin that eviction must not touch.
    None,
    Policy,
    Protected,
    Soft,
    SetAside,
}

/// Its key lies beside it in the slab; its group, whose name and members are elsewhere too, with the groups.
pub(crate) struct Object {
    /// Its size above the number of its writer.
    size_and_writer: u64,
    pub places: Places,
    pub link: Link,
    pub crc32c: u32,
    /// Looked up a moment ago: stays until then if it can.
    pub protected_until: Until,
    /// What its key leaves of the room for it.
    pub spare: u16,
    /// Replicas that there are views over.
    pub readers: u8,
    pub hold: Hold,
    pub listed_in: ListedIn,
    pub marks: Marks,
}

/// What else is known of an object, a bit each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Marks(u8);

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mark {
    /// A replacement is being written: it stays until that ends.
    Replacing = 1,
    /// An owner has the order to write it to its tier.
    Ordered = 2,
    /// It was read since it was put, or was written to its tier.
    Read = 4,
    /// Its tier's owner has it, or will have it, copied to memory.
    Promoting = 8,
    /// It was counted as one that its tier is spared, or does not take.
    Unwritten = 16,
    /// It was read when its file was none of the youngest of its tier any more.
    ReadLate = 32,
}

impl Marks {
    #[inline]
    pub fn has(self, mark: Mark) -> bool {
        self.0 & mark as u8 != 0
    }

    /// Whether it was set before.
    #[inline]
    pub fn set(&mut self, mark: Mark, on: bool) -> bool {
        let had = self.has(mark);
        self.0 = if on { self.0 | mark as u8 } else { self.0 & !(mark as u8) };
        had
    }
}

impl Object {
    /// In no list, without protection, views and marks.
    pub fn new(size: u64, crc32c: u32, places: Places, hold: Hold) -> Object {
        debug_assert!(size >> (u64::BITS - WriterNo::BITS) == 0, "{size} bytes: see `size`");
        Object {
            size_and_writer: size << WriterNo::BITS,
            places,
            link: Link::default(),
            crc32c,
            protected_until: Time(0).into(),
            spare: 0,
            readers: 0,
            hold,
            listed_in: ListedIn::None,
            marks: Marks::default(),
        }
    }

    /// Bytes: no segment holds so many that 48 bits are too few.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size_and_writer >> WriterNo::BITS
    }

    /// The client that stored it.
    #[inline]
    pub fn writer(&self) -> WriterNo {
        WriterNo(self.size_and_writer as u16)
    }

    #[inline]
    pub fn set_writer(&mut self, writer: WriterNo) {
        self.size_and_writer = self.size() << WriterNo::BITS | u64::from(writer.0);
    }

    /// A replacement is being written.
    #[inline]
    pub fn is_replaced(&self) -> bool {
        self.marks.has(Mark::Replacing)
    }

    /// For how long a look-up protects it yet, microseconds.
    pub fn protected_for_us(&self, now: Time) -> u64 {
        self.protected_until.time().0.saturating_sub(now.0)
    }

    /// Those in memory.
    pub fn replicas(&self) -> SmallVec<[Replica; 1]> {
        self.places.memory().iter().map(|place| place.replica(self.size())).collect()
    }

    /// Of all replicas in memory.
    pub fn bytes(&self) -> u64 {
        self.size() * self.places.memory().len() as u64
    }

    /// See [`Places::object_id`].
    #[inline]
    pub fn id(&self) -> Rid {
        self.places.object_id()
    }

    pub fn has(&self, rid: Rid) -> bool {
        self.places.rids().any(|other| other == rid)
    }
}

impl Linked for Object {
    #[inline]
    fn link(&self) -> Link {
        self.link
    }
    #[inline]
    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_stays_small() {
        assert_eq!((size_of::<Place>(), size_of::<Places>()), (16, 16));
        assert_eq!((size_of::<Object>(), size_of::<Option<Object>>()), (48, 48));
    }

    #[test]
    fn a_size_and_a_writer_lie_beside_each_other() {
        let place = Place::new(Rid::new(1, 1), SegmentNo(1), 0);
        for (size, writer) in [(1, 0), ((1 << 48) - 1, 7), (4096, u16::MAX)] {
            let mut object = Object::new(size, 0, Places::of_new(&[place]), Hold::None);
            assert_eq!((object.size(), object.writer()), (size, WriterNo::NOBODY));
            object.set_writer(WriterNo(writer));
            object.set_writer(WriterNo(writer));
            assert_eq!((object.size(), object.writer()), (size, WriterNo(writer)));
        }
    }

    #[test]
    fn a_place_is_what_it_was_made_of_and_so_are_several() {
        for granule in [0, 1, u32::MAX - 1] {
            let place = Place::new(Rid::new(3, 4), SegmentNo(5), granule);
            assert_eq!((place.rid, place.segment, place.granule()), (Rid::new(3, 4), SegmentNo(5), granule));
            assert_eq!(Place::of(&place.replica(7)), place);
            for count in 1..5 {
                assert_eq!(Places::of_new(&vec![place; count]).memory(), vec![place; count]);
            }
        }
        for address in [0, 1, (1 << 52) - 1] {
            let place = TierPlace::new(Rid::new(3, 6), SegmentNo(7), address);
            assert_eq!((place.rid, place.tier, place.address()), (Rid::new(3, 6), SegmentNo(7), address));
            assert_eq!(TierPlace::of(&place.replica(9)), place);
        }
    }

    #[test]
    fn an_object_keeps_its_id_while_places_come_and_go() {
        let (one, other) = (Place::new(Rid::new(1, 4), SegmentNo(1), 0), Place::new(Rid::new(1, 3), SegmentNo(2), 8));
        let on_tier = TierPlace::new(Rid::new(1, 9), SegmentNo(3), 40);
        let both = Places::of_new(&[one, other]);
        assert_eq!(both.object_id(), other.rid);
        assert!(matches!(Places::of_new(&[one]), Places::One(_)), "most objects need no box");
        // The place that gave the id goes, then memory altogether, and a replica comes back.
        let left = Places::new(both.object_id(), &[one], None);
        assert_eq!((left.object_id(), left.memory(), left.tier()), (other.rid, &[one][..], None));
        let written = Places::new(left.object_id(), left.memory(), Some(on_tier));
        let cold = Places::new(written.object_id(), &[], written.tier());
        assert_eq!((cold.object_id(), cold.memory(), cold.tier()), (other.rid, &[][..], Some(on_tier)));
        let rids: Vec<Rid> = written.rids().collect();
        assert_eq!(rids, [one.rid, on_tier.rid]);
        let lies_on: Vec<SegmentNo> = written.segments().collect();
        assert_eq!(lies_on, [SegmentNo(1), SegmentNo(3)]);
    }

    #[test]
    fn marks_are_set_one_by_one() {
        let all = [Mark::Replacing, Mark::Ordered, Mark::Read, Mark::Promoting, Mark::Unwritten, Mark::ReadLate];
        for mark in all {
            let mut marks = Marks::default();
            assert!(!marks.set(mark, true) && marks.set(mark, true));
            assert!(all.iter().all(|other| marks.has(*other) == (*other == mark)));
            assert!(marks.set(mark, false) && marks == Marks::default());
        }
    }

    #[test]
    fn a_short_time_is_in_order_with_others_and_ends_where_it_cannot_go_on() {
        let times = [0, 1, 255, 256, 1 << 40, Until::LAST - 1, Until::LAST].map(Time);
        for (a, b) in times.iter().flat_map(|a| times.map(|b| (*a, b))) {
            assert_eq!(Until::from(a).cmp(&Until::from(b)), a.cmp(&b));
            assert_eq!(Until::from(a).partial_cmp(&b), Some(a.cmp(&b)));
        }
        // Nothing counts as protected from then on, rather than all for ever.
        assert!(Until::from(Time(u64::MAX)) < Time(Until::LAST + 1));
    }
}
