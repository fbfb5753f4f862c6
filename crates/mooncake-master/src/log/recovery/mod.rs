//! Reading a log at start: newest snapshot, then every log file behind it.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use super::LogError;
use super::files::{self, FILE_HEADER, FileHeader, FileKind, FrameFile, Next};
use super::frame;
use super::replay::{self, Progress, Replay};
use super::snapshot;

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Recovered {
    /// Id of the log.
    pub log_id: u64,
    /// LSN of its last frame.
    pub last_lsn: u64,
    /// Boot under which its last log file was written, as far as that says so: a witness of another boot knows less.
    pub last_boot: Option<[u8; 16]>,
    /// Size of the snapshot, bytes, 0 without one.
    pub snapshot_bytes: u64,
    /// Size of the log files behind it, bytes.
    pub log_file_bytes: u64,
    /// Bytes of torn tail that were cut.
    pub cut_bytes: u64,
}

/// Replays the log in `folder`. `None`: there is no log. Changes nothing but a torn tail, which it cuts,
/// and files without a header: those of failed rotations are removed, what a power loss left is set aside.
pub fn recover(folder: &Path, boot_id: &[u8; 16], replay: &mut dyn Replay) -> Result<Option<Recovered>, LogError> {
    if !folder.exists() {
        return Ok(None);
    }
    let list = |kind| files::list(folder, kind).map_err(LogError::io("listing", folder));
    let mut found = Recovered::default();
    let mut before = None;
    let (snapshots, log_files) = (list(FileKind::Snapshot)?, list(FileKind::Log)?);
    let sizes = snapshots.last().into_iter().chain(&log_files).map(|(_, path)| file_size(path));
    let total = sizes.sum::<Result<u64, LogError>>()?;
    if let Some((_, path)) = snapshots.last() {
        let header = snapshot::read(path, total, replay)?;
        found.log_id = header.log_id;
        found.last_lsn = header.lsn;
        found.snapshot_bytes = file_size(path)?;
        before = Some(header.boot_id);
    }
    let log_files = LogFile::all(log_files, before)?;
    let mut progress = Progress { read: found.snapshot_bytes, total };
    found.last_boot = log_files.last().and_then(|last| last.head.boot_id());
    let mut known = !snapshots.is_empty();
    let mut leftovers = Vec::new();
    for (index, log_file) in log_files.iter().enumerate() {
        let later = &log_files[index + 1..];
        let next = found.last_lsn + 1;
        // The snapshot covers it: the compactor died before it removed it.
        let covered = later.iter().any(|other| other.first <= next && other.head.boot_id().is_some());
        match &log_file.head {
            Head::Blank if covered || log_file.hides_nothing(later, next) => leftovers.push(&log_file.path),
            _ if covered => {}
            Head::Whole(header) => match read(log_file, header, later, boot_id, known, &mut found, progress, replay)? {
                Reading::Done => known = true,
                Reading::CutShort => {
                    known = true;
                    break;
                }
            },
            // Only other boots wrote here and behind it, so that the host may have lost a header: as behind a gap in
            // [`read`].
            Head::Blank | Head::Zeroed if !log_file.is_of(boot_id, later) => {
                set_aside(&log_files[index..])?;
                break;
            }
            Head::Blank | Head::Zeroed => {
                let path = log_file.path.clone();
                let reason = "has lost its header, and what belongs behind it, which no crash of a master leaves";
                return Err(LogError::Foreign { path, reason: reason.to_owned() });
            }
            Head::Other => {
                let reason = "is no log segment that this version reads".to_owned();
                return Err(LogError::Foreign { path: log_file.path.clone(), reason });
            }
        }
        progress.read += log_file.bytes;
    }
    for path in leftovers {
        tracing::warn!(path = %path.display(), "empty file of a rotation that failed is removed");
        std::fs::remove_file(path).map_err(LogError::io("removing", path))?;
    }
    Ok(known.then_some(found))
}

/// Id of the log in a folder, from the first of its files that says so.
pub fn log_id_of(folder: &Path) -> Option<u64> {
    let files = [FileKind::Snapshot, FileKind::Log].map(|kind| files::list(folder, kind).unwrap_or_default());
    let mut headers = files.iter().flatten().filter_map(|(_, path)| FrameFile::open(path).ok()?.1);
    headers.next().map(|header| header.log_id)
}

/// A log file, and what its first bytes say.
struct LogFile {
    /// LSN of its first frame, from its name.
    first: u64,
    path: PathBuf,
    head: Head,
    /// Boot of what was written before it.
    before: Option<[u8; 16]>,
    bytes: u64,
}

enum Head {
    Whole(FileHeader),
    /// Nothing is in it: the master died when it made it, its disk was full, or the host lost what was in it.
    Blank,
    /// Zeros where the header belongs, in a file that goes on: the host lost its beginning.
    Zeroed,
    /// Something else.
    Other,
}

impl Head {
    fn boot_id(&self) -> Option<[u8; 16]> {
        match self {
            Head::Whole(header) => Some(header.boot_id),
            Head::Blank | Head::Zeroed | Head::Other => None,
        }
    }
}

impl LogFile {
    /// All of them, oldest first; `before` is the boot of the snapshot.
    fn all(files: Vec<(u64, PathBuf)>, mut before: Option<[u8; 16]>) -> Result<Vec<LogFile>, LogError> {
        let mut log_files = Vec::with_capacity(files.len());
        for (first, path) in files {
            let io = |source| LogError::Io { action: "reading", path: path.clone(), source };
            let (mut file, header) = FrameFile::open(&path).map_err(io)?;
            let head = match header {
                Some(header) if header.kind == FileKind::Log => Head::Whole(header),
                Some(_) => Head::Other,
                None => match file.rest().map_err(io)? {
                    bytes if bytes.len() < FILE_HEADER => Head::Blank,
                    bytes if bytes[..FILE_HEADER].iter().any(|&b| b != 0) => Head::Other,
                    bytes if bytes.len() == FILE_HEADER => Head::Blank,
                    _ => Head::Zeroed,
                },
            };
            let bytes = file_size(&path)?;
            let boot_id = head.boot_id();
            log_files.push(LogFile { first, path, head, before, bytes });
            before = boot_id.or(before);
        }
        Ok(log_files)
    }

    /// Whether it, or something behind it, was written under this boot, which then had all that came before: no power
    /// loss explains what is missing. What has no header is of its neighbours' boot.
    fn is_of(&self, boot_id: &[u8; 16], later: &[LogFile]) -> bool {
        let own = self.head.boot_id().or(self.before);
        own.is_none_or(|own| own == *boot_id) || later.iter().any(|other| other.head.boot_id() == Some(*boot_id))
    }

    /// Whether the log, which goes on at LSN `next`, has nothing that belongs into this empty file.
    fn hides_nothing(&self, later: &[LogFile], next: u64) -> bool {
        self.first <= next && later.first().is_none_or(|other| other.first <= next)
    }

    /// Whether it shows that the log went on behind LSN `next`, which is not there. A rotation that failed leaves
    /// a file at an earlier place, with no frame in it, and the log goes on where it was.
    fn is_behind(&self, next: u64) -> bool {
        self.first > next || self.bytes > FILE_HEADER as u64
    }
}

enum Reading {
    Done,
    /// The host died: nothing behind the first gap counts.
    CutShort,
}

/// Replays a log file, as far as it is whole.
// What lies behind the first bad or missing frame decides. A frame is in the page cache before anything tells of it
// (`docs/safety.md`, rule 17), and the page cache outlives a master but not its host:
// - Nothing: a master died while it wrote that frame, and nothing had told of it; or the host lost it. The end is cut.
//   Where replies had told of it, the witness is ahead of the log or gone with the boot: the epoch is raised (rule 18).
// - Something, and this boot wrote there: no crash of a master leaves that. The master stops and changes nothing.
// - Something, and only other boots wrote there: the host lost its page cache, in any order. The log ends before the
//   gap: what lies behind it builds on what is missing, so that the start sets those files aside. The log's last file
//   is of another boot: the epoch is raised (rule 18).
#[expect(clippy::too_many_arguments, reason = "where it is read from, and what has been found so far")]
fn read(
    log_file: &LogFile,
    header: &FileHeader,
    later: &[LogFile],
    boot_id: &[u8; 16],
    known: bool,
    found: &mut Recovered,
    before: Progress,
    replay: &mut dyn Replay,
) -> Result<Reading, LogError> {
    let path = &log_file.path;
    let io = |source| LogError::Io { action: "reading", path: path.to_owned(), source };
    let (mut file, _) = FrameFile::open(path).map_err(io)?;
    let log_id = if known { found.log_id } else { header.log_id };
    if header.log_id != log_id {
        let reason = format!("belongs to log {:016x}, the files before it to {log_id:016x}", header.log_id);
        return Err(LogError::Foreign { path: path.to_owned(), reason });
    }
    // A gap between two log files shows at the end of the earlier one; this one is behind the snapshot, or at the log's
    // beginning. No power loss leaves that: a snapshot and the log file behind it are synced before older files go
    // (`docs/safety.md`, rule 17).
    if header.lsn > found.last_lsn + 1 {
        return Err(LogError::Gap { path: path.to_owned(), expected: found.last_lsn + 1, found: header.lsn });
    }
    found.log_id = log_id;
    let mut expected = header.lsn;
    loop {
        let offset = file.offset();
        match file.next(log_id).map_err(io)? {
            Next::Frame { lsn, payload } if lsn == expected => {
                // Otherwise the snapshot has it.
                if lsn > found.last_lsn {
                    let progress = Progress { read: before.read + offset, ..before };
                    let replayed = |reason| LogError::Replay { path: path.to_owned(), lsn, reason };
                    replay::apply_frame(payload, progress, replay).map_err(replayed)?;
                    found.last_lsn = lsn;
                }
                expected += 1;
            }
            // Its checksum holds: what a host loses of a file does not look like this, whatever boot wrote it.
            Next::Frame { lsn, .. } => return Err(LogError::Gap { path: path.to_owned(), expected, found: lsn }),
            Next::End => {
                found.log_file_bytes += file.offset();
                // Under another boot, the host may have lost a whole file with its page cache.
                let expected = found.last_lsn + 1;
                let gap = later.first().filter(|next| next.first > expected);
                return match gap {
                    Some(next) if log_file.is_of(boot_id, later) => {
                        Err(LogError::Gap { path: next.path.clone(), expected, found: next.first })
                    }
                    Some(_) => {
                        set_aside(later)?;
                        Ok(Reading::CutShort)
                    }
                    None => Ok(Reading::Done),
                };
            }
            Next::Damage => {
                let rest = file.rest().map_err(io)?;
                let cut = rest.len() as u64;
                let hidden = frame::find_later(rest, log_id, expected + 1..=expected + cut);
                let behind = later.iter().find(|other| other.is_behind(expected)).map(|other| other.first);
                // A good frame or a further file behind the damage: not the end of the log.
                if let Some(hidden) = hidden.or(behind)
                    && log_file.is_of(boot_id, later)
                {
                    return Err(LogError::Damaged { path: path.to_owned(), offset, lsn: expected, later: hidden });
                }
                tracing::warn!(
                    path = %path.display(), offset, bytes = cut, lsn = expected,
                    "the log's torn tail is cut; what it said was never acknowledged, or the host lost it"
                );
                let file = OpenOptions::new().write(true).open(path).map_err(io)?;
                file.set_len(offset).and_then(|()| file.sync_all()).map_err(LogError::io("cutting", path))?;
                found.log_file_bytes += offset;
                found.cut_bytes += cut;
                if behind.is_none() {
                    return Ok(Reading::Done);
                }
                set_aside(later)?;
                return Ok(Reading::CutShort);
            }
        }
    }
}

/// Renames files behind a gap that a power loss left: they stay for a look, and no start reads them.
fn set_aside(files: &[LogFile]) -> Result<(), LogError> {
    for LogFile { path, .. } in files {
        tracing::warn!(path = %path.display(), "log segment behind a gap is set aside: the host lost what lies \
            between");
        std::fs::rename(path, path.with_extension("lost")).map_err(LogError::io("renaming", path))?;
    }
    Ok(())
}

fn file_size(path: &Path) -> Result<u64, LogError> {
    Ok(std::fs::metadata(path).map_err(LogError::io("reading", path))?.len())
}

#[cfg(test)]
mod tests;
