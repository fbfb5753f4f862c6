//! Numbers of a session's mutations, and which of them have been answered.

use std::collections::BTreeSet;

use mooncake_mutant::mutant;
use mooncake_wire::message::Request;

/// What a store knows of the mutations of its session.
#[derive(Debug, Default)]
pub struct Sequences {
    last: u64,
    unanswered: BTreeSet<u64>,
    /// Given up on the way, and the master has not been told so.
    abandoned: BTreeSet<u64>,
}

/// Most abandoned mutations that the master is told of. Beyond them the oldest are forgotten, and may come late.
const ABANDONED_MAX: usize = 1_024;

/// From so many numbers on behind the lowest unanswered one the master is told which are answered nevertheless: it
/// remembers the replies to 1,024 mutations.
const LAG: u64 = 128;

/// Most unanswered ones that are named. More threads than that may well wait at once, for a connection.
pub const UNSETTLED_MAX: usize = 4_096;

impl Sequences {
    /// A new number, unanswered until [`Sequences::answered`].
    pub fn begin(&mut self) -> u64 {
        self.last += 1;
        let sequence = self.last;
        self.unanswered.insert(sequence);
        sequence
    }

    /// Its reply is here, or the client will not ask for it again.
    pub fn answered(&mut self, sequence: u64) {
        self.unanswered.remove(&sequence);
    }

    /// No caller waits for it any more, and it may still be on its way, on a connection that later calls do not use.
    /// The next request names it: the master has carried it out by then, or never does (docs/safety.md, rule 6).
    pub fn abandoned(&mut self, sequence: u64) {
        self.unanswered.remove(&sequence);
        self.abandoned.insert(sequence);
        while self.abandoned.len() > ABANDONED_MAX {
            self.abandoned.pop_first();
        }
    }

    /// Lets a request tell which mutations are answered and which no caller waits for.
    pub fn tell(&self, request: &mut Request) {
        // A query too: nothing that its caller gave up is to be carried out behind what the query has seen.
        if !mutant!(AbandonedMutationsAreNotTold) {
            request.abandoned = self.abandoned.iter().copied().collect();
        }
        // It may be a repeat, which says what is so now.
        (request.settled_below, request.unsettled) = (0, Vec::new());
        if request.sequence != 0 {
            // Not above its own number: the master forgets what is answered, and a repeat needs its first reply
            // (docs/safety.md, rule 6).
            request.answered_below = self.answered_below().min(request.sequence);
            // One mutation that takes long holds that mark back, and the master refuses more than it can remember.
            if self.last + 1 - request.answered_below > LAG {
                (request.settled_below, request.unsettled) = self.settled();
            }
        }
    }

    /// A number, and the unanswered mutations below it; all others below it are answered or abandoned. 0 where the
    /// unanswered ones are too many to say.
    pub fn settled(&self) -> (u64, Vec<u64>) {
        match self.unanswered.len() > UNSETTLED_MAX {
            true => (0, Vec::new()),
            false => (self.last + 1, self.unanswered.iter().copied().collect()),
        }
    }

    /// The master has answered a request that told this.
    pub fn told_abandoned(&mut self, told: &[u64]) {
        if !told.is_empty() {
            self.abandoned.retain(|sequence| !told.contains(sequence));
        }
    }

    /// Every lower number has been answered.
    fn answered_below(&self) -> u64 {
        if mutant!(UnansweredCountAsAnswered) {
            return self.last + 1;
        }
        self.unanswered.first().copied().unwrap_or(self.last + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(sequences: &Sequences, sequence: u64) -> Request {
        let mut request = Request { sequence, ..Request::default() };
        sequences.tell(&mut request);
        request
    }

    #[test]
    fn answered_below_is_the_lowest_unanswered_and_no_more_than_ones_own() {
        let mut sequences = Sequences::default();
        assert_eq!(told(&sequences, u64::MAX).answered_below, 1);
        let numbers: Vec<u64> = (0..3).map(|_| sequences.begin()).collect();
        assert_eq!(numbers, [1, 2, 3]);
        sequences.answered(2);
        assert_eq!(told(&sequences, u64::MAX).answered_below, 1);
        sequences.answered(1);
        assert_eq!(told(&sequences, u64::MAX).answered_below, 3);
        sequences.answered(3);
        assert_eq!((told(&sequences, u64::MAX).answered_below, told(&sequences, 2).answered_below), (4, 2));
        assert_eq!(told(&sequences, 0), Request::default(), "a query says nothing of it");
    }

    #[test]
    fn what_is_answered_behind_one_that_takes_long_is_told_once_that_is_much() {
        let mut sequences = Sequences::default();
        let long = sequences.begin();
        for _ in 0..LAG - 1 {
            let sequence = sequences.begin();
            sequences.answered(sequence);
        }
        assert_eq!(told(&sequences, LAG).settled_below, 0);
        let own = sequences.begin();
        let request = told(&sequences, own);
        assert_eq!(
            (request.answered_below, request.settled_below, request.unsettled),
            (long, own + 1, vec![long, own])
        );
        assert_eq!(told(&sequences, 0), Request::default(), "a query says nothing of it");
        sequences.answered(long);
        assert_eq!(told(&sequences, own).settled_below, 0);
        // Nor does the same request when it is sent once more.
        let mut request = Request { settled_below: 9, unsettled: vec![1], ..told(&sequences, own) };
        sequences.tell(&mut request);
        assert_eq!((request.settled_below, request.unsettled), (0, vec![]));
    }

    #[test]
    fn what_was_abandoned_is_told_until_the_master_has_heard_it() {
        let mut sequences = Sequences::default();
        let (first, second) = (sequences.begin(), sequences.begin());
        sequences.abandoned(second);
        assert_eq!(told(&sequences, u64::MAX).answered_below, first);
        assert_eq!(told(&sequences, 0).abandoned, [second]);
        sequences.abandoned(first);
        sequences.told_abandoned(&[second]);
        assert_eq!(told(&sequences, 0).abandoned, [first]);
        for _ in 0..2 * ABANDONED_MAX {
            let sequence = sequences.begin();
            sequences.abandoned(sequence);
        }
        assert_eq!(told(&sequences, 0).abandoned.len(), ABANDONED_MAX);
    }
}
