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
}

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
}
