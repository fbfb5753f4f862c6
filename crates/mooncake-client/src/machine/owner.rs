//! The segments of a store: which are held, which leave the pool, and what becomes of their memory.
//!
//! `M` is a segment's memory, with what another one is made of in its place. The driver makes memory, serves it, asks
//! the master and waits; here is decided what it does. In the order of a mount: [`Owner::mount`], the master's answer,
//! [`Owner::mount_answered`]. Of an unmount: [`Owner::unmount`], the master's answer, [`Owner::unmount_answered`],
//! then, for as long as that says and [`Owner::waits_for_pins`], nothing, and [`Owner::take_back`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mooncake_ids::SegmentUuid;
use mooncake_mutant::mutant;

use crate::segment_id::SegmentId;

/// How long an unmount waits for the master's word on what is pinned.
const PINS_WAIT: Duration = Duration::from_millis(60);

/// Most segments of a store: each has its place in the hello with which the store comes back, and a hello has its
/// limit.
pub const SEGMENTS_MAX: usize = 8_192;

/// What views hold of a segment: offsets and lengths.
pub type Pinned = Vec<(u64, u64)>;

/// What the driver is to do, later and in this order.
#[derive(Debug, PartialEq, Eq)]
pub enum Output<M> {
    /// Give memory back, all but what is pinned. `None`: the owner does not know what is pinned, and punches nothing.
    /// It may have to tell the master first ([`Owner::must_unmount`]).
    GiveBack {
        /// It.
        memory: M,
        /// What views hold of it.
        pinned: Option<Pinned>,
    },
    /// Make and mount another segment in the place of this one.
    Replace {
        /// Name that stays.
        id: SegmentId,
        /// What it was made of.
        memory: M,
    },
}

/// What the master said to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// It is done.
    Done,
    /// It does not know the segment, or does not want it.
    Refused,
    /// Nothing, or nothing that fits: it may have done it.
    Unanswered,
}

/// A segment that is to leave the pool: what the master is asked.
#[derive(Debug)]
pub struct Unmount<M> {
    /// Segment.
    pub uuid: SegmentUuid,
    /// So long it is only read, in milliseconds; 0: it goes at once.
    pub grace_ms: u64,
    memory: M,
    /// Whether it was leaving before.
    was_leaving: bool,
    /// The store is being closed: its memory goes whatever the master says.
    at_close: bool,
}

/// The segments of a store.
#[derive(Debug)]
pub struct Owner<M> {
    held: Vec<LentSegment<M>>,
    /// Gone, or not known to the master, while it was being asked to mount them.
    lost_mounts: BTreeMap<SegmentUuid, LentSegment<M>>,
    /// Whose memory is being taken back.
    unmounting: BTreeMap<SegmentUuid, Unmounting>,
    /// Lists of what is held that have been made, and how many of them there were when the master last answered one.
    lists: u64,
    lists_answered: u64,
    /// What the last one named.
    listed: BTreeSet<SegmentUuid>,
    closing: bool,
}

#[derive(Debug)]
struct Unmounting {
    /// What views hold of it, once the master has said so.
    pinned: Option<Pinned>,
    /// Lists that there were when the master was asked; `None`: it had not answered all of them.
    lists: Option<u64>,
}

#[derive(Debug)]
struct LentSegment<M> {
    id: SegmentId,
    uuid: SegmentUuid,
    memory: M,
    /// The master has been asked to mount it, and has not answered.
    mounting: bool,
    /// It is being unmounted: nothing takes its place.
    leaving: bool,
}

impl<M> Default for Owner<M> {
    fn default() -> Self {
        Self {
            held: Vec::new(),
            lost_mounts: BTreeMap::new(),
            unmounting: BTreeMap::new(),
            lists: 0,
            lists_answered: 0,
            listed: BTreeSet::new(),
            closing: false,
        }
    }
}

impl<M: Clone> Owner<M> {
    /// Whether there may be another segment.
    pub fn has_room(&self) -> bool {
        self.held.len() < SEGMENTS_MAX
    }

    /// Segments that there are.
    pub fn count(&self) -> usize {
        self.held.len()
    }

    /// The memory of the segments that are held.
    pub fn memories(&self) -> impl Iterator<Item = &M> {
        self.held.iter().map(|held| &held.memory)
    }

    /// The segments that are held, each with the highest epoch that it has taken: not with one that is still waited
    /// for.
    pub fn held(&self, taken: impl Fn(SegmentUuid) -> u16) -> Vec<(SegmentUuid, u16)> {
        self.held.iter().map(|held| (held.uuid, taken(held.uuid))).collect()
    }

    /// As [`Owner::held`], for the hello with which the store comes back. What the master takes note of by it may be
    /// more than is held when that arrives.
    pub fn list(&mut self, taken: impl Fn(SegmentUuid) -> u16) -> Vec<(SegmentUuid, u16)> {
        self.lists += 1;
        self.listed = self.held.iter().map(|held| held.uuid).collect();
        self.held(taken)
    }

    /// Whether a segment has come or gone since the last list was made. The master that there was then mounted or
    /// unmounted it. A master that goes on with a copy of that one's log, or has lost the end of it, knows nothing of
    /// that: it may have a segment that no owner serves, and needs another list.
    pub fn list_is_outdated(&self) -> bool {
        let (listed, others): (Vec<_>, Vec<_>) = self.held.iter().partition(|held| self.listed.contains(&held.uuid));
        let is_same = listed.len() == self.listed.len() && others.iter().all(|held| held.mounting);
        !is_same && !self.closing && !mutant!(OutdatedListsCount)
    }

    /// No other segment is to be made.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    // ----------------------------------------------------------------- mount

    /// Takes charge of a segment and gives its name: its own from now on, or that of the one in whose place it comes.
    /// It is held before the master knows it: a push about it may come first.
    pub fn mount(&mut self, id: Option<SegmentId>, uuid: SegmentUuid, memory: M) -> SegmentId {
        let id = id.unwrap_or(SegmentId(uuid));
        self.held.push(LentSegment { id, uuid, memory, mounting: true, leaving: false });
        id
    }

    /// The master has been asked to mount a segment. False: it is not held any more, and its memory is to be given
    /// back, with pins that the owner does not know. It is one of these:
    ///
    /// 1. The master has not said that it mounted the segment. Perhaps only the answer was lost, and the master must
    ///    not place in memory that no owner serves (docs/safety.md, rule 14). Nothing takes the segment's place: its
    ///    caller learns that, and makes another or not.
    /// 2. The master has mounted it, and has also said that it is Gone, or that it does not know it, as a list of what
    ///    is held came first. Another one takes its place, unless the segment or the whole store was leaving.
    /// 3. It was unmounted, or the store closed, before the answer came.
    #[must_use]
    pub fn mount_answered(&mut self, uuid: SegmentUuid, told: Told, out: &mut Vec<Output<M>>) -> bool {
        let lost = self.lost_mounts.remove(&uuid).filter(|lost| told == Told::Done && !lost.leaving && !self.closing);
        out.extend(lost.map(|LentSegment { id, memory, .. }| Output::Replace { id, memory }));
        if told != Told::Done && !mutant!(UnansweredMountStays) {
            self.held.retain(|held| held.uuid != uuid);
        }
        let held = self.held.iter_mut().find(|held| held.uuid == uuid);
        held.map(|held| held.mounting = false).is_some()
    }

    // --------------------------------------------------------------- unmount

    /// A segment is to leave the pool, at once or when the grace is over. `None`: there is no such segment, or it is
    /// leaving at once already.
    pub fn unmount(&mut self, id: SegmentId, grace: Duration) -> Option<Unmount<M>> {
        let held = self.held.iter_mut().find(|held| held.id == id && !self.unmounting.contains_key(&held.uuid))?;
        let was_leaving = std::mem::replace(&mut held.leaving, true);
        let grace_ms = match grace.is_zero() {
            true => 0,
            false => u64::try_from(grace.as_millis()).unwrap_or(u64::MAX).max(1),
        };
        let (uuid, memory) = (held.uuid, held.memory.clone());
        let unmount = Unmount { uuid, memory, grace_ms, was_leaving, at_close: false };
        self.begin(&unmount);
        Some(unmount)
    }

    /// The store is being closed: what is to leave the pool, one after the other ([`Owner::begin`]). `None`: it was
    /// before.
    pub fn close(&mut self) -> Option<Vec<Unmount<M>>> {
        if std::mem::replace(&mut self.closing, true) {
            return None;
        }
        let unmount = |held: &LentSegment<M>| Unmount {
            uuid: held.uuid,
            memory: held.memory.clone(),
            grace_ms: 0,
            was_leaving: held.leaving,
            at_close: true,
        };
        Some(self.held.iter().map(unmount).collect())
    }

    /// The master is about to be asked. What is pinned it says before it answers, or soon after.
    pub fn begin(&mut self, unmount: &Unmount<M>) {
        if unmount.grace_ms == 0 {
            let lists = (self.lists == self.lists_answered).then_some(self.lists);
            // A store that is being closed asks again for what is leaving: what is known of its pins stays.
            self.unmounting.entry(unmount.uuid).or_insert(Unmounting { pinned: None, lists });
        }
    }

    /// The master has been asked. Until when to wait for what is pinned, and then [`Owner::take_back`]. `None`: all is
    /// done. With a grace what follows when the master says that it is Gone is the same as without being asked.
    pub fn unmount_answered(
        &mut self,
        now: Duration,
        unmount: &Unmount<M>,
        told: Told,
        out: &mut Vec<Output<M>>,
    ) -> Option<Duration> {
        // Its word that the segment is Gone may come, and the answer not.
        let is_gone = self.unmounting.get(&unmount.uuid).is_some_and(|unmounting| unmounting.pinned.is_some());
        if told == Told::Done || is_gone {
            return (unmount.grace_ms == 0).then_some(now + PINS_WAIT);
        }
        self.unmounting.remove(&unmount.uuid);
        if unmount.at_close {
            // The master finds out by itself.
            out.push(Output::GiveBack { memory: unmount.memory.clone(), pinned: None });
        } else if let Some(held) = self.held.iter_mut().find(|held| held.uuid == unmount.uuid) {
            held.leaving = unmount.was_leaving;
        }
        None
    }

    /// Whether the master has not said yet what is pinned.
    pub fn waits_for_pins(&self, uuid: SegmentUuid) -> bool {
        self.unmounting.get(&uuid).is_some_and(|unmounting| unmounting.pinned.is_none())
    }

    /// Gives an unmounted segment's memory back, with what is known of its pins by now. Nothing is where a list has
    /// named it since: a master that the end of the log was lost to has it again, and may have lent it to readers.
    pub fn take_back(&mut self, unmount: Unmount<M>, out: &mut Vec<Output<M>>) {
        let unmounting = self.unmounting.remove(&unmount.uuid);
        let is_unlisted = |it: &Unmounting| it.lists == Some(self.lists) || mutant!(ListedMemoryIsGivenBack);
        let pinned = unmounting.filter(is_unlisted).and_then(|it| it.pinned);
        self.held.retain(|held| held.uuid != unmount.uuid);
        out.push(Output::GiveBack { memory: unmount.memory, pinned });
    }

    /// All that [`Owner::close`] has named is through.
    pub fn closed(&mut self) {
        self.held.clear();
    }

    // ------------------------------------------------------------------ gone

    /// The master says that a segment is Gone, and what of it is pinned. It may be this store's. True if an unmount
    /// waits for that word.
    pub fn segment_gone(&mut self, uuid: SegmentUuid, pinned: &[(u64, u64)], out: &mut Vec<Output<M>>) -> bool {
        if let Some(known) = self.unmounting.get_mut(&uuid) {
            known.pinned = Some(pinned.to_vec());
            return true;
        }
        if !self.closing
            && let Some(at) = self.held.iter().position(|held| held.uuid == uuid)
        {
            let held = self.held.remove(at);
            self.part_with(held, Some(pinned.to_vec()), out);
        }
        false
    }

    /// The master has answered the last list: it does not know these segments (any more), nor their readers. They are
    /// replaced (docs/safety.md, rule 14).
    pub fn list_answered(&mut self, gone: impl Fn(&SegmentUuid) -> bool, out: &mut Vec<Output<M>>) {
        self.lists_answered = self.lists;
        if self.closing {
            return;
        }
        let (lost, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|held| gone(&held.uuid) && !mutant!(GoneSegmentsAreKept));
        self.held = kept;
        lost.into_iter().for_each(|held| self.part_with(held, None, out));
    }

    /// Gives a segment's memory back, and has another one made in its place unless it was leaving anyway. While it is
    /// being mounted what becomes of it depends on the master's answer.
    fn part_with(&mut self, held: LentSegment<M>, pinned: Option<Pinned>, out: &mut Vec<Output<M>>) {
        if held.mounting {
            self.lost_mounts.insert(held.uuid, held);
            return;
        }
        let pinned = if mutant!(PinnedMemoryIsGivenBack) { Some(Vec::new()) } else { pinned };
        let next = (!held.leaving).then(|| Output::Replace { id: held.id, memory: held.memory.clone() });
        out.push(Output::GiveBack { memory: held.memory, pinned });
        out.extend(next);
    }

    // ------------------------------------------------------------- give back

    /// Whether the master has to be asked to unmount a segment before its memory is given back: it may have been
    /// mounted just before it was given up. Mostly the master does not know it.
    pub fn must_unmount(&self, pinned: Option<&Pinned>) -> bool {
        pinned.is_none() && !self.closing
    }
}

/// Whether the list of what is held, which says as much as that unmount, has to go to the master as soon as it answers.
pub fn must_resume(told: Told) -> bool {
    told == Told::Unanswered
}

#[cfg(test)]
mod tests {
    use mooncake_mutant::{Mutant, is_noticed_by};

    use super::*;

    const ONE: SegmentId = SegmentId(SegmentUuid([1; 16]));
    const TWO: SegmentId = SegmentId(SegmentUuid([2; 16]));
    const NOW: Duration = Duration::from_secs(1);

    /// Two segments, the second in the place of another one.
    fn owner() -> Owner<&'static str> {
        let mut owner = Owner::default();
        assert_eq!(owner.mount(None, ONE.0, "one"), ONE);
        assert_eq!(owner.mount(Some(TWO), SegmentUuid([22; 16]), "two"), TWO);
        for uuid in [ONE.0, SegmentUuid([22; 16])] {
            assert_eq!(mounted(&mut owner, uuid, Told::Done), (true, vec![]));
        }
        owner
    }

    fn mounted(owner: &mut Owner<&'static str>, uuid: SegmentUuid, told: Told) -> (bool, Vec<Output<&'static str>>) {
        let mut out = Vec::new();
        (owner.mount_answered(uuid, told, &mut out), out)
    }

    fn give_back(memory: &'static str, pinned: Option<Pinned>) -> Output<&'static str> {
        Output::GiveBack { memory, pinned }
    }

    fn uuids(owner: &Owner<&'static str>) -> Vec<SegmentUuid> {
        owner.held(|_| 0).into_iter().map(|(uuid, _)| uuid).collect()
    }

    fn answered(
        owner: &mut Owner<&'static str>,
        unmount: &Unmount<&'static str>,
        told: Told,
    ) -> (Option<Duration>, Vec<Output<&'static str>>) {
        let mut out = Vec::new();
        (owner.unmount_answered(NOW, unmount, told, &mut out), out)
    }

    fn gone(
        owner: &mut Owner<&'static str>,
        uuid: SegmentUuid,
        pinned: &[(u64, u64)],
    ) -> (bool, Vec<Output<&'static str>>) {
        let mut out = Vec::new();
        (owner.segment_gone(uuid, pinned, &mut out), out)
    }

    #[test]
    fn each_segment_is_listed_with_the_epoch_that_it_has_taken() {
        let taken = |uuid: SegmentUuid| if uuid == ONE.0 { 1 } else { 2 };
        assert_eq!(owner().held(taken), [(ONE.0, 1), (SegmentUuid([22; 16]), 2)]);
    }

    #[test]
    fn another_segment_of_the_same_name_takes_the_place_of_one_that_is_gone() {
        let mut owner = owner();
        let out = gone(&mut owner, SegmentUuid([22; 16]), &[(0, 4)]);
        let replace = Output::Replace { id: TWO, memory: "two" };
        assert_eq!(out, (false, vec![give_back("two", Some(vec![(0, 4)])), replace]));
        assert_eq!(uuids(&owner), [ONE.0]);
        assert_eq!(gone(&mut owner, SegmentUuid([9; 16]), &[]), (false, vec![]), "another store's");
        let mut out = Vec::new();
        owner.list_answered(|_| true, &mut out);
        assert_eq!(out, [give_back("one", None), Output::Replace { id: ONE, memory: "one" }]);
        assert_eq!(uuids(&owner), [SegmentUuid([0; 16]); 0]);
    }

    #[test]
    fn nothing_takes_the_place_of_a_segment_that_was_leaving() {
        let mut owner = owner();
        let unmount = owner.unmount(ONE, Duration::from_nanos(1)).unwrap();
        assert_eq!(unmount.grace_ms, 1, "0 is at once");
        assert_eq!(answered(&mut owner, &unmount, Told::Done), (None, vec![]));
        assert_eq!(uuids(&owner).len(), 2, "it is still read");
        assert_eq!(gone(&mut owner, ONE.0, &[]), (false, vec![give_back("one", Some(vec![]))]));
        assert!(owner.unmount(ONE, Duration::ZERO).is_none());
    }

    #[test]
    fn an_unmounted_segment_waits_for_the_word_on_its_pins_and_not_for_ever() {
        for known in [None, Some(vec![(0, 4)])] {
            let mut owner = owner();
            let unmount = owner.unmount(ONE, Duration::ZERO).unwrap();
            assert!(owner.waits_for_pins(ONE.0) && unmount.grace_ms == 0);
            assert_eq!(answered(&mut owner, &unmount, Told::Done), (Some(NOW + PINS_WAIT), vec![]));
            if let Some(pinned) = &known {
                assert_eq!(gone(&mut owner, ONE.0, pinned), (true, vec![]));
            }
            assert_eq!(owner.waits_for_pins(ONE.0), known.is_none());
            let mut out = Vec::new();
            owner.take_back(unmount, &mut out);
            assert_eq!(out, [give_back("one", known)]);
            assert_eq!((uuids(&owner), owner.waits_for_pins(ONE.0)), (vec![SegmentUuid([22; 16])], false));
        }
    }

    #[test]
    fn a_segment_that_the_master_says_is_gone_is_unmounted_whether_it_answers_or_not() {
        for at_close in [false, true] {
            let (mut owner, mut out) = (owner(), Vec::new());
            let unmount = match at_close {
                true => owner.close().unwrap().remove(0),
                false => owner.unmount(ONE, Duration::ZERO).unwrap(),
            };
            owner.begin(&unmount);
            assert!(gone(&mut owner, ONE.0, &[(0, 4)]).0);
            assert!(answered(&mut owner, &unmount, Told::Unanswered).0.is_some() && !owner.waits_for_pins(ONE.0));
            owner.take_back(unmount, &mut out);
            assert_eq!((out, uuids(&owner)), (vec![give_back("one", Some(vec![(0, 4)]))], vec![SegmentUuid([22; 16])]));
        }
    }

    #[test]
    fn a_segment_that_was_listed_while_it_was_unmounted_is_told_again_to_be_gone_and_keeps_its_views() {
        #[derive(PartialEq)]
        enum Listed {
            AndAnsweredBefore,
            BeforeAndAnsweredIn,
            In,
        }
        for listed in [Listed::AndAnsweredBefore, Listed::BeforeAndAnsweredIn, Listed::In] {
            let (mut owner, mut out) = (owner(), Vec::new());
            if listed != Listed::In {
                assert_eq!(owner.list(|_| 0).len(), 2);
            }
            if listed == Listed::AndAnsweredBefore {
                owner.list_answered(|_| false, &mut out);
            }
            let unmount = owner.unmount(ONE, Duration::ZERO).unwrap();
            assert!(gone(&mut owner, ONE.0, &[(0, 4)]).0);
            if listed == Listed::In {
                assert_eq!(owner.list(|_| 0).len(), 2, "it may still be refused");
            }
            assert!(answered(&mut owner, &unmount, Told::Done).0.is_some());
            if listed == Listed::BeforeAndAnsweredIn {
                owner.list_answered(|_| false, &mut out);
            }
            owner.take_back(unmount, &mut out);
            let pinned = (listed == Listed::AndAnsweredBefore).then(|| vec![(0, 4)]);
            assert_eq!(owner.must_unmount(pinned.as_ref()), pinned.is_none());
            assert_eq!(out, [give_back("one", pinned)]);
        }
    }

    #[test]
    fn what_is_known_of_the_pins_of_a_segment_that_is_leaving_outlasts_a_second_word_that_it_is_to_leave() {
        let mut owner = owner();
        let unmount = owner.unmount(ONE, Duration::ZERO).unwrap();
        assert!(owner.unmount(ONE, Duration::ZERO).is_none(), "it is leaving");
        assert!(gone(&mut owner, ONE.0, &[(0, 100)]).0);
        let closing = owner.close().unwrap();
        closing.iter().for_each(|unmount| owner.begin(unmount));
        let mut out = Vec::new();
        owner.take_back(unmount, &mut out);
        assert_eq!(out, [give_back("one", Some(vec![(0, 100)]))]);
    }

    #[test]
    fn a_segment_that_the_master_did_not_unmount_stays_as_it_was() {
        for (was_leaving, told) in [(false, Told::Refused), (true, Told::Unanswered)] {
            let mut owner = owner();
            if was_leaving {
                owner.unmount(ONE, NOW).unwrap();
            }
            let unmount = owner.unmount(ONE, Duration::ZERO).unwrap();
            assert_eq!(answered(&mut owner, &unmount, told), (None, vec![]));
            assert_eq!((uuids(&owner).len(), owner.waits_for_pins(ONE.0)), (2, false));
            let (_, out) = gone(&mut owner, ONE.0, &[]);
            assert_eq!(out.len(), if was_leaving { 1 } else { 2 }, "{out:?}");
        }
    }

    #[test]
    fn memory_whose_mount_was_not_answered_is_given_back_behind_an_unmount() {
        for told in [Told::Unanswered, Told::Refused] {
            let mut owner = Owner::default();
            owner.mount(None, ONE.0, "one");
            assert_eq!(uuids(&owner), [ONE.0], "a push about it may come first");
            assert_eq!(mounted(&mut owner, ONE.0, told), (false, vec![]));
            assert_eq!(uuids(&owner).len(), 0);
            assert!(owner.must_unmount(None) && !owner.must_unmount(Some(&vec![])), "it has said what is pinned");
        }
        let resumes = [Told::Done, Told::Refused, Told::Unanswered].map(must_resume);
        assert_eq!(resumes, [false, false, true], "only where it does not know");
    }

    #[test]
    fn what_becomes_of_a_segment_that_goes_while_it_is_mounted_depends_on_the_masters_answer() {
        for (told, by_push) in
            [(Told::Done, false), (Told::Done, true), (Told::Refused, false), (Told::Unanswered, true)]
        {
            let mut owner = Owner::default();
            owner.mount(None, ONE.0, "one");
            let mut out = Vec::new();
            match by_push {
                true => assert!(!owner.segment_gone(ONE.0, &[], &mut out)),
                // A list of what is held came to the master before the request that mounts it.
                false => owner.list_answered(|uuid| *uuid == ONE.0, &mut out),
            }
            assert_eq!((out, uuids(&owner).len()), (vec![], 0));
            // Mounted, it would be so for ever, and nobody serves it. Not mounted, its caller was told so.
            let replace = Output::Replace { id: ONE, memory: "one" };
            let then = if told == Told::Done { vec![replace] } else { vec![] };
            assert_eq!(mounted(&mut owner, ONE.0, told), (false, then));
            assert!(owner.must_unmount(None));
        }
    }

    #[test]
    fn what_has_come_or_gone_since_a_list_was_made_is_on_another_one() {
        let list = |owner: &mut Owner<&'static str>| owner.list(|_| 0).len();
        let (mut owner, mut out) = (owner(), Vec::new());
        assert_eq!((list(&mut owner), owner.list_is_outdated()), (2, false));
        // Its master may answer the list, or another one the request.
        owner.mount(None, SegmentUuid([3; 16]), "three");
        assert!(!owner.list_is_outdated(), "it is still being mounted");
        assert!(owner.mount_answered(SegmentUuid([3; 16]), Told::Done, &mut out) && owner.list_is_outdated());
        assert_eq!((list(&mut owner), owner.list_is_outdated()), (3, false));
        let unmount = owner.unmount(ONE, Duration::ZERO).unwrap();
        assert!(answered(&mut owner, &unmount, Told::Done).0.is_some() && !owner.list_is_outdated());
        owner.take_back(unmount, &mut out);
        assert!(owner.list_is_outdated());
        assert_eq!((list(&mut owner), owner.list_is_outdated()), (2, false));
        gone(&mut owner, SegmentUuid([22; 16]), &[]);
        assert!(owner.list_is_outdated());
        owner.close().unwrap();
        assert!(!owner.list_is_outdated(), "the end of the session says it");
    }

    #[test]
    fn at_the_end_all_memory_is_given_back_and_none_is_made() {
        let mut owner = owner();
        let mut leaving = owner.close().unwrap().into_iter();
        assert!(owner.close().is_none() && owner.is_closing());
        assert_eq!(gone(&mut owner, ONE.0, &[]), (false, vec![]), "it is unmounted next");
        let mut out = Vec::new();
        owner.list_answered(|_| true, &mut out);
        let (one, two) = (leaving.next().unwrap(), leaving.next().unwrap());
        owner.begin(&one);
        assert_eq!(gone(&mut owner, ONE.0, &[(0, 4)]), (true, vec![]));
        assert!(answered(&mut owner, &one, Told::Done).0.is_some());
        owner.take_back(one, &mut out);
        assert_eq!(out, [give_back("one", Some(vec![(0, 4)]))]);
        owner.begin(&two);
        assert_eq!(answered(&mut owner, &two, Told::Unanswered), (None, vec![give_back("two", None)]));
        owner.closed();
        assert_eq!(uuids(&owner).len(), 0);
        assert!(!owner.must_unmount(None), "the end of the session says it");
    }

    #[test]
    fn nothing_takes_the_place_of_a_lost_segment_that_was_leaving_or_whose_store_closes() {
        for closes in [false, true] {
            let (mut owner, mut out) = (Owner::default(), Vec::new());
            owner.mount(None, ONE.0, "one");
            if !closes {
                owner.unmount(ONE, NOW).unwrap();
            }
            owner.list_answered(|_| true, &mut out);
            if closes {
                owner.close().unwrap();
            }
            assert_eq!((mounted(&mut owner, ONE.0, Told::Done), out), ((false, vec![]), vec![]));
        }
    }

    #[test]
    fn only_the_segment_that_stays_after_all_can_be_replaced_again() {
        let mut owner = owner();
        owner.unmount(ONE, NOW).unwrap();
        let unmount = owner.unmount(TWO, Duration::ZERO).unwrap();
        assert_eq!(answered(&mut owner, &unmount, Told::Refused), (None, vec![]));
        assert_eq!(gone(&mut owner, ONE.0, &[]).1.len(), 1, "it was to leave");
        assert_eq!(gone(&mut owner, SegmentUuid([22; 16]), &[]).1.len(), 2);
    }

    #[test]
    fn its_mutants_are_noticed() {
        assert!(is_noticed_by(
            Mutant::ListedMemoryIsGivenBack,
            a_segment_that_was_listed_while_it_was_unmounted_is_told_again_to_be_gone_and_keeps_its_views
        ));
        assert!(is_noticed_by(
            Mutant::OutdatedListsCount,
            what_has_come_or_gone_since_a_list_was_made_is_on_another_one
        ));
    }
}
