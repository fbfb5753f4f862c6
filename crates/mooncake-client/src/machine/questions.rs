//! What owners have asked about epochs, until this store may answer.
//!
//! An owner asks each store that maps its memory to obey an epoch: the store is to write nothing older, and its master
//! is to know all pins of it. The answer is due once this store's own master has shown that epoch.

use mooncake_mutant::mutant;
use mooncake_segment::Epoch;

/// What an owner asks.
pub trait Question {
    /// About which epoch.
    fn epoch(&self) -> Epoch;
    /// Nothing is mapped there any more: the owner waits for no answer.
    fn is_moot(&self) -> bool;
    /// The other one asks the same of the same.
    fn repeats(&self, other: &Self) -> bool;
    /// The answer to this one says all that the other one's would.
    fn supersedes(&self, other: &Self) -> bool;
}

/// The questions of a store, and the epoch that its own master has shown.
#[derive(Debug)]
pub struct Questions<Q> {
    epoch: Epoch,
    asked: Vec<Q>,
}

impl<Q: Question> Questions<Q> {
    /// Of a store whose master is in this epoch. A session begins without pins: its master knows all of them.
    pub fn new(epoch: Epoch) -> Self {
        Self { epoch, asked: Vec::new() }
    }

    /// What this store's own master has shown.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// An owner asks. True: the master has to say in which epoch it is.
    pub fn ask(&mut self, question: Q) -> bool {
        self.asked.retain(|other| !other.is_moot());
        // An owner asks again after each look that its master takes at it; views may keep the answer for long.
        let is_new = !self.asked.iter().any(|other| other.repeats(&question));
        if is_new {
            self.asked.push(question);
        }
        is_new
    }

    /// This store's master is in this epoch. True if it is of a higher number than the last one: nothing older is to be
    /// written from now on.
    pub fn obey(&mut self, epoch: Epoch) -> bool {
        let is_higher = epoch.number > self.epoch.number;
        if epoch.number >= self.epoch.number {
            self.epoch = epoch;
        }
        is_higher
    }

    /// The questions that a store may answer whose master is in this epoch and knows all pins of it. Those about an
    /// earlier epoch of this master are not answered: their owners are asked for this one by the same master.
    pub fn ready(&mut self, epoch: Epoch) -> Vec<Q> {
        let asked = std::mem::take(&mut self.asked).into_iter().filter(|asked| !asked.is_moot());
        let (ready, mut rest): (Vec<_>, Vec<_>) =
            asked.partition(|asked| epoch.knows_what_is_known_in(asked.epoch()) || mutant!(AnyEpochIsObeyed));
        rest.retain(|asked| !ready.iter().any(|other| other.supersedes(asked)));
        self.asked = rest;
        ready
    }

    /// The questions that wait.
    pub fn waiting(&self) -> &[Q] {
        &self.asked
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use mooncake_mutant::{Mutant, is_noticed_by};

    use super::*;

    const A2: Epoch = Epoch { number: 2, id: 7 };
    const B2: Epoch = Epoch { number: 2, id: 8 };
    const A3: Epoch = Epoch { number: 3, id: 9 };

    /// Asked at a place, which may be unmapped.
    #[derive(Debug, Clone)]
    struct Asked(u8, Epoch, Rc<Cell<bool>>);

    impl Question for Asked {
        fn epoch(&self) -> Epoch {
            self.1
        }

        fn is_moot(&self) -> bool {
            self.2.get()
        }

        fn repeats(&self, other: &Self) -> bool {
            (self.0, self.1) == (other.0, other.1)
        }

        fn supersedes(&self, other: &Self) -> bool {
            self.0 == other.0 && self.1.number > other.1.number
        }
    }

    fn asked(place: u8, epoch: Epoch) -> Asked {
        Asked(place, epoch, Rc::default())
    }

    fn questions() -> Questions<Asked> {
        Questions::new(Epoch::numbered(1))
    }

    fn places(ready: Vec<Asked>) -> Vec<(u8, Epoch)> {
        ready.into_iter().map(|Asked(place, epoch, _)| (place, epoch)).collect()
    }

    #[test]
    fn a_question_is_kept_until_the_stores_own_master_is_in_that_very_epoch() {
        let mut questions = questions();
        assert!(questions.ask(asked(1, A2)) && questions.ask(asked(2, A2)));
        assert!(!questions.ask(asked(1, A2)), "it waits already");
        for other in [Epoch::numbered(1), B2, A3] {
            assert_eq!(places(questions.ready(other)), [], "{other:?}");
        }
        assert_eq!(places(questions.ready(A2)), [(1, A2), (2, A2)]);
        assert_eq!(places(questions.ready(A2)), [], "once");
        assert!(questions.ask(asked(1, A2)), "the owner may ask again");
    }

    #[test]
    fn an_answer_settles_what_was_asked_about_before_at_the_same_place() {
        let mut questions = questions();
        assert!([asked(1, A2), asked(2, A2), asked(1, A3)].into_iter().all(|asked| questions.ask(asked)));
        assert_eq!(places(questions.ready(A3)), [(1, A3)]);
        assert_eq!(places(questions.waiting().to_vec()), [(2, A2)]);
    }

    #[test]
    fn nobody_answers_where_nothing_is_mapped_any_more() {
        let mut questions = questions();
        let (one, other) = (asked(1, A2), asked(2, A2));
        let unmapped = [one.2.clone(), other.2.clone()];
        questions.ask(one);
        unmapped[0].set(true);
        questions.ask(other);
        assert_eq!(questions.waiting().len(), 1);
        unmapped[1].set(true);
        assert_eq!(places(questions.ready(A2)), []);
    }

    #[test]
    fn only_a_higher_epoch_ends_older_writes_and_no_lower_one_is_shown_again() {
        let mut questions = questions();
        for (epoch, is_higher, shown) in [
            (A2, true, A2),
            (B2, false, B2),
            (A3, true, A3),
            (A2, false, A3),
            (Epoch::numbered(3), false, Epoch::numbered(3)),
        ] {
            assert_eq!((questions.obey(epoch), questions.epoch()), (is_higher, shown), "{epoch:?}");
        }
    }

    #[test]
    fn its_mutants_are_noticed() {
        assert!(is_noticed_by(
            Mutant::AnyEpochIsObeyed,
            a_question_is_kept_until_the_stores_own_master_is_in_that_very_epoch
        ));
    }
}
