//! Snapshots: the records that recreate the state after an LSN.
//!
//! Frames as in a log file, numbered from 1; an empty frame ends the file, so
//! that a snapshot that was cut never passes for a whole one.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use mooncake_core::{Record, RecordRef};

use super::LogError;
use super::files::{self, FILE_HEADER, FileHeader, FileKind, FrameFile, Next};
use super::frame;
use super::replay::{self, Progress, Replay};
use super::step::{Step, sync};

/// Bytes of a frame, or a little more.
const FRAME_TARGET: usize = 64 << 10;

/// A snapshot that is being written, under a temporary name: gone when dropped before it is [finished](Self::finish).
#[derive(Debug)]
pub struct SnapshotFile {
    file: File,
    path: PathBuf,
    temporary: PathBuf,
    log_id: u64,
    /// The frame that is being filled.
    out: Vec<u8>,
    /// Number of that frame.
    number: u64,
    size: u64,
    /// Payloads of the frames that come last.
    last: Vec<Vec<u8>>,
    finished: bool,
}

impl SnapshotFile {
    /// Begins it.
    pub fn create(folder: &Path, header: &FileHeader) -> io::Result<SnapshotFile> {
        debug_assert_eq!(header.kind, FileKind::Snapshot);
        let path = folder.join(header.file_name());
        let temporary = path.with_extension("tmp");
        let file = files::create(&temporary, header).inspect_err(|_| remove(&temporary))?;
        let mut out = Vec::with_capacity(2 * FRAME_TARGET);
        frame::begin(&mut out);
        let (log_id, size) = (header.log_id, FILE_HEADER as u64);
        Ok(SnapshotFile { file, path, temporary, log_id, out, number: 1, size, last: Vec::new(), finished: false })
    }

    /// Appends a record.
    pub fn put(&mut self, record: &Record) -> io::Result<()> {
        frame::put_record(record, &mut self.out);
        if self.out.len() >= FRAME_TARGET { self.flush() } else { Ok(()) }
    }

    /// Appends a record behind all that are [`put`](Self::put), before or after this.
    pub fn put_last(&mut self, record: &Record) {
        if self.last.last().is_none_or(|payload| payload.len() >= FRAME_TARGET) {
            self.last.push(Vec::with_capacity(FRAME_TARGET + FRAME_TARGET / 4));
        }
        frame::put_record(record, self.last.last_mut().expect("there is one"));
    }

    /// Makes it whole, has it on the disk, and gives it its name, which is on the disk, too, when this returns. Its
    /// size.
    pub fn finish(mut self) -> io::Result<u64> {
        if !self.is_blank() {
            self.flush()?;
        }
        for payload in std::mem::take(&mut self.last) {
            self.out.extend_from_slice(&payload);
            self.flush()?;
        }
        self.flush()?;
        sync(Step::SnapshotSynced, &self.file, &self.temporary)?;
        std::fs::rename(&self.temporary, &self.path)?;
        self.finished = true;
        let folder = File::open(self.path.parent().expect("it is in a folder"))?;
        sync(Step::Snapshot, &folder, &self.path)?;
        Ok(self.size)
    }

    fn is_blank(&self) -> bool {
        self.out.len() == frame::HEADER
    }

    /// Writes the frame and begins the next one.
    fn flush(&mut self) -> io::Result<()> {
        frame::finish(&mut self.out, 0, self.log_id, self.number);
        self.file.write_all(&self.out)?;
        self.number += 1;
        self.size += self.out.len() as u64;
        self.out.clear();
        frame::begin(&mut self.out);
        Ok(())
    }
}

impl Drop for SnapshotFile {
    fn drop(&mut self) {
        // The next attempt has another name: on a full disk it needs the room of this one.
        if !self.finished {
            remove(&self.temporary);
        }
    }
}

fn remove(temporary: &Path) {
    if let Err(error) = std::fs::remove_file(temporary)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %temporary.display(), %error, "unfinished snapshot not removed");
    }
}

/// Reads a whole snapshot, the first of `total` bytes.
pub fn read(path: &Path, total: u64, replay: &mut dyn Replay) -> Result<FileHeader, LogError> {
    let io = |source| LogError::Io { action: "reading", path: path.to_owned(), source };
    let foreign = |reason: &str| LogError::Foreign { path: path.to_owned(), reason: reason.to_owned() };
    let (mut file, header) = FrameFile::open(path).map_err(io)?;
    let header = header
        .filter(|h| h.kind == FileKind::Snapshot)
        .ok_or_else(|| foreign("is no snapshot that this version reads"))?;
    let size = file.size().map_err(io)?;
    let (mut read, mut expected) = (0, false);
    for number in 1.. {
        match file.next(header.log_id).map_err(io)? {
            Next::Frame { lsn, payload } if lsn == number => {
                if payload.is_empty() {
                    return Ok(header);
                }
                read += payload.len() as u64;
                if !expected && let Some(objects) = objects_in(payload, size) {
                    replay.expect(objects);
                    expected = true;
                }
                let progress = Progress { read, total };
                let replayed = |reason| LogError::Replay { path: path.to_owned(), lsn: header.lsn, reason };
                replay::apply_frame(payload, progress, replay).map_err(replayed)?;
            }
            Next::Frame { .. } | Next::Damage => return Err(foreign("is a damaged snapshot")),
            Next::End => return Err(foreign("is a snapshot without its end")),
        }
    }
    unreachable!("the loop ends with the file")
}

/// About how many objects are in a snapshot of that size, if this frame of it begins with one.
fn objects_in(payload: &[u8], size: u64) -> Option<usize> {
    let is_object =
        |record: &Result<RecordRef<'_>, _>| matches!(record, Ok(Record::Object { .. } | Record::GroupedObject { .. }));
    let objects = frame::records(payload).take_while(is_object).count() as u64;
    (objects > 0).then(|| (objects * size / payload.len() as u64) as usize)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use mooncake_core::SessionSpec;
    use mooncake_ids::SessionId;
    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;

    const LOG: u64 = 5;
    const BOOT: [u8; 16] = [7; 16];

    struct Scratch(TempDir);

    impl Scratch {
        fn new() -> Scratch {
            Scratch(tempfile::tempdir().unwrap())
        }

        fn path(&self) -> PathBuf {
            self.0.path().join(header().file_name())
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(self.0.path()).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    fn header() -> FileHeader {
        FileHeader { kind: FileKind::Snapshot, log_id: LOG, lsn: 9, boot_id: BOOT }
    }

    /// A record of about so many bytes.
    fn record(number: u64, bytes: usize) -> Record {
        let spec = SessionSpec { secret: number, name: String::new(), boot_id: vec![1; 16], process: vec![2; bytes] };
        Record::SessionOpened { session: SessionId(number), spec }
    }

    fn records(sizes: &[usize]) -> Vec<Record> {
        sizes.iter().zip(1..).map(|(bytes, number)| record(number, *bytes)).collect()
    }

    fn write_all(scratch: &Scratch, records: &[Record]) -> u64 {
        let mut file = SnapshotFile::create(scratch.0.path(), &header()).unwrap();
        records.iter().for_each(|record| file.put(record).unwrap());
        file.finish().unwrap()
    }

    fn read_all(path: &Path) -> Result<Vec<Record>, LogError> {
        let mut found = Vec::new();
        let read = read(path, 0, &mut |record: RecordRef<'_>| {
            let Record::SessionOpened { session, spec } = record else { return Err(format!("{record:?}")) };
            found.push(Record::SessionOpened { session, spec });
            Ok(())
        });
        read.map(|read| assert_eq!(read, header())).map(|()| found)
    }

    /// Payloads of its frames, the last of which is empty.
    fn frames(bytes: &[u8]) -> Vec<&[u8]> {
        let (mut rest, mut found) = (&bytes[FILE_HEADER..], Vec::new());
        while let frame::Decoded::Frame { size, .. } = frame::decode(rest, LOG) {
            found.push(&rest[..size]);
            rest = &rest[size..];
        }
        assert!(rest.is_empty());
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

        #[test]
        fn what_is_written_is_read_in_its_order_from_frames_of_a_bounded_size(
            sizes in proptest::collection::vec(prop_oneof![0usize..200, 10_000usize..40_000], 0..40),
        ) {
            let scratch = Scratch::new();
            let records = records(&sizes);
            let size = write_all(&scratch, &records);
            let bytes = std::fs::read(scratch.path()).unwrap();
            prop_assert_eq!(size, bytes.len() as u64, "the size decides when the log is compacted next");
            prop_assert_eq!(scratch.names(), [header().file_name()]);
            prop_assert_eq!(read_all(&scratch.path()).unwrap(), records);
            let largest = frames(&bytes).iter().map(|frame| frame.len()).max();
            prop_assert!(largest < Some(FRAME_TARGET + 41_000), "{largest:?} bytes at once");
        }
    }

    #[test]
    fn a_snapshot_that_lacks_a_frame_or_has_them_in_another_order_is_refused() {
        let scratch = Scratch::new();
        write_all(&scratch, &records(&[30_000; 12]));
        let whole = std::fs::read(scratch.path()).unwrap();
        let frames = frames(&whole);
        assert_eq!(frames.len(), 5, "four and the end");
        for order in
            [&[0, 1, 2, 3][..], &[1, 2, 3, 4], &[0, 1, 3, 4], &[0, 2, 1, 3, 4], &[0, 1, 1, 2, 3, 4], &[0, 4], &[4], &[]]
        {
            let frames: Vec<&[u8]> = order.iter().map(|at| frames[*at]).collect();
            std::fs::write(scratch.path(), [&whole[..FILE_HEADER], &frames.concat()].concat()).unwrap();
            assert!(matches!(read_all(&scratch.path()), Err(LogError::Foreign { .. })), "{order:?}");
        }
        for end in (FILE_HEADER..whole.len()).step_by(997).chain([whole.len() - 1]) {
            std::fs::write(scratch.path(), &whole[..end]).unwrap();
            assert!(matches!(read_all(&scratch.path()), Err(LogError::Foreign { .. })), "cut at {end}");
        }
    }

    #[test]
    fn a_log_file_is_no_snapshot_and_what_cannot_be_replayed_is_said_with_its_place() {
        let scratch = Scratch::new();
        write_all(&scratch, &records(&[10, 10]));
        let error = read(&scratch.path(), 0, &mut |_: RecordRef<'_>| Err("twice".to_owned())).unwrap_err();
        assert!(matches!(&error, LogError::Replay { lsn: 9, reason, .. } if reason == "twice"), "{error}");
        let mut bytes = std::fs::read(scratch.path()).unwrap();
        for lost in [FileHeader { kind: FileKind::Log, ..header() }.encode(), [0; FILE_HEADER]] {
            bytes[..FILE_HEADER].copy_from_slice(&lost);
            std::fs::write(scratch.path(), &bytes).unwrap();
            assert!(matches!(read_all(&scratch.path()), Err(LogError::Foreign { .. })));
        }
        // A frame whose sum is right and whose records are none: of a later version, say.
        let mut odd = header().encode().to_vec();
        let start = frame::begin(&mut odd);
        frame::put_record(&record(1, 1), &mut odd);
        odd.extend([0xff; 9]);
        frame::finish(&mut odd, start, LOG, 1);
        std::fs::write(scratch.path(), &odd).unwrap();
        assert!(matches!(read_all(&scratch.path()), Err(LogError::Replay { .. })));
    }

    #[test]
    fn what_is_to_come_last_does_so_whenever_it_is_given() {
        let scratch = Scratch::new();
        let records = records(&[30_000; 9]);
        let mut file = SnapshotFile::create(scratch.0.path(), &header()).unwrap();
        for (index, record) in records.iter().enumerate() {
            match index % 2 {
                0 => file.put(record).unwrap(),
                _ => file.put_last(record),
            }
        }
        file.finish().unwrap();
        let expected: Vec<Record> = [0, 2, 4, 6, 8, 1, 3, 5, 7].map(|index: usize| records[index].clone()).into();
        assert_eq!(read_all(&scratch.path()).unwrap(), expected);
    }

    #[test]
    fn a_snapshot_that_is_not_finished_leaves_nothing() {
        let scratch = Scratch::new();
        let mut file = SnapshotFile::create(scratch.0.path(), &header()).unwrap();
        records(&[30_000; 4]).iter().for_each(|record| file.put(record).unwrap());
        assert_eq!(scratch.names().len(), 1);
        drop(file);
        assert!(scratch.names().is_empty());
    }
}
