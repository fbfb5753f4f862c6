//! A call connection: one request, one reply, in the connection's own task.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_core::{Origin, PutStarted, StartOutcome, Ticket};
use mooncake_ids::SessionId;
use mooncake_wire::message::{self, Reply, Request, reply};
use mooncake_wire::{RequestKind, encode_frame};
use prost::Message;

use crate::clients::Client;
use crate::connections::Idle;
use crate::control::connection::{Connection, Stream, WhyClosed};
use crate::log::LogClosed;
use crate::machine::removals::{self, Removal};
use crate::machine::requests::{self, Command, CountedReply, Outcome, PutStart, ReadRequest};
use crate::metrics::Op;
use crate::removal::{remove_all, remove_matching};
use crate::shared::Shared;

/// What a client within this host copies in a microsecond, bytes, at the rate of a slow host: it asks again when it has
/// copied what it was told of.
const COPIED_IN_A_MICROSECOND: u64 = 5_000;

/// What a client, a Python program most often, makes of a request in a microsecond, bytes, at the rate of a slow host:
/// keys that it looks at one by one when they are answered, and packs for its next request.
const PACKED_IN_A_MICROSECOND: u64 = 100;

/// Longer than any ticket waits in the core: only a bug gets here.
const TICKET_WAIT_MAX: Duration = Duration::from_secs(10);

/// Answers calls until the connection ends.
pub async fn serve<S: Stream>(
    shared: &Arc<Shared>,
    session: SessionId,
    idle: &Idle,
    connection: &mut Connection<S>,
) -> Result<(), WhyClosed> {
    let mut out = Vec::new();
    let client = shared.clients.of(session, Instant::now());
    loop {
        let frame = connection.next_frame().await?;
        idle.ends();
        let packing = Duration::from_micros(frame.len() as u64 / PACKED_IN_A_MICROSECOND);
        let mut request = Request::decode(frame).map_err(|error| WhyClosed::Garbage(error.to_string()))?;
        let call = Call {
            shared,
            session,
            client: &client,
            origin: Origin { session, sequence: request.sequence, answered_below: request.answered_below },
        };
        let (id, began) = (request.id, Instant::now());
        let kind = request.body.as_ref().map(RequestKind::of);
        if requests::says_settled(&request) {
            shared.read(|core, _| requests::note_settled(core, session, &request));
        }
        let reply = match requests::read(&mut request, shared.identity.soft_pin) {
            Ok(read) => call.reply(read, connection).await?,
            Err(reason) => CountedReply::bad(reason),
        };
        let body = call.counted(kind, reply);
        let copying = Duration::from_micros(bytes_to_copy(&body) / COPIED_IN_A_MICROSECOND);
        if let reply::Body::Refusal(refusal) = &body {
            shared.metrics.refused(refusal);
        }
        let over = matches!(&body, reply::Body::Refusal(r) if r.kind() == message::refusal::Kind::UnknownSession);
        out.clear();
        encode_frame(&Reply { id, position: Some(shared.position()), body: Some(body) }, &mut out);
        if let Some(kind) = kind {
            shared.metrics.answered(kind, began);
        }
        connection.send(&out).await?;
        if out.capacity() > 256 << 10 {
            out = Vec::new();
        }
        if over {
            return Ok(());
        }
        idle.begins();
        connection.read_busy_poll(copying, packing).await?;
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
    client: &'a Client,
    origin: Origin,
}

impl Call<'_> {
    async fn reply<S: Stream>(
        &self,
        request: ReadRequest<'_>,
        connection: &mut Connection<S>,
    ) -> Result<CountedReply, WhyClosed> {
        Ok(match request {
            ReadRequest::Query(query) => query.run(&**self.shared, self.session),
            ReadRequest::Command(command) => self.command(command).await?,
            ReadRequest::PutStart(put) => return self.put_start(put, connection).await,
            ReadRequest::RemoveAll { force } => match self.removed_before().await? {
                Some(reply) => reply,
                None => self.removed(remove_all(self.shared, force, Some(self.origin)).await?).await?,
            },
            ReadRequest::RemoveMatching { pattern, force } => match self.removed_before().await? {
                Some(reply) => reply,
                None => self.removed(remove_matching(self.shared, &pattern, force, self.origin).await?).await?,
            },
        })
    }

    async fn command(&self, command: Command<'_>) -> Result<CountedReply, LogClosed> {
        let session = self.session.0;
        let mut unmounted = None;
        let mounted = match &command {
            Command::Mount { spec, .. } => Some((spec.name.clone(), spec.bytes)),
            Command::Unmount { uuid, .. } => {
                unmounted = self.shared.read(|core, _| {
                    let its = core.segment_of(*uuid);
                    its.map(|view| (view.name.to_owned(), view.bytes, view.used))
                });
                None
            }
            Command::BadReplica(ask) => {
                let (rid, reason, count) = (ask.rid, &ask.reason, 1 + ask.more.len());
                tracing::warn!(rid, session, reason, count, "a reader found replicas bad; this is the first");
                None
            }
            _ => None,
        };
        let mut outcome =
            self.shared.apply_async(|core, now, effects| command.run(core, now, self.origin, effects)).await?;
        while let Outcome::Closes = outcome {
            tokio::task::yield_now().await;
            let goes_on = Command::CloseSession;
            outcome =
                self.shared.apply_async(|core, now, effects| goes_on.run(core, now, self.origin, effects)).await?;
        }
        match &outcome {
            Outcome::Mount(_) => {
                if let Some((segment, bytes)) = mounted {
                    tracing::info!(segment, bytes, session, "segment mounted");
                }
            }
            Outcome::Done(_) => {
                if let Some((segment, bytes, used)) = unmounted {
                    tracing::info!(segment, bytes, used, session, "segment unmounted");
                }
            }
            Outcome::Closed => {
                if let Some(anchor) = self.shared.routes.anchor(self.session) {
                    anchor.finish();
                }
            }
            _ => {}
        }
        Ok(outcome.reply())
    }

    async fn put_start<S: Stream>(
        &self,
        put: PutStart<'_>,
        connection: &mut Connection<S>,
    ) -> Result<CountedReply, WhyClosed> {
        let (sizes, replicas) = (put.sizes, put.config.replica_num as usize);
        let mut parked = None;
        let started = self.shared.apply_async(|core, now, effects| {
            let started = put.run(core, now, self.origin, effects);
            if let Ok(PutStarted::Parked(ticket)) = started {
                parked = Some((Parked { shared: self.shared, ticket }, self.shared.routes.park(core, ticket)));
            }
            started
        });
        let started = started.await?;
        // A put that waits keeps no more than it must.
        drop(put);
        let outcomes = match (started, parked) {
            (Ok(PutStarted::Now(outcomes)), _) => outcomes,
            (Ok(PutStarted::Parked(ticket)), Some((_guard, woken))) => {
                let woken = tokio::time::timeout(TICKET_WAIT_MAX, connection.until_closed(woken)).await;
                match woken {
                    Ok(outcomes) => outcomes?.map_err(|_| LogClosed)?,
                    Err(_) => {
                        tracing::error!(?ticket, "a parked put was not answered by its deadline");
                        let reason = "the put waited too long; try again".to_owned();
                        let kind = message::refusal::Kind::Internal.into();
                        let body = reply::Body::Refusal(message::Refusal { kind, reason });
                        return Ok(CountedReply { body, tally: None });
                    }
                }
            }
            (Ok(PutStarted::Parked(_)), None) => unreachable!("entered above"),
            (Err(refused), _) => return Ok(CountedReply::refused(&refused, sizes.len())),
        };
        for (outcome, size) in outcomes.iter().zip(sizes) {
            if let StartOutcome::Placed(placed) = outcome {
                self.shared.metrics.placed(*size, placed.len() < replicas);
                self.client.placed(*size);
            }
        }
        Ok(CountedReply::put_start(&outcomes))
    }

    /// The answer to a repeat. It tells that a removal is through only once the log has that, whichever call asked
    /// first.
    async fn removed_before(&self) -> Result<Option<CountedReply>, LogClosed> {
        self.shared.apply_async(|core, _, _| Removal::answered_before(core, self.origin)).await
    }

    async fn removed(&self, removed: u64) -> Result<CountedReply, LogClosed> {
        self.shared.apply_async(|core, _, effects| removals::remember(core, self.origin, removed, effects)).await?;
        Ok(removals::reply(removed))
    }

    /// Counts what a request came to.
    fn counted(&self, kind: Option<RequestKind>, reply: CountedReply) -> reply::Body {
        let CountedReply { body, tally } = reply;
        if let (Some(op), Some(tally)) = (kind.and_then(op_of), tally) {
            let metrics = &self.shared.metrics;
            match &body {
                reply::Body::Remove(_) if op == Op::Remove => metrics.count_items(op, tally.items, tally.failed),
                _ => metrics.count(op, tally.items, tally.failed),
            }
            self.client.count(op, tally.items, tally.failed, tally.hit_bytes);
            metrics.hit_bytes(tally.hit_bytes);
            metrics.existing(tally.items, tally.existing);
        }
        body
    }
}

/// As what a request is counted.
fn op_of(kind: RequestKind) -> Option<Op> {
    Some(match kind {
        RequestKind::Exists | RequestKind::Describe => Op::ExistKey,
        RequestKind::Lookup | RequestKind::Pin => Op::GetReplicaList,
        RequestKind::Unpin => Op::Unpin,
        RequestKind::PutStart | RequestKind::PutStartWaiting => Op::PutStart,
        RequestKind::PutEnd => Op::PutEnd,
        RequestKind::Abort => Op::PutRevoke,
        RequestKind::Remove => Op::Remove,
        RequestKind::RemoveAll => Op::RemoveAll,
        RequestKind::RemoveByRegex => Op::RemoveByRegex,
        RequestKind::ClearReplicas => Op::ReplicaClear,
        RequestKind::Mount => Op::MountSegment,
        RequestKind::Unmount => Op::UnmountSegment,
        RequestKind::Segments
        | RequestKind::TierMount
        | RequestKind::TierLeave
        | RequestKind::TierReclaim
        | RequestKind::Keep
        | RequestKind::BadReplica
        | RequestKind::CloseSession
        | RequestKind::Ping
        | RequestKind::Beat => return None,
    })
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
        let cancelled = self.shared.apply_aside(|core, now, effects| core.cancel_ticket(now, self.ticket, effects));
        if cancelled.is_err() {
            tracing::debug!("the master stops with a put still parked");
        }
    }
}

#[cfg(test)]
mod tests;
