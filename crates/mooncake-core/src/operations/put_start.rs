//! Beginning puts: keys are reserved and placed, or wait in line for it.

use smallvec::SmallVec;

use crate::config::{PlacementStrategy, renewal_ms};
use crate::core::Core;
use crate::effect::Effects;
use crate::ids::{SegmentNo, Time};
use crate::operations::room::{NoRoom, RoomMode, RoomSearch};
use crate::operations::why_full::{BusyWith, NO_SEGMENT, Reasons};
use crate::request::{Origin, PinKind, PutConfig, PutStarted, Refused, Remembered, Sight, StartOutcome};
use crate::state::objects::{AHEAD, SameCall};
use crate::state::placement::{Preference, Wishes};
use crate::state::waiting_put::{WaitingPut, WaitsFor};
use crate::work::{ENDED_AS, Work};
use mooncake_ids::granules;
use mooncake_ids::{Rid, SessionId};

/// Objects that its call has stored itself, which one look at a request passes over in search of others.
const OWN_PASSES: usize = 512;

/// How long a put waits for tiers to have what would be lost.
pub(crate) const TIER_WAIT_MS: u64 = 250;

/// One look at all keys of a request.
pub(crate) struct Attempt {
    pub outcomes: Vec<StartOutcome>,
    /// Some key was placed or is there.
    pub any: bool,
    /// For what the others wait.
    pub waits: WaitsFor,
    /// The work was cut short: look again soon.
    pub cut: bool,
    pub reasons: Reasons,
}

impl Attempt {
    fn busy(&mut self, with: BusyWith) -> StartOutcome {
        self.reasons.busy.get_or_insert(with);
        StartOutcome::Busy(String::new())
    }

    /// For a value of so many bytes; `replaced`: bytes that were being replaced then.
    fn no_room(&mut self, no_room: NoRoom, size: u64, replaced: u64) -> StartOutcome {
        match no_room {
            NoRoom::TooLarge => return StartOutcome::TooLarge(String::new()),
            NoRoom::NoSegment => return StartOutcome::Full(NO_SEGMENT.to_owned()),
            _ => {}
        }
        self.reasons.full.get_or_insert((no_room.why(), replaced));
        let waits = &mut self.waits;
        match no_room {
            NoRoom::Capped(_) => waits.capped = true,
            NoRoom::SameCall => waits.same_call = true,
            NoRoom::Unattainable => {
                let granules = granules(size) as u32;
                waits.unattainable = Some(waits.unattainable.map_or(granules, |least| least.min(granules)));
            }
            NoRoom::Full(_) | NoRoom::Writing | NoRoom::TooLarge | NoRoom::NoSegment => waits.room = true,
            NoRoom::Populating => (waits.room, waits.population) = (true, true),
            NoRoom::PopulatingMore => (waits.same_call, waits.population) = (true, true),
        }
        StartOutcome::Full(String::new())
    }
}

/// One key of a request.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub key: &'a [u8],
    /// Of the key, in the index of objects.
    pub hash: u64,
    pub size: u64,
    /// Empty for none.
    pub group: &'a [u8],
}

/// What is asked for all of them.
pub(crate) struct PutContext<'a> {
    pub origin: Origin,
    pub config: &'a PutConfig,
    pub pin: PinKind,
    /// Rids from here on are this request's own.
    pub first: Rid,
    /// What counts as being there.
    pub sight: Sight,
}

impl Core {
    /// Reserves keys and places them. A request of which no key is placed now or there, though one may be later, is
    /// parked where it is to `wait`: its reply comes with the effects of a later operation. One that is not to wait
    /// hears Busy and Full at once, and is parked only as long as its own evictions take.
    pub fn put_start(
        &mut self,
        now: Time,
        origin: Origin,
        entries: &[(&[u8], u64)],
        config: &PutConfig,
        wait: bool,
        fx: &mut Effects,
    ) -> Result<PutStarted, Refused> {
        match self.admit_sized(origin, entries.len())? {
            None => {}
            Some(Remembered::PutStart(outcomes)) => {
                return Ok(PutStarted::Now(self.told(outcomes, &Reasons::default())));
            }
            Some(other) => return Err(other.refusal(origin)),
        }
        self.raise_epoch_when_counter_ends(now, fx);
        // A retry takes the position of the request whose connection broke, and its time (docs/safety.md, rule 9). No
        // caller hears that one any more.
        let (position, since) = match self.tickets.cancel_origin(origin) {
            Some((position, older)) => (Some(position), older.since),
            None => (None, now),
        };
        let room = !self.tickets.any_for_room_before(position);
        let spares_unwritten = (wait || config.comes_again) && now < since.plus_ms(TIER_WAIT_MS);
        let mode = RoomMode { room, force: false, newcomer: position.is_none(), spares_unwritten };
        let keys = entries.iter().copied();
        let Attempt { outcomes, any, waits, cut, reasons } =
            self.evaluate(now, origin, keys, config, mode, &mut Work::operation(), fx);
        // Without `wait` too it has all evictions that it needs, one hold of the lock after the other.
        if !any && waits.for_anything() && (wait || cut) {
            let ticket = self.tickets.next_id();
            let entries = entries.iter().map(|(key, size)| ((*key).into(), *size)).collect();
            let deadline = if wait { self.deadline(since, config, &waits) } else { now };
            let config = config.clone();
            let parked = WaitingPut { ticket, origin, entries, config, since, impatient: !wait, deadline, waits };
            self.tickets.push(parked, position);
            self.news.room |= cut;
            return Ok(PutStarted::Parked(ticket));
        }
        self.count_outcomes(&outcomes, if wait { !any } else { !config.comes_again });
        self.remember(origin, Remembered::PutStart(outcomes.clone()), fx);
        let told = self.told(outcomes, &reasons);
        self.serve_waiting(now, fx);
        Ok(PutStarted::Now(told))
    }

    /// When a request that was begun then is answered at the latest, but for what is still evicted for it.
    pub(crate) fn deadline(&self, since: Time, config: &PutConfig, waits: &WaitsFor) -> Time {
        since.plus_ms(match waits.for_room() {
            true => self.config.full_wait_of(config),
            false => self.config.busy_wait_ms,
        })
    }

    /// Places each key that can be placed.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is another thing that is known of one put; a struct of them would serve this one call"
    )]
    pub(crate) fn evaluate<'k>(
        &mut self,
        now: Time,
        origin: Origin,
        entries: impl Iterator<Item = (&'k [u8], u64)>,
        config: &PutConfig,
        mode: RoomMode,
        work: &mut Work,
        fx: &mut Effects,
    ) -> Attempt {
        let context = PutContext {
            origin,
            config,
            pin: match config.pin {
                PinKind::Soft { ttl_ms } => PinKind::Soft { ttl_ms: ttl_ms.min(self.config.soft_pin_ttl_max_ms) },
                other => other,
            },
            first: Rid::new(self.epoch.number, self.counter + 1),
            sight: self.sight(origin.session),
        };
        let protect_ms = self.config.lookup_protect_ms;
        let promise_kept_until = now.plus_ms(protect_ms / 2 - renewal_ms(protect_ms));
        let same_call = config.first_rid.map(|first| SameCall { first, promise_kept_until, passes: OWN_PASSES });
        self.objects.begin_renewals();
        let look = work.look();
        let wishes = self.wishes(origin.session, config);
        let mut search = RoomSearch::of(look, self.walk.is_some(), same_call, wishes);
        let outcomes = Vec::with_capacity(entries.size_hint().0);
        let mut result =
            Attempt { outcomes, any: false, waits: WaitsFor::default(), cut: false, reasons: Reasons::default() };
        let mut entries = entries.enumerate();
        let mut some: SmallVec<[Entry<'_>; AHEAD]> = SmallVec::new();
        loop {
            some.clear();
            some.extend(entries.by_ref().take(AHEAD).map(|(nth, (key, size))| {
                let group = config.groups.get(nth).map_or(&[][..], |group| group);
                Entry { key, hash: self.objects.hash(key), size, group }
            }));
            if some.is_empty() {
                break;
            }
            self.objects.foresee(some.iter().map(|entry| entry.hash));
            for entry in &some {
                let outcome = self.evaluate_one(now, &context, *entry, mode, &mut search, &mut result, fx);
                result.any |= matches!(outcome, StartOutcome::Placed(_) | StartOutcome::Exists);
                result.outcomes.push(outcome);
            }
        }
        result.waits.keys.sort_unstable();
        result.waits.keys.dedup();
        result.cut = search.evictions() == 0;
        // One that is parked has the others at its next turn.
        if let Some(writer) = search.yielding.filter(|_| !result.any) {
            self.yields_its_keys(writer);
        }
        work.did(result.outcomes.len() + (look - search.left) + search.looked_at());
        result
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "each is another thing that is known of one put; a struct of them would serve this one call"
    )]
    fn evaluate_one(
        &mut self,
        now: Time,
        context: &PutContext<'_>,
        entry: Entry<'_>,
        mode: RoomMode,
        search: &mut RoomSearch,
        result: &mut Attempt,
        fx: &mut Effects,
    ) -> StartOutcome {
        let Entry { key, hash, size, group } = entry;
        if key.is_empty() || size == 0 {
            let reason = format!("a key of {} bytes and a value of {size} bytes: both need one", key.len());
            return StartOutcome::Refused(reason.into());
        }
        let old = self.visible(hash, key, context.sight);
        if let Some(old) = old
            && !context.config.replace
        {
            self.objects.touch(now, old, |place| self.tiers.is_young(place));
            return StartOutcome::Exists;
        }
        if let Some(outcome) = self.busy_with_unfinished(now, context, entry, search, result, fx) {
            return outcome;
        }
        if mode.newcomer && self.news.tells_of(hash) && self.tickets.await_key(hash) {
            result.waits.keys.push(hash);
            return result.busy(BusyWith::OthersWait);
        }
        if let Some(old) = old
            && !group.is_empty()
            && group != self.objects.group_of(old)
        {
            return StartOutcome::Refused("the value that is to be replaced is in another group, or in none".into());
        }
        // Held from here on: the room for its replacement is not to come from it.
        if let Some(old) = old {
            self.objects.hold(old);
        }
        let placed = self.place(now, context, entry, old.is_some(), mode, search, fx);
        let replaced = self.objects.replaced_bytes;
        if let (Some(old), Err(_)) = (old, &placed) {
            self.objects.unhold(now, old);
            // The next key may have its room.
            search.full_from = u32::MAX;
        }
        match placed {
            Ok(replicas) => StartOutcome::Placed(replicas),
            Err(no_room) => result.no_room(no_room, size, replaced),
        }
    }

    /// What a key comes to that an unfinished put holds; none if no put does, or its writer yields it.
    fn busy_with_unfinished(
        &mut self,
        now: Time,
        context: &PutContext<'_>,
        Entry { key, hash, .. }: Entry<'_>,
        search: &mut RoomSearch,
        result: &mut Attempt,
        fx: &mut Effects,
    ) -> Option<StartOutcome> {
        let slot = self.unfinished_by_key(now, key, fx)?;
        let (session, rid) = {
            let reservation = self.reservations.get(slot);
            (reservation.session, reservation.rid())
        };
        if session == context.origin.session && rid >= context.first {
            // Twice in one batch: the first value counts, and of replacements the last, which comes after it.
            return Some(match context.config.replace {
                false => StartOutcome::Exists,
                true => result.busy(BusyWith::ThisRequest),
            });
        }
        let away = self.sessions.get(session).is_none_or(|session| session.away.is_some());
        if !away || session == context.origin.session {
            self.reservations.set_awaited(slot);
            result.waits.keys.push(hash);
            return Some(result.busy(BusyWith::Session { session, is_away: false }));
        }
        // A writer that is away yields its key to the first that wants it, as many at a time as there is time for.
        if search.left < ENDED_AS {
            self.reservations.set_awaited(slot);
            search.yielding.get_or_insert(session);
            result.waits.keys.push(hash);
            return Some(result.busy(BusyWith::Session { session, is_away: true }));
        }
        search.left -= ENDED_AS;
        self.drop_reservation(now, rid, fx);
        None
    }

    fn wishes(&mut self, session: SessionId, config: &PutConfig) -> Wishes {
        let preferred = config.preferred_segments.iter().flat_map(|name| self.segments.by_name(name));
        let preferred = Preference::of(preferred);
        let local = config.prefer_local || self.config.placement == PlacementStrategy::LocalFirst;
        let host = self.sessions.get(session).and_then(|session| session.host).filter(|_| local);
        let local = host.map(|host| {
            let mut local: SmallVec<[SegmentNo; 4]> = self.segments.of_host(host).collect();
            let first = self.random.below(local.len());
            local.rotate_left(first);
            Preference::of(local)
        });
        let (strategy, beside) = (self.config.placement, SmallVec::new());
        Wishes { preferred, local: local.unwrap_or_default(), strategy, beside, alone: None }
    }

    /// `is_last_word`: the caller does not ask again for what it did not get. Of several keys that waited it does if it
    /// got one.
    pub(crate) fn count_outcomes(&mut self, outcomes: &[StartOutcome], is_last_word: bool) {
        for outcome in outcomes {
            self.counts.put_failed_full += u64::from(is_last_word && matches!(outcome, StartOutcome::Full(_)));
            self.counts.put_failed_busy += u64::from(is_last_word && matches!(outcome, StartOutcome::Busy(_)));
            self.counts.put_keys += 1;
            let count = match outcome {
                StartOutcome::Placed(_) => &mut self.counts.put_placed,
                StartOutcome::Exists => &mut self.counts.put_exists,
                StartOutcome::Busy(_) => &mut self.counts.put_busy,
                StartOutcome::Full(_) => &mut self.counts.put_full,
                StartOutcome::TooLarge(_) => &mut self.counts.put_too_large,
                StartOutcome::Refused(_) => &mut self.counts.put_refused,
            };
            *count += 1;
        }
    }
}
