//! Ranged sessions: objects that are read, or written, in parts, with one request to the master before all of them.

use mooncake_client::{
    Destination, ErrorKind, ForeignRange, GetRanges, PutRanges, ReadRange, Refused, RunsOut, Source, Store, StoreError,
    WriteRange,
};
use pyo3::prelude::*;

use crate::code::{INVALID_PARAMS, OK};
use crate::convert::buffers::{fit, range};
use crate::convert::integer::{Lists, unsigned_list, unsigned_lists};
use crate::convert::key::Keys;
use crate::entry::{failed, refused};
use crate::store::class::MooncakeDistributedStore;
use crate::store::options::{Form, put_options};
use crate::store::replicate_config::ReplicateConfig;

/// Keys, each with pieces of memory and the place of each in the object.
pub struct Parts<'py> {
    /// The keys.
    pub keys: Keys<'py>,
    /// Those of each key; or why the lists do not fit together.
    parts: Result<Lists<Part>, String>,
}

/// First byte of the object, and memory.
type Part = (u64, ForeignRange);

impl<'py> Parts<'py> {
    /// `what`: the name of the offsets.
    pub fn hold(
        keys: &Bound<'py, PyAny>,
        ptrs: &Bound<'py, PyAny>,
        sizes: &Bound<'py, PyAny>,
        offsets: &Bound<'py, PyAny>,
        what: &str,
    ) -> PyResult<Self> {
        let keys = Keys::hold(keys)?;
        let (ptrs, sizes) = (unsigned_lists(ptrs, "all_buffer_ptrs")?, unsigned_lists(sizes, "all_sizes")?);
        let offsets = unsigned_lists(offsets, what)?;
        let parts = fit(keys.len(), &ptrs, &sizes).and_then(|()| together(&ptrs, &sizes, &offsets, what));
        Ok(Self { keys, parts })
    }
}

fn together(ptrs: &Lists<u64>, sizes: &Lists<u64>, offsets: &Lists<u64>, what: &str) -> Result<Lists<Part>, String> {
    if ptrs.len() != offsets.len() {
        return Err(format!("{} keys and {} {what}: one list a key", ptrs.len(), offsets.len()));
    }
    let mut parts = Lists::with_capacity(ptrs.len());
    for (at, ((ptrs, sizes), offsets)) in ptrs.iter().zip(sizes.iter()).zip(offsets.iter()).enumerate() {
        if ptrs.len() != offsets.len() {
            return Err(format!("key {at} has {} addresses and {} {what}", ptrs.len(), offsets.len()));
        }
        let memory = ptrs.iter().zip(sizes).map(|(&ptr, &size)| range(ptr, size));
        parts.push(offsets.iter().copied().zip(memory));
    }
    Ok(parts)
}

impl MooncakeDistributedStore {
    /// A code for each key.
    pub(crate) fn start_get_sessions(&self, py: Python<'_>, keys: &Keys<'_>) -> PyResult<Vec<i64>> {
        let keys = keys.slices()?;
        let Some(client) = self.client("batch_get_session_start") else { return Ok(vec![INVALID_PARAMS; keys.len()]) };
        let outcomes = py.detach(|| client.start_get_sessions(&keys));
        let code = |outcome: Result<(), StoreError>| match outcome {
            Err(error) if error.kind() == ErrorKind::NotFound => self.missing(&client),
            done => self.done(done),
        };
        Ok(outcomes.into_iter().map(code).collect())
    }

    /// Bytes read for each key, or its code.
    pub(crate) fn read_in_sessions(&self, py: Python<'_>, wanted: &Parts<'_>) -> PyResult<Vec<i64>> {
        self.move_parts(py, "batch_get_into_multi_buffer_ranges", wanted, |client, keys, parts| {
            let registry = client.registry();
            let range = |&(offset, memory): &Part| {
                Destination::foreign(memory, registry).map(|destination| ReadRange { offset, destination })
            };
            let (refused, mut items) = fitting(keys, parts, range, |key, ranges| GetRanges { key, ranges });
            refused.merge(client.read_in_sessions(&mut items))
        })
    }

    /// 0, or why the store cannot do it.
    pub(crate) fn end_get_sessions(&self, keys: &Keys<'_>) -> PyResult<i64> {
        let keys = keys.slices()?;
        let Some(client) = self.client("batch_get_session_end") else { return Ok(INVALID_PARAMS) };
        Ok(self.done(client.end_get_sessions(&keys)))
    }

    /// A code for each key.
    pub(crate) fn start_put_sessions(
        &self,
        py: Python<'_>,
        keys: &Keys<'_>,
        sizes: &Bound<'_, PyAny>,
        config: Option<&Bound<'_, ReplicateConfig>>,
    ) -> PyResult<Vec<i64>> {
        const NAME: &str = "batch_put_session_start";
        let (keys, sizes) = (keys.slices()?, unsigned_list(sizes, "sizes")?);
        let all = |code| Ok(vec![code; keys.len()]);
        let options = match put_options(config, keys.len(), Form::MultiBuffers) {
            Ok(options) => options,
            Err(reason) => return all(refused(self.errors(), || format!("{NAME}: {reason}"))),
        };
        let Some(client) = self.client(NAME) else { return all(INVALID_PARAMS) };
        let outcomes = py.detach(|| client.start_put_sessions(&keys, &sizes, &options));
        Ok(outcomes.into_iter().map(|outcome| self.done(outcome)).collect())
    }

    /// Bytes written for each key, or its code.
    pub(crate) fn write_in_sessions(&self, py: Python<'_>, given: &Parts<'_>) -> PyResult<Vec<i64>> {
        self.move_parts(py, "batch_put_from_multi_buffer_ranges", given, |client, keys, parts| {
            let registry = client.registry();
            let range = |&(offset, memory): &Part| {
                Source::foreign(memory, registry).map(|source| WriteRange { offset, source })
            };
            let (refused, items) = fitting(keys, parts, range, |key, ranges| PutRanges { key, ranges });
            refused.merge(client.write_in_sessions(&items))
        })
    }

    /// A code for each key: those with a hole keep their sessions.
    pub(crate) fn end_put_sessions(&self, py: Python<'_>, keys: &Keys<'_>, revoke: bool) -> PyResult<Vec<i64>> {
        let keys = keys.slices()?;
        let name = if revoke { "batch_put_session_revoke" } else { "batch_put_session_end" };
        let Some(client) = self.client(name) else { return Ok(vec![INVALID_PARAMS; keys.len()]) };
        let outcomes = py.detach(|| match revoke {
            true => client.abort_put_sessions(&keys),
            false => client.end_put_sessions(&keys),
        });
        Ok(outcomes.into_iter().map(|outcome| self.done(outcome)).collect())
    }

    /// Bytes that `moved` says, for each key, or its code; `name` is the call's.
    fn move_parts(
        &self,
        py: Python<'_>,
        name: &'static str,
        of: &Parts<'_>,
        moved: impl FnOnce(&Store, &[&[u8]], &Lists<Part>) -> Vec<Result<u64, StoreError>> + Send,
    ) -> PyResult<Vec<i64>> {
        let keys = of.keys.slices()?;
        let all = |code| Ok(vec![code; keys.len()]);
        let parts = match &of.parts {
            Ok(parts) => parts,
            Err(reason) => return all(refused(self.errors(), || format!("{name}: {reason}"))),
        };
        let Some(client) = self.client(name) else { return all(INVALID_PARAMS) };
        let outcomes = py.detach(|| moved(&client, &keys, parts));
        let code = |outcome: Result<u64, StoreError>| {
            outcome.map_or_else(|error| failed(self.errors(), &error), |bytes| bytes as i64)
        };
        Ok(outcomes.into_iter().map(code).collect())
    }

    fn done(&self, outcome: Result<(), StoreError>) -> i64 {
        outcome.map_or_else(|error| failed(self.errors(), &error), |()| OK)
    }
}

/// An item of each key and its parts; keys are refused of which one runs out of registered memory.
fn fitting<'a, R, I>(
    keys: &[&'a [u8]],
    parts: &Lists<Part>,
    range: impl Fn(&Part) -> Result<R, RunsOut>,
    item: impl Fn(&'a [u8], Vec<R>) -> I,
) -> (Refused, Vec<I>) {
    let (mut refused, mut items) = (Refused::default(), Vec::with_capacity(keys.len()));
    for (at, (key, parts)) in keys.iter().zip(parts.iter()).enumerate() {
        let ranges = refused.sift(at, parts.iter().map(&range).collect::<Result<Vec<_>, _>>());
        items.extend(ranges.map(|ranges| item(key, ranges)));
    }
    (refused, items)
}
