//! Copies of what the tier has to memory, as the master asks for them: a thread beside the one that writes the tier.
//!
//! It writes as the writer of a put does: over a link of the session by which the copy's placement is reserved.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mooncake_ids::{Rid, TierUuid};
use mooncake_memory::{Source, copy_and_sum};
use mooncake_os::Deadline;
use mooncake_segment::{Link, Path};
use mooncake_tier::address::{Address, BLOCK};
use mooncake_tier::io_counts::ReadFor;
use mooncake_tier::medium::folder::Folder;
use mooncake_tier::reader::{Miss, Reader, RecordPlace, Want};
use mooncake_tier::slots::Slots;
use mooncake_wire::message::{BadReplica, TierPromote, TierPromoted, anchor_up};

use super::records::FolderRecords;
use super::{PromoteOrder, Surroundings, report};

/// Objects that are read together.
const TOGETHER: usize = 32;

/// Buffers for what is read.
const SLOTS: usize = 8;

/// A disk that has given nothing of objects that are read together for so long is waited for no more.
const STALL_LIMIT: Duration = Duration::from_secs(3);

/// Time for objects that are read together, and for the copying.
const LIMIT: Duration = Duration::from_secs(9);

/// An order is carried out no more after that: a reservation lasts 30 s.
const OLD: Duration = Duration::from_secs(20);

/// An order, the folder that has the record, and when it came.
struct Asked {
    order: PromoteOrder,
    records: Arc<FolderRecords>,
    at: Instant,
}

pub(super) struct Promoter {
    asked: Option<Sender<Asked>>,
    thread: Option<JoinHandle<()>>,
    /// What waits comes to nothing.
    stops: Arc<AtomicBool>,
}

impl Promoter {
    /// Begins with the first order.
    pub fn new() -> Promoter {
        Promoter { asked: None, thread: None, stops: Arc::default() }
    }

    pub fn ask(&mut self, order: PromoteOrder, records: Arc<FolderRecords>, surroundings: &Surroundings) {
        if self.asked.is_none() {
            let (sender, receiver) = channel();
            let (of_thread, stops) = (surroundings.clone(), self.stops.clone());
            let builder = std::thread::Builder::new().name("mooncake-promote".into());
            match mooncake_os::thread::start(builder, move || run(&receiver, &stops, &of_thread)) {
                Ok(thread) => (self.asked, self.thread) = (Some(sender), Some(thread)),
                Err(error) => {
                    tracing::warn!(%error, "no thread that copies objects to memory; they stay on their tier");
                    return answer(surroundings, &[], &[copy_of(&order.promote)]);
                }
            }
        }
        if let Some(asked) = &self.asked {
            // Its thread only ends early if one of its invariants is broken; that has been reported.
            let _ = asked.send(Asked { order, records, at: Instant::now() });
        }
    }

    /// Waits for what is being copied, and for no more.
    pub fn close(self) {
        self.stops.store(true, Ordering::Release);
        drop(self.asked);
        if let Some(thread) = self.thread {
            let _ = thread.join();
        }
    }
}

fn run(asked: &Receiver<Asked>, stops: &AtomicBool, surroundings: &Surroundings) {
    // One set of buffers: those that a disk keeps are missed by what is read next, which comes to nothing at once.
    let slots = Slots::new(SLOTS);
    let mut reader: Option<(TierUuid, Reader<Folder>)> = None;
    let mut waiting: VecDeque<Asked> = VecDeque::new();
    loop {
        waiting.extend(asked.try_iter());
        if waiting.is_empty() {
            match asked.recv() {
                Ok(order) => waiting.push_back(order),
                Err(_) => return,
            }
            continue;
        }
        if stops.load(Ordering::Acquire) {
            let bad: Vec<u64> = waiting.drain(..).map(|asked| copy_of(&asked.order.promote)).collect();
            answer(surroundings, &[], &bad);
            continue;
        }
        // Their reservations are about to end by themselves.
        waiting.retain(|asked| asked.at.elapsed() < OLD);
        let Some(records) = waiting.front().map(|asked| asked.records.clone()) else { continue };
        let of_folder = |asked: &&Asked| Arc::ptr_eq(&asked.records, &records);
        let together = waiting.iter().take(TOGETHER).take_while(of_folder).count();
        let orders: Vec<PromoteOrder> = waiting.drain(..together).map(|asked| asked.order).collect();
        let kept = reader.take().filter(|(uuid, _)| *uuid == records.uuid());
        let made = kept.map_or_else(|| records.new_reader(slots.clone(), ReadFor::Promotion), |(_, reader)| Ok(reader));
        match made {
            Ok(made) => reader = copy(orders, &records, made, surroundings).map(|reader| (records.uuid(), reader)),
            Err(error) => {
                tracing::warn!(%error, "the tier cannot be read");
                let bad: Vec<u64> = orders.iter().map(|order| copy_of(&order.promote)).collect();
                answer(surroundings, &[], &bad);
            }
        }
    }
}

/// One object on its way.
struct Copy {
    order: PromoteOrder,
    place: RecordPlace,
    link: Arc<Link>,
    /// Where in the segment it begins.
    offset: u64,
    /// Bytes that go over a connection all at once.
    gathered: Vec<u8>,
    /// Why nothing more is written; and nothing that was written is on its way any more.
    failed: Option<String>,
    settled: bool,
}

impl Copy {
    /// None if the order cannot be carried out: its placement is not this session's, or leads nowhere.
    fn begin(
        order: PromoteOrder,
        uuid: TierUuid,
        surroundings: &Surroundings,
        deadline: &Deadline<'_>,
    ) -> Option<Copy> {
        let TierPromote { tier, key, from, to, .. } = &order.promote;
        let ([from_extent], [to_extent]) = (&from.as_ref()?.extents[..], &to.as_ref()?.extents[..]) else {
            return None;
        };
        if tier[..] != uuid.0 || from_extent.length != to_extent.length || !from_extent.offset.is_multiple_of(BLOCK) {
            return None;
        }
        let place = RecordPlace {
            tier: uuid,
            address: Address(from_extent.offset / BLOCK),
            rid: Rid(from.as_ref()?.rid),
            size: from_extent.length,
            key_bytes: key.len(),
        };
        let (directory, links) = (surroundings.segments.directory(), surroundings.segments.links());
        directory.meet(&surroundings.control, order.numbering, std::iter::once(to.as_ref()?)).ok()?;
        let address = directory.find(order.numbering, to_extent.segment)?;
        let link = links.link_to_write(order.session, &address, deadline).ok()?;
        let gathered = if link.path() == Path::Tcp { vec![0; usize::try_from(place.size).ok()?] } else { Vec::new() };
        let offset = to_extent.offset;
        Some(Copy { order, place, link, offset, gathered, failed: None, settled: true })
    }

    fn rid(&self) -> Rid {
        Rid(copy_of(&self.order.promote))
    }

    /// Takes bytes of the record; their CRC-32C.
    fn take(&mut self, at: u64, bytes: &[u8], deadline: &Deadline<'_>) -> u32 {
        if !self.gathered.is_empty() {
            return copy_and_sum(bytes, &mut self.gathered[at as usize..][..bytes.len()]);
        }
        if self.failed.is_none() {
            let (rid, offset, whole) = (self.rid(), self.offset + at, self.place.size);
            match self.link.write_part(rid, offset, &[Source::new(bytes)], whole, deadline) {
                Ok(sum) => return sum,
                Err(failed) => (self.failed, self.settled) = (Some(failed.error.to_string()), failed.settled),
            }
        }
        // What is read is good, though it goes nowhere.
        mooncake_memory::crc32c(bytes)
    }

    /// A record that cannot be read is looked at once more, as where a reader finds it.
    fn report(&self, miss: &Miss, surroundings: &Surroundings) {
        let (key, reason) = (self.order.promote.key.clone(), miss.to_string());
        report(&surroundings.control, BadReplica { key, rid: self.place.rid.0, reason, more: Vec::new() });
    }

    fn finish(&mut self, deadline: &Deadline<'_>) {
        if self.gathered.is_empty() || self.failed.is_some() {
            return;
        }
        if let Err(failed) = self.link.write(self.rid(), self.offset, &[Source::new(&self.gathered)], deadline) {
            (self.failed, self.settled) = (Some(failed.error.to_string()), failed.settled);
        }
    }
}

/// The reader, if the disk owes it nothing.
fn copy(
    orders: Vec<PromoteOrder>,
    records: &FolderRecords,
    mut reader: Reader<Folder>,
    surroundings: &Surroundings,
) -> Option<Reader<Folder>> {
    let until = Instant::now() + LIMIT;
    let deadline = Deadline::at(until);
    let (mut good, mut bad): (Vec<u64>, Vec<u64>) = Default::default();
    let mut copies = Vec::with_capacity(orders.len());
    for order in orders {
        let rid = copy_of(&order.promote);
        match Copy::begin(order, records.uuid(), surroundings, &deadline) {
            Some(copy) => copies.push(copy),
            None => bad.push(rid),
        }
    }
    let moved = Cell::new(Instant::now());
    let mut sinks: Vec<_> = copies
        .iter_mut()
        .map(|copy| {
            let (place, crc) = (copy.place, Some(copy.order.promote.crc32c));
            let (deadline, moved) = (&deadline, &moved);
            let sink = move |at: u64, bytes: &[u8]| {
                let sum = copy.take(at, bytes, deadline);
                moved.set(Instant::now());
                sum
            };
            (place, crc, sink)
        })
        .collect();
    let wants =
        sinks.iter_mut().map(|(place, crc, sink)| Want { place: *place, from: 0, len: place.size, crc: *crc, sink });
    let time_left = || until.min(moved.get() + STALL_LIMIT).saturating_duration_since(Instant::now());
    let results = reader.read(&mut wants.collect::<Vec<_>>(), time_left);
    drop(sinks);
    let mut is_owed = false;
    for (mut copy, read) in copies.into_iter().zip(results) {
        match read {
            Ok(()) => copy.finish(&deadline),
            Err(miss) => {
                is_owed |= matches!(miss, Miss::Late | Miss::NoSlot);
                if matches!(miss, Miss::Wrong | Miss::Failed(_)) {
                    records.has_failed(copy.place.rid);
                    copy.report(&miss, surroundings);
                }
                copy.failed.get_or_insert(miss.to_string());
            }
        }
        let rid = copy.rid();
        match &copy.failed {
            None => good.push(rid.0),
            Some(reason) => {
                tracing::debug!(rid = format_args!("{:#x}", rid.0), reason, "an object stays on its tier alone");
                // What may still land is fenced when its reservation ends by itself.
                if copy.settled {
                    bad.push(rid.0);
                }
            }
        }
    }
    answer(surroundings, &good, &bad);
    (!is_owed).then_some(reader)
}

fn copy_of(promote: &TierPromote) -> u64 {
    promote.to.as_ref().map_or(0, |replica| replica.rid)
}

fn answer(surroundings: &Surroundings, good: &[u64], bad: &[u64]) {
    let promoted = TierPromoted { good: good.to_vec(), bad: bad.to_vec() };
    surroundings.control.tell(anchor_up::Body::TierPromoted(promoted));
}
