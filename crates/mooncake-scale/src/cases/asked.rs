//! What clients, operators and scrapers ask for, and what is removed by a pattern.

use std::cell::RefCell;
use std::convert::Infallible;

use mooncake_core::{Core, Effects, KeysCursor, REMOVAL_SLOTS, Sight, Time};
use mooncake_ids::SessionId;
use mooncake_master::machine::SLICE;
use mooncake_master::machine::convert::SoftPinTtl;
use mooncake_master::machine::core_driver::CoreDriver;
use mooncake_master::machine::inspect::Inspected;
use mooncake_master::machine::removals::Removal;
use mooncake_master::machine::requests::{self, ReadRequest};
use mooncake_master::machine::segment_list;
use mooncake_wire::message::{self, Request, request};
use mooncake_wire::pack_keys;

use super::{fresh, keys, scattered, very_many};
use crate::pool::{Pool, REQUEST};

/// Bytes of keys that one step of a removal by a pattern copies.
const SHOWN_BYTES: usize = 64 << 10;

/// A master whose steps with the core are measured.
struct Master<'a> {
    pool: RefCell<&'a mut Pool>,
    kind: &'static str,
}

impl CoreDriver for Master<'_> {
    type Closed = Infallible;

    fn read<R>(&self, ask: impl FnOnce(&mut Core, Time) -> R) -> R {
        self.pool.borrow_mut().hold(self.kind, |core, now, _| ask(core, now))
    }

    fn apply<R>(&self, operation: impl FnOnce(&mut Core, Time, &mut Effects) -> R) -> Result<R, Infallible> {
        Ok(self.pool.borrow_mut().hold(self.kind, operation))
    }
}

impl Pool {
    fn master(&mut self, kind: &'static str) -> Master<'_> {
        Master { pool: RefCell::new(self), kind }
    }

    /// A query, as a master carries it out.
    fn ask(&mut self, body: request::Body, kind: &'static str) {
        let mut request = Request { body: Some(body), ..Request::default() };
        // Of puts alone.
        let soft_pin = SoftPinTtl { default_ms: 0, max_ms: 0 };
        let Ok(ReadRequest::Query(query)) = requests::read(&mut request, soft_pin) else { unreachable!("a query") };
        query.run(&self.master(kind), SessionId(1));
    }

    /// Whether there are objects with these keys, as a master looks.
    pub fn ask_exists(&mut self, keys: &[Vec<u8>], kind: &'static str) {
        self.ask(request::Body::Exists(message::Exists { keys: Some(pack_keys(keys)), sizes: false }), kind);
    }
}

/// Existence with replicas, addresses of segments, lists of segments and of keys.
pub fn lists(pool: &mut Pool) {
    for asked in scattered(pool, 65_536).chunks(8_192) {
        let ask = message::Describe { keys: Some(pack_keys(asked)) };
        pool.ask(request::Body::Describe(ask), "describe, a slice");
    }
    let numbers: Vec<u32> = pool.core.segments().map(|segment| segment.number.0).collect();
    for _ in 0..5 {
        let ask = message::Segments { numbers: numbers.clone() };
        pool.ask(request::Body::Segments(ask), "addresses of segments, a slice");
        segment_list::list(&pool.master("list of segments, a slice"));
        pool.hold("segments of a name", |core, _, _| core.segments_named("host-1:12345").count());
    }
    for asked in scattered(pool, 16_384).chunks(8_192) {
        let asked: Vec<&[u8]> = asked.iter().map(|key| &key[..]).collect();
        Inspected::of(&pool.master("page of keys with their replicas, a slice"), &asked);
    }
    let (mut cursor, mut page) = (KeysCursor::default(), Vec::new());
    while !pool.hold("list of keys, a slice", |core, _, _| {
        page.clear();
        core.keys_slice(&mut cursor, SLICE, |key| page.extend_from_slice(key))
    }) {}
    pool.pass(3_000, |_| false);
    pool.tick("tick");
}

/// One object of sixteen has a key that matches, as far as there are not very many.
pub fn remove_by_pattern(pool: &mut Pool) {
    let most = very_many(pool);
    let mut removal = pool.hold("removal by a pattern, its beginning", |core, _, _| Removal::begin(core, true, None));
    let mut is_shown = false;
    while !is_shown && removal.removed() < most {
        let mut chosen = Vec::new();
        is_shown = pool.hold("removal by a pattern, what is there", |core, now, _| {
            removal.show(core, now, REMOVAL_SLOTS, SHOWN_BYTES, |candidate, key| {
                if key.ends_with(b"7") {
                    chosen.push(candidate);
                }
            })
        });
        pool.hold("removal by a pattern, a slice", |core, now, fx| removal.take(core, now, &chosen, fx));
    }
    // All of what is there matches.
    while !is_shown && removal.removed() < 2 * most {
        let mut chosen = Vec::new();
        is_shown = pool.hold("removal by a pattern, what is there", |core, now, _| {
            removal.show(core, now, REMOVAL_SLOTS, SHOWN_BYTES, |candidate, _| chosen.push(candidate))
        });
        pool.hold("removal by a pattern, a slice", |core, now, fx| removal.take(core, now, &chosen, fx));
    }
    drop(removal);
    pool.refill();
}

/// A removal begins beside very many unfinished puts, which it spares though they end beside it.
pub fn removal_beside_puts(pool: &mut Pool) {
    let mut rids = Vec::new();
    for session in pool.others(super::WAITING) {
        let new = fresh(pool, REQUEST as u64);
        rids.push((session, pool.reserve(session, &new, "put_start, 512 keys in a full pool")));
    }
    let mut removal =
        pool.hold("remove_all begins, 102,400 unfinished puts", |core, _, _| Removal::begin(core, true, None));
    for (session, rids) in rids {
        pool.end(session, rids, "put_end beside a removal");
    }
    pool.hold("remove_all, a slice", |core, now, fx| removal.take_all(core, now, REMOVAL_SLOTS, fx));
    drop(removal);
    pool.tick("tick, a removal has ended");
    pool.refill();
}

/// Gets and existence queries of keys that each renew a large group.
pub fn groups(pool: &mut Pool) {
    const MEMBERS: u64 = 1_024;
    let count = (pool.size().objects / 4 / MEMBERS).clamp(1, REQUEST as u64);
    let mut first = Vec::new();
    for number in 0..count {
        let from = pool.fresh(MEMBERS);
        first.push(from);
        let name: Box<[u8]> = format!("group-{number}").into_bytes().into();
        for from in (from..from + MEMBERS).step_by(REQUEST) {
            let new = keys(from, REQUEST as u64);
            let groups = vec![name.clone(); REQUEST];
            let config = mooncake_core::PutConfig { groups, ..mooncake_core::PutConfig::default() };
            let rids = pool.reserve_with(1, &new, &config, "put_start, 512 keys of a group");
            pool.end(1, rids, "put_end, 512 keys of a group");
        }
    }
    // Of very many more each has one.
    for _ in 0..(pool.size().objects / 8).min(262_144) / REQUEST as u64 {
        let from = pool.fresh(REQUEST as u64);
        let groups =
            (from..from + REQUEST as u64).map(|number| format!("alone-{number}").into_bytes().into()).collect();
        let config = mooncake_core::PutConfig { groups, ..mooncake_core::PutConfig::default() };
        let rids = pool.reserve_with(1, &keys(from, REQUEST as u64), &config, "put_start, 512 keys of as many groups");
        pool.end(1, rids, "put_end, 512 keys of as many groups");
    }
    let asked: Vec<_> = first.into_iter().map(crate::pool::key).collect();
    pool.hold("exists, 512 keys of large groups", |core, now, _| {
        core.exists(now, Sight::Tiers, asked.iter().map(|key| &key[..]), |_| {});
    });
    pool.hold("lookup, 512 keys of large groups", |core, now, _| {
        core.lookup(now, SessionId(1), asked.iter().map(|key| &key[..]), |_| {});
    });
    pool.pass(3_000, |_| false);
    pool.tick("tick, protection of large groups lapses");
}
