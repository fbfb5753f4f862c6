//! The way of records from the files of a log to their receiver.

use mooncake_core::RecordRef;

use super::frame;

/// Records that are decoded before the first of them is applied: few enough to stay in the processor's cache.
const AHEAD: usize = 256;

/// How far the reading of a log is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that were read.
    pub read: u64,
    /// Of so many.
    pub total: u64,
}

/// The receiver of a log's records.
pub trait Replay {
    /// The next record.
    fn apply(&mut self, record: RecordRef<'_>) -> Result<(), String>;

    /// About so many objects will come.
    fn expect(&mut self, _objects: usize) {}

    /// These come next.
    fn foresee(&mut self, _records: &[RecordRef<'_>], _progress: Progress) {}
}

impl<F: FnMut(RecordRef<'_>) -> Result<(), String>> Replay for F {
    fn apply(&mut self, record: RecordRef<'_>) -> Result<(), String> {
        self(record)
    }
}

/// Applies the records of a frame. Why one could not be.
pub fn apply_frame(payload: &[u8], progress: Progress, replay: &mut dyn Replay) -> Result<(), String> {
    let mut rest = frame::records::<&[u8]>(payload);
    let mut ahead = Vec::new();
    loop {
        for record in rest.by_ref().take(AHEAD) {
            ahead.push(record.map_err(|error| error.to_string())?);
        }
        if ahead.is_empty() {
            return Ok(());
        }
        replay.foresee(&ahead, progress);
        ahead.drain(..).try_for_each(|record| replay.apply(record))?;
    }
}
