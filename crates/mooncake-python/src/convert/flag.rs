//! Switches from Python.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// What pybind11 takes for a bool: True and False, None as False, and whatever has a truth value of its own
/// (`__bool__`): numbers and numpy's bools do; strings and lists, which only have a length, do not.
#[derive(Clone, Copy)]
pub struct Flag(pub bool);

impl<'a, 'py> FromPyObject<'a, 'py> for Flag {
    type Error = PyErr;

    fn extract(any: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if any.is_none() {
            return Ok(Flag(false));
        }
        if any.get_type().hasattr("__bool__")?
            && let Ok(truth) = any.is_truthy()
        {
            return Ok(Flag(truth));
        }
        Err(PyTypeError::new_err(format!("a bool is needed, not {}", any.get_type().name()?)))
    }
}
