//! Beginning puts: keys are reserved and placed, or wait in line for it.

use std::fmt::Write as _;

use smallvec::SmallVec;

use crate::config::{PlacementStrategy, renewal_ms};
use crate::core::Core;
use crate::effect::{Effects, Push, Record};
use crate::ids::{Extent, GRANULE, Replica, Rid, SegmentNo, SessionId, Ticket, Time};
use crate::object::granules;
use crate::objects::{Own, Reach};
use crate::placement::{self, Wishes};
use crate::request::{Origin, PinKind, PutConfig, PutSlot, PutStarted, Refused, Remembered};
use crate::reservation::{self, Reservation};
use crate::segment::{Open, Segment};
use crate::ticket::Parked;

/// Objects that one operation evicts at most; a parked request goes on at the next one.
const EVICT_STEPS: usize = 8_192;
/// Objects that its call has stored itself, which one look at a request passes over in search of others.
const OWN_PASSES: usize = 512;
/// Objects evicted for a further replica before the put does with fewer.
const EVICT_STEPS_MORE: usize = 64;
/// A populator without progress for so long has failed.
const POPULATION_STALLED_MS: u64 = 3_000;
/// Clients whose views a refused put is told of by name.
const VIEWERS_NAMED: usize = 3;
/// Of each name so many characters.
const NAME_TOLD: usize = 64;

/// How a request may get room now.
#[derive(Clone, Copy)]
struct Mode {
    /// Nobody before it waits for room.
    room: bool,
    /// Its deadline has come: protected objects go too, and no populator is waited for.
    force: bool,
}

/// Why a key was not placed.
#[derive(Clone)]
enum Denied {
    TooLarge(String),
    /// Room may come.
    Full(Why),
    /// Only what its own call has stored is left to be taken, and what was looked up: that is waited for, and keeps nobody
    /// else waiting.
    Own,
    /// No eviction gives it room, only the end of views or of quarantine, or an owner that comes back. That is waited for,
    /// and keeps nobody else waiting: who needs less can have it.
    Held,
    /// Room comes from the populator.
    Populating,
    /// This session has too much unfinished already; others are not to wait for that.
    Capped(Why),
}

/// What callers are told of why there is no room. It takes long to say, and is said once for all keys of a request, and only
/// when that is answered.
#[derive(Debug, Clone, Copy)]
enum Why {
    /// What holds it.
    Held,
    OthersWait,
    Populating,
    Unfinished {
        bytes: u64,
        cap: u64,
    },
}

impl Denied {
    fn why(&self) -> Why {
        match self {
            Denied::Full(why) | Denied::Capped(why) => *why,
            Denied::Populating => Why::Populating,
            Denied::TooLarge(_) | Denied::Own | Denied::Held => Why::Held,
        }
    }
}

/// What one look at a request has learnt about room.
struct Search {
    /// Objects that it may still evict.
    steps: usize,
    /// What its call has stored.
    spares: Option<Own>,
    /// So many granules and more are not to be had: the keys after the first that found out need not try again.
    full_from: u32,
    /// Why not.
    denied: Denied,
    largest: Largest,
}

/// The most granules that one segment has, as far as somebody has looked: all of them are looked at for it.
#[derive(Clone, Copy, Default)]
struct Largest {
    /// Once views and quarantine have ended.
    lasting: Option<u32>,
    /// By eviction alone.
    attainable: Option<u32>,
    /// Of those that are being populated.
    populating: Option<u32>,
}

impl Search {
    fn of(steps: usize, spares: Option<Own>) -> Search {
        Search { steps, spares, full_from: u32::MAX, denied: Denied::Full(Why::Held), largest: Largest::default() }
    }

    fn found_none(&mut self, need: u32, denied: &Denied) {
        if need < self.full_from {
            self.full_from = need;
            self.denied = denied.clone();
        }
    }
}

/// One look at all keys of a request.
struct Evaluation {
    slots: Vec<PutSlot>,
    /// Some key was placed or is there.
    any: bool,
    for_key: bool,
    for_room: bool,
    /// Room is waited for that others may have.
    for_own: bool,
    for_population: bool,
    /// Some key waits for its own session.
    capped: bool,
    /// The least granules that some key waits for and no eviction can gain.
    held: Option<u32>,
    /// The work was cut short: look again soon.
    cut: bool,
    /// Why the first one is full, and the bytes that were being replaced then.
    why: Option<(Why, u64)>,
}

impl Evaluation {
    fn waits(&self) -> bool {
        self.for_key || self.waits_for_room()
    }

    fn waits_for_room(&self) -> bool {
        self.for_room || self.for_own || self.capped || self.held.is_some()
    }
}

/// One key of a request.
#[derive(Clone, Copy)]
struct Entry<'a> {
    key: &'a [u8],
    size: u64,
    /// Empty for none.
    group: &'a [u8],
}

struct Terms<'a> {
    origin: Origin,
    config: &'a PutConfig,
    wishes: Wishes,
    pin: PinKind,
    /// Rids from here on are this request's own.
    first: Rid,
}

impl Core {
    /// Reserves keys and places them. With `wait`, a request of which nothing can be placed now is parked, and its reply
    /// comes with the effects of a later operation; without, Busy and Full are final.
    pub fn put_start(
        &mut self,
        now: Time,
        origin: Origin,
        entries: &[(&[u8], u64)],
        config: &PutConfig,
        wait: bool,
        fx: &mut Effects,
    ) -> Result<PutStarted, Refused> {
        match self.admit(origin)? {
            None => {}
            Some(Remembered::PutStart(slots)) => return Ok(PutStarted::Now(self.told(slots, None))),
            Some(other) => return Err(other.refusal(origin)),
        }
        self.raise_epoch_when_counter_ends(now, fx);
        // A retry takes the place of the request whose connection broke, and its time. Nobody hears that one any more.
        let (place, since) = match self.tickets.cancel_origin(origin) {
            Some((place, older)) => (Some(place), older.since),
            None => (None, now),
        };
        let room = !self.tickets.any_for_room_before(place.unwrap_or(usize::MAX));
        let mode = Mode { room, force: false };
        let evaluation = self.evaluate(now, origin, entries.iter().copied(), config, mode, fx);
        if wait && !evaluation.any && evaluation.waits() {
            let ticket = self.tickets.next_id();
            let entries = entries.iter().map(|(key, size)| ((*key).into(), *size)).collect();
            let parked = Parked {
                ticket,
                origin,
                entries,
                config: config.clone(),
                since,
                for_key: evaluation.for_key,
                for_room: evaluation.for_room,
                for_own: evaluation.for_own,
                for_population: evaluation.for_population,
                capped: evaluation.capped,
                held: evaluation.held,
            };
            self.tickets.push(parked, place);
            self.room_changed |= evaluation.cut;
            return Ok(PutStarted::Parked(ticket));
        }
        let Evaluation { slots, why, .. } = evaluation;
        self.count_slots(&slots);
        self.remember(origin, Remembered::PutStart(slots.clone()), fx);
        let told = self.told(slots, why);
        self.settle(now, fx);
        Ok(PutStarted::Now(told))
    }

    /// The connection of a parked request closed.
    pub fn cancel_ticket(&mut self, now: Time, ticket: Ticket, fx: &mut Effects) {
        if self.tickets.cancel(ticket) {
            self.room_changed = true;
            self.settle(now, fx);
        }
    }

    pub(crate) fn refuse_ticket(&mut self, parked: Parked, reason: &str, fx: &mut Effects) {
        let slots = parked.entries.iter().map(|_| PutSlot::Refused(reason.to_owned())).collect();
        fx.woken.push((parked.ticket, slots));
        self.room_changed = true;
    }

    /// Serves parked requests after a change that may help them. Every operation ends with it.
    pub(crate) fn settle(&mut self, now: Time, fx: &mut Effects) {
        let keys = std::mem::take(&mut self.keys_changed);
        let room = std::mem::take(&mut self.room_changed);
        let own = std::mem::take(&mut self.own_turn);
        if self.tickets.is_empty() || !(keys || room || own) {
            return;
        }
        let mut blocked = false;
        let mut cut = false;
        let mut queue = self.tickets.take_all();
        // Most changes of room gain them nothing: their keys are not looked at for those.
        let held = room && queue.iter().any(|parked| parked.held.is_some());
        let attainable = if held { self.segments.attainable() } else { 0 };
        queue.retain_mut(|parked| {
            let attainable = parked.held.is_some_and(|need| need <= attainable);
            let for_room = room && (parked.for_room && !blocked || parked.capped || attainable);
            let concerned = keys && parked.for_key || for_room || own && parked.for_own;
            if !concerned {
                blocked |= parked.for_room;
                return true;
            }
            let (stays, was_cut) = self.serve(now, parked, Mode { room: !blocked, force: false }, false, fx);
            cut |= was_cut && !blocked;
            blocked |= stays && parked.for_room;
            stays
        });
        self.tickets.put_back(queue);
        // The room that serving them made they have had their chance at, unless the work was cut short. A key that one of them
        // got from a writer that is away is another's to wait for, which learns at the next operation whose it is now.
        self.room_changed = cut;
    }

    /// Answers parked requests whose deadline has come, first come first served among them.
    pub(crate) fn serve_due_tickets(&mut self, now: Time, fx: &mut Effects) {
        let config = self.config.clone();
        let due = |parked: &Parked| {
            let waits = if parked.waits_for_room() { config.full_wait_of(&parked.config) } else { config.busy_wait_ms };
            parked.since.plus_ms(waits) <= now
        };
        if !self.tickets.iter().any(due) {
            return;
        }
        let mut queue = self.tickets.take_all();
        queue
            .retain_mut(|parked| !due(parked) || self.serve(now, parked, Mode { room: true, force: true }, true, fx).0);
        self.tickets.put_back(queue);
        self.room_changed = true;
        self.settle(now, fx);
    }

    /// Looks at a parked request again. (it stays parked, the work was cut short)
    fn serve(&mut self, now: Time, parked: &mut Parked, mode: Mode, last: bool, fx: &mut Effects) -> (bool, bool) {
        let entries = std::mem::take(&mut parked.entries);
        let keys = entries.iter().map(|(key, size)| (&**key, *size));
        let evaluation = self.evaluate(now, parked.origin, keys, &parked.config, mode, fx);
        let full_deadline = parked.since.plus_ms(self.config.full_wait_of(&parked.config));
        // A key that waited for another put may wait for room a little longer, but not for ever.
        let room_left = evaluation.cut || evaluation.waits_for_room() && now < full_deadline;
        if !evaluation.any && evaluation.waits() && (!last || room_left) {
            parked.entries = entries;
            parked.for_key = evaluation.for_key;
            parked.for_room = evaluation.for_room;
            parked.for_own = evaluation.for_own;
            parked.for_population = evaluation.for_population;
            parked.capped = evaluation.capped;
            parked.held = evaluation.held;
            return (true, evaluation.cut);
        }
        let Evaluation { slots, why, cut, .. } = evaluation;
        self.count_slots(&slots);
        self.remember(parked.origin, Remembered::PutStart(slots.clone()), fx);
        fx.woken.push((parked.ticket, self.told(slots, why)));
        (false, cut)
    }

    fn evaluate<'k>(
        &mut self,
        now: Time,
        origin: Origin,
        entries: impl Iterator<Item = (&'k [u8], u64)>,
        config: &PutConfig,
        mode: Mode,
        fx: &mut Effects,
    ) -> Evaluation {
        let terms = Terms {
            origin,
            config,
            wishes: self.wishes(origin.session, config),
            pin: match config.pin {
                PinKind::Soft { ttl_ms } => PinKind::Soft { ttl_ms: ttl_ms.min(self.config.soft_pin_ttl_max_ms) },
                other => other,
            },
            first: Rid::new(self.epoch, self.counter + 1),
        };
        let protect_ms = self.config.lookup_protect_ms;
        let had_its_second = now.plus_ms(protect_ms / 2 - renewal_ms(protect_ms));
        let spares = config.first_rid.map(|first| Own { first, had_its_second, passes: OWN_PASSES });
        let mut search = Search::of(EVICT_STEPS, spares);
        let mut result = Evaluation {
            slots: Vec::with_capacity(entries.size_hint().0),
            any: false,
            for_key: false,
            for_room: false,
            for_own: false,
            for_population: false,
            capped: false,
            held: None,
            cut: false,
            why: None,
        };
        for (nth, (key, size)) in entries.enumerate() {
            let group = config.groups.get(nth).map_or(&[][..], |group| group);
            let entry = Entry { key, size, group };
            let slot = self.evaluate_one(now, &terms, entry, mode, &mut search, &mut result, fx);
            result.any |= matches!(slot, PutSlot::Placed(_) | PutSlot::Exists);
            result.slots.push(slot);
        }
        result.cut = search.steps == 0;
        result
    }

    #[allow(clippy::too_many_arguments)]
    fn evaluate_one(
        &mut self,
        now: Time,
        terms: &Terms<'_>,
        entry: Entry<'_>,
        mode: Mode,
        search: &mut Search,
        result: &mut Evaluation,
        fx: &mut Effects,
    ) -> PutSlot {
        let Entry { key, size, .. } = entry;
        if key.is_empty() || size == 0 {
            return PutSlot::Refused(format!(
                "a key of {} bytes and a value of {size} bytes: both need one",
                key.len()
            ));
        }
        let old = self.visible(self.objects.hash(key), key);
        if let Some(slot) = old
            && !terms.config.replace
        {
            self.objects.touch(now, slot);
            return PutSlot::Exists;
        }
        if let Some(slot) = self.reservations.by_key(key) {
            let (session, rid) = {
                let reservation = self.reservations.get(slot);
                (reservation.session, reservation.rid())
            };
            if session == terms.origin.session && rid >= terms.first {
                // Twice in one batch: the first value counts, and of replacements the last, which comes after it.
                return match terms.config.replace {
                    false => PutSlot::Exists,
                    true => PutSlot::Busy("this batch replaces the key already".to_owned()),
                };
            }
            let away = self.sessions.get(session).is_none_or(|session| session.away.is_some());
            if !away || session == terms.origin.session {
                self.reservations.set_awaited(slot);
                result.for_key = true;
                return PutSlot::Busy(format!("session {} is putting this key", session.0));
            }
            // A writer that is away yields its key to the first that wants it.
            self.drop_reservation(now, rid, false, fx);
            search.largest = Largest::default();
        }
        if let Some(old) = old
            && !entry.group.is_empty()
            && entry.group != self.objects.group_of(old)
        {
            return PutSlot::Refused("the value that is to be replaced is in another group, or in none".to_owned());
        }
        // Held from here on: the room for its replacement is not to come from it.
        if let Some(old) = old {
            self.objects.hold(old);
        }
        let placed = self.place(now, terms, entry, old.is_some(), mode, search, fx);
        let replaced = self.objects.replaced_bytes;
        if let (Some(old), Err(_)) = (old, &placed) {
            self.objects.unhold(now, old);
            // The next key may have its room.
            search.full_from = u32::MAX;
        }
        let denied = match placed {
            Ok(replicas) => return PutSlot::Placed(replicas),
            Err(Denied::TooLarge(reason)) => return PutSlot::TooLarge(reason),
            Err(denied) => denied,
        };
        result.why.get_or_insert((denied.why(), replaced));
        match denied {
            Denied::Capped(_) => result.capped = true,
            Denied::Own => result.for_own = true,
            Denied::Held => {
                let need = granules(size) as u32;
                result.held = Some(result.held.map_or(need, |least| least.min(need)));
            }
            Denied::Full(_) | Denied::TooLarge(_) => result.for_room = true,
            Denied::Populating => {
                result.for_room = true;
                result.for_population = true;
            }
        }
        PutSlot::Full(String::new())
    }

    /// Slots as they are told: with why there is no room, in the first of those that are full.
    fn told(&self, mut slots: Vec<PutSlot>, why: Option<(Why, u64)>) -> Vec<PutSlot> {
        let full = slots.iter_mut().find_map(|slot| match slot {
            PutSlot::Full(reason) => Some(reason),
            _ => None,
        });
        if let Some(reason) = full.filter(|reason| reason.is_empty()) {
            let (why, replaced) = why.unwrap_or((Why::Held, self.objects.replaced_bytes));
            *reason = match why {
                Why::Held => self.what_holds_space(replaced),
                Why::OthersWait => format!("others wait for room already; {}", self.what_holds_space(replaced)),
                Why::Populating => format!("memory is still being populated; {}", self.what_holds_space(replaced)),
                Why::Unfinished { bytes, cap } => {
                    format!("this session has {bytes} bytes in unfinished puts, its limit is {cap}")
                }
            };
        }
        slots
    }

    fn wishes(&self, session: SessionId, config: &PutConfig) -> Wishes {
        let by_name = |name: &String| {
            let open = self.segments.open().iter().map(|open| open.number);
            let same = move |number: &SegmentNo| self.segments.get(*number).is_some_and(|s| s.spec.name == *name);
            open.filter(same).collect::<SmallVec<[SegmentNo; 4]>>()
        };
        let local = config.prefer_local || self.config.placement == PlacementStrategy::LocalFirst;
        Wishes {
            preferred: config.preferred_segments.iter().flat_map(by_name).collect(),
            host: self.sessions.get(session).and_then(|session| session.host).filter(|_| local),
            strategy: self.config.placement,
        }
    }

    /// Finds room for each replica, evicting if it must, and reserves it. One replica is enough.
    #[allow(clippy::too_many_arguments)]
    fn place(
        &mut self,
        now: Time,
        terms: &Terms<'_>,
        entry: Entry<'_>,
        replaces: bool,
        mode: Mode,
        search: &mut Search,
        fx: &mut Effects,
    ) -> Result<SmallVec<[Replica; 1]>, Denied> {
        let Entry { key, size, group } = entry;
        let Ok(need) = u32::try_from(granules(size)) else {
            return Err(Denied::TooLarge(format!("{size} bytes is more than any segment can have")));
        };
        self.check_cap(terms.origin.session, size)?;
        let wanted = (terms.config.replica_num.max(1) as usize).min(self.segments.open_sessions().max(1));
        let mut used: SmallVec<[SessionId; 2]> = SmallVec::new();
        let mut replicas: SmallVec<[Replica; 1]> = SmallVec::new();
        for nth in 0..wanted {
            let free = match mode.room {
                true => placement::choose(&self.segments, need, &used, &terms.wishes, &mut self.random),
                false => None,
            };
            let chosen = match free {
                Some(number) => number,
                None if nth == 0 => self.make_room(now, need, &used, mode, search, size, fx)?,
                None => {
                    let few = Search::of(EVICT_STEPS_MORE.min(search.steps), search.spares);
                    let mut few = Search { largest: search.largest, ..few };
                    let mode = Mode { force: false, ..mode };
                    match self.make_room(now, need, &used, mode, &mut few, size, fx) {
                        Ok(number) => number,
                        Err(_) => break,
                    }
                }
            };
            let segment = self.segments.get(chosen).expect("an open segment");
            let granule = segment.extents.find(need).expect("room was found there");
            used.push(segment.session);
            let extent = Extent { segment: chosen, offset: u64::from(granule) * GRANULE, length: size };
            replicas.push(Replica { rid: self.next_rid(), extent });
        }
        let session = terms.origin.session;
        let with = reservation::Terms { group: group.into(), replaces };
        let record = Reservation::new(session, key, size, terms.pin, replicas.clone(), with).record();
        self.log(now, record, fx);
        Ok(replicas)
    }

    fn check_cap(&self, session: SessionId, size: u64) -> Result<(), Denied> {
        let unfinished = self.sessions.get(session).map_or(0, |session| session.unfinished);
        // A single put is never too much, whatever its size.
        if unfinished == 0 {
            return Ok(());
        }
        let cap = (self.segments.open_bytes() as f64 * self.config.unfinished_share_max) as u64;
        if unfinished + size > cap {
            return Err(Denied::Capped(Why::Unfinished { bytes: unfinished, cap }));
        }
        Ok(())
    }

    /// Evicts until one segment has the room.
    #[allow(clippy::too_many_arguments)]
    fn make_room(
        &mut self,
        now: Time,
        need: u32,
        used: &[SessionId],
        mode: Mode,
        search: &mut Search,
        size: u64,
        fx: &mut Effects,
    ) -> Result<SegmentNo, Denied> {
        if need > *search.largest.lasting.get_or_insert_with(|| self.lasting()) {
            return Err(Denied::TooLarge(self.why_too_large(size)));
        }
        if used.is_empty() && need >= search.full_from {
            return Err(search.denied.clone());
        }
        let room = self.search_room(now, need, used, mode, search, fx);
        // What waits for a populator says nothing of larger keys, for which another segment may be.
        if used.is_empty()
            && let Err(denied @ (Denied::Full(_) | Denied::Own | Denied::Held)) = &room
        {
            search.found_none(need, denied);
        }
        room
    }

    fn search_room(
        &mut self,
        now: Time,
        need: u32,
        used: &[SessionId],
        mode: Mode,
        search: &mut Search,
        fx: &mut Effects,
    ) -> Result<SegmentNo, Denied> {
        let could = |open: &Open| {
            let segment = self.segments.get(open.number);
            !used.contains(&open.session) && segment.is_some_and(|segment| segment.attainable() >= need)
        };
        let is_attainable = match used.is_empty() {
            true => need <= *search.largest.attainable.get_or_insert_with(|| self.segments.attainable()),
            false => self.segments.open().iter().any(could),
        };
        if !is_attainable {
            // Evicting would gain nothing.
            return Err(Denied::Held);
        }
        if !mode.room {
            return Err(Denied::Full(Why::OthersWait));
        }
        if !mode.force && need <= *search.largest.populating.get_or_insert_with(|| self.populating(now)) {
            return Err(Denied::Populating);
        }
        self.counts.evictions_attempted += 1;
        let reach = if mode.force { Reach::Protected } else { Reach::SoftPinned };
        let Search { steps, spares, .. } = search;
        while let Some(victim) = self.objects.victim(now, &self.segments, reach, spares.as_mut(), steps) {
            for number in self.evict(now, victim, fx) {
                let open = self.segments.get(number).filter(|_| self.segments.is_open(number));
                if open.is_some_and(|s| s.extents.largest() >= need && !used.contains(&s.session)) {
                    self.counts.evictions_successful += 1;
                    return Ok(number);
                }
            }
        }
        // Without a call of its own to spare there would have been a victim.
        let denied = match spares {
            Some(_) if *steps > 0 && self.objects.victim(now, &self.segments, reach, None, &mut 1).is_some() => {
                Denied::Own
            }
            _ => Denied::Full(Why::Held),
        };
        Err(denied)
    }

    /// Full size less hard-pinned objects: views, quarantine and absence all come to an end.
    fn lasting(&self) -> u32 {
        let staying = self.segments.iter().filter(|segment| segment.leaves.is_none());
        staying.map(Segment::lasting).max().unwrap_or(0)
    }

    /// What eviction alone can gain where the populator gets on.
    fn populating(&self, now: Time) -> u32 {
        let open = self.segments.open().iter().filter_map(|open| self.segments.get(open.number));
        let gets_on =
            |segment: &&Segment| segment.populating() && now < segment.progress.plus_ms(POPULATION_STALLED_MS);
        open.filter(gets_on).map(Segment::attainable).max().unwrap_or(0)
    }

    fn why_too_large(&self, size: u64) -> String {
        let Some(best) = self.segments.iter().max_by_key(|segment| segment.lasting()) else {
            return format!("{size} bytes: no segment is mounted");
        };
        let (view, hard) = (best.view(), u64::from(best.hard) * GRANULE);
        format!(
            "{size} bytes fit no segment: the best one, {}, has {} bytes, of which {hard} are pinned hard",
            view.name, view.capacity
        )
    }

    /// For refused puts: only these can hold space.
    fn what_holds_space(&self, replaced: u64) -> String {
        let bytes = |granules: u64| granules * GRANULE;
        let open = self.segments.open().len();
        let closed = self.segments.iter().count() - open;
        let pinned: u64 = self.segments.iter().map(|segment| u64::from(segment.pinned)).sum();
        let hard: u64 = self.segments.iter().map(|segment| u64::from(segment.hard)).sum();
        let quarantined: u64 = self.segments.iter().map(|segment| u64::from(segment.quarantined)).sum();
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

    /// Evicts one object; the segments that have more room now.
    pub(crate) fn evict(&mut self, now: Time, slot: u32, fx: &mut Effects) -> SmallVec<[SegmentNo; 2]> {
        let object = self.objects.object(slot);
        let changed = object.places.as_slice().iter().map(|place| place.segment).collect();
        self.counts.evicted_objects += 1;
        self.counts.evicted_bytes += object.size * object.places.as_slice().len() as u64;
        let broken = object.protected_until > now;
        self.counts.protection_broken += u64::from(broken);
        if object.protected_until > Time(0) {
            let hash = self.objects.hash(object.key.as_slice());
            self.evicted_lately.add(hash);
        }
        self.objects.is_evicted(slot);
        self.remove_object(now, slot, fx);
        changed
    }

    /// Ends an unfinished put: its key is free, its extents wait for their owners' word.
    pub(crate) fn drop_reservation(&mut self, now: Time, rid: Rid, writer_done: bool, fx: &mut Effects) {
        let Some(slot) = self.reservations.by_rid(rid) else { return };
        let reservation = self.reservations.get(slot);
        let (writer, replicas) = (reservation.session, reservation.replicas.clone());
        self.log(now, Record::Dropped(rid), fx);
        for replica in replicas {
            self.fence(now, replica, writer, writer_done, fx);
        }
    }

    /// Asks the owner of an extent in quarantine for its word.
    pub(crate) fn fence(
        &mut self,
        now: Time,
        replica: Replica,
        writer: SessionId,
        writer_done: bool,
        fx: &mut Effects,
    ) {
        let Some(segment) = self.segments.get(replica.extent.segment) else { return };
        let (owner, uuid) = (segment.session, segment.spec.uuid);
        if writer_done {
            self.log(now, Record::WriterDone(replica.rid), fx);
        }
        self.counts.fences_asked += 1;
        self.push(owner, Push::Fence { uuid, replica, writer, writer_done }, fx);
    }

    fn count_slots(&mut self, slots: &[PutSlot]) {
        for slot in slots {
            self.counts.put_keys += 1;
            let count = match slot {
                PutSlot::Placed(_) => &mut self.counts.put_placed,
                PutSlot::Exists => &mut self.counts.put_exists,
                PutSlot::Busy(_) => &mut self.counts.put_busy,
                PutSlot::Full(_) => &mut self.counts.put_full,
                PutSlot::TooLarge(_) => &mut self.counts.put_too_large,
                PutSlot::Refused(_) => &mut self.counts.put_refused,
            };
            *count += 1;
        }
    }
}
