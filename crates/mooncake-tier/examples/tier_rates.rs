//! How fast a tier writes and reads, beside the same operations without records on the same medium.
//!
//!     cargo run --release -p mooncake-tier --example tier_rates -- FOLDER [GIB [ring|threads]]

use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_ids::{Rid, TierUuid};
use mooncake_memory::copy_and_sum;
use mooncake_tier::address::{Address, Geometry};
use mooncake_tier::appender::{Appender, Event, Order, Value};
use mooncake_tier::medium::folder::{Engine, Folder};
use mooncake_tier::medium::{Files, Medium, Operation, Queue};
use mooncake_tier::reader::{Reader, RecordPlace, Want};
use mooncake_tier::slots::{SLOT_BYTES, Slots};
use mooncake_tier::tier::{NewTier, Owner, Tier};

const MIB: usize = 1 << 20;
const TIER: TierUuid = TierUuid([1; 16]);
const ROUNDS: usize = 5;

struct Object(Arc<Vec<u8>>, u64);

impl Value for Object {
    fn size(&self) -> u64 {
        self.1
    }

    fn copy(&self, at: u64, into: &mut [u8]) -> bool {
        into.copy_from_slice(&self.0[at as usize..at as usize + into.len()]);
        true
    }
}

/// Where an object was written, and as what.
type Written = (Address, Rid);

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("a folder on the disk to be measured, which is not there yet");
    let gib: u64 = arguments.next().map_or(2, |gib| gib.parse().expect("GiB"));
    let bytes = gib << 30;
    let folder = match arguments.next().as_deref() {
        Some("threads") => Folder::with_engine(&path, Engine::Threads),
        Some("ring") => Folder::with_engine(&path, Engine::Ring),
        _ => Folder::new(&path, None),
    };
    let folder = folder.expect("a folder");
    println!("{:?}", folder.engine());
    let geometry = Geometry::of_capacity(8 * bytes);
    let mut ratios: [Vec<f64>; 3] = Default::default();
    for round in 0..ROUNDS {
        let part = bytes / ROUNDS as u64;
        let floor = plain_write(&folder, part);
        let (tier, large) = fill(&folder, geometry, 8 * bytes, (round, part), MIB as u64);
        let small = fill(&folder, geometry, 8 * bytes, (round + 100, part / 16), 64 << 10).1;
        ratios[0].push(tier / floor);
        let mut text = format!("write 1 MiB: floor {floor:.0} MB/s, tier {tier:.0}");
        for (at, (written, size, batch)) in [(&large, MIB, 32), (&small, 64 << 10, 256)].into_iter().enumerate() {
            let floor = plain_read(&folder, geometry, written, size);
            let tier = read(&folder, geometry, written, size, batch);
            ratios[at + 1].push(tier / floor);
            text += &format!("; read {batch} x {} KiB: floor {floor:.0}, tier {tier:.0}", size >> 10);
        }
        println!("{text}");
    }
    for (what, ratios) in ["write 1 MiB", "read 32 x 1 MiB", "read 256 x 64 KiB"].iter().zip(&mut ratios) {
        ratios.sort_by(f64::total_cmp);
        println!("{what}: {:.2} of the floor (median of {ROUNDS})", ratios[ROUNDS / 2]);
    }
    std::fs::remove_dir_all(path).expect("it can be removed");
}

fn rate(bytes: u64, began: Instant) -> f64 {
    bytes as f64 / 1e6 / began.elapsed().as_secs_f64()
}

/// Writes of a megabyte, eight at a time, to a preallocated file, and a sync.
fn plain_write(folder: &Folder, bytes: u64) -> f64 {
    let slots = Slots::new(8);
    let file = folder.create("plain", bytes.next_multiple_of(MIB as u64)).expect("a file");
    let mut queue = folder.queue(8).expect("a queue");
    let began = Instant::now();
    let (mut next, mut ended) = (0, 0);
    let count = bytes / MIB as u64;
    while ended < count {
        while next < count && queue.has_room() {
            let slot = slots.take().expect("as many as operations");
            let offset = next * MIB as u64;
            queue.submit(next, Operation::Write { file: file.clone(), offset, slot, len: MIB });
            next += 1;
        }
        queue.next(Duration::from_secs(30)).expect("the disk answers").result.expect("a write");
        ended += 1;
    }
    queue.submit(next, Operation::Sync { file });
    queue.next(Duration::from_secs(30)).expect("the disk answers").result.expect("a sync");
    let rate = rate(bytes, began);
    folder.remove("plain").expect("it is there");
    rate
}

/// Orders of objects, until all are written and synced.
fn fill(
    folder: &Folder,
    geometry: Geometry,
    capacity: u64,
    (round, bytes): (usize, u64),
    size: u64,
) -> (f64, Vec<Written>) {
    let (slots, owner) = (Slots::new(9), Owner { boot_id: vec![1], process: vec![2] });
    let new = NewTier { tier: TIER, secret: [0; 16], cluster_id: String::new(), capacity, geometry };
    let tier = match Tier::open(folder.clone(), owner.clone(), &slots) {
        Ok((tier, _)) => tier,
        Err(_) => Tier::create(folder.clone(), new, owner, &slots).expect("a tier"),
    };
    let (superblock, files, file) =
        ((tier.superblock.clone(), tier.sequence), tier.files.clone(), tier.super_file.clone());
    let mut appender = Appender::new(folder.clone(), slots, superblock, file, capacity, files).expect("an appender");
    let object = Arc::new((0..size).map(|at| ((at * 31) >> 3) as u8).collect::<Vec<u8>>());
    let (began, count) = (Instant::now(), bytes / size);
    let (mut next, mut written) = (0, Vec::new());
    while (written.len() as u64) < count || !appender.is_idle() {
        while next < count && next - (written.len() as u64) < 64.max(32 * MIB as u64 / size) {
            let rid = Rid::new(round as u16 + 1, next + 1);
            let value = Box::new(Object(object.clone(), size));
            appender.append(Order {
                rid,
                object_id: rid,
                key: rid.0.to_le_bytes().to_vec(),
                crc32c: None,
                value,
                is_kept: false,
            });
            next += 1;
        }
        if next == count {
            appender.sync_at_once();
        }
        for event in appender.poll(began.elapsed(), Duration::from_millis(5)) {
            match event {
                Event::Written { rid, address } => written.push((address, rid)),
                Event::Lost { why, .. } => panic!("{why:?}"),
                Event::Sealed(_) | Event::Suspect(_) | Event::Short => {}
            }
        }
    }
    drop(tier.into_lock());
    (rate(count * size, began), written)
}

/// Reads of the same blocks as [`read`]'s, 32 at a time.
fn plain_read(folder: &Folder, geometry: Geometry, written: &[Written], size: usize) -> f64 {
    let slots = Slots::new(32);
    let mut queue = folder.queue(32).expect("a queue");
    let began = Instant::now();
    let (mut next, mut ended) = (0, 0);
    while ended < written.len() {
        while next < written.len() && queue.has_room() {
            let address = written[next].0;
            let file = folder.open(&geometry.file_of(address).name(), false).expect("its file");
            let slot = slots.take().expect("as many as operations");
            let len = (size + 4096).min(SLOT_BYTES);
            let offset = geometry.offset_of(address);
            queue.submit(next as u64, Operation::Read { file, offset, slot, len });
            next += 1;
        }
        queue.next(Duration::from_secs(30)).expect("the disk answers").result.expect("a read");
        ended += 1;
    }
    rate((written.len() * size) as u64, began)
}

/// Batches of so many objects, copied out.
fn read(folder: &Folder, geometry: Geometry, written: &[Written], size: usize, batch: usize) -> f64 {
    let mut reader = Reader::new(folder.clone(), geometry, Slots::new(32)).expect("a reader");
    let mut buffers = vec![vec![0_u8; size]; batch];
    let began = Instant::now();
    for part in written.chunks(batch) {
        let keys: Vec<[u8; 8]> = part.iter().map(|(_, rid)| rid.0.to_le_bytes()).collect();
        let mut sinks: Vec<_> = buffers
            .iter_mut()
            .map(|buffer| move |at: u64, bytes: &[u8]| copy_and_sum(bytes, &mut buffer[at as usize..][..bytes.len()]))
            .collect();
        let mut wants: Vec<Want<'_>> = part
            .iter()
            .zip(&keys)
            .zip(&mut sinks)
            .map(|(((address, rid), key), sink)| {
                let place =
                    RecordPlace { tier: TIER, address: *address, rid: *rid, size: size as u64, key_bytes: key.len() };
                Want { place, from: 0, len: size as u64, crc: None, sink }
            })
            .collect();
        let results = reader.read(&mut wants, || Duration::from_secs(30));
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }
    rate((written.len() * size) as u64, began)
}
