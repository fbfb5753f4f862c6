//! Removals of many objects, in slices between which others have the core; and of tiers with what they have.

use std::sync::Arc;

use mooncake_core::{Candidate, Core, Effects, Origin, REMOVAL_SLOTS};
use mooncake_ids::TierUuid;
use tokio::sync::Semaphore;

use crate::log::LogClosed;
use crate::machine::pattern::Pattern;
use crate::machine::removals::Removal;
use crate::metrics::Op;
use crate::shared::Shared;

/// Bytes of keys copied out under one lock of the core.
pub const SLICE_KEY_BYTES: usize = 64 << 10;

/// Long keys and a costly pattern take seconds: one search runs at a time, on a thread that no other request waits for.
static SEARCH: Semaphore = Semaphore::const_new(1);

/// Removes every object that is there now and returns how many. It takes slices, so that no other call waits longer
/// than one of them. It stops when the mutation that asked for it, if any, is abandoned.
pub async fn remove_all(shared: &Arc<Shared>, force: bool, origin: Option<Origin>) -> Result<u64, LogClosed> {
    let mut removal = shared.read(|core, _| Removal::begin(core, force, origin));
    loop {
        let mut slice =
            |core: &mut Core, now, effects: &mut Effects| removal.take_all(core, now, REMOVAL_SLOTS, effects);
        // Two holds of the lock, and one wait for the disk.
        shared.apply_with_next(&mut slice);
        if shared.apply_async(slice).await? {
            break;
        }
        tokio::task::yield_now().await;
    }
    end(shared, Op::RemoveAll).await?;
    Ok(removal.removed())
}

/// Removes the objects whose keys match, in slices; returns how many. The keys are matched without the core's lock.
pub async fn remove_matching(
    shared: &Arc<Shared>,
    pattern: &Pattern,
    force: bool,
    origin: Origin,
) -> Result<u64, LogClosed> {
    let mut removal = shared.read(|core, _| Removal::begin(core, force, Some(origin)));
    loop {
        let mut keys: Vec<u8> = Vec::new();
        let mut shown: Vec<(Candidate, usize)> = Vec::new();
        let finished = shared.read(|core, now| {
            removal.show(core, now, REMOVAL_SLOTS, SLICE_KEY_BYTES, |candidate, key| {
                keys.extend_from_slice(key);
                shown.push((candidate, keys.len()));
            })
        });
        let chosen = {
            let _turn = SEARCH.acquire().await;
            let pattern = pattern.clone();
            let search = move || {
                let starts = std::iter::once(0).chain(shown.iter().map(|(_, end)| *end));
                let matching = shown.iter().zip(starts).filter(|((_, end), start)| pattern.is_in(&keys[*start..*end]));
                matching.map(|((candidate, _), _)| candidate.clone()).collect::<Vec<Candidate>>()
            };
            // Nothing is removed by a search that did not end, when the master stops.
            tokio::task::spawn_blocking(search).await.unwrap_or_default()
        };
        let slice = |core: &mut Core, now, effects: &mut Effects| removal.take(core, now, &chosen, effects);
        if shared.apply_async(slice).await? || finished {
            break;
        }
        tokio::task::yield_now().await;
    }
    end(shared, Op::RemoveByRegex).await?;
    Ok(removal.removed())
}

/// Forgets these tiers, or all that there are; which of them were there, each with the records that objects had in it.
pub async fn forget_tiers(shared: &Arc<Shared>, which: Option<TierUuid>) -> Result<Vec<(TierUuid, u64)>, LogClosed> {
    let known = shared.read(|core, _| {
        let named = core.tiers().filter(|view| which.is_none_or(|uuid| uuid == view.spec.uuid));
        named.map(|view| (view.spec.uuid, view.records)).collect::<Vec<_>>()
    });
    let mut forgotten = Vec::new();
    for (uuid, records) in known {
        // One may have gone by itself meanwhile.
        if shared.apply_async(|core, now, effects| core.forget_tier(now, uuid, effects)).await? {
            tracing::info!(tier = %uuid, records, "tier forgotten, as an operator asked");
            forgotten.push((uuid, records));
        }
    }
    sync(shared).await?;
    Ok(forgotten)
}

/// What was removed lies on disks that survive a power loss, so that its removal does as well (`docs/safety.md`, rule
/// T10).
async fn sync(shared: &Arc<Shared>) -> Result<(), LogClosed> {
    let log = shared.log.clone();
    // A task that did not end is one of a master that stops.
    tokio::task::spawn_blocking(move || log.sync()).await.unwrap_or(Err(LogClosed))
}

/// What is left to do once all of it is removed. What could not be seen counts for nothing, and was removed as well;
/// and what an earlier call has removed may be on its way to the disk still.
async fn end(shared: &Arc<Shared>, op: Op) -> Result<(), LogClosed> {
    shared.metrics.count(op, 1, 0);
    if shared.read(|core, _| core.tiers().next().is_some()) {
        sync(shared).await?;
    }
    if let Some(freed) = shared.identity.after_bulk_free {
        // Takes its time with a large heap.
        let _ = tokio::task::spawn_blocking(freed).await;
    }
    Ok(())
}
