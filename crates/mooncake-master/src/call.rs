//! A call connection: one request, one reply, in the connection's own task.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mooncake_core::{
    Candidate, Core, Effects, Origin, PutSlot, PutStarted, Refused, Remembered, RemoveAll, SegmentNo, SessionId, Ticket,
};
use mooncake_wire::message::{self, Reply, Request, reply, request};
use mooncake_wire::{RequestKind, encode_frame, unpack_groups, unpack_keys};
use prost::Message;
use tokio::sync::Semaphore;

use crate::connection::{Connection, Ended, Stream};
use crate::convert;
use crate::log::LogClosed;
use crate::metrics::Op;
use crate::pattern::Pattern;
use crate::shared::Shared;

/// Objects looked at under one lock of the core.
pub const SLICE: usize = 1000;

/// What a client within this host copies in a microsecond, bytes: it asks again when it has copied what it was told of.
const COPIED_IN_A_MICROSECOND: u64 = 10_000;

/// Bytes of keys copied out under one lock of the core.
const SLICE_KEY_BYTES: usize = 64 << 10;

/// Replicas that one message reports.
const BAD_REPLICAS_MAX: usize = 1_024;

/// Longer than any ticket waits in the core: only a bug gets here.
const PARKED_MAX: Duration = Duration::from_secs(10);

/// Answers calls until the connection ends.
pub async fn serve<S: Stream>(
    shared: &Arc<Shared>,
    session: SessionId,
    connection: &mut Connection<S>,
) -> Result<(), Ended> {
    let mut out = Vec::new();
    loop {
        let frame = connection.next_frame().await?;
        let request = Request::decode(frame).map_err(|error| Ended::Garbage(error.to_string()))?;
        let call = Call {
            shared,
            session,
            origin: Origin { session, sequence: request.sequence, answered_below: request.answered_below },
        };
        let (id, began) = (request.id, Instant::now());
        let asked = request.body.as_ref().map(RequestKind::of);
        if !request.abandoned.is_empty() || request.settled_below != 0 {
            shared.read(|core, _| {
                core.abandon(session, &request.abandoned);
                core.settle_replies(session, request.settled_below, &request.unsettled);
            });
        }
        let body = call.answer(request, connection).await?;
        let copying = Duration::from_micros(bytes_to_copy(&body) / COPIED_IN_A_MICROSECOND);
        if let reply::Body::Refusal(refusal) = &body {
            shared.metrics.refused(refusal);
        }
        let over = matches!(&body, reply::Body::Refusal(r) if r.kind() == message::refusal::Kind::UnknownSession);
        out.clear();
        encode_frame(&Reply { id, position: Some(shared.position()), body: Some(body) }, &mut out);
        if let Some(asked) = asked {
            shared.metrics.answered(asked, began);
        }
        connection.send(&out).await?;
        if out.capacity() > 256 << 10 {
            out = Vec::new();
        }
        if over {
            return Ok(());
        }
        connection.read_awake(copying).await?;
    }
}

/// Bytes that a client copies before its next request, going by what it is told.
fn bytes_to_copy(told: &reply::Body) -> u64 {
    let extents =
        |replicas: &[message::Replica]| replicas.iter().flat_map(|r| &r.extents).map(|e| e.length).sum::<u64>();
    match told {
        reply::Body::PutStart(told) => told.slots.iter().map(|slot| extents(&slot.replicas)).sum(),
        reply::Body::Lookup(told) => told.objects.iter().map(|object| object.size).sum(),
        _ => 0,
    }
}

struct Call<'a> {
    shared: &'a Arc<Shared>,
    session: SessionId,
    origin: Origin,
}

impl Call<'_> {
    async fn answer<S: Stream>(&self, request: Request, connection: &mut Connection<S>) -> Result<reply::Body, Ended> {
        use request::Body;
        let Some(body) = request.body else { return Ok(convert::bad_request("the request has no body known here")) };
        let mutation = !matches!(
            body,
            Body::Exists(_)
                | Body::Lookup(_)
                | Body::Describe(_)
                | Body::Segments(_)
                | Body::Ping(_)
                | Body::BadReplica(_)
                | Body::CloseSession(_)
        );
        if mutation && self.origin.sequence == 0 {
            return Ok(convert::bad_request("a mutation needs a sequence number from 1"));
        }
        let answered = match body {
            Body::Exists(ask) => Ok(self.exists(&ask)),
            Body::Lookup(ask) => Ok(self.lookup(&ask)),
            Body::Describe(ask) => Ok(self.describe(&ask)),
            Body::Segments(ask) => Ok(self.segments(&ask)),
            Body::Ping(_) => Ok(reply::Body::Done(message::Done {})),
            Body::PutStart(ask) => return self.put_start(ask, connection).await,
            Body::PutEnd(ask) => self.put_end(&ask).await,
            Body::Abort(ask) => self.abort(&ask).await,
            Body::Pin(ask) => self.pin(&ask).await,
            Body::Unpin(ask) => self.unpin(&ask).await,
            Body::Remove(ask) => self.remove(&ask).await,
            Body::RemoveAll(ask) => self.remove_all(ask.force).await,
            Body::RemoveByRegex(ask) => self.remove_by_regex(&ask).await,
            Body::Mount(ask) => self.mount(ask).await,
            Body::Unmount(ask) => self.unmount(&ask).await,
            Body::BadReplica(ask) => self.bad_replica(&ask).await,
            Body::CloseSession(_) => self.close_session().await,
        };
        Ok(answered?)
    }

    fn exists(&self, ask: &message::Exists) -> reply::Body {
        let keys = match unpack_keys(&ask.keys) {
            Ok(keys) => keys,
            Err(error) => return convert::bad_request(error.to_string()),
        };
        let count = keys.len();
        let mut found = Vec::with_capacity(count);
        let mut sizes = Vec::with_capacity(if ask.sizes { count } else { 0 });
        self.shared.read(|core, now| {
            core.exists(now, keys, |size| {
                found.push(u8::from(size.is_some()));
                if ask.sizes {
                    sizes.push(size.unwrap_or(0));
                }
            });
        });
        self.shared.metrics.count(Op::ExistKey, count, 0);
        reply::Body::Exists(message::ExistsReply { found: Bytes::from(found), sizes })
    }

    fn lookup(&self, ask: &message::Lookup) -> reply::Body {
        let keys = match unpack_keys(&ask.keys) {
            Ok(keys) => keys,
            Err(error) => return convert::bad_request(error.to_string()),
        };
        let mut objects = Vec::with_capacity(keys.len());
        let mut hits = 0;
        let mut bytes = 0;
        self.shared.read(|core, now| {
            core.lookup(now, self.session, keys, |found| {
                if let Some(found) = &found {
                    hits += 1;
                    bytes += found.size;
                }
                objects.push(convert::object(found));
            });
        });
        self.shared.metrics.count(Op::GetReplicaList, objects.len(), objects.len() - hits);
        self.shared.metrics.hit_bytes(bytes);
        reply::Body::Lookup(message::LookupReply { objects })
    }

    fn describe(&self, ask: &message::Describe) -> reply::Body {
        let keys = match unpack_keys(&ask.keys) {
            Ok(keys) => keys,
            Err(error) => return convert::bad_request(error.to_string()),
        };
        let mut objects = Vec::with_capacity(keys.len());
        let mut numbers = BTreeSet::new();
        let segments = self.shared.read(|core, now| {
            core.describe(now, keys, |found| {
                numbers.extend(found.iter().flat_map(|found| found.replicas()).map(|replica| replica.extent.segment));
                objects.push(convert::object(found));
            });
            let named = numbers.iter().filter_map(|number| core.segment(*number));
            named.map(|view| message::SegmentName { number: view.number.0, name: view.name.to_owned() }).collect()
        });
        self.shared.metrics.count(Op::ExistKey, objects.len(), 0);
        reply::Body::Describe(message::DescribeReply { objects, segments })
    }

    fn segments(&self, ask: &message::Segments) -> reply::Body {
        let segments = self.shared.read(|core, _| {
            // Each once, however often it is named.
            let numbers: BTreeSet<u32> = ask.numbers.iter().copied().collect();
            let known = numbers.into_iter().filter_map(|number| core.segment(SegmentNo(number)));
            known.map(|view| convert::segment(&view)).collect()
        });
        reply::Body::Segments(message::SegmentsReply { segments })
    }

    async fn put_start<S: Stream>(
        &self,
        ask: message::PutStart,
        connection: &mut Connection<S>,
    ) -> Result<reply::Body, Ended> {
        let keys = match unpack_keys(&ask.keys) {
            Ok(keys) if keys.len() == ask.sizes.len() => keys,
            Ok(keys) => {
                return Ok(convert::bad_request(format!("{} keys but {} sizes", keys.len(), ask.sizes.len())));
            }
            Err(error) => return Ok(convert::bad_request(error.to_string())),
        };
        let groups = match unpack_groups(&ask.groups, ask.sizes.len()) {
            Ok(groups) => groups,
            Err(error) => return Ok(convert::bad_request(error.to_string())),
        };
        let config = match convert::put_config(ask.config, groups, self.shared.identity.soft_pin) {
            Ok(config) => config,
            Err(reason) => return Ok(convert::bad_request(reason)),
        };
        let mut parked = None;
        let started = {
            let entries: Vec<(&[u8], u64)> = keys.zip(ask.sizes.iter().copied()).collect();
            self.shared
                .apply_async(|core, now, effects| {
                    let started = core.put_start(now, self.origin, &entries, &config, ask.wait, effects);
                    if let Ok(PutStarted::Parked(ticket)) = started {
                        // Under the core's lock: nobody can wake it before it is entered.
                        parked = Some((Parked { shared: self.shared, ticket }, self.shared.routes.park(ticket)));
                    }
                    started
                })
                .await?
        };
        let slots = match (started, parked) {
            (Ok(PutStarted::Now(slots)), _) => slots,
            (Ok(PutStarted::Parked(ticket)), Some((_guard, woken))) => {
                let woken = tokio::time::timeout(PARKED_MAX, connection.until_closed(woken)).await;
                match woken {
                    Ok(slots) => slots?.map_err(|_| LogClosed)?,
                    Err(_) => {
                        tracing::error!(?ticket, "a parked put was not answered by its deadline");
                        let reason = "the put waited too long; try again".to_owned();
                        let kind = message::refusal::Kind::Internal.into();
                        return Ok(reply::Body::Refusal(message::Refusal { kind, reason }));
                    }
                }
            }
            (Ok(PutStarted::Parked(_)), None) => unreachable!("entered above"),
            (Err(refused), _) => return Ok(self.refuse(Op::PutStart, ask.sizes.len(), &refused)),
        };
        let failed = slots.iter().filter(|slot| !matches!(slot, PutSlot::Placed(_) | PutSlot::Exists)).count();
        self.shared.metrics.count(Op::PutStart, slots.len(), failed);
        for (slot, size) in slots.iter().zip(&ask.sizes) {
            if let PutSlot::Placed(replicas) = slot {
                self.shared.metrics.placed(*size, replicas.len() < config.replica_num as usize);
            }
        }
        let slots = slots.iter().map(convert::put_slot).collect();
        Ok(reply::Body::PutStart(message::PutStartReply { slots }))
    }

    async fn put_end(&self, ask: &message::PutEnd) -> Result<reply::Body, LogClosed> {
        let ended = convert::ended(ask);
        let outcomes =
            self.shared.apply_async(|core, now, effects| core.put_end(now, self.origin, &ended, effects)).await?;
        Ok(match outcomes {
            Ok(outcomes) => {
                let good = outcomes.iter().filter(|o| **o == mooncake_core::EndOutcome::Committed).count();
                self.shared.metrics.count(Op::PutEnd, outcomes.len(), outcomes.len() - good);
                let outcomes = outcomes.into_iter().map(convert::end_outcome).collect();
                reply::Body::PutEnd(message::PutEndReply { outcomes })
            }
            Err(refused) => self.refuse(Op::PutEnd, ended.len(), &refused),
        })
    }

    async fn abort(&self, ask: &message::Abort) -> Result<reply::Body, LogClosed> {
        let rids = convert::rids(&ask.rids);
        let done = self
            .shared
            .apply_async(|core, now, effects| core.abort(now, self.origin, &rids, ask.writer_done, effects))
            .await?;
        Ok(self.done(Op::PutRevoke, rids.len(), done))
    }

    async fn pin(&self, ask: &message::Pin) -> Result<reply::Body, LogClosed> {
        let keys: Vec<&[u8]> = match unpack_keys(&ask.keys) {
            Ok(keys) => keys.collect(),
            Err(error) => return Ok(convert::bad_request(error.to_string())),
        };
        let found = self.shared.apply_async(|core, now, effects| core.pin(now, self.origin, &keys, effects)).await?;
        Ok(match found {
            Ok(found) => {
                let hits = found.iter().filter(|found| found.is_some()).count();
                self.shared.metrics.count(Op::GetReplicaList, found.len(), found.len() - hits);
                self.shared.metrics.hit_bytes(found.iter().flatten().map(|found| found.size).sum());
                let objects = found.iter().map(convert::pinned_object).collect();
                reply::Body::Lookup(message::LookupReply { objects })
            }
            Err(refused) => self.refuse(Op::GetReplicaList, keys.len(), &refused),
        })
    }

    async fn unpin(&self, ask: &message::Unpin) -> Result<reply::Body, LogClosed> {
        let rids = convert::rids(&ask.rids);
        let done = self.shared.apply_async(|core, now, effects| core.unpin(now, self.origin, &rids, effects)).await?;
        Ok(self.done(Op::Unpin, rids.len(), done))
    }

    async fn remove(&self, ask: &message::Remove) -> Result<reply::Body, LogClosed> {
        let keys: Vec<&[u8]> = match unpack_keys(&ask.keys) {
            Ok(keys) => keys.collect(),
            Err(error) => return Ok(convert::bad_request(error.to_string())),
        };
        let outcomes = self
            .shared
            .apply_async(|core, now, effects| core.remove(now, self.origin, &keys, ask.force, effects))
            .await?;
        Ok(match outcomes {
            Ok(outcomes) => {
                let good = outcomes.iter().filter(|o| **o == mooncake_core::RemoveOutcome::Removed).count();
                self.shared.metrics.count_items(Op::Remove, outcomes.len(), outcomes.len() - good);
                let outcomes = outcomes.into_iter().map(convert::remove_outcome).collect();
                reply::Body::Remove(message::RemoveReply { outcomes })
            }
            Err(refused) => self.refuse(Op::Remove, keys.len(), &refused),
        })
    }

    async fn remove_all(&self, force: bool) -> Result<reply::Body, LogClosed> {
        if let Some(answer) = self.removed_before(Op::RemoveAll) {
            return Ok(answer);
        }
        let removed = remove_all(self.shared, force, Some(self.origin)).await?;
        self.removed(removed).await
    }

    async fn remove_by_regex(&self, ask: &message::RemoveByRegex) -> Result<reply::Body, LogClosed> {
        let pattern = match Pattern::new(&ask.pattern) {
            Ok(pattern) => pattern,
            Err(reason) => return Ok(convert::bad_request(reason)),
        };
        if let Some(answer) = self.removed_before(Op::RemoveByRegex) {
            return Ok(answer);
        }
        let removed = remove_matching(self.shared, &pattern, ask.force, Some(self.origin)).await?;
        self.removed(removed).await
    }

    /// The answer to a repeat, or to what is not to be done at all.
    fn removed_before(&self, op: Op) -> Option<reply::Body> {
        match self.shared.read(|core, _| core.admit(self.origin)) {
            Ok(Some(Remembered::RemoveAll(removed))) => {
                Some(reply::Body::RemoveAll(message::RemoveAllReply { removed }))
            }
            Ok(Some(other)) => Some(convert::bad_request(format!("this sequence was answered with {other:?}"))),
            Ok(None) => None,
            Err(refused) => Some(self.refuse(op, 1, &refused)),
        }
    }

    async fn removed(&self, removed: u64) -> Result<reply::Body, LogClosed> {
        self.shared
            .apply_async(|core, _, effects| core.remember(self.origin, Remembered::RemoveAll(removed), effects))
            .await?;
        Ok(reply::Body::RemoveAll(message::RemoveAllReply { removed }))
    }

    async fn mount(&self, ask: message::Mount) -> Result<reply::Body, LogClosed> {
        let spec = match convert::segment_spec(ask.segment) {
            Ok(spec) => spec,
            Err(reason) => return Ok(convert::bad_request(reason)),
        };
        let (name, bytes) = (spec.name.clone(), spec.bytes);
        let number = self
            .shared
            .apply_async(|core, now, effects| core.mount(now, self.origin, spec, ask.populated, effects))
            .await?;
        Ok(match number {
            Ok(number) => {
                tracing::info!(segment = name, bytes, session = self.session.0, "segment mounted");
                self.shared.metrics.count(Op::MountSegment, 1, 0);
                reply::Body::Mount(message::MountReply { number: number.0 })
            }
            Err(refused) => self.refuse(Op::MountSegment, 1, &refused),
        })
    }

    async fn unmount(&self, ask: &message::Unmount) -> Result<reply::Body, LogClosed> {
        let uuid = match convert::uuid(&ask.uuid) {
            Ok(uuid) => uuid,
            Err(reason) => return Ok(convert::bad_request(reason)),
        };
        let done = self
            .shared
            .apply_async(|core, now, effects| core.unmount(now, self.origin, uuid, ask.grace_ms, effects))
            .await?;
        Ok(self.done(Op::UnmountSegment, 1, done))
    }

    async fn bad_replica(&self, ask: &message::BadReplica) -> Result<reply::Body, LogClosed> {
        let count = 1 + ask.more.len();
        if count > BAD_REPLICAS_MAX {
            return Ok(convert::bad_request(format!(
                "{count} bad replicas at a time, the limit is {BAD_REPLICAS_MAX}"
            )));
        }
        let (session, reason) = (self.session.0, &ask.reason);
        tracing::warn!(rid = ask.rid, session, reason, count, "a reader found replicas bad; this is the first");
        self.shared
            .apply_async(|core, now, effects| {
                for bad in std::iter::once(ask).chain(&ask.more) {
                    core.bad_replica(now, self.session, &bad.key, mooncake_core::Rid(bad.rid), effects);
                }
            })
            .await?;
        Ok(reply::Body::Done(message::Done {}))
    }

    async fn close_session(&self) -> Result<reply::Body, LogClosed> {
        self.shared.apply_async(|core, now, effects| core.close_session(now, self.session, effects)).await?;
        if let Some(anchor) = self.shared.routes.anchor(self.session) {
            anchor.finish();
        }
        Ok(reply::Body::Done(message::Done {}))
    }

    fn done(&self, op: Op, items: usize, done: Result<(), Refused>) -> reply::Body {
        match done {
            Ok(()) => {
                self.shared.metrics.count(op, items, 0);
                reply::Body::Done(message::Done {})
            }
            Err(refused) => self.refuse(op, items, &refused),
        }
    }

    fn refuse(&self, op: Op, items: usize, refused: &Refused) -> reply::Body {
        self.shared.metrics.count(op, items, items);
        reply::Body::Refusal(convert::refusal(refused))
    }
}

/// Removes every object that is there now, in slices, so that nobody waits longer than one of them; returns how many. It
/// stops when the mutation that asked for it, if any, is abandoned.
pub async fn remove_all(shared: &Arc<Shared>, force: bool, origin: Option<Origin>) -> Result<u64, LogClosed> {
    let mut cursor = shared.read(|core, _| RemoveAll::new(core, force));
    loop {
        let slice = |core: &mut Core, now, effects: &mut Effects| {
            is_abandoned(core, origin) || core.remove_all_slice(now, &mut cursor, SLICE, effects)
        };
        if shared.apply_async(slice).await? {
            break;
        }
        tokio::task::yield_now().await;
    }
    shared.metrics.count(Op::RemoveAll, 1, 0);
    if let Some(freed) = shared.identity.after_bulk_free {
        // Takes its time with a large heap.
        let _ = tokio::task::spawn_blocking(freed).await;
    }
    Ok(cursor.removed)
}

/// Looked at under the same lock as what follows: no later request of its client comes between.
fn is_abandoned(core: &Core, origin: Option<Origin>) -> bool {
    origin.is_some_and(|origin| core.is_abandoned(origin))
}

/// Long keys and a dear pattern take seconds: one search at a time, on a thread that nobody else waits for.
static SEARCH: Semaphore = Semaphore::const_new(1);

/// Removes the objects whose keys match, in slices; returns how many. The keys are matched without the core's lock.
async fn remove_matching(
    shared: &Arc<Shared>,
    pattern: &Pattern,
    force: bool,
    origin: Option<Origin>,
) -> Result<u64, LogClosed> {
    let mut cursor = shared.read(|core, _| RemoveAll::new(core, force));
    loop {
        let mut keys: Vec<u8> = Vec::new();
        let mut shown: Vec<(Candidate, usize)> = Vec::new();
        let finished = shared.read(|core, now| {
            core.remove_candidates(now, &mut cursor, SLICE, SLICE_KEY_BYTES, |candidate, key| {
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
        let slice = |core: &mut Core, now, effects: &mut Effects| {
            let abandoned = is_abandoned(core, origin);
            if !abandoned {
                core.remove_chosen(now, &mut cursor, &chosen, effects);
            }
            abandoned
        };
        if shared.apply_async(slice).await? || finished {
            break;
        }
        tokio::task::yield_now().await;
    }
    shared.metrics.count(Op::RemoveByRegex, 1, 0);
    if let Some(freed) = shared.identity.after_bulk_free {
        // Takes its time with a large heap.
        let _ = tokio::task::spawn_blocking(freed).await;
    }
    Ok(cursor.removed)
}

/// A request that waits in the core; gone with its connection.
struct Parked<'a> {
    shared: &'a Arc<Shared>,
    ticket: Ticket,
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.shared.routes.unpark(self.ticket);
        // Answered tickets are unknown to the core by now, which ignores them.
        let cancelled = self.shared.apply_and_leave(|core, now, effects| core.cancel_ticket(now, self.ticket, effects));
        if cancelled.is_err() {
            tracing::debug!("the master stops with a put still parked");
        }
    }
}
