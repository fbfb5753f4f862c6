//! `MooncakeDistributedStore`.

use std::collections::HashSet;

use mooncake_client::{GetInto, Health, PutItem, PutOptions, PutOutcome, Source, Store, StoreError, Target};
use parking_lot::RwLock;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple, PyType};

use crate::buffer_handle::BufferHandle;
use crate::buffers::{Pieces, range};
use crate::call::{entry, failed, refused};
use crate::code::{INTERNAL, INVALID_PARAMS, NOT_FOUND, OK, health};
use crate::flag::Flag;
use crate::integer::unsigned;
use crate::key::{Keys, key};
use crate::last_error::LastError;
use crate::options::{Form, put_options};
use crate::replicate_config::ReplicateConfig;
use crate::sequence::items;
use crate::value::Value;
use crate::{open_stores, setup};

/// A client that is set up.
#[derive(Clone)]
struct Live {
    client: Store,
    /// Bytes; 0: it lends memory, and the calls that go through the local buffer are refused.
    local_buffer_size: u64,
}

/// A store client: one session with the master, whatever process it is in.
#[pyclass(frozen, subclass, module = "mooncake.store")]
pub struct MooncakeDistributedStore {
    live: RwLock<Option<Live>>,
    errors: LastError,
}

impl MooncakeDistributedStore {
    /// Reasons of failed calls.
    pub(crate) fn errors(&self) -> &LastError {
        &self.errors
    }

    /// The client, or None with a reason.
    pub(crate) fn client(&self, name: &str) -> Option<Store> {
        self.live(name).map(|live| live.client)
    }

    /// What `setup` was given, in bytes; 0 when it was not set up.
    pub(crate) fn local_buffer_size(&self) -> u64 {
        self.live.read().as_ref().map_or(0, |live| live.local_buffer_size)
    }

    /// As `client`, for calls that need the local buffer.
    fn buffered(&self, name: &str) -> Option<Store> {
        let live = self.live(name)?;
        if live.local_buffer_size == 0 {
            self.errors.set(|| format!("{name}: this store was set up with local_buffer_size=0, it only lends memory"));
            return None;
        }
        Some(live.client)
    }

    fn live(&self, name: &str) -> Option<Live> {
        let live = self.live.read().clone();
        if live.is_none() {
            self.errors.set(|| format!("{name}: the store is not set up, or was closed; call setup() first"));
        }
        live
    }

    fn put_outcome(&self, outcome: Result<PutOutcome, StoreError>) -> i64 {
        match outcome {
            Ok(_) => OK,
            Err(error) => failed(&self.errors, &error),
        }
    }

    /// Stores one object from its pieces.
    fn put_sources(
        &self,
        py: Python<'_>,
        client: &Store,
        key: &[u8],
        sources: &[Source<'_>],
        config: Option<&Bound<'_, ReplicateConfig>>,
    ) -> i64 {
        let options = match put_options(config, 1, Form::Plain) {
            Ok(options) => options,
            Err(reason) => return refused(&self.errors, || reason),
        };
        self.put_outcome(py.detach(|| client.put(key, sources, &options)))
    }

    fn put_pieces(
        &self,
        py: Python<'_>,
        name: &str,
        pieces: &Pieces<'_>,
        config: Option<&Bound<'_, ReplicateConfig>>,
        form: Form,
    ) -> PyResult<Vec<i64>> {
        let keys = pieces.keys.slices()?;
        let all = |code| Ok(vec![code; keys.len()]);
        let ranges = match &pieces.ranges {
            Ok(ranges) => ranges,
            Err(reason) => return all(refused(&self.errors, || format!("{name}: {reason}"))),
        };
        let options = match put_options(config, keys.len(), form) {
            Ok(options) => options,
            Err(reason) => return all(refused(&self.errors, || format!("{name}: {reason}"))),
        };
        let Some(client) = self.client(name) else { return all(INVALID_PARAMS) };
        let outcomes = py.detach(|| {
            let registry = client.registry();
            let sources: Vec<Vec<Source<'_>>> = ranges
                .iter()
                .map(|pieces| pieces.iter().map(|piece| Source::foreign(*piece, registry)).collect())
                .collect();
            let objects: Vec<_> = keys.iter().zip(&sources).map(|(key, value)| PutItem { key, value }).collect();
            client.put_batch(&objects, &options)
        });
        Ok(outcomes.into_iter().map(|outcome| self.put_outcome(outcome)).collect())
    }
}

#[pymethods]
impl MooncakeDistributedStore {
    #[new]
    #[classmethod]
    #[pyo3(signature = (*args, **kwargs), text_signature = "()")]
    fn new(class: &Bound<'_, PyType>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        // What a subclass's own __init__ takes passes through here.
        let given = args.len() + kwargs.map_or(0, |kwargs| kwargs.len());
        if given > 0 && class.is(class.py().get_type::<Self>()) {
            return Err(PyTypeError::new_err(format!("MooncakeDistributedStore() takes no arguments, {given} given")));
        }
        Ok(Self { live: RwLock::new(None), errors: LastError::new() })
    }

    // ------------------------------------------------------------ lifecycle

    #[pyo3(signature = (*args, **kwargs))]
    fn setup(&self, py: Python<'_>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<i64> {
        entry(
            &self.errors,
            "setup",
            |code| code,
            || {
                let setup = match setup::parse(args, kwargs)? {
                    Ok(setup) => setup,
                    Err(reason) => return Ok(refused(&self.errors, || reason)),
                };
                let local_buffer_size = setup.local_buffer_size;
                // As the reference: a second setup replaces the first.
                let before = self.live.write().take();
                let connected = py.detach(|| {
                    drop_client(before);
                    Store::connect(setup.options()?)
                });
                match connected {
                    Ok(client) => {
                        open_stores::remember(py, &client)?;
                        // Another thread may have set it up meanwhile: the last one counts, as said.
                        let overtaken = self.live.write().replace(Live { client, local_buffer_size });
                        py.detach(|| drop_client(overtaken));
                        Ok(OK)
                    }
                    Err(error) => Ok(failed(&self.errors, &error)),
                }
            },
        )
    }

    fn close(&self, py: Python<'_>) -> PyResult<i64> {
        entry(
            &self.errors,
            "close",
            |code| code,
            || {
                let live = self.live.write().take();
                py.detach(|| drop_client(live));
                Ok(OK)
            },
        )
    }

    fn health_check(&self, py: Python<'_>) -> PyResult<i64> {
        entry(
            &self.errors,
            "health_check",
            |code| code,
            || {
                let Some(client) = self.client("health_check") else { return Ok(1) };
                let found = py.detach(|| client.health());
                if let Health::MasterUnreachable = found {
                    self.errors.set(|| "health_check: the master does not answer; is mooncake_master running?".into());
                }
                Ok(health(found))
            },
        )
    }

    fn get_hostname(&self) -> String {
        self.live.read().as_ref().map(|live| live.client.hostname().to_owned()).unwrap_or_default()
    }

    /// Why this thread's last call failed, or "".
    fn last_error(&self) -> String {
        self.errors.get()
    }

    // ---------------------------------------------------------------- bytes

    #[pyo3(signature = (key, value, config=None))]
    fn put(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        config: Option<&Bound<'_, ReplicateConfig>>,
    ) -> PyResult<i64> {
        entry(
            &self.errors,
            "put",
            |code| code,
            || {
                let (key, value) = (self::key(key)?, Value::hold(value)?);
                let Some(client) = self.buffered("put") else { return Ok(INVALID_PARAMS) };
                Ok(self.put_sources(py, &client, key, &[value.source()], config))
            },
        )
    }

    #[pyo3(signature = (key, *parts, config=None))]
    fn put_parts(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        parts: &Bound<'_, PyTuple>,
        config: Option<&Bound<'_, ReplicateConfig>>,
    ) -> PyResult<i64> {
        entry(
            &self.errors,
            "put_parts",
            |code| code,
            || {
                let key = self::key(key)?;
                let values = parts.iter().map(|part| Value::hold(&part)).collect::<PyResult<Vec<_>>>()?;
                let Some(client) = self.buffered("put_parts") else { return Ok(INVALID_PARAMS) };
                let sources: Vec<_> = values.iter().map(Value::source).filter(|source| !source.is_empty()).collect();
                if sources.is_empty() {
                    return Ok(OK);
                }
                Ok(self.put_sources(py, &client, key, &sources, config))
            },
        )
    }

    #[pyo3(signature = (keys, values, config=None))]
    fn put_batch(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        config: Option<&Bound<'_, ReplicateConfig>>,
    ) -> PyResult<i64> {
        entry(
            &self.errors,
            "put_batch",
            |code| code,
            || {
                let held = Keys::hold(keys)?;
                let keys = held.slices()?;
                let values = items(values, "values")?.iter().map(Value::hold).collect::<PyResult<Vec<_>>>()?;
                let Some(client) = self.buffered("put_batch") else { return Ok(INVALID_PARAMS) };
                if keys.len() != values.len() {
                    return Ok(refused(&self.errors, || {
                        format!("put_batch: {} keys and {} values", keys.len(), values.len())
                    }));
                }
                let options = match put_options(config, keys.len(), Form::Plain) {
                    Ok(options) => options,
                    Err(reason) => return Ok(refused(&self.errors, || format!("put_batch: {reason}"))),
                };
                let sources: Vec<_> = values.iter().map(|value| [value.source()]).collect();
                let outcomes = py.detach(|| {
                    let objects: Vec<_> =
                        first_of_each(&keys).map(|at| PutItem { key: keys[at], value: &sources[at] }).collect();
                    client.put_batch(&objects, &options)
                });
                let codes = outcomes.into_iter().map(|outcome| self.put_outcome(outcome));
                Ok(codes.fold(OK, |first, code| if first == OK { code } else { first }))
            },
        )
    }

    /// A code for each object: what single puts that wait together become.
    fn _put_each(&self, py: Python<'_>, keys: &Bound<'_, PyAny>, values: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
        let held = Keys::hold(keys)?;
        let all = |code| vec![code; held.len()];
        entry(&self.errors, "put", all, || {
            let keys = held.slices()?;
            let values = items(values, "values")?.iter().map(Value::hold).collect::<PyResult<Vec<_>>>()?;
            let Some(client) = self.buffered("put") else { return Ok(all(INVALID_PARAMS)) };
            if keys.len() != values.len() {
                return Ok(all(refused(&self.errors, || {
                    format!("put: {} keys and {} values", keys.len(), values.len())
                })));
            }
            let sources: Vec<_> = values.iter().map(|value| [value.source()]).collect();
            let outcomes = py.detach(|| {
                let objects: Vec<_> = keys.iter().zip(&sources).map(|(key, value)| PutItem { key, value }).collect();
                client.put_batch(&objects, &PutOptions::default())
            });
            Ok(outcomes.into_iter().map(|outcome| self.put_outcome(outcome)).collect())
        })
    }

    #[pyo3(signature = (key, /))]
    fn get<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        entry(
            &self.errors,
            "get",
            |_| PyBytes::new(py, b""),
            || {
                let key = self::key(key)?;
                let Some(client) = self.buffered("get") else { return Ok(PyBytes::new(py, b"")) };
                Ok(self.get_bytes(py, &client, &[key]).remove(0))
            },
        )
    }

    #[pyo3(signature = (keys, /))]
    fn get_batch<'py>(&self, py: Python<'py>, keys: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        entry(
            &self.errors,
            "get_batch",
            |_| vec![PyBytes::new(py, b"")],
            || {
                let held = Keys::hold(keys)?;
                let keys = held.slices()?;
                match self.buffered("get_batch") {
                    Some(client) if !keys.is_empty() => Ok(self.get_bytes(py, &client, &keys)),
                    // As the reference: one empty value, whatever was asked.
                    _ => Ok(vec![PyBytes::new(py, b"")]),
                }
            },
        )
    }

    #[pyo3(signature = (key, /))]
    fn get_buffer(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Option<BufferHandle>> {
        entry(
            &self.errors,
            "get_buffer",
            |_| None,
            || {
                let key = self::key(key)?;
                let Some(client) = self.buffered("get_buffer") else { return Ok(None) };
                Ok(self.views(py, &client, &[key]).remove(0))
            },
        )
    }

    #[pyo3(signature = (keys, /))]
    fn batch_get_buffer(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Vec<Option<BufferHandle>>> {
        let held = Keys::hold(keys)?;
        let none = |_| (0..held.len()).map(|_| None).collect();
        entry(&self.errors, "batch_get_buffer", none, || {
            let keys = held.slices()?;
            let Some(client) = self.buffered("batch_get_buffer") else { return Ok(none(INTERNAL)) };
            Ok(self.views(py, &client, &keys))
        })
    }

    // -------------------------------------------------------------- queries

    #[pyo3(signature = (key, /))]
    fn is_exist(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<i64> {
        entry(
            &self.errors,
            "is_exist",
            |code| code,
            || {
                let key = self::key(key)?;
                let Some(client) = self.client("is_exist") else { return Ok(INVALID_PARAMS) };
                Ok(self.exist(py, &client, &[key])[0])
            },
        )
    }

    #[pyo3(signature = (keys))]
    fn batch_is_exist(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
        let held = Keys::hold(keys)?;
        let all = |code| vec![code; held.len()];
        entry(&self.errors, "batch_is_exist", all, || {
            let keys = held.slices()?;
            let Some(client) = self.client("batch_is_exist") else { return Ok(all(INVALID_PARAMS)) };
            Ok(self.exist(py, &client, &keys))
        })
    }

    #[pyo3(signature = (key, /))]
    fn get_size(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<i64> {
        entry(
            &self.errors,
            "get_size",
            |code| code,
            || {
                let key = self::key(key)?;
                let Some(client) = self.client("get_size") else { return Ok(INVALID_PARAMS) };
                Ok(match py.detach(|| client.sizes(&[key])) {
                    Ok(sizes) => sizes[0].map_or(NOT_FOUND, |bytes| bytes as i64),
                    Err(error) => failed(&self.errors, &error),
                })
            },
        )
    }

    #[pyo3(signature = (key, force=Flag(false)), text_signature = "($self, key, force=False)")]
    fn remove(&self, py: Python<'_>, key: &Bound<'_, PyAny>, force: Flag) -> PyResult<i64> {
        entry(
            &self.errors,
            "remove",
            |code| code,
            || {
                let key = self::key(key)?;
                let Some(client) = self.client("remove") else { return Ok(INVALID_PARAMS) };
                Ok(self.remove_keys(py, &client, &[key], force.0)[0])
            },
        )
    }

    #[pyo3(signature = (keys, force=Flag(false)), text_signature = "($self, keys, force=False)")]
    fn batch_remove(&self, py: Python<'_>, keys: &Bound<'_, PyAny>, force: Flag) -> PyResult<Vec<i64>> {
        let held = Keys::hold(keys)?;
        let all = |code| vec![code; held.len()];
        entry(&self.errors, "batch_remove", all, || {
            let keys = held.slices()?;
            let Some(client) = self.client("batch_remove") else { return Ok(all(INVALID_PARAMS)) };
            Ok(self.remove_keys(py, &client, &keys, force.0))
        })
    }

    #[pyo3(signature = (force=Flag(false)), text_signature = "($self, force=False)")]
    fn remove_all(&self, py: Python<'_>, force: Flag) -> PyResult<i64> {
        entry(
            &self.errors,
            "remove_all",
            |code| code,
            || {
                let Some(client) = self.client("remove_all") else { return Ok(INVALID_PARAMS) };
                Ok(match py.detach(|| client.remove_all(force.0)) {
                    Ok(removed) => removed as i64,
                    Err(error) => failed(&self.errors, &error),
                })
            },
        )
    }

    // ------------------------------------------------------------ zero copy

    #[pyo3(signature = (buffer_ptr, size))]
    fn register_buffer(&self, py: Python<'_>, buffer_ptr: &Bound<'_, PyAny>, size: &Bound<'_, PyAny>) -> PyResult<i64> {
        entry(
            &self.errors,
            "register_buffer",
            |code| code,
            || {
                let memory = range(unsigned(buffer_ptr, "buffer_ptr")?, unsigned(size, "size")?);
                let Some(client) = self.client("register_buffer") else { return Ok(INVALID_PARAMS) };
                Ok(match py.detach(|| client.register(memory)) {
                    Ok(()) => OK,
                    Err(error) => failed(&self.errors, &error),
                })
            },
        )
    }

    #[pyo3(signature = (buffer_ptr))]
    fn unregister_buffer(&self, py: Python<'_>, buffer_ptr: &Bound<'_, PyAny>) -> PyResult<i64> {
        entry(
            &self.errors,
            "unregister_buffer",
            |code| code,
            || {
                let addr = unsigned(buffer_ptr, "buffer_ptr")?;
                let Some(client) = self.client("unregister_buffer") else { return Ok(INVALID_PARAMS) };
                Ok(match py.detach(|| client.unregister(addr as usize)) {
                    Ok(()) => OK,
                    Err(error) => failed(&self.errors, &error),
                })
            },
        )
    }

    #[pyo3(signature = (key, buffer_ptr, size, config=None))]
    fn put_from(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        buffer_ptr: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        config: Option<&Bound<'_, ReplicateConfig>>,
    ) -> PyResult<i64> {
        entry(
            &self.errors,
            "put_from",
            |code| code,
            || {
                let key = self::key(key)?;
                let (ptr, size) = (unsigned(buffer_ptr, "buffer_ptr")?, unsigned(size, "size")?);
                let Some(client) = self.client("put_from") else { return Ok(INVALID_PARAMS) };
                if size == 0 {
                    return Ok(OK);
                }
                let source = Source::foreign(range(ptr, size), client.registry());
                Ok(self.put_sources(py, &client, key, &[source], config))
            },
        )
    }

    #[pyo3(signature = (key, buffer_ptr, size))]
    fn get_into(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        buffer_ptr: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
    ) -> PyResult<i64> {
        entry(
            &self.errors,
            "get_into",
            |code| code,
            || {
                let key = self::key(key)?;
                let memory = range(unsigned(buffer_ptr, "buffer_ptr")?, unsigned(size, "size")?);
                let Some(client) = self.client("get_into") else { return Ok(INVALID_PARAMS) };
                let outcome = py.detach(|| {
                    let target = Target::foreign(memory, client.registry());
                    client.get_into(&mut [GetInto { key, targets: vec![target] }]).remove(0)
                });
                Ok(self.bytes_read(&client, outcome))
            },
        )
    }

    #[pyo3(signature = (keys, buffer_ptrs, sizes, config=None))]
    fn batch_put_from(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        buffer_ptrs: &Bound<'_, PyAny>,
        sizes: &Bound<'_, PyAny>,
        config: Option<&Bound<'_, ReplicateConfig>>,
    ) -> PyResult<Vec<i64>> {
        let pieces = Pieces::single(keys, buffer_ptrs, sizes)?;
        entry(
            &self.errors,
            "batch_put_from",
            |code| vec![code; pieces.keys.len()],
            || self.put_pieces(py, "batch_put_from", &pieces, config, Form::Plain),
        )
    }

    #[pyo3(signature = (keys, buffer_ptrs, sizes))]
    fn batch_get_into(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        buffer_ptrs: &Bound<'_, PyAny>,
        sizes: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<i64>> {
        let pieces = Pieces::single(keys, buffer_ptrs, sizes)?;
        entry(
            &self.errors,
            "batch_get_into",
            |code| vec![code; pieces.keys.len()],
            || self.get_pieces(py, "batch_get_into", &pieces),
        )
    }

    #[pyo3(signature = (keys, all_buffer_ptrs, all_sizes, config=None))]
    fn batch_put_from_multi_buffers(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        all_buffer_ptrs: &Bound<'_, PyAny>,
        all_sizes: &Bound<'_, PyAny>,
        config: Option<&Bound<'_, ReplicateConfig>>,
    ) -> PyResult<Vec<i64>> {
        let pieces = Pieces::multi(keys, all_buffer_ptrs, all_sizes)?;
        entry(
            &self.errors,
            "batch_put_from_multi_buffers",
            |code| vec![code; pieces.keys.len()],
            || self.put_pieces(py, "batch_put_from_multi_buffers", &pieces, config, Form::MultiBuffers),
        )
    }

    #[pyo3(
        signature = (keys, all_buffer_ptrs, all_sizes, prefer_alloc_in_same_node=Flag(false)),
        text_signature = "($self, keys, all_buffer_ptrs, all_sizes, prefer_alloc_in_same_node=False)"
    )]
    fn batch_get_into_multi_buffers(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        all_buffer_ptrs: &Bound<'_, PyAny>,
        all_sizes: &Bound<'_, PyAny>,
        prefer_alloc_in_same_node: Flag,
    ) -> PyResult<Vec<i64>> {
        // Replicas on this host are read first in any case.
        let Flag(_) = prefer_alloc_in_same_node;
        let pieces = Pieces::multi(keys, all_buffer_ptrs, all_sizes)?;
        entry(
            &self.errors,
            "batch_get_into_multi_buffers",
            |code| vec![code; pieces.keys.len()],
            || self.get_pieces(py, "batch_get_into_multi_buffers", &pieces),
        )
    }
}

impl Drop for MooncakeDistributedStore {
    fn drop(&mut self) {
        let Some(live) = self.live.write().take() else { return };
        // The interpreter may be on its way out: then the exit handler has closed it, or the process ends anyway.
        Python::try_attach(|py| py.detach(|| live.client.close()));
    }
}

fn drop_client(live: Option<Live>) {
    if let Some(live) = live {
        live.client.close();
    }
}

/// Positions of the first occurrence of each key: of a key given twice, the reference stores the first value.
fn first_of_each<'a>(keys: &'a [&'a [u8]]) -> impl Iterator<Item = usize> + 'a {
    let mut seen = HashSet::with_capacity(keys.len());
    (0..keys.len()).filter(move |at| seen.insert(keys[*at]))
}
