//! What happens because time passes.

use smallvec::SmallVec;

use crate::core::Core;
use crate::effect::Effects;
use crate::ids::{GRANULE, SegmentNo, SessionId, Time};
use crate::membership::Ending;
use crate::objects::Reach;

/// Objects whose protection or soft pin lapses in one step.
const LAPSE_MOST: usize = 2_048;
/// Time between two looks at what the views of lingering sessions are on.
const LINGERING_LOOK_MS: u64 = 1_000;
/// Objects evicted in one tick to get below the watermark.
const WATERMARK_STEPS: usize = 4_096;

impl Core {
    /// To be called every 20 ms or so, and [`Core::background`] behind it.
    pub fn tick(&mut self, now: Time, fx: &mut Effects) {
        self.watch_sessions(now, fx);
        self.expire_reservations(now, fx);
        while let Some(number) = self.segments.overdue(now) {
            self.segment_gone(now, number, None, fx);
        }
        self.lapse(now);
        // A populator may have given up.
        self.room_changed |= self.tickets.iter().any(|parked| parked.for_population);
        self.own_turn = true;
        self.evict_to_watermark(now, fx);
        self.settle(now, fx);
        self.serve_due_tickets(now, fx);
    }

    fn watch_sessions(&mut self, now: Time, fx: &mut Effects) {
        let (away_ms, retention_ms) = (self.config.away_ms, self.config.retention_ms);
        let mut silent: Vec<SessionId> = Vec::new();
        let mut over: Vec<SessionId> = Vec::new();
        let look = self.next_look_at_lingering <= now;
        if look {
            self.next_look_at_lingering = now.plus_ms(LINGERING_LOOK_MS);
        }
        for (id, session) in self.sessions.iter() {
            match session.away {
                None if session.last_heard.plus_ms(away_ms) < now => silent.push(id),
                Some(_) if session.lingering && session.pins.is_empty() => over.push(id),
                Some(_) if session.lingering && look && !self.needs_its_views(session) => over.push(id),
                Some(since) if !session.lingering && since.plus_ms(retention_ms) < now => over.push(id),
                _ => {}
            }
        }
        for session in silent {
            self.set_away(now, session);
        }
        for session in over {
            self.session_over(now, session, Ending::Expired, fx);
        }
    }

    fn evict_to_watermark(&mut self, now: Time, fx: &mut Effects) {
        if self.config.high_watermark >= 1.0 {
            return;
        }
        let sum = |core: &Core| {
            let open = core.segments.open().iter();
            open.fold((0, 0), |(used, total), open| {
                let limit = core.segments.get(open.number).map_or(0, |segment| u64::from(segment.extents.limit()));
                (used + (limit - u64::from(open.free)) * GRANULE, total + u64::from(open.total) * GRANULE)
            })
        };
        let (used, total) = sum(self);
        if used as f64 <= total as f64 * self.config.high_watermark {
            return;
        }
        let goal = total as f64 * (self.config.high_watermark - self.config.eviction_share).max(0.0);
        let mut left = used;
        let mut steps = WATERMARK_STEPS;
        while left as f64 > goal
            && let Some(victim) = self.objects.victim(now, &self.segments, Reach::Unprotected, None, &mut steps)
        {
            let object = self.objects.object(victim);
            let freed = object.size.next_multiple_of(GRANULE) * object.places.as_slice().len() as u64;
            left = left.saturating_sub(freed);
            self.evict(now, victim, fx);
        }
    }

    /// Ends protection and soft pins whose time has come, of so many objects. True when there may be more.
    fn lapse(&mut self, now: Time) -> bool {
        let lapsed = self.objects.lapse_protection(now, LAPSE_MOST);
        let lapsed_soft = self.objects.lapse_soft_pins(now, LAPSE_MOST);
        self.room_changed |= lapsed + lapsed_soft > 0;
        lapsed.max(lapsed_soft) == LAPSE_MOST
    }

    /// A step of what need not be done at once: what has lapsed, and, over at most `budget` slots, what lay on segments that
    /// are Gone. True when there is more to do. Those that wait for room learn of it at the next operation.
    pub fn background(&mut self, now: Time, budget: usize, fx: &mut Effects) -> bool {
        let lapses = self.lapse(now);
        self.purge(now, budget, fx) || lapses
    }

    /// Whether there may be something left that lay on segments that are Gone.
    pub fn is_purging(&self) -> bool {
        self.purge.is_some()
    }

    fn purge(&mut self, now: Time, budget: usize, fx: &mut Effects) -> bool {
        let Some(next) = self.purge else { return false };
        let end = self.objects.bound().min(next.saturating_add(budget as u32));
        for slot in next..end {
            let Some(object) = self.objects.get(slot) else { continue };
            let gone = object.places.as_slice().iter().map(|place| place.segment);
            let gone: SmallVec<[SegmentNo; 2]> = gone.filter(|segment| self.segments.is_gone(*segment)).collect();
            if !gone.is_empty() {
                let dropped = self.drop_places(now, slot, |place| gone.contains(&place.segment));
                dropped.expect("nothing on a Gone segment is given back");
            }
        }
        self.purge =
            if end < self.objects.bound() { Some(end) } else { std::mem::take(&mut self.purge_again).then_some(0) };
        self.settle(now, fx);
        self.purge.is_some()
    }
}
