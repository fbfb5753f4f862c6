//! What a put is told that gets no room, or whose key another put has.

use std::fmt::{self, Write as _};

use smallvec::SmallVec;

use crate::core::Core;
use crate::request::StartOutcome;
use crate::state::segment::HeldGranules;
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
    Writing,
    Unfinished {
        bytes: u64,
        cap: u64,
    },
}

/// Which put has a key that another one wants.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BusyWith {
    /// The request has the key twice, and replaces its value both times.
    ThisRequest,
    /// A put of that session.
    Session { session: SessionId, is_away: bool },
    /// Others wait for the key already.
    OthersWait,
}

impl fmt::Display for BusyWith {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BusyWith::ThisRequest => f.write_str("this batch replaces the key already"),
            BusyWith::Session { session, is_away: false } => write!(f, "session {} is putting this key", session.0),
            BusyWith::Session { session, is_away: true } => {
                write!(f, "session {} was putting this key, and is away", session.0)
            }
            BusyWith::OthersWait => f.write_str("others wait for this key"),
        }
    }
}

/// Why the first keys of each kind of a request got nothing. That is said of no other key, and no log has it.
#[derive(Debug, Default)]
pub(crate) struct Reasons {
    /// With the bytes that were being replaced then.
    pub full: Option<(Why, u64)>,
    pub busy: Option<BusyWith>,
}

impl Core {
    /// Outcomes as they are told: with why it is so, in the first of those that are full, too large or busy.
    pub(crate) fn told(&self, mut outcomes: Vec<StartOutcome>, reasons: &Reasons) -> Vec<StartOutcome> {
        let (mut full, mut too_large, mut busy) = (None, None, None);
        for outcome in &mut outcomes {
            let (first, reason) = match outcome {
                StartOutcome::Full(reason) => (&mut full, reason),
                StartOutcome::TooLarge(reason) => (&mut too_large, reason),
                StartOutcome::Busy(reason) => (&mut busy, reason),
                _ => continue,
            };
            first.get_or_insert(reason);
        }
        // A log of an earlier version has reasons.
        let to_be_said = |reason: &&mut String| reason.is_empty();
        if let Some(reason) = full.filter(to_be_said) {
            let (why, replaced) = reasons.full.unwrap_or((Why::Held, self.objects.replaced_bytes));
            *reason = self.why_full(why, replaced);
        }
        if let Some(reason) = too_large.filter(to_be_said) {
            *reason = self.largest_segment();
        }
        if let (Some(reason), Some(with)) = (busy.filter(to_be_said), reasons.busy) {
            *reason = with.to_string();
        }
        outcomes
    }

    fn why_full(&self, why: Why, replaced: u64) -> String {
        match why {
            Why::Held => self.what_holds_space(replaced),
            Why::OthersWait => format!("others wait for room already; {}", self.what_holds_space(replaced)),
            Why::Writing => {
                format!("what is stored is being written to a tier first; {}", self.what_holds_space(replaced))
            }
            // Clients know it by its first words (`mooncake_wire::STILL_POPULATED`).
            Why::Populating => format!("memory is still being populated; {}", self.what_holds_space(replaced)),
            Why::Unfinished { bytes, cap } => {
                format!("this session has {bytes} bytes in unfinished puts, its limit is {cap}")
            }
        }
    }

    /// For what is too large.
    fn largest_segment(&self) -> String {
        let Some(segment) = self.segments.iter().max_by_key(|segment| segment.lasting()) else {
            return NO_SEGMENT.to_owned();
        };
        format!(
            "the largest segment, {}, has {} bytes, of which {} are pinned hard",
            segment.spec.name,
            segment.view().capacity,
            u64::from(segment.hard) * GRANULE
        )
    }

    /// For refused puts: only these can hold space.
    fn what_holds_space(&self, replaced: u64) -> String {
        let bytes = |granules: u64| granules * GRANULE;
        let open = self.segments.open().len();
        let closed = self.segments.len() - open;
        let HeldGranules { pinned, hard, quarantined } = self.segments.held();
        let promotions = match self.reservations.promotions().bytes {
            0 => String::new(),
            bytes => format!(" {bytes} on their way from tiers,"),
        };
        format!(
            "{} bytes are under views{}, {} pinned hard, {} in unfinished puts and {} in the values that they replace,\
             {promotions} {} in quarantine, {} objects protected by a lookup; {open} segments take objects, \
             {closed} are away or closed",
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
