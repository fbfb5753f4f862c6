//! A log that an earlier version has written opens, with everything that is in it.
//!
//! Each of `logs/` was written by the version that it is named after, by the ignored test below:
//! `cargo test -p mooncake-master --test logs_of_earlier_versions -- --ignored` writes `logs/this-version.txt`. A
//! version that adds records gets a file of its own beside the older ones, with what it adds; files that are there are
//! never written anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;

use mooncake_master::Settings;
use mooncake_master::log::FileHeader;
use mooncake_master::log::frame::{self, Decoded};
use mooncake_wire::message::{self, anchor_down, anchor_up, put_end_reply, reply, request};
use mooncake_wire::pack_keys;

use crate::support;
use crate::support::{Client, Running, Scratch, mount_request, put_end, put_start};

const FIRST: &str = include_str!("logs/49e5191.txt");
const SECOND: &str = include_str!("logs/0e5426b.txt");

const WHOLE: [u8; 16] = [0xa1; 16];
const SHORT: [u8; 16] = [0xa2; 16];
const GONE: [u8; 16] = [0xa3; 16];
const BRIEF: [u8; 16] = [0xa4; 16];
const LEAVES: [u8; 16] = [0xa5; 16];
const MIB: u64 = 1 << 20;
const SOFT_MS: u64 = 600_000;
/// Longer than any test, and longer than a log that is read by hand lies there.
const GRACE_MS: u64 = 1 << 40;
const COMMITTED: i32 = put_end_reply::Outcome::Committed as i32;

/// Of the clients of such a log: of a host and a boot that are not these.
fn process() -> message::ProcessIdentity {
    message::ProcessIdentity { boot_id: vec![0x49; 16].into(), pid: 4950, start_time: 1, pid_namespace: 1, mark: 0 }
}

fn keys(keys: &[&str]) -> Option<message::Keys> {
    Some(pack_keys(keys))
}

/// A put of one object: of this size, and how.
fn start(client: &mut Client, key: &str, size: u64, config: message::PutConfig, group: &str) -> Vec<u64> {
    let request::Body::PutStart(plain) = put_start(&[(key, size)]) else { unreachable!() };
    let groups = (!group.is_empty()).then(|| pack_keys(&[group]));
    let ask = message::PutStart { config: Some(config), groups, ..plain };
    let started = match client.mutate(request::Body::PutStart(ask)) {
        reply::Body::PutStart(started) => started,
        other => panic!("{key}: {other:?}"),
    };
    assert!(!started.slots[0].replicas.is_empty(), "{key}: {started:?}");
    started.slots[0].replicas.iter().map(|replica| replica.rid).collect()
}

/// Ends it with all of its replicas, the CRC of which is the object's size.
fn end(client: &mut Client, rids: &[u64], crc32c: u32) -> i32 {
    let replicas = rids.iter().map(|rid| message::ReplicaOutcome { rid: *rid, good: true }).collect();
    let ended = vec![message::Ended { replicas, crc32c, stays: false }];
    match client.mutate(request::Body::PutEnd(message::PutEnd { ended })) {
        reply::Body::PutEnd(said) => said.outcomes[0],
        other => panic!("{other:?}"),
    }
}

fn put(client: &mut Client, key: &str, size: u64, config: message::PutConfig, group: &str) {
    let rids = start(client, key, size, config, group);
    assert_eq!(end(client, &rids, size as u32), COMMITTED, "{key}");
}

fn plain() -> message::PutConfig {
    message::PutConfig::default()
}

fn pin(client: &mut Client, key: &str) -> u64 {
    match client.mutate(request::Body::Pin(message::Pin { keys: keys(&[key]) })) {
        reply::Body::Lookup(found) => found.objects[0].replicas[0].rid,
        other => panic!("{other:?}"),
    }
}

fn remove(client: &mut Client, key: &str) {
    let ask = message::Remove { keys: keys(&[key]), force: true };
    let reply::Body::Remove(said) = client.mutate(request::Body::Remove(ask)) else { panic!("{key}") };
    assert_eq!(said.outcomes, [message::remove_reply::Outcome::Removed as i32], "{key}");
}

fn abort(client: &mut Client, rids: &[u64], writer_done: bool) {
    client.mutate(request::Body::Abort(message::Abort { rids: rids.to_vec(), writer_done }));
}

fn mount(client: &mut Client, uuid: [u8; 16], populated: u64) {
    let request::Body::Mount(mut ask) = mount_request(uuid.to_vec(), MIB) else { unreachable!() };
    let segment = ask.segment.as_mut().unwrap();
    segment.name = format!("segment:{}", uuid[0]);
    let endpoint = segment.endpoint.as_mut().unwrap();
    (endpoint.boot_id, endpoint.process) = (process().boot_id, Some(process()));
    ask.populated = populated;
    assert!(matches!(client.mutate(request::Body::Mount(ask)), reply::Body::Mount(_)));
    client.segments.push(uuid.to_vec());
}

/// Reads what the master pushes until this is it.
fn pushed<T>(client: &mut Client, is_it: impl Fn(anchor_down::Body) -> Option<T>) -> T {
    loop {
        if let Some(it) = client.down().body.and_then(&is_it) {
            return it;
        }
    }
}

/// Until all that was sent on the anchor so far has been done.
fn beat(client: &mut Client, beat: message::Beat) {
    client.up(anchor_up::Body::Beat(message::Beat { number: 1 << 20, ..beat }));
    pushed(client, |body| matches!(body, anchor_down::Body::Pong(pong) if pong.number == 1 << 20).then_some(()));
}

// ------------------------------------------------------------------ the file

/// A log as text, and what its clients know of it: names with numbers, then files in hexadecimal digits.
#[derive(Default)]
struct Written {
    numbers: BTreeMap<String, u64>,
    files: Vec<(String, Vec<u8>)>,
}

impl Written {
    fn parse(text: &str) -> Written {
        let mut written = Written::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if let Some(name) = line.strip_prefix("file ") {
                written.files.push((name.to_owned(), Vec::new()));
            } else if let Some((name, number)) = line.split_once(' ') {
                written.numbers.insert(name.to_owned(), u64::from_str_radix(number, 16).unwrap());
            } else {
                let byte = |at: usize| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
                written.files.last_mut().unwrap().1.extend((0..line.len()).step_by(2).map(byte));
            }
        }
        written
    }

    fn text(&self) -> String {
        let mut out = "# tests/logs_of_earlier_versions.rs says what this is. Numbers are hexadecimal.\n".to_owned();
        for (name, number) in &self.numbers {
            let _ = writeln!(out, "{name} {number:x}");
        }
        for (name, bytes) in &self.files {
            let _ = writeln!(out, "file {name}");
            for line in bytes.chunks(60) {
                let _ = writeln!(out, "{}", line.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
            }
        }
        out
    }

    fn number(&self, name: &str) -> u64 {
        self.numbers[name]
    }

    /// Names of the records that are in its files.
    fn kinds(&self) -> BTreeSet<String> {
        let mut kinds = BTreeSet::new();
        for (name, bytes) in &self.files {
            let header = FileHeader::decode(bytes).unwrap();
            let mut rest = &bytes[header.encode().len()..];
            while let Decoded::Frame { payload, size, .. } = frame::decode(rest, header.log_id) {
                let said = frame::records::<&[u8]>(payload).map(|record| format!("{:?}", record.unwrap()));
                kinds.extend(said.map(|said| said.split([' ', '(']).next().unwrap().to_owned()));
                rest = &rest[size..];
            }
            assert!(rest.is_empty() && *name == header.file_name(), "{name} is whole");
        }
        kinds
    }

    fn back(&self, address: SocketAddr, name: &str, uuids: &[[u8; 16]], pins: &[u64]) -> (Client, message::HelloReply) {
        let known = (self.number(&format!("{name}-session")), self.number(&format!("{name}-secret")));
        Client::returned(address, process(), known, uuids.iter().map(|uuid| uuid.to_vec()).collect(), pins.to_vec())
    }
}

// ------------------------------------------------------------------ reading it

/// As on another host: that the log is whole is not known.
fn lose_witness(scratch: &Scratch) {
    fs::remove_dir_all(scratch.0.join("witness")).unwrap();
    fs::create_dir_all(scratch.0.join("witness")).unwrap();
}

/// A number of `/metrics`.
fn metric(master: &Running, name: &str) -> f64 {
    let (_, page) = master.http("GET /metrics");
    let line = page.lines().find(|line| line.split(' ').next() == Some(name)).unwrap_or_else(|| panic!("no {name}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// What is in the log of an earlier version.
struct Contents {
    /// The epoch that it ends in.
    epoch: u32,
    /// Objects with their sizes.
    objects: Vec<(&'static str, u64)>,
    /// Segments of the owner that has one of which not all could be populated.
    others: Vec<[u8; 16]>,
    /// Views that the reader still has: names of their rids.
    pins: Vec<&'static str>,
    /// Of the segments that are there, bytes.
    capacity: u64,
}

fn first() -> Contents {
    let objects = vec![
        ("grouped", 400),
        ("grouped-late", 450),
        ("hard", 1200),
        ("late", 700),
        ("plain", 1000),
        ("replaced", 3000),
        ("soft", 1300),
        ("twice", 900),
    ];
    let (others, pins) = (vec![SHORT], vec!["pin-plain", "pin-removed"]);
    Contents { epoch: 1, objects, others, pins, capacity: MIB + MIB * 3 / 4 }
}

/// Beside all that: a second epoch, in which a segment leaves and another one has gone, and what was put and seen
/// there.
fn second() -> Contents {
    let Contents { mut objects, mut pins, capacity, .. } = first();
    objects.extend([("halved", 850), ("leaving", 650), ("of-the-second-epoch", 1500)]);
    objects.sort_unstable();
    pins.push("pin-late");
    Contents { epoch: 2, objects, others: vec![SHORT, LEAVES], pins, capacity: capacity + MIB }
}

#[test]
fn a_log_of_49e5191_opens_with_its_sessions_segments_objects_pins_and_replies() {
    opens_with_all_that_is_in_it(FIRST, &first());
}

#[test]
fn a_log_of_0e5426b_opens_with_its_second_epoch_too() {
    opens_with_all_that_is_in_it(SECOND, &second());
}

#[test]
fn a_log_of_0e5426b_has_each_kind_of_record_that_there_was() {
    assert_eq!(Written::parse(SECOND).kinds().len(), 26);
}

fn opens_with_all_that_is_in_it(text: &str, contents: &Contents) {
    let (written, scratch) = (Written::parse(text), Scratch::new());
    fs::create_dir_all(scratch.current()).unwrap();
    for (name, bytes) in &written.files {
        fs::write(scratch.current().join(name), bytes).unwrap();
    }
    let files = (scratch.snapshots().len(), scratch.log_files().len());
    assert_eq!(files, (1, contents.epoch as usize), "a snapshot, and behind it what each epoch has written");
    // Twice: as that version left it, then as this one has gone on with it.
    for epoch in [contents.epoch + 1, contents.epoch + 2] {
        let master = Running::start(scratch.settings());
        assert_eq!(metric(&master, "mooncake_sessions"), 4.0, "two owners, the writer and the reader");
        assert_eq!(master.http("GET /get_all_keys").1, "", "no owner is back yet");
        let (mut owner, hello) = written.back(master.rpc, "owner", &[WHOLE, GONE], &[]);
        assert_eq!(hello.position.unwrap().epoch, epoch, "nothing vouches for a log that came from elsewhere");
        assert_eq!(hello.gone_segments, [GONE.to_vec()], "what is gone stays gone");
        let (mut other, _) = written.back(master.rpc, "other", &contents.others, &[]);
        for owner in [&mut owner, &mut other] {
            let asked = pushed(owner, |body| match body {
                anchor_down::Body::TakeEpoch(take) => Some(take.epoch),
                _ => None,
            });
            assert_eq!(asked, epoch);
        }
        let pins: Vec<u64> = contents.pins.iter().map(|name| written.number(name)).collect();
        let (mut reader, _) = written.back(master.rpc, "reader", &[], &pins);
        let (mut writer, _) = written.back(master.rpc, "writer", &[], &[]);

        let (_, listed) = master.http("GET /get_all_keys");
        let mut listed: Vec<&str> = listed.lines().filter(|key| !key.starts_with("new-")).collect();
        listed.sort_unstable();
        let stored: Vec<&str> = contents.objects.iter().map(|(key, _)| *key).collect();
        assert_eq!(listed, stored);
        let ask = message::Lookup { keys: keys(&stored) };
        let reply::Body::Lookup(found) = reader.call(request::Body::Lookup(ask)) else { panic!("no lookup") };
        for ((key, size), object) in contents.objects.iter().zip(&found.objects) {
            assert_eq!((object.size, u64::from(object.crc32c)), (*size, *size), "{key}");
            assert_eq!(object.replicas.len(), 1 + usize::from(*key == "twice"), "{key}");
        }
        assert_eq!(metric(&master, "mooncake_hard_pinned_objects"), 1.0);
        assert_eq!(metric(&master, "master_soft_pin_key_count"), 1.0);
        assert!(metric(&master, "mooncake_pinned_bytes") >= 2000.0, "of the two views");
        assert_eq!(metric(&master, "master_total_capacity_bytes"), contents.capacity as f64);

        // A mutation whose reply was lost is not done again.
        let (sequence, rid) = (written.number("retried-sequence"), written.number("retried-rid"));
        let reply::Body::PutEnd(said) = writer.call_as(sequence, put_end(&[rid])) else { panic!("no end") };
        assert_eq!(said.outcomes, [COMMITTED]);

        // And it goes on: its regions are given out again once the owners obey, under rids above all that were.
        for owner in [&mut owner, &mut other] {
            owner.take_epoch(epoch);
            beat(owner, message::Beat::default());
        }
        writer.sequence = sequence + u64::from(epoch) * 100;
        let rids = start(&mut writer, &format!("new-{epoch}"), 500, plain(), "");
        assert!(pins.iter().chain([&rid]).all(|former| rids[0] > *former));
        assert_eq!(end(&mut writer, &rids, 500), COMMITTED);
        master.stop();
        lose_witness(&scratch);
    }
}

// ------------------------------------------------------------------ writing it

/// What is in the snapshot, and what changes behind it, with each kind of record that an operation leaves.
#[test]
#[ignore = "writes logs/this-version.txt"]
#[expect(clippy::too_many_lines, reason = "each kind of record once")]
fn a_log_of_this_version_is_written() {
    let scratch = Scratch::new();
    let master = Running::start(scratch.settings());
    let opened = |master: &Running| Client::open_as(master.rpc, process(), None);
    let (mut owner, mut writer, mut reader) = (opened(&master), opened(&master), opened(&master));
    mount(&mut owner, WHOLE, MIB);
    let mut other = opened(&master);
    mount(&mut other, SHORT, MIB / 2);
    mount(&mut owner, GONE, MIB);
    let gone = message::Unmount { uuid: GONE.to_vec().into(), ..message::Unmount::default() };
    owner.mutate(request::Body::Unmount(gone));
    let at_owner = || message::PutConfig { preferred_segments: vec![format!("segment:{}", WHOLE[0])], ..plain() };
    let mut leaver = opened(&master);
    leaver.mutate(request::Body::CloseSession(message::CloseSession {}));

    put(&mut writer, "plain", 1000, plain(), "");
    put(&mut writer, "replaced", 1100, plain(), "");
    put(&mut writer, "hard", 1200, message::PutConfig { hard_pin: true, ..plain() }, "");
    put(&mut writer, "soft", 1300, message::PutConfig { soft_pin_ttl_ms: SOFT_MS, ..plain() }, "");
    put(&mut writer, "grouped", 400, plain(), "group");
    put(&mut writer, "twice", 900, message::PutConfig { replica_num: 2, ..plain() }, "");
    put(&mut writer, "removed-early", 800, plain(), "");
    put(&mut writer, "removed-late", 800, plain(), "");
    remove(&mut writer, "removed-early");
    let plain_pin = pin(&mut reader, "plain");
    put(&mut writer, "viewed", 1400, plain(), "");
    let viewed_pin = pin(&mut reader, "viewed");
    remove(&mut writer, "viewed");
    put(&mut writer, "looked-at", 300, plain(), "");
    let ended_pin = pin(&mut reader, "looked-at");
    remove(&mut writer, "looked-at");
    let early = start(&mut writer, "aborted-early", 600, at_owner(), "");
    abort(&mut writer, &early, false);
    let unfinished = start(&mut writer, "late", 700, plain(), "");
    start(&mut writer, "never-ended", 200, plain(), "");
    beat(&mut owner, message::Beat::default());
    let [owner_of, other_of, writer_of, reader_of] =
        [&owner, &other, &writer, &reader].map(|client| (client.session, client.secret));
    master.stop();

    // The first record of this run is more than it waits for: a snapshot of all that.
    let master = Running::start(Settings { compact_min: 1, ..scratch.settings() });
    let back = |master: &Running, of, uuids: &[[u8; 16]], pins: &[u64], sequence| {
        let uuids = uuids.iter().map(|uuid| uuid.to_vec()).collect();
        let (mut client, _) = Client::returned(master.rpc, process(), of, uuids, pins.to_vec());
        client.sequence = sequence;
        client
    };
    let pins = [plain_pin, viewed_pin, ended_pin];
    let owner_again = back(&master, owner_of, &[WHOLE], &[], owner.sequence);
    let other_again = back(&master, other_of, &[SHORT], &[], other.sequence);
    let mut reader_again = back(&master, reader_of, &[], &pins, reader.sequence);
    let looked = pin(&mut reader_again, "plain");
    assert_eq!(looked, plain_pin);
    support::eventually("a snapshot", || scratch.snapshots().len() == 1 && scratch.log_files().len() == 1);
    master.stop();

    let master = Running::start(scratch.settings());
    let mut owner = back(&master, owner_of, &[WHOLE], &[], owner_again.sequence);
    let mut other = back(&master, other_of, &[SHORT], &[], other_again.sequence);
    let mut reader = back(&master, reader_of, &[], &[pins[0], pins[0], pins[1], pins[2]], reader_again.sequence);
    let mut writer = back(&master, writer_of, &[], &[], writer.sequence);
    let populated = message::Populated { uuid: SHORT.to_vec().into(), bytes: MIB * 3 / 4, failed: true };
    beat(&mut other, message::Beat { populated: vec![populated], ..message::Beat::default() });
    reader.sequence += 1;
    let unpin = message::Beat { unpin: vec![pins[0], pins[2]], unpin_sequence: reader.sequence, ..Default::default() };
    beat(&mut reader, unpin);
    assert_eq!(end(&mut writer, &unfinished, 700), COMMITTED);
    put(&mut writer, "replaced", 3000, message::PutConfig { replace: true, ..plain() }, "");
    put(&mut writer, "grouped-late", 450, plain(), "group");
    remove(&mut writer, "removed-late");
    abort(&mut writer, &early, true);
    let late = start(&mut writer, "aborted-late", 600, at_owner(), "");
    abort(&mut writer, &late, true);
    for rid in [early[0], late[0]] {
        let uuid = pushed(&mut owner, |body| match body {
            anchor_down::Body::Fence(fence) if fence.rid == rid => Some(fence.uuid),
            _ => None,
        });
        owner.up(anchor_up::Body::FenceDone(message::FenceDone { uuid, rids: vec![rid] }));
    }
    beat(&mut owner, message::Beat::default());
    let last = start(&mut writer, "retried", 100, plain(), "");
    assert_eq!(end(&mut writer, &last, 1), COMMITTED);
    let retried = writer.sequence;
    remove(&mut writer, "retried");
    master.stop();

    // Nothing vouches for it any more: a second epoch begins.
    lose_witness(&scratch);
    let master = Running::start(scratch.settings());
    let mut owner = back(&master, owner_of, &[WHOLE], &[], owner.sequence);
    let mut other = back(&master, other_of, &[SHORT], &[], other.sequence);
    let mut reader = back(&master, reader_of, &[], &pins[..2], reader.sequence);
    let mut writer = back(&master, writer_of, &[], &[], writer.sequence);
    for owner in [&mut owner, &mut other] {
        owner.take_epoch(2);
        beat(owner, message::Beat::default());
    }
    put(&mut writer, "of-the-second-epoch", 1500, plain(), "");
    let late_pin = pin(&mut reader, "of-the-second-epoch");
    put(&mut writer, "halved", 850, message::PutConfig { replica_num: 2, ..plain() }, "");
    let cleared = message::ClearReplicas { keys: keys(&["halved"]), segment: format!("segment:{}", SHORT[0]) };
    let reply::Body::Remove(said) = writer.mutate(request::Body::ClearReplicas(cleared)) else { panic!("not cleared") };
    assert_eq!(said.outcomes, [message::remove_reply::Outcome::Removed as i32]);
    mount(&mut other, BRIEF, MIB);
    mount(&mut other, LEAVES, MIB / 2);
    let populated = message::Populated { uuid: LEAVES.to_vec().into(), bytes: MIB, failed: false };
    beat(&mut other, message::Beat { populated: vec![populated], ..message::Beat::default() });
    let preferred = message::PutConfig { preferred_segments: vec![format!("segment:{}", LEAVES[0])], ..plain() };
    put(&mut writer, "leaving", 650, preferred, "");
    for (uuid, grace_ms) in [(BRIEF, 0), (LEAVES, GRACE_MS)] {
        other.mutate(request::Body::Unmount(message::Unmount { uuid: uuid.to_vec().into(), grace_ms }));
    }
    opened(&master).mutate(request::Body::CloseSession(message::CloseSession {}));
    master.stop();

    let mut written = Written::default();
    let numbers = [
        ("pin-plain", pins[0]),
        ("pin-removed", pins[1]),
        ("pin-late", late_pin),
        ("retried-rid", last[0]),
        ("retried-sequence", retried),
    ];
    written.numbers.extend(numbers.map(|(name, number)| (name.to_owned(), number)));
    for (name, (session, secret)) in
        [("owner", owner_of), ("other", other_of), ("writer", writer_of), ("reader", reader_of)]
    {
        written.numbers.extend([(format!("{name}-session"), session), (format!("{name}-secret"), secret)]);
    }
    for path in scratch.snapshots().iter().chain(&scratch.log_files()) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        written.files.push((name, fs::read(path).unwrap()));
    }
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the crate is");
    fs::write(format!("{folder}/tests/logs/this-version.txt"), written.text()).unwrap();
}
