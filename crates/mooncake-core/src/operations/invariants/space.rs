//! Every granule is free or has one holder.

use crate::core::Core;
use crate::durable::apply::granule_range;
use crate::ensure::ensure;
use crate::ids::{Replica, SegmentNo};
use crate::state::object::Hold;
use crate::state::objects::ObjectSlot;
use crate::state::segment::Segment;
use mooncake_ids::Rid;

/// What keeps granules from being given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Object {
        hard: bool,
        viewed: bool,
    },
    UnfinishedPut,
    Quarantine,
    /// Of an object that has left.
    Views,
}

/// Granules of one placement on a segment that is there.
#[derive(Debug, Clone, Copy)]
struct Held {
    segment: SegmentNo,
    start: u32,
    len: u32,
    rid: Rid,
    by: Holder,
}

impl Held {
    fn end(&self) -> u64 {
        u64::from(self.start) + u64::from(self.len)
    }
}

impl Core {
    /// On each segment what is held lies apart, below the limit, and is all that is not free; the counts are right.
    pub(super) fn check_space(&self) -> Result<(), String> {
        let mut held = Vec::new();
        self.held_by_objects(&mut held)?;
        self.held_by_others(&mut held)?;
        self.check_rids(&mut held)?;
        held.sort_unstable_by_key(|held| (held.segment, held.start));
        let mut rest = &held[..];
        for number in self.segments.numbers() {
            let segment = self.segments.get(number).expect("it is there");
            let here = rest.partition_point(|held| held.segment <= number);
            check_segment(segment, &rest[..here])?;
            rest = &rest[here..];
        }
        ensure!(rest.is_empty(), "{rest:?} lie on no segment");
        Ok(())
    }

    fn held_by_objects(&self, all: &mut Vec<Held>) -> Result<(), String> {
        for (slot, object) in self.objects.iter() {
            let key = self.objects.key(slot).escape_ascii();
            let mut owners = Vec::with_capacity(object.places.memory().len());
            for place in object.places.memory() {
                let (replica, pin) = (place.replica(object.size()), self.pins.get(place.rid));
                let (of, extent) = (pin.and_then(|pin| pin.object), pin.map(|pin| pin.extent));
                ensure!(
                    extent.is_none_or(|extent| extent == replica.extent),
                    "{key} has {replica:?}, which is pinned at {extent:?}"
                );
                let Some(segment) = self.segments.get(place.segment) else {
                    ensure!(
                        self.is_to_be_purged(slot),
                        "{key} in slot {} lies on {:?}, which is Gone, and stays",
                        slot.0,
                        place.segment
                    );
                    continue;
                };
                ensure!(
                    pin.is_none() || of == Some(slot),
                    "{key} in slot {} has {:?}, pinned as of {of:?}",
                    slot.0,
                    place.rid
                );
                ensure!(!owners.contains(&segment.session), "{key} has two replicas with {:?}", segment.session);
                owners.push(segment.session);
                all.push(held(&replica, Holder::Object { hard: object.hold == Hold::Hard, viewed: pin.is_some() })?);
            }
        }
        Ok(())
    }

    /// Whether the scan for what lay on segments that are Gone has yet to come by.
    fn is_to_be_purged(&self, slot: ObjectSlot) -> bool {
        self.purge.is_some_and(|next| next <= slot.0 || self.purge_again)
    }

    fn held_by_others(&self, all: &mut Vec<Held>) -> Result<(), String> {
        for (_, put) in self.reservations.iter() {
            let key = put.key.as_slice().escape_ascii();
            let mut owners = Vec::with_capacity(put.replicas.len());
            for replica in &put.replicas {
                let number = replica.extent.segment;
                let Some(segment) = self.segments.get(number) else {
                    let rid = replica.rid;
                    let is_lost = self.reservations.has_lost_on(number);
                    ensure!(is_lost, "the unfinished put of {key} has {rid:?} on {number:?}, which is Gone, and stays");
                    continue;
                };
                let (size, length) = (put.size, replica.extent.length);
                ensure!(
                    size == length,
                    "the unfinished put of {key} has {size} bytes, and {length} of {:?}",
                    replica.rid
                );
                ensure!(
                    !owners.contains(&segment.session),
                    "the unfinished put of {key} has two replicas with {:?}",
                    segment.session
                );
                owners.push(segment.session);
                all.push(held(replica, Holder::UnfinishedPut)?);
            }
        }
        for entry in self.quarantine.iter() {
            let Replica { rid, extent } = entry.replica;
            let Some(segment) = self.segments.get(extent.segment) else {
                return Err(format!("{rid:?} is in quarantine on {:?}, which is Gone", extent.segment));
            };
            // An owner that obeys an epoch has fenced the older ones.
            let fenced = segment.epoch == self.epoch.number && rid.epoch() < self.epoch.number;
            let is_released = self.obeying.contains(&extent.segment);
            ensure!(
                !fenced || is_released,
                "{rid:?} is in quarantine on {:?}, which obeys {}",
                extent.segment,
                self.epoch.number
            );
            all.push(held(&entry.replica, Holder::Quarantine)?);
        }
        for (rid, pin) in self.pins.iter() {
            if pin.object.is_none() && self.segments.get(pin.extent.segment).is_some() {
                all.push(held(&Replica { rid, extent: pin.extent }, Holder::Views)?);
            }
        }
        Ok(())
    }

    /// Each placement has a rid of its own, which this core or one before it gave out in an epoch that its segment
    /// obeyed.
    fn check_rids(&self, all: &mut [Held]) -> Result<(), String> {
        all.sort_unstable_by_key(|held| held.rid);
        let twice = all.windows(2).find(|pair| pair[0].rid == pair[1].rid);
        ensure!(twice.is_none(), "a rid has two placements: {twice:?}");
        let last = Rid::new(self.epoch.number, self.counter);
        for held in all.iter() {
            let (rid, epoch) = (held.rid, self.segments.get(held.segment).map(|segment| segment.epoch));
            ensure!(rid.0 & 1 == 0 && rid.counter() > 0, "{held:?} has a rid that is none");
            ensure!(rid <= last, "{held:?} has a rid above the last, {last:?}");
            ensure!(epoch >= Some(rid.epoch()), "{held:?} is of epoch {}, its segment obeys {epoch:?}", rid.epoch());
        }
        Ok(())
    }
}

fn held(replica: &Replica, by: Holder) -> Result<Held, String> {
    let Replica { rid, extent } = *replica;
    let (start, len) = granule_range(rid, extent).map_err(|error| format!("held by {by:?}: {error}"))?;
    Ok(Held { segment: extent.segment, start, len, rid, by })
}

/// What is held of a segment, in order, and what is free of it: together all of it, and each granule once.
fn check_segment(segment: &Segment, held: &[Held]) -> Result<(), String> {
    let limit = u64::from(segment.extents.limit());
    let mut free =
        segment.extents.free_runs().map(|(start, len)| (u64::from(start), u64::from(start) + u64::from(len)));
    let mut at = 0;
    for (nth, here) in held.iter().enumerate() {
        let start = u64::from(here.start);
        ensure!(at <= start, "{:?} and {here:?} overlap", held[nth - 1]);
        ensure!(here.end() <= limit, "{here:?} ends above {limit}, up to where its segment is populated");
        check_gap(segment, (at, start), &mut free)?;
        at = here.end();
    }
    check_gap(segment, (at, limit), &mut free)?;
    let left = free.next();
    ensure!(left.is_none(), "{:?}: granules {left:?} are free, and some of them held", segment.number);
    let sum = |counts: fn(&Holder) -> bool| -> u64 {
        held.iter().filter(|held| counts(&held.by)).map(|held| u64::from(held.len)).sum()
    };
    let right = [
        sum(|by| *by == Holder::Quarantine),
        sum(|by| matches!(by, Holder::Views | Holder::Object { viewed: true, .. } | Holder::Object { hard: true, .. })),
        sum(|by| matches!(by, Holder::Object { hard: true, .. })),
    ];
    let counted = [segment.quarantined, segment.pinned, segment.hard].map(u64::from);
    ensure!(
        right == counted,
        "{:?}: granules (in quarantine, pinned, pinned hard) are {right:?}, and counted {counted:?}",
        segment.number
    );
    Ok(())
}

/// Between two that are held there is one free run, or nothing.
fn check_gap(segment: &Segment, gap: (u64, u64), free: &mut impl Iterator<Item = (u64, u64)>) -> Result<(), String> {
    if gap.0 == gap.1 {
        return Ok(());
    }
    let run = free.next();
    let number = segment.number;
    if let Some((start, end)) = run.filter(|(start, end)| *start < gap.1 && (*start < gap.0 || *end > gap.1)) {
        return Err(format!("{number:?}: granules {start}..{end} are free, and some of them held"));
    }
    ensure!(run == Some(gap), "{number:?}: nothing holds granules {gap:?}, and the next free run is {run:?}");
    Ok(())
}
