//! A store gives memory to the pool and takes it back at run time.

mod cluster;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cluster::{Cluster, MIB, eventually, put, value};
use mooncake_client::{Cause, ErrorKind, PutOptions, PutOutcome, SegmentId, Source, Store};
use mooncake_ids::SegmentUuid;
use tempfile::TempDir;

const NOW: Duration = Duration::ZERO;

/// A file that is gone with its owner.
struct File {
    path: PathBuf,
    _folder: TempDir,
}

impl File {
    fn new(folder: impl AsRef<Path>, bytes: u64) -> File {
        let folder = tempfile::Builder::new().prefix("mooncake-").tempdir_in(folder).unwrap();
        let path = folder.path().join("memory");
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        File { path, _folder: folder }
    }
}

#[test]
fn segments_come_and_go_by_their_ids() {
    let cluster = Cluster::start();
    let store = cluster.store(8 * MIB);
    let writer = cluster.store(0);
    put(&writer, "first", 100_000).unwrap();
    let (id, bytes) = store.mount_memory(16 * MIB + 1).unwrap();
    assert_eq!(bytes, 16 * MIB + 4096, "whole pages");
    eventually("what fits in the new one only", Duration::from_secs(5), || put(&writer, "large", 12 << 20).is_ok());
    assert_eq!(writer.get(b"large").unwrap(), Some(value("large", 12 << 20)));

    let text = id.to_string();
    assert_eq!(text.parse::<SegmentId>().unwrap(), id);
    for wrong in ["", "x", &format!("0{text}"), &format!("+{text}"), &format!("{text}-")] {
        assert_eq!(wrong.parse::<SegmentId>().unwrap_err().kind(), ErrorKind::InvalidParams);
    }
    store.unmount_segment(id, NOW).unwrap();
    assert_eq!(writer.get(b"large").unwrap(), None);
    assert_eq!(writer.get(b"first").unwrap(), Some(value("first", 100_000)), "the other one is there");
    assert_eq!(put(&writer, "large", 12 << 20).unwrap_err().kind(), ErrorKind::NoSpace);
    for unknown in [id, SegmentId(SegmentUuid([7; 16]))] {
        assert_eq!(store.unmount_segment(unknown, NOW).unwrap_err().kind(), ErrorKind::InvalidParams);
        assert_eq!(writer.unmount_segment(unknown, NOW).unwrap_err().kind(), ErrorKind::InvalidParams);
    }
    assert_eq!(store.mount_memory(10).unwrap_err().kind(), ErrorKind::InvalidParams);
}

#[test]
fn a_mount_that_is_interrupted_leaves_no_segment() {
    let cluster = Cluster::start();
    let interrupted = Arc::new(AtomicBool::new(false));
    let mut options = cluster.options(8 * MIB);
    let asked = interrupted.clone();
    options.interrupted = Some(Arc::new(move || asked.load(Ordering::SeqCst)));
    let store = Store::connect(options).unwrap();
    let file = File::new("/dev/shm", 16 * MIB);
    interrupted.store(true, Ordering::SeqCst);
    assert_eq!(store.mount_memory(16 * MIB).unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!(store.mount_file(&file.path, 0, 16 * MIB).unwrap_err().kind(), ErrorKind::Interrupted);
    interrupted.store(false, Ordering::SeqCst);
    assert_eq!(put(&store, "large", 12 << 20).unwrap_err().kind(), ErrorKind::NoSpace);
    store.mount_file(&file.path, 0, 16 * MIB).unwrap();
    eventually("it is there", Duration::from_secs(5), || put(&store, "large", 12 << 20).is_ok());
}

#[test]
fn a_client_without_memory_can_give_some_later() {
    let cluster = Cluster::start();
    let store = cluster.store(0);
    let error = put(&store, "k", 1000).unwrap_err();
    assert!(error.kind() == ErrorKind::NoSpace && matches!(error.cause(), Cause::NoSpace { .. }), "{error}");
    let writer = cluster.tcp_store(0);
    assert_eq!(put(&writer, "a", 10).unwrap_err().kind(), ErrorKind::NoSpace);
    let (id, _) = store.mount_memory(8 * MIB).unwrap();
    let options = PutOptions { preferred_segments: vec![store.hostname().into()], ..PutOptions::default() };
    let outcome = writer.put(b"a", &[Source::new(&value("a", 5000))], &options).unwrap();
    assert_eq!(outcome, PutOutcome::Stored { replicas: 1 });
    assert_eq!(writer.describe(&["a"]).unwrap()[0].as_ref().unwrap()[0].endpoint, store.hostname());
    assert_eq!(writer.get(b"a").unwrap(), Some(value("a", 5000)));
    store.unmount_segment(id, NOW).unwrap();
    assert_eq!(writer.get(b"a").unwrap(), None);
    store.mount_memory(8 * MIB).unwrap();
    put(&writer, "b", 10).unwrap();
    let started = Instant::now();
    store.close();
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    assert_eq!(writer.get(b"b").unwrap(), None);
}

#[test]
fn with_a_grace_a_segment_is_read_and_takes_nothing_new_and_then_is_gone() {
    let cluster = Cluster::start();
    let (store, other) = (cluster.store(0), cluster.store(8 * MIB));
    let (id, _) = store.mount_memory(8 * MIB).unwrap();
    let there = PutOptions { preferred_segments: vec![store.hostname().into()], ..PutOptions::default() };
    store.put(b"a", &[Source::new(&value("a", 5000))], &there).unwrap();
    let view = store.view(&["a"]).remove(0).unwrap().unwrap();
    let started = Instant::now();
    store.unmount_segment(id, Duration::from_millis(800)).unwrap();
    assert!(started.elapsed() < Duration::from_millis(600), "it does not wait for the grace");
    for n in 0..10 {
        let key = format!("n{n}");
        store.put(key.as_bytes(), &[Source::new(b"bytes")], &there).unwrap();
        assert_eq!(store.describe(&[&key]).unwrap()[0].as_ref().unwrap()[0].endpoint, other.hostname());
    }
    if started.elapsed() < Duration::from_millis(700) {
        assert_eq!(store.get(b"a").unwrap(), Some(value("a", 5000)));
    }
    eventually("it is gone", Duration::from_secs(3), || store.get(b"a").unwrap().is_none());
    assert!(started.elapsed() >= Duration::from_millis(800), "{:?}", started.elapsed());
    eventually("its id is free", Duration::from_secs(3), || store.unmount_segment(id, NOW).is_err());
    assert_eq!(view[..], value("a", 5000)[..]);
}

#[test]
fn a_restarted_master_knows_all_segments_of_a_store() {
    let mut cluster = Cluster::start();
    let store = cluster.store(8 * MIB);
    put(&store, "small", 1000).unwrap();
    let (id, _) = store.mount_memory(16 * MIB).unwrap();
    eventually("populated", Duration::from_secs(5), || put(&store, "large", 12 << 20).is_ok());
    cluster.stop_master();
    cluster.start_master();
    eventually("the store is back", Duration::from_secs(5), || {
        store.exists(&["small", "large"]).is_ok_and(|there| there == [true, true])
    });
    assert_eq!(store.get(b"large").unwrap(), Some(value("large", 12 << 20)));
    store.unmount_segment(id, NOW).unwrap();
    assert_eq!(store.exists(&["small", "large"]).unwrap(), [true, false]);
}

#[test]
fn a_master_that_lost_its_log_gets_fresh_segments_and_the_ids_stay() {
    let mut cluster = Cluster::start();
    let store = cluster.store(8 * MIB);
    let (id, _) = store.mount_memory(16 * MIB).unwrap();
    cluster.stop_master();
    cluster.forget_log();
    cluster.start_master();
    eventually("both segments are there anew", Duration::from_secs(10), || put(&store, "large", 12 << 20).is_ok());
    store.unmount_segment(id, NOW).unwrap();
    assert_eq!(store.get(b"large").unwrap(), None);
    put(&store, "small", 1000).unwrap();
}

#[test]
fn a_file_is_memory_that_peers_reach_by_tcp_only() {
    let cluster = Cluster::start();
    for folder in [Path::new("/dev/shm"), &std::env::temp_dir()] {
        let file = File::new(folder, 12 << 20);
        let store = cluster.store(0);
        let (id, bytes) = store.mount_file(&file.path, 4096, 8 * MIB).unwrap();
        assert_eq!(bytes, 8 * MIB);
        let writer = cluster.store(0);
        eventually("populated", Duration::from_secs(5), || put(&writer, "a", 5 << 20).is_ok());
        for reader in [&store, &writer] {
            assert_eq!(reader.get(b"a").unwrap(), Some(value("a", 5 << 20)), "{folder:?}");
        }
        // The bytes are in the file, behind the offset.
        let written = std::fs::read(&file.path).unwrap();
        let bytes = value("a", 5 << 20);
        assert!(written[..4096].iter().all(|byte| *byte == 0));
        let at = writer.describe(&["a"]).unwrap()[0].as_ref().unwrap()[0].address as usize + 4096;
        assert!(written[at..at + bytes.len()] == bytes[..]);

        // The range is this segment's; another one of the file is not.
        let again = cluster.store(0).mount_file(&file.path, 8 << 20, 1 << 20).unwrap_err();
        assert!(again.kind() == ErrorKind::InvalidParams && again.to_string().contains("another segment"), "{again}");
        store.mount_file(&file.path, (8 << 20) + 4096, 1 << 20).unwrap();
        store.unmount_segment(id, NOW).unwrap();
        assert_eq!(writer.get(b"a").unwrap(), None);
        assert!(std::fs::read(&file.path).unwrap()[at..at + bytes.len()] == bytes[..], "the file is its owner's");
        store.close();
    }
}

#[test]
fn a_file_that_cannot_be_a_segment_is_refused_with_the_reason() {
    let cluster = Cluster::start();
    let store = cluster.store(0);
    let file = File::new("/dev/shm", 1 << 20);
    let missing = PathBuf::from("/dev/shm/mooncake-is-not-there");
    for (path, offset, bytes, reason) in [
        (&file.path, 100, 4096, "multiple of 4096"),
        (&file.path, 0, (1 << 20) + 1024, "the file has 1048576 bytes"),
        (&file.path, u64::MAX - 4095, 4096, "the file has"),
        (&missing, 0, 4096, "No such file"),
        (&PathBuf::from("/dev/null"), 0, 4096, "not a regular file"),
    ] {
        let error = store.mount_file(path, offset, bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidParams, "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    store.mount_file(&file.path, 0, 1 << 20).unwrap();
}

#[test]
fn memory_that_was_unmounted_is_mapped_by_its_owner_no_more() {
    let cluster = Cluster::start();
    let store = cluster.store(0);
    // As no other segment of this test's process has.
    let bytes = 13 * MIB + 4096;
    let (id, _) = store.mount_memory(bytes).unwrap();
    put(&store, "k", 100_000).unwrap();
    assert!(store.get(b"k").unwrap().is_some(), "over a link to it");
    let is_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains("memfd:kv-segment")).any(|line| {
            let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            u64::from_str_radix(to, 16).unwrap() - u64::from_str_radix(from, 16).unwrap() == bytes
        })
    };
    assert!(is_mapped());
    store.unmount_segment(id, NOW).unwrap();
    eventually("unmapped", Duration::from_secs(5), || !is_mapped());
}
