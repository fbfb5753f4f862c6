//! What happens because time passes.

use smallvec::SmallVec;

use crate::core::Core;
use crate::effect::Effects;
use crate::ids::{SegmentNo, Time};
use crate::operations::room::Victim;
use crate::state::endings::Ending;
use crate::state::objects::ObjectSlot;
use crate::state::objects::Reach;
use crate::state::watermark::Watermark;
use crate::work::{EVICTED_AS, LOOKED_AT_AS_ONE, STEP_OBJECTS, Work, key_as};
use mooncake_ids::{GRANULE, SessionId};

/// Time between two looks at what the views of lingering sessions are on.
const LINGERING_LOOK_MS: u64 = 1_000;

/// Sessions that one tick looks at: of more of them each is looked at every few ticks.
const WATCHED: usize = 2_048;

/// Sessions of which one tick finds that they are away, or over.
const FOUND: usize = 128;

/// Segments that become Hidden with them: a session more is found where there were fewer.
const HIDDEN: usize = 1_024;

/// Memory of a few thousand objects takes the kernel as long as so many that leave.
const GIVEN_BACK_AS: usize = 32;

/// What is done in the background, as far as there is any of it. What makes room comes first.
const CHORES: [fn(&mut Core, Time, &mut Work, &mut Effects); 22] = [
    Core::end_sessions,
    Core::expire_reservations,
    Core::clear_away,
    Core::end_graces,
    Core::lapse,
    Core::renew_groups,
    Core::check_mounted,
    Core::look_after_shared,
    Core::expire_orders,
    Core::order_writes,
    Core::promote,
    Core::drop_given_up,
    Core::retire,
    Core::evict_to_watermark,
    Core::pass_on_news,
    Core::serve_due_tickets,
    Core::tell,
    Core::purge,
    Core::look_at_several,
    Core::forget_settled,
    Core::forget_removals,
    Core::give_memory_back,
];

impl Core {
    /// To be called every 20 ms or so, and [`Core::background`] behind it.
    pub fn tick(&mut self, now: Time, fx: &mut Effects) {
        self.watch_sessions(now, fx);
        // A populator may have given up.
        self.news.room |= self.tickets.any_for_population() || self.tiers.any_live();
        self.news.begin_same_call();
        if self.config.high_watermark < 1.0 && self.watermark == Watermark::Below {
            self.watermark = Watermark::Unknown;
        }
        self.background(now, STEP_OBJECTS, fx);
    }

    /// A step of what need not be done in the operation that it follows from, or was too much for that: over at most
    /// `budget` objects, keys and extents, or one thing that cannot be cut. True when there may be more.
    pub fn background(&mut self, now: Time, budget: usize, fx: &mut Effects) -> bool {
        let mut work = Work::step(budget);
        let (rest, first) = CHORES.split_at(self.next_chore);
        // Each comes to its turn, whatever there is most of and however few steps a tick has.
        self.next_chore = (self.next_chore + 1) % CHORES.len();
        for chore in first.iter().chain(rest) {
            chore(self, now, &mut work, fx);
            if work.is_used_up() {
                return true;
            }
        }
        self.next_chore = 0;
        false
    }

    /// Whether a client waits for what is left to do in the background.
    pub fn keeps_waiting(&self) -> bool {
        let is_ending = !self.endings.is_empty() || !self.ending_views.is_empty();
        is_ending || !self.tellings.is_empty() || !self.tickets.is_empty() && !self.news.is_empty()
    }

    /// Looks for sessions that have fallen silent or were away for too long.
    fn watch_sessions(&mut self, now: Time, fx: &mut Effects) {
        let (away_ms, retention_ms) = (self.config.away_ms, self.config.retention_ms);
        let mut silent: Vec<SessionId> = Vec::new();
        let mut over: Vec<(SessionId, Ending)> = Vec::new();
        if self.next_watched == SessionId(0) {
            self.looks_at_lingering = self.next_look_at_lingering <= now;
            if self.looks_at_lingering {
                self.next_look_at_lingering = now.plus_ms(LINGERING_LOOK_MS);
            }
        }
        let look = self.looks_at_lingering;
        let (mut next, mut hidden) = (SessionId(0), 0);
        for (nth, (id, session)) in self.sessions.from(self.next_watched).enumerate() {
            if nth == WATCHED || silent.len() + over.len() == FOUND || hidden > HIDDEN {
                next = id;
                break;
            }
            if session.ends {
                continue;
            }
            match session.away {
                None if session.last_heard.plus_ms(away_ms) < now => {
                    silent.push(id);
                    hidden += session.segments.len();
                }
                Some(_) if session.lingering && session.pins.is_empty() => over.push((id, Ending::Expired)),
                Some(_) if session.lingering && look && !self.needs_its_views(id) => over.push((id, Ending::Expired)),
                Some(_) if session.lingering => {}
                Some(_) if session.bereft.is_some() => {
                    let due =
                        session.bereft.zip(session.kept).is_some_and(|(since, kept)| since.plus_ms(kept.ms) < now);
                    over.extend(due.then_some((id, Ending::ProcessGone)));
                }
                Some(since) if since.plus_ms(session.retention_ms(retention_ms)) < now => {
                    over.push((id, Ending::Expired));
                }
                _ => {}
            }
        }
        self.next_watched = next;
        for session in silent {
            self.mounts_anew(session, fx);
            self.set_away(now, session);
        }
        for (session, ending) in over {
            self.begin_to_end(now, session, ending);
        }
    }

    fn evict_to_watermark(&mut self, now: Time, work: &mut Work, fx: &mut Effects) {
        if self.watermark == Watermark::Below {
            return;
        }
        let (used, total) = (self.segments.open_used(), self.segments.open_bytes());
        let is_above = used as f64 > total as f64 * self.config.high_watermark;
        if self.watermark == Watermark::Unknown && !is_above {
            self.watermark = Watermark::Below;
            return;
        }
        let goal = total as f64 * (self.config.high_watermark - self.config.eviction_share).max(0.0);
        let mut left = used;
        let most = work.left(STEP_OBJECTS) / EVICTED_AS;
        let (mut steps, mut passes) = (most, most * LOOKED_AT_AS_ONE);
        while left as f64 > goal
            && let Some(victim) = self.next_to_watermark(now, &mut steps, &mut passes)
        {
            let object = self.objects.object(victim);
            let freed = object.size().next_multiple_of(GRANULE) * object.places.memory().len() as u64;
            left = left.saturating_sub(freed);
            steps = steps.saturating_sub(key_as(self.objects.key(victim).len()));
            self.evict(now, victim, fx);
        }
        work.did((most - steps) * EVICTED_AS);
        let goes_on = left as f64 > goal && steps == 0;
        self.watermark = if goes_on { Watermark::Evicting } else { Watermark::Below };
    }

    /// Nothing that would be lost as long as owners are writing to their tiers.
    fn next_to_watermark(&mut self, now: Time, steps: &mut usize, passes: &mut usize) -> Option<ObjectSlot> {
        match self.spare_the_unwritten(now, None, passes) {
            Victim::Wait => None,
            Victim::Slot(slot) => {
                *steps = steps.checked_sub(1)?;
                Some(slot)
            }
            Victim::Any => self.objects.victim(now, &self.segments, Reach::Unprotected, None, steps),
        }
    }

    /// Ends protection and soft pins whose time has come.
    fn lapse(&mut self, now: Time, work: &mut Work, _: &mut Effects) {
        let lapsed = self.objects.lapse_protection(now, work.left(usize::MAX));
        work.did(lapsed);
        let lapsed_soft = self.objects.lapse_soft_pins(now, work.left(usize::MAX));
        work.did(lapsed_soft);
        self.news.room |= lapsed + lapsed_soft > 0;
    }

    /// Goes on renewing groups of which an operation has found an object.
    fn renew_groups(&mut self, now: Time, work: &mut Work, _: &mut Effects) {
        while !work.is_used_up()
            && let Some(renewed) = self.objects.renew_next(now, |place| self.tiers.is_young(place))
        {
            work.did(1 + renewed);
        }
    }

    /// Gives memory back that objects, puts and segments have left.
    fn give_memory_back(&mut self, _: Time, work: &mut Work, _: &mut Effects) {
        while !work.is_used_up() && self.gives_memory_back() {
            work.did(GIVEN_BACK_AS);
        }
    }

    fn gives_memory_back(&mut self) -> bool {
        self.objects.give_back() || self.reservations.give_back() || self.segments.give_back()
    }

    fn look_at_several(&mut self, _: Time, work: &mut Work, _: &mut Effects) {
        let most = work.left(STEP_OBJECTS) * LOOKED_AT_AS_ONE;
        let looked = self.objects.look_at_several(&self.segments, self.purge.is_some(), most);
        work.did(looked.div_ceil(LOOKED_AT_AS_ONE));
    }

    /// Whether there may be something left that lay on segments that are Gone.
    pub fn is_purging(&self) -> bool {
        self.purge.is_some()
    }

    fn purge(&mut self, now: Time, work: &mut Work, _: &mut Effects) {
        while !work.is_used_up()
            && let Some(next) = self.purge
        {
            let end = self.objects.bound().min(next.saturating_add(work.left(usize::MAX) as u32));
            for slot in (next..end).map(ObjectSlot) {
                let Some(object) = self.objects.get(slot) else { continue };
                let lies_on = object.places.segments();
                let gone: SmallVec<[SegmentNo; 2]> = lies_on.filter(|number| !self.is_there(*number)).collect();
                if !gone.is_empty() {
                    let dropped = self.drop_places(now, slot, |_, number| gone.contains(&number));
                    dropped.expect("nothing on a Gone segment is given back");
                }
            }
            work.did((end - next) as usize);
            self.purge = match end < self.objects.bound() {
                true => Some(end),
                false => std::mem::take(&mut self.purge_again).then_some(0),
            };
        }
    }
}
