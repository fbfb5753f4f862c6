//! What owners have asked about epochs, until this store may answer.
//!
//! An owner asks each store that maps its memory to obey a reign: the store is to write nothing older, and its master
//! is to know all pins of it. The answer is due once this store's own master has shown that reign.

use mooncake_mutant::mutant;
use mooncake_segment::Reign;

/// What an owner asks.
pub trait Question {
    /// About which reign.
    fn reign(&self) -> Reign;
    /// Nothing is mapped there any more: the owner waits for no answer.
    fn is_moot(&self) -> bool;
    /// The other one asks the same of the same.
    fn repeats(&self, other: &Self) -> bool;
    /// The answer to this one says all that the other one's would.
    fn supersedes(&self, other: &Self) -> bool;
}

/// The questions of a store, and the reign that its own master has shown.
#[derive(Debug)]
pub struct Questions<Q> {
    reign: Reign,
    asked: Vec<Q>,
}

impl<Q: Question> Questions<Q> {
    /// Of a store whose master is in this reign. A session begins without pins: its master knows all of them.
    pub fn new(reign: Reign) -> Self {
        Self { reign, asked: Vec::new() }
    }

    /// What this store's own master has shown.
    pub fn reign(&self) -> Reign {
        self.reign
    }

    /// An owner asks. True: the master has to say in which reign it is.
    pub fn ask(&mut self, question: Q) -> bool {
        self.asked.retain(|other| !other.is_moot());
        // An owner asks again after each look that its master takes at it; views may keep the answer for long.
        let is_new = !self.asked.iter().any(|other| other.repeats(&question));
        if is_new {
            self.asked.push(question);
        }
        is_new
    }

    /// This store's master is in this reign. True if it is of a higher epoch than the last one: nothing older is to be
    /// written from now on.
    pub fn obey(&mut self, reign: Reign) -> bool {
        let is_higher = reign.epoch > self.reign.epoch;
        if reign.epoch >= self.reign.epoch {
            self.reign = reign;
        }
        is_higher
    }

    /// The questions that a store may answer whose master is in this reign and knows all pins of it. Those about an
    /// earlier reign of this master are not answered: their owners are asked for this one by the same master.
    pub fn ready(&mut self, reign: Reign) -> Vec<Q> {
        let asked = std::mem::take(&mut self.asked).into_iter().filter(|asked| !asked.is_moot());
        let (ready, mut rest): (Vec<_>, Vec<_>) =
            asked.partition(|asked| reign.knows_what_is_known_in(asked.reign()) || mutant!(AnyReignIsObeyed));
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

    const A2: Reign = Reign { epoch: 2, id: 7 };
    const B2: Reign = Reign { epoch: 2, id: 8 };
    const A3: Reign = Reign { epoch: 3, id: 9 };

    /// Asked at a place, which may be unmapped.
    #[derive(Debug, Clone)]
    struct Asked(u8, Reign, Rc<Cell<bool>>);

    impl Question for Asked {
        fn reign(&self) -> Reign {
            self.1
        }

        fn is_moot(&self) -> bool {
            self.2.get()
        }

        fn repeats(&self, other: &Self) -> bool {
            (self.0, self.1) == (other.0, other.1)
        }

        fn supersedes(&self, other: &Self) -> bool {
            self.0 == other.0 && self.1.epoch > other.1.epoch
        }
    }

    fn asked(place: u8, reign: Reign) -> Asked {
        Asked(place, reign, Rc::default())
    }

    fn questions() -> Questions<Asked> {
        Questions::new(Reign::numbered(1))
    }

    fn places(ready: Vec<Asked>) -> Vec<(u8, Reign)> {
        ready.into_iter().map(|Asked(place, reign, _)| (place, reign)).collect()
    }

    #[test]
    fn a_question_is_kept_until_the_stores_own_master_is_in_that_very_reign() {
        let mut questions = questions();
        assert!(questions.ask(asked(1, A2)) && questions.ask(asked(2, A2)));
        assert!(!questions.ask(asked(1, A2)), "it waits already");
        for other in [Reign::numbered(1), B2, A3] {
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
        for (reign, is_higher, shown) in [
            (A2, true, A2),
            (B2, false, B2),
            (A3, true, A3),
            (A2, false, A3),
            (Reign::numbered(3), false, Reign::numbered(3)),
        ] {
            assert_eq!((questions.obey(reign), questions.reign()), (is_higher, shown), "{reign:?}");
        }
    }

    #[test]
    fn its_mutants_are_noticed() {
        assert!(is_noticed_by(
            Mutant::AnyReignIsObeyed,
            a_question_is_kept_until_the_stores_own_master_is_in_that_very_reign
        ));
    }
}
