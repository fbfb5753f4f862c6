//! Bytes of stored objects that turn.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

/// The memory of this process's segment of a size, by its descriptor.
pub fn segment(bytes: u64) -> File {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let found = descriptors.map(|entry| entry.path()).find(|path| {
        let is_memory = std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:"));
        is_memory && std::fs::metadata(path).is_ok_and(|metadata| metadata.len() == bytes)
    });
    OpenOptions::new().read(true).write(true).open(found.unwrap()).unwrap()
}

/// Flips a bit of the byte in the middle of `object`, wherever it lies.
pub fn flip(memory: &File, object: &[u8]) {
    let mut all = vec![0; memory.metadata().unwrap().len() as usize];
    memory.read_exact_at(&mut all, 0).unwrap();
    let at = all.windows(64).position(|bytes| bytes == &object[..64]).unwrap() + object.len() / 2;
    memory.write_all_at(&[all[at] ^ 1], at as u64).unwrap();
}
