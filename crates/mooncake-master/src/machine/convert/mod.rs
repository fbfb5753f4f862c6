//! Between the messages of the protocol and the types of the core.

use bytes::Bytes;
use mooncake_core::{
    Claim, EndOutcome, Ended, Epoch, Extent, FileCounts, Found, FoundRef, Keep, OrdersAnswered, PinKind, Promoted,
    Push, PutConfig, Refused, RemoveOutcome, Replica, SegmentSpec, SegmentView, SharedStorage, StartOutcome,
    TierEngine, TierMount, TierMounted, TierOperations, TierProof, TierSpec, TierStats, TierView, Written,
};
use mooncake_ids::{FileSystemUuid, Rid, SegmentUuid, TierUuid};
use mooncake_wire::message::{self, anchor_down, reply};
use prost::Message;

/// Longest name of a client or segment, bytes.
pub const NAME_MAX: usize = 1024;

/// Largest encoded endpoint, bytes.
const ENDPOINT_MAX: usize = 8 << 10;

/// Most segments that a claim names.
const CLAIMED_MAX: usize = 512;

/// Most replicas that a put may ask for.
const REPLICAS_MAX: u32 = 64;

/// Lifetimes of soft pins, milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct SoftPinTtl {
    /// Of a pin that names none.
    pub default_ms: u64,
    /// The longest that may be asked for.
    pub max_ms: u64,
}

impl SoftPinTtl {
    /// In a request: the pin names none.
    pub const DEFAULT: u64 = u64::MAX;
}

/// The request makes no sense; the text says why.
pub type Bad = String;

/// A UUID of sixteen bytes.
pub fn uuid(bytes: &[u8]) -> Result<SegmentUuid, Bad> {
    let uuid = bytes.try_into().map_err(|_| format!("a segment UUID has 16 bytes, not {}", bytes.len()))?;
    Ok(SegmentUuid(uuid))
}

/// An epoch of a message.
pub fn epoch(number: u32) -> Result<u16, Bad> {
    u16::try_from(number).map_err(|_| format!("epoch {number} does not exist"))
}

/// Rids of a message.
pub fn rids(numbers: &[u64]) -> Vec<Rid> {
    numbers.iter().copied().map(Rid).collect()
}

/// How a put wants to be placed. `soft_pin` is the lifetime of a pin that names none, and the longest.
pub fn put_config(
    config: Option<message::PutConfig>,
    groups: Vec<Box<[u8]>>,
    soft_pin: SoftPinTtl,
) -> Result<PutConfig, Bad> {
    let config = config.unwrap_or_default();
    if config.replica_num > REPLICAS_MAX {
        return Err(format!("{} replicas asked for, the limit is {REPLICAS_MAX}", config.replica_num));
    }
    let pin = match (config.hard_pin, config.soft_pin_ttl_ms) {
        (true, _) => PinKind::Hard,
        (false, 0) if config.soft_pin_clear => PinKind::Cleared,
        (false, 0) => PinKind::None,
        (false, SoftPinTtl::DEFAULT) => PinKind::Soft { ttl_ms: soft_pin.default_ms },
        (false, ttl_ms) if ttl_ms > soft_pin.max_ms => {
            let max = soft_pin.max_ms;
            return Err(format!("a soft pin of {ttl_ms} ms; --max_kv_soft_pin_ttl allows {max} ms"));
        }
        (false, ttl_ms) => PinKind::Soft { ttl_ms },
    };
    Ok(PutConfig {
        replica_num: config.replica_num.max(1),
        preferred_segments: config.preferred_segments,
        pin,
        prefer_local: config.prefer_local,
        replace: config.replace,
        groups,
        first_rid: (config.first_rid != 0).then_some(Rid(config.first_rid)),
        comes_again: config.comes_again,
    })
}

/// What an owner says of orders.
pub fn orders_answered(said: message::TierWritten) -> Result<OrdersAnswered, Bad> {
    let message::TierWritten { rids, addresses, window, sealed, .. } = said;
    if rids.len() != addresses.len() {
        return Err(format!("{} rids but {} addresses", rids.len(), addresses.len()));
    }
    let all = rids.into_iter().zip(addresses);
    let written = all.map(|(rid, above)| Written { rid: Rid(rid), address: above.checked_sub(1) }).collect();
    Ok(OrdersAnswered { written, window, sealed })
}

/// What an owner says of its disk. An engine that this master does not know is none that it can name.
pub fn tier_stats(said: &message::TierStats) -> TierStats {
    use message::tier_stats::Engine;
    let operations = |said: &Option<message::TierOperations>| {
        said.as_ref().map_or_else(TierOperations::default, |said| TierOperations {
            count: said.count,
            micros: said.micros,
            failed: said.failed,
        })
    };
    TierStats {
        engine: match said.engine() {
            Engine::Unspecified => TierEngine::Unknown,
            Engine::IoUring => TierEngine::Ring,
            Engine::Threads => TierEngine::Threads,
        },
        used_bytes: said.used_bytes,
        capacity_bytes: said.capacity_bytes,
        reads: operations(&said.reads),
        writes: operations(&said.writes),
        syncs: operations(&said.syncs),
        bad_records: said.bad_records,
        read_bytes: [
            said.read_for_lanes,
            said.read_for_promotions,
            said.read_for_kept,
            said.read_for_rechecks,
            said.read_for_proofs,
        ],
        written_bytes: [said.written_ordered, said.written_kept, said.written_rest],
        lacks_room: said.lacks_room,
        unknown_folders: said.unknown_folders,
    }
}

/// What an owner says of copies of what its tier has.
pub fn promoted(said: &message::TierPromoted) -> Vec<Promoted> {
    let copies = |rids: &[u64], good| rids.iter().map(move |rid| Promoted { rid: Rid(*rid), good }).collect::<Vec<_>>();
    [copies(&said.good, true), copies(&said.bad, false)].concat()
}

/// What a writer says of its reservations.
pub fn ended(ask: &message::PutEnd) -> Vec<Ended> {
    ask.ended
        .iter()
        .map(|one| Ended {
            replicas: one.replicas.iter().map(|replica| (Rid(replica.rid), replica.good)).collect(),
            crc32c: one.crc32c,
            stays: one.stays,
        })
        .collect()
}

/// A segment as its owner mounts it.
pub fn segment_spec(segment: Option<message::Segment>) -> Result<SegmentSpec, Bad> {
    let segment = segment.ok_or("no segment named")?;
    let endpoint = encoded(segment.endpoint.ok_or("the segment has no endpoint")?, "segment")?;
    if segment.name.is_empty() || segment.name.len() > NAME_MAX {
        return Err(format!("a segment's name has 1 to {NAME_MAX} bytes, not {}", segment.name.len()));
    }
    Ok(SegmentSpec { uuid: uuid(&segment.uuid)?, name: segment.name, bytes: segment.bytes, endpoint })
}

/// What an heir shows for memory that it holds.
pub fn claim(claim: message::Claim) -> Result<Claim, Bad> {
    let count = claim.held.len() + claim.lost.len();
    if count > CLAIMED_MAX {
        return Err(format!("{count} segments claimed at a time, the limit is {CLAIMED_MAX}"));
    }
    let held = claim.held.into_iter().map(|held| {
        let endpoint = held.endpoint.ok_or("a segment that is claimed has no endpoint")?;
        Ok((uuid(&held.uuid)?, encoded(endpoint, "segment")?))
    });
    let segments = held.collect::<Result<_, Bad>>()?;
    let lost = claim.lost.iter().map(|lost| uuid(lost)).collect::<Result<_, Bad>>()?;
    Ok(Claim { secret: secret(&claim.secret)?, turn: claim.turn, segments, lost })
}

/// How long a session's memory outlives its process.
pub fn keep(ask: &message::Keep) -> Result<Keep, Bad> {
    Ok(Keep { ms: ask.ms, secret: secret(&ask.secret)?, turn: ask.turn })
}

fn secret(bytes: &[u8]) -> Result<[u8; 16], Bad> {
    bytes.try_into().map_err(|_| format!("a secret has 16 bytes, not {}", bytes.len()))
}

fn encoded(endpoint: message::Endpoint, of: &str) -> Result<Vec<u8>, Bad> {
    let endpoint = endpoint.encode_to_vec();
    match endpoint.len() > ENDPOINT_MAX {
        true => Err(format!("the {of}'s endpoint has {} bytes, the limit is {ENDPOINT_MAX}", endpoint.len())),
        false => Ok(endpoint),
    }
}

/// A segment for a client that wants to reach it.
pub fn segment(view: &SegmentView<'_>) -> message::Segment {
    message::Segment {
        number: view.number.0,
        uuid: view.uuid.0.to_vec().into(),
        name: view.name.to_owned(),
        bytes: view.bytes,
        session: view.session.0,
        endpoint: endpoint(view),
        tier_file_blocks: 0,
        file_system: Bytes::new(),
    }
}

/// How to reach a segment, as its owner said.
pub fn endpoint(view: &SegmentView<'_>) -> Option<message::Endpoint> {
    message::Endpoint::decode(view.endpoint).ok()
}

/// A UUID of a tier.
pub fn tier_uuid(bytes: &[u8]) -> Result<TierUuid, Bad> {
    TierUuid::try_from(bytes).map_err(|_| format!("a tier's UUID has 16 bytes, not {}", bytes.len()))
}

/// A UUID of a file system.
pub fn file_system(bytes: &[u8]) -> Result<FileSystemUuid, Bad> {
    FileSystemUuid::try_from(bytes).map_err(|_| format!("a file system's UUID has 16 bytes, not {}", bytes.len()))
}

/// The folder that clients share.
pub fn storage(storage: &SharedStorage) -> message::SharedStorage {
    message::SharedStorage {
        root: storage.root.clone(),
        cluster_id: storage.cluster_id.clone(),
        quota_bytes: storage.quota_bytes,
        evicts: storage.evicts,
    }
}

/// A tier as its owner mounts it.
pub fn tier_mount(ask: &mut message::TierMount) -> Result<TierMount, Bad> {
    let tier = ask.tier.take().ok_or("no tier named")?;
    let endpoint = encoded(tier.endpoint.ok_or("the tier has no endpoint")?, "tier")?;
    let secret = secret(&tier.secret)?;
    if tier.name.is_empty() || tier.name.len() > NAME_MAX {
        return Err(format!("a tier's name has 1 to {NAME_MAX} bytes, not {}", tier.name.len()));
    }
    let spec = TierSpec {
        uuid: tier_uuid(&tier.uuid)?,
        secret,
        name: tier.name,
        bytes: tier.bytes,
        file_blocks: tier.file_blocks,
        endpoint,
    };
    let proof = TierProof {
        files: ask.files.iter().copied().collect(),
        appended: ask.appended.iter().copied().collect(),
        suspects: ask.suspects.iter().copied().collect(),
        proven: ask.proven.iter().copied().map(Rid).collect(),
    };
    let file_system = match ask.file_system.is_empty() {
        true => None,
        false => Some(file_system(&ask.file_system)?),
    };
    let records_max = (ask.records_max > 0).then_some(ask.records_max);
    Ok(TierMount { spec, is_new: ask.is_new, is_adopted: ask.adopted, file_system, head: ask.head, records_max, proof })
}

/// What its owner is told.
pub fn tier_mounted(mounted: TierMounted) -> message::TierMountReply {
    let TierMounted { number, head, files } = mounted;
    let file = |(number, counts): (u64, FileCounts)| message::TierFile {
        number,
        records: counts.records,
        bytes: counts.bytes,
    };
    let files = files.into_iter().map(file).collect();
    message::TierMountReply { number: number.0, head, files, unknown: String::new(), adopted: false }
}

/// A tier for a client that wants to reach its owner.
pub fn tier(view: &TierView<'_>) -> message::Segment {
    message::Segment {
        number: view.number.0,
        uuid: view.spec.uuid.0.to_vec().into(),
        name: view.spec.name.clone(),
        bytes: view.spec.bytes,
        session: view.session.0,
        endpoint: message::Endpoint::decode(&view.spec.endpoint[..]).ok(),
        tier_file_blocks: view.spec.file_blocks,
        file_system: view.file_system.map_or_else(Bytes::new, |file_system| file_system.0.to_vec().into()),
    }
}

/// What the start of a put of one key came to.
pub fn start_outcome(outcome: &StartOutcome) -> message::PutSlot {
    use message::put_slot::Kind;
    let (kind, reason) = match outcome {
        StartOutcome::Placed(replicas) => {
            let replicas = replicas.iter().copied().map(replica).collect();
            return message::PutSlot { kind: Kind::Placed.into(), replicas, reason: String::new() };
        }
        StartOutcome::Exists => (Kind::Exists, String::new()),
        StartOutcome::Busy(reason) => (Kind::Busy, reason.clone()),
        StartOutcome::Full(reason) => (Kind::Full, reason.clone()),
        StartOutcome::TooLarge(reason) => (Kind::TooLarge, reason.clone()),
        StartOutcome::Refused(reason) => (Kind::Refused, reason.clone().into_owned()),
    };
    message::PutSlot { kind: kind.into(), replicas: Vec::new(), reason }
}

/// What became of an ended put.
pub fn end_outcome(outcome: EndOutcome) -> i32 {
    use message::put_end_reply::Outcome;
    match outcome {
        EndOutcome::Committed => Outcome::Committed,
        EndOutcome::Superseded => Outcome::Superseded,
        EndOutcome::Aborted => Outcome::Revoked,
        EndOutcome::Hidden => Outcome::Hidden,
    }
    .into()
}

/// What became of a remove.
pub fn remove_outcome(outcome: RemoveOutcome) -> i32 {
    use message::remove_reply::Outcome;
    match outcome {
        RemoveOutcome::Removed => Outcome::Removed,
        RemoveOutcome::Missing => Outcome::Missing,
        RemoveOutcome::Protected => Outcome::Protected,
        RemoveOutcome::Busy => Outcome::Busy,
    }
    .into()
}

/// What a lookup found; no replicas = a miss.
pub fn object(found: Option<FoundRef<'_>>) -> message::Object {
    found.map_or_else(message::Object::default, |found| message::Object {
        size: found.size,
        crc32c: found.crc32c,
        replicas: found.replicas().map(replica).collect(),
    })
}

/// What a pin found.
pub fn pinned_object(found: Option<&Found>) -> message::Object {
    found.map_or_else(message::Object::default, |found| message::Object {
        size: found.size,
        crc32c: found.crc32c,
        replicas: found.replicas.iter().copied().map(replica).collect(),
    })
}

/// In the order in which they lie there, each once: a long list was gathered while views ended.
fn by_offset(mut extents: Vec<Extent>) -> Vec<message::Extent> {
    extents.sort_unstable_by_key(|extent| extent.offset);
    extents.dedup();
    extents.into_iter().map(extent).collect()
}

/// A message for an anchor.
pub fn push(push: Push) -> message::AnchorDown {
    use anchor_down::Body;
    let body = match push {
        Push::Fence { uuid, replica, writer, writer_done } => Body::Fence(message::Fence {
            uuid: uuid.0.to_vec().into(),
            rid: replica.rid.0,
            offset: replica.extent.offset,
            length: replica.extent.length,
            writer: writer.0,
            writer_done,
        }),
        Push::Recheck { uuid, replica, crc32c } => Body::Recheck(message::Recheck {
            uuid: uuid.0.to_vec().into(),
            rid: replica.rid.0,
            offset: replica.extent.offset,
            length: replica.extent.length,
            crc32c,
        }),
        Push::TakeEpoch(Epoch { number, id }) => {
            Body::TakeEpoch(message::TakeEpoch { epoch: u32::from(number), epoch_id: id })
        }
        Push::SegmentGone { uuid, number, pinned } => Body::SegmentGone(message::SegmentGone {
            uuid: uuid.0.to_vec().into(),
            number: number.0,
            pinned: by_offset(pinned),
        }),
        Push::SessionOver(reason) => Body::SessionOver(message::SessionOver { reason }),
        Push::TierOrder { tier, rid, key, object_id, crc32c, source } => Body::TierOrder(message::TierOrder {
            tier: tier.0.to_vec().into(),
            rid: rid.0,
            key: key.into_vec().into(),
            object_id: object_id.0,
            crc32c,
            source: Some(self::replica(source)),
        }),
        Push::TierPromote { tier, key, crc32c, from, to } => Body::TierPromote(message::TierPromote {
            tier: tier.0.to_vec().into(),
            key: key.into_vec().into(),
            crc32c,
            from: Some(self::replica(from)),
            to: Some(self::replica(to)),
        }),
        Push::TierRetire { tier, epoch, files, is_full } => {
            let tier = tier.0.to_vec().into();
            Body::TierRetire(message::TierRetire { tier, epoch: epoch.into(), files, full: is_full })
        }
        Push::TierAllOrdered { tier } => Body::TierAllOrdered(message::TierAllOrdered { tier: tier.0.to_vec().into() }),
        Push::TierShared { tier, writers, left } => Body::TierShared(message::TierShared {
            tier: tier.0.to_vec().into(),
            writers: u32::try_from(writers).unwrap_or(u32::MAX),
            left: left.map_or_else(Bytes::new, |left| left.0.to_vec().into()),
        }),
        Push::TierRecheck { tier, replica, key } => Body::TierRecheck(message::TierRecheck {
            tier: tier.0.to_vec().into(),
            replica: Some(self::replica(replica)),
            key: key.into_vec().into(),
        }),
    };
    message::AnchorDown { body: Some(body) }
}

/// Why a request as a whole was refused.
pub fn refusal(refused: &Refused) -> message::Refusal {
    use message::refusal::Kind;
    let kind = match refused {
        // A wrong secret is a session of another log's life: for the client it is gone all the same.
        Refused::UnknownSession(_) | Refused::WrongSecret(_) => Kind::UnknownSession,
        Refused::NotKept => Kind::NotKept,
        Refused::OldClaim(..) => Kind::OldClaim,
        Refused::TooManyUnanswered(..) | Refused::TooManySessions(_) => Kind::Overloaded,
        _ => Kind::BadRequest,
    };
    message::Refusal { kind: kind.into(), reason: refused.to_string() }
}

/// A refusal as a reply.
pub fn bad_request(reason: impl Into<String>) -> reply::Body {
    let kind = message::refusal::Kind::BadRequest.into();
    reply::Body::Refusal(message::Refusal { kind, reason: reason.into() })
}

fn replica(replica: Replica) -> message::Replica {
    message::Replica { rid: replica.rid.0, extents: vec![extent(replica.extent)] }
}

fn extent(extent: Extent) -> message::Extent {
    message::Extent { segment: extent.segment.0, offset: extent.offset, length: extent.length }
}

#[cfg(test)]
mod tests;
