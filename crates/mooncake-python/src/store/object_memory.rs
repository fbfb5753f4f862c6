//! Memory of a large object that its owner may change: the buffer of a tensor.

use std::ffi::c_int;

use mooncake_memory::Recycled;
use pyo3::ffi;
use pyo3::prelude::*;

/// From so many bytes on, memory that was used before is worth keeping.
pub const LARGE: usize = 4 << 20;

/// Writable bytes; whoever looks at them keeps this, and with it the memory.
#[pyclass(frozen, name = "_ObjectMemory", module = "mooncake.store")]
pub struct ObjectMemory {
    memory: Recycled,
    len: usize,
}

impl ObjectMemory {
    /// Memory with any content.
    pub fn new(len: usize) -> Option<Self> {
        Some(Self { memory: Recycled::take(len)?, len })
    }

    /// First byte.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.memory.as_mut_ptr()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }
}

#[pymethods]
impl ObjectMemory {
    fn __len__(&self) -> usize {
        self.len
    }

    /// # Safety
    /// Called by Python with a Py_buffer to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let (ptr, len) = (slf.get().as_mut_ptr(), slf.get().len as isize);
        // SAFETY: Python's own helper on Python's own arguments; it takes a reference to the object, which keeps the
        // memory. Rust code holds no reference to its bytes.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), ptr.cast(), len, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
