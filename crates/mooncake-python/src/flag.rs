//! Switches from Python.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// Whatever is true or false: callers pass 1 and None too.
#[derive(Clone, Copy)]
pub struct Flag(pub bool);

impl<'a, 'py> FromPyObject<'a, 'py> for Flag {
    type Error = PyErr;

    fn extract(any: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let truth = any.is_truthy();
        truth
            .map(Flag)
            .map_err(|error| PyTypeError::new_err(format!("neither true nor false: {}", error.value(any.py()))))
    }
}
