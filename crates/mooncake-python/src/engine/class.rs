//! `mooncake.engine`: the transfer engine under the names and codes of Mooncake.
//!
//! Long because a class has one block of methods, and each needs its own signature. What they take over from Python is
//! in `transfer_call`, and what they do with an engine and its memory in `held_engine`.

use std::sync::Arc;
use std::time::Duration;

use mooncake_memory::{ForeignRange, wait_for_stream};
use mooncake_settings::environment::{self, Reader};
use mooncake_transfer_engine::{
    BatchId, Engine, EngineError, EngineOptions, Notify, Opcode, Protocol, Request, Status, Topology,
};
use parking_lot::RwLock;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::convert::buffers::range;
use crate::convert::integer::{unsigned, unsigned_list};
use crate::convert::text::text;
use crate::engine::held_engine::Held;
use crate::engine::transfer_call::{Call, TransferNotify, opcode_of};
use crate::entry::entry;
use crate::entry::interrupt;
use crate::entry::last_error::LastError;
use crate::entry::log::{logging, read_level};
use crate::entry::notice::warn_ignored_variables;

/// One engine, once `initialize` has made it.
#[pyclass(frozen, subclass, module = "mooncake.engine")]
pub struct TransferEngine {
    engine: RwLock<Option<Arc<Held>>>,
    errors: LastError,
}

/// An engine as others hold it: it goes on while they do.
#[pyclass(frozen, module = "mooncake.engine")]
pub struct InnerTransferEngine(#[expect(dead_code, reason = "it is held, and asked nothing")] Arc<Held>);

#[pymethods]
impl TransferEngine {
    #[new]
    fn new() -> Self {
        Self { engine: RwLock::new(None), errors: LastError::new() }
    }

    // ---------------------------------------------------------- beginning and end

    /// 0, or -1 and a reason. `metadata_server`: `P2PHANDSHAKE`, or a URL of `http://` or `https://`. `protocol`:
    /// `tcp`; or `rdma`, with `tcp` in its place where there is no device, and a warning. `device_name`: the devices
    /// that the topology is to have, with commas between them; all if it is empty.
    #[pyo3(signature = (local_hostname, metadata_server, protocol, device_name, /))]
    fn initialize(
        &self,
        py: Python<'_>,
        local_hostname: &Bound<'_, PyAny>,
        metadata_server: &Bound<'_, PyAny>,
        protocol: &Bound<'_, PyAny>,
        device_name: &Bound<'_, PyAny>,
    ) -> PyResult<i64> {
        let host = text(local_hostname, "local_hostname")?;
        let metadata = text(metadata_server, "metadata_server")?;
        let protocol = text(protocol, "protocol")?;
        let devices = text(device_name, "device_name")?;
        self.call("initialize", |e| e.begin(py, &host, &metadata, &protocol, &devices))
    }

    /// As `initialize`; `metadata_type` is the scheme of a `metadata_server` that has none.
    #[pyo3(signature = (local_hostname, metadata_server, protocol, device_name, metadata_type, /))]
    fn initialize_ext(
        &self,
        py: Python<'_>,
        local_hostname: &Bound<'_, PyAny>,
        metadata_server: &Bound<'_, PyAny>,
        protocol: &Bound<'_, PyAny>,
        device_name: &Bound<'_, PyAny>,
        metadata_type: &Bound<'_, PyAny>,
    ) -> PyResult<i64> {
        let host = text(local_hostname, "local_hostname")?;
        let mut metadata = text(metadata_server, "metadata_server")?;
        let protocol = text(protocol, "protocol")?;
        let devices = text(device_name, "device_name")?;
        let kind = text(metadata_type, "metadata_type")?;
        if metadata != "P2PHANDSHAKE" && !metadata.contains("://") {
            metadata = format!("{kind}://{metadata}");
        }
        self.call("initialize_ext", |e| e.begin(py, &host, &metadata, &protocol, &devices))
    }

    /// Which network devices are near which memory, as JSON; also before `initialize`. `device_name`: those that count,
    /// with commas between them; all if there is none.
    #[pyo3(signature = (device_name = None))]
    fn get_local_topology(&self, py: Python<'_>, device_name: Option<String>) -> String {
        let devices = device_name.as_deref().unwrap_or_default();
        py.detach(|| logging(|| Topology::from_env(devices, environment::variable)).to_json())
    }

    /// The engine itself, for those that share it; None, with the reason in `last_error()`, before `initialize`.
    fn get_engine(&self) -> PyResult<Option<InnerTransferEngine>> {
        self.errors.clear();
        let engine = self.engine();
        if engine.is_err() {
            self.errors.set(|| "get_engine: there is none yet; call initialize() first".into());
        }
        Ok(engine.ok().map(InnerTransferEngine))
    }

    /// 0, with the reason in `last_error()`: who asks for the address of an engine of C++ would use it as one.
    fn get_engine_ptr(&self) -> usize {
        self.errors.clear();
        self.errors.set(|| {
            "get_engine_ptr: 0, as there is no engine of C++ at any address; share this object, or make another \
             engine"
                .into()
        });
        0
    }

    /// Ends the engine: peers are served no more, calls of other threads fail, and memory that it was lent, or that a
    /// transfer was given, is the caller's again. 0, also twice; -4 while a peer is still at such memory after
    /// some 10 s: then it may be called again.
    fn close(&self, py: Python<'_>) -> PyResult<i64> {
        self.call("close", |e| {
            let Ok(held) = e.engine() else { return Ok(0) };
            py.detach(|| held.end(&interrupt::requested))?;
            let mut engine = e.engine.write();
            // Another thread that closed this engine at the same time may have begun another one since.
            if engine.as_ref().is_some_and(|other| Arc::ptr_eq(other, &held)) {
                *engine = None;
            }
            Ok(0)
        })
    }

    /// Port of the engine's handshakes: with the host's name before it, the name that peers know it by.
    fn get_rpc_port(&self) -> PyResult<i64> {
        self.call("get_rpc_port", |e| Ok(e.engine()?.port().into()))
    }

    /// The name that peers know it by; "" before `initialize`.
    fn get_local_server_name(&self) -> PyResult<String> {
        Ok(self.engine().map(|engine| engine.name().to_owned()).unwrap_or_default())
    }

    /// Why the last call of this thread failed, or "".
    fn last_error(&self) -> String {
        self.errors.get()
    }

    // ---------------------------------------------------------- memory

    /// Lends a range to peers. 0, or a negative code: -7 for a range that overlaps another.
    #[pyo3(signature = (buffer_addr, capacity, location = "*"))]
    fn register_memory(
        &self,
        py: Python<'_>,
        buffer_addr: &Bound<'_, PyAny>,
        capacity: &Bound<'_, PyAny>,
        location: &str,
    ) -> PyResult<i64> {
        let range = range(unsigned(buffer_addr, "buffer_addr")?, unsigned(capacity, "capacity")?);
        self.call("register_memory", |e| {
            let engine = e.engine()?;
            py.detach(|| engine.register_with(&[range], location, &interrupt::requested)).map(|()| 0)
        })
    }

    /// Takes a range back. 0 once no peer touches it any more, or a negative code: -4 if one still does after 10 s. The
    /// range takes no new requests then, and a repeat waits again.
    #[pyo3(signature = (buffer_addr, /))]
    fn unregister_memory(&self, py: Python<'_>, buffer_addr: &Bound<'_, PyAny>) -> PyResult<i64> {
        let addr = unsigned(buffer_addr, "buffer_addr")? as usize;
        self.call("unregister_memory", |e| {
            let engine = e.engine()?;
            py.detach(|| engine.unregister_all_with(&[addr], &interrupt::requested)).map(|()| 0)
        })
    }

    /// Lends ranges, all or none. 0, or a negative code.
    #[pyo3(signature = (buffer_addresses, capacities, location = "*"))]
    fn batch_register_memory(
        &self,
        py: Python<'_>,
        buffer_addresses: &Bound<'_, PyAny>,
        capacities: &Bound<'_, PyAny>,
        location: &str,
    ) -> PyResult<i64> {
        let addresses = unsigned_list(buffer_addresses, "buffer_addresses")?;
        let capacities = unsigned_list(capacities, "capacities")?;
        self.call("batch_register_memory", |e| {
            let engine = e.engine()?;
            if addresses.len() != capacities.len() {
                let reason = format!("{} addresses and {} capacities", addresses.len(), capacities.len());
                return Err(EngineError::InvalidArgument(reason));
            }
            let ranges: Vec<_> = addresses.iter().zip(&capacities).map(|(&addr, &len)| range(addr, len)).collect();
            py.detach(|| engine.register_with(&ranges, location, &interrupt::requested)).map(|()| 0)
        })
    }

    /// Gives ranges up. 0, or the code of the first that failed; the others are given up all the same.
    #[pyo3(signature = (buffer_addresses, /))]
    fn batch_unregister_memory(&self, py: Python<'_>, buffer_addresses: &Bound<'_, PyAny>) -> PyResult<i64> {
        let addresses = unsigned_list(buffer_addresses, "buffer_addresses")?;
        self.call("batch_unregister_memory", |e| {
            let engine = e.engine()?;
            let addresses: Vec<usize> = addresses.iter().map(|addr| *addr as usize).collect();
            py.detach(|| engine.unregister_all_with(&addresses, &interrupt::requested)).map(|()| 0)
        })
    }

    /// Memory that is registered already; 0 if there is none.
    #[pyo3(signature = (length, /))]
    fn allocate_managed_buffer(&self, py: Python<'_>, length: &Bound<'_, PyAny>) -> PyResult<usize> {
        let length = unsigned(length, "length")?;
        let made = self.call("allocate_managed_buffer", |e| {
            let engine = e.engine()?;
            py.detach(|| engine.allocate_memory(length)).map(|addr| addr as i64)
        })?;
        Ok(usize::try_from(made).unwrap_or(0))
    }

    /// Takes back what `allocate_managed_buffer` gave. 0, or a negative code: what it did not give is left alone, and
    /// what somebody is still at stays, and may be given back again.
    #[pyo3(signature = (buffer_addr, length, /))]
    fn free_managed_buffer(
        &self,
        py: Python<'_>,
        buffer_addr: &Bound<'_, PyAny>,
        length: &Bound<'_, PyAny>,
    ) -> PyResult<i64> {
        let addr = unsigned(buffer_addr, "buffer_addr")? as usize;
        let _length = unsigned(length, "length")?;
        self.call("free_managed_buffer", |e| {
            let engine = e.engine()?;
            py.detach(|| engine.free_memory(addr)).map(|()| 0)
        })
    }

    /// Copies bytes to an address of this process. 0, or a negative code where there is no memory.
    #[pyo3(signature = (dest_address, data, length, /))]
    fn write_bytes_to_buffer(
        &self,
        dest_address: &Bound<'_, PyAny>,
        data: &Bound<'_, PyAny>,
        length: &Bound<'_, PyAny>,
    ) -> PyResult<i64> {
        let (addr, length) = (unsigned(dest_address, "dest_address")?, unsigned(length, "length")? as usize);
        let held;
        let bytes: &[u8] = match data.cast::<PyBytes>() {
            Ok(bytes) => bytes.as_bytes(),
            Err(_) => {
                held = text(data, "data")?;
                held.as_bytes()
            }
        };
        self.call("write_bytes_to_buffer", |e| {
            let given = bytes.get(..length).ok_or_else(|| {
                EngineError::InvalidArgument(format!("{length} bytes of data that has {}", bytes.len()))
            })?;
            let memory = range(addr, length as u64);
            e.check_memory(memory)?;
            let written = memory.write_from(given);
            written.map(|()| 0).map_err(|error| EngineError::Memory(error.to_string()))
        })
    }

    /// Copies bytes from an address of this process; b"" where there is no memory.
    #[pyo3(signature = (source_address, length, /))]
    fn read_bytes_from_buffer<'py>(
        &self,
        py: Python<'py>,
        source_address: &Bound<'py, PyAny>,
        length: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (addr, length) = (unsigned(source_address, "source_address")?, unsigned(length, "length")?);
        let wrong = |error: &dyn std::fmt::Display| pyo3::exceptions::PyValueError::new_err(error.to_string());
        let memory = range(addr, length);
        let read = self.check_memory(memory).map_err(|out| wrong(&out)).and_then(|()| {
            PyBytes::new_with(py, length as usize, |into| memory.read_into(into).map_err(|error| wrong(&error)))
        });
        match read {
            Ok(bytes) => Ok(bytes),
            Err(error) => {
                self.errors.clear();
                self.errors.set(|| format!("read_bytes_from_buffer: {}", error.value(py)));
                Ok(PyBytes::new(py, b""))
            }
        }
    }

    // ---------------------------------------------------------- peers

    /// Address of the first buffer that a segment has; 0 if none.
    #[pyo3(signature = (segment_name, /))]
    fn get_first_buffer_address(&self, py: Python<'_>, segment_name: &Bound<'_, PyAny>) -> PyResult<u64> {
        let name = text(segment_name, "segment_name")?;
        let mut found = 0;
        self.call("get_first_buffer_address", |e| {
            let engine = e.engine()?;
            found = py.detach(|| engine.first_buffer_with(&name, &interrupt::requested))?.unwrap_or(0);
            Ok(0)
        })?;
        Ok(found)
    }

    /// 0 if an engine answers under that name.
    fn send_probe(&self, py: Python<'_>, peer_server_name: &Bound<'_, PyAny>) -> PyResult<i64> {
        let name = text(peer_server_name, "peer_server_name")?;
        self.call("send_probe", |e| {
            let engine = e.engine()?;
            py.detach(|| engine.probe_with(&name, &interrupt::requested)).map(|()| 0)
        })
    }

    /// Leaves a message with a peer. 0 once it has it.
    fn send_notify(&self, py: Python<'_>, target_hostname: &Bound<'_, PyAny>, notify: TransferNotify) -> PyResult<i64> {
        let name = text(target_hostname, "target_hostname")?;
        let notify = Notify { name: notify.name, message: notify.msg };
        self.call("send_notify", |e| {
            let engine = e.engine()?;
            py.detach(|| {
                let peer = engine.open_with(&name, &interrupt::requested)?;
                engine.notify_with(peer, &notify, &interrupt::requested)
            })
            .map(|()| 0)
        })
    }

    /// Messages that peers have left, oldest first.
    fn get_notifies(&self) -> Vec<TransferNotify> {
        let Ok(engine) = self.engine() else { return Vec::new() };
        let taken = engine.take_notifies();
        taken.into_iter().map(|notify| TransferNotify { name: notify.name, msg: notify.message }).collect()
    }

    /// 0: there are no paths that would have to be warmed up.
    fn warmup_efa_segment(&self, py: Python<'_>, segment_name: &Bound<'_, PyAny>) -> PyResult<i64> {
        let name = text(segment_name, "segment_name")?;
        self.call("warmup_efa_segment", |e| {
            let engine = e.engine()?;
            py.detach(|| engine.open_with(&name, &interrupt::requested)).map(|_| 0)
        })
    }

    /// How bytes go to each peer and why, what has gone, and which network devices are near which memory.
    #[pyo3(signature = (json = false))]
    fn show_links(&self, py: Python<'_>, json: bool) -> String {
        match self.engine() {
            Ok(engine) => py.detach(|| engine.show_links(json)),
            Err(_) if json => {
                r#"{"error": "the engine is not initialized", "local_nics": [], "peers": [], "topology": {}}"#.into()
            }
            Err(_) => "the engine is not initialized".into(),
        }
    }

    // ---------------------------------------------------------- transfers that wait

    /// From here to the peer. 0, or -1.
    #[pyo3(signature = (target_hostname, buffer, peer_buffer_address, length, transport_hint = ""))]
    fn transfer_sync_write(
        &self,
        py: Python<'_>,
        target_hostname: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
        peer_buffer_address: &Bound<'_, PyAny>,
        length: &Bound<'_, PyAny>,
        transport_hint: &str,
    ) -> PyResult<i64> {
        let _ = transport_hint;
        let call = Call::one(target_hostname, buffer, peer_buffer_address, length, Opcode::Write)?;
        self.sync(py, "transfer_sync_write", call)
    }

    /// From the peer to here. 0, or -1.
    #[pyo3(signature = (target_hostname, buffer, peer_buffer_address, length, transport_hint = ""))]
    fn transfer_sync_read(
        &self,
        py: Python<'_>,
        target_hostname: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
        peer_buffer_address: &Bound<'_, PyAny>,
        length: &Bound<'_, PyAny>,
        transport_hint: &str,
    ) -> PyResult<i64> {
        let _ = transport_hint;
        let call = Call::one(target_hostname, buffer, peer_buffer_address, length, Opcode::Read)?;
        self.sync(py, "transfer_sync_read", call)
    }

    /// One way or the other. 0, or -1.
    #[pyo3(signature = (
        target_hostname, buffer, peer_buffer_address, length, opcode, notify = None, transport_hint = "",
    ))]
    #[expect(clippy::too_many_arguments, reason = "those of the Python method")]
    fn transfer_sync(
        &self,
        py: Python<'_>,
        target_hostname: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
        peer_buffer_address: &Bound<'_, PyAny>,
        length: &Bound<'_, PyAny>,
        opcode: &Bound<'_, PyAny>,
        notify: Option<TransferNotify>,
        transport_hint: &str,
    ) -> PyResult<i64> {
        let _ = transport_hint;
        let call = Call::one(target_hostname, buffer, peer_buffer_address, length, opcode_of(opcode)?)?;
        self.sync(py, "transfer_sync", call.with_notify(notify))
    }

    /// Many from here to the peer. 0, or -1.
    #[pyo3(signature = (target_hostname, buffers, peer_buffer_addresses, lengths, transport_hint = ""))]
    fn batch_transfer_sync_write(
        &self,
        py: Python<'_>,
        target_hostname: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        peer_buffer_addresses: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        transport_hint: &str,
    ) -> PyResult<i64> {
        let _ = transport_hint;
        let call = Call::many(target_hostname, buffers, peer_buffer_addresses, lengths, Opcode::Write)?;
        self.sync(py, "batch_transfer_sync_write", call)
    }

    /// Many from the peer to here. 0, or -1.
    #[pyo3(signature = (target_hostname, buffers, peer_buffer_addresses, lengths, transport_hint = ""))]
    fn batch_transfer_sync_read(
        &self,
        py: Python<'_>,
        target_hostname: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        peer_buffer_addresses: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        transport_hint: &str,
    ) -> PyResult<i64> {
        let _ = transport_hint;
        let call = Call::many(target_hostname, buffers, peer_buffer_addresses, lengths, Opcode::Read)?;
        self.sync(py, "batch_transfer_sync_read", call)
    }

    /// Many one way or the other. 0, or -1.
    #[pyo3(signature = (
        target_hostname, buffers, peer_buffer_addresses, lengths, opcode, notify = None, transport_hint = "",
    ))]
    #[expect(clippy::too_many_arguments, reason = "those of the Python method")]
    fn batch_transfer_sync(
        &self,
        py: Python<'_>,
        target_hostname: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        peer_buffer_addresses: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        opcode: &Bound<'_, PyAny>,
        notify: Option<TransferNotify>,
        transport_hint: &str,
    ) -> PyResult<i64> {
        let _ = transport_hint;
        let call = Call::many(target_hostname, buffers, peer_buffer_addresses, lengths, opcode_of(opcode)?)?;
        self.sync(py, "batch_transfer_sync", call.with_notify(notify))
    }

    // ---------------------------------------------------------- transfers in the background

    /// As `batch_transfer_sync_write`, in the background: a batch id, 0 on failure.
    #[pyo3(signature = (target_hostname, buffers, peer_buffer_addresses, lengths, transport_hint = ""))]
    fn batch_transfer_async_write(
        &self,
        py: Python<'_>,
        target_hostname: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        peer_buffer_addresses: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        transport_hint: &str,
    ) -> PyResult<u64> {
        let _ = transport_hint;
        let call = Call::many(target_hostname, buffers, peer_buffer_addresses, lengths, Opcode::Write)?;
        self.background(py, "batch_transfer_async_write", call)
    }

    /// As `batch_transfer_sync_read`, in the background: a batch id, 0 on failure.
    #[pyo3(signature = (target_hostname, buffers, peer_buffer_addresses, lengths, transport_hint = ""))]
    fn batch_transfer_async_read(
        &self,
        py: Python<'_>,
        target_hostname: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        peer_buffer_addresses: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        transport_hint: &str,
    ) -> PyResult<u64> {
        let _ = transport_hint;
        let call = Call::many(target_hostname, buffers, peer_buffer_addresses, lengths, Opcode::Read)?;
        self.background(py, "batch_transfer_async_read", call)
    }

    /// As `batch_transfer_sync`, in the background: a batch id, 0 on failure.
    #[pyo3(signature = (target_hostname, buffers, peer_buffer_addresses, lengths, opcode, transport_hint = ""))]
    #[expect(clippy::too_many_arguments, reason = "those of the Python method")]
    fn batch_transfer_async(
        &self,
        py: Python<'_>,
        target_hostname: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        peer_buffer_addresses: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        opcode: &Bound<'_, PyAny>,
        transport_hint: &str,
    ) -> PyResult<u64> {
        let _ = transport_hint;
        let call = Call::many(target_hostname, buffers, peer_buffer_addresses, lengths, opcode_of(opcode)?)?;
        self.background(py, "batch_transfer_async", call)
    }

    /// One range from here to the peer in the background: a batch id, 0 on failure.
    #[pyo3(signature = (target_hostname, buffer, peer_buffer_address, length, transport_hint = ""))]
    fn transfer_submit_write(
        &self,
        py: Python<'_>,
        target_hostname: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
        peer_buffer_address: &Bound<'_, PyAny>,
        length: &Bound<'_, PyAny>,
        transport_hint: &str,
    ) -> PyResult<u64> {
        let _ = transport_hint;
        let call = Call::one(target_hostname, buffer, peer_buffer_address, length, Opcode::Write)?;
        self.background(py, "transfer_submit_write", call)
    }

    /// One range from the peer to here in the background: a batch id, 0 on failure.
    #[pyo3(signature = (target_hostname, buffer, peer_buffer_address, length, transport_hint = ""))]
    fn transfer_submit_read(
        &self,
        py: Python<'_>,
        target_hostname: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
        peer_buffer_address: &Bound<'_, PyAny>,
        length: &Bound<'_, PyAny>,
        transport_hint: &str,
    ) -> PyResult<u64> {
        let _ = transport_hint;
        let call = Call::one(target_hostname, buffer, peer_buffer_address, length, Opcode::Read)?;
        self.background(py, "transfer_submit_read", call)
    }

    // ---------------------------------------------------------- transfers behind a stream

    /// From here to the peer, behind all that was queued on the stream before. RuntimeError if it failed.
    #[pyo3(signature = (target_hostname, buffer, peer_buffer_address, length, stream_ptr = 0, transport_hint = ""))]
    #[expect(clippy::too_many_arguments, reason = "those of the Python method")]
    fn transfer_write_on_cuda(
        &self,
        py: Python<'_>,
        target_hostname: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
        peer_buffer_address: &Bound<'_, PyAny>,
        length: &Bound<'_, PyAny>,
        stream_ptr: usize,
        transport_hint: &str,
    ) -> PyResult<()> {
        let _ = transport_hint;
        let call = Call::one(target_hostname, buffer, peer_buffer_address, length, Opcode::Write)?;
        self.behind_stream(py, "transfer_write_on_cuda", call, stream_ptr)
    }

    /// From the peer to here, behind all that was queued on the stream before. RuntimeError if it failed.
    #[pyo3(signature = (target_hostname, buffer, peer_buffer_address, length, stream_ptr = 0, transport_hint = ""))]
    #[expect(clippy::too_many_arguments, reason = "those of the Python method")]
    fn transfer_read_on_cuda(
        &self,
        py: Python<'_>,
        target_hostname: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
        peer_buffer_address: &Bound<'_, PyAny>,
        length: &Bound<'_, PyAny>,
        stream_ptr: usize,
        transport_hint: &str,
    ) -> PyResult<()> {
        let _ = transport_hint;
        let call = Call::one(target_hostname, buffer, peer_buffer_address, length, Opcode::Read)?;
        self.behind_stream(py, "transfer_read_on_cuda", call, stream_ptr)
    }

    /// Many from here to the peer, behind all that was queued on the stream before. RuntimeError if one failed.
    #[pyo3(signature = (target_hostname, buffers, peer_buffer_addresses, lengths, stream_ptr = 0, transport_hint = ""))]
    #[expect(clippy::too_many_arguments, reason = "those of the Python method")]
    fn batch_transfer_write_on_cuda(
        &self,
        py: Python<'_>,
        target_hostname: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        peer_buffer_addresses: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        stream_ptr: usize,
        transport_hint: &str,
    ) -> PyResult<()> {
        let _ = transport_hint;
        let call = Call::many(target_hostname, buffers, peer_buffer_addresses, lengths, Opcode::Write)?;
        self.behind_stream(py, "batch_transfer_write_on_cuda", call, stream_ptr)
    }

    /// Many from the peer to here, behind all that was queued on the stream before. RuntimeError if one failed.
    #[pyo3(signature = (target_hostname, buffers, peer_buffer_addresses, lengths, stream_ptr = 0, transport_hint = ""))]
    #[expect(clippy::too_many_arguments, reason = "those of the Python method")]
    fn batch_transfer_read_on_cuda(
        &self,
        py: Python<'_>,
        target_hostname: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        peer_buffer_addresses: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        stream_ptr: usize,
        transport_hint: &str,
    ) -> PyResult<()> {
        let _ = transport_hint;
        let call = Call::many(target_hostname, buffers, peer_buffer_addresses, lengths, Opcode::Read)?;
        self.behind_stream(py, "batch_transfer_read_on_cuda", call, stream_ptr)
    }

    /// How far a batch is: 1 done (and freed), 0 under way, -1 failed (and freed), -2 timed out (and not freed).
    #[pyo3(signature = (batch_id, /))]
    fn transfer_check_status(&self, batch_id: &Bound<'_, PyAny>) -> PyResult<i64> {
        let batch = BatchId(unsigned(batch_id, "batch_id")?);
        self.call("transfer_check_status", |e| {
            let engine = e.engine()?;
            match engine.status(batch)? {
                Status::Waiting => Ok(0),
                Status::Timeout => Ok(-2),
                // Others of the batch may be under way still: it ends when they have.
                status if engine.free(batch).is_err() => Ok(i64::from(status == Status::Completed)),
                Status::Completed => Ok(1),
                Status::Failed => Ok(-1),
            }
        })
    }

    /// Waits for batches. 0 when all are done, -1 when one has failed or timed out. They are freed.
    #[pyo3(signature = (batch_ids, /))]
    fn get_batch_transfer_status(&self, py: Python<'_>, batch_ids: &Bound<'_, PyAny>) -> PyResult<i64> {
        let batches = unsigned_list(batch_ids, "batch_ids")?;
        self.call("get_batch_transfer_status", |e| {
            let engine = e.engine()?;
            py.detach(|| engine.finish_all(&batches))
        })
    }

    /// Waits for one batch, at most `timeout` seconds (none: until its deadline). 0 done, -1 failed: it is freed;
    /// -2 not done in that time: it goes on.
    #[pyo3(signature = (batch_id, timeout = None))]
    fn wait(&self, py: Python<'_>, batch_id: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<i64> {
        let batch = BatchId(unsigned(batch_id, "batch_id")?);
        let timeout = timeout.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX));
        self.call("wait", |e| {
            let engine = e.engine()?;
            py.detach(|| engine.finish(batch, timeout))
        })
    }

    /// `tell` is called, in any thread, once no request of a batch is under way; at once if none is. A number for
    /// `_forget`, or a negative code.
    fn _when_done(&self, py: Python<'_>, batch_id: &Bound<'_, PyAny>, tell: Py<PyAny>) -> PyResult<i64> {
        let batch = BatchId(unsigned(batch_id, "batch_id")?);
        let hook = move || {
            // Where the interpreter ends, no Python code is left to be told.
            Python::try_attach(|py| {
                if let Err(error) = tell.call0(py) {
                    error.write_unraisable(py, None);
                }
                drop(tell);
            });
        };
        self.call("wait_async", |e| {
            let engine = e.engine()?;
            py.detach(|| engine.when_done(batch, Box::new(hook))).map(|number| number as i64)
        })
    }

    fn _forget(&self, py: Python<'_>, batch_id: &Bound<'_, PyAny>, number: u64) -> PyResult<()> {
        let batch = BatchId(unsigned(batch_id, "batch_id")?);
        if let Ok(engine) = self.engine() {
            py.detach(|| engine.forget(batch, number));
        }
        Ok(())
    }
}

impl TransferEngine {
    /// Refuses memory that begins in a registered buffer and runs out of it. Without an engine there is none.
    fn check_memory(&self, memory: ForeignRange) -> Result<(), EngineError> {
        self.engine.read().as_ref().map_or(Ok(()), |engine| engine.check_local([memory]))
    }

    fn engine(&self) -> Result<Arc<Held>, EngineError> {
        let engine = self.engine.read().clone();
        engine
            .ok_or_else(|| EngineError::InvalidArgument("the engine is not initialized; call initialize first".into()))
    }

    /// Runs the body of an entry; an error becomes its code, with the reason in `last_error()`.
    fn call(&self, name: &str, body: impl FnOnce(&Self) -> Result<i64, EngineError>) -> PyResult<i64> {
        entry(
            &self.errors,
            name,
            |_| -1,
            || {
                Ok(body(self).unwrap_or_else(|error| {
                    self.errors.set(|| format!("{name}: {error}"));
                    i64::from(error.code())
                }))
            },
        )
    }

    fn begin(
        &self,
        py: Python<'_>,
        host: &str,
        metadata: &str,
        protocol: &str,
        devices: &str,
    ) -> Result<i64, EngineError> {
        read_level(py);
        let taken = || {
            self.errors.set(|| "initialize: the engine is initialized already; close it first".into());
            Ok(-1)
        };
        if self.engine.read().is_some() {
            return taken();
        }
        warn_ignored_variables(Reader::Engine);
        let variable = environment::variable;
        let cluster = variable("MC_METADATA_CLUSTER_ID").unwrap_or_default();
        let begun = EngineOptions::default().from_env(variable).and_then(|mut options| {
            options.protocols = Protocol::named(protocol)?;
            py.detach(|| {
                if !devices.trim().is_empty() {
                    options.topology = Some(Topology::from_env(devices, variable));
                }
                Engine::connect_with(metadata, host, options, &cluster, &interrupt::requested)
            })
        });
        let begun = match begun {
            Ok(begun) => Arc::new(Held::new(begun)),
            Err(error) => {
                self.errors.set(|| format!("initialize: {error}"));
                return Ok(-1);
            }
        };
        let loser = {
            let mut engine = self.engine.write();
            match &*engine {
                None => {
                    *engine = Some(begun);
                    None
                }
                // Another thread was faster.
                Some(_) => Some(begun),
            }
        };
        match loser {
            None => Ok(0),
            // Its end waits for threads of its own, and the lock is others'.
            Some(loser) => {
                py.detach(|| drop(loser));
                taken()
            }
        }
    }

    /// A transfer in the caller's thread: 0, or -1 as Mooncake has it, whatever went wrong.
    fn sync(&self, py: Python<'_>, name: &str, call: Call) -> PyResult<i64> {
        self.move_now(py, name, call, |_| Ok(()))
    }

    /// The same, behind what is queued on a stream of CUDA's.
    fn behind_stream(&self, py: Python<'_>, name: &str, call: Call, stream: usize) -> PyResult<()> {
        let wait = |requests: &[Request]| {
            let near: Vec<ForeignRange> = requests.iter().map(|request| request.local).collect();
            // SAFETY: the caller's word: a stream of its own, or 0.
            unsafe { wait_for_stream(stream, &near) }.map_err(|error| EngineError::Memory(error.to_string()))
        };
        match self.move_now(py, name, call, wait)? {
            0 => Ok(()),
            _ => Err(PyRuntimeError::new_err(self.errors.get())),
        }
    }

    fn move_now(
        &self,
        py: Python<'_>,
        name: &str,
        call: Call,
        first: impl FnOnce(&[Request]) -> Result<(), EngineError> + Send,
    ) -> PyResult<i64> {
        let done = self.call(name, |e| {
            let engine = e.engine()?;
            py.detach(|| call.carry_out(&engine, first)).map(|()| 0)
        })?;
        Ok(if done == 0 { 0 } else { -1 })
    }

    fn background(&self, py: Python<'_>, name: &str, call: Call) -> PyResult<u64> {
        let mut id = 0;
        self.call(name, |e| {
            let engine = e.engine()?;
            id = py.detach(|| call.submit(&engine))?.0;
            Ok(0)
        })?;
        Ok(id)
    }
}
