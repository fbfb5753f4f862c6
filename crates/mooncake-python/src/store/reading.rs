//! What the getting and asking calls share.

use std::mem::MaybeUninit;

use mooncake_client::{Destination, ErrorKind, GetInto, Receive, Refused, RemoveOutcome, Store, StoreError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

use crate::code::{ABSENT, INVALID_PARAMS, NOT_FOUND, OK, removed};
use crate::convert::buffers::Pieces;
use crate::entry::{failed, refused};
use crate::store::buffer_handle::BufferHandle;
use crate::store::class::MooncakeDistributedStore;
use crate::store::object_memory::{LARGE, ObjectMemory};

/// A bytes object that is being read into; no other code has seen it yet.
struct NewBytes {
    object: Py<PyBytes>,
    ptr: *mut MaybeUninit<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this object alone until the read is over, and needs no GIL to be written.
unsafe impl Send for NewBytes {}

impl NewBytes {
    /// Uninitialised: zeroing megabytes that are overwritten at once would cost as much as the read.
    fn new(len: u64) -> PyResult<Self> {
        Python::attach(|py| {
            let len = isize::try_from(len).map_err(|_| pyo3::exceptions::PyMemoryError::new_err("object too large"))?;
            // SAFETY: a null source asks for uninitialised memory of that length; failure is checked.
            let object = unsafe {
                let made = ffi::PyBytes_FromStringAndSize(std::ptr::null(), len);
                Bound::from_owned_ptr_or_err(py, made)?.cast_into_unchecked::<PyBytes>()
            };
            // SAFETY: a bytes object of `len` bytes.
            let ptr: *mut MaybeUninit<u8> = unsafe { ffi::PyBytes_AsString(object.as_ptr()) }.cast();
            // SAFETY: as above.
            unsafe { mooncake_memory::prefer_huge_pages(ptr.cast(), len as usize) };
            Ok(Self { object: object.unbind(), ptr, len: len as usize })
        })
    }
}

impl Receive for NewBytes {
    fn destinations(&mut self) -> Vec<Destination<'_>> {
        // SAFETY: the object's own memory, borrowed as long as this is.
        vec![Destination::uninit(unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) })]
    }
}

/// As [`NewBytes`], memory that its owner may change later: what tensors are made of.
enum NewArray {
    Small { object: Py<PyByteArray>, ptr: *mut MaybeUninit<u8>, len: usize },
    Large(ObjectMemory),
}

// SAFETY: as above.
unsafe impl Send for NewArray {}

impl NewArray {
    fn new(len: u64) -> PyResult<Self> {
        let too_large = || pyo3::exceptions::PyMemoryError::new_err("object too large");
        let len = isize::try_from(len).map_err(|_| too_large())?;
        if len as usize >= LARGE {
            return ObjectMemory::new(len as usize).map(Self::Large).ok_or_else(too_large);
        }
        Python::attach(|py| {
            // SAFETY: a null source asks for uninitialised memory of that length; failure is checked.
            let object = unsafe {
                let made = ffi::PyByteArray_FromStringAndSize(std::ptr::null(), len);
                Bound::from_owned_ptr_or_err(py, made)?.cast_into_unchecked::<PyByteArray>()
            };
            // SAFETY: a bytearray of `len` bytes, whose memory no other code has seen.
            let ptr = unsafe { ffi::PyByteArray_AsString(object.as_ptr()) }.cast();
            Ok(Self::Small { object: object.unbind(), ptr, len: len as usize })
        })
    }

    fn into_object(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        match self {
            Self::Small { object, .. } => Ok(object.into_bound(py).into_any()),
            Self::Large(memory) => Ok(Bound::new(py, memory)?.into_any()),
        }
    }
}

impl Receive for NewArray {
    fn destinations(&mut self) -> Vec<Destination<'_>> {
        let (ptr, len) = match self {
            Self::Small { ptr, len, .. } => (*ptr, *len),
            Self::Large(memory) => (memory.as_mut_ptr().cast(), memory.len()),
        };
        // SAFETY: the object's own memory, borrowed as long as this is.
        vec![Destination::uninit(unsafe { std::slice::from_raw_parts_mut(ptr, len) })]
    }
}

impl MooncakeDistributedStore {
    /// Values as arrays, None for what is missing or cannot be read.
    pub(crate) fn get_byte_arrays<'py>(
        &self,
        py: Python<'py>,
        client: &Store,
        keys: &[&[u8]],
    ) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        let found = py.detach(|| {
            client.get_batch_with(keys, |_, size| NewArray::new(size).map_err(|error| out_of_memory(size, &error)))
        });
        found
            .into_iter()
            .map(|found| match found {
                Ok(Some(array)) => array.into_object(py).map(Some),
                Ok(None) => {
                    self.missing(client);
                    Ok(None)
                }
                Err(error) => {
                    failed(self.errors(), &error);
                    Ok(None)
                }
            })
            .collect()
    }

    /// Values as bytes, `b""` for what is missing or cannot be read.
    pub(crate) fn get_bytes<'py>(&self, py: Python<'py>, client: &Store, keys: &[&[u8]]) -> Vec<Bound<'py, PyBytes>> {
        let found = py.detach(|| {
            client.get_batch_with(keys, |_, size| NewBytes::new(size).map_err(|error| out_of_memory(size, &error)))
        });
        let empty = || PyBytes::new(py, b"");
        found
            .into_iter()
            .map(|found| match found {
                Ok(Some(bytes)) => bytes.object.into_bound(py),
                Ok(None) => {
                    self.missing(client);
                    empty()
                }
                Err(error) => {
                    failed(self.errors(), &error);
                    empty()
                }
            })
            .collect()
    }

    /// Handles on the bytes in place, None for what is missing or cannot be read.
    pub(crate) fn views(&self, py: Python<'_>, client: &Store, keys: &[&[u8]]) -> Vec<Option<BufferHandle>> {
        let found = py.detach(|| client.view(keys));
        found
            .into_iter()
            .map(|found| match found {
                Ok(Some(view)) => Some(BufferHandle::new(view)),
                Ok(None) => {
                    self.missing(client);
                    None
                }
                Err(error) => {
                    failed(self.errors(), &error);
                    None
                }
            })
            .collect()
    }

    /// Bytes read into the caller's memory, per key.
    pub(crate) fn get_pieces(&self, py: Python<'_>, name: &str, pieces: &Pieces<'_>) -> PyResult<Vec<i64>> {
        let keys = pieces.keys.slices()?;
        let all = |code| Ok(vec![code; keys.len()]);
        let ranges = match &pieces.ranges {
            Ok(ranges) => ranges,
            Err(reason) => return all(refused(self.errors(), || format!("{name}: {reason}"))),
        };
        let Some(client) = self.client(name) else { return all(INVALID_PARAMS) };
        let outcomes = py.detach(|| {
            let registry = client.registry();
            let (mut refused, mut wanted) = (Refused::default(), Vec::with_capacity(keys.len()));
            for (at, (key, pieces)) in keys.iter().zip(ranges).enumerate() {
                let destinations = refused.sift(at, Destination::all_foreign(pieces, registry));
                wanted.extend(destinations.map(|destinations| GetInto { key, destinations }));
            }
            refused.merge(client.get_into(&mut wanted))
        });
        Ok(outcomes.into_iter().map(|outcome| self.bytes_read(&client, outcome)).collect())
    }

    /// Bytes read, or the integer of the failure.
    pub(crate) fn bytes_read(&self, client: &Store, outcome: Result<Option<u64>, StoreError>) -> i64 {
        match outcome {
            Ok(Some(bytes)) => bytes as i64,
            Ok(None) => self.missing(client),
            Err(error) => failed(self.errors(), &error),
        }
    }

    /// -704, with the reason: what the client knows of this miss, or else what misses come of.
    pub(crate) fn missing(&self, client: &Store) -> i64 {
        if self.errors().is_noted() {
            return NOT_FOUND;
        }
        let cause = client.take_miss_cause();
        self.errors().set_code(NOT_FOUND, || cause.unwrap_or_else(|| NO_OBJECT.to_owned()));
        NOT_FOUND
    }

    /// 1 or 0 per key.
    pub(crate) fn exist(&self, py: Python<'_>, client: &Store, keys: &[&[u8]]) -> Vec<i64> {
        match py.detach(|| client.exists(keys)) {
            Ok(found) => {
                if let Some(cause) = found.contains(&false).then(|| client.take_miss_cause()).flatten() {
                    self.errors().set_code(NOT_FOUND, || cause);
                }
                found.into_iter().map(i64::from).collect()
            }
            Err(error) => {
                let code = failed(self.errors(), &error);
                // Engines take any other number for "it is there".
                let absent =
                    matches!(error.kind(), ErrorKind::MasterUnreachable | ErrorKind::Timeout | ErrorKind::Closed);
                vec![if absent { ABSENT } else { code }; keys.len()]
            }
        }
    }

    /// An integer per key.
    pub(crate) fn remove_keys(&self, py: Python<'_>, client: &Store, keys: &[&[u8]], force: bool) -> Vec<i64> {
        match py.detach(|| client.remove(keys, force)) {
            Ok(outcomes) => outcomes.into_iter().map(|outcome| self.spared(outcome, NO_OBJECT, LOOKED_UP)).collect(),
            Err(error) => vec![failed(self.errors(), &error); keys.len()],
        }
    }

    /// Per key: whether a replica of it was dropped.
    pub(crate) fn clear_keys(&self, py: Python<'_>, client: &Store, keys: &[&[u8]], segment: &str) -> Vec<bool> {
        match py.detach(|| client.clear_replicas(keys, segment)) {
            Ok(outcomes) => {
                let missing = match segment {
                    "" => NO_OBJECT.to_owned(),
                    name => format!("no copy on a segment named {name:?}, or {NO_OBJECT}"),
                };
                outcomes.into_iter().map(|outcome| self.spared(outcome, &missing, IN_USE) == OK).collect()
            }
            Err(error) => {
                failed(self.errors(), &error);
                vec![false; keys.len()]
            }
        }
    }

    /// The integer of a removal, with the reason where nothing was removed.
    fn spared(&self, outcome: RemoveOutcome, missing: &str, protected: &str) -> i64 {
        let code = removed(outcome);
        let reason = match outcome {
            RemoveOutcome::Removed => return code,
            RemoveOutcome::Missing => missing,
            RemoveOutcome::Protected => protected,
            RemoveOutcome::Busy => "a put or a replacement of it is under way; try again when it has ended",
        };
        self.errors().set_code(code, || reason.to_owned());
        code
    }
}

const NO_OBJECT: &str = "no such object: nobody stored it, it was removed or evicted, or its owner has ended or is \
    away";
const LOOKED_UP: &str = "it is in use: looked up a moment ago (by is_exist, get_size, a replica query or a get \
    session, for 2 s unless the master was told otherwise); try again later, or remove it with force=True";
const IN_USE: &str = "it is in use: pinned, under a view, or looked up a moment ago (by is_exist, get_size, a \
    replica query or a get session, for 2 s unless the master was told otherwise); try again later";

#[cold]
fn out_of_memory(size: u64, error: &PyErr) -> StoreError {
    mooncake_client::Cause::InvalidParams(format!("a bytes object of {size} bytes: {error}")).into()
}
