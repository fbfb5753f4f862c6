//! Keys with addresses and sizes: arguments of the zero-copy calls.

use mooncake_client::ForeignRange;
use pyo3::prelude::*;

use crate::convert::integer::{Lists, unsigned_list, unsigned_lists};
use crate::convert::key::Keys;

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
        let pieces = |(p, s): (&[u64], &[u64])| p.iter().zip(s).map(|(&p, &s)| range(p, s)).collect();
        let ranges = fit(keys.len(), &ptrs, &sizes).map(|()| ptrs.iter().zip(sizes.iter()).map(pieces).collect());
        Ok(Self { keys, ranges })
    }
}

/// Whether there is a list of addresses and one of sizes for each key, as long as each other; or what does not fit.
pub fn fit(keys: usize, ptrs: &Lists<u64>, sizes: &Lists<u64>) -> Result<(), String> {
    if keys != ptrs.len() || keys != sizes.len() {
        let (ptrs, sizes) = (ptrs.len(), sizes.len());
        return Err(format!("{keys} keys, {ptrs} all_buffer_ptrs and {sizes} all_sizes: one list of each a key"));
    }
    match ptrs.iter().zip(sizes.iter()).enumerate().find(|(_, (p, s))| p.len() != s.len()) {
        Some((at, (p, s))) => Err(format!("key {at} has {} addresses and {} sizes", p.len(), s.len())),
        None => Ok(()),
    }
}

/// One piece of the caller's memory.
pub fn range(ptr: u64, size: u64) -> ForeignRange {
    // SAFETY: Python callers vouch for what they name: memory of theirs that stays mapped during the call and, as a
    // destination, may be written. What is not mapped is reported as a fault.
    unsafe { ForeignRange::new(ptr as usize, size as usize) }
}
