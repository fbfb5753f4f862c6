//! Switches from Python.

use pyo3::prelude::*;

/// Whatever is true or false: callers pass 1 and None too.
#[derive(Clone, Copy)]
pub struct Flag(pub bool);

impl<'a, 'py> FromPyObject<'a, 'py> for Flag {
    type Error = PyErr;

    fn extract(any: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        any.is_truthy().map(Flag)
    }
}
