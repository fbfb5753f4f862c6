//! `MooncakeDistributedStore`: the list of its methods, as Python sees them.
//!
//! Long because a class has one block of methods, and each needs its own signature. What they do is in `writing`,
//! `reading`, `segments` and `setup`.

use mooncake_client::{Destination, ForeignRange, GetInto, Health, RunsOut, Store, StoreError};
use mooncake_client_http::ClientServer;
use mooncake_memory::{allocate_shared, free_host_memory};
use mooncake_os::forked;
use parking_lot::{Mutex, RwLock};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple, PyType};

use crate::code::{ABSENT, FORKED, INTERNAL, INVALID_PARAMS, MASTER_UNREACHABLE, OK, code, health};
use crate::convert::buffers::{Pieces, range};
use crate::convert::flag::Flag;
use crate::convert::integer::unsigned;
use crate::convert::key::{Keys, key};
use crate::convert::text::{path, text, texts};
use crate::entry::last_error::LastError;
use crate::entry::log;
use crate::entry::{entry, failed, refused};
use crate::store::buffer_handle::BufferHandle;
use crate::store::open_stores;
use crate::store::options::Form;
use crate::store::ranges::Ranges;
use crate::store::replicate_config::ReplicateConfig;
use crate::store::segments;
use crate::store::sessions::Parts;
use crate::store::setup;
use crate::store::writing::Write;

/// A client that is set up.
struct Live {
    /// Ends before the client does.
    http: Option<ClientServer>,
    client: Store,
    /// `local_buffer_size=0`: it lends memory, and the calls that go through the local buffer are refused.
    storage_only: bool,
    /// Bytes.
    local_buffer_size: u64,
    /// "host:port" of the storage node that it was set up through; then it has no name of its own.
    node: Option<String>,
    /// "host:port" of the master, as it was given.
    master: String,
}

/// A store client: one session with the master, whatever process it is in.
#[pyclass(frozen, subclass, module = "mooncake.store")]
pub struct MooncakeDistributedStore {
    live: RwLock<Option<Live>>,
    errors: LastError,
    /// What `alloc_from_mem_pool` gave, by address. It goes with this object, when no call can be at work in it any
    /// more.
    pool: Mutex<Vec<usize>>,
}

impl MooncakeDistributedStore {
    /// Reasons of failed calls.
    pub(crate) fn errors(&self) -> &LastError {
        &self.errors
    }

    /// The client, or None with a reason.
    pub(crate) fn client(&self, name: &str) -> Option<Store> {
        self.of_live(name, |live| live.client.clone())
    }

    /// None when it was not set up, which is no failure.
    pub(crate) fn live_client(&self) -> Option<Store> {
        self.live.read().as_ref().map(|live| live.client.clone())
    }

    /// What `setup` was given, in bytes; None when it was not set up.
    pub(crate) fn local_buffer_size(&self) -> Option<u64> {
        self.live.read().as_ref().map(|live| live.local_buffer_size)
    }

    /// Refuses memory that begins in a registered buffer and runs out of it. A store that is not set up has none.
    pub(crate) fn check_memory(&self, memory: ForeignRange) -> Result<(), RunsOut> {
        self.live.read().as_ref().map_or(Ok(()), |live| live.client.registry().check(memory))
    }

    /// As `client`, for calls that need the local buffer.
    pub(crate) fn buffered(&self, name: &str) -> Option<Store> {
        let (client, storage_only) = self.of_live(name, |live| (live.client.clone(), live.storage_only))?;
        if storage_only {
            self.errors.set(|| format!("{name}: this store was set up with local_buffer_size=0, it only lends memory"));
            return None;
        }
        Some(client)
    }

    /// Something of what is set up, or None with a reason.
    fn of_live<T>(&self, name: &str, something: impl FnOnce(&Live) -> T) -> Option<T> {
        let found = self.live.read().as_ref().map(something);
        if found.is_none() {
            self.errors.set(|| format!("{name}: the store is not set up, or was closed; call setup() first"));
        }
        found
    }

    /// The storage node that this store was set up through, if it was.
    pub(crate) fn node(&self) -> Option<String> {
        self.live.read().as_ref().and_then(|live| live.node.clone())
    }

    /// Replaces what is set up, as Mooncake: a second setup ends the first. It does so before it begins, and thus
    /// also when it fails: it may want the same port, and the memory.
    fn begin(
        &self,
        py: Python<'_>,
        local_buffer_size: u64,
        node: Option<String>,
        http_port: Option<u64>,
        connect: impl FnOnce() -> Result<Store, StoreError> + Send,
    ) -> PyResult<i64> {
        let before = self.live.write().take();
        let replaces = before.is_some();
        let connected = py.detach(|| {
            drop_client(before);
            let client = connect()?;
            let http = http_port.and_then(|port| setup::serve_http(port, &client));
            Ok::<_, StoreError>((client, http))
        });
        match connected {
            Ok((client, http)) => {
                open_stores::remember(py, &client)?;
                let storage_only = local_buffer_size == 0 && node.is_none();
                // Another thread may have set it up meanwhile: the last one counts, as said.
                let master = client.master();
                let live = Live { http, client, storage_only, local_buffer_size, node, master };
                let overtaken = self.live.write().replace(live);
                py.detach(|| drop_client(overtaken));
                Ok(OK)
            }
            Err(error) => {
                if replaces {
                    self.errors.set_code(code(error.kind()), || format!("{error}; what was set up before is closed"));
                }
                Ok(failed(&self.errors, &error))
            }
        }
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
        Ok(Self { live: RwLock::new(None), errors: LastError::new(), pool: Mutex::default() })
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let name = slf.get_type().name()?;
        let Some(live) = slf.get().live.try_read() else { return Ok(format!("<{name}>")) };
        Ok(match live.as_ref() {
            None => format!("<{name}, not set up>"),
            Some(live) if live.client.is_closed() => format!("<{name}, closed>"),
            Some(Live { node: Some(node), master, .. }) => format!("<{name} through node {node} at master {master}>"),
            Some(live) => format!("<{name} {} at master {}>", live.client.hostname(), live.master),
        })
    }

    // ------------------------------------------------------------ lifecycle

    #[doc = doc!(setup)]
    #[pyo3(
        signature = (*args, **kwargs),
        text_signature = "($self, local_hostname, metadata_server, global_segment_size, local_buffer_size, protocol, \
                          rdma_devices, master_server_addr, engine=None, enable_ssd_offload=False, \
                          ssd_offload_path='', tenant_id='default', enable_client_http_server=False, \
                          client_http_port=9300)"
    )]
    fn setup(&self, py: Python<'_>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<i64> {
        entry(
            &self.errors,
            "setup",
            |code| code,
            || {
                log::read_level(py);
                let setup = match setup::parse(args, kwargs)? {
                    Ok(setup) => setup,
                    Err(reason) => return Ok(refused(&self.errors, || reason)),
                };
                let (local_buffer_size, http_port) = (setup.local_buffer_size, setup.http_port);
                match setup.options() {
                    Ok(options) => self.begin(py, local_buffer_size, None, http_port, || Store::connect(options)),
                    Err(error) => Ok(failed(&self.errors, &error)),
                }
            },
        )
    }

    #[doc = doc!(setup_dummy)]
    #[pyo3(signature = (mem_pool_size, local_buffer_size, server_address))]
    fn setup_dummy(
        &self,
        py: Python<'_>,
        mem_pool_size: &Bound<'_, PyAny>,
        local_buffer_size: &Bound<'_, PyAny>,
        server_address: &Bound<'_, PyAny>,
    ) -> PyResult<i64> {
        entry(
            &self.errors,
            "setup_dummy",
            |code| code,
            || {
                log::read_level(py);
                // There is no pool of its own: the memory of the nodes is mapped.
                unsigned(mem_pool_size, "mem_pool_size")?;
                let buffer = unsigned(local_buffer_size, "local_buffer_size")?;
                let node = text(server_address, "server_address")?;
                let connect = || setup::connect_dummy(&node, buffer);
                let code = self.begin(py, buffer, Some(node.clone()), None, connect)?;
                Ok(if code == OK { OK } else { INTERNAL })
            },
        )
    }

    #[doc = doc!(close)]
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

    #[doc = doc!(health_check)]
    fn health_check(&self, py: Python<'_>) -> PyResult<i64> {
        entry(
            &self.errors,
            "health_check",
            |code| code,
            || {
                let Some(client) = self.client("health_check") else { return Ok(1) };
                let found = py.detach(|| client.health());
                if let Health::MasterUnreachable = found {
                    self.errors.set_code(MASTER_UNREACHABLE, || {
                        "health_check: the master does not answer; is mooncake_master running?".into()
                    });
                }
                Ok(health(found))
            },
        )
    }

    #[doc = doc!(get_hostname)]
    fn get_hostname(&self) -> String {
        let live = self.live.read();
        live.as_ref()
            .filter(|live| live.node.is_none())
            .map(|live| live.client.hostname().to_owned())
            .unwrap_or_default()
    }

    #[doc = doc!(alloc_from_mem_pool)]
    #[pyo3(signature = (size, /))]
    fn alloc_from_mem_pool(&self, py: Python<'_>, size: &Bound<'_, PyAny>) -> PyResult<usize> {
        const NAME: &str = "alloc_from_mem_pool";
        entry(
            &self.errors,
            NAME,
            |_| 0,
            || {
                let size = unsigned(size, "size")?;
                let Some(has_pool) = self.of_live(NAME, |live| live.node.is_some()) else { return Ok(0) };
                if !has_pool {
                    self.errors.set(|| format!("{NAME}: only a store that setup_dummy() has set up has a pool"));
                    return Ok(0);
                }
                if forked() {
                    self.errors.set_code(FORKED, || format!("{NAME}: this process was forked from the store's"));
                    return Ok(0);
                }
                match py.detach(|| allocate_shared(size)) {
                    Ok(addr) => {
                        self.pool.lock().push(addr);
                        Ok(addr)
                    }
                    Err(error) => {
                        self.errors.set(|| format!("{NAME}: {size} bytes: {error}"));
                        Ok(0)
                    }
                }
            },
        )
    }

    #[doc = doc!(last_error)]
    fn last_error(&self) -> String {
        self.errors.get()
    }

    // ---------------------------------------------------------------- bytes

    #[doc = doc!(put)]
    #[pyo3(signature = (key, value, config=None))]
    fn put(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        config: Option<&Bound<'_, ReplicateConfig>>,
    ) -> PyResult<i64> {
        entry(&self.errors, "put", |code| code, || self.put_value(py, "put", key, value, config, Write::Put))
    }

    #[doc = doc!(put_parts)]
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
            || self.put_all_parts(py, "put_parts", key, parts, config, Write::Put),
        )
    }

    #[doc = doc!(put_batch)]
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
            || self.put_values(py, "put_batch", keys, values, config, Write::Put),
        )
    }

    /// A code for each object: what single puts that wait together become.
    fn _put_each(&self, py: Python<'_>, keys: &Bound<'_, PyAny>, values: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
        let held = Keys::hold(keys)?;
        entry(&self.errors, "put", |code| vec![code; held.len()], || self.put_each(py, &held, values))
    }

    #[doc = doc!(get)]
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

    #[doc = doc!(get_batch)]
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
                    // As Mooncake: one empty value, whatever was asked.
                    _ => Ok(vec![PyBytes::new(py, b"")]),
                }
            },
        )
    }

    #[doc = doc!(get_buffer)]
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

    #[doc = doc!(batch_get_buffer)]
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

    #[doc = doc!(is_exist)]
    #[pyo3(signature = (key, /))]
    fn is_exist(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<i64> {
        entry(
            &self.errors,
            "is_exist",
            |code| code,
            || {
                let key = self::key(key)?;
                // Engines take any other answer than 0 for a yes.
                let Some(client) = self.client("is_exist") else { return Ok(ABSENT) };
                Ok(self.exist(py, &client, &[key])[0])
            },
        )
    }

    #[doc = doc!(batch_is_exist)]
    #[pyo3(signature = (keys))]
    fn batch_is_exist(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
        let held = Keys::hold(keys)?;
        let all = |code| vec![code; held.len()];
        entry(&self.errors, "batch_is_exist", all, || {
            let keys = held.slices()?;
            let Some(client) = self.client("batch_is_exist") else { return Ok(all(ABSENT)) };
            Ok(self.exist(py, &client, &keys))
        })
    }

    #[doc = doc!(get_size)]
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
                    Ok(sizes) => sizes[0].map_or_else(|| self.missing(&client), |bytes| bytes as i64),
                    Err(error) => failed(&self.errors, &error),
                })
            },
        )
    }

    #[doc = doc!(remove)]
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

    #[doc = doc!(batch_remove)]
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

    #[doc = doc!(remove_all)]
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

    #[doc = doc!(remove_by_regex)]
    #[pyo3(signature = (regex_pattern, force=Flag(false)), text_signature = "($self, regex_pattern, force=False)")]
    fn remove_by_regex(&self, py: Python<'_>, regex_pattern: &Bound<'_, PyAny>, force: Flag) -> PyResult<i64> {
        entry(
            &self.errors,
            "remove_by_regex",
            |code| code,
            || {
                let pattern = text(regex_pattern, "regex_pattern")?;
                let Some(client) = self.client("remove_by_regex") else { return Ok(INVALID_PARAMS) };
                Ok(match py.detach(|| client.remove_by_regex(&pattern, force.0)) {
                    Ok(removed) => removed as i64,
                    Err(error) => failed(&self.errors, &error),
                })
            },
        )
    }

    fn _describe(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Vec<Option<Vec<segments::ReplicaTuple>>>> {
        let held = Keys::hold(keys)?;
        let none = |_| vec![None; held.len()];
        entry(&self.errors, "batch_get_replica_desc", none, || {
            Ok(self.describe_keys(py, "batch_get_replica_desc", &held.slices()?))
        })
    }

    // ------------------------------------------------------------- segments

    fn _mount_memory(&self, py: Python<'_>, size: &Bound<'_, PyAny>) -> PyResult<segments::Mounted> {
        const NAME: &str = "allocate_and_mount_segment";
        entry(
            &self.errors,
            NAME,
            |code| (code, Vec::new(), 0),
            || Ok(self.give_memory(py, NAME, unsigned(size, "size")?)),
        )
    }

    fn _mount_file(
        &self,
        py: Python<'_>,
        file: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        offset: &Bound<'_, PyAny>,
    ) -> PyResult<segments::Mounted> {
        const NAME: &str = "mount_segment";
        entry(
            &self.errors,
            NAME,
            |code| (code, Vec::new(), 0),
            || {
                let (size, offset) = (unsigned(size, "size")?, unsigned(offset, "offset")?);
                Ok(self.give_file(py, NAME, &path(file, "path")?, offset, size))
            },
        )
    }

    fn _unmount(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        grace_period_seconds: &Bound<'_, PyAny>,
    ) -> PyResult<i64> {
        const NAME: &str = "unmount_segment";
        entry(
            &self.errors,
            NAME,
            |code| code,
            || {
                let grace = unsigned(grace_period_seconds, "grace_period_seconds")?;
                Ok(self.take_back(py, NAME, &texts(ids, "segment_ids")?, grace))
            },
        )
    }

    #[doc = doc!(unmount_local_disk_segment)]
    #[pyo3(signature = (grace_period_seconds=None), text_signature = "($self, grace_period_seconds=0)")]
    fn unmount_local_disk_segment(
        &self,
        py: Python<'_>,
        grace_period_seconds: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<i64> {
        const NAME: &str = "unmount_local_disk_segment";
        entry(
            &self.errors,
            NAME,
            |code| code,
            || {
                let grace = grace_period_seconds.map_or(Ok(0), |seconds| unsigned(seconds, "grace_period_seconds"))?;
                Ok(self.leave_tier(py, grace))
            },
        )
    }

    #[doc = doc!(get_offload_rpc_read_count)]
    fn get_offload_rpc_read_count(&self) -> u64 {
        self.live_client().map_or(0, |client| client.tier_reads())
    }

    #[doc = doc!(batch_replica_clear)]
    #[pyo3(signature = (keys, segment_name=None), text_signature = "($self, keys, segment_name='')")]
    fn batch_replica_clear<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        segment_name: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        const NAME: &str = "batch_replica_clear";
        let segment = segment_name.map_or(Ok(String::new()), |name| text(name, "segment_name"))?;
        let held = Keys::hold(keys)?;
        entry(
            &self.errors,
            NAME,
            |_| Vec::new(),
            || {
                let Some(client) = self.client(NAME) else { return Ok(Vec::new()) };
                let cleared = self.clear_keys(py, &client, &held.slices()?, &segment);
                Ok(held
                    .objects()
                    .iter()
                    .zip(cleared)
                    .filter(|(_, cleared)| *cleared)
                    .map(|(key, _)| key.clone())
                    .collect())
            },
        )
    }

    // -------------------------------------------------------------- upserts

    #[doc = doc!(upsert)]
    #[pyo3(signature = (key, value, config=None))]
    fn upsert(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        config: Option<&Bound<'_, ReplicateConfig>>,
    ) -> PyResult<i64> {
        entry(&self.errors, "upsert", |code| code, || self.put_value(py, "upsert", key, value, config, Write::Upsert))
    }

    #[doc = doc!(upsert_parts)]
    #[pyo3(signature = (key, *parts, config=None))]
    fn upsert_parts(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        parts: &Bound<'_, PyTuple>,
        config: Option<&Bound<'_, ReplicateConfig>>,
    ) -> PyResult<i64> {
        entry(
            &self.errors,
            "upsert_parts",
            |code| code,
            || self.put_all_parts(py, "upsert_parts", key, parts, config, Write::Upsert),
        )
    }

    #[doc = doc!(upsert_batch)]
    #[pyo3(signature = (keys, values, config=None))]
    fn upsert_batch(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        config: Option<&Bound<'_, ReplicateConfig>>,
    ) -> PyResult<i64> {
        entry(
            &self.errors,
            "upsert_batch",
            |code| code,
            || self.put_values(py, "upsert_batch", keys, values, config, Write::Upsert),
        )
    }

    #[doc = doc!(upsert_from)]
    #[pyo3(signature = (key, buffer_ptr, size, config=None))]
    fn upsert_from(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        buffer_ptr: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        config: Option<&Bound<'_, ReplicateConfig>>,
    ) -> PyResult<i64> {
        entry(
            &self.errors,
            "upsert_from",
            |code| code,
            || self.put_memory(py, "upsert_from", key, buffer_ptr, size, config, Write::Upsert),
        )
    }

    #[doc = doc!(batch_upsert_from)]
    #[pyo3(signature = (keys, buffer_ptrs, sizes, config=None))]
    fn batch_upsert_from(
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
            "batch_upsert_from",
            |code| vec![code; pieces.keys.len()],
            || self.put_pieces(py, "batch_upsert_from", &pieces, config, Form::Plain, Write::Upsert),
        )
    }

    #[pyo3(signature = (keys, all_buffer_ptrs, all_sizes, config=None))]
    fn _batch_upsert_from_multi_buffers(
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
            "batch_upsert_from_multi_buffers",
            |code| vec![code; pieces.keys.len()],
            || {
                self.put_pieces(
                    py,
                    "batch_upsert_from_multi_buffers",
                    &pieces,
                    config,
                    Form::MultiBuffers,
                    Write::Upsert,
                )
            },
        )
    }

    // ------------------------------------------------------------ zero copy

    #[doc = doc!(register_buffer)]
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

    #[doc = doc!(unregister_buffer)]
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

    #[doc = doc!(put_from)]
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
            || self.put_memory(py, "put_from", key, buffer_ptr, size, config, Write::Put),
        )
    }

    #[doc = doc!(put_from_with_metadata)]
    #[pyo3(signature = (key, buffer_ptr, metadata_buffer_ptr, size, metadata_size, config=None))]
    #[expect(clippy::too_many_arguments, reason = "those of the Python method")]
    fn put_from_with_metadata(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        buffer_ptr: &Bound<'_, PyAny>,
        metadata_buffer_ptr: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        metadata_size: &Bound<'_, PyAny>,
        config: Option<&Bound<'_, ReplicateConfig>>,
    ) -> PyResult<i64> {
        entry(
            &self.errors,
            "put_from_with_metadata",
            |code| code,
            || {
                let data = (unsigned(buffer_ptr, "buffer_ptr")?, unsigned(size, "size")?);
                let metadata =
                    (unsigned(metadata_buffer_ptr, "metadata_buffer_ptr")?, unsigned(metadata_size, "metadata_size")?);
                self.put_two(py, key, metadata, data, config)
            },
        )
    }

    #[doc = doc!(get_into_ranges)]
    #[pyo3(signature = (buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes))]
    fn get_into_ranges(
        &self,
        py: Python<'_>,
        buffer_ptrs: &Bound<'_, PyAny>,
        all_keys: &Bound<'_, PyAny>,
        all_dst_offsets: &Bound<'_, PyAny>,
        all_src_offsets: &Bound<'_, PyAny>,
        all_sizes: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<Vec<Vec<i64>>>> {
        let wanted = Ranges::hold(buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes)?;
        entry(&self.errors, "get_into_ranges", |code| wanted.all(code), || self.get_ranges(py, &wanted))
    }

    #[doc = doc!(get_into)]
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
                    let destination = Destination::foreign(memory, client.registry())?;
                    client.get_into(&mut [GetInto { key, destinations: vec![destination] }]).remove(0)
                });
                Ok(self.bytes_read(&client, outcome))
            },
        )
    }

    #[doc = doc!(batch_put_from)]
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
            || self.put_pieces(py, "batch_put_from", &pieces, config, Form::Plain, Write::Put),
        )
    }

    #[doc = doc!(batch_get_into)]
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

    #[doc = doc!(batch_put_from_multi_buffers)]
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
            || self.put_pieces(py, "batch_put_from_multi_buffers", &pieces, config, Form::MultiBuffers, Write::Put),
        )
    }

    #[doc = doc!(batch_get_into_multi_buffers)]
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

    // ------------------------------------------------------------- sessions

    #[doc = doc!(batch_get_session_start)]
    #[pyo3(signature = (keys))]
    fn batch_get_session_start(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
        let keys = Keys::hold(keys)?;
        entry(
            &self.errors,
            "batch_get_session_start",
            |code| vec![code; keys.len()],
            || self.start_get_sessions(py, &keys),
        )
    }

    #[doc = doc!(batch_get_into_multi_buffer_ranges)]
    #[pyo3(signature = (keys, all_buffer_ptrs, all_sizes, all_src_offsets))]
    fn batch_get_into_multi_buffer_ranges(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        all_buffer_ptrs: &Bound<'_, PyAny>,
        all_sizes: &Bound<'_, PyAny>,
        all_src_offsets: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<i64>> {
        let parts = Parts::hold(keys, all_buffer_ptrs, all_sizes, all_src_offsets, "all_src_offsets")?;
        entry(
            &self.errors,
            "batch_get_into_multi_buffer_ranges",
            |code| vec![code; parts.keys.len()],
            || self.read_in_sessions(py, &parts),
        )
    }

    #[doc = doc!(batch_get_session_end)]
    #[pyo3(signature = (keys))]
    fn batch_get_session_end(&self, keys: &Bound<'_, PyAny>) -> PyResult<i64> {
        let keys = Keys::hold(keys)?;
        entry(&self.errors, "batch_get_session_end", |code| code, || self.end_get_sessions(&keys))
    }

    #[doc = doc!(batch_put_session_start)]
    #[pyo3(signature = (keys, sizes, config=None))]
    fn batch_put_session_start(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        sizes: &Bound<'_, PyAny>,
        config: Option<&Bound<'_, ReplicateConfig>>,
    ) -> PyResult<Vec<i64>> {
        let keys = Keys::hold(keys)?;
        entry(
            &self.errors,
            "batch_put_session_start",
            |code| vec![code; keys.len()],
            || self.start_put_sessions(py, &keys, sizes, config),
        )
    }

    #[doc = doc!(batch_put_from_multi_buffer_ranges)]
    #[pyo3(signature = (keys, all_buffer_ptrs, all_sizes, all_dst_offsets))]
    fn batch_put_from_multi_buffer_ranges(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        all_buffer_ptrs: &Bound<'_, PyAny>,
        all_sizes: &Bound<'_, PyAny>,
        all_dst_offsets: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<i64>> {
        let parts = Parts::hold(keys, all_buffer_ptrs, all_sizes, all_dst_offsets, "all_dst_offsets")?;
        entry(
            &self.errors,
            "batch_put_from_multi_buffer_ranges",
            |code| vec![code; parts.keys.len()],
            || self.write_in_sessions(py, &parts),
        )
    }

    #[doc = doc!(batch_put_session_end)]
    #[pyo3(signature = (keys))]
    fn batch_put_session_end(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
        let keys = Keys::hold(keys)?;
        entry(
            &self.errors,
            "batch_put_session_end",
            |code| vec![code; keys.len()],
            || self.end_put_sessions(py, &keys, false),
        )
    }

    #[doc = doc!(batch_put_session_revoke)]
    #[pyo3(signature = (keys))]
    fn batch_put_session_revoke(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
        let keys = Keys::hold(keys)?;
        entry(
            &self.errors,
            "batch_put_session_revoke",
            |code| vec![code; keys.len()],
            || self.end_put_sessions(py, &keys, true),
        )
    }
}

impl Drop for MooncakeDistributedStore {
    fn drop(&mut self) {
        if let Some(live) = self.live.get_mut().take() {
            // The interpreter may be on its way out: then the exit handler has closed it, or the process ends anyway.
            Python::try_attach(|py| py.detach(|| drop_client(Some(live))));
        }
        if forked() {
            // The parent's, and its locks may be held for ever.
            return;
        }
        for addr in self.pool.get_mut().drain(..) {
            // SAFETY: the caller's until the store is gone; calls of the store, which would hold it, have ended.
            unsafe { free_host_memory(addr) };
        }
    }
}

fn drop_client(live: Option<Live>) {
    if let Some(live) = live {
        drop(live.http);
        live.client.close();
    }
}
