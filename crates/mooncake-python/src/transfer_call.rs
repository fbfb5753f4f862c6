//! What the calls of `mooncake.engine` take over from Python before the GIL is released.

use mooncake_engine::{Notify, Opcode, Request};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::buffers::range;
use crate::integer::{unsigned, unsigned_list};
use crate::text::text;

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
}

/// `TransferOpcode`, or its number.
pub fn opcode_of(any: &Bound<'_, PyAny>) -> PyResult<Opcode> {
    match any.extract::<i64>() {
        Ok(0) => Ok(Opcode::Read),
        Ok(1) => Ok(Opcode::Write),
        _ => Err(PyTypeError::new_err(format!("opcode: TransferOpcode.Read or Write is needed, not {}", any.repr()?))),
    }
}
