//! Snapshots: the records that recreate the state after an LSN.
//!
//! Frames as in a segment, numbered from 1; an empty frame ends the file, so
//! that a snapshot that was cut never passes for a whole one.

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use mooncake_core::Record;

use super::LogError;
use super::frame;
use super::segment_file::{self, FILE_HEADER, FileHeader, FileKind, FrameFile, Next};
use super::step::{Step, step};

const FRAME_TARGET: usize = 64 << 10;

/// Writes a snapshot under a temporary name, syncs it and renames it. Returns its size.
pub fn write(
    folder: &Path,
    header: &FileHeader,
    records: impl Iterator<Item = Record>,
    stop: &AtomicBool,
) -> io::Result<u64> {
    debug_assert_eq!(header.kind, FileKind::Snapshot);
    let path = folder.join(header.file_name());
    let temporary = path.with_extension("tmp");
    let size = write_to(&temporary, header, records, stop).inspect_err(|_| {
        // The next attempt has another name: on a full disk it needs the room of this one.
        if let Err(error) = std::fs::remove_file(&temporary) {
            tracing::warn!(path = %temporary.display(), %error, "unfinished snapshot not removed");
        }
    })?;
    std::fs::rename(&temporary, &path)?;
    std::fs::File::open(folder)?.sync_all()?;
    step(Step::Snapshot, &path)?;
    Ok(size)
}

fn write_to(
    path: &Path,
    header: &FileHeader,
    records: impl Iterator<Item = Record>,
    stop: &AtomicBool,
) -> io::Result<u64> {
    let mut file = segment_file::create(path, header)?;
    let mut size = FILE_HEADER as u64;
    let mut number = 1;
    let mut out = Vec::with_capacity(2 * FRAME_TARGET);
    let mut start = frame::begin(&mut out);
    let mut flush = |out: &mut Vec<u8>, start: usize| {
        frame::finish(out, start, header.log_id, number);
        number += 1;
        size += out.len() as u64;
        file.write_all(out)?;
        out.clear();
        if stop.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "the master stops"));
        }
        Ok(())
    };
    for record in records {
        frame::put_record(&record, &mut out);
        if out.len() >= FRAME_TARGET {
            flush(&mut out, start)?;
            start = frame::begin(&mut out);
        }
    }
    if out.len() > start + frame::HEADER {
        flush(&mut out, start)?;
        start = frame::begin(&mut out);
    }
    flush(&mut out, start)?;
    file.sync_all()?;
    Ok(size)
}

/// Reads a whole snapshot.
pub fn read(path: &Path, apply: &mut dyn FnMut(Record) -> Result<(), String>) -> Result<FileHeader, LogError> {
    let io = |source| LogError::Io { action: "reading", path: path.to_owned(), source };
    let foreign = |reason: &str| LogError::Foreign { path: path.to_owned(), reason: reason.to_owned() };
    let (mut file, header) = FrameFile::open(path).map_err(io)?;
    let header = header
        .filter(|h| h.kind == FileKind::Snapshot)
        .ok_or_else(|| foreign("is no snapshot that this version reads"))?;
    for number in 1.. {
        match file.next(header.log_id).map_err(io)? {
            Next::Frame { lsn, payload } if lsn == number => {
                if payload.is_empty() {
                    return Ok(header);
                }
                for record in frame::records(payload) {
                    let record = record.map_err(|e| e.to_string());
                    record.and_then(&mut *apply).map_err(|reason| LogError::Replay {
                        path: path.to_owned(),
                        lsn: header.lsn,
                        reason,
                    })?;
                }
            }
            Next::Frame { .. } | Next::Damage => return Err(foreign("is a damaged snapshot")),
            Next::End => return Err(foreign("is a snapshot without its end")),
        }
    }
    unreachable!("the loop ends with the file")
}
