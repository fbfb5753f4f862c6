//! What happens to a large pool on a bad day.

use mooncake_core::{GRANULE, ListedViews, PutConfig, RemoveAll, Rid, STEP, SessionId};
use mooncake_master::machine::SLICE;
use mooncake_master::machine::hello::SEARCHED;

use crate::compaction::snapshot;
use crate::pool::{KEY, Pool, REQUEST, key};

/// Requests that wait at one time.
const WAITING: u64 = 200;

/// What one case does to the pool. Each leaves it as large as it was, but for the last ones.
pub type Case = fn(&mut Pool);

/// All of them, in the order in which they can follow each other.
pub const CASES: &[Case] = &[
    queries,
    figures,
    snapshot,
    eviction,
    protection_lapses,
    wait_for_keys,
    wait_for_views,
    wait_for_protection,
    wait_for_others,
    overdue_puts,
    unknown_view,
    flap,
    unmount,
    session_over,
    many_sessions_over,
    remove_all,
];

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
    for asked in scattered(pool, 65_536).chunks(SLICE) {
        pool.hold("exists, a slice", |core, now, _| core.exists(now, asked.iter().map(|key| &key[..]), |_| {}));
        pool.hold("lookup, a slice", |core, now, _| {
            core.lookup(now, SessionId(1), asked.iter().map(|key| &key[..]), |_| {});
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
        pool.quietly(|core, now, _| core.exists(now, asked.iter().map(|key| &key[..]), |_| {}));
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
    while !pool.hold("a view that is not known, a slice of the search", |core, _, _| {
        core.look_for_views(SessionId(3), &mut views, SEARCHED)
    }) {}
    pool.hold("resume with a view that is not known", |core, now, fx| {
        core.resume_session(now, SessionId(3), 3, &held, &views, fx)
    })
    .expect("known");
}

fn flap(pool: &mut Pool) {
    for session in pool.others(100) {
        let held = pool.segments_of(session);
        pool.hold("an anchor breaks", |core, now, fx| core.anchor_lost(now, SessionId(session), fx));
        pool.hold("a session comes back", |core, now, fx| {
            core.resume_session(now, SessionId(session), session, &held, &ListedViews::default(), fx)
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
        pool.quietly(|core, now, fx| core.resume_session(now, SessionId(session), session, &held, &views, fx))
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

fn many_sessions_over(pool: &mut Pool) {
    let last = pool.size().segments;
    pool.pass(3_000, |number| number > last / 2);
    pool.tick("tick, 500 sessions fall silent");
    pool.pass(601_000, |number| number > last / 2);
    pool.tick("tick, 500 sessions expire");
}

fn remove_all(pool: &mut Pool) {
    let mut cursor = RemoveAll::new(&pool.core, true);
    while !pool.hold("remove_all, a slice", |core, now, fx| core.remove_all_slice(now, &mut cursor, STEP, fx)) {}
}
