//! What all tiers below one path may take of the disk together, whoever owns them.

use std::fs::{DirEntry, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::address::FileNumber;

/// Bytes of a block as the kernel counts what a file has.
pub(super) const COUNTED: u64 = 512;

/// A limit of the files of all tiers below a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedLimit {
    /// Each folder in it that has files of records is a tier.
    pub below: PathBuf,
    /// What all of them may have.
    pub bytes: u64,
}

impl SharedLimit {
    /// Bytes up to the limit; negative beyond it. An error where something cannot be counted: what is not known is not
    /// added to.
    pub fn left(&self) -> io::Result<i64> {
        let mut taken = 0;
        for folder in entries(&self.below)? {
            if folder.file_type()?.is_dir() {
                taken += self.taken_in(&folder.path())?;
            }
        }
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        Ok(signed(self.bytes) - signed(taken))
    }

    /// What the disk has set aside for the files of one tier.
    fn taken_in(&self, folder: &Path) -> io::Result<u64> {
        let listed = match entries(folder) {
            Ok(listed) => listed,
            // It was deleted meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
            Err(error) => {
                let (path, below) = (folder.display(), self.below.display());
                let why = format!("{path} cannot be counted, as the limit of all tiers below {below} needs: {error}");
                return Err(io::Error::new(error.kind(), why));
            }
        };
        let mut taken = 0;
        for file in listed {
            let is_one = file.file_name().to_str().is_some_and(|name| FileNumber::of_name(name).is_some());
            if is_one {
                taken += about(&file)?.map_or(0, |about| about.blocks() * COUNTED);
            }
        }
        Ok(taken)
    }
}

fn entries(folder: &Path) -> io::Result<Vec<DirEntry>> {
    folder.read_dir()?.collect()
}

/// None if it was removed meanwhile.
fn about(file: &DirEntry) -> io::Result<Option<Metadata>> {
    match file.metadata() {
        Ok(about) => Ok(about.is_file().then_some(about)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::Medium;
    use crate::medium::folder::{Engine, Folder};

    #[test]
    fn files_of_all_tiers_below_a_path_count_and_nothing_else_does() {
        const FILE: u64 = 1 << 20;
        let place = tempfile::tempdir().unwrap();
        let limit = SharedLimit { below: place.path().to_owned(), bytes: 3 * FILE };
        assert_eq!(limit.left().unwrap(), 3 * FILE as i64);
        let folders = ["one", "two"].map(|name| {
            let folder = Folder::with_engine(place.path().join(name), Engine::Threads).unwrap();
            folder.limited(Some(limit.clone()))
        });
        for (folder, number) in [(&folders[0], 0), (&folders[0], 1), (&folders[1], 0)] {
            folder.create(&FileNumber(number).name(), FILE).unwrap();
        }
        folders[1].create("super", FILE).unwrap();
        std::fs::write(place.path().join(FileNumber(7).name()), vec![1; 9000]).unwrap();
        assert_eq!(folders[1].room().unwrap().left, Some(0));
        folders[1].create(&FileNumber(1).name(), FILE).unwrap();
        assert_eq!(folders[0].room().unwrap().left, Some(-(FILE as i64)));
        folders[0].remove(&FileNumber(0).name()).unwrap();
        assert_eq!(folders[1].room().unwrap().left, Some(0));
        // A path that is gone has nothing that could be counted.
        let gone = SharedLimit { below: place.path().join("three"), ..limit };
        assert_eq!(gone.left().unwrap_err().kind(), ErrorKind::NotFound);
    }
}
