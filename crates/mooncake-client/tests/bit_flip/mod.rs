//! Bytes of stored objects, and their stamps, that turn.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

/// The memory of this process's segment of a size, by its descriptor.
pub fn segment(bytes: u64) -> File {
    memory_of(bytes)
}

/// The stamps of that segment: the second memory that it has.
pub fn stamps(bytes: u64) -> Stamps {
    let granules = bytes / 1024;
    Stamps { data: segment(bytes), control: memory_of((STAMPS_AT + granules * 8).next_multiple_of(4096)) }
}

/// Where the stamps begin in their memory.
const STAMPS_AT: u64 = 4096;

/// Stamps of a segment, and the bytes that they belong to.
pub struct Stamps {
    data: File,
    control: File,
}

impl Stamps {
    /// Flips bits of the stamp in the middle of `object`, wherever it lies.
    pub fn flip(&self, object: &[u8], bits: u64) {
        let at = STAMPS_AT + (place_of(&self.data, object) + object.len() as u64 / 2) / 1024 * 8;
        let mut stamp = [0; 8];
        self.control.read_exact_at(&mut stamp, at).unwrap();
        let stamp = u64::from_le_bytes(stamp);
        assert_ne!(stamp, 0, "nobody has written there");
        self.control.write_all_at(&(stamp ^ bits).to_le_bytes(), at).unwrap();
    }

    /// Every stamp is 0, as if nobody had ever written there.
    pub fn clear(&self) {
        let len = self.control.metadata().unwrap().len() - STAMPS_AT;
        self.control.write_all_at(&vec![0; len as usize], STAMPS_AT).unwrap();
    }
}

fn memory_of(bytes: u64) -> File {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let found = descriptors.map(|entry| entry.path()).find(|path| {
        let is_memory =
            std::fs::read_link(path).is_ok_and(|destination| destination.to_string_lossy().starts_with("/memfd:"));
        is_memory && std::fs::metadata(path).is_ok_and(|metadata| metadata.len() == bytes)
    });
    OpenOptions::new().read(true).write(true).open(found.unwrap()).unwrap()
}

/// Flips a bit of the byte in the middle of `object`, wherever it lies.
pub fn flip(memory: &File, object: &[u8]) {
    let at = place_of(memory, object) + object.len() as u64 / 2;
    let mut byte = [0];
    memory.read_exact_at(&mut byte, at).unwrap();
    memory.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

fn place_of(memory: &File, object: &[u8]) -> u64 {
    let mut all = vec![0; memory.metadata().unwrap().len() as usize];
    memory.read_exact_at(&mut all, 0).unwrap();
    all.windows(64).position(|bytes| bytes == &object[..64]).unwrap() as u64
}
