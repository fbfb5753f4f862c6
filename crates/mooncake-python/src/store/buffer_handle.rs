//! What `get_buffer` gives: the bytes of an object in place, read-only.

use std::ffi::c_int;

use mooncake_client::View;
use pyo3::ffi;
use pyo3::prelude::*;

/// Holds an object's bytes: the pinned segment memory itself, or a private copy
/// where they cannot be borrowed. They do not change, whatever happens to the
/// object or to the store meanwhile.
#[pyclass(frozen, module = "mooncake.store")]
pub struct BufferHandle(View);

impl BufferHandle {
    /// Wraps a verified view.
    pub fn new(view: View) -> Self {
        Self(view)
    }
}

#[pymethods]
impl BufferHandle {
    /// Address of the first byte.
    fn ptr(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// Length in bytes.
    fn size(&self) -> usize {
        self.0.len()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// # Safety
    /// Called by Python with a Py_buffer to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes: &[u8] = &slf.get().0;
        // SAFETY: Python's own helper on Python's own arguments. It takes a reference to the handle, which keeps the
        // bytes; it refuses writable requests because of the 1.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), bytes.as_ptr() as *mut _, bytes.len() as isize, 1, flags)
        };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        if flags & ffi::PyBUF_FORMAT == ffi::PyBUF_FORMAT {
            // SAFETY: filled just now; the string is static and Python does not write to it.
            unsafe { (*view).format = c"c".as_ptr().cast_mut() };
        }
        Ok(())
    }
}
