//! What callers do of their own accord: they interrupt calls, close stores, and fork. It follows from the seed by
//! numbers of its own, so that a schedule without whims is what it was before there were any.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::dice::Dice;
use crate::world::{TaskId, World};

/// How often each comes in a thousand beats, where it is neither rare nor frequent.
const USUAL: [(Whim, u64); 3] = [(Whim::Close, 12), (Whim::Fork, 10), (Whim::EndInCommit, 4)];

/// Longest times from the beginning of a call until its caller interrupts it, microseconds.
const IMPATIENCE: [u64; 4] = [1, 3_000, 80_000, 1_500_000];

/// What a caller does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whim {
    /// A store is closed.
    Close,
    /// A process forks.
    Fork,
    /// The master is killed in the middle of a commit.
    EndInCommit,
}

/// How much of it there was.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Whimsical {
    /// Stores that were closed.
    pub closed: u64,
    /// Of those: views of theirs that went on.
    pub outlived: u64,
    /// Calls that found out that their callers want to stop.
    pub interrupted: u64,
    /// Processes that forked.
    pub forks: u64,
}

/// A schedule's. Clones are the same ones.
#[derive(Clone, Default)]
pub(crate) struct Whims {
    inner: Option<Rc<Inner>>,
}

struct Inner {
    dice: RefCell<Dice>,
    /// In three thousand beats.
    often: Vec<(Whim, u64)>,
    /// Of a hundred calls so many are interrupted.
    interrupts: u64,
    /// When the callers of calls that are under way interrupt them, and whether those have found out.
    calls: RefCell<BTreeMap<TaskId, (Duration, bool)>>,
    sum: Cell<Whimsical>,
}

/// A call under way. Dropped when it has ended.
pub(crate) struct Calling(Option<(Rc<Inner>, TaskId)>);

impl Whims {
    /// Those of a seed.
    pub fn new(seed: u64) -> Whims {
        let mut dice = Dice::new(!seed);
        let mut of = |choices: [u64; 4]| choices[dice.below(4) as usize];
        let often = USUAL.iter().map(|(whim, usual)| (*whim, usual * of([0, 1, 3, 9]))).collect();
        let interrupts = of([0, 1, 5, 20]);
        let (dice, calls) = (RefCell::new(dice), RefCell::default());
        Whims { inner: Some(Rc::new(Inner { dice, often, interrupts, calls, sum: Cell::default() })) }
    }

    /// See [`Dice::below`].
    pub fn below(&self, bound: u64) -> u64 {
        self.inner.as_ref().map_or(0, |inner| inner.dice.borrow_mut().below(bound))
    }

    /// One of these.
    pub fn of<T: Copy>(&self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// What a caller does in the next beat.
    pub fn next(&self) -> Option<Whim> {
        let inner = self.inner.as_ref()?;
        let mut drawn = self.below(3_000);
        let hit = inner.often.iter().find(|(_, often)| {
            let is_it = drawn < *often;
            drawn = drawn.saturating_sub(*often);
            is_it
        });
        hit.map(|(whim, _)| *whim)
    }

    // ------------------------------------------------------------- interrupts

    /// A call begins, whose caller may interrupt it. One that it makes in turn is part of it.
    pub fn begin_call(&self, world: &World) -> Calling {
        let Some(inner) = self.inner.as_ref().filter(|_| !world.is_calm()) else { return Calling(None) };
        if self.interrupt_at(world).is_some() || self.below(100) >= inner.interrupts {
            return Calling(None);
        }
        let at = world.now() + Duration::from_micros(self.below(self.of(&IMPATIENCE)));
        inner.calls.borrow_mut().insert(world.current(), (at, false));
        Calling(Some((inner.clone(), world.current())))
    }

    /// When the caller of the call that is under way interrupts it.
    pub fn interrupt_at(&self, world: &World) -> Option<Duration> {
        let calls = self.inner.as_ref()?.calls.borrow();
        calls.get(&world.current()).map(|(at, _)| *at)
    }

    /// Whether the caller wants to stop.
    pub fn is_interrupted(&self, world: &World) -> bool {
        let Some(inner) = &self.inner else { return false };
        let mut calls = inner.calls.borrow_mut();
        let Some((_, is_known)) = calls.get_mut(&world.current()).filter(|(at, _)| *at <= world.now()) else {
            return false;
        };
        if !std::mem::replace(is_known, true) {
            self.count(|sum| sum.interrupted += 1);
        }
        true
    }

    // ----------------------------------------------------------------- counts

    pub fn count(&self, add: impl FnOnce(&mut Whimsical)) {
        if let Some(inner) = &self.inner {
            let mut sum = inner.sum.get();
            add(&mut sum);
            inner.sum.set(sum);
        }
    }

    pub fn sum(&self) -> Whimsical {
        self.inner.as_ref().map(|inner| inner.sum.get()).unwrap_or_default()
    }
}

impl Whimsical {
    /// Adds another schedule's.
    pub fn add(&mut self, other: &Whimsical) {
        self.closed += other.closed;
        self.outlived += other.outlived;
        self.interrupted += other.interrupted;
        self.forks += other.forks;
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        if let Calling(Some((inner, task))) = self {
            inner.calls.borrow_mut().remove(task);
        }
    }
}
