//! An owner whose host loses power, and what the next one finds: the two sides of a test in an emulated machine
//! (`tests/python/test_machine_power_cuts.py`).
//!
//! `power_cut write FOLDER FIRST` writes objects whose bytes follow from their numbers, from that one on, until it is
//! killed. It says `written NUMBER ADDRESS` of each, and `retiring FILE` before it gives up a file.
//!
//! `power_cut check FOLDER` takes over what is left, reads on standard input what the writers of before have said, and
//! says again of which records it is still true; then `found`, and how many. It fails if wrong bytes are read, or if a
//! record is not whole that the superblock calls synced.

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use mooncake_ids::Rid;
use mooncake_tier::address::{Address, FileNumber, Geometry};
use mooncake_tier::medium::Medium;
use mooncake_tier::medium::folder::Folder;
use mooncake_tier::reader::Reader;
use mooncake_tier::slots::Slots;
use support::{Writer, Written, key_of, read, size_of};

const CAPACITY: u64 = 256 << 20;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = |what| arguments.next().unwrap_or_else(|| panic!("power_cut write|check FOLDER [FIRST]: no {what}"));
    let (what, path) = (next("write or check"), next("FOLDER"));
    let folder = Folder::new(path, None).expect("a folder");
    match what.as_str() {
        "write" => write(folder, next("FIRST").parse().expect("a number")),
        "check" => check(&folder),
        other => panic!("{other}: neither write nor check"),
    }
}

fn geometry() -> Geometry {
    Geometry::of_capacity(CAPACITY)
}

fn object(number: u64, address: u64) -> Written {
    let rid = Rid::new(1, number);
    Written { address: Address(address), rid, size: size_of(number), key: key_of(number) }
}

/// The file that it goes to keeps it, whatever becomes of this host's memory.
fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what}").and_then(|()| out.flush()).expect("there is a reader");
}

fn write(folder: Folder, first: u64) {
    let began = Instant::now();
    let (mut writer, _) = Writer::begin(folder, 1, CAPACITY, geometry());
    let (mut next, mut under_way) = (first, 0);
    loop {
        while under_way < 24 {
            writer.order(Rid::new(1, next), size_of(next), &key_of(next));
            (next, under_way) = (next + 1, under_way + 1);
        }
        let (written, lost, _) = writer.poll(began.elapsed(), Duration::from_millis(20));
        under_way -= written.len() + lost.len();
        for one in &written {
            say(&format!("written {} {}", one.rid.counter(), one.address.0));
        }
        if !lost.is_empty() {
            let oldest = *writer.appender.files().keys().next().expect("the tier is full of files");
            say(&format!("retiring {}", oldest.0));
            writer.appender.retire(oldest).expect("it can be removed");
        }
    }
}

/// What the writers of before have said: numbers of records by their addresses, and files that were given up.
fn told() -> (BTreeMap<u64, u64>, BTreeSet<FileNumber>) {
    let (mut records, mut retired) = (BTreeMap::new(), BTreeSet::new());
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        let mut words = line.split(' ');
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
        match line.split(' ').next() {
            Some("written") => {
                let (_, number, address) = (number(), number(), number());
                // The last line may have been cut off with the power.
                let (Some(number), Some(address)) = (number, address) else { continue };
                records.insert(address, number);
            }
            Some("retiring") => {
                let (_, file) = (number(), number());
                retired.extend(file.map(FileNumber));
            }
            _ => {}
        }
    }
    (records, retired)
}

fn check(folder: &Folder) {
    let (records, retired) = told();
    let geometry = geometry();
    let present = folder.list().expect("a folder");
    let (writer, before) = Writer::begin(folder.clone(), 2, CAPACITY, geometry);
    let mut reader = Reader::new(folder.clone(), geometry, Slots::new(8)).expect("a reader");
    let (mut whole, mut lost, mut given_up) = (0, 0, 0);
    for (address, number) in records {
        let one = object(number, address);
        let file = one.file(geometry);
        // Wrong bytes end this process within `read`.
        let result = read(&mut reader, &one, 0, one.size);
        let is_synced = one.address < before.synced_to && !before.suspects.contains(&file);
        match result {
            Ok(()) => {
                whole += 1;
                say(&format!("written {number} {address}"));
            }
            // Removed, and there again with its old length, or with none.
            Err(_) if retired.contains(&file) => given_up += 1,
            Err(_) if !is_synced => lost += 1,
            Err(miss) => panic!(
                "{one:?} in {file:?}: {miss:?}, and everything below {:?} is synced; the files are {present:?}",
                before.synced_to
            ),
        }
    }
    let next = writer.appender.superblock().next_file;
    assert!(before.next_file <= next && writer.appender.files().keys().all(|file| *file < next));
    let synced_to = before.synced_to.0;
    say(&format!("found {whole} {lost} {given_up} {synced_to}"));
}
