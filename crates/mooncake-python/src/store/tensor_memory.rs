//! What the tensor calls, which are written in Python, need of the store: bytes
//! moved without a copy between, and memory looked at without a fault.

use mooncake_client::ForeignRange;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::code::INVALID_PARAMS;
use crate::convert::buffers::range;
use crate::convert::integer::unsigned;
use crate::convert::key::Keys;
use crate::convert::value::Value;
use crate::entry::entry;
use crate::store::class::MooncakeDistributedStore;
use crate::store::replicate_config::ReplicateConfig;
use crate::store::writing::Write;

/// Objects as new writable buffers, for the call of that name; None for what is missing or cannot be read.
#[pyfunction]
fn _get_bytearrays<'py>(
    store: &Bound<'py, MooncakeDistributedStore>,
    name: &str,
    keys: &Bound<'py, PyAny>,
) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
    let (py, store) = (store.py(), store.get());
    let held = Keys::hold(keys)?;
    let none = |_| (0..held.len()).map(|_| None).collect();
    entry(store.errors(), name, none, || {
        let keys = held.slices()?;
        let Some(client) = store.client(name) else { return Ok(none(INVALID_PARAMS)) };
        store.get_byte_arrays(py, &client, &keys)
    })
}

/// Stores objects, for the call of that name, that are a head, bytes, and the memory of a tensor after it, which may be
/// None. A code for each; with `replace`, as the upsert.
#[pyfunction]
#[pyo3(signature = (store, name, keys, heads, tensors, config=None, replace=false))]
fn _put_tensors(
    store: &Bound<'_, MooncakeDistributedStore>,
    name: &str,
    keys: &Bound<'_, PyAny>,
    heads: Vec<Bound<'_, PyBytes>>,
    tensors: Vec<Option<Bound<'_, PyAny>>>,
    config: Option<&Bound<'_, ReplicateConfig>>,
    replace: bool,
) -> PyResult<Vec<i64>> {
    let (py, store) = (store.py(), store.get());
    let keys = Keys::hold(keys)?;
    if heads.len() != keys.len() || tensors.len() != keys.len() {
        return Err(PyTypeError::new_err(format!(
            "{} keys, {} heads, {} tensors",
            keys.len(),
            heads.len(),
            tensors.len()
        )));
    }
    let tails =
        tensors.iter().map(|tensor| tensor.as_ref().map_or(Ok(&[][..]), memory)).collect::<PyResult<Vec<_>>>()?;
    let objects: Vec<_> = heads.iter().zip(tails).map(|(head, tail)| [head.as_bytes(), tail]).collect();
    let write = if replace { Write::Upsert } else { Write::Put };
    entry(
        store.errors(),
        name,
        |code| vec![code; keys.len()],
        || store.put_tensors(py, name, &keys, &objects, config, write),
    )
}

/// Memory of a contiguous tensor of the host.
fn memory<'a>(tensor: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    if !tensor.getattr("is_cpu")?.is_truthy()? || !tensor.call_method0("is_contiguous")?.is_truthy()? {
        return Err(PyTypeError::new_err("a contiguous tensor of the host is needed"));
    }
    let (address, size): (usize, usize) =
        (tensor.call_method0("data_ptr")?.extract()?, tensor.getattr("nbytes")?.extract()?);
    if size == 0 {
        return Ok(&[]);
    }
    // SAFETY: a contiguous tensor of the host has `nbytes` bytes at `data_ptr()` as long as it lives, which the
    // reference sees to; only torch itself can take them away, as with any use of a tensor by two threads.
    Ok(unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address), size) })
}

/// The first bytes of memory that may not be there, `most` of them; ValueError where it is not, or where the memory
/// begins in a registered buffer and runs out of it.
#[pyfunction]
fn _peek<'py>(
    store: &Bound<'py, MooncakeDistributedStore>,
    ptr: &Bound<'py, PyAny>,
    size: &Bound<'py, PyAny>,
    most: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let memory = range(unsigned(ptr, "buffer_ptr")?, unsigned(size, "size")?);
    store.get().check_reach(memory)?;
    let mut bytes = vec![0; memory.len().min(most)];
    let nowhere = |_| PyValueError::new_err(format!("no memory of this process at {:#x}", memory.addr()));
    memory.part(0, bytes.len()).read_into(&mut bytes).map_err(nowhere)?;
    Ok(PyBytes::new(store.py(), &bytes))
}

/// Writes to the first bytes of memory that may not be there; ValueError where it is not, or not writable, or where the
/// memory begins in a registered buffer and runs out of it.
#[pyfunction]
fn _poke(
    store: &Bound<'_, MooncakeDistributedStore>,
    ptr: &Bound<'_, PyAny>,
    size: &Bound<'_, PyAny>,
    value: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let value = Value::hold(value)?;
    let (memory, bytes) = (range(unsigned(ptr, "buffer_ptr")?, unsigned(size, "size")?), value.bytes());
    if bytes.len() > memory.len() {
        return Err(PyValueError::new_err(format!("{} bytes, the buffer has {}", bytes.len(), memory.len())));
    }
    store.get().check_reach(memory)?;
    let nowhere = |_| PyValueError::new_err(format!("no writable memory at {:#x}", memory.addr()));
    store.py().detach(|| memory.part(0, bytes.len()).write_from(bytes)).map_err(nowhere)
}

impl MooncakeDistributedStore {
    /// ValueError for memory that begins in a buffer that is registered with this store, and runs out of it.
    fn check_reach(&self, memory: ForeignRange) -> PyResult<()> {
        self.check_memory(memory).map_err(|out| PyValueError::new_err(out.to_string()))
    }
}

/// A call begins: the reason that the one before left no longer counts.
#[pyfunction]
fn _begin(store: &Bound<'_, MooncakeDistributedStore>) {
    store.get().errors().clear();
}

/// Notes why a call was refused; gives the code back.
#[pyfunction]
fn _fail(store: &Bound<'_, MooncakeDistributedStore>, code: i64, reason: String) -> i64 {
    let errors = store.get().errors();
    errors.clear();
    errors.set_code(code, || reason);
    code
}

/// The code of what `last_error()` says; 0 where it says nothing.
#[pyfunction]
fn _last_code(store: &Bound<'_, MooncakeDistributedStore>) -> i64 {
    store.get().errors().code()
}

/// What `setup` was given, in bytes; None when it was not set up.
#[pyfunction]
fn _local_buffer_size(store: &Bound<'_, MooncakeDistributedStore>) -> Option<u64> {
    store.get().local_buffer_size()
}

/// Adds all of it to the module.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_get_bytearrays, module)?)?;
    module.add_function(wrap_pyfunction!(_put_tensors, module)?)?;
    module.add_function(wrap_pyfunction!(_peek, module)?)?;
    module.add_function(wrap_pyfunction!(_poke, module)?)?;
    module.add_function(wrap_pyfunction!(_begin, module)?)?;
    module.add_function(wrap_pyfunction!(_fail, module)?)?;
    module.add_function(wrap_pyfunction!(_last_code, module)?)?;
    module.add_function(wrap_pyfunction!(_local_buffer_size, module)?)
}
