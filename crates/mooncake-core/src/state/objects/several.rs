//! Objects of several places: how many there are, and of which of them no segment and no tier is Live. That changes
//! with those that come and go; it is looked at in steps then, which need no list of the objects on each of them.

use super::{ObjectSlot, Objects};
use crate::state::object::{Object, Places};
use crate::state::segment::Segments;

/// So many objects are looked at in no time, as long as they are not scattered over more slots than this.
const FEW_OBJECTS: usize = 1_024;
const FEW_SLOTS: u32 = 4_096;

#[derive(Default)]
pub(crate) struct Several {
    len: u64,
    /// Those of them that fewer than two owners have in memory.
    lone: u64,
    /// A bit for each slot: no reader can see the object there.
    dark: Vec<u64>,
    dark_len: u64,
    /// Slots from here on are yet to be looked at, since a segment came or went.
    next: Option<u32>,
    /// Another one did meanwhile.
    again: bool,
}

impl Several {
    fn is_dark(&self, slot: u32) -> bool {
        self.dark.get(slot as usize / 64).is_some_and(|bits| bits >> (slot % 64) & 1 != 0)
    }

    fn set_dark(&mut self, slot: u32, dark: bool) {
        if self.is_dark(slot) == dark {
            return;
        }
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        if self.dark.len() <= word {
            self.dark.resize(word + 1, 0);
        }
        self.dark[word] ^= bit;
        match dark {
            true => self.dark_len += 1,
            false => self.dark_len -= 1,
        }
    }

    /// One that so many owners have in memory.
    pub fn add(&mut self, slot: u32, owners: usize, visible: bool) {
        self.len += 1;
        self.lone += u64::from(owners < 2);
        self.set_dark(slot, !visible);
    }

    pub fn remove(&mut self, slot: u32, owners: usize) {
        self.len -= 1;
        self.lone -= u64::from(owners < 2);
        self.set_dark(slot, false);
    }

    pub fn visible_len(&self) -> u64 {
        self.len - self.dark_len
    }
}

/// Of one whose place is known to be of several.
fn is_visible(object: &Object, segments: &Segments) -> bool {
    object.places.segments().any(|number| segments.is_live(number))
}

fn is_of_several(object: &Object) -> bool {
    matches!(object.places, Places::More(_))
}

impl Objects {
    /// A segment is Live that was not, or the other way round, or Gone. What there is of few objects is looked at at
    /// once.
    pub fn segments_changed(&mut self, segments: &Segments) {
        let several = &mut self.several;
        if several.len > 0 {
            several.again = several.next.is_some();
            several.next.get_or_insert(0);
            if self.slab.len() <= FEW_OBJECTS && self.slab.bound() <= FEW_SLOTS {
                self.look_at_all(segments);
            }
        }
    }

    fn look_at_all(&mut self, segments: &Segments) {
        for (slot, object) in self.slab.iter().filter(|(_, object)| is_of_several(object)) {
            self.several.set_dark(slot, !is_visible(object, segments));
        }
        (self.several.next, self.several.again) = (None, false);
    }

    /// Goes on looking which objects of several replicas can be seen, over at most so many slots. How many there were.
    /// `purging`: some may lie on segments that are Gone.
    pub fn look_at_several(&mut self, segments: &Segments, purging: bool, most: usize) -> usize {
        let mut looked = 0;
        while let Some(next) = self.several.next.filter(|_| looked < most) {
            // Each lies with several owners, but for the lone ones.
            let (len, lone) = (self.several.len, self.several.lone);
            if next == 0 && !purging && lone == 0 && segments.few_are_hidden() {
                self.several = Several { len, lone, ..Several::default() };
                break;
            }
            let end = self.slab.bound().min(next.saturating_add((most - looked) as u32));
            for slot in next..end {
                if let Some(object) = self.slab.get(slot).filter(|object| is_of_several(object)) {
                    self.several.set_dark(slot, !is_visible(object, segments));
                }
            }
            looked += (end - next) as usize;
            self.several.next = match end < self.slab.bound() {
                true => Some(end),
                false => std::mem::take(&mut self.several.again).then_some(0),
            };
        }
        looked
    }

    /// Those of several replicas are counted; which of them can be seen, too, once all have been looked at.
    pub(super) fn check_several(&self, segments: &Segments) -> Result<(), String> {
        use crate::ensure::ensure;
        let (mut there, mut lone, mut dark) = (0, 0, 0);
        for (slot, object) in self.slab.iter() {
            let (several, is_dark) = (is_of_several(object), self.several.is_dark(slot));
            let key = self.key(ObjectSlot(slot)).escape_ascii();
            ensure!(several || !is_dark, "{key} lies on one segment, and counts as one on several that nobody sees");
            let right = self.several.next.is_some() || !several || is_dark != is_visible(object, segments);
            let visible = !is_dark;
            ensure!(right, "{key} on several segments can be seen: {}, and counts as the contrary", !visible);
            there += u64::from(several);
            lone += u64::from(several && object.places.memory().len() < 2);
            dark += u64::from(is_dark);
        }
        let counted = (self.several.len, self.several.lone, self.several.dark_len);
        ensure!(
            (there, lone, dark) == counted,
            "{:?} lie on several segments, with one owner at most and unseen, and counted {counted:?}",
            (there, lone, dark)
        );
        Ok(())
    }
}
