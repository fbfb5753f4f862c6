//! What happens to a large pool on a bad day.

use mooncake_core::{ListedViews, Origin, PutConfig, REMOVAL_SLOTS, RemoveAll, STEP_OBJECTS, Sight};
use mooncake_ids::{GRANULE, Rid, SessionId};
use mooncake_master::machine::SLICE;
use mooncake_master::machine::hello::SEARCHED;

use crate::compaction::snapshot;
use crate::pool::{KEY, Pool, REQUEST, key};

mod asked;
mod large;
mod owners;
mod replies;

/// Requests that wait at one time.
const WAITING: u64 = 200;

/// What one case does to the pool. Each leaves it as large as it was, but for the last ones.
pub type Case = fn(&mut Pool);

/// All of them, in the order in which they can follow each other.
pub const CASES: &[Case] = &[
    queries,
    asked::lists,
    figures,
    snapshot,
    eviction,
    protection_lapses,
    wait_for_keys,
    newcomers,
    wait_for_views,
    wait_for_protection,
    wait_for_others,
    overdue_puts,
    unknown_view,
    flap,
    unmount,
    session_over,
    writer_goes_away,
    views_on_a_segment,
    puts_on_a_segment,
    quarantine_of_a_segment,
    views_of_a_session,
    gone_segments,
    several_replicas,
    another_epoch,
    replies_of_a_session,
    segments_of_a_session,
    owners::one_by_one,
    owners::fences_asked_again,
    owners::beats,
    owners::bad_replicas,
    replies::late_and_given_up,
    asked::removal_beside_puts,
    asked::remove_by_pattern,
    asked::groups,
    owners::owner_of_many,
    large::epoch_on_many,
    large::lists_none_of_its_segments,
    large::second_copies,
    large::many_of_many_fall_silent,
    large::free_runs,
    large::replies_at_once,
    large::long_keys,
    large::soft_pins,
    many_sessions_over,
    remove,
    remove_all,
];

/// What hangs on one session, or on one segment, where very much does.
const VERY_MANY: u64 = 50_000;

fn very_many(pool: &Pool) -> u64 {
    VERY_MANY.min(pool.size().objects / 4)
}

fn keys(from: u64, count: u64) -> Vec<[u8; KEY]> {
    (from..from + count).map(key).collect()
}

fn scattered(pool: &Pool, count: u64) -> Vec<[u8; KEY]> {
    let objects = pool.size().objects;
    (0..count).map(|nth| key(nth.wrapping_mul(0x9e37_79b9_7f4a_7c15) % objects)).collect()
}

fn fresh(pool: &mut Pool, count: u64) -> Vec<[u8; KEY]> {
    let from = pool.fresh(count);
    keys(from, count)
}

fn queries(pool: &mut Pool) {
    // As the master cuts them.
    for asked in scattered(pool, 2 * 65_536).chunks(2 * SLICE) {
        // Each finds objects that the other has not brought into the caches.
        let (asked, read) = asked.split_at(SLICE);
        pool.hold("exists, a slice", |core, now, _| {
            core.exists(now, Sight::Tiers, asked.iter().map(|key| &key[..]), |_| {})
        });
        pool.hold("lookup, a slice", |core, now, _| {
            core.lookup(now, SessionId(1), read.iter().map(|key| &key[..]), |_| {});
        });
    }
    pool.pass(3_000, |_| false);
    pool.tick("tick, 65,536 objects' protection lapses");
}

fn figures(pool: &mut Pool) {
    for _ in 0..5 {
        pool.hold("figures for the metrics", |core, _, _| core.stats());
    }
}

fn eviction(pool: &mut Pool) {
    for _ in 0..20 {
        let new = fresh(pool, REQUEST as u64);
        pool.put(1, &new, "put_start, 512 keys in a full pool");
    }
    let new = fresh(pool, 8_192);
    pool.put(1, &new, "put_start, 8,192 keys of an older client");
    // As large as what a segment has: objects go until one of all segments has the room.
    let large = fresh(pool, 1);
    let bytes = pool.segment_bytes() / 2;
    pool.start(2, &large, bytes, &PutConfig::default(), true, "put_start, half of a segment in a full pool");
    for _ in 0..200 {
        pool.pass(20, |_| false);
        pool.tick("tick, a large put waits");
    }
    pool.give_up();
}

fn protection_lapses(pool: &mut Pool) {
    for from in (0..pool.size().objects.min(1_000_000)).step_by(REQUEST) {
        let asked = keys(from, REQUEST as u64);
        pool.quietly(|core, now, _| core.exists(now, Sight::Tiers, asked.iter().map(|key| &key[..]), |_| {}));
    }
    pool.pass(3_000, |_| false);
    pool.tick("tick, 1,000,000 objects' protection lapses");
}

fn wait_for_keys(pool: &mut Pool) {
    let new = fresh(pool, REQUEST as u64);
    let rids = pool.reserve(1, &new, "put_start, 512 keys in a full pool");
    for session in pool.others(WAITING) {
        pool.start(session, &new, GRANULE, &PutConfig::default(), true, "put_start, 512 keys that another one puts");
    }
    pool.end(1, rids, "put_end, 512 keys that 200 wait for");
    pool.tick("tick, 200 wait for 512 keys");
    // Each of the keys by itself.
    let new = fresh(pool, REQUEST as u64);
    let rids = pool.reserve(1, &new, "put_start, 512 keys in a full pool");
    for session in pool.others(WAITING) {
        pool.start(session, &new, GRANULE, &PutConfig::default(), true, "put_start, 512 keys that another one puts");
    }
    for rids in rids {
        pool.end(1, vec![rids], "put_end, one of 512 keys that 200 wait for");
    }
    pool.give_up();
}

/// Others want keys that 200 wait for and that have just been given up, before all of those have heard of it.
fn newcomers(pool: &mut Pool) {
    for _ in 0..4 {
        let new = fresh(pool, REQUEST as u64);
        let rids = pool.reserve(1, &new, "put_start, 512 keys in a full pool");
        for session in pool.others(WAITING) {
            pool.start(
                session,
                &new,
                GRANULE,
                &PutConfig::default(),
                true,
                "put_start, 512 keys that another one puts",
            );
        }
        let (rids, origin): (Vec<Rid>, _) = (rids.into_iter().flatten().collect(), pool.origin(1));
        pool.hold("abort, 512 puts that 200 wait for", |core, now, fx| core.abort(now, origin, &rids, true, fx))
            .expect("known");
        let kind = "put_start, 512 keys that others are yet to hear of";
        pool.start(2, &new, GRANULE, &PutConfig::default(), true, kind);
    }
    pool.tick("tick, 200 wait for 512 keys");
    pool.give_up();
}

fn wait_for_views(pool: &mut Pool) {
    // A view on each segment.
    let viewed = pool.one_of_each_segment();
    let viewed: Vec<&[u8]> = viewed.iter().map(|key| &key[..]).collect();
    let mut found = Vec::new();
    for viewed in viewed.chunks(REQUEST) {
        let origin = pool.origin(1);
        found.extend(pool.hold("pin, 512 keys", |core, now, fx| core.pin(now, origin, viewed, fx)).expect("known"));
    }
    let rids: Vec<Rid> = found.iter().flatten().filter_map(|found| Some(found.replicas.first()?.rid)).collect();
    let whole = pool.segment_bytes();
    for session in pool.others(WAITING) {
        let new = fresh(pool, REQUEST as u64);
        let config = PutConfig::default();
        let sizes: Vec<u64> = (0..REQUEST as u64).map(|nth| whole - nth % 64 * GRANULE).collect();
        pool.start_sized(session, &new, &sizes, &config, true, "put_start, 512 keys that views leave no room for");
    }
    for chunk in rids.chunks(REQUEST) {
        let origin = pool.origin(1);
        pool.hold("unpin, 512 views that 200 wait for", |core, now, fx| core.unpin(now, origin, chunk, fx))
            .expect("known");
    }
    pool.pass(2_000, |_| false);
    pool.tick("tick, 200 that waited for views are due");
    pool.give_up();
}

fn wait_for_protection(pool: &mut Pool) {
    pool.protect_all();
    for session in pool.others(WAITING) {
        let new = fresh(pool, REQUEST as u64);
        pool.start(session, &new, GRANULE, &PutConfig::default(), true, "put_start, 512 keys while all is protected");
    }
    pool.pass(1_100, |_| false);
    pool.tick("tick, 200 that waited for room are due");
    pool.give_up();
}

fn wait_for_others(pool: &mut Pool) {
    pool.protect_all();
    let config = PutConfig { first_rid: Some(Rid(1)), ..PutConfig::default() };
    for session in pool.others(WAITING) {
        let new = fresh(pool, REQUEST as u64);
        pool.start(session, &new, GRANULE, &config, true, "put_start, 512 keys that spare their own");
    }
    for _ in 0..20 {
        pool.pass(20, |_| false);
        pool.tick("tick, 200 spare their own");
    }
    pool.give_up();
}

fn overdue_puts(pool: &mut Pool) {
    pool.pass(5_000, |_| false);
    pool.tick("tick");
    for session in pool.others(WAITING) {
        let new = fresh(pool, REQUEST as u64);
        pool.reserve(session, &new, "put_start, 512 keys in a full pool");
    }
    for _ in 0..40 {
        pool.pass(1_000, |_| false);
        pool.tick("tick, 102,400 puts are overdue");
    }
    pool.answer_fences("owners answer for them");
    pool.refill();
}

fn unknown_view(pool: &mut Pool) {
    pool.quietly(|core, now, fx| core.anchor_lost(now, SessionId(3), fx));
    let held = pool.segments_of(3);
    let mut views = ListedViews::new(vec![Rid(!1)]);
    while !pool.hold("a list of views, a slice", |core, _, _| core.look_for_views(SessionId(3), &mut views, SEARCHED)) {
    }
    pool.hold("resume with a view that is not known", |core, now, fx| {
        core.resume_session(now, SessionId(3), 3, &held, views, fx)
    })
    .expect("known");
}

fn flap(pool: &mut Pool) {
    for session in pool.others(100) {
        let held = pool.segments_of(session);
        pool.hold("an anchor breaks", |core, now, fx| core.anchor_lost(now, SessionId(session), fx));
        pool.hold("a session comes back", |core, now, fx| {
            core.resume_session(now, SessionId(session), session, &held, ListedViews::default(), fx)
        })
        .expect("known");
    }
    // While most are away much of what is cold lies where nothing can be placed.
    let away: Vec<u64> = pool.others(pool.size().segments / 2).collect();
    for session in &away {
        pool.quietly(|core, now, fx| core.anchor_lost(now, SessionId(*session), fx));
    }
    for _ in 0..20 {
        let new = fresh(pool, REQUEST as u64);
        pool.put(1, &new, "put_start, 512 keys, half of the pool away");
    }
    for session in away {
        let held = pool.segments_of(session);
        let views = ListedViews::default();
        pool.quietly(|core, now, fx| core.resume_session(now, SessionId(session), session, &held, views, fx))
            .expect("known");
    }
    for _ in 0..20 {
        let new = fresh(pool, REQUEST as u64);
        pool.put(1, &new, "put_start, 512 keys, half of the pool is back");
    }
}

fn unmount(pool: &mut Pool) {
    let number = pool.size().segments;
    let (uuid, _) = pool.segments_of(number)[0];
    let origin = pool.origin(number);
    pool.hold("unmount", |core, now, fx| core.unmount(now, origin, uuid, 0, fx)).expect("its own");
    pool.tick("tick, behind a segment that is gone");
    pool.mount(number, pool.segment_bytes());
}

fn session_over(pool: &mut Pool) {
    let number = pool.size().segments - 1;
    let viewed = pool.newest(4_096);
    for viewed in viewed.chunks(REQUEST) {
        let viewed: Vec<&[u8]> = viewed.iter().map(|key| &key[..]).collect();
        let origin = pool.origin(number);
        pool.hold("pin, 512 keys", |core, now, fx| core.pin(now, origin, &viewed, fx)).expect("known");
    }
    for _ in 0..8 {
        let new = fresh(pool, REQUEST as u64);
        pool.reserve(number, &new, "put_start, 512 keys in a full pool");
    }
    pool.hold("a process ends that had 4,096 views and puts", |core, now, fx| {
        core.process_gone(now, SessionId(number), fx);
    });
    pool.tick("tick, behind a segment that is gone");
}

/// A session that has a segment of its own kind besides, with room for very many objects, and the segment's name.
fn with_a_large_segment(pool: &mut Pool) -> (u64, &'static str) {
    let (owner, name) = (5, "large:1");
    pool.mount_as(owner, name, very_many(pool) * GRANULE);
    (owner, name)
}

fn preferring(name: &str) -> PutConfig {
    PutConfig { preferred_segments: vec![name.to_owned()], ..PutConfig::default() }
}

/// What a writer has placed with one request.
type Placed = (u64, Vec<([u8; KEY], Rid)>);

/// Placements on the large segment, by a hundred writers in turn.
fn fill_large(pool: &mut Pool, name: &str) -> Vec<Placed> {
    let mut placed = Vec::new();
    for writer in pool.others(100).cycle().take(very_many(pool) as usize / REQUEST) {
        let new = fresh(pool, REQUEST as u64);
        let rids = pool.reserve_with(writer, &new, &preferring(name), "put_start, 512 keys that prefer a segment");
        placed.push((writer, new.into_iter().zip(rids.into_iter().flatten()).collect()));
    }
    placed
}

fn unmount_large(pool: &mut Pool, owner: u64, kind: &'static str) {
    let large = pool.core.segments().find(|segment| segment.name == "large:1").map(|segment| segment.uuid);
    let (uuid, origin) = (large.expect("mounted"), pool.origin(owner));
    pool.hold(kind, |core, now, fx| core.unmount(now, origin, uuid, 0, fx)).expect("its own");
    pool.tick("tick, behind a large segment that is gone");
    pool.pass(3_000, |_| false);
    pool.tick("tick");
}

fn writer_goes_away(pool: &mut Pool) {
    let new = fresh(pool, REQUEST as u64);
    pool.reserve(3, &new, "put_start, 512 keys in a full pool");
    for session in pool.others(WAITING) {
        pool.start(session, &new, GRANULE, &PutConfig::default(), true, "put_start, 512 keys that another one puts");
    }
    let held = pool.segments_of(3);
    pool.hold("an anchor breaks, 200 wait for its keys", |core, now, fx| core.anchor_lost(now, SessionId(3), fx));
    pool.tick("tick, 200 waited for keys of one that is away");
    let views = ListedViews::default();
    pool.quietly(|core, now, fx| core.resume_session(now, SessionId(3), 3, &held, views, fx)).expect("known");
    pool.give_up();
}

fn views_on_a_segment(pool: &mut Pool) {
    let (owner, name) = with_a_large_segment(pool);
    let placed = fill_large(pool, name);
    for (writer, placed) in &placed {
        pool.end(*writer, placed.iter().map(|(_, rid)| vec![*rid]).collect(), "put_end");
    }
    let placed: Vec<([u8; KEY], Rid)> = placed.into_iter().flat_map(|(_, placed)| placed).collect();
    pin_all(pool, 20, &placed);
    let views: Vec<Rid> = placed.iter().map(|(_, rid)| *rid).collect();
    comes_back(pool, views.clone(), "resume with very many views");
    unmount_large(pool, owner, "unmount, very many views there");
    unpin_all(pool, 20, &views);
    lists_none(pool);
    lists_unknown_ones(pool);
    lists_views_that_the_log_lost(pool);
}

/// A reader was away that let go of all that it viewed.
fn lists_none(pool: &mut Pool) {
    let viewed = pool.newest(very_many(pool) as usize);
    let viewed: Vec<([u8; KEY], Rid)> = viewed.into_iter().map(|key| (key, Rid(0))).collect();
    pin_all(pool, 20, &viewed);
    comes_back(pool, Vec::new(), "resume without any of very many views");
    pool.tick("tick, very many views have ended");
}

/// The log lost its end, and with it very many views and what they are of.
fn lists_unknown_ones(pool: &mut Pool) {
    let views = (0..very_many(pool)).map(|nth| Rid::new(u16::MAX, 1 + nth)).collect();
    comes_back(pool, views, "resume with very many views that are not known");
    comes_back(pool, Vec::new(), "resume without any of them");
}

/// The log lost its end, and with it very many views of what others view as well.
fn lists_views_that_the_log_lost(pool: &mut Pool) {
    let viewed = pool.newest(very_many(pool) as usize);
    let mut views = Vec::new();
    for viewed in viewed.chunks(REQUEST) {
        let viewed: Vec<&[u8]> = viewed.iter().map(|key| &key[..]).collect();
        let origin = pool.origin(21);
        let found = pool.hold("pin, 512 keys", |core, now, fx| core.pin(now, origin, &viewed, fx)).expect("known");
        views.extend(found.iter().flatten().filter_map(|found| Some(found.replicas.first()?.rid)));
    }
    assert_eq!(views.len(), viewed.len(), "all of them are there");
    comes_back(pool, views.clone(), "resume with very many views that the log lost");
    unpin_all(pool, 20, &views);
    unpin_all(pool, 21, &views);
}

fn comes_back(pool: &mut Pool, views: Vec<Rid>, kind: &'static str) {
    pool.quietly(|core, now, fx| core.anchor_lost(now, SessionId(20), fx));
    let held = pool.segments_of(20);
    let listed = resume_views(pool, 20, views);
    pool.hold(kind, |core, now, fx| core.resume_session(now, SessionId(20), 20, &held, listed, fx)).expect("known");
}

fn pin_all(pool: &mut Pool, session: u64, placed: &[([u8; KEY], Rid)]) {
    for viewed in placed.chunks(REQUEST) {
        let viewed: Vec<&[u8]> = viewed.iter().map(|(key, _)| &key[..]).collect();
        let origin = pool.origin(session);
        pool.hold("pin, 512 keys", |core, now, fx| core.pin(now, origin, &viewed, fx)).expect("known");
    }
    // Its client has the answers.
    let next = pool.origin(session).sequence;
    pool.quietly(|core, _, _| core.settle_replies(SessionId(session), next, &[]));
}

fn unpin_all(pool: &mut Pool, session: u64, rids: &[Rid]) {
    for rids in rids.chunks(REQUEST) {
        let origin = pool.origin(session);
        pool.hold("unpin, 512 views", |core, now, fx| core.unpin(now, origin, rids, fx)).expect("known");
    }
}

fn resume_views(pool: &mut Pool, session: u64, views: Vec<Rid>) -> ListedViews {
    let (session, mut views) = (SessionId(session), ListedViews::new(views));
    loop {
        while !pool.hold("a list of views, a slice", |core, _, _| core.look_for_views(session, &mut views, SEARCHED)) {}
        if !views.has_found() {
            return views;
        }
        pool.hold("a list of views, a step of those that the log lost", |core, now, fx| {
            core.note_found_views(now, session, &mut views, STEP_OBJECTS, fx);
        });
    }
}

fn puts_on_a_segment(pool: &mut Pool) {
    let (owner, name) = with_a_large_segment(pool);
    fill_large(pool, name);
    pool.hold("the master was stopped, very many puts", |core, now, _| core.stalled(now));
    unmount_large(pool, owner, "unmount, very many puts there");
}

fn quarantine_of_a_segment(pool: &mut Pool) {
    for comes_back in [true, false] {
        let (owner, name) = with_a_large_segment(pool);
        let placed = fill_large(pool, name);
        pool.quietly(|core, now, fx| core.anchor_lost(now, SessionId(owner), fx));
        let held = pool.segments_of(owner);
        for (writer, placed) in placed {
            let origin = pool.origin(writer);
            let rids: Vec<Rid> = placed.iter().map(|(_, rid)| *rid).collect();
            pool.hold("abort, 512 puts", |core, now, fx| core.abort(now, origin, &rids, true, fx)).expect("known");
        }
        let views = ListedViews::default();
        pool.hold("a session comes back, very much in quarantine", |core, now, fx| {
            core.resume_session(now, SessionId(owner), owner, &held, views, fx)
        })
        .expect("known");
        pool.tick("tick, very much in quarantine");
        if comes_back {
            pool.answer_fences("owners answer for them");
        }
        unmount_large(pool, owner, "unmount, very much in quarantine");
        pool.forget_fences();
    }
}

fn views_of_a_session(pool: &mut Pool) {
    let viewed = pool.newest(very_many(pool) as usize);
    let viewed: Vec<([u8; KEY], Rid)> = viewed.into_iter().map(|key| (key, Rid(0))).collect();
    let reader = pool.size().segments - 2;
    pin_all(pool, reader, &viewed);
    pool.pass(3_000, |number| number == reader);
    pool.tick("tick");
    pool.pass(601_000, |number| number == reader);
    pool.tick("tick, a session with very many views expires");
}

fn gone_segments(pool: &mut Pool) {
    let held = pool.segments_of(22);
    pool.quietly(|core, now, fx| core.anchor_lost(now, SessionId(22), fx));
    for _ in 0..1_024 {
        pool.mount_as(5, "small:1", GRANULE);
        let gone = pool.core.segments().find(|segment| segment.name == "small:1").map(|segment| segment.uuid);
        let (uuid, origin) = (gone.expect("mounted"), pool.origin(5));
        pool.quietly(|core, now, fx| core.unmount(now, origin, uuid, 0, fx)).expect("its own");
    }
    pool.hold("a session comes back, 1,024 segments have gone", |core, now, fx| {
        core.resume_session(now, SessionId(22), 22, &held, ListedViews::default(), fx)
    })
    .expect("known");
    pool.tick("tick, 1,024 segments to be told of");
}

fn several_replicas(pool: &mut Pool) {
    let config = PutConfig { replica_num: 2, ..PutConfig::default() };
    // As its client cuts them.
    let request = REQUEST as u64 / 2;
    for _ in 0..(pool.size().objects / 4).min(500_000) / request {
        let new = fresh(pool, request);
        let rids = pool.reserve_with(1, &new, &config, "put_start, 256 keys of two replicas");
        pool.end(1, rids, "put_end");
    }
    for _ in 0..5 {
        pool.hold("figures for the metrics, several replicas", |core, _, _| core.stats());
    }
    let away: Vec<u64> = pool.others(pool.size().segments / 2).collect();
    for session in &away {
        pool.hold("an anchor breaks, several replicas", |core, now, fx| {
            core.anchor_lost(now, SessionId(*session), fx);
        });
    }
    pool.tick("tick, half of the pool is away, several replicas");
    pool.hold("figures for the metrics, several replicas", |core, _, _| core.stats());
    for session in away {
        let held = pool.segments_of(session);
        let views = ListedViews::default();
        pool.quietly(|core, now, fx| core.resume_session(now, SessionId(session), session, &held, views, fx))
            .expect("known");
    }
    pool.tick("tick, half of the pool is back, several replicas");
}

fn another_epoch(pool: &mut Pool) {
    for session in pool.others(WAITING) {
        let new = fresh(pool, REQUEST as u64);
        pool.reserve(session, &new, "put_start, 512 keys in a full pool");
    }
    let next = pool.core.epoch().number + 1;
    pool.hold("another epoch, 102,400 unfinished puts", |core, now, fx| core.raise_epoch(now, next, fx));
    pool.tick("tick, puts of an earlier epoch");
    for owner in 1..=pool.size().segments {
        let its: Vec<_> = pool.segments_of(owner).into_iter().map(|(uuid, _)| uuid).collect();
        pool.hold("an owner takes an epoch", |core, now, fx| {
            core.epoch_taken(now, SessionId(owner), next, &its, fx);
        });
    }
    pool.tick("tick, owners have taken an epoch");
    pool.forget_fences();
    pool.refill();
}

/// One mutation takes long, and its client has the answers to very many after it; a snapshot is being taken.
fn replies_of_a_session(pool: &mut Pool) {
    let first = pool.origin(23).sequence;
    let new = fresh(pool, REQUEST as u64);
    let entries: Vec<(&[u8], u64)> = new.iter().map(|key| (&key[..], GRANULE)).collect();
    for _ in 0..(pool.size().objects / 1_000).min(1_000) {
        let origin = Origin { answered_below: first, ..pool.origin(23) };
        pool.quietly(|core, now, fx| core.put_start(now, origin, &entries, &PutConfig::default(), false, fx))
            .expect("known");
    }
    let next = pool.origin(23).sequence;
    pool.core.begin_snapshot();
    pool.hold("a client has the answers to 1,000 requests of 512 keys", |core, _, _| {
        core.settle_replies(SessionId(23), next, &[first]);
    });
    pool.tick("tick, 1,000 replies are forgotten beside a snapshot");
    drop(pool.core.end_snapshot());
    pool.pass(40_000, |_| false);
    pool.tick("tick");
    pool.answer_fences("owners answer for them");
    pool.refill();
}

/// An owner of very many segments flaps, in a pool with few objects of several replicas or very many.
fn segments_of_a_session(pool: &mut Pool) {
    for _ in 0..1_000 {
        pool.mount_as(24, "small:24", GRANULE);
    }
    for _ in 0..5 {
        let held = pool.segments_of(24);
        pool.hold("an anchor breaks, 1,000 segments", |core, now, fx| core.anchor_lost(now, SessionId(24), fx));
        pool.tick("tick, behind it");
        let views = ListedViews::default();
        pool.hold("a session comes back, 1,000 segments", |core, now, fx| {
            core.resume_session(now, SessionId(24), 24, &held, views, fx)
        })
        .expect("known");
        pool.tick("tick, behind it");
    }
}

fn many_sessions_over(pool: &mut Pool) {
    let last = pool.size().segments;
    pool.pass(3_000, |number| number > last / 2);
    pool.tick("tick, 500 sessions fall silent");
    pool.pass(601_000, |number| number > last / 2);
    pool.tick("tick, 500 sessions expire");
}

fn remove(pool: &mut Pool) {
    // As their clients cut them.
    let there = pool.newest(very_many(pool) as usize);
    for some in there.chunks(REQUEST / 2) {
        let (keys, origin): (Vec<&[u8]>, _) = (some.iter().map(|key| &key[..]).collect(), pool.origin(1));
        pool.hold("remove, 256 keys", |core, now, fx| core.remove(now, origin, &keys, true, fx)).expect("known");
    }
}

fn remove_all(pool: &mut Pool) {
    let mut cursor = RemoveAll::new(&mut pool.core, true);
    while !pool.hold("remove_all, a slice", |core, now, fx| core.remove_all_slice(now, &mut cursor, REMOVAL_SLOTS, fx))
    {
    }
}
