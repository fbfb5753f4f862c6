//! One committed object, as small as it gets: a pool holds tens of millions.

use std::num::NonZeroU32;

use smallvec::SmallVec;

use crate::ids::{Extent, Replica, SegmentNo, Time};
use crate::slab::{Link, Linked};
use mooncake_ids::{GRANULE, Rid};

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

/// Nearly always one; a box only for more, with a short pointer to it.
#[derive(Clone)]
pub(crate) enum Places {
    One(Place),
    #[expect(clippy::box_collection, reason = "a pointer of eight bytes, where a vector takes 24 in each object")]
    Many(Box<Vec<Place>>),
}

impl Places {
    pub fn new(places: &[Place]) -> Places {
        match places {
            [place] => Places::One(*place),
            places => Places::Many(Box::new(places.to_vec())),
        }
    }

    #[inline]
    pub fn as_slice(&self) -> &[Place] {
        match self {
            Places::One(place) => std::slice::from_ref(place),
            Places::Many(places) => places,
        }
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
    pub size: u64,
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
    /// A replacement is being written: it stays until that ends.
    pub replacing: bool,
}

impl Object {
    /// In no list, without protection and views, and with no replacement under way.
    pub fn new(size: u64, crc32c: u32, places: &[Place], hold: Hold) -> Object {
        Object {
            size,
            places: Places::new(places),
            link: Link::default(),
            crc32c,
            protected_until: Time(0).into(),
            spare: 0,
            readers: 0,
            hold,
            listed_in: ListedIn::None,
            replacing: false,
        }
    }

    pub fn replicas(&self) -> SmallVec<[Replica; 1]> {
        self.places.as_slice().iter().map(|place| place.replica(self.size)).collect()
    }

    /// Of all replicas.
    pub fn bytes(&self) -> u64 {
        self.size * self.places.as_slice().len() as u64
    }

    pub fn rid(&self) -> Rid {
        self.places.as_slice()[0].rid
    }

    pub fn has(&self, rid: Rid) -> bool {
        self.places.as_slice().iter().any(|place| place.rid == rid)
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
    fn a_place_is_what_it_was_made_of_and_so_are_several() {
        for granule in [0, 1, u32::MAX - 1] {
            let place = Place::new(Rid::new(3, 4), SegmentNo(5), granule);
            assert_eq!((place.rid, place.segment, place.granule()), (Rid::new(3, 4), SegmentNo(5), granule));
            assert_eq!(Place::of(&place.replica(7)), place);
            for count in 1..5 {
                assert_eq!(Places::new(&vec![place; count]).as_slice(), vec![place; count]);
            }
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
