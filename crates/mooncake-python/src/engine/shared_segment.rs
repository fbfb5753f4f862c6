//! `SharedSegment`: memory that the ranks of a group on one host have in common.

use mooncake_transfer_engine::{EngineError, SharedSegment as Segment};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::entry::interrupt;

/// One rank's share. Its memory is there as long as this is.
#[pyclass(frozen, module = "mooncake.engine")]
pub struct SharedSegment(Segment);

#[pymethods]
impl SharedSegment {
    /// The first step: the segment, and the bytes that the other ranks need of this one. All ranks give the same name,
    /// size, number and owner. RuntimeError says why there is none.
    #[staticmethod]
    #[pyo3(signature = (
        name, size, world_size, rank_id, owner_rank = 0, device_id = 0, mmap = true, host_register = false,
    ))]
    #[expect(clippy::too_many_arguments, reason = "those of the Python method")]
    fn create<'py>(
        py: Python<'py>,
        name: &str,
        size: u64,
        world_size: i64,
        rank_id: i64,
        owner_rank: i64,
        device_id: i64,
        mmap: bool,
        host_register: bool,
    ) -> PyResult<(SharedSegment, Bound<'py, PyBytes>)> {
        let _ = device_id;
        if !SharedSegment::supported(mmap, host_register) {
            let why = "SharedSegment.create: this version has mmap=True, host_register=False only";
            return Err(PyRuntimeError::new_err(why));
        }
        let number = |value: i64, what: &str| {
            u32::try_from(value)
                .map_err(|_| PyRuntimeError::new_err(format!("SharedSegment.create: {what} is {value}")))
        };
        let (world_size, rank) = (number(world_size, "world_size")?, number(rank_id, "rank_id")?);
        let owner = number(owner_rank, "owner_rank")?;
        let made = py.detach(|| Segment::create(name, size, world_size, rank, owner));
        let (segment, ticket) = made.map_err(|error| failed("create", &error))?;
        Ok((SharedSegment(segment), PyBytes::new(py, &ticket)))
    }

    /// Whether this version can do so.
    #[staticmethod]
    #[pyo3(signature = (mmap = true, host_register = false))]
    fn supported(mmap: bool, host_register: bool) -> bool {
        mmap && !host_register
    }

    /// The second step: the bytes of all ranks, by rank. RuntimeError if they do not fit together, or the owner is
    /// gone.
    fn complete(&self, py: Python<'_>, blobs: Vec<Vec<u8>>) -> PyResult<()> {
        let done = py.detach(|| self.0.complete(&blobs, &interrupt::requested));
        match interrupt::raised() {
            Some(raised) => Err(raised),
            None => done.map_err(|error| failed("complete", &error)),
        }
    }

    /// Whether both steps are done.
    fn ready(&self) -> bool {
        self.0.is_ready()
    }

    /// First address in this process; 0 before there is one.
    fn base_addr(&self) -> usize {
        self.0.base()
    }

    /// 0: no device has an address of its own for it.
    fn device_addr(&self) -> usize {
        0
    }

    /// Bytes.
    fn size(&self) -> u64 {
        self.0.bytes()
    }
}

fn failed(step: &str, error: &EngineError) -> PyErr {
    PyRuntimeError::new_err(format!("SharedSegment.{step}: {error}"))
}
