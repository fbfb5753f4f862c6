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
            Segment::CutShort => {
                known = true;
                break;
            }
        }
    }
    Ok(known.then_some(found))
}

/// Id of the log in a folder, from the first of its files that says so.
pub fn log_id_of(folder: &Path) -> Option<u64> {
    let files =
        [FileKind::Snapshot, FileKind::Segment].map(|kind| segment_file::list(folder, kind).unwrap_or_default());
    let mut headers = files.iter().flatten().filter_map(|(_, path)| FrameFile::open(path).ok()?.1);
    headers.next().map(|header| header.log_id)
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use mooncake_core::Rid;
    use proptest::prelude::*;

    use super::super::segment_file::FileHeader;
    use super::*;

    const BOOT: [u8; 16] = [7; 16];
    const LOG: u64 = 0x1234_5678_9abc_def0;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("mooncake-recovery-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }

        /// A segment with one record a frame, which is its LSN.
        fn segment(&self, first: u64, count: u64, boot_id: [u8; 16]) -> (PathBuf, Vec<u8>) {
            let header = FileHeader { kind: FileKind::Segment, log_id: LOG, lsn: first, boot_id };
            let mut bytes = header.encode().to_vec();
            for lsn in first..first + count {
                let start = bytes.len();
                let mut one = Vec::new();
                let at = frame::begin(&mut one);
                frame::put_record(&Record::Dropped(Rid(lsn)), &mut one);
                frame::finish(&mut one, at, LOG, lsn);
                bytes.extend(one);
                assert!(bytes.len() > start);
            }
            let path = self.0.join(header.file_name());
            fs::write(&path, &bytes).unwrap();
            (path, bytes)
        }

        /// What a recovery replays: the LSNs in order, and the last one.
        fn read(&self, boot_id: &[u8; 16]) -> Result<Option<u64>, LogError> {
            let mut next = 1;
            let found = recover(&self.0, boot_id, &mut |record| {
                assert_eq!(record, Record::Dropped(Rid(next)), "in order, each once");
                next += 1;
                Ok(())
            })?;
            Ok(found.map(|found| {
                assert_eq!(found.last_lsn, next - 1);
                found.last_lsn
            }))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn every_cut_of_a_log_gives_a_prefix_and_the_cut_stays_cut() {
        let scratch = Scratch::new("cuts");
        let (path, bytes) = scratch.segment(1, 12, BOOT);
        let mut last = 0;
        for cut in 0..=bytes.len() {
            fs::write(&path, &bytes[..cut]).unwrap();
            let first = scratch.read(&BOOT).unwrap();
            assert_eq!(scratch.read(&BOOT).unwrap(), first, "reading twice finds the same");
            let lsn = first.unwrap_or(0);
            assert!(lsn >= last, "a longer file has no fewer frames");
            last = lsn;
        }
        assert_eq!(last, 12);
    }

    #[test]
    fn a_power_loss_cuts_where_the_first_frame_is_missing() {
        let scratch = Scratch::new("power");
        let (path, mut bytes) = scratch.segment(1, 12, [1; 16]);
        scratch.segment(13, 5, [1; 16]);
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xff;
        fs::write(&path, &bytes).unwrap();
        assert!(matches!(scratch.read(&[1; 16]), Err(LogError::Damaged { .. })), "under the same boot it is damage");
        let lsn = scratch.read(&BOOT).unwrap().unwrap();
        assert!((1..12).contains(&lsn));
        assert_eq!(scratch.read(&BOOT).unwrap(), Some(lsn));
        scratch.segment(lsn + 1, 3, BOOT);
        assert_eq!(scratch.read(&BOOT).unwrap(), Some(lsn + 3), "and the log goes on behind the cut");
    }

    #[test]
    fn a_segment_of_another_log_is_refused() {
        let scratch = Scratch::new("foreign");
        scratch.segment(1, 2, BOOT);
        let header = FileHeader { kind: FileKind::Segment, log_id: LOG + 1, lsn: 3, boot_id: BOOT };
        fs::write(scratch.0.join(header.file_name()), header.encode()).unwrap();
        assert!(matches!(scratch.read(&BOOT), Err(LogError::Foreign { .. })));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        #[test]
        fn no_damage_is_ever_replayed(at: proptest::sample::Index, flip in 1u8.., tail in proptest::collection::vec(any::<u8>(), 0..40)) {
            let scratch = Scratch::new("flips");
            let (path, mut bytes) = scratch.segment(1, 12, BOOT);
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            bytes.extend(tail);
            fs::write(&path, &bytes).unwrap();
            // `read` panics on anything but a prefix; refusing is fine too.
            let _ = scratch.read(&BOOT);
        }
    }
}
