//! What must hold when all is calm.

use std::time::Duration;

use mooncake_core::{Replica, Stats};
use mooncake_ids::{GRANULE, SessionId};

use crate::master::Master;
use crate::memory::Memory;
use crate::memory::ledger::Ledger;
use crate::store::Store;
use crate::store::callers::{LARGEST, REPLACEMENT};
use crate::world::World;

/// Every store has a session, and no session holds or waits for anything that is not there. But sessions whose end no
/// master and no owner saw keep their pins.
pub(crate) fn is_at_rest(seed: u64, master: &Master, stores: &[&Store], lenders: u64, unseen: &[u64]) {
    let ledger = stores[0].ledger();
    let stats = master.look(|core| core.stats());
    let is_known = |session: &&u64| master.look(|core| core.session_spec(SessionId(**session)).is_some());
    let count = stores.len() as u64;
    let unseen = match ledger.repeats_numbers() {
        // A process's session with another master is none that owners name to this one.
        true => stats.sessions_away,
        false => unseen.iter().filter(is_known).count() as u64,
    };
    assert_eq!(stats.sessions - unseen, count, "seed {seed}: sessions, {stats:?}");
    assert_eq!(stats.sessions_away, unseen, "seed {seed}: a store has not come back");
    assert!(stats.pins == 0 || unseen > 0, "seed {seed}: a pin without a view");
    assert_eq!(stats.unfinished_puts, 0, "seed {seed}: a put is stuck");
    assert_eq!(stats.quarantined_extents, 0, "seed {seed}: an extent is stuck in quarantine");
    assert_eq!(stats.segments_closed, 0, "seed {seed}: a segment is closed");
    assert_eq!(stats.tickets, 0, "seed {seed}: a parked request is stuck");
    assert_eq!(stats.segments_live, lenders, "seed {seed}: those lend memory that are to");
    for store in stores {
        assert!(store.all_listed(), "seed {seed}: a store thinks that its master does not know its views");
        let remains = store.remains();
        assert!(remains.is_empty(), "seed {seed}: memory is mapped that nobody lends or views: {remains:x?}");
    }
    let held: u64 = stores.iter().map(|store| store.held().len() as u64).sum();
    assert_eq!(held, lenders, "seed {seed}: what is lent is held");
}

/// Nothing is left of what was closed in a process that goes on.
pub(crate) fn closed_stores_are_over(seed: u64, closed: &[&Store]) {
    for store in closed {
        assert!(store.is_over(), "seed {seed}: a store that was closed has not ended");
        assert!(!store.server().serves(), "seed {seed}: a store that was closed serves memory");
    }
}

/// What callers were told is stored can be read, unless it was taken away or its owner ended.
pub(crate) fn acknowledged_objects_are_there(seed: u64, master: &Master, ledger: &Ledger) {
    let objects = ledger.objects();
    let granules = objects.values().flatten().map(|replica| replica.extent.length.div_ceil(GRANULE)).sum::<u64>();
    let stats = master.look(|core| core.stats());
    let is_lost = stats.pins == 0 && stats.used_bytes != granules * GRANULE;
    assert!(!is_lost, "seed {seed}: space is lost: {granules} granules of objects, {stats:?}");
    if !ledger.has_lost_tail() {
        let forgotten = ledger.forgotten(|number| master.look(|core| core.segment(number).is_some()));
        assert!(forgotten.is_empty(), "seed {seed}: acknowledged and forgotten: {forgotten:x?}");
    }
}

/// Each replica lies in its owner's memory as it was put there. Readers take any of them, and may not notice a bad one.
pub(crate) fn every_copy_is_whole(seed: u64, master: &Master, stores: &[&Store]) {
    let ledger = stores[0].ledger();
    if ledger.has_lost_tail() {
        // What a log has lost may have taken the place of what it has still.
        return;
    }
    for (key, Replica { rid, extent }) in
        ledger.objects().iter().flat_map(|(key, all)| all.iter().map(move |it| (key, it)))
    {
        let uuid = master.look(|core| core.segment(extent.segment).map(|segment| segment.uuid));
        let served = uuid.and_then(|uuid| stores.iter().find_map(|store| store.server().find(&uuid)));
        let memory = &served.unwrap_or_else(|| panic!("seed {seed}: nobody serves what has {rid:?}")).memory;
        assert!(memory.is_stamped(*rid, extent.offset, extent.length), "seed {seed}: {rid:?} is not readable");
        let words: Vec<u64> =
            Memory::granules(extent.offset, extent.length).map(|granule| memory.read(granule)).collect();
        ledger.was_read(key, *rid, &words);
    }
}

/// What is there can be read by every store: a replica that is not what the master thinks is found out by its readers.
pub(crate) fn every_object_can_be_read(world: &World, stores: &[&Store], ledger: &Ledger, keys: &[Vec<u8>]) {
    let done: Vec<_> = stores.iter().map(|store| store.get_each(keys.to_vec())).collect();
    world.run(Duration::from_secs(20));
    let (seed, objects) = (world.seed(), ledger.objects());
    for missed in done {
        let mut missed = missed.take().expect("20 s are enough");
        missed.retain(|key| objects.contains_key(key));
        assert!(missed.is_empty(), "seed {seed}: there, and not to be read: {missed:?}");
    }
}

/// Whether a value can be put in the place of any other, and both have room, wherever views lie: processes whose end
/// no owner can tell may have them on most of what little memory there is. Of what is free the most that does no good
/// is a granule on each side of what stays.
pub(crate) fn has_room_for_any_key(stats: &Stats) -> bool {
    let granules = stats.capacity_bytes.saturating_sub(stats.pinned_bytes) / GRANULE;
    let of_no_use = stats.pins + 1 + stats.segments_live;
    granules > LARGEST + (REPLACEMENT - 1) * of_no_use
}

/// No key is stuck: each can be put in the place of what is there.
pub(crate) fn every_key_can_be_put(world: &World, store: &Store, keys: Vec<Vec<u8>>) {
    let done = store.put_each(keys);
    world.run(Duration::from_secs(10));
    let (seed, outcome) = (world.seed(), done.take());
    assert_eq!(outcome, Some(Vec::new()), "seed {seed}: keys that cannot be put");
}
