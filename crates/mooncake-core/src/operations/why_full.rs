//! What a put is told that gets no room.

use std::fmt::Write as _;

use smallvec::SmallVec;

use crate::core::Core;
use crate::operations::room::NoRoom;
use crate::request::PutSlot;
use crate::state::segment::Held;
use mooncake_ids::{GRANULE, SessionId};

/// Clients whose views a refused put is told of by name.
const VIEWERS_NAMED: usize = 3;

/// Of each name so many characters.
const NAME_TOLD: usize = 64;

/// No client has lent memory, or those that had are gone for good.
pub(crate) const NO_SEGMENT: &str =
    "no client lends memory to the pool: start mooncake_client, or set a store up with a global_segment_size";

/// What callers are told of why there is no room. It takes long to say, and is said once for all keys of a request, and
/// only when that is answered.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Why {
    /// What holds it.
    Held,
    OthersWait,
    Populating,
    Unfinished {
        bytes: u64,
        cap: u64,
    },
}

/// The segment that has room for the largest object.
pub(crate) struct Best {
    name: String,
    /// Bytes.
    capacity: u64,
    /// Bytes of it that are pinned hard.
    hard: u64,
}

impl Core {
    /// Slots as they are told: with why there is no room, in the first of those that are full.
    pub(crate) fn told(&self, mut slots: Vec<PutSlot>, why: Option<(Why, u64)>) -> Vec<PutSlot> {
        let full = slots.iter_mut().find_map(|slot| match slot {
            PutSlot::Full(reason) => Some(reason),
            _ => None,
        });
        if let Some(reason) = full.filter(|reason| reason.is_empty()) {
            let (why, replaced) = why.unwrap_or((Why::Held, self.objects.replaced_bytes));
            *reason = match why {
                Why::Held => self.what_holds_space(replaced),
                Why::OthersWait => format!("others wait for room already; {}", self.what_holds_space(replaced)),
                // Clients know it by its first words (`mooncake_wire::STILL_POPULATED`).
                Why::Populating => format!("memory is still being populated; {}", self.what_holds_space(replaced)),
                Why::Unfinished { bytes, cap } => {
                    format!("this session has {bytes} bytes in unfinished puts, its limit is {cap}")
                }
            };
        }
        slots
    }

    /// `best`: which one that is, once it was looked for: each key of a request may be too large.
    pub(crate) fn why_too_large(&self, size: u64, best: &mut Option<Best>) -> NoRoom {
        if best.is_none() {
            *best = self.segments.iter().max_by_key(|segment| segment.lasting()).map(|segment| Best {
                name: segment.spec.name.clone(),
                capacity: segment.view().capacity,
                hard: u64::from(segment.hard) * GRANULE,
            });
        }
        let Some(Best { name, capacity, hard }) = best else { return NoRoom::NoSegment };
        NoRoom::TooLarge(format!(
            "{size} bytes fit no segment: the best one, {name}, has {capacity} bytes, of which {hard} are pinned hard"
        ))
    }

    /// For refused puts: only these can hold space.
    fn what_holds_space(&self, replaced: u64) -> String {
        let bytes = |granules: u64| granules * GRANULE;
        let open = self.segments.open().len();
        let closed = self.segments.len() - open;
        let Held { pinned, hard, quarantined } = self.segments.held();
        format!(
            "{} bytes are under views{}, {} pinned hard, {} in unfinished puts and {} in the values that they replace, \
             {} in quarantine, {} objects protected by a lookup; {open} segments take objects, {closed} are away or \
             closed",
            bytes(pinned.saturating_sub(hard)),
            self.whose_views(),
            bytes(hard),
            self.reservations.bytes(),
            replaced,
            bytes(quarantined),
            self.objects.protected_len(),
        )
    }

    /// Those clients whose views hold most.
    fn whose_views(&self) -> String {
        let holders = self.pins.holders();
        let count = holders.len();
        let mut most: SmallVec<[(SessionId, u64); VIEWERS_NAMED + 1]> = SmallVec::new();
        for holder in holders {
            let at = most.partition_point(|(_, bytes)| *bytes >= holder.1);
            if at < VIEWERS_NAMED {
                most.insert(at, holder);
                most.truncate(VIEWERS_NAMED);
            }
        }
        let mut text = String::new();
        for (nth, (session, bytes)) in most.iter().enumerate() {
            let name = self.session_spec(*session).map_or("", |spec| spec.name.as_str());
            let name: String = name.chars().take(NAME_TOLD).collect();
            let before = if nth == 0 { " of" } else { "," };
            // Writing to a string cannot fail.
            let _ = write!(text, "{before} {name} (session {}: {bytes})", session.0);
        }
        if count > VIEWERS_NAMED {
            let _ = write!(text, " and {} other clients", count - VIEWERS_NAMED);
        }
        text
    }
}
