//! Ends of sessions and of segments, in steps: what hung on a session is undone before it is forgotten.

use std::collections::{BTreeSet, VecDeque};

use crate::core::Core;
use crate::effect::{Effects, Push, Record, To};
use crate::ids::{SegmentNo, SessionId, Time};
use crate::segment::GoneSegment;
use crate::session::Session;
use crate::work::{STEP, Work};

/// What the end of a segment costs besides what lies on it, in [`Work`].
const SEGMENT: usize = 32;

/// Why a session is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Closed,
    ProcessGone,
    /// Away for the retention, or lingering until nothing hung on its views any more.
    Expired,
    Unused,
}

impl Ending {
    fn reason(self) -> &'static str {
        match self {
            Ending::Closed => "it closed",
            Ending::ProcessGone => "its process is gone",
            Ending::Expired => "it was away for too long",
            Ending::Unused => "it left before it did anything",
        }
    }

    /// Nothing of it can read any more.
    fn is_proven(self) -> bool {
        matches!(self, Ending::Closed | Ending::ProcessGone)
    }
}

/// Sessions that end. Nothing is taken from them any more, and no log knows: with this process they are away.
#[derive(Debug, Default)]
pub(crate) struct Endings {
    /// Each with how far the look for its unfinished puts is.
    line: VecDeque<(SessionId, Ending, u32)>,
}

impl Endings {
    pub fn is_empty(&self) -> bool {
        self.line.is_empty()
    }
}

impl Core {
    /// The session ended by itself, after its last view: a client says so only when none is left and none can begin.
    pub fn close_session(&mut self, now: Time, session: SessionId, fx: &mut Effects) {
        self.session_over(now, session, Ending::Closed, fx);
    }

    /// Its process is proven gone, and its views with it.
    pub fn process_gone(&mut self, now: Time, session: SessionId, fx: &mut Effects) {
        self.session_over(now, session, Ending::ProcessGone, fx);
    }

    /// Ends a session: at once, unless much hangs on it.
    pub(crate) fn session_over(&mut self, now: Time, session: SessionId, ending: Ending, fx: &mut Effects) {
        self.begin_to_end(now, session, ending);
        match ending {
            // Its client has no views any more, and takes the answer for all of it.
            Ending::Closed => {
                self.endings.line.retain(|(other, ..)| *other != session);
                self.end_session(now, session, ending, 0, &mut Work::operation(), fx);
            }
            _ => self.end_sessions(now, &mut Work::step(STEP), fx),
        }
        self.settle(now, fx);
    }

    /// Has a session end [in the background](Core::background).
    pub(crate) fn begin_to_end(&mut self, now: Time, session: SessionId, ending: Ending) {
        let Some(entry) = self.sessions.get_mut(session) else { return };
        if !std::mem::replace(&mut entry.ends, true) {
            self.endings.line.push_back((session, ending, 0));
            // Nothing is read or placed there from now on.
            entry.away.get_or_insert(now);
            for number in entry.segments.clone() {
                self.set_live(number, false);
            }
        } else if ending.is_proven()
            && let Some(begun) = self.endings.line.iter_mut().find(|(other, ..)| *other == session)
        {
            begun.1 = ending;
        }
    }

    /// Goes on with the sessions that end.
    pub(crate) fn end_sessions(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        while let Some((session, ending, next)) = self.endings.line.front().copied() {
            let reached = self.end_session(now, session, ending, next, work, fx);
            match reached {
                None => self.endings.line.pop_front(),
                Some(reached) => {
                    self.endings.line[0].2 = reached;
                    return;
                }
            };
        }
    }

    /// Goes on with one: its requests, its views if they are proven to have ended, its segments, its unfinished puts, then it
    /// itself. How far the look for unfinished puts is when there is no time for more.
    fn end_session(
        &mut self,
        now: Time,
        session: SessionId,
        ending: Ending,
        mut next: u32,
        work: &mut Work,
        fx: &mut Effects,
    ) -> Option<u32> {
        while let Some(place) = self.tickets.of_session(session) {
            let keys = self.tickets.keys_at(place);
            if !work.has_time_for(keys) {
                return Some(next);
            }
            if let Some(parked) = self.tickets.take(place) {
                self.refuse_ticket(parked, "the session is over", fx);
            }
            work.did(keys);
        }
        while ending.is_proven()
            && let Some(rid) = self.sessions.get(session).and_then(|entry| entry.pins.keys().next().copied())
        {
            if work.is_used_up() {
                return Some(next);
            }
            self.log(now, Record::Unpinned { session, rid }, fx);
            work.did(1);
        }
        while let Some(number) = self.sessions.get(session).and_then(|entry| entry.segments.first().copied()) {
            if !self.has_time_to_end(number, work) {
                return Some(next);
            }
            self.end_segment(now, number, work, fx);
        }
        while self.sessions.get(session).is_some_and(|entry| entry.unfinished > 0) {
            if work.is_used_up() {
                return Some(next);
            }
            if let Some(put) = self.reservations.at(next).filter(|put| put.session == session) {
                let rid = put.rid();
                self.drop_reservation(now, rid, false, fx);
            }
            next += 1;
            work.did(1);
        }
        if work.is_used_up() {
            return Some(next);
        }
        self.forget_session(now, session, ending, fx);
        work.did(1);
        None
    }

    /// Its views end with it if that is proven, or if there is nothing left that they keep; else it lingers until one or the
    /// other.
    fn forget_session(&mut self, now: Time, session: SessionId, ending: Ending, fx: &mut Effects) {
        let Some(entry) = self.sessions.get(session) else { return };
        self.changes.room = true;
        if !ending.is_proven() && self.needs_its_views(entry) {
            let entry = self.sessions.get_mut(session).expect("just seen");
            (entry.lingering, entry.ends) = (true, false);
            return;
        }
        // Also when it is away: the connection of a process that was frozen may still be there when it wakes up.
        fx.pushes.push((To::Session(session), Push::SessionOver(ending.reason().to_owned())));
        *match ending {
            Ending::Closed | Ending::Unused => &mut self.counts.sessions_closed,
            Ending::ProcessGone => &mut self.counts.sessions_died,
            Ending::Expired => &mut self.counts.sessions_expired,
        } += 1;
        if !ending.is_proven() {
            self.keep_what_is_viewed(now, session, fx);
        }
        self.log(now, Record::SessionOver(session), fx);
    }

    /// Whether anything could be done to the bytes under a session's views if they were forgotten. On a segment that is
    /// there they would be given out again. Nobody maps memory of another host: what is viewed of that are copies.
    pub(crate) fn needs_its_views(&self, session: &Session) -> bool {
        let can_be_mapped = |host: Option<u32>| host == session.host || host.is_none() || session.host.is_none();
        session.pins.keys().filter_map(|rid| self.pins.get(*rid)).any(|pinned| {
            let segment = self.segments.get(pinned.extent.segment);
            segment.is_some_and(|segment| can_be_mapped(segment.host))
        })
    }

    /// The views of a session are about to be forgotten, and its process may live and go on reading: whoever is yet to hear
    /// of the segments that are Gone under them gives nothing of those back.
    fn keep_what_is_viewed(&mut self, now: Time, session: SessionId, fx: &mut Effects) {
        let Some(entry) = self.sessions.get(session) else { return };
        let viewed = entry.pins.keys().filter_map(|rid| Some(self.pins.get(*rid)?.extent.segment));
        let viewed: BTreeSet<SegmentNo> = viewed.filter(|number| self.segments.get(*number).is_none()).collect();
        if viewed.is_empty() {
            return;
        }
        let gone: Vec<GoneSegment> = self.segments.gone().filter(|gone| viewed.contains(&gone.number)).collect();
        for GoneSegment { uuid, number, .. } in gone {
            self.log(now, Record::SegmentForgotten { uuid, number }, fx);
        }
    }

    /// Ends graces that are over: their segments are Gone.
    pub(crate) fn end_graces(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        while let Some(number) = self.segments.overdue(now) {
            if !self.has_time_to_end(number, work) {
                return;
            }
            self.end_segment(now, number, work, fx);
        }
    }

    /// What the end of a segment takes, as it cannot be cut: an unfinished put, a view or an extent in quarantine is one.
    fn cost_of_end(&self, number: SegmentNo) -> usize {
        SEGMENT + self.reservations.len_on(number) + self.pins.len_on(number) + self.quarantine.len_on(number)
    }

    fn has_time_to_end(&self, number: SegmentNo, work: &mut Work) -> bool {
        work.has_time_for(self.cost_of_end(number))
    }

    fn end_segment(&mut self, now: Time, number: SegmentNo, work: &mut Work, fx: &mut Effects) {
        work.did(self.cost_of_end(number));
        self.segment_gone(now, number, fx);
    }

    /// A segment is Gone.
    pub(crate) fn segment_gone(&mut self, now: Time, number: SegmentNo, fx: &mut Effects) {
        let Some(segment) = self.segments.get(number) else { return };
        let uuid = segment.spec.uuid;
        let pinned = match segment.epoch < self.epoch {
            // Not everybody who maps it has said yet that no view is unknown here: all of it stays until they unmap it.
            true => vec![GoneSegment::whole(number)],
            false => self.pins.of_segment(number),
        };
        self.log(now, Record::SegmentGone(number), fx);
        self.counts.segments_gone += 1;
        self.rechecks.retain(|_, recheck| recheck.replica.extent.segment != number);
        fx.pushes.push((To::Everybody, Push::SegmentGone { uuid, number, pinned }));
    }
}
