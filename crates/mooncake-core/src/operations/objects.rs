//! Objects with where they lie and what keeps them, for pages. Looking at them changes nothing, and is not counted.

use crate::core::Core;
use crate::ids::Time;
use crate::operations::remove::KeysCursor;
use crate::request::Sight;
use crate::state::object::{Hold, Object};
use crate::state::objects::ObjectSlot;
use mooncake_ids::Rid;

/// An object that can be read.
#[derive(Debug, Clone)]
pub struct ObjectView<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Bytes.
    pub size: u64,
    /// Its id: of two objects the one that came later has the larger one.
    pub id: Rid,
    /// Where it lies in memory.
    pub memory: Vec<PlaceView<'a>>,
    /// Name of the client that has it on a tier.
    pub tier: Option<&'a str>,
    /// Replicas under views.
    pub viewed: u8,
    /// For how long a look-up protects it yet, microseconds.
    pub protected_us: u64,
    /// What keeps it from eviction, or makes it one of the last to go.
    pub pin: PinView,
}

/// One place of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaceView<'a> {
    /// Name of the client that lends the segment.
    pub client: &'a str,
    /// Name of the segment.
    pub segment: &'a str,
    /// It can be read there now.
    pub is_live: bool,
}

/// A pin of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinView {
    /// None, or one that has lapsed.
    None,
    /// It is evicted after others.
    Soft,
    /// It is not evicted.
    Hard,
}

impl KeysCursor {
    /// Goes on from a place that [`KeysCursor::place`] told.
    pub fn at(place: u32) -> KeysCursor {
        KeysCursor { next: place }
    }

    /// Where it goes on.
    pub fn place(&self) -> u32 {
        self.next
    }
}

impl Core {
    /// One object, if it is there.
    pub fn object_of(&self, now: Time, key: &[u8]) -> Option<ObjectView<'_>> {
        let slot = self.visible(self.objects.hash(key), key, Sight::Tiers)?;
        Some(self.view_of(now, slot))
    }

    /// Objects whose keys are `wanted`, in no order, of a slice of so many places; true at the end. One that `out`
    /// answers with false is the last of this slice.
    pub fn objects_slice(
        &self,
        now: Time,
        cursor: &mut KeysCursor,
        budget: usize,
        wanted: impl Fn(&[u8]) -> bool,
        mut out: impl FnMut(ObjectView<'_>) -> bool,
    ) -> bool {
        let end = self.objects.bound().min(cursor.next.saturating_add(budget as u32));
        for slot in (cursor.next..end).map(ObjectSlot) {
            cursor.next = slot.0 + 1;
            let is_there = self.objects.get(slot).is_some() && self.is_visible(slot, Sight::Tiers);
            if is_there && wanted(self.objects.key(slot)) && !out(self.view_of(now, slot)) {
                break;
            }
        }
        cursor.next >= self.objects.bound()
    }

    /// The highest rid that was handed out.
    pub fn last_rid(&self) -> Rid {
        Rid::new(self.epoch.number, self.counter)
    }

    fn view_of(&self, now: Time, slot: ObjectSlot) -> ObjectView<'_> {
        let object: &Object = self.objects.object(slot);
        let name_of = |session| self.sessions.get(session).map_or("", |session| session.spec.name.as_str());
        let memory = object.places.memory().iter().filter_map(|place| {
            let segment = self.segments.get(place.segment)?;
            Some(PlaceView { client: name_of(segment.session), segment: &segment.spec.name, is_live: segment.live })
        });
        let tier = object.places.tier().and_then(|place| self.tiers.get(place.tier));
        ObjectView {
            key: self.objects.key(slot),
            size: object.size(),
            id: object.id(),
            memory: memory.collect(),
            tier: tier.map(|tier| tier.spec.name.as_str()),
            viewed: object.readers,
            protected_us: object.protected_for_us(now),
            pin: match object.hold {
                Hold::Hard => PinView::Hard,
                Hold::Soft => PinView::Soft,
                Hold::None | Hold::Lapsed => PinView::None,
            },
        }
    }
}
