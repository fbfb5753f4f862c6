//! Memory for engines: the allocator class, the C functions that allocators of
//! others take by address, and the NUMA policy.

use std::ffi::c_void;

use mooncake_memory::{allocate_huge, allocate_shared, free_host_memory};
use mooncake_os::prefer_numa_node;
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;

use crate::code::{INVALID_PARAMS, OK};
use crate::convert::integer::unsigned;

/// Shared memory by the piece, populated: what is registered as a whole.
#[pyclass(frozen, module = "mooncake.store")]
pub struct MooncakeHostMemAllocator;

#[pymethods]
impl MooncakeHostMemAllocator {
    #[new]
    fn new() -> Self {
        Self
    }

    /// Address of that many bytes, zero and populated; RuntimeError says why there are none.
    fn alloc(&self, py: Python<'_>, size: &Bound<'_, PyAny>) -> PyResult<usize> {
        let size = unsigned(size, "size")?;
        let made = py.detach(|| allocate_shared(size));
        made.map_err(|error| PyRuntimeError::new_err(format!("alloc of {size} bytes: {error}")))
    }

    /// 0, or -600 for what `alloc` did not give.
    ///
    /// Unregister it first. What is still registered is no memory any more, and its addresses are nobody else's until
    /// it is unregistered.
    fn free(&self, py: Python<'_>, ptr: &Bound<'_, PyAny>) -> PyResult<i64> {
        let addr = usize::try_from(unsigned(ptr, "ptr")?).unwrap_or(0);
        // SAFETY: the caller of `free` gives the memory up; what it did not get from us is left alone.
        let freed = py.detach(|| unsafe { free_host_memory(addr) });
        Ok(if freed { OK } else { INVALID_PARAMS })
    }
}

/// `void *(size_t)`; null when there is none. Further arguments, as torch passes them, are ignored.
extern "C" fn alloc_huge(size: usize) -> *mut c_void {
    allocate_huge(size as u64).map_or(std::ptr::null_mut(), std::ptr::with_exposed_provenance_mut)
}

/// `void (void *)`.
///
/// # Safety
/// No thread uses the memory any more.
unsafe extern "C" fn free_huge(ptr: *mut c_void) {
    // SAFETY: the caller's word; what is not ours is left alone.
    let _ = unsafe { free_host_memory(ptr.addr()) };
}

/// Address of a C function that allocates: `void *(size_t)`.
#[pyfunction]
fn get_alloc_func_addr() -> usize {
    alloc_huge as *const () as usize
}

/// Address of the C function that frees what the other gave: `void (void *)`.
#[pyfunction]
fn get_free_func_addr() -> usize {
    free_huge as *const () as usize
}

/// New pages of this thread come from that node; OSError says why not.
#[pyfunction]
fn _prefer_numa_node(node: u32) -> PyResult<()> {
    prefer_numa_node(node).map_err(|error| PyOSError::new_err(error.to_string()))
}

/// Adds all of it to the module.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<MooncakeHostMemAllocator>()?;
    module.add_function(wrap_pyfunction!(get_alloc_func_addr, module)?)?;
    module.add_function(wrap_pyfunction!(get_free_func_addr, module)?)?;
    module.add_function(wrap_pyfunction!(_prefer_numa_node, module)?)
}
