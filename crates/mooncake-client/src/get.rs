//! Gets: look up, copy from the best replica, check; what is stale or cannot
//! be read is looked up once more, then it is a miss.

use std::collections::HashMap;

use mooncake_memory::{Target, total_of_targets};
use mooncake_transfer::TransferError;
use mooncake_wire::message::{Lookup, Object, Replica, reply, request};
use mooncake_wire::pack_keys;

use crate::directory::Numbering;
use crate::error::{Cause, StoreError};
use crate::machine::suspects::Suspect;
use crate::put::{is_callers, is_no_staging, link_error, transfer_error};
use crate::rounds::rounds;
use crate::store::{Inner, check_key};
use crate::suspects;
use crate::team::{share, threads_for};

/// Keys looked up with one request.
const ROUND_KEYS: usize = 32_768;

/// One object of a batch get into the caller's memory.
#[derive(Debug)]
pub struct GetInto<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Where its bytes go: filled in order, together at least as large as the object.
    pub targets: Vec<Target<'a>>,
}

/// Memory that a get fills, made once the size of the object is known.
pub trait Receive {
    /// The memory, in order: together at least as large as the object.
    fn targets(&mut self) -> Vec<Target<'_>>;
}

impl Receive for Vec<u8> {
    fn targets(&mut self) -> Vec<Target<'_>> {
        vec![Target::new(self)]
    }
}

/// What became of one read.
pub(crate) enum Fetched {
    Done(u64),
    /// No replica gave the bytes; the cause is worth telling.
    Lost(String),
    Failed(StoreError),
}

/// Objects as a lookup found them.
pub(crate) struct LookedUp {
    pub objects: Vec<Object>,
    pub numbering: Numbering,
}

/// Where bytes of an object from one on go.
pub(crate) struct Part<'p, 'a> {
    pub offset: u64,
    pub targets: &'p mut [Target<'a>],
}

/// A placement that could not be read, and why: what a second look-up finds
/// unchanged is not tried again, and its miss keeps the first reason.
#[derive(Clone)]
pub(crate) struct LostReplica {
    rid: u64,
    cause: String,
    /// Its extent carries another placement: overtaken, unless the second look-up names it again.
    stale: bool,
}

impl Inner {
    pub(crate) fn get_into(&self, items: &mut [GetInto<'_>]) -> Vec<Result<Option<u64>, StoreError>> {
        let keys: Vec<&[u8]> = items.iter().map(|item| item.key).collect();
        let on_device: u64 = items
            .iter()
            .filter(|item| item.targets.iter().any(Target::is_on_device))
            .map(|item| total_of_targets(&item.targets))
            .fold(0, u64::saturating_add);
        if threads_for(keys.len(), on_device) > 1 {
            return self.read_batch_by_rounds(&keys, |found, numbering, lost| {
                self.fetch_by_team(items, found, numbering, lost)
            });
        }
        self.read_batch(&keys, |index, object, numbering, lost| {
            self.fetch(keys[index], object, numbering, &mut items[index].targets, lost, &|| self.is_interrupted())
        })
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
        let read = |(item, object): &mut (&mut GetInto<'_>, &Object), interrupted: &dyn Fn() -> bool| {
            let mut lost = before.to_vec();
            let fetched = self.fetch(item.key, object, numbering, &mut item.targets, &mut lost, interrupted);
            (fetched, lost.split_off(before.len()))
        };
        let starved = |(fetched, _): &(Fetched, _)| matches!(fetched, Fetched::Failed(error) if is_no_staging(error));
        let threads = threads_for(reads.len(), bytes);
        // What was read before it was interrupted is no less read.
        let (outcomes, _) = share(reads, threads, &|| self.is_interrupted(), starved, read);
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
        let read = self.read_batch(keys, |index, object, numbering, lost| {
            let mut buffer = match alloc(index, object.size) {
                Ok(buffer) => buffer,
                Err(error) => return Fetched::Failed(error),
            };
            let fetched =
                self.fetch(keys[index], object, numbering, &mut buffer.targets(), lost, &|| self.is_interrupted());
            if matches!(fetched, Fetched::Done(_)) {
                received[index] = Some(buffer);
            }
            fetched
        });
        let bytes = bytes_of(&read);
        let results = read.into_iter().zip(received).map(|(read, buffer)| read.map(|size| size.and(buffer))).collect();
        (results, bytes)
    }

    /// Looks keys up and reads what is there, each by `attempt`; what it could
    /// not read is looked up once more.
    pub(crate) fn read_batch(
        &self,
        keys: &[&[u8]],
        mut attempt: impl FnMut(usize, &Object, Numbering, &mut Vec<LostReplica>) -> Fetched,
    ) -> Vec<Result<Option<u64>, StoreError>> {
        self.read_batch_by_rounds(keys, |found, numbering, lost| {
            found.iter().map(|(index, object)| attempt(*index, object, numbering, lost)).collect()
        })
    }

    /// The same with an `attempt` at all that one look-up has found, which says what became of each.
    fn read_batch_by_rounds(
        &self,
        keys: &[&[u8]],
        mut attempt: impl FnMut(&[(usize, &Object)], Numbering, &mut Vec<LostReplica>) -> Vec<Fetched>,
    ) -> Vec<Result<Option<u64>, StoreError>> {
        let mut results: Vec<Result<Option<u64>, StoreError>> = Vec::with_capacity(keys.len());
        let mut pending = Vec::with_capacity(keys.len());
        for (index, key) in keys.iter().enumerate() {
            match check_key(key) {
                Ok(()) => pending.push(index),
                Err(error) => {
                    results.push(Err(error));
                    continue;
                }
            }
            results.push(Ok(None));
        }
        // Placements that have failed already are not tried a second time.
        let mut lost = Vec::new();
        let mut causes: Vec<(usize, String)> = Vec::new();
        for last in [false, true] {
            let mut again = Vec::new();
            let overtaken = lost.iter().filter(|lost: &&LostReplica| last && lost.stale);
            let overtaken: HashMap<u64, String> = overtaken.map(|lost| (lost.rid, lost.cause.clone())).collect();
            let names: Vec<&[u8]> = pending.iter().map(|&index| keys[index]).collect();
            let mut rest = &pending[..];
            for names in rounds(&names, ROUND_KEYS) {
                let (round, others) = rest.split_at(names.len());
                rest = others;
                let found = match self.look_up(names) {
                    Ok(found) => found,
                    Err(error) => {
                        round.iter().for_each(|&index| results[index] = Err(error.clone()));
                        continue;
                    }
                };
                let there: Vec<(usize, &Object)> = round
                    .iter()
                    .copied()
                    .zip(&found.objects)
                    .filter(|(_, object)| !object.replicas.is_empty())
                    .collect();
                if !overtaken.is_empty() {
                    self.report_named_again(keys, &there, &overtaken);
                }
                for (&(index, _), fetched) in there.iter().zip(attempt(&there, found.numbering, &mut lost)) {
                    match fetched {
                        Fetched::Done(size) => results[index] = Ok(Some(size)),
                        Fetched::Failed(error) => results[index] = Err(error),
                        Fetched::Lost(cause) if last => causes.push((index, cause)),
                        Fetched::Lost(cause) => {
                            causes.push((index, cause));
                            again.push(index);
                        }
                    }
                }
            }
            pending = again;
            if pending.is_empty() {
                break;
            }
        }
        // A cache miss, for whoever asked; the cause is kept for whoever wonders.
        if let Some((_, cause)) = causes.into_iter().rfind(|(index, _)| matches!(results[*index], Ok(None))) {
            tracing::warn!(cause, "an object was there and could not be read: a miss");
            self.note_miss(cause);
        }
        results
    }

    pub(crate) fn look_up(&self, keys: &[&[u8]]) -> Result<LookedUp, StoreError> {
        const WHAT: &str = "a lookup";
        let control = &self.shared.control;
        let body = request::Body::Lookup(Lookup { keys: Some(pack_keys(keys)) });
        let answer = control.query(WHAT, body, control.lookup_timeout)?;
        match answer.body {
            reply::Body::Lookup(found) if found.objects.len() == keys.len() => {
                let replicas = found.objects.iter().flat_map(|object| &object.replicas);
                self.shared.directory.meet(control, answer.numbering, replicas)?;
                Ok(LookedUp { objects: found.objects, numbering: answer.numbering })
            }
            _ => Err(control.confused(WHAT)),
        }
    }

    /// Reads one object from one of its replicas.
    pub(crate) fn fetch(
        &self,
        key: &[u8],
        object: &Object,
        numbering: Numbering,
        targets: &mut [Target<'_>],
        lost: &mut Vec<LostReplica>,
        interrupted: &dyn Fn() -> bool,
    ) -> Fetched {
        let buffers = total_of_targets(targets);
        if buffers < object.size {
            return Fetched::Failed(Cause::BufferTooSmall { object: object.size, buffers }.into());
        }
        self.read_any_replica(key, object, numbering, lost, |replica| {
            let part = Part { offset: 0, targets: &mut trimmed(targets, object.size) };
            self.read_replica(object, replica, numbering, part, interrupted)
        })
    }

    /// Reads by `read` from the first replica that can be read.
    pub(crate) fn read_any_replica(
        &self,
        key: &[u8],
        object: &Object,
        numbering: Numbering,
        lost: &mut Vec<LostReplica>,
        mut read: impl FnMut(&Replica) -> Result<(), Unread>,
    ) -> Fetched {
        let mut cause = "no replica is left".to_owned();
        for replica in self.in_order_of_choice(object, numbering) {
            if let Some(earlier) = lost.iter().find(|lost| lost.rid == replica.rid) {
                cause.clone_from(&earlier.cause);
                continue;
            }
            match read(replica) {
                Ok(()) => return Fetched::Done(object.size),
                Err(Unread { error, .. }) if is_callers(&error) => return Fetched::Failed(error),
                Err(Unread { error, doubt }) => {
                    tracing::debug!(rid = format_args!("{:#x}", replica.rid), %error, "replica not read; trying the next");
                    cause = error.to_string();
                    self.doubt(key, object, replica.rid, doubt, &cause);
                    let stale = doubt == Doubt::Stale;
                    lost.push(LostReplica { rid: replica.rid, cause: cause.clone(), stale });
                }
            }
        }
        Fetched::Lost(cause)
    }

    /// This process first, then this host, then the others; at random among equals.
    fn in_order_of_choice<'o>(&self, object: &'o Object, numbering: Numbering) -> Vec<&'o Replica> {
        let mut replicas: Vec<&Replica> = object.replicas.iter().collect();
        if replicas.len() > 1 {
            let turn = self.next_turn() as usize % replicas.len();
            replicas.rotate_left(turn);
            replicas.sort_by_key(|replica| {
                let extent = replica.extents.first();
                let address = extent.and_then(|extent| self.shared.directory.find(numbering, extent.segment));
                let own = &self.shared.process;
                match address {
                    Some(address) if address.process.as_ref() == Some(own) => 0,
                    Some(address) if address.boot_id == own.boot_id => 1,
                    Some(_) => 2,
                    None => 3,
                }
            });
        }
        replicas
    }

    /// Reads into all targets from a byte of the object on. The whole of it is verified by its checksum.
    pub(crate) fn read_replica(
        &self,
        object: &Object,
        replica: &Replica,
        numbering: Numbering,
        Part { offset, targets }: Part<'_, '_>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(), Unread> {
        let no_doubt = |error: StoreError| Unread { error, doubt: Doubt::None };
        let [extent] = &replica.extents[..] else { return Err(no_doubt(self.shared.control.confused("a lookup"))) };
        let Some(address) = self.shared.directory.find(numbering, extent.segment) else {
            let gone = Cause::Transfer(format!("segment {} has left the pool", extent.segment));
            return Err(no_doubt(gone.into()));
        };
        let wait = self.transfer_wait(object.size, interrupted);
        let link = self.shared.links.link(&address, &wait).map_err(|error| no_doubt(link_error(&error)))?;
        let whole = offset == 0 && total_of_targets(targets) == object.size;
        let crc = (self.settings.verify && whole).then_some(object.crc32c);
        link.read(replica.rid, extent.offset + offset, targets, crc, &wait)
            .map_err(|error| Unread { doubt: Doubt::of(&error), error: transfer_error(error) })
    }

    /// A replica that is not what it should be is the master's business too. A stale one is mostly ordinary: a later
    /// placement has its extent. The second look-up tells; where another replica makes that one needless, somebody has to.
    pub(crate) fn doubt(&self, key: &[u8], object: &Object, rid: u64, doubt: Doubt, reason: &str) {
        let confirmed = match doubt {
            Doubt::Checksum => true,
            Doubt::Stale if object.replicas.len() > 1 => false,
            Doubt::Stale | Doubt::None => return,
        };
        self.suspect(key, rid, reason, confirmed);
    }

    /// Placements that were stale, and that the second look-up names all the same: nobody has overtaken the reader, their
    /// stamps are wrong.
    fn report_named_again(&self, keys: &[&[u8]], found: &[(usize, &Object)], stale: &HashMap<u64, String>) {
        for (index, object) in found {
            for replica in &object.replicas {
                if let Some(cause) = stale.get(&replica.rid) {
                    let reason = format!("{cause} (it has been, and is still named)");
                    self.suspect(keys[*index], replica.rid, &reason, true);
                }
            }
        }
    }

    fn suspect(&self, key: &[u8], rid: u64, reason: &str, confirmed: bool) {
        let control = &self.shared.control;
        suspects::add(control, Suspect { key: key.to_vec(), rid, reason: reason.to_owned(), confirmed });
    }
}

/// A replica was not read.
pub(crate) struct Unread {
    error: StoreError,
    doubt: Doubt,
}

/// What a failed read says of the replica itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doubt {
    None,
    /// Its stamps are not the placement's.
    Stale,
    /// Its stamps are, and its bytes are wrong.
    Checksum,
}

impl Doubt {
    pub fn of(error: &TransferError) -> Doubt {
        match error {
            TransferError::Checksum { .. } => Doubt::Checksum,
            error if error.is_stale() => Doubt::Stale,
            _ => Doubt::None,
        }
    }
}

/// Bytes of what was read.
pub(crate) fn bytes_of(read: &[Result<Option<u64>, StoreError>]) -> u64 {
    read.iter().filter_map(|outcome| outcome.as_ref().ok().copied().flatten()).sum()
}

/// Exactly as much of the targets as the object needs.
fn trimmed<'a>(targets: &'a mut [Target<'_>], size: u64) -> Vec<Target<'a>> {
    let mut left = size;
    let mut trimmed = Vec::with_capacity(targets.len());
    for target in targets {
        let part = left.min(target.len() as u64) as usize;
        if part == 0 {
            continue;
        }
        trimmed.push(target.reborrow().split_at(part).0);
        left -= part as u64;
    }
    trimmed
}
