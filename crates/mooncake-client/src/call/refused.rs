//! Items of a batch that are refused before it begins.

use crate::error::StoreError;

/// What is left out of a batch, and why: the others are done all the same, and the outcomes are those of all.
#[derive(Debug, Default)]
pub struct Refused {
    /// Ascending.
    items: Vec<(usize, StoreError)>,
}

impl Refused {
    /// What was made of an item, or `None` and it is left out. In the order of the batch.
    pub fn sift<T>(&mut self, item: usize, made: Result<T, impl Into<StoreError>>) -> Option<T> {
        debug_assert!(self.items.last().is_none_or(|(last, _)| *last < item), "items come in their order");
        made.map_err(|error| self.items.push((item, error.into()))).ok()
    }

    /// None is.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Of a list with one for each item, those of the items that are left.
    pub fn others<T: Clone>(&self, all: &[T]) -> Vec<T> {
        let mut refused = self.items.iter().peekable();
        let is_left = |at: usize| refused.next_if(|(item, _)| *item == at).is_none();
        let left: Vec<bool> = (0..all.len()).map(is_left).collect();
        all.iter().zip(left).filter(|(_, left)| *left).map(|(one, _)| one.clone()).collect()
    }

    /// The outcomes of the items that were left, and between them, in their places, why the others were refused.
    pub fn merge<T>(self, outcomes: Vec<Result<T, StoreError>>) -> Vec<Result<T, StoreError>> {
        if self.items.is_empty() {
            return outcomes;
        }
        let count = outcomes.len() + self.items.len();
        let (mut refused, mut others) = (self.items.into_iter().peekable(), outcomes.into_iter());
        let outcome = |at: usize| match refused.next_if(|(item, _)| *item == at) {
            Some((_, error)) => Err(error),
            None => others.next().expect("an outcome for each that was left"),
        };
        (0..count).map(outcome).collect()
    }
}
