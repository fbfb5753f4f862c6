//! The log file of `--log_dir`: all severities in one, begun anew when it is
//! large, and a link with the program's name to the newest.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    program: String,
    file: File,
    bytes: u64,
    /// A file does not grow beyond this.
    most: u64,
    /// How many files of the program are kept, 0: all.
    kept: usize,
    /// Files begun by this process.
    count: u32,
}

impl Journal {
    /// Makes the folder and the first file.
    pub fn open(folder: &Path, program: &str, most: u64, kept: usize) -> io::Result<Journal> {
        std::fs::create_dir_all(folder)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", folder.display())))?;
        let file = begin(folder, program, 0)?;
        let (folder, program) = (folder.to_owned(), program.to_owned());
        let journal = Journal { folder, program, file, bytes: 0, most, kept, count: 0 };
        journal.remove_oldest();
        Ok(journal)
    }

    /// Appends a line.
    pub fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        if self.bytes > 0 && self.bytes + line.len() as u64 > self.most {
            self.count += 1;
            self.file = begin(&self.folder, &self.program, self.count)?;
            self.bytes = 0;
            self.remove_oldest();
        }
        self.file.write_all(line)?;
        self.bytes += line.len() as u64;
        Ok(())
    }
}

impl Journal {
    /// Leaves the newest files of the program, and files that other processes write to. What cannot be removed stays.
    fn remove_oldest(&self) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return };
        let mut files: Vec<(std::time::SystemTime, PathBuf)> = entries
            .flatten()
            .filter(|entry| entry.file_name().to_str().is_some_and(|name| self.may_remove(name)))
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        files.sort_unstable();
        for (_, path) in files.iter().rev().skip(if self.kept == 0 { usize::MAX } else { self.kept }) {
            let _ = std::fs::remove_file(path);
        }
    }

    /// A file of this program, of a process that is this one or has ended.
    fn may_remove(&self, name: &str) -> bool {
        let rest = name.strip_prefix(&*self.program).and_then(|rest| rest.strip_prefix('.'));
        let parts: Vec<&str> = rest.and_then(|rest| rest.strip_suffix(".log")).unwrap_or("").split('.').collect();
        let [_time, pid, _count] = parts[..] else { return false };
        pid == std::process::id().to_string() || !Path::new("/proc").join(pid).exists()
    }
}

/// `mooncake_master.20261121-075135.4711.0.log`, and the link to it.
fn begin(folder: &Path, program: &str, count: u32) -> io::Result<File> {
    let mut now = String::new();
    SystemTime.format_time(&mut Writer::new(&mut now)).map_err(io::Error::other)?;
    let now: String = now.chars().take(19).filter(|c| c.is_ascii_digit() || *c == 'T').collect();
    let name = format!("{program}.{}.{}.{count}.log", now.replace('T', "-"), std::process::id());
    let path = folder.join(&name);
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    // Swapped in by a rename: a reader that follows the link finds one file or the other.
    let (link, next) = (folder.join(program), folder.join(format!(".{program}.{}", std::process::id())));
    let _ = std::fs::remove_file(&next);
    symlink(&name, &next).and_then(|()| std::fs::rename(&next, &link))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_journal_goes_on_in_the_next_file_and_the_link_follows() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("journal");
        let mut journal = Journal::open(&folder, "prog", 10, 0).unwrap();
        for line in ["12345\n", "678\n", "next\n"] {
            journal.write_line(line.as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(folder.join("prog")).unwrap(), "next\n");
        let files = std::fs::read_dir(&folder).unwrap().count();
        assert_eq!(files, 3, "two files and the link");
    }

    #[test]
    fn of_old_files_the_newest_are_kept_and_those_of_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        // Process 1 runs; one beyond the largest pid has ended.
        let ended = (0..3).map(|nth| format!("prog.20200101-00000{nth}.4194305.0.log"));
        let others = ["prog.20200101-000000.1.0.log", "other.20200101-000000.4194305.0.log", "prog.txt"];
        for name in ended.clone().chain(others.map(str::to_owned)) {
            std::fs::write(folder.join(name), "old").unwrap();
        }
        let mut journal = Journal::open(folder, "prog", 10, 2).unwrap();
        for line in ["12345\n", "67890\n", "next!\n"] {
            journal.write_line(line.as_bytes()).unwrap();
        }
        assert!(others.iter().all(|name| folder.join(name).exists()));
        assert!(ended.into_iter().all(|name| !folder.join(name).exists()));
        let own = format!(".{}.", std::process::id());
        let files = std::fs::read_dir(folder).unwrap().flatten();
        let left = files.filter(|entry| entry.file_name().to_string_lossy().contains(&own)).count();
        assert_eq!((left, std::fs::read_to_string(folder.join("prog")).unwrap()), (2, "next!\n".to_owned()));
    }
}
