//! Requests that a mapper hands to a lender that is awake and looks for them. They go through their
//! [access page](crate::AccessPage), without a system call and without a wake-up.
//!
//! One word is the state. One side alone makes each of its changes:
//!
//! ```text
//!            lender begins to look                    mapper asks
//!   NOBODY ------------------------> LOOKED AT -----------------------> ASKED
//!     ^                               |   ^ ^                             |  |
//!     +-------------------------------+   | +-- lender answers here ------+  | mapper falls asleep
//!            lender looks away            |                                  v
//!                                         +----- lender answers, and ----- ASLEEP
//!                                                wakes the mapper
//! ```
//!
//! A lender that looks away and a mapper that asks exchange the same word: one of them finds that the other was faster.
//! So do a mapper that falls asleep and a lender that answers: no answer is missed, and none comes twice. A page is
//! made with zeros: a lender of an earlier version looks at nothing, and its mappers go to its socket.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::shared::access_page::{AccessPage, AccessPageView};

/// The state. It shares its cache line with the answer alone: the other words are written while this one is looked at.
const STATE: usize = 128;
const ANSWER: usize = 136;

/// How many words were handed over, and they themselves.
const COUNT: usize = 192;
const WORDS: usize = 200;

const NOBODY: u64 = 0;
const LOOKED_AT: u64 = 1;
const ASKED: u64 = 2;
const ASLEEP: u64 = 3;

/// Most words of one request.
const WORDS_MAX: usize = 192;

/// The lender's side.
impl AccessPage {
    /// Looks for requests from now on. By the one thread that serves the mapper, as all that follows.
    pub fn look(&self) {
        // Behind a request that waits it stays.
        exchange(self.word(STATE), NOBODY, LOOKED_AT);
    }

    /// Whether there is a request.
    pub fn is_asked(&self) -> bool {
        matches!(self.word(STATE).load(Ordering::Acquire), ASKED | ASLEEP)
    }

    /// The request, if there is one. Copied: the mapper may change it at any time, and deceives itself by that.
    pub fn asked(&self) -> Option<Vec<u64>> {
        if !self.is_asked() {
            return None;
        }
        let count = self.word(COUNT).load(Ordering::Relaxed).min(WORDS_MAX as u64) as usize;
        Some((0..count).map(|nth| self.word(WORDS + nth * 8).load(Ordering::Relaxed)).collect())
    }

    /// Answers the request, and goes on looking. False: the mapper sleeps, and has to be told by other means.
    #[must_use]
    pub fn answer(&self, answer: u64) -> bool {
        self.word(ANSWER).store(answer, Ordering::Relaxed);
        self.word(STATE).swap(LOOKED_AT, Ordering::AcqRel) != ASLEEP
    }

    /// Looks no more. False: there is a request.
    #[must_use]
    pub fn look_away(&self) -> bool {
        exchange(self.word(STATE), LOOKED_AT, NOBODY);
        !self.is_asked()
    }
}

/// The mapper's side.
impl AccessPageView {
    /// Whether the lender looks.
    pub fn is_looked_at(&self) -> bool {
        self.word(STATE).load(Ordering::Relaxed) == LOOKED_AT
    }

    /// Hands a request over. False: the lender does not look, or it is too long. Nothing else may be asked before the
    /// answer.
    #[must_use]
    pub fn ask(&mut self, words: impl ExactSizeIterator<Item = u64>) -> bool {
        if words.len() > WORDS_MAX || !self.is_looked_at() {
            return false;
        }
        self.word(COUNT).store(words.len() as u64, Ordering::Relaxed);
        for (nth, word) in words.enumerate() {
            self.word(WORDS + nth * 8).store(word, Ordering::Relaxed);
        }
        exchange(self.word(STATE), LOOKED_AT, ASKED)
    }

    /// The answer, if it is there. What the lender did before it is seen, too.
    pub fn answer(&self) -> Option<u64> {
        let waits = self.word(STATE).load(Ordering::Acquire) == ASKED;
        (!waits).then(|| self.word(ANSWER).load(Ordering::Relaxed))
    }

    /// Asks to be told by other means. False: the answer is there, and the lender does not tell.
    #[must_use]
    pub fn fall_asleep(&mut self) -> bool {
        exchange(self.word(STATE), ASKED, ASLEEP)
    }
}

/// Whether this side was the faster one.
fn exchange(state: &AtomicU64, from: u64, to: u64) -> bool {
    state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn pair() -> (AccessPage, AccessPageView) {
        let (page, fd) = AccessPage::new().unwrap();
        let view = AccessPageView::map(&fd).unwrap();
        (page, view)
    }

    #[test]
    fn a_request_is_taken_by_a_lender_that_looks_and_by_no_other() {
        let (page, mut view) = pair();
        assert!(!view.is_looked_at() && !view.ask([1].into_iter()), "a lender of an earlier version");
        page.look();
        assert!(view.is_looked_at() && page.asked().is_none());
        assert!(view.ask([7, 8, 9].into_iter()) && view.answer().is_none());
        assert!(!page.look_away(), "there is a request");
        assert_eq!(page.asked(), Some(vec![7, 8, 9]));
        assert!(page.answer(5) && view.answer() == Some(5));
        assert!(!view.fall_asleep(), "the answer is there");
        assert!(view.ask([6].into_iter()) && view.fall_asleep());
        page.look();
        assert_eq!(page.asked(), Some(vec![6]));
        assert!(!page.answer(4), "the visitor is to be woken");
        assert!(page.look_away() && !view.ask([1].into_iter()));
        assert_eq!(page.asked(), None);
    }

    #[test]
    fn what_a_visitor_writes_there_that_is_no_request_is_none() {
        let (page, mut view) = pair();
        page.look();
        assert!(!view.ask(std::iter::repeat_n(1, WORDS_MAX + 1)));
        assert!(view.ask(std::iter::repeat_n(1, WORDS_MAX)));
        view.word(COUNT).store(u64::MAX, Ordering::Relaxed);
        assert_eq!(page.asked().unwrap().len(), WORDS_MAX);
        view.word(STATE).store(77, Ordering::Relaxed);
        assert_eq!(page.asked(), None);
        page.look();
        assert!(page.look_away());
        // Nor does it keep the lender from closing.
        page.close();
        assert!(!view.is_open() && !view.ask([1].into_iter()));
    }

    #[test]
    fn each_request_has_one_answer_whoever_is_faster() {
        let (page, mut view) = pair();
        // What goes by the socket: requests that nobody looked for, and answers to whoever sleeps.
        let (to_lender, by_socket) = channel::<u64>();
        let (to_visitor, woken) = channel::<u64>();
        let requests = 20_000;
        let lender = std::thread::spawn(move || {
            let mut here = 0_u64;
            for round in 0.. {
                match by_socket.try_recv() {
                    Ok(asked) => to_visitor.send(asked + 1).unwrap(),
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => return here,
                    Err(std::sync::mpsc::TryRecvError::Empty) => {}
                }
                page.look();
                for _ in 0..round % 7 {
                    if let Some(asked) = page.asked() {
                        here += 1;
                        if !page.answer(asked[0] + 1) {
                            to_visitor.send(asked[0] + 1).unwrap();
                        }
                    }
                }
                if !page.look_away() {
                    let asked = page.asked().unwrap();
                    if !page.answer(asked[0] + 1) {
                        to_visitor.send(asked[0] + 1).unwrap();
                    }
                }
                std::thread::yield_now();
            }
            here
        });
        for number in 0..requests {
            let answer = if view.ask([number].into_iter()) {
                let looks = number % 5;
                match (0..looks).find_map(|_| view.answer()) {
                    Some(answer) => answer,
                    None if view.fall_asleep() => woken.recv().unwrap(),
                    None => view.answer().unwrap(),
                }
            } else {
                to_lender.send(number).unwrap();
                woken.recv().unwrap()
            };
            assert_eq!(answer, number + 1);
            assert!(woken.try_recv().is_err(), "a second answer");
        }
        drop(to_lender);
        lender.join().unwrap();
    }
}
