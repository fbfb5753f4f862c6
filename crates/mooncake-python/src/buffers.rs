//! Keys with addresses and sizes: arguments of the zero-copy calls.

use mooncake_client::ForeignRange;
use pyo3::prelude::*;

use crate::integer::{unsigned_list, unsigned_lists};
use crate::key::Keys;

/// Keys, each with the pieces of memory that its object is read from or written to.
pub struct Pieces<'py> {
    /// The keys.
    pub keys: Keys<'py>,
    /// The pieces of each; or why the lists do not fit together.
    pub ranges: Result<Vec<Vec<ForeignRange>>, String>,
}

impl<'py> Pieces<'py> {
    /// One piece a key.
    pub fn single(keys: &Bound<'py, PyAny>, ptrs: &Bound<'py, PyAny>, sizes: &Bound<'py, PyAny>) -> PyResult<Self> {
        let keys = Keys::hold(keys)?;
        let (ptrs, sizes) = (unsigned_list(ptrs, "buffer_ptrs")?, unsigned_list(sizes, "sizes")?);
        let ranges = if keys.len() != ptrs.len() || keys.len() != sizes.len() {
            Err(format!("{} keys, {} buffer_ptrs and {} sizes: one of each a key", keys.len(), ptrs.len(), sizes.len()))
        } else {
            Ok(ptrs.iter().zip(&sizes).map(|(&ptr, &size)| vec![range(ptr, size)]).collect())
        };
        Ok(Self { keys, ranges })
    }

    /// Several pieces a key.
    pub fn multi(keys: &Bound<'py, PyAny>, ptrs: &Bound<'py, PyAny>, sizes: &Bound<'py, PyAny>) -> PyResult<Self> {
        let keys = Keys::hold(keys)?;
        let (ptrs, sizes) = (unsigned_lists(ptrs, "all_buffer_ptrs")?, unsigned_lists(sizes, "all_sizes")?);
        let ranges = if keys.len() != ptrs.len() || keys.len() != sizes.len() {
            Err(format!(
                "{} keys, {} all_buffer_ptrs and {} all_sizes: one list of each a key",
                keys.len(),
                ptrs.len(),
                sizes.len()
            ))
        } else if let Some((at, (p, s))) = ptrs.iter().zip(&sizes).enumerate().find(|(_, (p, s))| p.len() != s.len()) {
            Err(format!("key {at} has {} addresses and {} sizes", p.len(), s.len()))
        } else {
            let pieces = |(p, s): (&Vec<u64>, &Vec<u64>)| p.iter().zip(s).map(|(&p, &s)| range(p, s)).collect();
            Ok(ptrs.iter().zip(&sizes).map(pieces).collect())
        };
        Ok(Self { keys, ranges })
    }
}

/// One piece of the caller's memory.
pub fn range(ptr: u64, size: u64) -> ForeignRange {
    // SAFETY: Python callers vouch for what they name: memory of theirs that stays mapped during the call and, as a
    // destination, may be written. What is not mapped is reported as a fault.
    unsafe { ForeignRange::new(ptr as usize, size as usize) }
}
