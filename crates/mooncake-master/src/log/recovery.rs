//! Reading a log at start: newest snapshot, then every segment behind it.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use mooncake_core::Record;

use super::LogError;
use super::frame;
use super::segment_file::{self, FILE_HEADER, FileHeader, FileKind, FrameFile, Next};
use super::snapshot;

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Recovered {
    /// Id of the log.
    pub log_id: u64,
    /// LSN of its last frame.
    pub last_lsn: u64,
    /// Boot under which its last segment was written, as far as that says so: a witness of another boot knows less.
    pub last_boot: Option<[u8; 16]>,
    /// Size of the snapshot, bytes, 0 without one.
    pub snapshot_bytes: u64,
    /// Size of the segments behind it, bytes.
    pub segment_bytes: u64,
    /// Bytes of torn tail that were cut.
    pub cut_bytes: u64,
}

/// Replays the log in `folder` through `apply`. `None`: there is no log. Changes nothing but a torn tail, which it cuts,
/// and files without a header: those of failed rotations are removed, what a power loss left is set aside.
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
    let mut before = None;
    let snapshots = list(FileKind::Snapshot)?;
    if let Some((_, path)) = snapshots.last() {
        let header = snapshot::read(path, apply)?;
        found.log_id = header.log_id;
        found.last_lsn = header.lsn;
        found.snapshot_bytes = file_size(path)?;
        before = Some(header.boot_id);
    }
    let segments = Segment::all(list(FileKind::Segment)?, before)?;
    found.last_boot = segments.last().and_then(|last| last.head.boot_id());
    let mut known = !snapshots.is_empty();
    let mut leftovers = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        let later = &segments[index + 1..];
        let next = found.last_lsn + 1;
        // The snapshot covers it: the compactor died before it removed it.
        let covered = later.iter().any(|other| other.first <= next && other.head.boot_id().is_some());
        match &segment.head {
            Head::Blank if covered || segment.hides_nothing(later, next) => leftovers.push(&segment.path),
            _ if covered => {}
            Head::Whole(header) => match read(segment, header, later, boot_id, known, &mut found, apply)? {
                Reading::Done => known = true,
                Reading::CutShort => {
                    known = true;
                    break;
                }
            },
            Head::Blank | Head::Zeroed if !segment.is_of(boot_id, later) => {
                set_aside(&segments[index..])?;
                break;
            }
            Head::Blank | Head::Zeroed => {
                let path = segment.path.clone();
                let reason = "has lost its header, and what belongs behind it, which no crash of a master leaves";
                return Err(LogError::Foreign { path, reason: reason.to_owned() });
            }
            Head::Other => {
                let reason = "is no log segment that this version reads".to_owned();
                return Err(LogError::Foreign { path: segment.path.clone(), reason });
            }
        }
    }
    for path in leftovers {
        tracing::warn!(path = %path.display(), "empty file of a rotation that failed is removed");
        std::fs::remove_file(path).map_err(LogError::io("removing", path))?;
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

/// A segment, and what its first bytes say.
struct Segment {
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

impl Segment {
    /// All of them, oldest first; `before` is the boot of the snapshot.
    fn all(files: Vec<(u64, PathBuf)>, mut before: Option<[u8; 16]>) -> Result<Vec<Segment>, LogError> {
        let mut segments = Vec::with_capacity(files.len());
        for (first, path) in files {
            let io = |source| LogError::Io { action: "reading", path: path.clone(), source };
            let (mut file, header) = FrameFile::open(&path).map_err(io)?;
            let head = match header {
                Some(header) if header.kind == FileKind::Segment => Head::Whole(header),
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
            segments.push(Segment { first, path, head, before, bytes });
            before = boot_id.or(before);
        }
        Ok(segments)
    }

    /// Whether it, or something behind it, was written under this boot, which then had all that came before: no power
    /// loss explains what is missing. What has no header is of its neighbours' boot.
    fn is_of(&self, boot_id: &[u8; 16], later: &[Segment]) -> bool {
        let own = self.head.boot_id().or(self.before);
        own.is_none_or(|own| own == *boot_id) || later.iter().any(|other| other.head.boot_id() == Some(*boot_id))
    }

    /// Whether the log, which goes on at LSN `next`, has nothing that belongs into this empty file.
    fn hides_nothing(&self, later: &[Segment], next: u64) -> bool {
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

fn read(
    segment: &Segment,
    header: &FileHeader,
    later: &[Segment],
    boot_id: &[u8; 16],
    known: bool,
    found: &mut Recovered,
    apply: &mut dyn FnMut(Record) -> Result<(), String>,
) -> Result<Reading, LogError> {
    let path = &segment.path;
    let io = |source| LogError::Io { action: "reading", path: path.to_owned(), source };
    let (mut file, _) = FrameFile::open(path).map_err(io)?;
    let log_id = if known { found.log_id } else { header.log_id };
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
                let expected = found.last_lsn + 1;
                let gap = later.first().filter(|next| next.first > expected);
                return match gap {
                    Some(next) if segment.is_of(boot_id, later) => {
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
                if let Some(hidden) = hidden.or(behind)
                    && segment.is_of(boot_id, later)
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
                if behind.is_none() {
                    return Ok(Reading::Done);
                }
                set_aside(later)?;
                return Ok(Reading::CutShort);
            }
        }
    }
}

/// Files behind a gap that a power loss left: kept for a look, but never read again.
fn set_aside(files: &[Segment]) -> Result<(), LogError> {
    for Segment { path, .. } in files {
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
    fn a_power_loss_soon_after_two_rotations_cuts_where_the_first_file_is_missing() {
        for lost in [0, 30, 64, 4096] {
            let scratch = Scratch::new("rotations");
            scratch.segment(1, 5, [1; 16]);
            let middle = scratch.segment(6, 5, [1; 16]).0;
            let last = scratch.segment(11, 5, [1; 16]).0;
            // The names reached the disk, the bytes did not.
            fs::write(&middle, vec![0; lost]).unwrap();
            let error = scratch.read(&[1; 16]).unwrap_err().to_string();
            assert!(error.contains("header") && error.contains("mv "), "under the same boot it is damage: {error}");
            assert!(middle.exists() && last.exists(), "nothing is changed");
            assert_eq!(scratch.read(&BOOT).unwrap(), Some(5), "{lost} bytes of zeros");
            assert!(!middle.exists() && !last.exists(), "what lies behind the gap is set aside");
            assert_eq!(scratch.read(&BOOT).unwrap(), Some(5));
            scratch.segment(6, 3, BOOT);
            assert_eq!(scratch.read(&BOOT).unwrap(), Some(8), "and the log goes on behind the cut");
        }
    }

    #[test]
    fn a_power_loss_may_take_the_headers_of_all_the_last_files() {
        let scratch = Scratch::new("headers");
        scratch.segment(1, 5, [1; 16]);
        for first in [6, 11] {
            fs::write(scratch.segment(first, 5, [1; 16]).0, b"").unwrap();
        }
        assert!(scratch.read(&[1; 16]).is_err());
        assert_eq!(scratch.read(&BOOT).unwrap(), Some(5));
        assert_eq!(scratch.read(&BOOT).unwrap(), Some(5));
    }

    #[test]
    fn what_a_master_of_this_boot_went_on_from_is_not_forgotten_as_lost() {
        let scratch = Scratch::new("went-on");
        let (path, mut bytes) = scratch.segment(1, 12, [1; 16]);
        let later = scratch.segment(13, 5, BOOT).0;
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xff;
        fs::write(&path, &bytes).unwrap();
        assert!(matches!(scratch.read(&BOOT), Err(LogError::Damaged { .. })), "this boot has read the file whole");
        assert!(later.exists() && fs::read(&path).unwrap() == bytes, "nothing is changed");
        fs::write(&path, b"").unwrap();
        assert!(scratch.read(&BOOT).is_err());
        assert!(later.exists());
    }

    #[test]
    fn files_of_failed_rotations_hide_nothing() {
        let scratch = Scratch::new("leftovers");
        let (path, bytes) = scratch.segment(1, 12, BOOT);
        let leftover = |first| scratch.segment(first, 0, BOOT).0;
        // Rotations at LSNs 4 and 9 failed, and the log went on where it was.
        fs::write(leftover(5), b"").unwrap();
        fs::write(leftover(10), b"").unwrap();
        assert_eq!(scratch.read(&BOOT).unwrap(), Some(12));
        fs::write(leftover(5), b"").unwrap();
        leftover(10);
        // Then the master was killed in mid-write.
        fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        assert_eq!(scratch.read(&BOOT).unwrap(), Some(11));
        scratch.segment(12, 3, BOOT);
        assert_eq!(scratch.read(&BOOT).unwrap(), Some(14));
    }

    #[test]
    fn a_segment_of_another_log_is_refused() {
        let scratch = Scratch::new("foreign");
        scratch.segment(1, 2, BOOT);
        let header = FileHeader { kind: FileKind::Segment, log_id: LOG + 1, lsn: 3, boot_id: BOOT };
        fs::write(scratch.0.join(header.file_name()), header.encode()).unwrap();
        assert!(matches!(scratch.read(&BOOT), Err(LogError::Foreign { .. })));
    }

    /// What a power loss does to a file whose bytes were not synced.
    #[derive(Debug, Clone)]
    enum Loss {
        Nothing,
        Name,
        Header,
        Cut(proptest::sample::Index),
        Zeros(proptest::sample::Index, usize),
    }

    fn losses() -> impl Strategy<Value = Loss> {
        let at = any::<proptest::sample::Index>;
        prop_oneof![
            Just(Loss::Nothing),
            Just(Loss::Name),
            Just(Loss::Header),
            at().prop_map(Loss::Cut),
            (at(), 1usize..80).prop_map(|(at, count)| Loss::Zeros(at, count)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        #[test]
        fn whatever_a_power_loss_takes_the_next_boot_starts_and_goes_on(losses in proptest::collection::vec(losses(), 3)) {
            let scratch = Scratch::new("losses");
            // The first frame of a log is an epoch, which is synced.
            scratch.segment(1, 5, [1; 16]);
            for (first, loss) in [6, 11, 16].into_iter().zip(losses) {
                let (path, mut bytes) = scratch.segment(first, 5, [1; 16]);
                match loss {
                    Loss::Nothing => {}
                    Loss::Name => fs::remove_file(&path).unwrap(),
                    Loss::Header => {
                        bytes[..FILE_HEADER].fill(0);
                        fs::write(&path, &bytes).unwrap();
                    }
                    Loss::Cut(at) => fs::write(&path, &bytes[..at.index(bytes.len() + 1)]).unwrap(),
                    Loss::Zeros(at, count) => {
                        let at = FILE_HEADER + at.index(bytes.len() - FILE_HEADER);
                        let end = bytes.len().min(at + count);
                        bytes[at..end].fill(0);
                        fs::write(&path, &bytes).unwrap();
                    }
                }
            }
            let last = scratch.read(&BOOT).unwrap().unwrap();
            prop_assert!((5..=20).contains(&last));
            prop_assert_eq!(scratch.read(&BOOT).unwrap(), Some(last), "reading twice finds the same");
            // The next master's file, and that of its first rotation: nothing of what was lost comes back between them.
            scratch.segment(last + 1, 10, BOOT);
            scratch.segment(last + 11, 10, BOOT);
            prop_assert_eq!(scratch.read(&BOOT).unwrap(), Some(last + 20));
        }

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
