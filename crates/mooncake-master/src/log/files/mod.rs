//! Files of a log: name, header, and reading their frames in chunks.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use mooncake_memory::crc32c;

use super::LogError;
use super::frame::{self, Decoded};
use super::step::{Step, step, sync};

/// Length of a file header, bytes.
pub const FILE_HEADER: usize = 64;

const FORMAT: u32 = 1;
const LOG_MAGIC: [u8; 8] = *b"MCRSLOG1";
const SNAPSHOT_MAGIC: [u8; 8] = *b"MCRSSNP1";
const CHUNK: usize = 256 << 10;

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// Frames from an LSN on.
    Log,
    /// The state after an LSN.
    Snapshot,
}

/// First bytes of every file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileHeader {
    /// What it holds.
    pub kind: FileKind,
    /// The log that it belongs to.
    pub log_id: u64,
    /// Log file: LSN of its first frame. Snapshot: LSN of the last frame in it.
    pub lsn: u64,
    /// Boot under which it was written.
    pub boot_id: [u8; 16],
}

impl FileHeader {
    /// Name of the file with this header.
    pub fn file_name(&self) -> String {
        match self.kind {
            FileKind::Log => format!("log-{:016x}.wal", self.lsn),
            FileKind::Snapshot => format!("snapshot-{:016x}.snap", self.lsn),
        }
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; FILE_HEADER] {
        let mut out = [0; FILE_HEADER];
        out[..8].copy_from_slice(match self.kind {
            FileKind::Log => &LOG_MAGIC,
            FileKind::Snapshot => &SNAPSHOT_MAGIC,
        });
        out[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        out[16..24].copy_from_slice(&self.log_id.to_le_bytes());
        out[24..32].copy_from_slice(&self.lsn.to_le_bytes());
        out[32..48].copy_from_slice(&self.boot_id);
        let crc = crc32c(&out[..60]);
        out[60..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a header; `None` when the bytes are not one of this format.
    pub fn decode(bytes: &[u8]) -> Option<FileHeader> {
        let bytes: &[u8; FILE_HEADER] = bytes.get(..FILE_HEADER)?.try_into().ok()?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let kind = match bytes[..8].try_into().expect("eight bytes") {
            LOG_MAGIC => FileKind::Log,
            SNAPSHOT_MAGIC => FileKind::Snapshot,
            _ => return None,
        };
        if half(8) != FORMAT || half(60) != crc32c(&bytes[..60]) {
            return None;
        }
        let boot_id = bytes[32..48].try_into().expect("sixteen bytes");
        Some(FileHeader { kind, log_id: word(16), lsn: word(24), boot_id })
    }
}

/// Creates a file of a log, empty but for its header, for appending.
pub fn create(path: &Path, header: &FileHeader) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    step(Step::Created, path)?;
    file.write_all(&header.encode())?;
    Ok(file)
}

/// Starts a log file: it has its name only together with its header, and a failure leaves nothing behind. What a former
/// failure left under that name is replaced. `durable`: both are on the disk when this returns; otherwise a caller that
/// needs that calls [`make_durable`].
pub fn start(folder: &Path, header: &FileHeader, durable: bool) -> Result<File, LogError> {
    debug_assert_eq!(header.kind, FileKind::Log);
    let path = folder.join(header.file_name());
    let temporary = path.with_extension("tmp");
    let mut named = false;
    let made = create(&temporary, header).and_then(|file| {
        if durable {
            sync(Step::HeaderSynced, &file, &temporary)?;
        }
        std::fs::rename(&temporary, &path)?;
        named = true;
        step(Step::Named, &path)?;
        if durable {
            sync_folder(folder)?;
        }
        Ok(file)
    });
    made.map_err(|source| {
        // Nothing was appended to it, and the log goes on where it was.
        let left = if named { &path } else { &temporary };
        if let Err(error) = std::fs::remove_file(left)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %left.display(), %error, "log file that could not be started is not removed");
        }
        LogError::Io { action: "creating", path, source }
    })
}

/// A log file's header and the entry in its folder reach the disk, with whatever was appended so far.
pub fn make_durable(path: &Path) -> io::Result<()> {
    sync(Step::HeaderSynced, &File::open(path)?, path)?;
    path.parent().map_or(Ok(()), sync_folder)
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    use io::ErrorKind::{InvalidInput, Unsupported};
    match File::open(folder)?.sync_all() {
        // A file system that has no such thing.
        Err(error) if matches!(error.kind(), InvalidInput | Unsupported) => {
            tracing::debug!(path = %folder.display(), %error, "folder not synced");
        }
        synced => synced?,
    }
    step(Step::FolderSynced, folder)
}

/// Files of one kind in a folder, in the order of their LSNs (from their names).
pub fn list(folder: &Path, kind: FileKind) -> io::Result<Vec<(u64, PathBuf)>> {
    let (prefix, suffix) = match kind {
        FileKind::Log => ("log-", ".wal"),
        FileKind::Snapshot => ("snapshot-", ".snap"),
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(lsn) = name.to_str().and_then(|n| n.strip_prefix(prefix)).and_then(|n| n.strip_suffix(suffix)) else {
            continue;
        };
        if let Ok(lsn) = u64::from_str_radix(lsn, 16) {
            found.push((lsn, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Reads a file's frames front to back, holding no more than the largest of them.
pub struct FrameFile {
    file: File,
    buffer: Vec<u8>,
    start: usize,
    /// File offset of `buffer[start]`.
    offset: u64,
    end_of_file: bool,
}

/// The next thing in a file.
pub enum Next<'a> {
    /// A frame that checks.
    Frame {
        /// Its LSN.
        lsn: u64,
        /// Its records.
        payload: &'a [u8],
    },
    /// The end, right behind a frame.
    End,
    /// Bytes that are no frame, from [`FrameFile::offset`] on.
    Damage,
}

impl FrameFile {
    /// Opens a file and reads its header; `None` if that is not whole.
    pub fn open(path: &Path) -> io::Result<(FrameFile, Option<FileHeader>)> {
        let file = File::open(path)?;
        let mut this = FrameFile { file, buffer: Vec::new(), start: 0, offset: 0, end_of_file: false };
        this.fill(FILE_HEADER)?;
        let header = FileHeader::decode(&this.buffer);
        if header.is_some() {
            this.advance(FILE_HEADER);
        }
        Ok((this, header))
    }

    /// Length of the file, bytes.
    pub fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// File offset of what comes next.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next frame.
    pub fn next(&mut self, log_id: u64) -> io::Result<Next<'_>> {
        let mut need = frame::HEADER;
        let (size, lsn) = loop {
            self.fill(need)?;
            match frame::decode(&self.buffer[self.start..], log_id) {
                Decoded::Frame { lsn, size, .. } => break (size, lsn),
                Decoded::Short(_) if self.end_of_file && self.start == self.buffer.len() => return Ok(Next::End),
                Decoded::Short(_) if self.end_of_file => return Ok(Next::Damage),
                Decoded::Short(wanted) => need = wanted,
                Decoded::Bad => return Ok(Next::Damage),
            }
        };
        let start = self.start;
        self.advance(size);
        Ok(Next::Frame { lsn, payload: &self.buffer[start + frame::HEADER..start + size] })
    }

    /// Everything from here to the end of the file, to look for what damage hides.
    pub fn rest(&mut self) -> io::Result<&[u8]> {
        self.file.read_to_end(&mut self.buffer)?;
        self.end_of_file = true;
        Ok(&self.buffer[self.start..])
    }

    fn advance(&mut self, bytes: usize) {
        self.start += bytes;
        self.offset += bytes as u64;
    }

    /// Makes `need` bytes available at `start`, if the file has them.
    fn fill(&mut self, need: usize) -> io::Result<()> {
        if self.buffer.len() - self.start >= need || self.end_of_file {
            return Ok(());
        }
        self.buffer.drain(..self.start);
        self.start = 0;
        // Read what is announced in chunks: a length that lies allocates no more than the file has.
        while self.buffer.len() < need && !self.end_of_file {
            let read = (&mut self.file).take(CHUNK as u64).read_to_end(&mut self.buffer)?;
            self.end_of_file = read < CHUNK;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
