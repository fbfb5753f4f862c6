//! Texts from Python: names, patterns, addresses.

use std::path::PathBuf;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::convert::sequence::items;

/// A str. Anything else is a TypeError, also a lone surrogate, which has no UTF-8.
pub fn text(any: &Bound<'_, PyAny>, what: &str) -> PyResult<String> {
    match any.cast::<PyString>().map(|text| text.to_str().map(str::to_owned)) {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(_)) => Err(PyTypeError::new_err(format!("{what}: a str with a lone surrogate has no UTF-8"))),
        Err(_) => Err(PyTypeError::new_err(format!("{what}: a str is needed, not {}", any.get_type().name()?))),
    }
}

/// As [`text`], for a list of them.
pub fn texts(any: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<String>> {
    items(any, what)?.iter().map(|item| text(item, what)).collect()
}

/// A path, as whatever names one.
pub fn path(any: &Bound<'_, PyAny>, what: &str) -> PyResult<PathBuf> {
    let taken: PyResult<PathBuf> = any.extract();
    taken.map_err(|error| PyTypeError::new_err(format!("{what}: no path: {}", error.value(any.py()))))
}
