//! Removals of very many objects that are under way. Each takes what was there when it began, and spares what was
//! committed since.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use mooncake_ids::Rid;

/// Those that are not through, and which puts that were unfinished when one began have been committed since.
#[derive(Default)]
pub(crate) struct RemovalsUnderWay {
    /// How many have begun.
    begun: u64,
    /// Each goes on as long as what its driver holds.
    alive: Vec<Weak<()>>,
    /// Rids from here on are newer than the last one that began.
    before: Option<Rid>,
    /// Of lower rids, how many removals had begun when each was committed. All replicas, since any may fail or go.
    committed: BTreeMap<Rid, u64>,
}

/// One of them.
#[derive(Debug, Clone)]
pub(crate) struct UnderWay {
    number: u64,
    before: Rid,
    _alive: Arc<()>,
}

impl RemovalsUnderWay {
    /// Another one begins; rids from this one on are given out later.
    pub fn begin(&mut self, before: Rid) -> UnderWay {
        let alive = Arc::new(());
        self.forget_ended();
        self.alive.push(Arc::downgrade(&alive));
        self.begun += 1;
        self.before = Some(before);
        UnderWay { number: self.begun, before, _alive: alive }
    }

    /// A replica's put was committed.
    #[inline]
    pub fn committed(&mut self, rid: Rid) {
        if !self.alive.is_empty() && self.before.is_some_and(|before| rid < before) {
            self.committed.insert(rid, self.begun);
        }
    }

    /// Whether an object was there when a removal began.
    pub fn was_there(&self, removal: &UnderWay, rid: Rid) -> bool {
        let is_later = self.committed.get(&rid).is_some_and(|begun| *begun >= removal.number);
        rid < removal.before && !is_later
    }

    /// Forgets one rid of which no removal needs to know any more, if there is one.
    pub fn forget(&mut self) -> bool {
        self.forget_ended();
        self.alive.is_empty() && self.committed.pop_first().is_some()
    }

    fn forget_ended(&mut self) {
        self.alive.retain(|alive| alive.strong_count() > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_removal_takes_what_was_committed_before_it_began() {
        let mut removals = RemovalsUnderWay::default();
        removals.committed(Rid(3));
        let first = removals.begin(Rid(10));
        removals.committed(Rid(5));
        let second = removals.begin(Rid(20));
        removals.committed(Rid(6));
        removals.committed(Rid(12));
        removals.committed(Rid(30));
        let taken = |removal: &UnderWay| -> Vec<u64> {
            [3, 5, 6, 12, 30].into_iter().filter(|rid| removals.was_there(removal, Rid(*rid))).collect()
        };
        assert_eq!(taken(&first), [3]);
        assert_eq!(taken(&second), [3, 5]);
    }

    #[test]
    fn nothing_is_noted_while_there_is_none_and_all_is_forgotten_behind_the_last() {
        let mut removals = RemovalsUnderWay::default();
        let (first, second) = (removals.begin(Rid(10)), removals.begin(Rid(10)));
        removals.committed(Rid(5));
        drop(first);
        assert!(!removals.forget(), "the other one goes on");
        drop(second);
        assert!(removals.forget() && !removals.forget());
        removals.committed(Rid(6));
        assert!(removals.committed.is_empty());
        let third = removals.begin(Rid(10));
        assert!(removals.was_there(&third, Rid(5)));
    }
}
