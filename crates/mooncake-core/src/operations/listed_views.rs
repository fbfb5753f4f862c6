//! The views that a session says it has when it comes back, held against those that the books say it has.
//!
//! Both may be very many, so that they are compared in slices, between which the core is free: what changes meanwhile
//! is put aside and compared once more, in slices as long as it is much, and the last of it in the end. What a log lost
//! is noted in steps, too, before the session is back. Views that have ended are taken out of the books in the
//! background, and count for nothing until then.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::core::Core;
use crate::effect::Effects;
use crate::ids::Time;
use crate::record::Record;
use crate::state::comparing::Comparing;
use crate::state::objects::ObjectSlot;
use crate::state::session::Session;
use crate::work::Work;
use mooncake_ids::{Rid, SessionId};

/// So many of them are compared once more in the hold in which their session comes back; more of them before, in
/// slices.
const CHANGED_AT_ONCE: usize = 256;

/// A list of views, and how far it has been [compared](Core::look_for_views). Some may be of placements that nothing
/// here says the place of at once: those are looked for among all objects.
#[derive(Debug, Default)]
pub struct ListedViews {
    /// In order, once per view.
    rids: Vec<Rid>,
    step: Step,
    /// Of the comparison, as the session knows it; 0 before that.
    number: u64,
    /// The list has been gone through up to here, and the books up to that rid.
    at: usize,
    after: Option<Rid>,
    differing: Differing,
    /// Placements whose views have changed since, and which are yet to be compared once more: the last ones first.
    changed: Vec<Rid>,
    /// Objects have been looked at up to this slot.
    next: u32,
    /// Where those that were looked for have been found.
    slots: BTreeMap<Rid, ObjectSlot>,
    /// Of the lost ones those of which a place is known, as far as they are not [noted](Core::note_found_views) yet,
    /// and the others, once they have been told apart.
    found: Vec<(Rid, u32)>,
    unknown: Vec<(Rid, u32)>,
}

/// What is done with a list next.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Step {
    #[default]
    Compare,
    Search,
    TellApart,
    CompareChanged,
    Done,
}

/// Of which placements a list and the books say different things.
#[derive(Debug, Default)]
struct Differing {
    /// Listed, and so many views of it are not in the books.
    lost: Vec<(Rid, u32)>,
    /// So many more views of it are in the books than are listed.
    unlisted: Vec<(Rid, u32)>,
}

impl Differing {
    fn note(&mut self, rid: Rid, listed: u32, known: u32) {
        if listed > known {
            self.lost.push((rid, listed - known));
        } else if listed < known {
            self.unlisted.push((rid, known - listed));
        }
    }
}

impl ListedViews {
    /// The list, in any order: once per view.
    pub fn new(mut rids: Vec<Rid>) -> ListedViews {
        rids.sort_unstable();
        ListedViews { rids, ..ListedViews::default() }
    }

    /// Whether views that a log lost are yet to be [noted](Core::note_found_views).
    pub fn has_found(&self) -> bool {
        !self.found.is_empty()
    }

    /// To be compared from the beginning. Where objects have been found they are, or nowhere.
    fn anew(&mut self) {
        let (rids, slots) = (std::mem::take(&mut self.rids), std::mem::take(&mut self.slots));
        *self = ListedViews { rids, slots, ..ListedViews::default() };
    }

    /// What has changed is to be compared once more, whatever was found of it.
    fn begin_changed(&mut self, changed: BTreeSet<Rid>) {
        self.changed = changed.into_iter().collect();
        self.unknown.sort();
        for list in [&mut self.differing.unlisted, &mut self.found, &mut self.unknown] {
            forget(list, &self.changed);
        }
        self.step = Step::CompareChanged;
    }

    /// Goes on with it, over so many placements at most. True at the end.
    fn compare_changed(&mut self, session: &Session, budget: usize) -> bool {
        for rid in self.changed.split_off(self.changed.len().saturating_sub(budget)) {
            let known = session.pins.get(&rid).copied().unwrap_or(0);
            self.differing.note(rid, self.count(rid), known);
        }
        let ends = self.changed.is_empty();
        if ends {
            // Each is a few runs.
            self.differing.lost.sort();
            self.differing.unlisted.sort();
        }
        ends
    }

    fn count(&self, rid: Rid) -> u32 {
        let from = self.rids.partition_point(|other| *other < rid);
        self.rids[from..].iter().take_while(|other| **other == rid).count() as u32
    }

    /// Goes on comparing, over so many placements at most. True at the end of both.
    fn compare(&mut self, session: &Session, budget: usize) -> bool {
        let after = self.after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut known = session.pins.range((after, Bound::Unbounded)).peekable();
        for _ in 0..budget {
            let next = known.peek().map(|(rid, _)| **rid);
            let Some(rid) = self.rids.get(self.at).copied().into_iter().chain(next).min() else { return true };
            let in_books = known.next_if(|(other, _)| **other == rid).map_or(0, |(_, views)| *views);
            let listed = self.rids[self.at..].iter().take_while(|other| **other == rid).count();
            self.differing.note(rid, listed as u32, in_books);
            (self.at, self.after) = (self.at + listed, Some(rid));
        }
        false
    }
}

impl Core {
    /// Goes on with a list before its session [resumes](Core::resume_session): over at most `budget` of its views and
    /// those in the books, or slots of objects. True when there is nothing to do any more, but to
    /// [note](Core::note_found_views) what was found and to go on then. A list of which something is left when its
    /// session resumes is compared in one go.
    pub fn look_for_views(&mut self, session: SessionId, views: &mut ListedViews, budget: usize) -> bool {
        let Some(entry) = self.sessions.get_mut(session) else { return true };
        if views.number != 0 && !is_of(&entry.comparing, views) {
            views.anew();
        }
        match views.step {
            Step::Compare => {
                if views.number == 0 {
                    self.last_comparison += 1;
                    views.number = self.last_comparison;
                    entry.comparing = Some(Comparing { number: views.number, changed: BTreeSet::new() });
                }
                if views.compare(entry, budget) {
                    views.step = if has_to_look(entry, views) { Step::Search } else { Step::TellApart };
                }
            }
            Step::Search => {
                let end = self.objects.bound().min(views.next.saturating_add(budget as u32));
                for slot in (views.next..end).map(ObjectSlot) {
                    let Some(object) = self.objects.get(slot) else { continue };
                    for place in object.places.memory() {
                        if views.differing.lost.binary_search_by_key(&place.rid, |(rid, _)| *rid).is_ok() {
                            views.slots.insert(place.rid, slot);
                        }
                    }
                }
                views.next = end;
                if end >= self.objects.bound() {
                    views.step = Step::TellApart;
                }
            }
            Step::TellApart => {
                let from = views.differing.lost.len().saturating_sub(budget);
                for lost in views.differing.lost.drain(from..).rev() {
                    let is_found = self.pins.get(lost.0).is_some() || views.slots.contains_key(&lost.0);
                    if is_found { &mut views.found } else { &mut views.unknown }.push(lost);
                }
                if from == 0 {
                    views.found.sort();
                    views.unknown.sort();
                    views.step = Step::Done;
                }
            }
            Step::CompareChanged => {
                if views.compare_changed(entry, budget) {
                    views.step = Step::TellApart;
                }
            }
            Step::Done => {}
        }
        let changed = self.sessions.get_mut(session).and_then(|entry| Some(&mut entry.comparing.as_mut()?.changed));
        if views.step == Step::Done
            && let Some(changed) = changed.filter(|changed| changed.len() > CHANGED_AT_ONCE)
        {
            views.begin_changed(std::mem::take(changed));
        }
        views.step == Step::Done
    }

    /// Notes views that the log lost and of which the place is known, at most `budget` of them in one hold. Their
    /// session is not back yet: whatever becomes of it, its next list says which of them it still has. If much has
    /// changed since they were compared none is noted: [the list is gone through again](Core::look_for_views).
    pub fn note_found_views(
        &mut self,
        now: Time,
        session: SessionId,
        views: &mut ListedViews,
        budget: usize,
        fx: &mut Effects,
    ) {
        let Some(entry) = self.sessions.get_mut(session) else { return views.found.clear() };
        if !is_of(&entry.comparing, views) {
            return;
        }
        // Taken out: what is noted here is as the list says it, and no change.
        let Some(comparing) = entry.comparing.take() else { return };
        let mut left = budget;
        while left > 0
            && let Some((rid, lost)) = views.found.pop()
        {
            left -= 1;
            // What has changed is compared once more in the end.
            if comparing.changed.contains(&rid) {
                continue;
            }
            let noted = lost.min(1 + left as u32);
            left -= noted as usize - 1;
            if !self.note_views(now, session, rid, noted, views, fx) {
                views.unknown.push((rid, lost));
            } else if noted < lost {
                views.found.push((rid, lost - noted));
            }
        }
        self.sessions.get_mut(session).expect("known").comparing = Some(comparing);
    }

    /// Views that the session does not list have ended, unless it may yet receive the reply that gave them; views that
    /// it lists and the log lost are noted again. Returns those of which not even the place is known any more: nothing
    /// here keeps it from being given out, so their reader has to.
    pub(crate) fn reconcile_views(
        &mut self,
        now: Time,
        session: SessionId,
        mut listed: ListedViews,
        fx: &mut Effects,
    ) -> Vec<Rid> {
        let Some(entry) = self.sessions.get_mut(session) else { return Vec::new() };
        let is_compared = listed.step == Step::Done && is_of(&entry.comparing, &listed);
        // Nearly in order: the few that turned out to be unknown when they were to be noted are behind the others.
        listed.unknown.sort();
        match entry.comparing.take().filter(|_| is_compared) {
            Some(Comparing { changed, .. }) if !changed.is_empty() => {
                let changed: Vec<Rid> = changed.into_iter().collect();
                for list in [&mut listed.differing.unlisted, &mut listed.found, &mut listed.unknown] {
                    forget(list, &changed);
                }
                for rid in changed {
                    let known = entry.pins.get(&rid).copied().unwrap_or(0);
                    listed.differing.note(rid, listed.count(rid), known);
                }
                listed.differing.unlisted.sort();
            }
            Some(_) => {}
            None => {
                let ListedViews { rids, slots, .. } = listed;
                listed = ListedViews { rids, slots, ..ListedViews::default() };
                listed.compare(entry, usize::MAX);
            }
        }
        let unlisted = std::mem::take(&mut listed.differing.unlisted);
        entry.ended = ended_of(entry, unlisted);
        if !entry.ended.is_empty() && !self.ending_views.contains(&session) {
            self.ending_views.push_back(session);
        }
        self.take_out_ended_views(now, &mut Work::beside_an_operation(), fx);
        // What a log lost with its end.
        let found = std::mem::take(&mut listed.found);
        let lost = std::mem::take(&mut listed.differing.lost);
        let mut unknown = std::mem::take(&mut listed.unknown);
        for (rid, views) in found.into_iter().chain(lost) {
            if !self.note_views(now, session, rid, views, &listed, fx) {
                unknown.push((rid, views));
            }
        }
        unknown.sort();
        let mut told = Vec::with_capacity(unknown.iter().map(|(_, views)| *views as usize).sum());
        unknown.iter().for_each(|(rid, views)| told.extend(std::iter::repeat_n(*rid, *views as usize)));
        self.sessions.get_mut(session).expect("known").unknown_pins = unknown;
        told
    }

    /// Goes on taking views out of the books that have ended.
    pub(crate) fn take_out_ended_views(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        while let Some(session) = self.ending_views.front().copied() {
            let entry = self.sessions.get_mut(session);
            let Some((rid, views)) = entry.and_then(|entry| entry.ended.last_mut()) else {
                self.ending_views.pop_front();
                continue;
            };
            if work.is_used_up() {
                return;
            }
            let rid = *rid;
            *views -= 1;
            if *views == 0 {
                self.sessions.get_mut(session).expect("it has views").ended.pop();
            }
            self.log(now, Record::Unpinned { session, rid }, fx);
            work.did(1);
        }
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
        let key_of = |core: &Core, slot: ObjectSlot| -> Box<[u8]> { core.objects.key(slot).into() };
        let (extent, key) = match self.pins.get(rid) {
            // Other views of the same placement say where it is, whatever became of its object.
            Some(pin) => (pin.extent, self.object_under(pin).map(|slot| key_of(self, slot))),
            None => {
                let Some(slot) = listed.slots.get(&rid).copied() else { return false };
                // It may have left since it was found.
                let object = self.objects.get(slot);
                let place = object.and_then(|object| object.places.memory().iter().find(|place| place.rid == rid));
                let (Some(object), Some(place)) = (object, place) else { return false };
                if self.segments.get(place.segment).is_none() {
                    return false;
                }
                (place.extent(object.size()), Some(key_of(self, slot)))
            }
        };
        for _ in 0..views {
            self.log(now, Record::Pinned { session, rid, extent, key: key.clone() }, fx);
        }
        true
    }
}

/// Whether it is this list that a session's views are being compared with.
fn is_of(comparing: &Option<Comparing>, views: &ListedViews) -> bool {
    comparing.as_ref().is_some_and(|comparing| comparing.number == views.number)
}

/// Takes what has changed out of a list. Both are in order, and the list may be long.
fn forget(list: &mut Vec<(Rid, u32)>, changed: &[Rid]) {
    let mut changed = changed.iter().peekable();
    list.retain(|(rid, _)| {
        while changed.next_if(|other| *other < rid).is_some() {}
        changed.peek() != Some(&rid)
    });
}

/// Whether one is listed that the session is not known to have, and which was not looked for already: an object that
/// was looked for once in vain does not turn up later.
fn has_to_look(session: &Session, views: &ListedViews) -> bool {
    let is_unknown = |rid: &Rid| session.unknown_pins.binary_search_by_key(rid, |(other, _)| *other).is_ok();
    views.differing.lost.iter().any(|(rid, _)| !session.pins.contains_key(rid) && !is_unknown(rid))
}

/// Which of the views that a session does not list have ended: it may yet receive the replies that gave the others.
fn ended_of(session: &Session, mut unlisted: Vec<(Rid, u32)>) -> Vec<(Rid, u32)> {
    if unlisted.is_empty() {
        return unlisted;
    }
    for (rid, views) in session.pins_under_way() {
        if let Ok(at) = unlisted.binary_search_by_key(&rid, |(other, _)| *other) {
            unlisted[at].1 = unlisted[at].1.saturating_sub(views);
        }
    }
    unlisted.retain(|(_, views)| *views > 0);
    unlisted
}
