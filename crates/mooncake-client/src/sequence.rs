//! Numbers of a session's mutations, and which of them have been answered.

use std::collections::BTreeSet;

use parking_lot::Mutex;

#[derive(Debug, Default)]
pub(crate) struct Sequences {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    unanswered: BTreeSet<u64>,
    /// Given up on the way, and the master has not been told so.
    abandoned: BTreeSet<u64>,
}

/// Most abandoned mutations that the master is told of; beyond them those of the longest ago may come late.
const MAX_ABANDONED: usize = 1_024;

impl Sequences {
    /// A new number, unanswered until [`Sequences::answered`].
    pub fn begin(&self) -> u64 {
        let mut state = self.state.lock();
        state.last += 1;
        let sequence = state.last;
        state.unanswered.insert(sequence);
        sequence
    }

    /// Its reply is here, or nobody will ask for it again.
    pub fn answered(&self, sequence: u64) {
        self.state.lock().unanswered.remove(&sequence);
    }

    /// Nobody waits for it any more, and it may still be on its way, on a connection that later calls do not use. The
    /// master is told before it does anything else: it was carried out by then, or never is.
    pub fn abandoned(&self, sequence: u64) {
        let mut state = self.state.lock();
        state.unanswered.remove(&sequence);
        state.abandoned.insert(sequence);
        while state.abandoned.len() > MAX_ABANDONED {
            state.abandoned.pop_first();
        }
    }

    /// What the next request has to tell.
    pub fn to_abandon(&self) -> Vec<u64> {
        self.state.lock().abandoned.iter().copied().collect()
    }

    /// The master has answered a request that told this.
    pub fn told_abandoned(&self, told: &[u64]) {
        if !told.is_empty() {
            let mut state = self.state.lock();
            state.abandoned.retain(|sequence| !told.contains(sequence));
        }
    }

    /// Every lower number has been answered.
    pub fn answered_below(&self) -> u64 {
        let state = self.state.lock();
        state.unanswered.first().copied().unwrap_or(state.last + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answered_below_is_the_lowest_unanswered() {
        let sequences = Sequences::default();
        assert_eq!(sequences.answered_below(), 1);
        let numbers: Vec<u64> = (0..3).map(|_| sequences.begin()).collect();
        assert_eq!(numbers, [1, 2, 3]);
        sequences.answered(2);
        assert_eq!(sequences.answered_below(), 1);
        sequences.answered(1);
        assert_eq!(sequences.answered_below(), 3);
        sequences.answered(3);
        assert_eq!(sequences.answered_below(), 4);
    }

    #[test]
    fn what_was_abandoned_is_told_until_the_master_has_heard_it() {
        let sequences = Sequences::default();
        let (first, second) = (sequences.begin(), sequences.begin());
        sequences.abandoned(second);
        assert_eq!(sequences.answered_below(), first);
        assert_eq!(sequences.to_abandon(), [second]);
        sequences.abandoned(first);
        sequences.told_abandoned(&[second]);
        assert_eq!(sequences.to_abandon(), [first]);
        for _ in 0..2 * MAX_ABANDONED {
            sequences.abandoned(sequences.begin());
        }
        assert_eq!(sequences.to_abandon().len(), MAX_ABANDONED);
    }
}
