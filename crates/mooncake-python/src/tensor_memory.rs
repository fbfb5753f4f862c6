//! What the tensor calls, which are written in Python, need of the store: bytes
//! moved without a copy between, and memory looked at without a fault.

use mooncake_client::{PutItem, PutOptions, Source};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffers::{Pieces, range};
use crate::call::{entry, failed, refused};
use crate::code::{INVALID_PARAMS, OK};
use crate::integer::unsigned;
use crate::key::Keys;
use crate::options::{Form, put_options};
use crate::replicate_config::ReplicateConfig;
use crate::store::MooncakeDistributedStore;
use crate::value::Value;

/// Objects as new writable buffers; None for what is missing or cannot be read.
#[pyfunction]
fn _get_bytearrays<'py>(
    store: &Bound<'py, MooncakeDistributedStore>,
    keys: &Bound<'py, PyAny>,
) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
    let (py, store) = (store.py(), store.get());
    let held = Keys::hold(keys)?;
    let none = |_| (0..held.len()).map(|_| None).collect();
    entry(store.errors(), "get_tensor", none, || {
        let keys = held.slices()?;
        let Some(client) = store.client("get_tensor") else { return Ok(none(INVALID_PARAMS)) };
        store.get_byte_arrays(py, &client, &keys)
    })
}

/// As `batch_put_from_multi_buffers`, for host memory that the caller holds
/// references to: it is there, so it is read without a look whether it is.
/// With `replace`, as the upsert.
#[pyfunction]
#[pyo3(signature = (store, keys, all_buffer_ptrs, all_sizes, config=None, replace=false))]
fn _put_from_held(
    store: &Bound<'_, MooncakeDistributedStore>,
    keys: &Bound<'_, PyAny>,
    all_buffer_ptrs: &Bound<'_, PyAny>,
    all_sizes: &Bound<'_, PyAny>,
    config: Option<&Bound<'_, ReplicateConfig>>,
    replace: bool,
) -> PyResult<Vec<i64>> {
    let (py, store) = (store.py(), store.get());
    let pieces = Pieces::multi(keys, all_buffer_ptrs, all_sizes)?;
    let all = |code| vec![code; pieces.keys.len()];
    entry(store.errors(), "put_tensor", all, || {
        let keys = pieces.keys.slices()?;
        let ranges = match &pieces.ranges {
            Ok(ranges) => ranges,
            Err(reason) => return Ok(all(refused(store.errors(), || format!("put_tensor: {reason}")))),
        };
        let options = match put_options(config, keys.len(), Form::MultiBuffers) {
            Ok(options) => PutOptions { replace, ..options },
            Err(reason) => return Ok(all(refused(store.errors(), || format!("put_tensor: {reason}")))),
        };
        let Some(client) = store.client("put_tensor") else { return Ok(all(INVALID_PARAMS)) };
        let outcomes = py.detach(|| {
            let held = |piece: &mooncake_client::ForeignRange| {
                let start = std::ptr::with_exposed_provenance::<u8>(piece.addr());
                // SAFETY: the tensor calls name memory of tensors and bytes that they hold until this returns.
                Source::new(unsafe { std::slice::from_raw_parts(start, piece.len()) })
            };
            let sources: Vec<Vec<Source<'_>>> =
                ranges.iter().map(|pieces| pieces.iter().filter(|p| !p.is_empty()).map(held).collect()).collect();
            let objects: Vec<_> = keys.iter().zip(&sources).map(|(key, value)| PutItem { key, value }).collect();
            client.put_batch(&objects, &options)
        });
        let code = |outcome: Result<_, _>| outcome.map_or_else(|error| failed(store.errors(), &error), |_| OK);
        Ok(outcomes.into_iter().map(code).collect())
    })
}

/// The first bytes of memory that may not be there: None if it is not.
#[pyfunction]
fn _peek<'py>(
    py: Python<'py>,
    ptr: &Bound<'py, PyAny>,
    size: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let memory = range(unsigned(ptr, "buffer_ptr")?, unsigned(size, "size")?);
    let mut bytes = vec![0; memory.len()];
    Ok(memory.read_into(&mut bytes).is_ok().then(|| PyBytes::new(py, &bytes)))
}

/// Writes to memory that may not be there: false if it is not, or not writable.
#[pyfunction]
fn _poke(py: Python<'_>, ptr: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let value = Value::hold(value)?;
    let memory = range(unsigned(ptr, "buffer_ptr")?, value.bytes().len() as u64);
    let bytes = value.bytes();
    Ok(py.detach(|| memory.write_from(bytes)).is_ok())
}

/// Notes why a call was refused; gives the code back.
#[pyfunction]
fn _fail(store: &Bound<'_, MooncakeDistributedStore>, code: i64, reason: String) -> i64 {
    let errors = store.get().errors();
    errors.clear();
    errors.set(|| reason);
    code
}

/// What `setup` was given, in bytes; None when it was not set up.
#[pyfunction]
fn _local_buffer_size(store: &Bound<'_, MooncakeDistributedStore>) -> Option<u64> {
    store.get().local_buffer_size()
}

/// Adds all of it to the module.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_get_bytearrays, module)?)?;
    module.add_function(wrap_pyfunction!(_put_from_held, module)?)?;
    module.add_function(wrap_pyfunction!(_peek, module)?)?;
    module.add_function(wrap_pyfunction!(_poke, module)?)?;
    module.add_function(wrap_pyfunction!(_fail, module)?)?;
    module.add_function(wrap_pyfunction!(_local_buffer_size, module)?)
}
