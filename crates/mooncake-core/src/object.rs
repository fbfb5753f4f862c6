//! One committed object, as small as it gets: a pool holds tens of millions.

use smallvec::SmallVec;

use crate::ids::{Extent, GRANULE, Replica, Rid, SegmentNo, Time};
use crate::slab::{Link, Linked};

/// Longest key kept inside the object.
const INLINE: usize = 22;

/// A key; short ones need no allocation of their own.
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

/// Granules that a number of bytes takes.
pub(crate) fn granules(bytes: u64) -> u64 {
    bytes.div_ceil(GRANULE)
}

/// A replica without the length, which all replicas of an object share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub rid: Rid,
    pub segment: SegmentNo,
    pub granule: u32,
}

impl Place {
    /// Of a replica that has been checked to start on a granule of a 32-bit number.
    pub fn of(replica: &Replica) -> Place {
        Place { rid: replica.rid, segment: replica.extent.segment, granule: (replica.extent.offset / GRANULE) as u32 }
    }

    pub fn replica(&self, size: u64) -> Replica {
        Replica { rid: self.rid, extent: self.extent(size) }
    }

    pub fn extent(&self, size: u64) -> Extent {
        Extent { segment: self.segment, offset: u64::from(self.granule) * GRANULE, length: size }
    }
}

/// Nearly always one; a box only for more.
#[derive(Clone)]
pub(crate) enum Places {
    One(Place),
    Many(Box<[Place]>),
}

impl Places {
    pub fn new(places: &[Place]) -> Places {
        match places {
            [place] => Places::One(*place),
            places => Places::Many(places.into()),
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
    Parked,
}

pub(crate) struct Object {
    pub key: Key,
    pub size: u64,
    pub places: Places,
    /// Looked up a moment ago: stays until then if it can.
    pub protected_until: Time,
    pub link: Link,
    pub crc32c: u32,
    /// Views over any of its replicas.
    pub readers: u32,
    pub hold: Hold,
    pub listed_in: ListedIn,
    /// A replacement is being written: it stays until that ends.
    pub replacing: bool,
}

impl Object {
    pub fn replicas(&self) -> SmallVec<[Replica; 1]> {
        self.places.as_slice().iter().map(|place| place.replica(self.size)).collect()
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
        assert!(size_of::<Object>() <= 96, "{}", size_of::<Object>());
        assert!(size_of::<Option<Object>>() <= 96);
    }
}
