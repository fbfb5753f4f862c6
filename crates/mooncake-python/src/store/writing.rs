//! What the putting calls share.

use std::cell::OnceCell;

use hashbrown::HashSet;
use mooncake_client::{Cause, NodeInfo, PutItem, PutOptions, PutOutcome, Refused, Source, Store, StoreError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::code::{INVALID_PARAMS, OK, code};
use crate::convert::buffers::{Pieces, range};
use crate::convert::integer::unsigned;
use crate::convert::key::{self, Keys};
use crate::convert::sequence::items;
use crate::convert::value::Value;
use crate::entry::{failed, refused};
use crate::store::class::MooncakeDistributedStore;
use crate::store::options::{Form, put_options};
use crate::store::replicate_config::ReplicateConfig;

/// Whether a value that is there stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// `put`: the first writer wins.
    Put,
    /// `upsert`: the last one does.
    Upsert,
}

type Config<'a, 'py> = Option<&'a Bound<'py, ReplicateConfig>>;

impl MooncakeDistributedStore {
    /// The code of one outcome. `gone`: what is known of the node since the call began.
    fn put_outcome(
        &self,
        py: Python<'_>,
        outcome: Result<PutOutcome, StoreError>,
        gone: &OnceCell<Option<String>>,
    ) -> i64 {
        let error = match outcome {
            Ok(_) => return OK,
            Err(error) => error,
        };
        if let Cause::TooLarge { .. } | Cause::NoSpace { .. } = error.cause()
            && let Some(gone) = gone.get_or_init(|| self.node_has_gone(py))
        {
            self.errors().set_code(code(error.kind()), || format!("{error}: {gone}"));
        }
        failed(self.errors(), &error)
    }

    /// What to say besides when the pool is too small because the node is gone that this store was set up through.
    fn node_has_gone(&self, py: Python<'_>) -> Option<String> {
        let node = self.node()?;
        py.detach(|| NodeInfo::has_gone(&node)).then(|| format!("the storage node {node} has gone; start it again"))
    }

    fn options(
        &self,
        name: &str,
        config: Config<'_, '_>,
        keys: usize,
        form: Form,
        write: Write,
    ) -> Result<PutOptions, i64> {
        match put_options(config, keys, form) {
            Ok(options) => Ok(PutOptions { replace: write == Write::Upsert, ..options }),
            Err(reason) => Err(refused(self.errors(), || format!("{name}: {reason}"))),
        }
    }

    /// Stores one object from its pieces.
    fn put_sources(
        &self,
        py: Python<'_>,
        client: &Store,
        key: &[u8],
        sources: &[Source<'_>],
        options: &PutOptions,
    ) -> i64 {
        let outcome = py.detach(|| client.put(key, sources, options));
        self.put_outcome(py, outcome, &OnceCell::new())
    }

    /// `put` and `upsert`.
    pub(crate) fn put_value(
        &self,
        py: Python<'_>,
        name: &str,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        config: Config<'_, '_>,
        write: Write,
    ) -> PyResult<i64> {
        let (key, value) = (key::key(key)?, Value::hold(value)?);
        let Some(client) = self.buffered(name) else { return Ok(INVALID_PARAMS) };
        Ok(match self.options(name, config, 1, Form::Plain, write) {
            Ok(options) => self.put_sources(py, &client, key, &[value.source()], &options),
            Err(code) => code,
        })
    }

    /// `put_parts` and `upsert_parts`.
    pub(crate) fn put_all_parts(
        &self,
        py: Python<'_>,
        name: &str,
        key: &Bound<'_, PyAny>,
        parts: &Bound<'_, PyTuple>,
        config: Config<'_, '_>,
        write: Write,
    ) -> PyResult<i64> {
        let key = key::key(key)?;
        let values = parts.iter().map(|part| Value::hold(&part)).collect::<PyResult<Vec<_>>>()?;
        let Some(client) = self.buffered(name) else { return Ok(INVALID_PARAMS) };
        let sources: Vec<_> = values.iter().map(Value::source).filter(|source| !source.is_empty()).collect();
        if sources.is_empty() {
            return Ok(OK);
        }
        Ok(match self.options(name, config, 1, Form::Plain, write) {
            Ok(options) => self.put_sources(py, &client, key, &sources, &options),
            Err(code) => code,
        })
    }

    /// `put_batch` and `upsert_batch`: the first failure of all.
    pub(crate) fn put_values(
        &self,
        py: Python<'_>,
        name: &str,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        config: Config<'_, '_>,
        write: Write,
    ) -> PyResult<i64> {
        let held = Keys::hold(keys)?;
        let keys = held.slices()?;
        let values = items(values, "values")?.iter().map(Value::hold).collect::<PyResult<Vec<_>>>()?;
        let Some(client) = self.buffered(name) else { return Ok(INVALID_PARAMS) };
        if keys.len() != values.len() {
            let reason = || format!("{name}: {} keys and {} values", keys.len(), values.len());
            return Ok(refused(self.errors(), reason));
        }
        let options = match self.options(name, config, keys.len(), Form::Plain, write) {
            Ok(options) => options,
            Err(code) => return Ok(code),
        };
        // Of a key given twice, Mooncake stores the first value.
        let first: Vec<usize> = first_of_each(&keys).collect();
        let options = match options.groups.is_empty() {
            true => options,
            false => PutOptions { groups: first.iter().map(|at| options.groups[*at].clone()).collect(), ..options },
        };
        let keys: Vec<&[u8]> = first.iter().map(|&at| keys[at]).collect();
        let sources: Vec<_> = first.iter().map(|&at| [values[at].source()]).collect();
        let codes = self.put_objects(py, &client, &keys, &options, |_| sources).into_iter();
        Ok(codes.fold(OK, |first, code| if first == OK { code } else { first }))
    }

    /// `put_from` and `upsert_from`: nothing to store is nothing done.
    #[expect(clippy::too_many_arguments, reason = "those of the Python method")]
    pub(crate) fn put_memory(
        &self,
        py: Python<'_>,
        name: &str,
        key: &Bound<'_, PyAny>,
        buffer_ptr: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        config: Config<'_, '_>,
        write: Write,
    ) -> PyResult<i64> {
        let key = key::key(key)?;
        let (ptr, size) = (unsigned(buffer_ptr, "buffer_ptr")?, unsigned(size, "size")?);
        let Some(client) = self.client(name) else { return Ok(INVALID_PARAMS) };
        if size == 0 {
            return Ok(OK);
        }
        let source = match Source::foreign(range(ptr, size), client.registry()) {
            Ok(source) => source,
            Err(out) => return Ok(failed(self.errors(), &out.into())),
        };
        Ok(match self.options(name, config, 1, Form::Plain, write) {
            Ok(options) => self.put_sources(py, &client, key, &[source], &options),
            Err(code) => code,
        })
    }

    /// `put_from_with_metadata`: the object is the metadata, then the data.
    pub(crate) fn put_two(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        metadata: (u64, u64),
        data: (u64, u64),
        config: Config<'_, '_>,
    ) -> PyResult<i64> {
        const NAME: &str = "put_from_with_metadata";
        let key = key::key(key)?;
        let Some(client) = self.client(NAME) else { return Ok(INVALID_PARAMS) };
        let piece = |(ptr, size)| Source::foreign(range(ptr, size), client.registry());
        let sources = match piece(metadata).and_then(|metadata| Ok([metadata, piece(data)?])) {
            Ok(both) => both.into_iter().filter(|piece| !piece.is_empty()).collect::<Vec<_>>(),
            Err(out) => return Ok(failed(self.errors(), &out.into())),
        };
        Ok(match self.options(NAME, config, 1, Form::Plain, Write::Put) {
            Ok(options) => self.put_sources(py, &client, key, &sources, &options),
            Err(code) => code,
        })
    }

    /// `batch_put_from`, `batch_put_from_multi_buffers` and their upserts.
    pub(crate) fn put_pieces(
        &self,
        py: Python<'_>,
        name: &str,
        pieces: &Pieces<'_>,
        config: Config<'_, '_>,
        form: Form,
        write: Write,
    ) -> PyResult<Vec<i64>> {
        let keys = pieces.keys.slices()?;
        let all = |code| Ok(vec![code; keys.len()]);
        let ranges = match &pieces.ranges {
            Ok(ranges) => ranges,
            Err(reason) => return all(refused(self.errors(), || format!("{name}: {reason}"))),
        };
        let options = match self.options(name, config, keys.len(), form, write) {
            Ok(options) => options,
            Err(code) => return all(code),
        };
        let Some(client) = self.client(name) else { return all(INVALID_PARAMS) };
        Ok(self.put_objects(py, &client, &keys, &options, |refused| {
            let registry = client.registry();
            let mut values = Vec::with_capacity(ranges.len());
            for (at, pieces) in ranges.iter().enumerate() {
                values.extend(refused.sift(at, Source::all_foreign(pieces, registry)));
            }
            values
        }))
    }

    /// What the tensor calls are made of: each object is a head and a tail.
    pub(crate) fn put_tensors(
        &self,
        py: Python<'_>,
        name: &str,
        keys: &Keys<'_>,
        objects: &[[&[u8]; 2]],
        config: Config<'_, '_>,
        write: Write,
    ) -> PyResult<Vec<i64>> {
        let keys = keys.slices()?;
        let all = |code| Ok(vec![code; keys.len()]);
        let options = match self.options(name, config, keys.len(), Form::MultiBuffers, write) {
            Ok(options) => options,
            Err(code) => return all(code),
        };
        let Some(client) = self.client(name) else { return all(INVALID_PARAMS) };
        let sources: Vec<Vec<_>> = objects
            .iter()
            .map(|pieces| pieces.iter().filter(|piece| !piece.is_empty()).map(|piece| Source::new(piece)).collect())
            .collect();
        Ok(self.put_objects(py, &client, &keys, &options, |_| sources))
    }

    /// A code for each object: what single puts that wait together become.
    pub(crate) fn put_each(&self, py: Python<'_>, keys: &Keys<'_>, values: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
        let keys = keys.slices()?;
        let all = |code| vec![code; keys.len()];
        let values = items(values, "values")?.iter().map(Value::hold).collect::<PyResult<Vec<_>>>()?;
        let Some(client) = self.buffered("put") else { return Ok(all(INVALID_PARAMS)) };
        if keys.len() != values.len() {
            let reason = || format!("put: {} keys and {} values", keys.len(), values.len());
            return Ok(all(refused(self.errors(), reason)));
        }
        let sources: Vec<_> = values.iter().map(|value| [value.source()]).collect();
        Ok(self.put_objects(py, &client, &keys, &PutOptions::default(), |_| sources))
    }

    /// Stores objects; a code for each. Their pieces are looked at without the GIL, and `values` may refuse some.
    fn put_objects<'s, Value: AsRef<[Source<'s>]> + Send>(
        &self,
        py: Python<'_>,
        client: &Store,
        keys: &[&[u8]],
        options: &PutOptions,
        values: impl FnOnce(&mut Refused) -> Vec<Value> + Send,
    ) -> Vec<i64> {
        let outcomes = py.detach(|| {
            let mut refused = Refused::default();
            let values = values(&mut refused);
            let put = |keys: &[&[u8]], options: &PutOptions| {
                let objects: Vec<_> =
                    keys.iter().zip(&values).map(|(key, value)| PutItem { key, value: value.as_ref() }).collect();
                client.put_batch(&objects, options)
            };
            if refused.is_empty() {
                return put(keys, options);
            }
            // Of as many groups as keys, those of the keys that are left; of another number, what is wrong with it is
            // said.
            let groups = match options.groups.len() == keys.len() {
                true => refused.others(&options.groups),
                false => options.groups.clone(),
            };
            let outcomes = put(&refused.others(keys), &PutOptions { groups, ..options.clone() });
            refused.merge(outcomes)
        });
        let gone = OnceCell::new();
        outcomes.into_iter().map(|outcome| self.put_outcome(py, outcome, &gone)).collect()
    }
}

/// Positions of the first occurrence of each key.
fn first_of_each<'a>(keys: &'a [&'a [u8]]) -> impl Iterator<Item = usize> + 'a {
    let mut seen = HashSet::with_capacity(keys.len());
    (0..keys.len()).filter(move |at| seen.insert(keys[*at]))
}
