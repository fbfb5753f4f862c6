//! Arguments of `get_into_ranges`: for each buffer some keys, for each key some
//! fragments, each with its place in the buffer and in the object.

use mooncake_client::{Destination, ForeignRange, GetRanges, ReadRange, Refused};
use pyo3::prelude::*;

use crate::code::INVALID_PARAMS;
use crate::convert::buffers::range;
use crate::convert::integer::{Lists, unsigned_list, unsigned_lists};
use crate::convert::key::Keys;
use crate::convert::sequence::items;
use crate::entry::{failed, refused};
use crate::store::class::MooncakeDistributedStore;

/// What is wanted, a list a buffer. Lists that do not fit together fail for what they are about, in the shape of the
/// reference: a list for each buffer, in it one for each key, in it an integer for each destination.
pub struct Ranges<'py> {
    buffers: Vec<Buffer<'py>>,
    /// Why the first that do not fit do not.
    misfit: Option<String>,
}

struct Buffer<'py> {
    keys: Option<Keys<'py>>,
    /// For each key.
    wanted: Vec<Wanted>,
}

/// First byte of the object, and memory.
type Fragment = (u64, ForeignRange);

enum Wanted {
    Fragments(Vec<Fragment>),
    /// The lists do not fit; so many integers say so.
    Misfit(usize),
}

impl Wanted {
    fn codes(&self) -> usize {
        match self {
            Wanted::Fragments(fragments) => fragments.len(),
            Wanted::Misfit(codes) => *codes,
        }
    }
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
        let lists = |any: &Bound<'py, PyAny>, what| -> PyResult<Vec<Lists<u64>>> {
            items(any, what)?.iter().map(|one| unsigned_lists(one, what)).collect()
        };
        let (dst, src, sizes) =
            (lists(dst, "all_dst_offsets")?, lists(src, "all_src_offsets")?, lists(sizes, "all_sizes")?);
        let mut misfit = None;
        let mut fits = |what: &str, counts: &[usize]| {
            let good = counts.iter().all(|count| *count == counts[0]);
            if !good && misfit.is_none() {
                misfit = Some(format!("{what}: lists of {counts:?} do not fit together"));
            }
            good
        };
        let whole = fits("buffers", &[ptrs.len(), keys.len(), dst.len(), src.len(), sizes.len()]);
        let mut keys = keys.into_iter();
        let mut buffers = Vec::with_capacity(ptrs.len());
        for (at, ptr) in ptrs.into_iter().enumerate() {
            let keys = keys.next();
            let count = keys.as_ref().map_or(0, Keys::len);
            let good = whole && fits("keys of a buffer", &[count, dst[at].len(), src[at].len(), sizes[at].len()]);
            let codes = |key: usize| {
                let list = dst.get(at).filter(|lists| key < lists.len()).map(|lists| &lists[key]);
                Wanted::Misfit(list.map_or(1, <[u64]>::len).max(1))
            };
            let of_key = |key: usize| {
                if !good {
                    return codes(key);
                }
                let (dst, src, sizes) = (&dst[at][key], &src[at][key], &sizes[at][key]);
                if !fits("fragments of a key", &[dst.len(), src.len(), sizes.len()]) {
                    return codes(key);
                }
                let places = dst.iter().zip(src).zip(sizes);
                // An address beyond the last one is memory that is not there.
                Wanted::Fragments(places.map(|((d, s), n)| (*s, range(ptr.saturating_add(*d), *n))).collect())
            };
            // Where whole lists are missing, one integer has to say so.
            let wanted = (0..count.max(usize::from(!good))).map(of_key).collect();
            buffers.push(Buffer { keys, wanted });
        }
        Ok(Self { buffers, misfit })
    }

    /// The same integer for every fragment.
    pub fn all(&self, code: i64) -> Vec<Vec<Vec<i64>>> {
        let of_buffer = |buffer: &Buffer<'_>| buffer.wanted.iter().map(|wanted| vec![code; wanted.codes()]).collect();
        self.buffers.iter().map(of_buffer).collect()
    }
}

impl MooncakeDistributedStore {
    /// Bytes read for each fragment, or its integer.
    pub(crate) fn get_ranges(&self, py: Python<'_>, wanted: &Ranges<'_>) -> PyResult<Vec<Vec<Vec<i64>>>> {
        const NAME: &str = "get_into_ranges";
        if let Some(misfit) = &wanted.misfit {
            refused(self.errors(), || format!("{NAME}: {misfit}"));
        }
        let Some(client) = self.client(NAME) else { return Ok(wanted.all(INVALID_PARAMS)) };
        let mut asked: Vec<(&[u8], &[Fragment])> = Vec::new();
        for Buffer { keys, wanted } in &wanted.buffers {
            let keys = keys.as_ref().map(Keys::slices).transpose()?.unwrap_or_default();
            for (key, wanted) in keys.into_iter().zip(wanted) {
                if let Wanted::Fragments(fragments) = wanted {
                    asked.push((key, fragments));
                }
            }
        }
        let outcomes = py.detach(|| {
            let registry = client.registry();
            let (mut all, mut refused) = (Vec::with_capacity(asked.len()), Vec::with_capacity(asked.len()));
            for (key, fragments) in asked {
                let (mut left_out, mut ranges) = (Refused::default(), Vec::with_capacity(fragments.len()));
                for (at, &(offset, memory)) in fragments.iter().enumerate() {
                    let destination = left_out.sift(at, Destination::foreign(memory, registry));
                    ranges.extend(destination.map(|destination| ReadRange { offset, destination }));
                }
                all.push(GetRanges { key, ranges });
                refused.push(left_out);
            }
            let read = client.get_ranges(&mut all);
            read.into_iter().zip(refused).map(|(outcomes, refused)| refused.merge(outcomes)).collect::<Vec<_>>()
        });
        let mut outcomes = outcomes.into_iter();
        let mut of_key = |wanted: &Wanted| match wanted {
            Wanted::Misfit(codes) => vec![INVALID_PARAMS; *codes],
            Wanted::Fragments(_) => {
                let codes = outcomes.next().into_iter().flatten().map(|outcome| match outcome {
                    Ok(Some(bytes)) => bytes as i64,
                    Ok(None) => self.missing(&client),
                    Err(error) => failed(self.errors(), &error),
                });
                codes.collect()
            }
        };
        Ok(wanted.buffers.iter().map(|buffer| buffer.wanted.iter().map(&mut of_key).collect()).collect())
    }
}
