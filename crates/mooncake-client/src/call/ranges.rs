//! Parts of objects into the caller's memory: one look-up for all of them,
//! vouched for by the stamps of what was copied.

use mooncake_memory::Destination;

use crate::call::get::Part;
use crate::error::{Cause, StoreError};
use crate::inner::Inner;
use crate::machine::get::{Fetched, read_any_replica};
use crate::machine::ready;

/// Parts of one object, and where they go.
#[derive(Debug)]
pub struct GetRanges<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// The parts.
    pub ranges: Vec<ReadRange<'a>>,
}

/// A part of an object: as many bytes as the destination has, from `offset` on.
#[derive(Debug)]
pub struct ReadRange<'a> {
    /// First byte of the object.
    pub offset: u64,
    /// Where its bytes go.
    pub destination: Destination<'a>,
}

/// Bytes read, `None` for a miss, or why not.
pub type RangeOutcome = Result<Option<u64>, StoreError>;

impl Inner {
    pub(crate) fn get_ranges(&self, items: &mut [GetRanges<'_>]) -> Vec<Vec<RangeOutcome>> {
        let keys: Vec<&[u8]> = items.iter().map(|item| item.key).collect();
        let mut outcomes: Vec<Vec<RangeOutcome>> =
            items.iter().map(|item| item.ranges.iter().map(|_| Ok(None)).collect()).collect();
        let read = self.read_each(&keys, |index, object, numbering, lost| {
            let item = &mut items[index];
            // Parts that the object does not have are the caller's mistake; the others are read all the same.
            for (range, outcome) in item.ranges.iter().zip(&mut outcomes[index]) {
                let len = range.destination.len() as u64;
                if range.offset.checked_add(len).is_none_or(|end| end > object.size) {
                    *outcome = Err(Cause::InvalidParams(format!(
                        "{len} bytes from byte {} on: the object has {} bytes",
                        range.offset, object.size
                    ))
                    .into());
                }
            }
            let mut done = 0;
            let wanted = outcomes[index].iter().filter(|outcome| outcome.is_ok()).count();
            let fetched = ready(read_any_replica(self, item.key, object, numbering, lost, async |replica| {
                done = 0;
                for (range, outcome) in item.ranges.iter_mut().zip(&outcomes[index]) {
                    if outcome.is_err() {
                        continue;
                    }
                    let part = Part { offset: range.offset, destinations: &mut [range.destination.reborrow()] };
                    let interrupted = || self.is_interrupted();
                    self.read_replica((item.key, object), replica, numbering, part, &interrupted)?;
                    done += 1;
                }
                Ok(())
            }));
            if matches!(fetched, Fetched::Done(_)) {
                debug_assert_eq!(done, wanted);
                for (range, outcome) in item.ranges.iter().zip(&mut outcomes[index]) {
                    if outcome.is_ok() {
                        *outcome = Ok(Some(range.destination.len() as u64));
                    }
                }
            }
            fetched
        });
        for (outcomes, read) in outcomes.iter_mut().zip(read) {
            if let Err(error) = read {
                outcomes.iter_mut().filter(|outcome| outcome.is_ok()).for_each(|outcome| *outcome = Err(error.clone()));
            }
        }
        outcomes
    }
}
