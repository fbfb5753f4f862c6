//! Arguments of `get_into_ranges`: for each buffer some keys, for each key some
//! fragments, each with its place in the buffer and in the object.

use mooncake_client::{ForeignRange, GetRanges, ReadRange, Target};
use pyo3::prelude::*;

use crate::buffers::range;
use crate::call::{failed, refused};
use crate::code::{INVALID_PARAMS, NOT_FOUND};
use crate::integer::{unsigned_list, unsigned_lists};
use crate::key::Keys;
use crate::sequence::items;
use crate::store::MooncakeDistributedStore;

/// What is wanted, a list a buffer.
pub struct Ranges<'py> {
    buffers: Vec<Buffer<'py>>,
    /// Why the lists do not fit together.
    misfit: Option<String>,
}

struct Buffer<'py> {
    keys: Keys<'py>,
    /// The fragments of each key: first byte of the object, and memory.
    fragments: Vec<Vec<(u64, ForeignRange)>>,
}

impl<'py> Ranges<'py> {
    /// Takes the lists over.
    pub fn hold(
        ptrs: &Bound<'py, PyAny>,
        keys: &Bound<'py, PyAny>,
        dst: &Bound<'py, PyAny>,
        src: &Bound<'py, PyAny>,
        sizes: &Bound<'py, PyAny>,
    ) -> PyResult<Self> {
        let ptrs = unsigned_list(ptrs, "buffer_ptrs")?;
        let keys = items(keys, "all_keys")?.iter().map(Keys::hold).collect::<PyResult<Vec<_>>>()?;
        let lists = |any: &Bound<'py, PyAny>, what| -> PyResult<Vec<Vec<Vec<u64>>>> {
            items(any, what)?.iter().map(|one| unsigned_lists(one, what)).collect()
        };
        let (dst, src, sizes) =
            (lists(dst, "all_dst_offsets")?, lists(src, "all_src_offsets")?, lists(sizes, "all_sizes")?);
        let mut misfit = None;
        let mut fits = |what: &str, counts: [usize; 4]| {
            let good = counts.iter().all(|count| *count == counts[0]);
            if !good && misfit.is_none() {
                misfit = Some(format!("{what}: {counts:?} keys, destinations, sources and sizes do not fit together"));
            }
            good
        };
        let mut buffers = Vec::new();
        let whole = fits("buffers", [keys.len(), dst.len(), src.len(), sizes.len()]) && keys.len() == ptrs.len();
        for (at, keys) in keys.into_iter().enumerate() {
            let mut fragments: Vec<Vec<(u64, ForeignRange)>> = (0..keys.len()).map(|_| Vec::new()).collect();
            if whole && fits("keys of a buffer", [keys.len(), dst[at].len(), src[at].len(), sizes[at].len()]) {
                for (key, fragments) in fragments.iter_mut().enumerate() {
                    let (dst, src, sizes) = (&dst[at][key], &src[at][key], &sizes[at][key]);
                    if fits("fragments of a key", [dst.len(), dst.len(), src.len(), sizes.len()]) {
                        let places = dst.iter().zip(src).zip(sizes);
                        // An address beyond the last one is memory that is not there.
                        fragments.extend(places.map(|((d, s), n)| (*s, range(ptrs[at].saturating_add(*d), *n))));
                    }
                }
            }
            buffers.push(Buffer { keys, fragments });
        }
        if !whole && misfit.is_none() {
            misfit = Some(format!("{} buffer_ptrs and {} lists of keys", ptrs.len(), buffers.len()));
        }
        Ok(Self { buffers, misfit })
    }

    /// The same integer for every fragment.
    pub fn all(&self, code: i64) -> Vec<Vec<Vec<i64>>> {
        let of_key = |fragments: &Vec<_>| vec![code; fragments.len().max(usize::from(self.misfit.is_some()))];
        self.buffers.iter().map(|buffer| buffer.fragments.iter().map(of_key).collect()).collect()
    }
}

impl MooncakeDistributedStore {
    /// Bytes read for each fragment, or its integer.
    pub(crate) fn get_ranges(&self, py: Python<'_>, wanted: &Ranges<'_>) -> PyResult<Vec<Vec<Vec<i64>>>> {
        const NAME: &str = "get_into_ranges";
        if let Some(misfit) = &wanted.misfit {
            return Ok(wanted.all(refused(self.errors(), || format!("{NAME}: {misfit}"))));
        }
        let Some(client) = self.client(NAME) else { return Ok(wanted.all(INVALID_PARAMS)) };
        let keys = wanted.buffers.iter().map(|buffer| buffer.keys.slices()).collect::<PyResult<Vec<_>>>()?;
        let fragments: Vec<&[Vec<_>]> = wanted.buffers.iter().map(|buffer| &buffer.fragments[..]).collect();
        let outcomes = py.detach(|| {
            let registry = client.registry();
            let range = |&(offset, memory): &(u64, _)| ReadRange { offset, target: Target::foreign(memory, registry) };
            let mut all: Vec<_> = (fragments.iter().zip(&keys))
                .flat_map(|(fragments, keys)| keys.iter().zip(*fragments))
                .map(|(key, fragments)| GetRanges { key, ranges: fragments.iter().map(range).collect() })
                .collect();
            client.get_ranges(&mut all)
        });
        let mut outcomes = outcomes.into_iter();
        Ok(wanted
            .buffers
            .iter()
            .map(|buffer| {
                let of_buffer = outcomes.by_ref().take(buffer.keys.len());
                of_buffer
                    .map(|of_key| {
                        let codes = of_key.into_iter().map(|outcome| match outcome {
                            Ok(Some(bytes)) => bytes as i64,
                            Ok(None) => NOT_FOUND,
                            Err(error) => failed(self.errors(), &error),
                        });
                        codes.collect()
                    })
                    .collect()
            })
            .collect())
    }
}
