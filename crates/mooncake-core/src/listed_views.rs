//! The views that a session says it has when it comes back, held against those that the books say it has.

use std::collections::BTreeMap;

use crate::core::Core;
use crate::effect::{Effects, Record};
use crate::ids::{Rid, SessionId, Time};

/// A list of views. Some may be of placements that nothing here says the place of at once: those are
/// [looked for](Core::look_for_views) among all objects before the session [resumes](Core::resume_session), in slices.
#[derive(Debug, Default)]
pub struct ListedViews {
    /// In order, once per view.
    rids: Vec<Rid>,
    next: u32,
    /// Where those that were looked for have been found.
    slots: BTreeMap<Rid, u32>,
}

impl ListedViews {
    /// The list, in any order: once per view.
    pub fn new(mut rids: Vec<Rid>) -> ListedViews {
        rids.sort_unstable();
        ListedViews { rids, ..ListedViews::default() }
    }

    fn count(&self, rid: Rid) -> u32 {
        let from = self.rids.partition_point(|other| *other < rid);
        self.rids[from..].iter().take_while(|other| **other == rid).count() as u32
    }

    fn rids(&self) -> impl Iterator<Item = Rid> + '_ {
        self.rids.chunk_by(|a, b| a == b).map(|same| same[0])
    }
}

impl Core {
    /// Goes on looking, over at most `budget` slots. True when there is nothing to look for any more.
    pub fn look_for_views(&self, session: SessionId, views: &mut ListedViews, budget: usize) -> bool {
        if views.next == 0 && !self.has_to_look(session, views) {
            return true;
        }
        let end = self.objects.bound().min(views.next.saturating_add(budget as u32));
        for slot in views.next..end {
            let Some(object) = self.objects.get(slot) else { continue };
            for place in object.places.as_slice() {
                if views.rids.binary_search(&place.rid).is_ok() {
                    views.slots.insert(place.rid, slot);
                }
            }
        }
        views.next = end;
        end >= self.objects.bound()
    }

    /// Whether one is listed that the session is not known to have, and which was not looked for already: an object that was
    /// looked for once in vain does not turn up later.
    fn has_to_look(&self, session: SessionId, views: &ListedViews) -> bool {
        let Some(entry) = self.sessions.get(session) else { return false };
        views.rids().any(|rid| !entry.pins.contains_key(&rid) && !entry.unknown_pins.contains_key(&rid))
    }

    /// Views that the session does not list have ended, unless it may yet receive the reply that gave them; views that it
    /// lists and the log lost are noted again. Returns those of which not even the place is known any more: nothing here
    /// keeps it from being given out, so their reader has to.
    pub(crate) fn reconcile_views(
        &mut self,
        now: Time,
        session: SessionId,
        listed: &ListedViews,
        fx: &mut Effects,
    ) -> Vec<Rid> {
        let Some(entry) = self.sessions.get_mut(session) else { return Vec::new() };
        entry.unknown_pins.clear();
        let known: Vec<(Rid, u32)> = entry.pins.iter().map(|(rid, views)| (*rid, *views)).collect();
        let under_way = entry.pins_under_way();
        for (rid, views) in &known {
            for _ in listed.count(*rid) + under_way.get(rid).copied().unwrap_or(0)..*views {
                self.log(now, Record::Unpinned { session, rid: *rid }, fx);
            }
        }
        // What a log lost with its end.
        let mut missing: BTreeMap<Rid, u32> = BTreeMap::new();
        for rid in listed.rids() {
            let views = known.binary_search_by_key(&rid, |(other, _)| *other).map_or(0, |at| known[at].1);
            let lost = listed.count(rid).saturating_sub(views);
            if lost > 0 {
                missing.insert(rid, lost);
            }
        }
        missing.retain(|rid, views| !self.note_views(now, session, *rid, *views, listed, fx));
        let unknown = missing.iter().flat_map(|(rid, views)| std::iter::repeat_n(*rid, *views as usize)).collect();
        self.sessions.get_mut(session).expect("known").unknown_pins = missing;
        unknown
    }

    /// Notes views that the log lost, if it is known where they are.
    fn note_views(
        &mut self,
        now: Time,
        session: SessionId,
        rid: Rid,
        views: u32,
        listed: &ListedViews,
        fx: &mut Effects,
    ) -> bool {
        let key_of = |core: &Core, slot: u32| -> Box<[u8]> { core.objects.key(slot).into() };
        let (extent, key) = match self.pins.get(rid) {
            // Other views of the same placement say where it is, whatever became of its object.
            Some(pin) => (pin.extent, self.object_under(pin).map(|slot| key_of(self, slot))),
            None => {
                let Some(slot) = listed.slots.get(&rid).copied() else { return false };
                // It may have left since it was found.
                let object = self.objects.get(slot);
                let place = object.and_then(|object| object.places.as_slice().iter().find(|place| place.rid == rid));
                let (Some(object), Some(place)) = (object, place) else { return false };
                if self.segments.get(place.segment).is_none() {
                    return false;
                }
                (place.extent(object.size), Some(key_of(self, slot)))
            }
        };
        for _ in 0..views {
            self.log(now, Record::Pinned { session, rid, extent, key: key.clone() }, fx);
        }
        true
    }
}
