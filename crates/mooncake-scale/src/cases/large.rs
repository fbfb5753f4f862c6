//! What is very large of its kind: owners of very many segments, a segment in very many pieces, soft pins of very many
//! objects, very long keys, and replies that are forgotten all at once.

use mooncake_core::{
    Ended, ListedViews, Origin, PinKind, PutConfig, PutStarted, SegmentSpec, SessionSpec, StartOutcome,
};
use mooncake_ids::{GRANULE, Rid, SegmentUuid, SessionId};

use super::{fill_large, fresh, preferring, unmount_large, very_many, with_a_large_segment};
use crate::pool::{KEY, Pool, REQUEST};

/// Segments of one owner.
const SEGMENTS: u64 = 1_000;

/// Owners of so many that fall silent at the same time.
const OWNERS: u64 = 10;

/// Bytes of a long key.
const LONG: usize = 60 << 10;

/// Objects with long keys.
const LONG_KEYS: u64 = 1_024;

/// An owner that is none of the pool's others, with its segments of so many granules.
struct Owner {
    session: SessionId,
    segments: Vec<SegmentUuid>,
}

impl Owner {
    fn begin(pool: &mut Pool, name: &'static str, granules: u64) -> Owner {
        let process = vec![7; 40];
        let spec = SessionSpec { secret: 9, name: name.to_owned(), boot_id: name.as_bytes().to_vec(), process };
        let session = pool.quietly(|core, now, fx| core.open_session(now, spec, fx)).expect("there is room");
        let mut owner = Owner { session, segments: Vec::new() };
        for number in 0..SEGMENTS {
            let mut uuid = [202; 16];
            uuid[..8].copy_from_slice(&number.to_le_bytes());
            uuid[8..].copy_from_slice(&session.0.to_le_bytes());
            let (uuid, bytes) = (SegmentUuid(uuid), granules * GRANULE);
            let spec = SegmentSpec { uuid, name: name.to_owned(), bytes, endpoint: vec![9; 60] };
            let origin = pool.origin(session.0);
            pool.hold("mount", |core, now, fx| core.mount(now, origin, spec, bytes, fx)).expect("a new segment");
            owner.segments.push(uuid);
        }
        owner
    }

    fn end(self, pool: &mut Pool) {
        let kind = "a session closes that has 1,000 segments, a step";
        while !pool.hold(kind, |core, now, fx| core.close_session(now, self.session, fx)) {}
        pool.tick("tick, behind a large owner that is gone");
        pool.forget_fences();
    }
}

/// An owner takes an epoch on very many segments, with much in quarantine on each.
pub fn epoch_on_many(pool: &mut Pool) {
    let each = very_many(pool) / SEGMENTS;
    let owner = Owner::begin(pool, "epochs:1", each);
    for writer in pool.others(100).cycle().take((SEGMENTS * each) as usize / REQUEST) {
        let new = fresh(pool, REQUEST as u64);
        let kind = "put_start, 512 keys that prefer a name of 1,000";
        let rids = pool.reserve_with(writer, &new, &preferring("epochs:1"), kind);
        let (rids, origin): (Vec<Rid>, _) = (rids.into_iter().flatten().collect(), pool.origin(writer));
        pool.hold("abort, 512 puts", |core, now, fx| core.abort(now, origin, &rids, true, fx)).expect("known");
    }
    let next = pool.core.epoch().number + 1;
    pool.quietly(|core, now, fx| core.raise_epoch(now, next, fx));
    pool.tick("tick, puts of an earlier epoch");
    for number in 1..=pool.size().segments {
        let its: Vec<_> = pool.segments_of(number).into_iter().map(|(uuid, _)| uuid).collect();
        pool.quietly(|core, now, fx| core.epoch_taken(now, SessionId(number), next, &its, fx));
    }
    pool.hold("an owner of 1,000 segments takes an epoch, much in quarantine", |core, now, fx| {
        core.epoch_taken(now, owner.session, next, &owner.segments, fx);
    });
    pool.tick("tick, much in quarantine is of an earlier epoch");
    owner.end(pool);
    pool.refill();
}

/// An owner comes back without any of very many segments.
pub fn lists_none_of_its_segments(pool: &mut Pool) {
    let owner = Owner::begin(pool, "leaves:1", 8);
    for writer in pool.others(100).take((SEGMENTS * 8) as usize / REQUEST) {
        let new = fresh(pool, REQUEST as u64);
        pool.reserve_with(writer, &new, &preferring("leaves:1"), "put_start, 512 keys that prefer a name of 1,000");
    }
    pool.quietly(|core, now, fx| core.anchor_lost(now, owner.session, fx));
    pool.hold("a session comes back without any of its 1,000 segments", |core, now, fx| {
        core.resume_session(now, owner.session, 9, &[], ListedViews::default(), fx)
    })
    .expect("known");
    pool.tick("tick, segments go that are not listed any more");
    owner.end(pool);
    pool.pass(40_000, |_| false);
    pool.tick("tick");
    pool.answer_fences("owners answer for them");
    pool.refill();
}

/// The room is all with one owner, and each object needs two.
pub fn second_copies(pool: &mut Pool) {
    let owner = Owner::begin(pool, "copies:1", 4);
    let config = PutConfig { replica_num: 2, ..PutConfig::default() };
    for _ in 0..4 {
        let new = fresh(pool, REQUEST as u64 / 2);
        let kind = "put_start, 256 keys of two replicas, one owner has the room";
        let rids = pool.reserve_with(1, &new, &config, kind);
        pool.end(1, rids, "put_end");
    }
    owner.end(pool);
    pool.refill();
}

/// Owners of very many segments fall silent together.
pub fn many_of_many_fall_silent(pool: &mut Pool) {
    let owners: Vec<Owner> = (0..OWNERS).map(|_| Owner::begin(pool, "silent:1", 1)).collect();
    for _ in 0..5 {
        pool.hold("figures for the metrics, 10,000 segments more", |core, _, _| core.stats());
    }
    // Only those of the pool beat.
    pool.pass(3_000, |_| false);
    pool.tick("tick, 10 owners of 1,000 segments fall silent");
    owners.into_iter().for_each(|owner| owner.end(pool));
}

/// A large segment goes whose free space is in very many pieces.
pub fn free_runs(pool: &mut Pool) {
    let (owner, name) = with_a_large_segment(pool);
    let mut placed = Vec::new();
    for (writer, its) in fill_large(pool, name) {
        pool.end(writer, its.iter().map(|(_, rid)| vec![*rid]).collect(), "put_end");
        placed.extend(its);
    }
    let every_other: Vec<&[u8]> = placed.iter().step_by(2).map(|(key, _)| &key[..]).collect();
    for keys in every_other.chunks(REQUEST / 2) {
        let origin = pool.origin(1);
        pool.hold("remove, 256 keys", |core, now, fx| core.remove(now, origin, keys, true, fx)).expect("known");
    }
    unmount_large(pool, owner, "unmount, a segment in very many pieces");
}

/// Very many objects with soft pins: some are removed, and the others' pins lapse.
pub fn soft_pins(pool: &mut Pool) {
    let config = PutConfig { pin: PinKind::Soft { ttl_ms: 10_000 }, ..PutConfig::default() };
    let mut pinned: Vec<[u8; KEY]> = Vec::new();
    for _ in 0..(pool.size().objects / 4).min(1_000_000) / REQUEST as u64 {
        let new = fresh(pool, REQUEST as u64);
        let rids = pool.reserve_with(1, &new, &config, "put_start, 512 keys with soft pins in a full pool");
        pool.end(1, rids, "put_end");
        pinned.extend(new);
    }
    // Scattered, so that none is near the one before.
    let count = pinned.len();
    let scattered: Vec<&[u8]> = (0..count / 8).map(|nth| &pinned[nth * 7_919 % count][..]).collect();
    for keys in scattered.chunks(REQUEST / 2) {
        let origin = pool.origin(1);
        pool.hold("remove, 256 keys with soft pins", |core, now, fx| core.remove(now, origin, keys, true, fx))
            .expect("known");
    }
    pool.pass(10_100, |_| false);
    pool.tick("tick, very many soft pins lapse");
    pool.refill();
}

/// A mutation says that its client has the answers to very many before it; a snapshot is being taken.
pub fn replies_at_once(pool: &mut Pool) {
    for kind in [
        "a mutation whose client has the answers to 1,000 requests of 512 keys",
        "the same beside a snapshot",
        "a session ends with 1,000 answers to requests of 512 keys, beside a snapshot",
    ] {
        let name = "replies:1".to_owned();
        let spec = SessionSpec { secret: 9, name, boot_id: vec![3; 16], process: vec![7; 40] };
        let session = pool.quietly(|core, now, fx| core.open_session(now, spec, fx)).expect("there is room");
        let first = pool.origin(session.0).sequence;
        // Too large for any segment: nothing but the answers is left of them.
        let sizes = vec![2 * pool.segment_bytes(); REQUEST];
        let new = fresh(pool, REQUEST as u64);
        let entries: Vec<(&[u8], u64)> = new.iter().map(|key| &key[..]).zip(sizes).collect();
        for _ in 0..(pool.size().objects / 1_000).min(1_000) {
            let origin = Origin { answered_below: first, ..pool.origin(session.0) };
            pool.quietly(|core, now, fx| core.put_start(now, origin, &entries, &PutConfig::default(), false, fx))
                .expect("known");
        }
        if kind.contains("snapshot") {
            pool.core.begin_snapshot();
        }
        if !kind.contains("ends") {
            let origin = pool.origin(session.0);
            pool.hold(kind, |core, now, fx| core.unpin(now, origin, &[], fx)).expect("known");
            pool.tick("tick, 1,000 replies are forgotten");
        }
        while !pool.hold(kind, |core, now, fx| core.close_session(now, session, fx)) {}
        drop(pool.core.end_snapshot());
    }
}

fn long_key(nth: u64) -> Vec<u8> {
    let mut key = vec![b'k'; LONG];
    key[..8].copy_from_slice(&nth.to_le_bytes());
    key
}

/// Objects with very long keys are looked up, leave for others, and are removed.
pub fn long_keys(pool: &mut Pool) {
    let keys: Vec<Vec<u8>> = (0..LONG_KEYS).map(long_key).collect();
    // As many as their clients cut a request to.
    for some in keys.chunks(8) {
        let (origin, entries) = (pool.origin(1), some.iter().map(|key| (&key[..], GRANULE)).collect::<Vec<_>>());
        let kind = "put_start, 8 keys of 60 KiB in a full pool";
        let started =
            pool.hold(kind, |core, now, fx| core.put_start(now, origin, &entries, &PutConfig::default(), false, fx));
        let Ok(PutStarted::Now(slots)) = started else { continue };
        let ended = slots.into_iter().filter_map(|slot| match slot {
            StartOutcome::Placed(replicas) => {
                let replicas = replicas.iter().map(|replica| (replica.rid, true)).collect();
                Some(Ended { replicas, crc32c: 1, stays: false })
            }
            _ => None,
        });
        let (ended, origin): (Vec<Ended>, _) = (ended.collect(), pool.origin(1));
        pool.hold("put_end, 8 keys of 60 KiB", |core, now, fx| core.put_end(now, origin, &ended, fx)).expect("known");
    }
    pool.ask_exists(&keys, "exists, keys of 60 KiB, a slice");
    let (removed, leave) = keys.split_at(keys.len() / 4);
    for some in removed.chunks(8) {
        let (some, origin): (Vec<&[u8]>, _) = (some.iter().map(|key| &key[..]).collect(), pool.origin(1));
        pool.hold("remove, 8 keys of 60 KiB", |core, now, fx| core.remove(now, origin, &some, true, fx))
            .expect("known");
    }
    pool.pass(3_000, |_| false);
    pool.tick("tick");
    // All others but these, which leave for what comes.
    pool.protect_all();
    let left = |pool: &Pool| leave.iter().filter(|key| pool.core.peek(key).is_some()).count();
    for _ in 0..64 {
        if left(pool) < leave.len() / 2 {
            break;
        }
        let new = fresh(pool, REQUEST as u64);
        let kind = "put_start, 512 keys, objects with keys of 60 KiB leave";
        pool.start(1, &new, GRANULE, &PutConfig::default(), true, kind);
        pool.tick("tick, objects with keys of 60 KiB leave");
    }
    assert!(left(pool) < leave.len() / 2, "{} of {} are still there", left(pool), leave.len());
    pool.give_up();
}
