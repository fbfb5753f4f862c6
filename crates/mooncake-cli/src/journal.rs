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
    /// Files begun by this process.
    count: u32,
}

impl Journal {
    /// Makes the folder and the first file.
    pub fn open(folder: &Path, program: &str, most: u64) -> io::Result<Journal> {
        std::fs::create_dir_all(folder)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", folder.display())))?;
        let file = begin(folder, program, 0)?;
        Ok(Journal { folder: folder.to_owned(), program: program.to_owned(), file, bytes: 0, most, count: 0 })
    }

    /// Appends a line.
    pub fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        if self.bytes > 0 && self.bytes + line.len() as u64 > self.most {
            self.count += 1;
            self.file = begin(&self.folder, &self.program, self.count)?;
            self.bytes = 0;
        }
        self.file.write_all(line)?;
        self.bytes += line.len() as u64;
        Ok(())
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
    // Swapped in by a rename: whoever follows the link finds one file or the other.
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
        let folder = std::env::temp_dir().join(format!("mooncake-journal-{}", std::process::id()));
        let mut journal = Journal::open(&folder, "prog", 10).unwrap();
        for line in ["12345\n", "678\n", "next\n"] {
            journal.write_line(line.as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(folder.join("prog")).unwrap(), "next\n");
        let files = std::fs::read_dir(&folder).unwrap().count();
        assert_eq!(files, 3, "two files and the link");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
