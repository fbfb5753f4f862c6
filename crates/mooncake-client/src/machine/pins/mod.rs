//! The pins under this store's views: what the master is told of them.

use std::collections::HashMap;

use mooncake_ids::Rid;
use mooncake_mutant::mutant;

use super::rounds::CHANGED_KEYS;

/// Most views of a store at a time. Each has its place in the hello with which the store comes back, and a hello has
/// its limit: one that did not fit would be refused for ever.
pub const VIEWS_MAX: usize = 65_536;

/// Most calls that take views while the master is not known to have the last list: it keeps the reply to each, and
/// keeps at most 1,024 of a session (docs/safety.md, rule 6).
const HELD_BACK_MAX: usize = 256;

/// Pins of one session. A *generation* ends whenever the master is given a
/// fresh list of them: a pin taken before that and not on the list is void.
#[derive(Debug, Default)]
pub struct Pins {
    generation: u64,
    /// Counts sessions: a view of an earlier one holds nothing in this one.
    era: u64,
    /// Views per rid.
    live: HashMap<Rid, u32>,
    /// All of them, and the ones that calls are asking for.
    views: usize,
    /// Those of them that the master said it does not know: it gives their bytes out as soon as it may.
    unknown: HashMap<Rid, u32>,
    /// Taken charge of since the list that is on its way was made.
    since_list: Option<HashMap<Rid, u32>>,
    bytes: u64,
    ended: Vec<Rid>,
    /// Sent and not confirmed yet.
    outstanding: Option<(u64, Vec<Rid>)>,
    /// The store is closed and its last view has ended: none begins any more.
    sealed: bool,
    /// Views of earlier sessions: no master knows of them.
    unlisted: u64,
    /// A list is on its way.
    listing: bool,
    /// Pins were void since the last list was made: there is to be another one.
    void: bool,
    /// Calls that took views meanwhile.
    held_back: Vec<u64>,
}

/// A list of live pins that is on its way to the master.
#[derive(Debug)]
pub struct Listing {
    /// Higher than those of earlier lists.
    pub number: u64,
    /// Once per view.
    pub rids: Vec<Rid>,
    /// Calls that took views whose replies are here, and which the master has not heard of ([`Pins::may_settle`]).
    /// Their views are listed, have ended, or are void: as of this list they are settled.
    pub held_back: Vec<u64>,
    ended: Vec<Rid>,
    outstanding: Option<(u64, Vec<Rid>)>,
}

/// What a master's answer to a list of pins says of them.
#[derive(Debug, Clone, Copy)]
pub enum ListAnswer<'a> {
    /// It does not know these, and all the others.
    Unknown(&'a [Rid]),
    /// It does not say what it knows, and may have forgotten any of them.
    Silent,
    /// It does not say what it knows, and its epoch is as it was.
    Unchanged,
}

/// In the place of a rid: all that were listed.
const ALL: Rid = Rid(0);

impl Pins {
    /// To be read before a pin is asked for.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether pins that are asked for now may be void once more: the list that those call for which were void is still
    /// to arrive.
    pub fn is_listing(&self) -> bool {
        self.listing || self.void
    }

    /// Room for a view among the `limit` bytes that views may hold?
    pub fn admit(&mut self, bytes: u64, limit: u64) -> bool {
        // A view is the one thing of a reader that holds space, so views have a limit (docs/safety.md, rule 5).
        if bytes > limit.saturating_sub(self.bytes) && !mutant!(ViewsHoldMoreThanTheyMay) {
            return false;
        }
        self.bytes += bytes;
        true
    }

    /// Gives back what [`Pins::admit`] took.
    pub fn forget_bytes(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Takes room for so many of the views that a store may have, as far as there is any. Gives for how many.
    pub fn take_room(&mut self, wanted: usize) -> usize {
        // With that many replies held back, copies have to do until the list has come.
        let wanted = if self.held_back.len() < HELD_BACK_MAX { wanted } else { 0 };
        let views = wanted.min(VIEWS_MAX.saturating_sub(self.views));
        self.views += views;
        views
    }

    /// Gives back what [`Pins::take_room`] took. Views that came of it have their room of their own by then.
    pub fn give_room_back(&mut self, views: usize) {
        self.views -= views;
    }

    /// Takes charge of pins that the master has just granted, and says to which
    /// era they belong. None: the master was given a list without them
    /// meanwhile, so they hold nothing.
    pub fn adopt(&mut self, generation: u64, rids: impl Iterator<Item = Rid>) -> Option<u64> {
        if (self.generation != generation && !mutant!(VoidPinsAreAdopted)) || self.sealed {
            // The master may hold these pins still. It keeps pins in a reply that it does not know to be here, and may
            // have granted these behind the list. Another list ends them (docs/safety.md, rule 5).
            self.void = true;
            return None;
        }
        let Self { live, views, since_list, .. } = self;
        for rid in rids {
            *live.entry(rid).or_insert(0) += 1;
            *views += 1;
            if let Some(since) = since_list {
                *since.entry(rid).or_insert(0) += 1;
            }
        }
        Some(self.era)
    }

    /// A view ended. True if the anchor should be told.
    pub fn release(&mut self, era: u64, rid: Rid) -> bool {
        if self.era != era {
            // No master knows this pin, so there is no end to tell. With the last such view gone, owners that asked
            // about an epoch may be answered (docs/safety.md, rule 18).
            self.unlisted -= 1;
            return self.unlisted == 0;
        }
        let Some(count) = self.live.get_mut(&rid) else { return false };
        *count -= 1;
        let left = *count;
        if left == 0 {
            self.live.remove(&rid);
        }
        self.views -= 1;
        // Of several views over a rid the master says how many it does not know, not which ones. The views that are
        // left count as unknown: that keeps owners waiting too long rather than not long enough.
        let unknown = self.unknown.get_mut(&rid).is_some_and(|unknown| {
            *unknown = left.min(*unknown);
            *unknown == 0
        });
        if unknown {
            self.unknown.remove(&rid);
        }
        self.ended.push(rid);
        // Later ones go along with the first. A closed store waits for its last view, and an owner that asked about an
        // epoch for the last unknown one.
        self.ended.len() == 1 || self.live.is_empty() || (unknown && self.unknown.is_empty())
    }

    /// No view is left, and the master knows.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty() && self.ended.is_empty() && self.outstanding.is_none()
    }

    /// The master knows every view that there is.
    pub fn all_listed(&self) -> bool {
        self.unlisted == 0 && self.unknown.is_empty()
    }

    /// As far as is known the master keeps what this pin is over. A view may begin.
    pub fn is_known(&self, era: u64, rid: Rid) -> bool {
        self.era == era && !self.unknown.contains_key(&rid)
    }

    /// Ends the taking of views for good. False while there is one.
    pub fn seal(&mut self) -> bool {
        self.sealed |= self.live.is_empty();
        self.sealed
    }

    /// Ended pins to tell the master of, as many as one change may be about, with their sequence; the same ones until
    /// they are confirmed.
    pub fn to_send(&mut self, sequence: impl FnOnce() -> u64) -> Option<(u64, Vec<Rid>)> {
        // Under one sequence the master carries them out once, however often they come (docs/safety.md, rule 6). Twice,
        // they would end views over the same rids that live.
        if self.outstanding.is_none() && !self.ended.is_empty() {
            let later = self.ended.split_off(self.ended.len().min(CHANGED_KEYS));
            let ended = std::mem::replace(&mut self.ended, later);
            self.outstanding = Some((sequence(), ended));
        }
        self.outstanding.clone()
    }

    /// Something new to tell.
    pub fn wants_to_send(&self) -> bool {
        self.outstanding.is_none() && !self.ended.is_empty()
    }

    /// The master has applied a list of ended pins. True if it was the last one sent.
    pub fn confirmed(&mut self, sequence: u64) -> bool {
        let mine = self.outstanding.as_ref().is_some_and(|(sent, _)| *sent == sequence);
        if mine {
            self.outstanding = None;
        }
        mine
    }

    /// Begins a new generation with the list of what is held now. What the
    /// list leaves out needs no word of its own.
    pub fn list(&mut self) -> Listing {
        // Replies that are still on their way bring pins that this list lacks: they are void (docs/safety.md, rule 5).
        self.generation += 1;
        (self.listing, self.void) = (true, false);
        self.since_list = Some(HashMap::new());
        let number = self.generation;
        let views = self.live.iter().flat_map(|(rid, count)| std::iter::repeat_n(*rid, *count as usize));
        let mut rids: Vec<Rid> = views.collect();
        rids.sort_unstable();
        let held_back = self.held_back.clone();
        Listing {
            number,
            rids,
            held_back,
            ended: std::mem::take(&mut self.ended),
            outstanding: self.outstanding.take(),
        }
    }

    /// Whether the master may hear that the reply to a call that took views is here. Of the pins that a list leaves out
    /// it keeps those in replies that it does not know to be here: while a list is on its way that has to include these
    /// views.
    pub fn may_settle(&mut self, sequence: u64) -> bool {
        if mutant!(PinsSettleDuringLists) {
            return true;
        }
        if self.listing {
            self.held_back.push(sequence);
        }
        !self.listing
    }

    /// The last list has arrived. Gives the calls that the master may hear of now.
    pub fn arrived(&mut self) -> Vec<u64> {
        self.listing = false;
        std::mem::take(&mut self.held_back)
    }

    /// The master has the list, and what it knows of it. `another`: it is not the process that was there before. Pins
    /// of that one which came since the list was made are then on no list, and the ones that still come are void. Nor
    /// is the master told which views have ended since: where it does not know a pin, the word of its end would end one
    /// that it grants later. True if there are such: the next list says what is held, and whether the master knows it.
    pub fn listed(&mut self, listing: &Listing, answer: ListAnswer<'_>, another: bool) -> bool {
        let Self { live, unknown, since_list, generation, ended, .. } = self;
        let since = since_list.take().unwrap_or_default();
        let named = match answer {
            _ if mutant!(UnknownViewsAreForgotten) => &[],
            ListAnswer::Unknown(rids) if !rids.contains(&ALL) => rids,
            // What may be forgotten counts as unknown: no view begins over it, and no owner hears that all is known.
            ListAnswer::Unknown(_) | ListAnswer::Silent => &listing.rids[..],
            ListAnswer::Unchanged => &[],
        };
        // Any other answer is about all that was listed, and replaces the one before.
        if !matches!(answer, ListAnswer::Unchanged) {
            unknown.clear();
        }
        for rid in named {
            *unknown.entry(*rid).or_insert(0) += 1;
        }
        let on_no_list = another && (since.keys().any(|rid| live.contains_key(rid)) || !ended.is_empty());
        if another {
            *generation += 1;
            ended.clear();
            for (rid, views) in since {
                *unknown.entry(rid).or_insert(0) += views;
            }
        }
        // Some have ended meanwhile.
        unknown.retain(|rid, views| {
            *views = (*views).min(live.get(rid).copied().unwrap_or(0));
            *views > 0
        });
        on_no_list
    }

    /// The master did not get the list, as far as is known: it still has to be told what ended.
    pub fn unlist(&mut self, listing: Listing) {
        self.since_list = None;
        self.ended.extend(listing.ended);
        if self.outstanding.is_none() {
            self.outstanding = listing.outstanding;
        }
    }

    /// Another session began: the master knows no pins. The views go on over
    /// memory that is not given out again.
    pub fn start_over(&mut self) {
        self.generation += 1;
        self.era += 1;
        let live = self.live.values().map(|count| u64::from(*count)).sum::<u64>();
        // They count no more against what a hello may list, and keep owners waiting until they have ended.
        self.unlisted += live;
        self.views -= live as usize;
        self.live.clear();
        self.unknown.clear();
        self.since_list = None;
        self.ended.clear();
        self.outstanding = None;
    }
}

impl Listing {
    /// Sequence of the list of ended pins that this one replaces.
    pub fn replaced(&self) -> Option<u64> {
        self.outstanding.as_ref().map(|(sequence, _)| *sequence)
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use mooncake_mutant::{Mutant, is_noticed_by};

    use super::*;

    fn room_left(pins: &mut Pins) -> usize {
        let room = pins.take_room(usize::MAX);
        pins.give_room_back(room);
        room
    }

    fn list(pins: &mut Pins, answer: ListAnswer<'_>, another: bool) {
        let listing = pins.list();
        pins.listed(&listing, answer, another);
    }

    #[test]
    fn ended_pins_are_told_once_and_again_until_confirmed() {
        let mut pins = Pins::default();
        let generation = pins.generation();
        let era = pins.adopt(generation, [Rid(2), Rid(2), Rid(4)].into_iter()).unwrap();
        assert!(pins.release(era, Rid(2)));
        assert_eq!(pins.to_send(|| 9), Some((9, vec![Rid(2)])));
        pins.release(era, Rid(4));
        assert_eq!(pins.to_send(|| 10), Some((9, vec![Rid(2)])));
        assert!(!pins.confirmed(8));
        assert!(pins.confirmed(9));
        assert_eq!(pins.to_send(|| 11), Some((11, vec![Rid(4)])));
        assert!(pins.confirmed(11));
        assert!(!pins.is_empty());
        assert!(!pins.seal());
    }

    #[test]
    fn no_more_ended_pins_are_told_at_a_time_than_one_change_may_be_about() {
        let mut pins = Pins::default();
        let generation = pins.generation();
        let rids: Vec<Rid> = (0..2 * CHANGED_KEYS as u64 + 1).map(|number| Rid(2 * number)).collect();
        let era = pins.adopt(generation, rids.iter().copied()).unwrap();
        rids.iter().for_each(|rid| _ = pins.release(era, *rid));
        for (sequence, told) in rids.chunks(CHANGED_KEYS).enumerate() {
            let sequence = sequence as u64 + 1;
            assert!(pins.wants_to_send(), "what is left goes with the next beat");
            assert_eq!(pins.to_send(|| sequence), Some((sequence, told.to_vec())));
            assert!(!pins.is_empty() && pins.confirmed(sequence));
        }
        assert!(pins.is_empty());
    }

    #[test]
    fn a_list_replaces_what_was_not_confirmed_and_voids_pins_under_way() {
        let mut pins = Pins::default();
        let generation = pins.generation();
        let era = pins.adopt(generation, [Rid(2), Rid(2), Rid(4)].into_iter()).unwrap();
        pins.release(era, Rid(2));
        assert!(pins.to_send(|| 1).is_some());
        pins.release(era, Rid(4));
        let listing = pins.list();
        assert_eq!((listing.rids.clone(), listing.replaced()), (vec![Rid(2)], Some(1)));
        assert_eq!(pins.to_send(|| 2), None);
        assert_eq!(pins.adopt(generation, [Rid(6)].into_iter()), None);
        pins.unlist(listing);
        assert_eq!(pins.to_send(|| 3), Some((1, vec![Rid(2)])));
    }

    #[test]
    fn what_took_views_is_not_settled_before_the_list_without_them_has_come() {
        let mut pins = Pins::default();
        assert!(pins.may_settle(1));
        let first = pins.list();
        assert!(!pins.may_settle(2));
        // Given up, and it may come all the same.
        pins.unlist(first);
        assert!(!pins.may_settle(3));
        let second = pins.list();
        assert_eq!(pins.arrived(), [2, 3]);
        assert!(second.number > 1 && pins.may_settle(4));
        pins.list();
        (0..HELD_BACK_MAX as u64).for_each(|sequence| assert!(!pins.may_settle(sequence)));
        assert_eq!(room_left(&mut pins).min(1), 0, "copies will do");
        pins.arrived();
        assert_eq!(room_left(&mut pins).min(1), 1);
    }

    #[test]
    fn a_list_settles_what_was_held_back_for_the_list_before_it() {
        let mut pins = Pins::default();
        let first = pins.list();
        assert!(!pins.may_settle(7));
        let era = pins.adopt(pins.generation(), [Rid(2)].into_iter()).unwrap();
        pins.unlist(first);
        pins.release(era, Rid(2));
        let second = pins.list();
        // Else the master would keep the pin for the reply's sake, and nobody would ever say that the view has ended.
        assert_eq!((second.rids.as_slice(), second.held_back.as_slice()), (&[][..], &[7][..]));
        assert_eq!(pins.arrived(), [7]);
    }

    #[test]
    fn a_view_of_an_earlier_session_releases_nothing_in_the_next() {
        let mut pins = Pins::default();
        let old = pins.adopt(pins.generation(), [Rid(2)].into_iter()).unwrap();
        pins.start_over();
        let new = pins.adopt(pins.generation(), [Rid(2)].into_iter()).unwrap();
        assert!(!pins.all_listed());
        pins.release(old, Rid(2));
        assert!(pins.all_listed());
        assert!(!pins.seal());
        assert!(pins.release(new, Rid(2)));
    }

    #[test]
    fn views_that_the_master_does_not_know_are_unlisted_until_they_end() {
        let mut pins = Pins::default();
        let era = pins.adopt(pins.generation(), [Rid(2), Rid(4), Rid(4), Rid(4), Rid(6)].into_iter()).unwrap();
        let listing = pins.list();
        pins.release(era, Rid(6));
        pins.listed(&listing, ListAnswer::Unknown(&[Rid(4), Rid(6), Rid(4)]), false);
        assert!(!pins.all_listed() && pins.is_known(era, Rid(2)) && !pins.is_known(era, Rid(4)));
        pins.release(era, Rid(4));
        pins.release(era, Rid(2));
        assert!(pins.to_send(|| 1).is_some());
        pins.release(era, Rid(4));
        assert!(!pins.all_listed(), "the one that is left may be of those");
        // Another list, in which it is unknown still, and then not any more.
        list(&mut pins, ListAnswer::Unknown(&[Rid(4)]), false);
        assert!(!pins.all_listed());
        list(&mut pins, ListAnswer::Unchanged, false);
        assert!(!pins.all_listed());
        list(&mut pins, ListAnswer::Unknown(&[]), false);
        assert!(pins.all_listed() && pins.is_known(era, Rid(4)));
        for all in [ListAnswer::Unknown(&[Rid(0)]), ListAnswer::Silent] {
            list(&mut pins, all, false);
            assert!(!pins.all_listed());
        }
        assert!(pins.release(era, Rid(4)), "the owners who asked are to hear of it now");
        assert!(pins.all_listed());
    }

    #[test]
    fn what_another_master_granted_behind_the_list_is_unlisted_or_void() {
        for (another, adopted_late) in [(false, true), (true, false)] {
            let mut pins = Pins::default();
            let listing = pins.list();
            let generation = pins.generation();
            let era = pins.adopt(generation, [Rid(2)].into_iter()).unwrap();
            pins.listed(&listing, ListAnswer::Unknown(&[]), another);
            assert_eq!(pins.is_known(era, Rid(2)), !another);
            assert_eq!(pins.adopt(generation, [Rid(4)].into_iter()).is_some(), adopted_late);
            pins.release(era, Rid(2));
            assert!(pins.all_listed());
        }
    }

    #[test]
    fn the_end_of_a_view_that_another_master_may_not_know_is_told_by_the_next_list() {
        let mut pins = Pins::default();
        let listing = pins.list();
        let era = pins.adopt(pins.generation(), [Rid(2)].into_iter()).unwrap();
        pins.release(era, Rid(2));
        assert!(pins.listed(&listing, ListAnswer::Unknown(&[]), true), "there is to be another one");
        pins.adopt(pins.generation(), [Rid(2)].into_iter()).unwrap();
        assert_eq!(pins.to_send(|| 1), None, "it would end the pin of the view that has begun since");
        assert_eq!(pins.list().rids, [Rid(2)]);
    }

    #[test]
    fn unknown_views_stay_unlisted_in_the_next_session() {
        let mut pins = Pins::default();
        let era = pins.adopt(pins.generation(), [Rid(2)].into_iter()).unwrap();
        list(&mut pins, ListAnswer::Unknown(&[Rid(2)]), true);
        pins.start_over();
        assert!(!pins.all_listed() && !pins.is_known(era, Rid(2)));
        assert!(pins.release(era, Rid(2)) && pins.all_listed());
    }

    #[test]
    fn views_hold_no_more_than_they_may() {
        let mut pins = Pins::default();
        assert!(pins.admit(60, 100));
        assert!(!pins.admit(41, 100));
        assert!(pins.admit(40, 100));
        pins.forget_bytes(60);
        assert!(pins.admit(60, 100));
        assert!(!pins.admit(1, 0));
    }

    #[test]
    fn no_more_views_begin_than_a_list_may_have() {
        let mut pins = Pins::default();
        assert_eq!((pins.take_room(VIEWS_MAX - 2), pins.take_room(5)), (VIEWS_MAX - 2, 2));
        pins.give_room_back(VIEWS_MAX);
        let room = pins.take_room(3);
        let era = pins.adopt(pins.generation(), [Rid(2), Rid(2), Rid(4)].into_iter()).unwrap();
        pins.give_room_back(room);
        assert_eq!(room_left(&mut pins), VIEWS_MAX - 3);
        pins.release(era, Rid(2));
        assert_eq!(room_left(&mut pins), VIEWS_MAX - 2);
        pins.start_over();
        assert_eq!(room_left(&mut pins), VIEWS_MAX, "those of an earlier session are on no list");
        pins.release(era, Rid(2));
        assert_eq!(room_left(&mut pins), VIEWS_MAX);
    }

    #[test]
    fn nothing_is_taken_charge_of_after_the_seal() {
        let mut pins = Pins::default();
        let era = pins.adopt(pins.generation(), [Rid(1)].into_iter()).unwrap();
        assert!(!pins.seal(), "a view is there");
        pins.release(era, Rid(1));
        assert!(pins.seal());
        assert_eq!(pins.adopt(pins.generation(), [Rid(2)].into_iter()), None);
    }

    #[test]
    fn its_mutants_are_noticed() {
        assert!(is_noticed_by(
            Mutant::VoidPinsAreAdopted,
            a_list_replaces_what_was_not_confirmed_and_voids_pins_under_way
        ));
        assert!(is_noticed_by(Mutant::ViewsHoldMoreThanTheyMay, views_hold_no_more_than_they_may));
        assert!(is_noticed_by(
            Mutant::PinsSettleDuringLists,
            what_took_views_is_not_settled_before_the_list_without_them_has_come
        ));
    }
}
