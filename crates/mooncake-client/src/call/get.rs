//! Gets: what a call reads, and how bytes and look-ups get on their way. What is tried when is decided in
//! [`crate::machine::get`].

use std::sync::Arc;

use mooncake_ids::Rid;
use mooncake_memory::{Destination, total_of_destinations};
use mooncake_segment::{LinkError, RecordAddress, RecordRead, SegmentAddress, Status, TransferError};
use mooncake_wire::message::{Lookup, Object, Replica, reply, request};
use mooncake_wire::pack_keys;

use crate::call::direct::{DirectObject, Tried};
use crate::call::fan_out::{fan_out, threads_for};
use crate::call::query::OWNER_AWAY;
use crate::error::{Cause, StoreError};
use crate::inner::Inner;
use crate::machine::get::{Doubt, Fetched, GetDriver, LostReplica, Unread, read_any_replica, read_batch};
use crate::machine::numbering::Numbering;
use crate::machine::ready;
use crate::machine::replica_reports::{self, ReplicaReport};
use crate::segments::direct_reads::DirectRead;
use crate::transfer_error::{is_no_staging, link_error, transfer_error};

/// One object of a batch get into the caller's memory.
#[derive(Debug)]
pub struct GetInto<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Where its bytes go: filled in order, together at least as large as the object.
    pub destinations: Vec<Destination<'a>>,
}

/// Memory that a get fills, made once the size of the object is known.
pub trait Receive {
    /// The memory, in order: together at least as large as the object.
    fn destinations(&mut self) -> Vec<Destination<'_>>;
}

impl Receive for Vec<u8> {
    fn destinations(&mut self) -> Vec<Destination<'_>> {
        vec![Destination::new(self)]
    }
}

/// Where bytes of an object from one on go.
pub(crate) struct Part<'p, 'a> {
    pub offset: u64,
    pub destinations: &'p mut [Destination<'a>],
}

impl GetDriver for Inner {
    type Numbering = Numbering;

    async fn lookup(&self, keys: &[&[u8]]) -> Result<(Vec<Object>, Numbering), StoreError> {
        const WHAT: &str = "a lookup";
        let control = &self.shared.control;
        let body = request::Body::Lookup(Lookup { keys: Some(pack_keys(keys)) });
        let reply = control.query(WHAT, body, control.lookup_timeout)?;
        match reply.body {
            reply::Body::Lookup(found) if found.objects.len() == keys.len() => {
                if found.away {
                    self.keep_miss(OWNER_AWAY.to_owned());
                }
                let replicas = found.objects.iter().flat_map(|object| &object.replicas);
                self.shared.directory.meet(control, reply.numbering, replicas)?;
                Ok((found.objects, reply.numbering))
            }
            _ => Err(control.confused(WHAT)),
        }
    }

    fn report_replica(&self, key: &[u8], rid: Rid, reason: String, confirmed: bool) {
        let control = &self.shared.control;
        replica_reports::add(control, ReplicaReport { key: key.to_vec(), rid, reason, confirmed });
    }

    /// This process first, then this host, then the others; memory before tiers.
    fn rank(&self, replica: &Replica, numbering: Numbering) -> u8 {
        let extent = replica.extents.first();
        let address = extent.and_then(|extent| self.shared.directory.find(numbering, extent.segment));
        let own = &self.shared.process;
        let behind = if address.as_ref().is_some_and(|address| address.is_tier()) { 4 } else { 0 };
        behind
            + match address {
                Some(address) if address.process.as_ref() == Some(own) => 0,
                Some(address) if address.boot_id == own.boot_id => 1,
                Some(_) => 2,
                None => 3,
            }
    }

    fn next_call(&self) -> usize {
        self.number_call() as usize
    }

    fn note_miss(&self, cause: String) {
        self.keep_miss(cause);
    }

    fn count_lost(&self, object: &Object, numbering: Numbering) {
        self.count_lost_on_tier(object, numbering);
    }
}

impl Inner {
    pub(crate) fn get_into(&self, items: &mut [GetInto<'_>]) -> Vec<Result<Option<u64>, StoreError>> {
        let keys: Vec<&[u8]> = items.iter().map(|item| item.key).collect();
        let on_device: u64 = items
            .iter()
            .filter(|item| item.destinations.iter().any(Destination::is_on_device))
            .map(|item| total_of_destinations(&item.destinations))
            .fold(0, u64::saturating_add);
        if threads_for(keys.len(), on_device) > 1 {
            return ready(read_batch(self, &keys, async |found, numbering, lost| {
                self.fetch_by_team(items, found, numbering, lost)
            }));
        }
        ready(read_batch(self, &keys, async |found, numbering, lost| {
            let mut tried = self.try_directly(items, found, numbering, lost);
            let each = found.iter().enumerate();
            each.map(|(nth, (index, object))| {
                let destinations = &mut items[*index].destinations;
                let tried = tried.get_mut(nth).and_then(Option::take);
                self.fetch((keys[*index], object), numbering, (destinations, tried), lost, &|| self.is_interrupted())
            })
            .collect()
        }))
    }

    /// What only a tier of this host has, all of it together.
    fn try_directly(
        &self,
        items: &mut [GetInto<'_>],
        found: &[(usize, &Object)],
        numbering: Numbering,
        lost: &[LostReplica],
    ) -> Tried {
        if !self.shared.directory.has_tiers() {
            return Tried::new();
        }
        let mut items: Vec<Option<&mut GetInto<'_>>> = items.iter_mut().map(Some).collect();
        let direct = found.iter().enumerate().filter_map(|(nth, (index, object))| {
            let item = items[*index].take_if(|item| {
                total_of_destinations(&item.destinations) >= object.size
                    && self.is_on_a_tier_alone(object, numbering, lost)
            })?;
            let destinations = trimmed(&mut item.destinations, object.size);
            Some(DirectObject { nth, key: item.key, object, destinations })
        });
        self.read_directly(direct.collect(), found.len(), numbering, &|| self.is_interrupted())
    }

    /// Objects into memory of devices, by several threads.
    fn fetch_by_team(
        &self,
        items: &mut [GetInto<'_>],
        found: &[(usize, &Object)],
        numbering: Numbering,
        lost: &mut Vec<LostReplica>,
    ) -> Vec<Fetched> {
        let mut items: Vec<Option<&mut GetInto<'_>>> = items.iter_mut().map(Some).collect();
        let reads: Vec<_> = found.iter().filter_map(|(index, object)| Some((items[*index].take()?, *object))).collect();
        let bytes = found.iter().fold(0_u64, |bytes, (_, object)| bytes.saturating_add(object.size));
        let before: &[LostReplica] = lost;
        let read = |(item, object): &mut (&mut GetInto<'_>, &Object), interrupted: &(dyn Fn() -> bool + Sync)| {
            let mut lost = before.to_vec();
            let destinations = (&mut item.destinations[..], None);
            let fetched = self.fetch((item.key, object), numbering, destinations, &mut lost, interrupted);
            (fetched, lost.split_off(before.len()))
        };
        let starved = |(fetched, _): &(Fetched, _)| matches!(fetched, Fetched::Failed(error) if is_no_staging(error));
        let threads = threads_for(reads.len(), bytes);
        // What was read before it was interrupted is no less read.
        let (outcomes, _) = fan_out(reads, threads, &|| self.is_interrupted(), starved, read);
        let (fetched, now_lost): (Vec<_>, Vec<_>) = outcomes.into_iter().unzip();
        lost.extend(now_lost.into_iter().flatten());
        fetched
    }

    /// What was read, and how many bytes that was.
    pub(crate) fn get_batch_with<B: Receive>(
        &self,
        keys: &[&[u8]],
        mut alloc: impl FnMut(usize, u64) -> Result<B, StoreError>,
    ) -> (Vec<Result<Option<B>, StoreError>>, u64) {
        let mut received: Vec<Option<B>> = keys.iter().map(|_| None).collect();
        let interrupted = &|| self.is_interrupted();
        let read = ready(read_batch(self, keys, async |found, numbering, lost| {
            let mut tried = self.try_received(keys, (found, lost), numbering, &mut received, &mut alloc);
            let each = found.iter().enumerate();
            each.map(|(nth, (index, object))| {
                let mut buffer = match received[*index].take().map_or_else(|| alloc(*index, object.size), Ok) {
                    Ok(buffer) => buffer,
                    Err(error) => return Fetched::Failed(error),
                };
                let tried = tried.get_mut(nth).and_then(Option::take);
                let destinations = (&mut buffer.destinations()[..], tried);
                let fetched = self.fetch((keys[*index], object), numbering, destinations, lost, interrupted);
                if matches!(fetched, Fetched::Done(_)) {
                    received[*index] = Some(buffer);
                }
                fetched
            })
            .collect()
        }));
        let bytes = bytes_of(&read);
        let results = read.into_iter().zip(received).map(|(read, buffer)| read.map(|size| size.and(buffer))).collect();
        (results, bytes)
    }

    /// What only a tier of this host has, all of it together. Memory for it is made first; where there is none, nothing
    /// is tried.
    fn try_received<B: Receive>(
        &self,
        keys: &[&[u8]],
        (found, lost): (&[(usize, &Object)], &[LostReplica]),
        numbering: Numbering,
        received: &mut [Option<B>],
        alloc: &mut impl FnMut(usize, u64) -> Result<B, StoreError>,
    ) -> Tried {
        if !self.shared.directory.has_tiers() {
            return Tried::new();
        }
        for (index, object) in found {
            if self.is_on_a_tier_alone(object, numbering, lost) {
                received[*index] = alloc(*index, object.size).ok();
            }
        }
        let mut buffers: Vec<Option<&mut B>> = received.iter_mut().map(Option::as_mut).collect();
        let direct = found.iter().enumerate().filter_map(|(nth, (index, object))| {
            let destinations = buffers[*index].take()?.destinations();
            let is_large_enough = total_of_destinations(&destinations) >= object.size;
            let destinations = is_large_enough.then(|| first_of(destinations, object.size))?;
            Some(DirectObject { nth, key: keys[*index], object, destinations })
        });
        self.read_directly(direct.collect(), found.len(), numbering, &|| self.is_interrupted())
    }

    /// Reads what is there, each by `attempt`.
    pub(crate) fn read_each(
        &self,
        keys: &[&[u8]],
        mut attempt: impl FnMut(usize, &Object, Numbering, &mut Vec<LostReplica>) -> Fetched,
    ) -> Vec<Result<Option<u64>, StoreError>> {
        ready(read_batch(self, keys, async |found, numbering, lost| {
            found.iter().map(|(index, object)| attempt(*index, object, numbering, lost)).collect()
        }))
    }

    /// Reads one object from one of its replicas. Of one that was tried already, as its only replica lies on a tier, it
    /// is told what became of that.
    fn fetch(
        &self,
        (key, object): (&[u8], &Object),
        numbering: Numbering,
        (destinations, mut tried): (&mut [Destination<'_>], Option<Result<(), TransferError>>),
        lost: &mut Vec<LostReplica>,
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Fetched {
        let buffers = total_of_destinations(destinations);
        if buffers < object.size {
            return Fetched::Failed(Cause::BufferTooSmall { object: object.size, buffers }.into());
        }
        ready(read_any_replica(self, key, object, numbering, lost, async |replica| {
            if let Some(ended) = tried.take() {
                return ended.map_err(unread);
            }
            let part = Part { offset: 0, destinations: &mut trimmed(destinations, object.size) };
            self.read_replica((key, object), replica, numbering, part, interrupted)
        }))
    }

    /// Reads into all destinations from a byte of the object on. The whole of it is verified by its checksum.
    pub(crate) fn read_replica(
        &self,
        object: (&[u8], &Object),
        replica: &Replica,
        numbering: Numbering,
        part: Part<'_, '_>,
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), Unread> {
        let segment = replica.extents.first().map(|extent| extent.segment);
        let address = segment.and_then(|segment| self.shared.directory.find(numbering, segment));
        let Some(address) = address.as_ref() else {
            return self.read_replica_at(object, replica, None, part, interrupted);
        };
        let Part { offset, destinations } = part;
        let first = self.read_replica_at(object, replica, Some(address), Part { offset, destinations }, interrupted);
        let Err(Unread { doubt: Doubt::None, .. }) = first else { return first };
        // Its owner may have been started again (docs/safety.md, rules 26 and T9).
        let (directory, control) = (&self.shared.directory, &self.shared.control);
        let elsewhere = match address.is_tier() {
            true => directory.renew(control, numbering, replica, address),
            false => directory.moved(control, address),
        };
        match elsewhere {
            Some(other) => {
                self.read_replica_at(object, replica, Some(&other), Part { offset, destinations }, interrupted)
            }
            None => first,
        }
    }

    /// [`Inner::read_replica`] of a replica whose segment was met there, if it was.
    pub(crate) fn read_replica_at(
        &self,
        (key, object): (&[u8], &Object),
        replica: &Replica,
        address: Option<&Arc<SegmentAddress>>,
        Part { offset, destinations }: Part<'_, '_>,
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), Unread> {
        let no_doubt = |error: StoreError| Unread { error, doubt: Doubt::None, passing: false };
        let [extent] = &replica.extents[..] else { return Err(no_doubt(self.shared.control.confused("a lookup"))) };
        let Some(address) = address else {
            let gone = Cause::Transfer(format!("segment {} has left the pool", extent.segment));
            return Err(no_doubt(gone.into()));
        };
        let deadline = self.transfer_deadline(object.size, interrupted);
        let whole = offset == 0 && total_of_destinations(destinations) == object.size;
        let crc = (self.settings.verify && whole).then_some(object.crc32c);
        if address.is_tier() {
            let (rid, key_bytes) = (Rid(replica.rid), key.len() as u32);
            let record = RecordAddress { rid, offset: extent.offset, size: object.size, key_bytes };
            let mut direct = [DirectRead { record, from: offset, destinations: &mut *destinations, crc }];
            let (file_system, direct_reads) = (self.shared.directory.file_system(address), self.shared.links.direct());
            if let Some(ended) = direct_reads.read(address, file_system, &mut direct, &deadline).pop().flatten() {
                if ended.is_ok() {
                    self.count_direct(total_of_destinations(destinations));
                }
                return ended.map_err(unread);
            }
            let records = self.shared.links.records();
            let read = RecordRead { record, from: offset, pieces: destinations, crc };
            return records.read(address, read, &deadline).map_err(unread);
        }
        let unreached = |error: LinkError| Unread { passing: error.is_passing(), ..no_doubt(link_error(&error)) };
        let link = self.shared.links.link(address, &deadline).map_err(unreached)?;
        link.read(Rid(replica.rid), extent.offset + offset, destinations, crc, &deadline).map_err(unread)
    }
}

/// What a failed read is to its caller.
pub(crate) fn unread(error: TransferError) -> Unread {
    Unread { doubt: doubt_of(&error), passing: error.is_passing(), error: transfer_error(error) }
}

/// What a failed read says of the replica itself.
fn doubt_of(error: &TransferError) -> Doubt {
    match error {
        TransferError::Checksum { .. } => Doubt::Checksum,
        // A record that its owner cannot read may be one that no one ever will: the owner looks once more.
        TransferError::Refused { status: Status::Failed, .. } => Doubt::Stale,
        error if error.is_stale() => Doubt::Stale,
        _ => Doubt::None,
    }
}

/// Bytes of what was read.
pub(crate) fn bytes_of(read: &[Result<Option<u64>, StoreError>]) -> u64 {
    read.iter().filter_map(|outcome| outcome.as_ref().ok().copied().flatten()).sum()
}

/// Exactly as much of the destinations as the object needs.
fn trimmed<'a>(destinations: &'a mut [Destination<'_>], size: u64) -> Vec<Destination<'a>> {
    first_of(destinations.iter_mut().map(Destination::reborrow), size)
}

/// The first `size` bytes of the destinations.
fn first_of<'a>(destinations: impl IntoIterator<Item = Destination<'a>>, size: u64) -> Vec<Destination<'a>> {
    let mut left = size;
    let mut first = Vec::new();
    for destination in destinations {
        let part = left.min(destination.len() as u64) as usize;
        if part > 0 {
            first.push(destination.split_at(part).0);
            left -= part as u64;
        }
    }
    first
}
