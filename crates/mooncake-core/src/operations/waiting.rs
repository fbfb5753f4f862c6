//! Serving those that wait: the news for them, and how much of it one hold of the lock goes through.

use crate::core::Core;
use crate::effect::Effects;
use crate::ids::{SegmentNo, Ticket, Time};
use crate::operations::put_start::{Attempt, TIER_WAIT_MS};
use crate::operations::room::RoomMode;
use crate::request::{Remembered, Sight, StartOutcome};
use crate::state::news::News;
use crate::state::reservation::ReservationSlot;
use crate::state::waiting_put::{Position, WaitingPut};
use crate::work::{STEP_OBJECTS, Work};
use mooncake_ids::SessionId;
use std::borrow::Cow;

/// Keys of a request that are taken out of the books of those that wait, and put back, in the time of one that is
/// placed.
const AWAITED_AS_ONE: usize = 4;

/// What is left of a step is for evictions: a request that has none in its turns gets nowhere.
const AWAITED_MAX: usize = STEP_OBJECTS / 2;

impl Core {
    /// A key changed hands.
    pub(crate) fn key_changed(&mut self, key: &[u8]) {
        let hash = self.objects.hash(key);
        if self.tickets.await_key(hash) {
            self.news.add_key(key, hash);
        }
    }

    /// A writer went away: a request that waits for one of its keys can have that key.
    pub(crate) fn yields_its_keys(&mut self, writer: SessionId) {
        if self.reservations.next_awaited(writer, None).is_some() {
            self.news.yielding.push_back((writer, None));
        }
    }

    /// A session has less unfinished than before.
    pub(crate) fn less_unfinished(&mut self, session: SessionId) {
        if self.tickets.await_session(session) {
            self.news.uncapped.insert(session, None);
        }
    }

    /// Eviction alone may gain more in a segment than before.
    pub(crate) fn more_attainable(&mut self, number: SegmentNo) {
        if self.tickets.next_unattainable(None).is_none() || !self.segments.is_open(number) {
            return;
        }
        let Some(segment) = self.segments.get(number) else { return };
        let attainable = segment.attainable();
        if self.tickets.next_unattainable(None).is_some_and(|(least, _)| least <= attainable) {
            self.news.attainable = self.news.attainable.max(attainable);
            self.news.unattainable.begin();
        }
    }

    /// A segment takes objects that took none.
    pub(crate) fn more_is_open(&mut self, number: SegmentNo) {
        self.news.room = true;
        self.news.cap_raised = true;
        self.more_attainable(number);
    }

    pub(crate) fn refuse_ticket(&mut self, parked: WaitingPut, reason: &'static str, fx: &mut Effects) {
        let outcomes = parked.entries.iter().map(|_| StartOutcome::Refused(Cow::Borrowed(reason))).collect();
        fx.woken.push((parked.ticket, outcomes));
        self.news.room = true;
    }

    /// The connection of a parked request closed.
    pub fn cancel_ticket(&mut self, now: Time, ticket: Ticket, fx: &mut Effects) {
        if self.tickets.cancel(ticket) {
            self.news.room = true;
            self.serve_waiting(now, fx);
        }
    }

    /// Serves parked requests after a change that may help them, as many as an operation has time for: every operation
    /// ends with it. The others are served [in the background](Core::background).
    pub(crate) fn serve_waiting(&mut self, now: Time, fx: &mut Effects) {
        self.pass_on_news(now, &mut Work::beside_an_operation(), fx);
    }

    /// Serves the requests that news may have helped.
    pub(crate) fn pass_on_news(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        if self.tickets.is_empty() {
            self.news = News::default();
            return;
        }
        self.pass_on_yielded_keys(work);
        self.pass_on_keys(now, work, fx);
        self.pass_on_room(now, work, fx);
        self.pass_on_to_capped(now, work, fx);
        self.pass_on_to_unattainable(now, work, fx);
        self.pass_on_to_same_call(now, work, fx);
    }

    /// Says of each key of a writer that is away, and for which a request waits, that it changed hands.
    fn pass_on_yielded_keys(&mut self, work: &mut Work) {
        while let Some((writer, after)) = self.news.yielding.front().copied() {
            // A writer that is back keeps what has not been yielded by now (docs/safety.md, rule 7).
            let is_away = self.sessions.get(writer).is_some_and(|session| session.away.is_some());
            let Some(slot) = self.reservations.next_awaited(writer, after).filter(|_| is_away) else {
                self.news.yielding.pop_front();
                continue;
            };
            if work.is_used_up() {
                return;
            }
            self.news.yielding[0].1 = Some(slot);
            let key: Box<[u8]> = self.reservations.get(slot).key.as_slice().into();
            self.key_changed(&key);
            work.did(1);
        }
    }

    /// The writer of an unfinished put is away, or the put is of an earlier epoch.
    fn is_yielded(&self, slot: ReservationSlot) -> bool {
        let put = self.reservations.get(slot);
        put.rid().epoch() < self.epoch.number
            || self.sessions.get(put.session).is_none_or(|writer| writer.away.is_some())
    }

    /// Serves the line of each key that changed hands, until the key is taken.
    fn pass_on_keys(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        while let Some((key, hash, after)) = self.news.keys.front() {
            let (hash, next) = (*hash, self.tickets.next_for_key(*hash, *after));
            // The first in line has it. Each of the others would find that and no more.
            let taken = self.reservations.by_key(key).filter(|slot| !self.is_yielded(*slot));
            let taken = taken.filter(|_| self.visible(hash, key, Sight::Tiers).is_none());
            let Some(position) = next.filter(|_| taken.is_none()) else {
                if let Some(slot) = taken {
                    self.reservations.set_awaited(slot);
                }
                self.news.remove_first_key();
                continue;
            };
            if !self.has_time_for(position, work) {
                return;
            }
            self.news.keys[0].2 = Some(position);
            self.serve(now, position, false, work, fx);
        }
    }

    /// Serves the first in line for room, and the next one once the first has left the line.
    fn pass_on_room(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        while self.news.room {
            let Some(position) = self.tickets.first_for_room() else {
                self.news.room = false;
                return;
            };
            if !self.has_time_for(position, work) {
                return;
            }
            let cut = self.serve(now, position, false, work, fx);
            // The room that it made and did not get it has had its chance at, unless its work was cut short.
            self.news.room = cut || self.tickets.first_for_room() != Some(position);
        }
    }

    /// Serves the line of each session that has less unfinished than before, or may have more.
    fn pass_on_to_capped(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        // The cap is a share of the open capacity (docs/safety.md, rule 13): a segment that opens raises it for all.
        if std::mem::take(&mut self.news.cap_raised) {
            let all = self.tickets.capped_sessions();
            self.news.uncapped = all.into_iter().map(|session| (session, None)).collect();
        }
        while let Some((session, after)) = self.news.uncapped.first_key_value().map(|(id, after)| (*id, *after)) {
            let Some(position) = self.tickets.next_capped(session, after) else {
                self.news.uncapped.pop_first();
                continue;
            };
            if !self.has_time_for(position, work) {
                return;
            }
            self.news.uncapped.insert(session, Some(position));
            self.serve(now, position, false, work, fx);
        }
    }

    /// Serves the requests that wait for the end of views or of quarantine, and need no more than eviction alone can
    /// gain by now.
    fn pass_on_to_unattainable(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        while self.news.unattainable.begun {
            // By need: all behind the first that needs too much need as much or more.
            let next = self.tickets.next_unattainable(self.news.unattainable.after);
            let Some((granules, position)) = next.filter(|(granules, _)| *granules <= self.news.attainable) else {
                self.news.unattainable.ends();
                // What became attainable during the walk is for the walk that begins anew.
                if !self.news.unattainable.begun {
                    self.news.attainable = 0;
                }
                continue;
            };
            if !self.has_time_for(position, work) {
                return;
            }
            self.news.unattainable.after = Some((granules, position));
            self.serve(now, position, false, work, fx);
        }
    }

    /// Serves the requests that spare what their call has stored, and the ones that wait for more memory for a further
    /// replica. None of them blocks another: each is looked at, after a tick and after a populator's progress.
    fn pass_on_to_same_call(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        while self.news.same_call.begun {
            let Some(position) = self.tickets.next_for_same_call(self.news.same_call.after) else {
                self.news.same_call.ends();
                continue;
            };
            if !self.has_time_for(position, work) {
                return;
            }
            self.news.same_call.after = Some(position);
            self.serve(now, position, false, work, fx);
        }
    }

    /// Answers requests whose deadline has come: the first come first.
    pub(crate) fn serve_due_tickets(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        while let Some(position) = self.tickets.due(now) {
            if !self.has_time_for(position, work) {
                return;
            }
            self.serve(now, position, true, work, fx);
            self.news.room = true;
        }
    }

    fn has_time_for(&self, position: Position, work: &mut Work) -> bool {
        work.has_time_for(self.tickets.keys_at(position))
    }

    /// Looks at a parked request again. True when its work was cut short and it stays. `last`: its deadline has come.
    fn serve(&mut self, now: Time, position: Position, last: bool, work: &mut Work, fx: &mut Effects) -> bool {
        let Some(mut parked) = self.tickets.take(position) else { return false };
        work.did((parked.waits.keys.len() / AWAITED_AS_ONE).min(AWAITED_MAX));
        let blocked = self.tickets.any_for_room_before(Some(position));
        let late = last && !parked.impatient;
        let comes_again = !parked.impatient || parked.config.comes_again;
        let spares_unwritten = !last && comes_again && now < parked.since.plus_ms(TIER_WAIT_MS);
        let mode = RoomMode { room: late || !blocked, force: late, newcomer: false, spares_unwritten };
        let keys = parked.entries.iter().map(|(key, size)| (&**key, *size));
        let Attempt { outcomes, any, waits, cut, reasons } =
            self.evaluate(now, parked.origin, keys, &parked.config, mode, work, fx);
        let full_deadline = parked.since.plus_ms(self.config.full_wait_of(&parked.config));
        // A key that waited for another put may wait for room a little longer, but not for ever.
        let time_left = !last || waits.for_room() && now < full_deadline;
        let stays = cut || time_left && !parked.impatient;
        if !any && waits.for_anything() && stays {
            // One whose evictions go on is due until they are through.
            parked.deadline = match cut && last || parked.impatient {
                true => parked.deadline,
                false => self.deadline(parked.since, &parked.config, &waits),
            };
            parked.waits = waits;
            self.tickets.push(parked, Some(position));
            // Its evictions go on, whatever it waited for before.
            self.news.room |= cut;
            return cut;
        }
        self.count_outcomes(&outcomes, if parked.impatient { !parked.config.comes_again } else { !any });
        self.remember(parked.origin, Remembered::PutStart(outcomes.clone()), fx);
        fx.woken.push((parked.ticket, self.told(outcomes, &reasons)));
        false
    }
}
