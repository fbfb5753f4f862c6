//! Owners that are killed amid writes: the next one finds every record that was told as written, on a real file system.

mod support;

use std::time::{Duration, Instant};

use mooncake_ids::Rid;
use mooncake_test_support::child_process::{ChildProcess, hear, role, say};
use mooncake_tier::address::{Address, FileNumber, Geometry};
use mooncake_tier::contents::contents;
use mooncake_tier::medium::folder::Folder;
use mooncake_tier::reader::{Miss, Reader};
use mooncake_tier::slots::Slots;
use support::{TIER, Writer, Written, key_of, read, size_of};

const CAPACITY: u64 = 512 << 20;

/// How many owners are killed: `MOONCAKE_TIER_KILLS` says so for long runs.
fn kills() -> u64 {
    std::env::var("MOONCAKE_TIER_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(6)
}

/// The owner: writes objects from a number on, says which are written, and sometimes makes room.
#[test]
fn other_process_owner() {
    let Some(role) = role() else { return };
    let (path, first) = role.split_once(' ').unwrap();
    let folder = Folder::new(path, None).unwrap();
    let began = Instant::now();
    let (mut writer, _) = Writer::begin(folder, 1, CAPACITY, Geometry::of_capacity(CAPACITY));
    let mut next: u64 = first.parse().unwrap();
    let mut under_way = 0;
    assert_eq!(hear(), "begin");
    loop {
        while under_way < 24 {
            writer.order(Rid::new(1, next), size_of(next), &key_of(next));
            (next, under_way) = (next + 1, under_way + 1);
        }
        let (written, lost, _) = writer.poll(began.elapsed(), Duration::from_millis(20));
        under_way -= written.len() + lost.len();
        for one in &written {
            say(format!("{} {}", one.rid.counter(), one.address.0));
        }
        if !lost.is_empty() {
            let oldest = *writer.appender.files().keys().next().expect("the tier is full of files");
            writer.appender.retire(oldest).unwrap();
            say(format!("retired {}", oldest.0));
        }
    }
}

#[test]
fn a_killed_owner_serves_all_that_it_said_was_written() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("tier");
    let folder = Folder::new(&path, None).unwrap();
    let geometry = Geometry::of_capacity(CAPACITY);
    let mut written: Vec<Written> = Vec::new();
    let mut next = 1;
    for kill in 0..kills() {
        let mut owner = ChildProcess::start("other_process_owner", &format!("{} {next}", path.display()));
        owner.say("begin");
        let enough = 40 + kill * 97 % 400;
        for _ in 0..enough {
            let said = owner.hear();
            let (one, two) = said.split_once(' ').unwrap();
            if one == "retired" {
                let file = FileNumber(two.parse().unwrap());
                written.retain(|one| one.file(geometry) != file);
                continue;
            }
            let number: u64 = one.parse().unwrap();
            let (address, rid) = (Address(two.parse().unwrap()), Rid::new(1, number));
            written.push(Written { address, rid, size: size_of(number), key: key_of(number) });
            next = next.max(number + 100);
        }
        owner.kill();
        check(&folder, geometry, &mut written);
    }
    println!("{} owners were killed, and {} records are there", kills(), written.len());
}

fn check(folder: &Folder, geometry: Geometry, written: &mut Vec<Written>) {
    let (writer, before) = Writer::begin(folder.clone(), 2, CAPACITY, geometry);
    let mut reader = Reader::new(folder.clone(), geometry, Slots::new(8)).unwrap();
    // A file that the owner retired, and did not come to say so, is gone.
    written.retain(|one| match read(&mut reader, one, 0, one.size) {
        Ok(()) => true,
        Err(Miss::Gone) if !writer.appender.files().contains_key(&one.file(geometry)) => false,
        other => panic!("{one:?}: {other:?}"),
    });
    let highest = writer.appender.files().keys().max().copied();
    assert!(highest.is_none_or(|file| file < writer.appender.superblock().next_file));
    assert!(before.next_file <= writer.appender.superblock().next_file);
    let slots = Slots::new(2);
    for (file, bytes) in writer.appender.files() {
        let found = contents(folder, (TIER, geometry), (*file, *bytes), &slots, &support::uncounted()).unwrap();
        for one in written.iter().filter(|one| one.file(geometry) == *file) {
            assert!(found.entries.iter().any(|entry| (entry.address, entry.rid) == (one.address, one.rid)), "{one:?}");
        }
    }
}
