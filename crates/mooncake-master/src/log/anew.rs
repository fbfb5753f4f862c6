//! Begins a log anew where one was lost, from the core that lives on: no restart, and nothing is forgotten.
//!
//! The new log is written beside the place of a log and gets that place in one step, by a rename, once it is whole: a
//! snapshot, and all that was changed since its moment. Until then the master is what it was, one without a log,
//! whatever ends in between; so is what a start finds. From then on the log is as good as one that began with the
//! master, and a witness vouches for it.
//!
//! It goes on under the id and with the LSNs that replies have told since the loss, all of which the snapshot covers.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::LogError;
use super::compactor::{self, Living};
use super::files::{self, FileHeader, FileKind};
use super::witness::{Witness, unpack};
use super::writer::{Log, LogClosed, LostLog, Rotated, Sink};
use crate::machine::commit::End;

/// A log that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    /// LSN of its snapshot.
    pub lsn: u64,
    /// Size of that, bytes.
    pub bytes: u64,
}

/// Begins the log anew; it is whole, and in its place, when this returns. An error leaves the master without a log.
pub fn begin_anew(log: &Log, living: &impl Living) -> Result<Begun, LogError> {
    // Not waited for: the one that is under way says how it ends.
    let _alone = log.snapshotting.try_lock().ok_or(LogError::Snapshotting)?;
    let began = Instant::now();
    let encoded = log.encode_again()?;
    let whole = compactor::or_break_off(living, || {
        // What was done before frames were encoded again has left the queue: all that the new file begins with is in
        // it.
        living.commit(encoded.number).map_err(|LogClosed| LogError::Stops)?;
        let rotated = log.open_anew()?;
        let (lsn, bytes) = compactor::snapshot(living, &rotated, &|| !log.is_closed())?;
        log.put_in_place(bytes)?;
        Ok(Begun { lsn, bytes })
    });
    match &whole {
        Ok(Begun { lsn, bytes }) => {
            log.compacted(*bytes, began.elapsed());
            tracing::warn!(lsn, bytes, "the log was lost and has begun anew: a restart remembers every object again");
        }
        Err(error) => {
            log.leave();
            tracing::error!(%error, "no new log; the master goes on WITHOUT A LOG: a restart now forgets every object");
        }
    }
    whole
}

impl Log {
    /// Frames are encoded from here on, and thrown away until there is a file. Where the queue ends by then.
    fn encode_again(&self) -> Result<End, LogError> {
        let writer = self.writer.lock();
        match (self.is_closed(), &writer.sink, &writer.lost) {
            (true, ..) => Err(LogError::Stops),
            (_, Some(_), _) => Err(LogError::NotLost),
            (_, None, None) => Err(LogError::NoLog),
            (_, None, Some(_)) => {
                let queue = self.queue.lock();
                self.enabled.store(true, Ordering::Release);
                Ok(queue.end())
            }
        }
    }

    /// Opens the first file of the new log, beside the place of one: it begins with the next frame to be written.
    ///
    /// As in a rotation only a log whose calls wait for the disk anyhow waits for it here.
    fn open_anew(&self) -> Result<Rotated, LogError> {
        let mut writer = self.writer.lock();
        if self.is_closed() {
            return Err(LogError::Stops);
        }
        let Some(LostLog { mut folder, boot_id, upkeep }) = writer.lost.take() else { return Err(LogError::NoLog) };
        let header = FileHeader { kind: FileKind::Log, log_id: self.log_id(), lsn: self.lsn() + 1, boot_id };
        let opened = folder
            .write_beside()
            .and_then(|()| folder.with_room(|| files::start(&folder.create_current()?, &header, self.fsync)));
        match opened {
            Ok(file) => {
                let rotated = Rotated { folder: folder.current(), open: header, _locked: folder.locked() };
                writer.sink = Some(Sink::of(folder, file, &header, upkeep));
                Ok(rotated)
            }
            Err(error) => {
                folder.leave_begun();
                writer.lost = Some(LostLog { folder, boot_id, upkeep });
                Err(error)
            }
        }
    }

    /// The new log is whole: a start reads it from here on, and a witness vouches for it.
    fn put_in_place(&self, snapshot_bytes: u64) -> Result<(), LogError> {
        let mut writer = self.writer.lock();
        if self.is_closed() {
            return Err(LogError::Stops);
        }
        // An append to it may have failed meanwhile.
        let Some(sink) = writer.sink.as_mut() else { return Err(LogError::LostAgain) };
        sink.folder.put_in_place()?;
        sink.snapshot_bytes = snapshot_bytes;
        let (lsn, epoch) = (self.lsn(), unpack(self.epoch.load(Ordering::Acquire)));
        let witness = sink.upkeep.witnesses.as_ref().map(|folder| {
            let mut witness = Witness::anew(folder, self.log_id(), None)?;
            witness.store_raised(lsn, epoch).inspect_err(|_| witness.remove())?;
            Ok::<_, std::io::Error>(witness)
        });
        sink.witness = witness.transpose().unwrap_or_else(|error| {
            tracing::warn!(%error, "no witness: the next start raises the epoch");
            None
        });
        self.lost.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Goes on without a log, as before.
    fn leave(&self) {
        let mut writer = self.writer.lock();
        match writer.sink.take_if(|sink| sink.folder.is_beside()) {
            Some(sink) => match self.give_up(sink) {
                Ok((_, lost)) => writer.lost = Some(lost),
                Err(error) => tracing::error!(%error, "what was begun of a log is not given up"),
            },
            None if writer.sink.is_none() => self.encode_no_more(),
            None => {}
        }
    }
}
