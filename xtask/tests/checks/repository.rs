//! A small repository to check: a workspace with the crates that a test writes.

use std::path::Path;
use std::process::Command;

pub struct Repository {
    folder: tempfile::TempDir,
}

impl Repository {
    /// With tables that except nothing, and no crate.
    pub fn new() -> Self {
        let repository = Self { folder: tempfile::tempdir().unwrap() };
        repository.write("Cargo.toml", "[workspace]\nmembers = [\"crates/*\"]\n");
        repository.write("crates/README.md", "Crates.\n");
        repository.write("xtask/layers.toml", "[crates]\n");
        repository.write("xtask/words.toml", "");
        repository
    }

    /// With one crate `a` that is in these layers, and these files in its `src`.
    pub fn of_a_crate(section: &str, files: &[(&str, &str)]) -> Self {
        let repository = Self::new();
        repository.write("crates/a/Cargo.toml", "[package]\nname = \"a\"\n");
        repository.write("xtask/layers.toml", &format!("[crates.a]\nuses = []\n{section}\n"));
        for (file, text) in files {
            repository.write(&format!("crates/a/src/{file}"), text);
        }
        repository
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(path)).unwrap()
    }

    /// What a command prints, and what it finds.
    pub fn run(&self, args: &[&str]) -> (String, Vec<String>) {
        let xtask = env!("CARGO_BIN_EXE_xtask");
        let done = Command::new(xtask).args(args).current_dir(self.folder.path()).output().unwrap();
        let printed = String::from_utf8(done.stdout).unwrap();
        let found: Vec<String> = String::from_utf8(done.stderr).unwrap().lines().map(str::to_owned).collect();
        assert_eq!(done.status.code(), Some(i32::from(!found.is_empty())), "{found:?}");
        (printed, found)
    }

    /// The only thing that a command finds.
    pub fn fault(&self, args: &[&str]) -> String {
        let (_, mut found) = self.run(args);
        assert_eq!(found.len(), 1, "{found:#?}");
        found.remove(0)
    }

    /// Asserts that a command finds nothing.
    pub fn is_clean(&self, args: &[&str]) {
        assert_eq!(self.run(args).1, Vec::<String>::new());
    }
}

/// Asserts that a fault names a place, what is wrong and what mends it.
pub fn assert_says(fault: &str, parts: &[&str]) {
    for part in parts {
        assert!(fault.contains(part), "{part:?} is not in: {fault}");
    }
}
