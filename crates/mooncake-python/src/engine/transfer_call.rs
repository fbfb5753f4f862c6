//! What the calls of `mooncake.engine` take over from Python before the GIL is released, and what is done with it then.

use mooncake_transfer_engine::{BatchId, Engine, EngineError, Notify, Opcode, Request};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::convert::buffers::range;
use crate::convert::integer::{unsigned, unsigned_list};
use crate::convert::text::text;
use crate::entry::interrupt;

/// A message of a peer.
#[pyclass(get_all, set_all, from_py_object, module = "mooncake.engine")]
#[derive(Debug, Clone, Default)]
pub struct TransferNotify {
    /// What it is about.
    pub name: String,
    /// What it says.
    pub msg: String,
}

#[pymethods]
impl TransferNotify {
    #[new]
    #[pyo3(signature = (name = None, msg = None))]
    fn new(name: Option<String>, msg: Option<String>) -> PyResult<Self> {
        match (name, msg) {
            (None, None) => Ok(Self::default()),
            (Some(name), Some(msg)) => Ok(Self { name, msg }),
            _ => Err(PyTypeError::new_err("TransferNotify: a name and a msg, or neither")),
        }
    }

    fn __repr__(&self) -> String {
        format!("TransferNotify(name={:?}, msg={:?})", self.name, self.msg)
    }
}

/// Requests of one call, taken over from Python.
pub struct Call {
    /// Name of the peer.
    pub peer: String,
    /// What is to be moved; or why the lists do not fit together.
    pub requests: Result<Vec<Request>, String>,
    /// Left with the peer once all is in place.
    pub notify: Option<Notify>,
}

impl Call {
    /// One range.
    pub fn one(
        peer: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
        remote: &Bound<'_, PyAny>,
        length: &Bound<'_, PyAny>,
        opcode: Opcode,
    ) -> PyResult<Call> {
        let peer = text(peer, "target_hostname")?;
        let local = range(unsigned(buffer, "buffer")?, unsigned(length, "length")?);
        let remote = unsigned(remote, "peer_buffer_address")?;
        Ok(Call { peer, requests: Ok(vec![Request { opcode, local, remote }]), notify: None })
    }

    /// One range of each list.
    pub fn many(
        peer: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        remotes: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        opcode: Opcode,
    ) -> PyResult<Call> {
        let peer = text(peer, "target_hostname")?;
        let buffers = unsigned_list(buffers, "buffers")?;
        let remotes = unsigned_list(remotes, "peer_buffer_addresses")?;
        let lengths = unsigned_list(lengths, "lengths")?;
        let requests = if buffers.len() != remotes.len() || buffers.len() != lengths.len() {
            Err(format!(
                "{} buffers, {} peer_buffer_addresses and {} lengths: one of each a request",
                buffers.len(),
                remotes.len(),
                lengths.len()
            ))
        } else {
            let all = buffers.iter().zip(&remotes).zip(&lengths);
            Ok(all.map(|((&at, &remote), &len)| Request { opcode, local: range(at, len), remote }).collect())
        };
        Ok(Call { peer, requests, notify: None })
    }

    /// The same with a message.
    pub fn with_notify(mut self, notify: Option<TransferNotify>) -> Call {
        self.notify = notify.map(|notify| Notify { name: notify.name, message: notify.msg });
        self
    }

    /// Moves the bytes in this thread, after `first` has had a look, and leaves the message.
    pub fn carry_out(
        self,
        engine: &Engine,
        first: impl FnOnce(&[Request]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let requests = self.requests.map_err(EngineError::InvalidArgument)?;
        first(&requests)?;
        let peer = engine.open_with(&self.peer, &interrupt::requested)?;
        engine.transfer_with(peer, &requests, &interrupt::requested)?;
        if let Some(notify) = &self.notify
            && let Err(error) = engine.notify_with(peer, notify, &interrupt::requested)
        {
            // The bytes are there; Mooncake says no more either.
            tracing::warn!(peer = self.peer, %error, "a transfer is done, and its notification did not arrive");
        }
        Ok(())
    }

    /// Has the bytes moved in the background.
    pub fn submit(self, engine: &Engine) -> Result<BatchId, EngineError> {
        let requests = self.requests.map_err(EngineError::InvalidArgument)?;
        let peer = engine.open_soon_with(&self.peer, &interrupt::requested)?;
        let batch = engine.allocate(requests.len());
        let requests = requests.into_iter().map(|request| (peer, request)).collect();
        if let Err(error) = engine.submit(batch, requests, None) {
            let _ = engine.free(batch);
            return Err(error);
        }
        Ok(batch)
    }
}

/// `TransferOpcode`, or its number.
pub fn opcode_of(any: &Bound<'_, PyAny>) -> PyResult<Opcode> {
    match any.extract::<i64>() {
        Ok(0) => Ok(Opcode::Read),
        Ok(1) => Ok(Opcode::Write),
        _ => Err(PyTypeError::new_err(format!("opcode: TransferOpcode.Read or Write is needed, not {}", any.repr()?))),
    }
}
