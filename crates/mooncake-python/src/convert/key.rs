//! Keys from Python: str (as UTF-8) or bytes, borrowed without a copy.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::convert::sequence::items;

/// The bytes of one key; they live as long as the object.
pub fn key<'a>(any: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    if let Ok(text) = any.cast::<PyString>() {
        return match text.to_str() {
            Ok(text) => Ok(text.as_bytes()),
            Err(_) => Err(PyTypeError::new_err("key: a str with a lone surrogate has no UTF-8; give the key as bytes")),
        };
    }
    match any.cast::<PyBytes>() {
        Ok(bytes) => Ok(bytes.as_bytes()),
        Err(_) => Err(PyTypeError::new_err(format!("key: str or bytes is needed, not {}", any.get_type().name()?))),
    }
}

/// Keys of a batch, held while the GIL is released.
pub struct Keys<'py>(Vec<Bound<'py, PyAny>>);

impl<'py> Keys<'py> {
    /// Takes the items of a list.
    pub fn hold(any: &Bound<'py, PyAny>) -> PyResult<Self> {
        items(any, "keys").map(Self)
    }

    /// As Python gave them.
    pub fn objects(&self) -> &[Bound<'py, PyAny>] {
        &self.0
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The bytes of each.
    pub fn slices(&self) -> PyResult<Vec<&[u8]>> {
        self.0.iter().map(key).collect()
    }
}
