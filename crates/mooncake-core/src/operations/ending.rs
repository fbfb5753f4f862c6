//! Ends of sessions and of segments, in steps: what hung on a session is undone before it is forgotten.

use crate::core::Core;
use crate::effect::{Effects, Push, To};
use crate::ids::{SegmentNo, Time};
use crate::record::Record;
use crate::state::endings::Ending;
use crate::state::gone_segments::GoneSegment;
use crate::state::reservation::ReservationSlot;
use crate::work::{ENDED_AS, STEP_OBJECTS, Work};
use mooncake_ids::{Rid, SessionId};
use mooncake_mutant::mutant;

/// What the end of a segment costs, in [`Work`]. What lies on it is cleared away later.
pub(super) const SEGMENT: usize = 32;

impl Core {
    /// The session ended by itself, after its last view: a client says so only when none is left and none can begin. Of
    /// one on which much hangs this is a step, and it goes on with the next call or [in the
    /// background](Core::background): true when it is over.
    pub fn close_session(&mut self, now: Time, session: SessionId, fx: &mut Effects) -> bool {
        self.begin_to_end(now, session, Ending::Closed);
        let at = self.endings.line.iter().position(|(other, ..)| *other == session);
        if let Some(at) = at {
            let (_, ending, next) = self.endings.line[at];
            match self.end_session(now, session, ending, next, &mut Work::step(STEP_OBJECTS), fx) {
                Some(reached) => self.endings.line[at].2 = reached,
                None => _ = self.endings.line.remove(at),
            }
        }
        self.serve_waiting(now, fx);
        self.sessions.get(session).is_none()
    }

    /// Its process is proven gone, and its views with it. A session that is kept waits for an heir.
    pub fn process_gone(&mut self, now: Time, session: SessionId, fx: &mut Effects) {
        let is_kept =
            self.sessions.get(session).is_some_and(|entry| entry.is_kept() && !entry.ends && !entry.lingering);
        match is_kept && !mutant!(KeptSessionsEnd) {
            true => self.bereave(now, session),
            false => self.session_over(now, session, Ending::ProcessGone, fx),
        }
    }

    /// Ends a session: at once, unless much hangs on it.
    pub(crate) fn session_over(&mut self, now: Time, session: SessionId, ending: Ending, fx: &mut Effects) {
        self.begin_to_end(now, session, ending);
        self.end_sessions(now, &mut Work::step(STEP_OBJECTS), fx);
        self.serve_waiting(now, fx);
    }

    /// Has a session end [in the background](Core::background).
    pub(crate) fn begin_to_end(&mut self, now: Time, session: SessionId, ending: Ending) {
        let Some(entry) = self.sessions.get_mut(session) else { return };
        if !std::mem::replace(&mut entry.ends, true) {
            self.endings.line.push_back((session, ending, 0));
            // One that lingered has left before.
            let has_left = entry.lingering;
            // Nothing is read or placed there from now on.
            entry.away.get_or_insert(now);
            let segments = entry.segments.clone();
            self.set_live(&segments, false);
            self.hide_tiers_of(now, session);
            if !has_left {
                self.note_departure(session, ending);
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

    /// Goes on with one, in this order: its requests; its views if they are proven to have ended; its segments; its
    /// unfinished puts; views without that proof, where nothing is done to the bytes that they are on; its replies; the
    /// session itself. How far the look for unfinished puts is when there is no time for more.
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
        if ending.is_proven() && !self.end_views(now, session, ending, work, fx) {
            return Some(next);
        }
        while let Some(number) = self.sessions.get(session).and_then(|entry| entry.segments.first().copied()) {
            if !work.has_time_for(SEGMENT) {
                return Some(next);
            }
            self.segment_gone(now, number, fx);
            work.did(SEGMENT);
        }
        while self.sessions.get(session).is_some_and(|entry| entry.unfinished + entry.promoting > 0) {
            if work.is_used_up() {
                return Some(next);
            }
            if let Some(put) = self.reservations.at(ReservationSlot(next)).filter(|put| put.session == session) {
                let rid = put.rid();
                self.drop_reservation(now, rid, fx);
                work.did(ENDED_AS - 1);
            }
            next += 1;
            work.did(1);
        }
        if self.has_to_linger(session, ending) {
            return None;
        }
        if !self.end_views(now, session, ending, work, fx) || work.is_used_up() {
            return Some(next);
        }
        self.forget_all_replies(now, session, work, fx);
        if work.is_used_up() {
            return Some(next);
        }
        if self.sessions.get(session).is_some() {
            self.forget_session(now, session, ending, fx);
        }
        work.did(1);
        None
    }

    /// Ends the views of a session. True when it has none any more.
    fn end_views(&mut self, now: Time, session: SessionId, ending: Ending, work: &mut Work, fx: &mut Effects) -> bool {
        if let Some(entry) = self.sessions.get_mut(session) {
            entry.ended.clear();
        }
        while let Some(rid) = self.sessions.get(session).and_then(|entry| entry.pins.keys().next().copied()) {
            if work.is_used_up() {
                return false;
            }
            if !ending.is_proven() {
                self.keep_what_is_viewed(now, rid, fx);
            }
            self.log(now, Record::Unpinned { session, rid }, fx);
            work.did(1);
        }
        true
    }

    /// Whether its views stay. They end with it if that is proven, or if there is nothing left that they keep; else it
    /// lingers until one or the other.
    fn has_to_linger(&mut self, session: SessionId, ending: Ending) -> bool {
        let lingers = !ending.is_proven() && self.needs_its_views(session);
        if lingers && let Some(entry) = self.sessions.get_mut(session) {
            (entry.lingering, entry.ends) = (true, false);
            self.news.room = true;
        }
        lingers
    }

    /// Whether anything could be done to the bytes under a session's views if they were forgotten. On a segment that is
    /// there they would be given out again. No process maps memory of another host: views of that are copies.
    pub(crate) fn needs_its_views(&self, session: SessionId) -> bool {
        let its = self.sessions.get(session).and_then(|entry| entry.host);
        let can_be_mapped = |host: Option<u32>| host == its || host.is_none() || its.is_none();
        let mut viewed = self.pins.segments_viewed_by(session).filter_map(|number| self.segments.get(number));
        viewed.any(|segment| can_be_mapped(segment.host))
    }

    /// A view of a session is about to be forgotten, and its process may live and go on reading: if the segment is
    /// Gone, a process that is yet to hear of that gives nothing of it back.
    fn keep_what_is_viewed(&mut self, now: Time, rid: Rid, fx: &mut Effects) {
        let Some(number) = self.pins.get(rid).map(|pin| pin.extent.segment) else { return };
        if self.segments.get(number).is_none()
            && let Some(GoneSegment { uuid, kept_whole: false, .. }) = self.segments.gone().of(number)
        {
            self.log(now, Record::SegmentForgotten { uuid, number }, fx);
        }
    }

    fn forget_session(&mut self, now: Time, session: SessionId, ending: Ending, fx: &mut Effects) {
        self.news.room = true;
        // Also when it is away: the connection of a process that was frozen may still be there when it wakes up.
        fx.pushes.push((To::Session(session), Push::SessionOver(ending.reason().to_owned())));
        *match ending {
            Ending::Closed | Ending::Unused => &mut self.counts.sessions_closed,
            Ending::ProcessGone | Ending::Succeeded => &mut self.counts.sessions_died,
            Ending::Expired => &mut self.counts.sessions_expired,
        } += 1;
        self.log(now, Record::SessionOver(session), fx);
    }

    /// Ends graces that are over: their segments are Gone.
    pub(crate) fn end_graces(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        while let Some(number) = self.segments.overdue(now) {
            if !work.has_time_for(SEGMENT) {
                return;
            }
            self.segment_gone(now, number, fx);
            work.did(SEGMENT);
        }
    }

    /// A segment is Gone.
    pub(crate) fn segment_gone(&mut self, now: Time, number: SegmentNo, fx: &mut Effects) {
        if self.segments.get(number).is_none() {
            return;
        }
        self.log(now, Record::SegmentGone(number), fx);
        self.counts.segments_gone += 1;
        self.touched.add(self.rechecks.len());
        self.rechecks.retain(|_, recheck| recheck.replica.extent.segment != number);
        let gone = self.segments.gone().of(number).expect("it has just gone");
        self.tell_all(gone, fx);
    }
}
