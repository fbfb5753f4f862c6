//! Values from Python: anything with the buffer protocol.

use std::mem::MaybeUninit;

use mooncake_client::Source;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A value whose memory is held in place.
pub enum Value<'py> {
    /// Immutable and kept by the reference.
    Bytes(Bound<'py, PyBytes>),
    /// Exported by its owner until this is dropped.
    Exported(Exported),
}

/// A buffer taken by `PyObject_GetBuffer`. Boxed: exporters may point into it.
/// Neither Send nor Sync, so it is dropped where it was made, under the GIL.
pub struct Exported(Box<ffi::Py_buffer>);

impl<'py> Value<'py> {
    /// Holds the memory of a C-contiguous buffer, whatever its items are:
    /// `PyBuffer<u8>` would refuse memoryviews of ctypes and numpy floats.
    pub fn hold(any: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = any.cast_exact::<PyBytes>() {
            return Ok(Self::Bytes(bytes.clone()));
        }
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::zeroed());
        // Without PyBUF_FORMAT a memoryview with another item format cannot be taken.
        let flags = ffi::PyBUF_C_CONTIGUOUS | ffi::PyBUF_FORMAT;
        // SAFETY: a live object and room for one Py_buffer; the GIL is held.
        if unsafe { ffi::PyObject_GetBuffer(any.as_ptr(), view.as_mut_ptr(), flags) } != 0 {
            let cause = PyErr::fetch(any.py());
            let error = PyTypeError::new_err(format!(
                "value: a C-contiguous object with the buffer protocol is needed (bytes, bytearray, memoryview, numpy \
                 array), not this {}: {}",
                any.get_type().name()?,
                cause.value(any.py())
            ));
            error.set_cause(any.py(), Some(cause));
            return Err(error);
        }
        // SAFETY: PyObject_GetBuffer succeeded, so it filled the view.
        Ok(Self::Exported(Exported(unsafe { view.assume_init() })))
    }

    /// Its memory. If another thread changes it meanwhile, a mixture is stored, as with any write in Python.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes.as_bytes(),
            Self::Exported(Exported(view)) if view.len == 0 => &[],
            // SAFETY: the exporter keeps `len` contiguous bytes at `buf` until the release.
            Self::Exported(Exported(view)) => unsafe { std::slice::from_raw_parts(view.buf.cast(), view.len as usize) },
        }
    }

    /// For a put.
    pub fn source(&self) -> Source<'_> {
        Source::new(self.bytes())
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        // SAFETY: filled by PyObject_GetBuffer, released once, under the GIL (see the type).
        unsafe { ffi::PyBuffer_Release(&mut *self.0) }
    }
}
