//! Lists from Python.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList, PySequence, PyString, PyTuple};

/// The items of a list, a tuple or another sequence. They are held, so that code that changes the list meanwhile does
/// not free them. Strings and bytes are sequences of something else, and refused.
pub fn items<'py>(any: &Bound<'py, PyAny>, what: &str) -> PyResult<Vec<Bound<'py, PyAny>>> {
    if let Ok(list) = any.cast::<PyList>() {
        return Ok(list.iter().collect());
    }
    if let Ok(tuple) = any.cast::<PyTuple>() {
        return Ok(tuple.iter().collect());
    }
    let text =
        any.is_instance_of::<PyString>() || any.is_instance_of::<PyBytes>() || any.is_instance_of::<PyByteArray>();
    match any.cast::<PySequence>() {
        Ok(sequence) if !text => sequence.to_list().map(|list| list.iter().collect()),
        // numpy arrays are sequences in all but name.
        Err(_) if !text && any.hasattr("__getitem__")? && any.hasattr("__len__")? && !any.hasattr("keys")? => {
            any.try_iter()?.collect()
        }
        _ => Err(PyTypeError::new_err(format!("{what}: a list is needed, not {}", any.get_type().name()?))),
    }
}

/// Does something with each of the [`items`], which for that need not be held all at once: most calls have many short
/// lists.
pub fn each<'py>(
    any: &Bound<'py, PyAny>,
    what: &str,
    mut work: impl FnMut(&Bound<'py, PyAny>) -> PyResult<()>,
) -> PyResult<()> {
    match any.cast::<PyList>() {
        Ok(list) => list.iter().try_for_each(|item| work(&item)),
        Err(_) => items(any, what)?.iter().try_for_each(work),
    }
}
