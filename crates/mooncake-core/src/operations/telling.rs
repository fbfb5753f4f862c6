//! What sessions are told in steps: which segments are Gone with all that views hold of them, and which fences an owner
//! has yet to answer.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::core::Core;
use crate::effect::{Effects, Push, To};
use crate::ids::Time;
use crate::state::gone_segments::GoneSegment;
use crate::state::tellings::{Again, Naming};
use crate::work::{STEP_OBJECTS, Work};
use mooncake_ids::{Rid, SessionId};

/// Gone segments told to a session that comes back, at most.
const GONE_TOLD_MAX: u64 = 1_024;

impl Core {
    /// How many of the segments that have gone a session has been told of, down the connection that it has.
    pub(crate) fn gone_told(&self, session: SessionId) -> Option<u64> {
        let to_all = self.tellings.to_all.front().map(|(before, _)| *before);
        let told = to_all.unwrap_or(self.segments.gone().count());
        (self.tellings.again.is_empty() || !self.tellings.has_gone_for(session)).then_some(told)
    }

    /// Tells every session of a segment that has just gone: at once, unless views hold very much of it.
    pub(crate) fn tell_all(&mut self, gone: GoneSegment, fx: &mut Effects) {
        let mut naming = self.naming(gone);
        if self.name_pinned(&mut naming, &mut Work::beside_an_operation()) {
            fx.pushes.push((To::Everybody, self.push_of(naming)));
        } else {
            self.tellings.to_all.push_back((self.segments.gone().count() - 1, naming));
        }
    }

    /// Tells a session that is back which segments are Gone that it may not have heard of, and which fences it has yet
    /// to answer. What it was told last may have gone down unread with its connection, and a process that is not told
    /// to part with memory holds it.
    pub(crate) fn tell_again(&mut self, session: SessionId, fx: &mut Effects) {
        let Some(entry) = self.sessions.get_mut(session) else { return };
        entry.gone.come_back();
        let end = self.segments.gone().count();
        let gone = entry.gone.heard.max(end.saturating_sub(GONE_TOLD_MAX))..end;
        self.tellings.again.retain(|again| again.session != session);
        let mut again = Again { session, gone, naming: None, fences: Some(Rid(0)) };
        // One after the other: what views hold of a segment is gone through for one of them at a time.
        if !self.tellings.is_empty() || !self.go_on_telling(&mut again, &mut Work::step(STEP_OBJECTS), fx) {
            self.tellings.again.push_back(again);
        }
    }

    /// Goes on with what is left to be told.
    pub(crate) fn tell(&mut self, _: Time, work: &mut Work, fx: &mut Effects) {
        while let Some((before, mut naming)) = self.tellings.to_all.pop_front() {
            if !self.name_pinned(&mut naming, work) {
                self.tellings.to_all.push_front((before, naming));
                return;
            }
            fx.pushes.push((To::Everybody, self.push_of(naming)));
        }
        while let Some(mut again) = self.tellings.again.pop_front() {
            // One that has left once more is told all of it when it is back.
            let is_here = self.sessions.get(again.session).is_some_and(|session| session.away.is_none());
            if is_here && !self.go_on_telling(&mut again, work, fx) {
                self.tellings.again.push_front(again);
                return;
            }
        }
    }

    /// True when it has been told all of it.
    fn go_on_telling(&mut self, again: &mut Again, work: &mut Work, fx: &mut Effects) -> bool {
        loop {
            if let Some(mut naming) = again.naming.take() {
                if !self.name_pinned(&mut naming, work) {
                    again.naming = Some(naming);
                    return false;
                }
                fx.pushes.push((To::Session(again.session), self.push_of(naming)));
            }
            if work.is_used_up() {
                return false;
            }
            let Some(next) = again.gone.next() else { break };
            again.naming = self.segments.gone().at(next).map(|gone| self.naming(gone));
        }
        while let Some(from) = again.fences {
            let most = work.left(STEP_OBJECTS);
            if most == 0 {
                return false;
            }
            let before = fx.pushes.len();
            again.fences = self.ask_fences(again.session, from, most, fx);
            work.did(fx.pushes.len() - before);
        }
        true
    }

    fn naming(&self, GoneSegment { uuid, number, kept_whole }: GoneSegment) -> Naming {
        let left = if kept_whole { 0 } else { self.pins.len_on(number) };
        Naming { uuid, number, pinned: Vec::new(), left }
    }

    /// The message, once all is named. Where a view has been forgotten meanwhile of which nothing proves that it has
    /// ended, all of the segment is kept.
    fn push_of(&self, Naming { uuid, number, pinned, .. }: Naming) -> Push {
        let is_known = self.segments.gone().of(number).is_some_and(|gone| !gone.kept_whole);
        let pinned = if is_known { pinned } else { vec![GoneSegment::whole(number)] };
        Push::SegmentGone { uuid, number, pinned }
    }

    /// Goes on with what views hold of a segment that is Gone. True when all of it is named.
    fn name_pinned(&mut self, naming: &mut Naming, work: &mut Work) -> bool {
        work.did(1);
        while naming.left > 0 {
            if work.is_used_up() {
                return false;
            }
            let Some(extent) = self.pins.pass_by(naming.number) else { break };
            naming.pinned.push(extent);
            naming.left -= 1;
            work.did(1);
        }
        true
    }

    /// Asks an owner once more for fences that it has not answered yet: by rid, from one on, so many at most. Gives the
    /// first one that is left.
    pub fn ask_fences(&self, owner: SessionId, from: Rid, most: usize, fx: &mut Effects) -> Option<Rid> {
        let its = self.sessions.get(owner).map_or(&[][..], |entry| &entry.segments);
        let mut lists: Vec<_> = its.iter().map(|number| self.quarantine.on_segment(*number, from)).collect();
        let mut next = BinaryHeap::with_capacity(lists.len());
        for (place, list) in lists.iter_mut().enumerate() {
            next.extend(list.next().map(|entry| Reverse((entry.replica.rid, place))));
        }
        for _ in 0..most {
            let Reverse((rid, place)) = next.pop()?;
            let entry = self.quarantine.get(rid).expect("it is in quarantine");
            let segment = self.segments.get(entry.replica.extent.segment).expect("a session's segments are there");
            let fence = Push::Fence {
                uuid: segment.spec.uuid,
                replica: entry.replica,
                writer: entry.writer,
                writer_done: entry.writer_done,
            };
            fx.pushes.push((To::Session(owner), fence));
            next.extend(lists[place].next().map(|entry| Reverse((entry.replica.rid, place))));
        }
        next.peek().map(|Reverse((rid, _))| *rid)
    }
}
