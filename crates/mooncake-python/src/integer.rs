//! Integers from Python: addresses, sizes and counts.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::sequence::items;

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
pub fn unsigned_lists(any: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<Vec<u64>>> {
    items(any, what)?.iter().map(|item| unsigned_list(item, what)).collect()
}

#[cold]
fn not_an_integer(any: &Bound<'_, PyAny>, what: &str) -> PyErr {
    let shown = any.repr().map(|r| r.to_string_lossy().chars().take(80).collect::<String>()).unwrap_or_default();
    PyTypeError::new_err(format!("{what}: {shown} is not an integer between 0 and 2**64 - 1"))
}
