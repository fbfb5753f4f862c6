//! What owners and readers say on their anchors, and sessions that come, lend memory and go.

use mooncake_core::{ListedViews, Populated, PutConfig, SegmentSpec, SessionSpec};
use mooncake_ids::{GRANULE, Rid, SegmentUuid, SessionId};
use mooncake_master::machine::anchors::FENCES_SLICE;

use super::{WAITING, fill_large, fresh, preferring, unmount_large, with_a_large_segment};
use crate::pool::{Pool, REQUEST};

/// Puts of a session that one beat says have moved.
const MOVED: u64 = 2_048;

/// An owner that has many segments, how many, and the name of all of them.
const OWNER_OF_MANY: u64 = 8;
const SEGMENTS: u64 = 1_000;
const MANY: &str = "many:8";

/// Replicas that one message reports.
const REPORTED: usize = 512;

/// Sessions and segments come and go, one after the other.
pub fn one_by_one(pool: &mut Pool) {
    for number in 0..100 {
        let spec = SessionSpec {
            secret: number,
            name: format!("new-{number}:12345"),
            boot_id: number.to_le_bytes().to_vec(),
            process: vec![7; 40],
        };
        let session = pool.hold("a session begins", |core, now, fx| core.open_session(now, spec, fx));
        let session = session.expect("there is room for sessions");
        let uuid = SegmentUuid([200, number as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        let spec = SegmentSpec { uuid, name: "new".to_owned(), bytes: 64 * GRANULE, endpoint: vec![9; 60] };
        let origin = pool.origin(session.0);
        let mounted = pool.hold("mount", |core, now, fx| core.mount(now, origin, spec, 64 * GRANULE, fx));
        mounted.expect("a new segment");
        pool.hold("beat", |core, now, fx| core.beat(now, session, &[], &[], fx));
        let is_over = pool.hold("a session closes", |core, now, fx| core.close_session(now, session, fx));
        assert!(is_over, "one step closes a small session");
    }
    pool.tick("tick, behind them");
}

/// An owner has very much in quarantine, and has not heard of it.
pub fn fences_asked_again(pool: &mut Pool) {
    let (owner, name) = with_a_large_segment(pool);
    abort_all(pool, name);
    ask_for_fences(pool, owner, "fences that an owner is asked for again, a slice");
    unmount_large(pool, owner, "unmount, very much in quarantine");
    pool.forget_fences();
}

fn abort_all(pool: &mut Pool, name: &str) {
    for (writer, placed) in fill_large(pool, name) {
        let origin = pool.origin(writer);
        let rids: Vec<Rid> = placed.iter().map(|(_, rid)| *rid).collect();
        pool.hold("abort, 512 puts", |core, now, fx| core.abort(now, origin, &rids, true, fx)).expect("known");
    }
}

fn ask_for_fences(pool: &mut Pool, owner: u64, kind: &'static str) {
    let mut next = Some(Rid(0));
    while let Some(from) = next {
        next = pool.hold(kind, |core, _, fx| core.ask_fences(SessionId(owner), from, FENCES_SLICE, fx));
    }
}

/// Beats that renew as many puts as one says, and that say how far very many segments are populated.
pub fn beats(pool: &mut Pool) {
    let mut moved = Vec::new();
    for _ in 0..MOVED / REQUEST as u64 {
        let new = fresh(pool, REQUEST as u64);
        let rids = pool.reserve(1, &new, "put_start, 512 keys in a full pool");
        moved.extend(rids.into_iter().flatten());
    }
    for _ in 0..5 {
        pool.pass(500, |_| false);
        pool.hold("beat, 2,048 puts have moved", |core, now, fx| core.beat(now, SessionId(1), &moved, &[], fx));
    }
    let origin = pool.origin(1);
    pool.quietly(|core, now, fx| core.abort(now, origin, &moved, true, fx)).expect("known");
    pool.answer_fences("owners answer for what is given up");
    pool.refill();
}

/// An owner of very many segments: what it says of all of them, what prefers them, and its end.
pub fn owner_of_many(pool: &mut Pool) {
    let uuids = mount_many(pool);
    capped_writers(pool);
    populate_further(pool, &uuids);
    pool.give_up();
    puts_that_prefer_many(pool);
    ask_for_fences(pool, OWNER_OF_MANY, "fences of an owner of 1,000 segments, a slice");
    epoch_on_its_segments(pool, &uuids);
    let new = fresh(pool, REQUEST as u64);
    pool.reserve(OWNER_OF_MANY, &new, "put_start, 512 keys in a full pool");
    while !pool.hold("a session closes that has 1,000 segments, a step", |core, now, fx| {
        core.close_session(now, SessionId(OWNER_OF_MANY), fx)
    }) {}
    pool.tick("tick, behind 1,000 segments that are gone");
    pool.refill();
}

fn mount_many(pool: &mut Pool) -> Vec<SegmentUuid> {
    let mount = |number: u64| {
        let mut uuid = [201; 16];
        uuid[..8].copy_from_slice(&number.to_le_bytes());
        let uuid = SegmentUuid(uuid);
        let spec = SegmentSpec { uuid, name: MANY.to_owned(), bytes: 4 * GRANULE, endpoint: vec![9; 60] };
        let origin = pool.origin(OWNER_OF_MANY);
        pool.hold("mount", |core, now, fx| core.mount(now, origin, spec, GRANULE, fx)).expect("a new segment");
        uuid
    };
    (0..SEGMENTS).map(mount).collect()
}

/// Sessions reach their share of unfinished bytes, so that their next put waits in the master.
fn capped_writers(pool: &mut Pool) {
    let all = pool.size().objects * GRANULE;
    for session in pool.others(WAITING) {
        let first = fresh(pool, 1);
        pool.reserve(session, &first, "put_start, one key in a full pool");
        let new = fresh(pool, 8);
        let config = PutConfig::default();
        pool.start(session, &new, all, &config, true, "put_start, 8 keys of a session with too much unfinished");
    }
}

fn populate_further(pool: &mut Pool, uuids: &[SegmentUuid]) {
    for granules in 2..=4 {
        let populated = |uuid: &SegmentUuid| Populated { uuid: *uuid, bytes: granules * GRANULE, failed: false };
        let populated: Vec<Populated> = uuids.iter().map(populated).collect();
        pool.hold("beat, 1,000 segments are populated further", |core, now, fx| {
            core.beat(now, SessionId(OWNER_OF_MANY), &[], &populated, fx)
        });
        pool.tick("tick, behind it");
    }
}

/// Puts that prefer the segments by their name, while there is room and when there is none.
fn puts_that_prefer_many(pool: &mut Pool) {
    for _ in 0..SEGMENTS * 4 / REQUEST as u64 {
        put_and_abort(pool, 6, &preferring(MANY), "put_start, 512 keys that prefer a name of 1,000");
    }
    // The first of these fills what is left of the 4,000 granules.
    let kinds = [
        "put_start, 512 keys that prefer a name of 1,000",
        "put_start, 512 keys that prefer 1,000 full segments",
        "put_start, 512 keys that prefer 1,000 full segments",
    ];
    for kind in kinds {
        put_and_abort(pool, 6, &preferring(MANY), kind);
    }
    let local = PutConfig { prefer_local: true, ..PutConfig::default() };
    put_and_abort(pool, OWNER_OF_MANY, &local, "put_start, 512 keys that prefer their own 1,000 full segments");
    let too_large = vec![2 * pool.segment_bytes(); REQUEST];
    let new = fresh(pool, REQUEST as u64);
    let kind = "put_start, 512 keys that are too large for any segment";
    pool.start_sized(6, &new, &too_large, &PutConfig::default(), true, kind);
}

/// Puts that are aborted at once: their room is in quarantine.
fn put_and_abort(pool: &mut Pool, session: u64, config: &PutConfig, kind: &'static str) {
    let new = fresh(pool, REQUEST as u64);
    let rids: Vec<Rid> = pool.reserve_with(session, &new, config, kind).into_iter().flatten().collect();
    let origin = pool.origin(session);
    pool.hold("abort, 512 puts", |core, now, fx| core.abort(now, origin, &rids, true, fx)).expect("known");
}

fn epoch_on_its_segments(pool: &mut Pool, uuids: &[SegmentUuid]) {
    let next = pool.core.epoch().number + 1;
    pool.hold("another epoch, 1,000 segments of one owner", |core, now, fx| core.raise_epoch(now, next, fx));
    pool.tick("tick, puts of an earlier epoch");
    for number in (1..=pool.size().segments).filter(|number| *number != OWNER_OF_MANY) {
        let its: Vec<_> = pool.segments_of(number).into_iter().map(|(uuid, _)| uuid).collect();
        pool.quietly(|core, now, fx| core.epoch_taken(now, SessionId(number), next, &its, fx));
    }
    pool.hold("an owner of 1,000 segments takes an epoch", |core, now, fx| {
        core.epoch_taken(now, SessionId(OWNER_OF_MANY), next, uuids, fx);
    });
    pool.tick("tick, owners have taken an epoch");
    pool.forget_fences();
}

/// Readers found replicas bad, as many as are looked at at a time, all of them on one segment.
pub fn bad_replicas(pool: &mut Pool) {
    let (owner, name) = with_a_large_segment(pool);
    let mut placed = Vec::new();
    for (writer, its) in fill_large(pool, name) {
        pool.end(writer, its.iter().map(|(_, rid)| vec![*rid]).collect(), "put_end");
        placed.extend(its);
    }
    for reported in placed.chunks(REPORTED).take(8) {
        pool.hold("512 replicas are reported bad", |core, now, fx| {
            for (key, rid) in reported {
                core.bad_replica(now, SessionId(1), key, *rid, fx);
            }
        });
    }
    pool.quietly(|core, now, fx| core.anchor_lost(now, SessionId(owner), fx));
    let held = pool.segments_of(owner);
    pool.hold("a session comes back, 4,096 replicas to look at", |core, now, fx| {
        core.resume_session(now, SessionId(owner), owner, &held, ListedViews::default(), fx)
    })
    .expect("known");
    for (nth, (_, rid)) in placed.iter().take(4 * REPORTED).enumerate() {
        pool.hold("an owner has looked at a replica", |core, now, fx| {
            core.rechecked(now, SessionId(owner), *rid, nth % 2 == 0, fx);
        });
    }
    let there: Vec<_> = placed.iter().skip(4 * REPORTED).map(|(key, _)| *key).collect();
    for keys in there.chunks(REQUEST / 2) {
        let (keys, origin): (Vec<&[u8]>, _) = (keys.iter().map(|key| &key[..]).collect(), pool.origin(1));
        pool.hold("clear_replicas, 256 keys", |core, now, fx| core.clear_replicas(now, origin, &keys, name, fx))
            .expect("known");
    }
    unmount_large(pool, owner, "unmount, 2,048 replicas to look at");
}
