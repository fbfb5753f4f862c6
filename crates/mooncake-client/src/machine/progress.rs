//! Puts under way: whose reservations the heartbeat renews.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mooncake_ids::Rid;
use mooncake_mutant::mutant;

/// Younger puts need no renewal: their deadline is 30 s away.
const YOUNG: Duration = Duration::from_secs(5);

/// Longest that reservations are renewed that their caller holds.
const HELD_MAX: Duration = Duration::from_secs(600);

/// Most replicas of such reservations that one beat renews: the master does it in one step. With as many as put
/// sessions may hold, each is renewed every ten seconds or so.
const HELD_IN_A_BEAT: usize = 2_048;

/// The reservations of one put call.
#[derive(Debug)]
pub struct PutProgress {
    rids: Vec<Rid>,
    since: Duration,
    /// Writes of it under way; each fails by itself when no byte moves.
    writing: AtomicU32,
    /// A write has ended since the last look.
    moved: AtomicBool,
}

impl PutProgress {
    /// One of its writes begins.
    pub fn begin_write(&self) {
        self.writing.fetch_add(1, Ordering::Relaxed);
    }

    /// One of its writes has ended.
    pub fn end_write(&self) {
        self.moved.store(true, Ordering::Relaxed);
        self.writing.fetch_sub(1, Ordering::Relaxed);
    }

    fn has_moved(&self) -> bool {
        self.moved.swap(false, Ordering::Relaxed) || self.writing.load(Ordering::Relaxed) > 0
    }
}

/// Reservations that their caller holds as long as this lives: renewed whether or not a byte of them moves.
#[derive(Debug)]
pub struct HeldReservations {
    rids: Vec<Rid>,
    until: Duration,
}

impl HeldReservations {
    /// They are renewed no more.
    pub(crate) fn has_lapsed(&self, now: Duration) -> bool {
        now >= self.until
    }
}

/// All puts of a store that are under way.
#[derive(Debug, Default)]
pub struct Progress {
    /// A call that a panic has ended has not said so.
    puts: Vec<Weak<PutProgress>>,
    /// Each with when it is to be renewed next, the first first.
    held: VecDeque<(Duration, Weak<HeldReservations>)>,
}

impl Progress {
    /// A call begins to write what it has been given.
    pub fn begin(&mut self, now: Duration, rids: Vec<Rid>) -> Arc<PutProgress> {
        let (writing, moved) = (AtomicU32::new(0), AtomicBool::new(false));
        let put = Arc::new(PutProgress { rids, since: now, writing, moved });
        self.puts.push(Arc::downgrade(&put));
        put
    }

    /// It writes no more.
    pub fn end(&mut self, put: &Arc<PutProgress>) {
        if let Some(at) = self.puts.iter().position(|other| Weak::as_ptr(other) == Arc::as_ptr(put)) {
            self.puts.swap_remove(at);
        }
    }

    /// A caller holds these from now on.
    pub fn hold(&mut self, now: Duration, rids: Vec<Rid>) -> Arc<HeldReservations> {
        let held = Arc::new(HeldReservations { rids, until: now + HELD_MAX });
        self.held.push_back((now + YOUNG, Arc::downgrade(&held)));
        held
    }

    /// Another session began: it has no reservations yet, and its first ones may have the same numbers.
    pub fn start_over(&mut self) {
        self.puts.clear();
        self.held.clear();
    }

    /// Reservations whose puts have got on since the last call, and those of what is held that are due.
    pub fn moved(&mut self, now: Duration) -> Vec<Rid> {
        if mutant!(MovedPutsAreNotRenewed) {
            return Vec::new();
        }
        self.puts.retain(|put| put.strong_count() > 0);
        let puts = self.puts.iter().filter_map(Weak::upgrade);
        let old = puts.filter(|put| now.saturating_sub(put.since) > YOUNG && put.has_moved());
        let mut renewed: Vec<Rid> = old.flat_map(|put| put.rids.clone()).collect();
        self.renew_held(now, &mut renewed);
        renewed
    }

    fn renew_held(&mut self, now: Duration, renewed: &mut Vec<Rid>) {
        let most = renewed.len() + HELD_IN_A_BEAT;
        while let Some((_, next)) = self.held.pop_front_if(|(due, _)| *due <= now) {
            let Some(held) = next.upgrade().filter(|held| now < held.until || mutant!(HeldPutsAreRenewedForEver))
            else {
                continue;
            };
            renewed.extend(&held.rids);
            self.held.push_back((now + YOUNG, next));
            if renewed.len() >= most {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mooncake_mutant::{Mutant, is_noticed_by};

    use super::*;

    const LATER: Duration = Duration::from_secs(6);

    #[test]
    fn a_put_is_renewed_while_its_bytes_move_once_it_is_old_enough() {
        let mut progress = Progress::default();
        let put = progress.begin(Duration::ZERO, vec![Rid(2), Rid(4)]);
        put.begin_write();
        assert_eq!(progress.moved(YOUNG), [Rid(0); 0], "its deadline is far away");
        assert_eq!(progress.moved(LATER), [Rid(2), Rid(4)]);
        put.end_write();
        assert_eq!(progress.moved(LATER), [Rid(2), Rid(4)], "it has moved since");
        assert_eq!(progress.moved(LATER), [Rid(0); 0], "and not any more");
    }

    #[test]
    fn neither_a_put_that_has_ended_nor_one_of_an_earlier_session_is_renewed() {
        let mut progress = Progress::default();
        let (former, ended) =
            (progress.begin(Duration::ZERO, vec![Rid(4)]), progress.begin(Duration::ZERO, vec![Rid(2)]));
        [&former, &ended].into_iter().for_each(|put| put.begin_write());
        progress.end(&ended);
        assert_eq!(progress.moved(LATER), [Rid(4)]);
        progress.start_over();
        assert_eq!(progress.moved(LATER), [Rid(0); 0]);
        progress.end(&former);
    }

    #[test]
    fn a_put_that_a_panic_has_ended_is_not_renewed() {
        let mut progress = Progress::default();
        let put = progress.begin(Duration::ZERO, vec![Rid(2)]);
        put.begin_write();
        drop(put);
        assert_eq!(progress.moved(LATER), [Rid(0); 0]);
        assert!(progress.puts.is_empty());
    }

    #[test]
    fn what_is_held_is_renewed_every_few_seconds_though_nothing_moves_and_for_ten_minutes() {
        let mut progress = Progress::default();
        let held = progress.hold(Duration::ZERO, vec![Rid(2), Rid(4)]);
        assert_eq!(progress.moved(Duration::from_secs(4)), [Rid(0); 0], "its deadline is far away");
        let mut last = Duration::ZERO;
        for beat in 0..3_000 {
            let now = Duration::from_millis(500 * beat);
            if !progress.moved(now).is_empty() {
                assert!(now - last < Duration::from_secs(10), "{now:?}, after {last:?}");
                last = now;
            }
        }
        assert!((595..600).contains(&last.as_secs()), "{last:?}");
        drop(held);
    }

    #[test]
    fn what_is_held_no_more_is_not_renewed_and_many_are_in_turns() {
        let mut progress = Progress::default();
        let held: Vec<_> = (0..5_000).map(|rid| progress.hold(Duration::ZERO, vec![Rid(rid)])).collect();
        let ended = progress.hold(Duration::ZERO, vec![Rid(9_999)]);
        drop(ended);
        let mut renewed: Vec<Rid> = Vec::new();
        for beat in 0..3 {
            let now = progress.moved(LATER + Duration::from_millis(500 * beat));
            assert!(now.len() <= HELD_IN_A_BEAT);
            renewed.extend(now);
        }
        assert_eq!(renewed, (0..5_000).map(Rid).collect::<Vec<Rid>>());
        drop(held);
        progress.start_over();
        assert_eq!(progress.moved(2 * LATER), [Rid(0); 0]);
    }

    #[test]
    fn its_mutants_are_noticed() {
        assert!(is_noticed_by(
            Mutant::HeldPutsAreRenewedForEver,
            what_is_held_is_renewed_every_few_seconds_though_nothing_moves_and_for_ten_minutes
        ));
        assert!(is_noticed_by(
            Mutant::MovedPutsAreNotRenewed,
            a_put_is_renewed_while_its_bytes_move_once_it_is_old_enough
        ));
    }
}
