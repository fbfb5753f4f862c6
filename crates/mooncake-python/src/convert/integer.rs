//! Integers from Python: addresses, sizes and counts.

use std::ops::Index;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::convert::sequence::{each, items};

/// A non-negative integer of 64 bits: an int, or what says that it is one by
/// `__index__`. Anything else is a TypeError, as pybind11 callers expect, also
/// what does not fit.
pub fn unsigned(any: &Bound<'_, PyAny>, what: &str) -> PyResult<u64> {
    any.extract::<u64>().map_err(|_| not_an_integer(any, what))
}

/// As [`unsigned`], for a list of them.
pub fn unsigned_list(any: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<u64>> {
    items(any, what)?.iter().map(|item| unsigned(item, what)).collect()
}

/// As [`unsigned`], for a list of lists of them.
pub fn unsigned_lists(any: &Bound<'_, PyAny>, what: &str) -> PyResult<Lists<u64>> {
    let lists = items(any, what)?;
    let mut all = Lists::with_capacity(lists.len());
    for list in &lists {
        each(list, what, |item| {
            all.items.push(unsigned(item, what)?);
            Ok(())
        })?;
        all.end_list();
    }
    Ok(all)
}

/// Lists of one kind of items, one behind the other: batches have a short one for each of many keys, for which an
/// allocation each takes longer than what is done with it.
#[derive(Debug)]
pub struct Lists<T> {
    items: Vec<T>,
    ends: Vec<usize>,
}

impl<T> Lists<T> {
    /// None yet, and room for so many with an item each.
    pub fn with_capacity(lists: usize) -> Self {
        Self { items: Vec::with_capacity(lists), ends: Vec::with_capacity(lists) }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &[T]> {
        (0..self.len()).map(|nth| &self[nth])
    }

    /// A further list.
    pub fn push(&mut self, list: impl IntoIterator<Item = T>) {
        self.items.extend(list);
        self.end_list();
    }

    fn end_list(&mut self) {
        self.ends.push(self.items.len());
    }
}

impl<T> Index<usize> for Lists<T> {
    type Output = [T];

    fn index(&self, nth: usize) -> &[T] {
        let start = nth.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.items[start..self.ends[nth]]
    }
}

#[cold]
fn not_an_integer(any: &Bound<'_, PyAny>, what: &str) -> PyErr {
    let shown = any.repr().map(|r| r.to_string_lossy().chars().take(80).collect::<String>()).unwrap_or_default();
    PyTypeError::new_err(format!("{what}: {shown} is not an integer between 0 and 2**64 - 1"))
}
