//! How much operations look at.

use std::cell::Cell;

/// Counts the entries of one table that anything has looked at, each as often as it was: slots, steps of lists and of
/// walks. What grows with the pool is seen by it, whatever comes of it. A plain number beside what is looked at: it
/// costs nothing next to a look.
#[derive(Debug, Default, Clone)]
pub(crate) struct Touched(Cell<u32>);

impl Touched {
    /// So many more.
    #[inline]
    pub fn add(&self, count: usize) {
        self.0.set(self.0.get().wrapping_add(count as u32));
    }

    /// All so far; begins again at 0 when there is no higher number.
    pub fn count(&self) -> u32 {
        self.0.get()
    }

    /// The same entries, counted as they are looked at.
    pub fn each<I: Iterator>(&self, entries: I) -> impl Iterator<Item = I::Item> {
        entries.inspect(|_| self.add(1))
    }
}
