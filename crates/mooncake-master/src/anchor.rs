//! An anchor connection: beats up, pongs and pushes down. Its end hides the
//! session's segments at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_core::{Core, Origin, Populated, Rid, SegmentNo, SegmentUuid, SessionId};
use mooncake_wire::RequestKind;
use mooncake_wire::message::{
    AnchorDown, AnchorUp, Beat, Pong, ProcessIdentity, ReaderGone, ReaderGoneTaken, anchor_down, anchor_up,
};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, WriteHalf};
use tokio::time::timeout;

use crate::connection::{Connection, Ended, Stream};
use crate::convert;
use crate::metrics::Op;
use crate::routes::AnchorQueue;
use crate::shared::Shared;

/// Beats come every 0.5 s: a connection this silent leads nowhere any more.
const SILENT: Duration = Duration::from_secs(15);

/// For the peer to take what is sent.
const SEND_STUCK: Duration = Duration::from_secs(5);

/// Serves an anchor until it ends, then tells the core.
pub async fn serve<S: Stream>(
    shared: &Arc<Shared>,
    anchor: Registered<'_>,
    connection: Connection<S>,
) -> Result<(), Ended> {
    let (reader, writer) = connection.split();
    tokio::select! {
        ended = receive(shared, anchor.session, &anchor.queue, reader) => ended,
        ended = send(&anchor.queue, writer) => ended,
    }
}

async fn receive<R: AsyncRead + Unpin>(
    shared: &Arc<Shared>,
    session: SessionId,
    queue: &AnchorQueue,
    mut connection: Connection<R>,
) -> Result<(), Ended> {
    loop {
        let frame = timeout(SILENT, connection.half_frame()).await.map_err(|_| Ended::Stuck)??;
        let message = AnchorUp::decode(frame).map_err(|error| Ended::Garbage(error.to_string()))?;
        match message.body {
            Some(anchor_up::Body::Beat(beat)) => take_beat(shared, session, queue, &beat).await?,
            Some(anchor_up::Body::FenceDone(done)) => {
                let rids = convert::rids(&done.rids);
                shared.apply_async(|core, now, effects| core.fence_done(now, session, &rids, effects)).await?;
            }
            Some(anchor_up::Body::Rechecked(checked)) => {
                let rid = Rid(checked.rid);
                shared
                    .apply_async(|core, now, effects| core.rechecked(now, session, rid, checked.good, effects))
                    .await?;
            }
            Some(anchor_up::Body::EpochTaken(taken)) => {
                let epoch = u16::try_from(taken.epoch)
                    .map_err(|_| Ended::Garbage(format!("epoch {} does not exist", taken.epoch)))?;
                let uuids = uuids(&taken.segments)?;
                shared.apply_async(|core, now, effects| core.epoch_taken(now, session, epoch, &uuids, effects)).await?;
            }
            Some(anchor_up::Body::PeerGone(gone)) => {
                let uuid = convert::uuid(&gone.uuid).map_err(Ended::Garbage)?;
                peer_gone(shared, session, uuid).await?;
            }
            Some(anchor_up::Body::ReaderGone(gone)) => reader_gone(shared, session, queue, &gone).await?,
            Some(anchor_up::Body::Goodbye(_)) => {
                shared.apply_async(|core, now, effects| core.close_session(now, session, effects)).await?;
                return Ok(());
            }
            // A newer client's message: ignored, as unknown fields are.
            None => {}
        }
    }
}

async fn send<W: AsyncWrite>(queue: &AnchorQueue, mut writer: WriteHalf<W>) -> Result<(), Ended> {
    while let Some(bytes) = queue.next().await {
        timeout(SEND_STUCK, writer.write_all(&bytes)).await.map_err(|_| Ended::Stuck)??;
    }
    Ok(())
}

async fn take_beat(shared: &Arc<Shared>, session: SessionId, queue: &AnchorQueue, beat: &Beat) -> Result<(), Ended> {
    let began = Instant::now();
    let moved = convert::rids(&beat.moved);
    let mut populated = Vec::with_capacity(beat.populated.len());
    for one in &beat.populated {
        let uuid = convert::uuid(&one.uuid).map_err(Ended::Garbage)?;
        populated.push(Populated { uuid, bytes: one.bytes, failed: one.failed });
    }
    let unpin = convert::rids(&beat.unpin);
    let unpinned = shared
        .apply_async(|core, now, effects| {
            for ended in core.beat(now, session, &moved, &populated, effects) {
                tell_of_end(core, session, ended);
            }
            if beat.unpin_sequence == 0 {
                return Ok(());
            }
            let origin = Origin { session, sequence: beat.unpin_sequence, answered_below: 0 };
            core.unpin(now, origin, &unpin, effects)
        })
        .await?;
    if let Err(refused) = &unpinned {
        tracing::debug!(session = session.0, %refused, "unpin in a beat refused");
    }
    shared.metrics.count(Op::Ping, 1, usize::from(unpinned.is_err()));
    // Answered all the same when refused: a repeat would change nothing.
    let pong = Pong { number: beat.number, position: Some(shared.position()), unpin_sequence: beat.unpin_sequence };
    queue.push(&AnchorDown { body: Some(anchor_down::Body::Pong(pong)) });
    shared.metrics.answered(RequestKind::Beat, began);
    Ok(())
}

fn tell_of_end(core: &Core, session: SessionId, segment: SegmentNo) {
    let Some(view) = core.segment(segment) else { return };
    let owner = core.session_spec(session).map(|spec| spec.name.as_str()).unwrap_or_default();
    tracing::warn!(
        segment = view.name,
        owner,
        session = session.0,
        announced_bytes = view.bytes,
        populated_bytes = view.populated,
        "the owner of a segment could not get all of the memory that it announced; from now on the pool counts on what \
         is there. Look at that machine's memory limits"
    );
}

/// A peer on the owner's host holds a pidfd that says the owner is gone.
///
/// Its word counts once the owner's own anchor is down; before that it is only
/// remembered, so that nobody can talk a living owner's segments away.
async fn peer_gone(shared: &Arc<Shared>, reporter: SessionId, uuid: SegmentUuid) -> Result<(), Ended> {
    let owner = shared.read(|core, _| {
        let owner = core.segment_owner(uuid)?;
        let boot =
            |session| core.session_process(session).and_then(|p| ProcessIdentity::decode(p).ok()).map(|p| p.boot_id);
        let same_host = boot(owner).is_some_and(|id| !id.is_empty() && Some(id) == boot(reporter));
        (same_host && owner != reporter).then_some(owner)
    });
    let Some(owner) = owner else { return Ok(()) };
    if let Some(anchor) = shared.routes.anchor(owner) {
        anchor.report_gone();
        return Ok(());
    }
    shared.apply_async(|core, now, effects| core.process_gone(now, owner, effects)).await?;
    tracing::info!(session = owner.0, reporter = reporter.0, "a peer proved a client's process gone");
    Ok(())
}

/// An owner saw the end of a process that had its memory mapped.
///
/// Who maps memory only says for which session: that the owner's word is about this session's process, and not about
/// another one that named it, is told by the mark, which that process alone gave to the master and to owners. Nobody but an
/// owner of memory on the same host can have seen it. As with [`peer_gone`], the word counts once the reader's own anchor is
/// down, and until then is kept.
async fn reader_gone(
    shared: &Arc<Shared>,
    reporter: SessionId,
    queue: &AnchorQueue,
    gone: &ReaderGone,
) -> Result<(), Ended> {
    let uuid = convert::uuid(&gone.uuid).map_err(Ended::Garbage)?;
    let reader = SessionId(gone.session);
    let judged = shared
        .apply_async(|core, now, effects| {
            let judged = judge(core, reporter, reader, uuid, gone.mark);
            if judged == Judged::Proven {
                // Under the core's lock: it is either down, or there to take the word along when it ends.
                if let Some(anchor) = shared.routes.anchor(reader) {
                    anchor.report_gone();
                    return Judged::ForLater;
                }
                core.process_gone(now, reader, effects);
            }
            judged
        })
        .await?;
    match judged {
        Judged::ForLater => return Ok(()),
        Judged::Proven => {
            tracing::info!(session = reader.0, reporter = reporter.0, "an owner proved a reader's process gone");
        }
        Judged::NoProof => {
            tracing::warn!(
                session = reader.0,
                reporter = reporter.0,
                "what an owner saw end is not this client's process"
            );
        }
        Judged::Over => {}
    }
    let taken = ReaderGoneTaken { session: reader.0 };
    queue.push(&AnchorDown { body: Some(anchor_down::Body::ReaderGoneTaken(taken)) });
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Judged {
    /// The reader's session is no more.
    Over,
    NoProof,
    Proven,
    /// Proven, and its anchor is still there.
    ForLater,
}

fn judge(core: &Core, reporter: SessionId, reader: SessionId, uuid: SegmentUuid, mark: u64) -> Judged {
    let process = |session| core.session_process(session).and_then(|process| ProcessIdentity::decode(process).ok());
    let Some(of_reader) = process(reader) else { return Judged::Over };
    let owns = core.segment_owner(uuid) == Some(reporter) && reporter != reader;
    let boot_id = process(reporter).map(|process| process.boot_id);
    let same_host = !of_reader.boot_id.is_empty() && boot_id.as_ref() == Some(&of_reader.boot_id);
    match owns && same_host && mark != 0 && mark == of_reader.mark {
        true => Judged::Proven,
        false => Judged::NoProof,
    }
}

fn uuids(all: &[bytes::Bytes]) -> Result<Vec<SegmentUuid>, Ended> {
    all.iter().map(|uuid| convert::uuid(uuid)).collect::<Result<_, _>>().map_err(Ended::Garbage)
}

/// A connection that is a session's anchor; when it is dropped, however it
/// ended, the core learns that the anchor is lost.
#[derive(Debug)]
pub struct Registered<'a> {
    /// The shared state.
    pub shared: &'a Arc<Shared>,
    /// Whose anchor it is.
    pub session: SessionId,
    /// What goes down it.
    pub queue: Arc<AnchorQueue>,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        let (session, queue) = (self.session, &self.queue);
        let lost = self.shared.apply(|core, now, effects| {
            // Under the core's lock: a newer anchor of the same session is not undone.
            if !self.shared.routes.end_anchor(session, queue) {
                return false;
            }
            core.anchor_lost(now, session, effects);
            if queue.was_reported_gone() {
                core.process_gone(now, session, effects);
            }
            true
        });
        if lost == Ok(true) {
            tracing::debug!(session = session.0, "anchor ended");
        }
    }
}
