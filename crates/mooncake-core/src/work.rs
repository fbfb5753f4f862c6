//! How much is done in one hold of the core's lock.

/// What one step in the background is to do, in objects, keys and extents that it touches: each takes a microsecond or less.
pub const STEP: usize = 256;

/// What an operation does for others besides.
const BESIDE: usize = 128;

/// Objects that one look at a request evicts at most; it goes on at another one.
pub(crate) const EVICTED_MOST: usize = 256;

/// The same in the background, where what the request does otherwise comes on top of a whole step.
pub(crate) const EVICTED_BEHIND: usize = 128;

/// An unfinished put that ends takes as long as so many objects: it is taken out of its books, its extents are put into those of
/// quarantine, and their owners are asked for them.
pub(crate) const ENDED_AS: usize = 2;

/// Unfinished puts of writers that are away that one look at a request ends: each leaves more behind than one that is placed.
pub(crate) const YIELDED_MOST: usize = 128;

/// What is left of it.
#[derive(Debug)]
pub(crate) struct Work {
    left: usize,
    begun: bool,
    is_step: bool,
}

impl Work {
    /// A step in the background.
    pub fn step(budget: usize) -> Work {
        Work { left: budget, begun: false, is_step: true }
    }

    /// For others, at the end of an operation.
    pub fn beside_an_operation() -> Work {
        Work { left: BESIDE, begun: false, is_step: false }
    }

    /// Of an operation itself.
    pub fn operation() -> Work {
        Work { left: usize::MAX, begun: true, is_step: false }
    }

    /// Nothing more is to be done in this hold.
    pub fn is_used_up(&self) -> bool {
        self.left == 0
    }

    /// Whether something that cannot be cut is still to be done: it touches so much. A step begins with whatever it is.
    pub fn has_time_for(&mut self, much: usize) -> bool {
        let has = much <= self.left || self.is_step && !self.begun;
        if !has {
            self.left = 0;
        }
        has
    }

    /// Objects that a look at a request may evict.
    pub fn evictions(&self) -> usize {
        self.left(if self.is_step { EVICTED_BEHIND } else { EVICTED_MOST })
    }

    /// Something was touched.
    pub fn did(&mut self, much: usize) {
        self.begun = true;
        self.left = self.left.saturating_sub(much);
    }

    /// What is left, of at most so much.
    pub fn left(&self, most: usize) -> usize {
        self.left.min(most)
    }
}
