//! What a call asks for, and how it is answered. Mass removals and queries have files of their own
//! ([`removals`](super::removals), [`queries`](super::queries)).
//!
//! A request is read without the core's lock, carried out under it, and put into words again without it. Reading
//! refuses what makes no sense. Some requests are not through with one step: a put may wait ([`PutStart`]), what
//! removes very many objects does so in slices ([`Removal`](super::removals::Removal)), and so does the end of a large
//! session.

use mooncake_core::{
    Absent, Core, Effects, EndOutcome, Ended, Found, Keep, Origin, PutConfig, PutStarted, Refused, RemoveOutcome,
    SegmentNo, SegmentSpec, StartOutcome, TierMount, TierMounted, Time, Verdict,
};
use mooncake_ids::{FileSystemUuid, Rid, SegmentUuid, SessionId, TierUuid};
use mooncake_wire::message::{self, Request, reply, request};
use mooncake_wire::{KeysError, unpack_groups, unpack_keys};

use super::convert::{self, Bad, SoftPinTtl};
use super::pattern::Pattern;
use super::queries::Query;

/// Replicas that one message reports.
const BAD_REPLICAS_MAX: usize = 1_024;

/// A request that was read, and makes sense.
#[derive(Debug)]
pub enum ReadRequest<'m> {
    /// Changes nothing durable.
    Query(Query<'m>),
    /// Is through when it was carried out, in one step.
    Command(Command<'m>),
    /// Reserves room, and may wait for it.
    PutStart(PutStart<'m>),
    /// Removes every object.
    RemoveAll {
        /// Also objects that were looked up a moment ago.
        force: bool,
    },
    /// Removes the objects whose keys match.
    RemoveMatching {
        /// Matched without the core's lock.
        pattern: Pattern,
        /// Also objects that were looked up a moment ago.
        force: bool,
    },
}

/// What changes something in one step: a mutation, or what says the same however often it comes and so has no number (a
/// bad replica, that a tier is mounted or left, the end of a session).
#[derive(Debug)]
pub enum Command<'m> {
    /// Ends puts.
    PutEnd(Vec<Ended>),
    /// Aborts reservations.
    Abort {
        /// Which.
        rids: Vec<Rid>,
        /// The writer will not touch those extents again.
        writer_done: bool,
    },
    /// Takes pins.
    Pin(Vec<&'m [u8]>),
    /// Gives pins back.
    Unpin(Vec<Rid>),
    /// Removes objects.
    Remove {
        /// Their keys.
        keys: Vec<&'m [u8]>,
        /// Also objects that were looked up a moment ago.
        force: bool,
    },
    /// Drops replicas.
    ClearReplicas {
        /// Keys of their objects.
        keys: Vec<&'m [u8]>,
        /// Name of the segments that they are on; empty: of all.
        segment: &'m str,
    },
    /// Contributes memory.
    Mount {
        /// What it is.
        spec: SegmentSpec,
        /// Bytes that are there already.
        populated: u64,
    },
    /// Takes memory back.
    Unmount {
        /// Which.
        uuid: SegmentUuid,
        /// It is read for so long still, milliseconds.
        grace_ms: u64,
    },
    /// Reports bad replicas.
    BadReplica(&'m message::BadReplica),
    /// Mounts a tier.
    MountTier {
        /// What it is.
        mount: Box<TierMount>,
        /// Above those of all that the session said of it before.
        turn: u64,
    },
    /// Says which file system it shares with others.
    Announce(FileSystemUuid),
    /// Leaves a tier, whose records stay.
    LeaveTier {
        /// Which.
        tier: TierUuid,
        /// No file of it is left.
        is_empty: bool,
        /// Above those of all that the session said of it before.
        turn: u64,
    },
    /// Judges records of a tier's file.
    Reclaim {
        /// The tier.
        tier: TierUuid,
        /// The one to which is written what is kept.
        into: TierUuid,
        /// The file.
        file: u64,
        /// Keys and rids, as the file names them.
        records: Vec<(&'m [u8], Rid)>,
        /// All have been judged: what objects still have there, they have no more.
        last: bool,
    },
    /// Has the session's memory outlive its process.
    Keep(Keep),
    /// Ends the session.
    CloseSession,
}

/// Reserves room for puts.
#[derive(Debug)]
pub struct PutStart<'m> {
    /// Sizes of the objects, bytes.
    pub sizes: &'m [u64],
    /// How they are to be placed.
    pub config: PutConfig,
    entries: Vec<(&'m [u8], u64)>,
    wait: bool,
}

/// What came of a command. [`Outcome::reply`] may be sent once the records that it left are in the log.
#[derive(Debug)]
pub enum Outcome {
    /// Per put that was ended.
    PutEnd(Vec<EndOutcome>),
    /// Per key: what is pinned.
    Pin(Vec<Result<Found, Absent>>),
    /// Per key.
    Remove(Vec<RemoveOutcome>),
    /// The segment's number.
    Mount(SegmentNo),
    /// A tier's number and files.
    MountTier(TierMounted),
    /// Its owner is to begin another tier, and why.
    OtherTier(Refused),
    /// Per record.
    Reclaim(Vec<Verdict>),
    /// Done, to so many things; `None` where that is not counted.
    Done(Option<usize>),
    /// The session is over: its anchor ends when everything on it is sent.
    Closed,
    /// The session is about to be over. It is answered once it is: the change is carried out again until then.
    Closes,
    /// Refused as a whole, with so many things that it was about.
    Refused(Refused, usize),
}

/// A reply, and what it came to.
#[derive(Debug)]
pub struct CountedReply {
    /// In the protocol's words.
    pub body: reply::Body,
    /// What it came to, where that is counted.
    pub tally: Option<Tally>,
}

/// Figures of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Things that it was about.
    pub items: usize,
    /// Those of them that failed.
    pub failed: usize,
    /// Bytes of the objects that were found.
    pub hit_bytes: u64,
    /// Objects to be put that are there already.
    pub existing: usize,
}

/// Whether a request says that its client waits for others no more, which is [noted](note_settled) before it is read.
pub fn says_settled(request: &Request) -> bool {
    !request.abandoned.is_empty() || request.settled_below != 0
}

/// Notes which other mutations the client waits for no more, and which of them have been answered.
pub fn note_settled(core: &mut Core, session: SessionId, request: &Request) {
    core.abandon(session, &request.abandoned);
    core.settle_replies(session, request.settled_below, &request.unsettled);
}

/// Reads a request; what is moved out of it is not there any more.
pub fn read(request: &mut Request, soft_pin: SoftPinTtl) -> Result<ReadRequest<'_>, Bad> {
    use request::Body;
    let body = request.body.as_mut().ok_or("this master does not know this request; upgrade it")?;
    let numbered = request.sequence != 0;
    // Queries may be made twice, and so may what says the same each time: a bad replica, a tier, the end of a session.
    let needs_number = !matches!(
        body,
        Body::Exists(_)
            | Body::Lookup(_)
            | Body::Describe(_)
            | Body::Segments(_)
            | Body::Ping(_)
            | Body::BadReplica(_)
            | Body::TierMount(_)
            | Body::TierLeave(_)
            | Body::CloseSession(_)
    );
    if needs_number && !numbered {
        return Err("a mutation needs a sequence number from 1".to_owned());
    }
    Ok(match body {
        Body::Exists(ask) => ReadRequest::Query(Query::exists(ask)?),
        Body::Lookup(ask) => ReadRequest::Query(Query::lookup(ask)?),
        Body::Describe(ask) => ReadRequest::Query(Query::describe(ask)?),
        Body::Segments(ask) => ReadRequest::Query(Query::segments(ask)),
        Body::Ping(_) => ReadRequest::Query(Query::Ping),
        Body::PutStart(ask) => ReadRequest::PutStart(PutStart::read(ask, soft_pin)?),
        Body::RemoveAll(ask) => ReadRequest::RemoveAll { force: ask.force },
        Body::RemoveByRegex(ask) => {
            ReadRequest::RemoveMatching { pattern: Pattern::new(&ask.pattern)?, force: ask.force }
        }
        Body::PutEnd(ask) => ReadRequest::Command(Command::PutEnd(convert::ended(ask))),
        Body::Abort(ask) => {
            ReadRequest::Command(Command::Abort { rids: convert::rids(&ask.rids), writer_done: ask.writer_done })
        }
        Body::Pin(ask) => ReadRequest::Command(Command::Pin(keys(&ask.keys)?)),
        Body::Unpin(ask) => ReadRequest::Command(Command::Unpin(convert::rids(&ask.rids))),
        Body::Remove(ask) => ReadRequest::Command(Command::Remove { keys: keys(&ask.keys)?, force: ask.force }),
        Body::ClearReplicas(ask) => {
            ReadRequest::Command(Command::ClearReplicas { keys: keys(&ask.keys)?, segment: &ask.segment })
        }
        Body::Mount(ask) => {
            let spec = convert::segment_spec(ask.segment.take())?;
            ReadRequest::Command(Command::Mount { spec, populated: ask.populated })
        }
        Body::Unmount(ask) => {
            ReadRequest::Command(Command::Unmount { uuid: convert::uuid(&ask.uuid)?, grace_ms: ask.grace_ms })
        }
        Body::BadReplica(ask) => {
            let count = 1 + ask.more.len();
            if count > BAD_REPLICAS_MAX {
                return Err(format!("{count} bad replicas at a time, the limit is {BAD_REPLICAS_MAX}"));
            }
            ReadRequest::Command(Command::BadReplica(ask))
        }
        Body::TierMount(ask) if ask.tier.is_none() && !ask.file_system.is_empty() => {
            ReadRequest::Command(Command::Announce(convert::file_system(&ask.file_system)?))
        }
        Body::TierMount(ask) => {
            let mount = Box::new(convert::tier_mount(ask)?);
            ReadRequest::Command(Command::MountTier { mount, turn: ask.turn })
        }
        Body::TierLeave(ask) => {
            let tier = convert::tier_uuid(&ask.uuid)?;
            ReadRequest::Command(Command::LeaveTier { tier, is_empty: ask.empty, turn: ask.turn })
        }
        Body::TierReclaim(ask) => {
            let keys = unpack_keys(&ask.keys).map_err(bad_keys)?;
            if keys.len() != ask.rids.len() {
                return Err(format!("{} keys but {} rids", keys.len(), ask.rids.len()));
            }
            let records = keys.zip(convert::rids(&ask.rids)).collect();
            let into = if ask.into.is_empty() { &ask.tier } else { &ask.into };
            ReadRequest::Command(Command::Reclaim {
                tier: convert::tier_uuid(&ask.tier)?,
                into: convert::tier_uuid(into)?,
                file: ask.file,
                records,
                last: ask.last,
            })
        }
        Body::Keep(ask) => ReadRequest::Command(Command::Keep(convert::keep(ask)?)),
        Body::CloseSession(_) => ReadRequest::Command(Command::CloseSession),
    })
}

fn keys(keys: &Option<message::Keys>) -> Result<Vec<&[u8]>, Bad> {
    Ok(unpack_keys(keys).map_err(bad_keys)?.collect())
}

pub(super) fn bad_keys(error: KeysError) -> Bad {
    error.to_string()
}

impl<'m> PutStart<'m> {
    fn read(ask: &'m mut message::PutStart, soft_pin: SoftPinTtl) -> Result<PutStart<'m>, Bad> {
        let config = ask.config.take();
        let ask: &'m message::PutStart = ask;
        let keys = unpack_keys(&ask.keys).map_err(bad_keys)?;
        if keys.len() != ask.sizes.len() {
            return Err(format!("{} keys but {} sizes", keys.len(), ask.sizes.len()));
        }
        let groups = unpack_groups(&ask.groups, ask.sizes.len()).map_err(bad_keys)?;
        let config = convert::put_config(config, groups, soft_pin)?;
        let entries = keys.zip(ask.sizes.iter().copied()).collect();
        Ok(PutStart { sizes: &ask.sizes, config, entries, wait: ask.wait })
    }

    /// Reserves what can be reserved now. A put that is parked is answered by [`Effects::woken`], under its ticket. A
    /// driver whose client is gone before that [cancels](Core::cancel_ticket) the ticket.
    pub fn run(
        &self,
        core: &mut Core,
        now: Time,
        origin: Origin,
        effects: &mut Effects,
    ) -> Result<PutStarted, Refused> {
        core.put_start(now, origin, &self.entries, &self.config, self.wait, effects)
    }
}

impl Command<'_> {
    /// Carries it out.
    pub fn run(self, core: &mut Core, now: Time, origin: Origin, effects: &mut Effects) -> Outcome {
        let done = |items, done: Result<(), Refused>| match done {
            Ok(()) => Outcome::Done(Some(items)),
            Err(refused) => Outcome::Refused(refused, items),
        };
        match self {
            Command::PutEnd(ended) => match core.put_end(now, origin, &ended, effects) {
                Ok(outcomes) => Outcome::PutEnd(outcomes),
                Err(refused) => Outcome::Refused(refused, ended.len()),
            },
            Command::Abort { rids, writer_done } => {
                done(rids.len(), core.abort(now, origin, &rids, writer_done, effects))
            }
            Command::Pin(keys) => match core.pin(now, origin, &keys, effects) {
                Ok(found) => Outcome::Pin(found),
                Err(refused) => Outcome::Refused(refused, keys.len()),
            },
            Command::Unpin(rids) => done(rids.len(), core.unpin(now, origin, &rids, effects)),
            Command::Remove { keys, force } => match core.remove(now, origin, &keys, force, effects) {
                Ok(outcomes) => Outcome::Remove(outcomes),
                Err(refused) => Outcome::Refused(refused, keys.len()),
            },
            Command::ClearReplicas { keys, segment } => {
                match core.clear_replicas(now, origin, &keys, segment, effects) {
                    Ok(outcomes) => Outcome::Remove(outcomes),
                    Err(refused) => Outcome::Refused(refused, keys.len()),
                }
            }
            Command::Mount { spec, populated } => match core.mount(now, origin, spec, populated, effects) {
                Ok(number) => Outcome::Mount(number),
                Err(refused) => Outcome::Refused(refused, 1),
            },
            Command::Unmount { uuid, grace_ms } => done(1, core.unmount(now, origin, uuid, grace_ms, effects)),
            Command::BadReplica(first) => {
                for bad in std::iter::once(first).chain(&first.more) {
                    core.bad_replica(now, origin.session, &bad.key, Rid(bad.rid), effects);
                }
                Outcome::Done(None)
            }
            Command::MountTier { mount, turn } => match core
                .turn_of_tier(origin.session, mount.spec.uuid, turn)
                .and_then(|()| core.mount_tier(now, origin.session, *mount, effects))
            {
                Ok(mounted) => Outcome::MountTier(mounted),
                Err(refused @ (Refused::TierUnknown(_) | Refused::TierSecret(_) | Refused::TierAdopted(_))) => {
                    Outcome::OtherTier(refused)
                }
                Err(refused) => Outcome::Refused(refused, 1),
            },
            Command::Announce(file_system) => done(1, core.announce(now, origin.session, file_system, effects)),
            Command::LeaveTier { tier, is_empty, turn } => match core.turn_of_tier(origin.session, tier, turn) {
                Ok(()) => {
                    core.leave_tier(now, origin.session, tier, is_empty, effects);
                    Outcome::Done(None)
                }
                Err(refused) => Outcome::Refused(refused, 1),
            },
            Command::Reclaim { tier, into, file, records, last } => {
                let verdicts = core.reclaim(now, origin, (tier, into), file, &records, effects);
                let ended = |verdicts| match last {
                    true => core.reclaimed(origin.session, tier, file).map(|()| verdicts),
                    false => Ok(verdicts),
                };
                match verdicts.and_then(ended) {
                    Ok(verdicts) => Outcome::Reclaim(verdicts),
                    Err(refused) => Outcome::Refused(refused, records.len()),
                }
            }
            Command::Keep(keep) => done(1, core.keep(now, origin, keep, effects)),
            Command::CloseSession => match core.close_session(now, origin.session, effects) {
                true => Outcome::Closed,
                false => Outcome::Closes,
            },
        }
    }
}

impl Outcome {
    /// The reply.
    pub fn reply(self) -> CountedReply {
        match self {
            Outcome::PutEnd(outcomes) => {
                let failed = outcomes.iter().filter(|outcome| **outcome != EndOutcome::Committed).count();
                let tally = Tally { items: outcomes.len(), failed, ..Tally::default() };
                let outcomes = outcomes.into_iter().map(convert::end_outcome).collect();
                CountedReply::counted(reply::Body::PutEnd(message::PutEndReply { outcomes }), tally)
            }
            Outcome::Pin(found) => {
                let failed = found.iter().filter(|found| found.is_err()).count();
                let hit_bytes = found.iter().flatten().map(|found| found.size).sum();
                let tally = Tally { items: found.len(), failed, hit_bytes, ..Tally::default() };
                let away = found.contains(&Err(Absent::OwnersAway));
                let objects = found.iter().map(|found| convert::pinned_object(found.as_ref().ok())).collect();
                CountedReply::counted(reply::Body::Lookup(message::LookupReply { objects, away }), tally)
            }
            Outcome::Remove(outcomes) => {
                let failed = outcomes.iter().filter(|outcome| **outcome != RemoveOutcome::Removed).count();
                let tally = Tally { items: outcomes.len(), failed, ..Tally::default() };
                let outcomes = outcomes.into_iter().map(convert::remove_outcome).collect();
                CountedReply::counted(reply::Body::Remove(message::RemoveReply { outcomes }), tally)
            }
            Outcome::Mount(number) => {
                let tally = Tally { items: 1, ..Tally::default() };
                CountedReply::counted(reply::Body::Mount(message::MountReply { number: number.0 }), tally)
            }
            Outcome::MountTier(mounted) => {
                let tally = Tally { items: 1, ..Tally::default() };
                CountedReply::counted(reply::Body::TierMount(convert::tier_mounted(mounted)), tally)
            }
            Outcome::OtherTier(refused) => {
                let tally = Tally { items: 1, failed: 1, ..Tally::default() };
                let (unknown, adopted) = (refused.to_string(), matches!(refused, Refused::TierAdopted(_)));
                let reply = message::TierMountReply { unknown, adopted, ..message::TierMountReply::default() };
                CountedReply::counted(reply::Body::TierMount(reply), tally)
            }
            Outcome::Reclaim(verdicts) => {
                let rids = verdicts.iter().map(|verdict| if let Verdict::Keep(rid) = verdict { rid.0 } else { 0 });
                let reply = message::TierReclaimReply { rids: rids.collect() };
                let tally = Tally { items: verdicts.len(), ..Tally::default() };
                CountedReply::counted(reply::Body::TierReclaim(reply), tally)
            }
            Outcome::Done(items) => CountedReply {
                body: reply::Body::Done(message::Done {}),
                tally: items.map(|items| Tally { items, ..Tally::default() }),
            },
            Outcome::Closed | Outcome::Closes => {
                CountedReply { body: reply::Body::Done(message::Done {}), tally: None }
            }
            Outcome::Refused(refused, items) => CountedReply::refused(&refused, items),
        }
    }
}

impl CountedReply {
    pub(super) fn counted(body: reply::Body, tally: Tally) -> CountedReply {
        CountedReply { body, tally: Some(tally) }
    }

    /// To a request for `items` things that the core refused as a whole.
    pub fn refused(refused: &Refused, items: usize) -> CountedReply {
        let tally = Tally { items, failed: items, ..Tally::default() };
        CountedReply::counted(reply::Body::Refusal(convert::refusal(refused)), tally)
    }

    /// To one that makes no sense.
    pub fn bad(reason: Bad) -> CountedReply {
        CountedReply { body: convert::bad_request(reason), tally: None }
    }

    /// To a put, at once or when it was woken.
    pub fn put_start(outcomes: &[StartOutcome]) -> CountedReply {
        let existing = outcomes.iter().filter(|outcome| matches!(outcome, StartOutcome::Exists)).count();
        let placed = outcomes.iter().filter(|outcome| matches!(outcome, StartOutcome::Placed(_))).count();
        let failed = outcomes.len() - placed - existing;
        let tally = Tally { items: outcomes.len(), failed, existing, ..Tally::default() };
        let slots = outcomes.iter().map(convert::start_outcome).collect();
        CountedReply::counted(reply::Body::PutStart(message::PutStartReply { slots }), tally)
    }
}

#[cfg(test)]
mod tests;
