//! The order of writers and readers under every interleaving that the memory
//! model allows.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use mooncake_memory::order::{read_in_order, write_in_order};

/// An extent of two granules: their stamps, and a word of bytes in each. Bytes
/// are relaxed atomics, the weakest accesses that loom can follow.
struct Extent {
    stamps: [AtomicU64; 2],
    bytes: [AtomicU64; 2],
}

impl Extent {
    fn new(rid: u64) -> Arc<Self> {
        let word = || AtomicU64::new(rid);
        Arc::new(Self { stamps: [word(), word()], bytes: [word(), word()] })
    }

    /// `store_barrier` is at least this strong.
    fn write(&self, rid: u64) {
        let all = |words: &[AtomicU64; 2]| words.iter().for_each(|word| word.store(rid, Ordering::Relaxed));
        write_in_order(|| all(&self.stamps), || fence(Ordering::Release), || all(&self.bytes));
    }

    /// Bytes and stamps of the first `granules`.
    fn read(&self, granules: usize) -> (Vec<u64>, Vec<u64>) {
        let all = |words: &[AtomicU64; 2]| words[..granules].iter().map(|word| word.load(Ordering::Relaxed)).collect();
        read_in_order(|| all(&self.bytes), || fence(Ordering::Acquire), || all(&self.stamps))
    }
}

fn check(extent: &Extent, granules: usize, rid: u64) {
    let (bytes, stamps) = extent.read(granules);
    if stamps.iter().all(|&stamp| stamp == rid) {
        assert!(bytes.iter().all(|&word| word == rid), "bytes {bytes:?} under stamps {stamps:?}");
    }
}

#[test]
fn a_read_that_keeps_its_stamps_has_only_its_own_bytes() {
    for granules in [1, 2] {
        loom::model(move || {
            let extent = Extent::new(2);
            let writer = Arc::clone(&extent);
            let writer = loom::thread::spawn(move || writer.write(4));
            check(&extent, granules, 2);
            writer.join().unwrap();
            check(&extent, granules, 4);
        });
    }
}

#[test]
fn a_reader_that_was_told_of_a_commit_sees_all_of_it_or_a_later_stamp() {
    loom::model(|| {
        let extent = Extent::new(2);
        let committed = Arc::new(AtomicU64::new(2));
        let (writer, commit) = (Arc::clone(&extent), Arc::clone(&committed));
        let writer = loom::thread::spawn(move || {
            writer.write(4);
            // End, by way of the master.
            commit.store(4, Ordering::Release);
            writer.write(6);
        });
        let rid = committed.load(Ordering::Acquire);
        check(&extent, 2, rid);
        writer.join().unwrap();
    });
}

#[test]
#[should_panic(expected = "under stamps")]
fn without_the_writers_fence_a_torn_read_passes() {
    loom::model(|| {
        let extent = Extent::new(2);
        let writer = Arc::clone(&extent);
        let writer = loom::thread::spawn(move || {
            let all = |words: &[AtomicU64; 2]| words.iter().for_each(|word| word.store(4, Ordering::Relaxed));
            write_in_order(|| all(&writer.stamps), || (), || all(&writer.bytes));
        });
        check(&extent, 2, 2);
        writer.join().unwrap();
    });
}
