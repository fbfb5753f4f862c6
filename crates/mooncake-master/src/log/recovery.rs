//! Reading a log at start: newest snapshot, then every segment behind it.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use mooncake_core::Record;

use super::LogError;
use super::frame;
use super::segment_file::{self, FILE_HEADER, FileKind, FrameFile, Next};
use super::snapshot;

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Recovered {
    /// Id of the log.
    pub log_id: u64,
    /// LSN of its last frame.
    pub last_lsn: u64,
    /// Size of the snapshot, bytes, 0 without one.
    pub snapshot_bytes: u64,
    /// Size of the segments behind it, bytes.
    pub segment_bytes: u64,
    /// Bytes of torn tail that were cut.
    pub cut_bytes: u64,
}

/// Replays the log in `folder` through `apply`. `None`: there is no log.
/// Changes nothing but a torn tail, which it cuts.
pub fn recover(
    folder: &Path,
    boot_id: &[u8; 16],
    apply: &mut dyn FnMut(Record) -> Result<(), String>,
) -> Result<Option<Recovered>, LogError> {
    if !folder.exists() {
        return Ok(None);
    }
    let list = |kind| segment_file::list(folder, kind).map_err(LogError::io("listing", folder));
    let mut found = Recovered::default();
    let snapshots = list(FileKind::Snapshot)?;
    if let Some((_, path)) = snapshots.last() {
        let header = snapshot::read(path, apply)?;
        found.log_id = header.log_id;
        found.last_lsn = header.lsn;
        found.snapshot_bytes = file_size(path)?;
    }
    let segments = list(FileKind::Segment)?;
    let mut known = !snapshots.is_empty();
    for (index, (_, path)) in segments.iter().enumerate() {
        let later = &segments[index + 1..];
        // A leftover that the snapshot covers: the compactor died before it removed it.
        if later.first().is_some_and(|(first, _)| *first <= found.last_lsn + 1) {
            continue;
        }
        match segment(path, later, boot_id, known.then_some(found.log_id), &mut found, apply)? {
            Segment::Read => known = true,
            Segment::Empty => {}
            Segment::CutShort => break,
        }
    }
    Ok(known.then_some(found))
}

enum Segment {
    Read,
    /// Not even its header was written: the master died right there.
    Empty,
    /// The host died: nothing behind the first gap counts.
    CutShort,
}

fn segment(
    path: &Path,
    later: &[(u64, PathBuf)],
    boot_id: &[u8; 16],
    log_id: Option<u64>,
    found: &mut Recovered,
    apply: &mut dyn FnMut(Record) -> Result<(), String>,
) -> Result<Segment, LogError> {
    let io = |source| LogError::Io { action: "reading", path: path.to_owned(), source };
    let (mut file, header) = FrameFile::open(path).map_err(io)?;
    let Some(header) = header.filter(|h| h.kind == FileKind::Segment) else {
        let head = file.rest().map_err(io)?;
        if later.is_empty() && (head.len() < FILE_HEADER || head.iter().all(|&b| b == 0)) {
            return Ok(Segment::Empty);
        }
        let reason = "is no log segment that this version reads".to_owned();
        return Err(LogError::Foreign { path: path.to_owned(), reason });
    };
    let log_id = log_id.unwrap_or(header.log_id);
    if header.log_id != log_id {
        let reason = format!("belongs to log {:016x}, the files before it to {log_id:016x}", header.log_id);
        return Err(LogError::Foreign { path: path.to_owned(), reason });
    }
    if header.lsn > found.last_lsn + 1 {
        return Err(LogError::Gap { path: path.to_owned(), expected: found.last_lsn + 1, found: header.lsn });
    }
    found.log_id = log_id;
    let mut expected = header.lsn;
    loop {
        let offset = file.offset();
        match file.next(log_id).map_err(io)? {
            Next::Frame { lsn, payload } if lsn == expected => {
                if lsn > found.last_lsn {
                    for record in frame::records(payload) {
                        let record = record.map_err(|e| e.to_string());
                        record.and_then(&mut *apply).map_err(|reason| LogError::Replay {
                            path: path.to_owned(),
                            lsn,
                            reason,
                        })?;
                    }
                    found.last_lsn = lsn;
                }
                expected += 1;
            }
            Next::Frame { lsn, .. } => return Err(LogError::Gap { path: path.to_owned(), expected, found: lsn }),
            Next::End => {
                found.segment_bytes += file.offset();
                // Under another boot, a whole file may have been lost with the page cache.
                let gap = later.first().filter(|(first, _)| *first > expected);
                return match gap {
                    Some((_, next)) if header.boot_id == *boot_id => {
                        let found = later[0].0;
                        Err(LogError::Gap { path: next.clone(), expected, found })
                    }
                    Some(_) => {
                        set_aside(later)?;
                        Ok(Segment::CutShort)
                    }
                    None => Ok(Segment::Read),
                };
            }
            Next::Damage => {
                let rest = file.rest().map_err(io)?;
                let cut = rest.len() as u64;
                let hidden = frame::find_later(rest, log_id, expected + 1..=expected + cut);
                let hidden = hidden.or(later.first().map(|(first, _)| *first));
                if let Some(hidden) = hidden
                    && header.boot_id == *boot_id
                {
                    return Err(LogError::Damaged { path: path.to_owned(), offset, lsn: expected, later: hidden });
                }
                tracing::warn!(
                    path = %path.display(), offset, bytes = cut, lsn = expected,
                    "the log's torn tail is cut; what it said was never acknowledged, or the host lost it"
                );
                let file = OpenOptions::new().write(true).open(path).map_err(io)?;
                file.set_len(offset).and_then(|()| file.sync_all()).map_err(LogError::io("cutting", path))?;
                found.segment_bytes += offset;
                found.cut_bytes += cut;
                if later.is_empty() {
                    return Ok(Segment::Read);
                }
                set_aside(later)?;
                return Ok(Segment::CutShort);
            }
        }
    }
}

/// Files behind a gap that a power loss left: kept for a look, but never read again.
fn set_aside(files: &[(u64, PathBuf)]) -> Result<(), LogError> {
    for (_, path) in files {
        tracing::warn!(path = %path.display(), "log segment behind a gap is set aside: the host lost what lies between");
        std::fs::rename(path, path.with_extension("lost")).map_err(LogError::io("renaming", path))?;
    }
    Ok(())
}

fn file_size(path: &Path) -> Result<u64, LogError> {
    Ok(std::fs::metadata(path).map_err(LogError::io("reading", path))?.len())
}
