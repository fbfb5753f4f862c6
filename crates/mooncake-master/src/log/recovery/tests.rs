use std::fs;
use std::path::PathBuf;

use mooncake_core::{Record, RecordRef};
use mooncake_ids::Rid;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const BOOT: [u8; 16] = [7; 16];
const LOG: u64 = 0x1234_5678_9abc_def0;

struct Scratch(TempDir);

impl Scratch {
    fn new() -> Scratch {
        Scratch(tempfile::tempdir().unwrap())
    }

    /// A log file with one record a frame, which is its LSN.
    fn log_file(&self, first: u64, count: u64, boot_id: [u8; 16]) -> (PathBuf, Vec<u8>) {
        let header = FileHeader { kind: FileKind::Log, log_id: LOG, lsn: first, boot_id };
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
        let path = self.0.path().join(header.file_name());
        fs::write(&path, &bytes).unwrap();
        (path, bytes)
    }

    /// What a recovery replays: the LSNs in order, and the last one.
    fn read(&self, boot_id: &[u8; 16]) -> Result<Option<u64>, LogError> {
        let mut next = 1;
        let found = recover(self.0.path(), boot_id, &mut |record: RecordRef<'_>| {
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

/// Notes how far each frame is.
struct Noted(Vec<Progress>);

impl Replay for Noted {
    fn apply(&mut self, _: RecordRef<'_>) -> Result<(), String> {
        Ok(())
    }

    fn foresee(&mut self, records: &[RecordRef<'_>], progress: Progress) {
        assert_eq!(records.len(), 1);
        self.0.push(progress);
    }
}

#[test]
fn a_replay_hears_how_much_of_all_files_it_has_read() {
    let scratch = Scratch::new();
    let (_, first) = scratch.log_file(1, 5, BOOT);
    let (_, second) = scratch.log_file(6, 3, BOOT);
    let (total, mut noted) = ((first.len() + second.len()) as u64, Noted(Vec::new()));
    recover(scratch.0.path(), &BOOT, &mut noted).unwrap();
    let Noted(noted) = noted;
    assert_eq!(noted.len(), 8);
    assert!(noted.iter().all(|progress| progress.total == total), "{noted:?}");
    assert!(noted.is_sorted_by(|a, b| a.read < b.read) && noted[7].read < total, "{noted:?}");
    assert_eq!(noted[5].read, (first.len() + FILE_HEADER) as u64, "of the files before too");
}

#[test]
fn every_cut_of_a_log_gives_a_prefix_and_the_cut_stays_cut() {
    let scratch = Scratch::new();
    let (path, bytes) = scratch.log_file(1, 12, BOOT);
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
    let scratch = Scratch::new();
    let (path, mut bytes) = scratch.log_file(1, 12, [1; 16]);
    scratch.log_file(13, 5, [1; 16]);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(scratch.read(&[1; 16]), Err(LogError::Damaged { .. })), "under the same boot it is damage");
    let lsn = scratch.read(&BOOT).unwrap().unwrap();
    assert!((1..12).contains(&lsn));
    assert_eq!(scratch.read(&BOOT).unwrap(), Some(lsn));
    scratch.log_file(lsn + 1, 3, BOOT);
    assert_eq!(scratch.read(&BOOT).unwrap(), Some(lsn + 3), "and the log goes on behind the cut");
}

#[test]
fn a_power_loss_soon_after_two_rotations_cuts_where_the_first_file_is_missing() {
    for lost in [0, 30, 64, 4096] {
        let scratch = Scratch::new();
        scratch.log_file(1, 5, [1; 16]);
        let middle = scratch.log_file(6, 5, [1; 16]).0;
        let last = scratch.log_file(11, 5, [1; 16]).0;
        // The names reached the disk, the bytes did not.
        fs::write(&middle, vec![0; lost]).unwrap();
        let error = scratch.read(&[1; 16]).unwrap_err().to_string();
        assert!(error.contains("header") && error.contains("mv "), "under the same boot it is damage: {error}");
        assert!(middle.exists() && last.exists(), "nothing is changed");
        assert_eq!(scratch.read(&BOOT).unwrap(), Some(5), "{lost} bytes of zeros");
        assert!(!middle.exists() && !last.exists(), "what lies behind the gap is set aside");
        assert_eq!(scratch.read(&BOOT).unwrap(), Some(5));
        scratch.log_file(6, 3, BOOT);
        assert_eq!(scratch.read(&BOOT).unwrap(), Some(8), "and the log goes on behind the cut");
    }
}

#[test]
fn a_power_loss_may_take_the_headers_of_all_the_last_files() {
    let scratch = Scratch::new();
    scratch.log_file(1, 5, [1; 16]);
    for first in [6, 11] {
        fs::write(scratch.log_file(first, 5, [1; 16]).0, b"").unwrap();
    }
    assert!(scratch.read(&[1; 16]).is_err());
    assert_eq!(scratch.read(&BOOT).unwrap(), Some(5));
    assert_eq!(scratch.read(&BOOT).unwrap(), Some(5));
}

#[test]
fn what_a_master_of_this_boot_went_on_from_is_not_forgotten_as_lost() {
    let scratch = Scratch::new();
    let (path, mut bytes) = scratch.log_file(1, 12, [1; 16]);
    let later = scratch.log_file(13, 5, BOOT).0;
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
    let scratch = Scratch::new();
    let (path, bytes) = scratch.log_file(1, 12, BOOT);
    let leftover = |first| scratch.log_file(first, 0, BOOT).0;
    // Rotations at LSNs 4 and 9 failed, and the log went on where it was.
    fs::write(leftover(5), b"").unwrap();
    fs::write(leftover(10), b"").unwrap();
    assert_eq!(scratch.read(&BOOT).unwrap(), Some(12));
    fs::write(leftover(5), b"").unwrap();
    leftover(10);
    // Then the master was killed in mid-write.
    fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
    assert_eq!(scratch.read(&BOOT).unwrap(), Some(11));
    scratch.log_file(12, 3, BOOT);
    assert_eq!(scratch.read(&BOOT).unwrap(), Some(14));
}

#[test]
fn a_log_file_of_another_log_is_refused() {
    let scratch = Scratch::new();
    scratch.log_file(1, 2, BOOT);
    let header = FileHeader { kind: FileKind::Log, log_id: LOG + 1, lsn: 3, boot_id: BOOT };
    fs::write(scratch.0.path().join(header.file_name()), header.encode()).unwrap();
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
        let scratch = Scratch::new();
        // The first frame of a log is an epoch, which is synced.
        scratch.log_file(1, 5, [1; 16]);
        for (first, loss) in [6, 11, 16].into_iter().zip(losses) {
            let (path, mut bytes) = scratch.log_file(first, 5, [1; 16]);
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
        scratch.log_file(last + 1, 10, BOOT);
        scratch.log_file(last + 11, 10, BOOT);
        prop_assert_eq!(scratch.read(&BOOT).unwrap(), Some(last + 20));
    }

    #[test]
    fn no_damage_is_ever_replayed(
        at: proptest::sample::Index,
        flip in 1u8..,
        tail in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let scratch = Scratch::new();
        let (path, mut bytes) = scratch.log_file(1, 12, BOOT);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        bytes.extend(tail);
        fs::write(&path, &bytes).unwrap();
        // `read` panics on anything but a prefix; refusing is fine too.
        let _ = scratch.read(&BOOT);
    }
}

impl Scratch {
    /// Says that all up to an LSN is in a snapshot.
    fn snapshot(&self, last: u64, boot_id: [u8; 16]) -> PathBuf {
        let header = FileHeader { kind: FileKind::Snapshot, log_id: LOG, lsn: last, boot_id };
        let mut file = snapshot::SnapshotFile::create(self.0.path(), &header).unwrap();
        (1..=last).for_each(|lsn| file.put(&Record::Dropped(Rid(lsn))).unwrap());
        file.finish().unwrap();
        self.0.path().join(header.file_name())
    }

    /// A log file of which only some frames are left, in this order.
    fn frames(&self, first: u64, lsns: &[u64], boot_id: [u8; 16]) -> PathBuf {
        let (path, _) = self.log_file(first, 0, boot_id);
        let mut bytes = fs::read(&path).unwrap();
        for lsn in lsns {
            bytes.extend(one(*lsn, &[Record::Dropped(Rid(*lsn))]));
        }
        fs::write(&path, bytes).unwrap();
        path
    }

    fn found(&self, boot_id: &[u8; 16]) -> Recovered {
        recover(self.0.path(), boot_id, &mut |_: RecordRef<'_>| Ok(())).unwrap().unwrap()
    }

    /// Nothing is read, and nothing is changed.
    fn is_refused(&self, boot_id: &[u8; 16], what: &str) -> LogError {
        let files = || {
            let mut files: Vec<_> = fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
            files.sort();
            files.into_iter().map(|path| (fs::read(&path).unwrap(), path)).collect::<Vec<_>>()
        };
        let before = files();
        let error = self.read(boot_id).expect_err(what);
        assert_eq!(files(), before, "{what}: nothing is changed");
        assert!(error.to_string().contains("mv "), "{what}: it says what to do: {error}");
        error
    }
}

/// One frame.
fn one(lsn: u64, records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let at = frame::begin(&mut bytes);
    records.iter().for_each(|record| frame::put_record(record, &mut bytes));
    frame::finish(&mut bytes, at, LOG, lsn);
    bytes
}

/// Whether a file is gone from the log, and kept for a look.
fn is_set_aside(path: &Path) -> bool {
    !path.exists() && path.with_extension("lost").exists()
}

#[test]
fn each_frame_counts_once_where_files_overlap() {
    let scratch = Scratch::new();
    scratch.snapshot(7, BOOT);
    // The compactor died before it removed what its snapshot covers, in part or whole.
    scratch.log_file(1, 3, BOOT);
    scratch.log_file(4, 8, BOOT);
    assert_eq!(scratch.read(&BOOT).unwrap(), Some(11));
    scratch.log_file(8, 4, BOOT);
    assert_eq!(scratch.read(&BOOT).unwrap(), Some(11));
    scratch.log_file(12, 2, BOOT);
    assert_eq!(scratch.read(&BOOT).unwrap(), Some(13));
}

#[test]
fn what_a_snapshot_covers_is_not_read_again_whatever_is_wrong_with_it() {
    let garbage = vec![0xa5; 300];
    for (what, left) in
        [("damaged", &garbage[..]), ("zeros", &[0; 300]), ("empty", &[]), ("half a header", &garbage[..30])]
    {
        let scratch = Scratch::new();
        scratch.snapshot(5, BOOT);
        for first in [1, 3] {
            fs::write(scratch.log_file(first, 2, BOOT).0, left).unwrap();
        }
        scratch.log_file(6, 3, BOOT);
        assert_eq!(scratch.read(&BOOT).unwrap(), Some(8), "{what}");
        assert_eq!(scratch.read(&BOOT).unwrap(), Some(8), "{what}: and again");
    }
}

#[test]
fn a_log_whose_beginning_is_missing_is_refused() {
    let scratch = Scratch::new();
    scratch.log_file(5, 3, BOOT);
    let error = scratch.is_refused(&BOOT, "without what comes before");
    assert!(matches!(error, LogError::Gap { expected: 1, found: 5, .. }), "{error}");
    let snapshot = scratch.snapshot(3, BOOT);
    let error = scratch.is_refused(&BOOT, "one is missing behind the snapshot");
    assert!(matches!(error, LogError::Gap { expected: 4, found: 5, .. }), "{error}");
    fs::remove_file(snapshot).unwrap();
    scratch.snapshot(4, BOOT);
    assert_eq!(scratch.read(&BOOT).unwrap(), Some(7));
}

#[test]
fn a_frame_that_is_missing_or_in_another_place_is_never_passed_over() {
    for lsns in [&[1, 2, 4][..], &[1, 3, 2], &[2, 3], &[1, 1, 2], &[1, 2, 3, 2], &[1, 2, 2]] {
        let scratch = Scratch::new();
        scratch.frames(1, lsns, BOOT);
        let error = scratch.is_refused(&BOOT, &format!("{lsns:?}"));
        assert!(matches!(error, LogError::Gap { .. }), "{lsns:?}: {error}");
    }
}

#[test]
fn an_empty_file_far_behind_the_end_shows_that_something_is_missing() {
    for lost in [0, 30, 64] {
        let scratch = Scratch::new();
        scratch.snapshot(5, [1; 16]);
        let (path, _) = scratch.log_file(9, 0, [1; 16]);
        fs::write(&path, vec![0; lost]).unwrap();
        scratch.is_refused(&[1; 16], "LSNs 6 to 8 are not there");
        assert_eq!(scratch.read(&BOOT).unwrap(), Some(5), "the host has lost them");
        assert!(is_set_aside(&path));
    }
}

#[test]
fn a_last_file_that_is_empty_hides_nothing_and_one_with_more_does() {
    for (lost, empty) in [(0, true), (1, true), (63, true), (64, true), (65, false), (4096, false)] {
        let scratch = Scratch::new();
        scratch.log_file(1, 5, [1; 16]);
        let (path, _) = scratch.log_file(6, 0, [1; 16]);
        fs::write(&path, vec![0; lost]).unwrap();
        if empty {
            assert_eq!(scratch.read(&[1; 16]).unwrap(), Some(5), "{lost} bytes");
            assert!(!path.exists() && !path.with_extension("lost").exists(), "it is removed");
        } else {
            scratch.is_refused(&[1; 16], "no crash of a master leaves that");
            assert_eq!(scratch.read(&BOOT).unwrap(), Some(5), "{lost} bytes");
            assert!(is_set_aside(&path));
        }
    }
}

#[test]
fn zeros_behind_a_snapshot_are_of_its_boot() {
    let scratch = Scratch::new();
    scratch.snapshot(5, [1; 16]);
    let (path, _) = scratch.log_file(6, 4, [1; 16]);
    fs::write(&path, [0; 4096]).unwrap();
    scratch.is_refused(&[1; 16], "this boot has read it whole");
    assert_eq!(scratch.read(&BOOT).unwrap(), Some(5), "a power loss explains it");
    assert!(is_set_aside(&path));
}

#[test]
fn a_file_whose_header_is_damaged_is_refused_and_kept() {
    for at in [0, 7, 8, 20, 30, 40, 50, 63] {
        for boot_id in [BOOT, [1; 16]] {
            let scratch = Scratch::new();
            scratch.log_file(1, 5, [1; 16]);
            let (path, mut bytes) = scratch.log_file(6, 5, [1; 16]);
            bytes[at] ^= 0x10;
            fs::write(&path, &bytes).unwrap();
            let error = scratch.is_refused(&boot_id, "it is no power loss");
            assert!(matches!(error, LogError::Foreign { .. }), "byte {at}: {error}");
            // The same without a frame behind it.
            fs::write(&path, &bytes[..FILE_HEADER]).unwrap();
            scratch.is_refused(&boot_id, "a header alone, damaged");
        }
    }
    let scratch = Scratch::new();
    scratch.log_file(1, 5, BOOT);
    let (path, mut bytes) = scratch.log_file(6, 5, BOOT);
    let header = FileHeader { kind: FileKind::Snapshot, log_id: LOG, lsn: 6, boot_id: BOOT };
    bytes[..FILE_HEADER].copy_from_slice(&header.encode());
    fs::write(&path, &bytes).unwrap();
    scratch.is_refused(&BOOT, "a snapshot under the name of a log file");
}

#[test]
fn a_tail_that_is_cut_while_a_later_file_shows_that_the_log_went_on_is_damage() {
    for frames in [0, 3] {
        let scratch = Scratch::new();
        let (path, bytes) = scratch.log_file(1, 12, [1; 16]);
        let later = scratch.log_file(13, frames, [1; 16]).0;
        for cut in [1, 9, 40] {
            fs::write(&path, &bytes[..bytes.len() - cut]).unwrap();
            let error = scratch.is_refused(&[1; 16], "frames that were acknowledged are not there");
            assert!(matches!(error, LogError::Damaged { later: 13, .. }), "{cut}: {error}");
        }
        let last = scratch.read(&BOOT).unwrap().unwrap();
        assert!((9..12).contains(&last) && is_set_aside(&later), "the host has lost them, and all behind them");
        scratch.log_file(last + 1, 20, BOOT);
        assert_eq!(scratch.read(&BOOT).unwrap(), Some(last + 20), "nothing of it comes back between those of today");
    }
}

#[test]
fn a_whole_file_that_ends_early_before_a_later_one_is_a_gap_unless_the_host_lost_its_end() {
    let scratch = Scratch::new();
    scratch.log_file(1, 9, [1; 16]);
    let later = [scratch.log_file(13, 5, [1; 16]).0, scratch.log_file(18, 0, [1; 16]).0];
    let error = scratch.is_refused(&[1; 16], "LSNs 10 to 12 are not there");
    assert!(matches!(error, LogError::Gap { expected: 10, found: 13, .. }), "{error}");
    assert_eq!(scratch.read(&BOOT).unwrap(), Some(9));
    assert!(later.iter().all(|path| is_set_aside(path)), "all that lies behind the gap");
    scratch.log_file(10, 20, BOOT);
    assert_eq!(scratch.read(&BOOT).unwrap(), Some(29));
}

#[test]
fn the_file_of_a_failed_rotation_at_the_torn_frame_itself_hides_nothing() {
    for with_header in [true, false] {
        let scratch = Scratch::new();
        let (path, bytes) = scratch.log_file(1, 12, BOOT);
        let leftover = scratch.log_file(12, 0, BOOT).0;
        if !with_header {
            fs::write(&leftover, b"").unwrap();
        }
        fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        assert_eq!(scratch.read(&BOOT).unwrap(), Some(11));
        assert_eq!(leftover.exists(), with_header, "without a header it is removed");
        assert_eq!(scratch.read(&BOOT).unwrap(), Some(11));
    }
    // Two that are empty, the later one where the log goes on; it may have gone on in a third.
    for frames in [0, 2] {
        let scratch = Scratch::new();
        scratch.log_file(1, 12, BOOT);
        let later = if frames == 0 { 13 } else { 10 };
        let leftovers = [5, later].map(|first| scratch.log_file(first, 0, BOOT).0);
        leftovers.iter().for_each(|path| fs::write(path, b"").unwrap());
        if frames > 0 {
            scratch.log_file(13, frames, BOOT);
        }
        assert_eq!(scratch.read(&BOOT).unwrap(), Some(12 + frames));
        assert!(!leftovers.iter().any(|path| path.exists()));
    }
}

#[test]
fn damage_is_seen_however_large_the_frame_is_that_it_hides_behind() {
    let large = |lsn: u64| {
        let spec = mooncake_core::SessionSpec {
            secret: lsn,
            name: String::new(),
            boot_id: Vec::new(),
            process: vec![0x5a; 700 << 10],
        };
        one(lsn, &[Record::SessionOpened { session: mooncake_ids::SessionId(lsn), spec }])
    };
    let scratch = Scratch::new();
    let header = FileHeader { kind: FileKind::Log, log_id: LOG, lsn: 1, boot_id: BOOT };
    let mut bytes = [&header.encode()[..], &large(1), &large(2), &one(3, &[Record::Dropped(Rid(2))])].concat();
    let path = scratch.0.path().join(header.file_name());
    fs::write(&path, &bytes).unwrap();
    let mut seen = 0;
    let read = |seen: &mut u32| {
        let found = recover(scratch.0.path(), &BOOT, &mut |_: RecordRef<'_>| {
            *seen += 1;
            Ok(())
        });
        found.map(|found| found.unwrap())
    };
    let found = read(&mut seen).unwrap();
    assert_eq!((seen, found.last_lsn, found.log_file_bytes, found.cut_bytes), (3, 3, bytes.len() as u64, 0));
    bytes[FILE_HEADER + 100_000] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = read(&mut seen).unwrap_err();
    assert!(matches!(error, LogError::Damaged { lsn: 1, later: 2, .. }), "far behind it there are others: {error}");
    assert_eq!(fs::read(&path).unwrap().len(), bytes.len());
}

#[test]
fn figures_of_a_start_are_of_what_was_there() {
    let scratch = Scratch::new();
    let snapshot = fs::metadata(scratch.snapshot(5, [1; 16])).unwrap().len();
    let second = scratch.log_file(6, 4, [1; 16]).1.len() as u64;
    let (path, bytes) = scratch.log_file(10, 4, BOOT);
    let found = scratch.found(&BOOT);
    assert_eq!((found.log_id, found.last_lsn, found.last_boot), (LOG, 13, Some(BOOT)));
    assert_eq!((found.snapshot_bytes, found.log_file_bytes), (snapshot, second + bytes.len() as u64));
    assert_eq!(found.cut_bytes, 0);
    fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
    let found = scratch.found(&BOOT);
    let frame = (bytes.len() - FILE_HEADER) as u64 / 4;
    assert_eq!((found.cut_bytes, found.last_lsn), (frame - 3, 12));
    assert_eq!(found.log_file_bytes, second + bytes.len() as u64 - frame);
    assert_eq!(fs::metadata(&path).unwrap().len(), bytes.len() as u64 - frame, "it is cut in the file too");
    assert_eq!(scratch.found(&BOOT).cut_bytes, 0, "once");
}
