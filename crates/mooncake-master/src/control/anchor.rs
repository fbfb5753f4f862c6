//! An anchor connection: beats up, pongs and pushes down. Its end hides the
//! session's segments at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_core::{Core, Effects};
use mooncake_ids::SessionId;
use mooncake_wire::RequestKind;
use mooncake_wire::message::AnchorUp;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, WriteHalf};
use tokio::time;

use crate::committer::Commit;
use crate::control::connection::{Connection, Stream, WhyClosed};
use crate::log::LogClosed;
use crate::machine::anchor_frames::{Heard, Judged, Pongs, Said};
use crate::machine::anchors::{self, Anchor, FENCES_SLICE, Replaced};
use crate::metrics::Op;
use crate::routes::AnchorQueue;
use crate::shared::Shared;

/// Beats come every 0.5 s: a connection this silent leads nowhere any more.
const SILENT: Duration = Duration::from_secs(15);

/// For the peer to take what is sent.
const SEND_STUCK: Duration = Duration::from_secs(5);

/// What a frame has changed is in the log by then, or the disk is slow: its client hears meanwhile that the master is
/// there.
const SLOW: Duration = Duration::from_millis(100);

/// More than so many bytes of frames that are not in the log are not taken over one anchor.
const UNLOGGED_MAX: usize = 1 << 20;

/// While no more are, the client is there all the same, and hears that the master is: as often as it would beat.
const UNREAD: Duration = Duration::from_millis(500);

/// Serves an anchor until it ends, then tells the core.
pub async fn serve<S: Stream>(anchor: Registered, connection: Connection<S>) -> Result<(), WhyClosed> {
    exchange(&anchor.shared, anchor.named(), connection).await
}

async fn exchange<S: Stream>(
    shared: &Arc<Shared>,
    anchor: Anchor<'_, Arc<AnchorQueue>>,
    connection: Connection<S>,
) -> Result<(), WhyClosed> {
    let (reader, writer) = connection.split();
    tokio::select! {
        closed = receive(shared, anchor, reader) => closed,
        closed = send(anchor, writer) => closed,
        closed = ask_fences(shared, anchor) => closed,
    }
}

async fn receive<R: AsyncRead + Unpin>(
    shared: &Arc<Shared>,
    anchor: Anchor<'_, Arc<AnchorQueue>>,
    mut connection: Connection<R>,
) -> Result<(), WhyClosed> {
    let (mut pongs, mut unlogged) = (Pongs::default(), Unlogged::default());
    loop {
        let frame = time::timeout(SILENT, connection.half_frame()).await.map_err(|_| WhyClosed::Stuck)??;
        let (began, bytes) = (Instant::now(), frame.len());
        let message = AnchorUp::decode(frame).map_err(|error| WhyClosed::Garbage(error.to_string()))?;
        let Some(said) = Said::read(message).map_err(WhyClosed::Garbage)? else { continue };
        // Under the core's lock, in which anchors are replaced.
        let (obeyed, mut commit) =
            shared.apply_aside(|core, now, effects| said.obey(core, &mut &shared.routes, now, anchor, effects))?;
        let heard = obeyed.map_err(|Replaced| WhyClosed::Replaced)?;
        tell(shared, anchor.session, &heard);
        let changed = if commit.is_some() { bytes } else { 0 };
        if commit.is_none() && heard.confirms() {
            commit = shared.commit_all_aside()?;
        }
        let logged = unlogged.add(commit, changed).await?;
        if let Some(reply) = pongs.reply(&heard, logged, shared.position()) {
            anchor.queue.push(&reply);
        }
        if let Heard::Beat { .. } = heard {
            shared.metrics.answered(RequestKind::Beat, began);
        }
        while !unlogged.has_room(UNREAD).await? {
            // Its beats lie unread for the log's sake: their silence is the master's.
            let stays = |core: &mut Core, now, effects: &mut Effects| {
                Said::still_there().obey(core, &mut &shared.routes, now, anchor, effects)
            };
            let heard = shared.apply_aside(stays)?.0.map_err(|Replaced| WhyClosed::Replaced)?;
            if let Some(reply) = pongs.reply(&heard, false, shared.position()) {
                anchor.queue.push(&reply);
            }
        }
    }
}

/// Commits of an anchor's frames that are under way.
#[derive(Default)]
struct Unlogged {
    /// The last of them; the others are through before it is.
    last: Option<Commit>,
    /// Of their frames.
    bytes: usize,
}

impl Unlogged {
    /// Adds what a further frame has changed, of so many bytes, and gives whether all is in the log: at once or, if
    /// nothing was under way, after a moment.
    async fn add(&mut self, commit: Option<Commit>, bytes: usize) -> Result<bool, LogClosed> {
        let timeout = if self.last.is_none() { SLOW } else { Duration::ZERO };
        if commit.is_some() {
            self.last = commit;
            self.bytes += bytes;
        }
        self.is_through(timeout).await
    }

    /// Whether another frame may be taken, within `timeout` if that is so.
    async fn has_room(&mut self, timeout: Duration) -> Result<bool, LogClosed> {
        match self.bytes > UNLOGGED_MAX {
            true => self.is_through(timeout).await,
            false => Ok(true),
        }
    }

    async fn is_through(&mut self, timeout: Duration) -> Result<bool, LogClosed> {
        let Some(last) = &mut self.last else { return Ok(true) };
        match time::timeout(timeout, last.done()).await {
            Ok(done) => done?,
            Err(_) => return Ok(false),
        }
        *self = Unlogged::default();
        Ok(true)
    }
}

/// Tells people, and the metrics, what came of a frame.
fn tell(shared: &Shared, session: SessionId, heard: &Heard) {
    match heard {
        Heard::Beat { unpinned, .. } => {
            if let Err(refused) = unpinned {
                tracing::debug!(session = session.0, %refused, "unpin in a beat refused");
            }
            shared.metrics.count(Op::Ping, 1, usize::from(unpinned.is_err()));
        }
        Heard::PeerGone(owner) => {
            tracing::info!(session = owner.0, reporter = session.0, "a peer proved a client's process gone");
        }
        Heard::ReaderGone { reader, judged: Judged::Proven, .. } => {
            tracing::info!(session = reader.0, reporter = session.0, "an owner proved a reader's process gone");
        }
        Heard::ReaderGone { reader, judged: Judged::NoProof, .. } => {
            tracing::warn!(
                session = reader.0,
                reporter = session.0,
                "what an owner saw end is not this client's process"
            );
        }
        Heard::ReaderGone { .. } | Heard::Done => {}
    }
}

async fn send<W: AsyncWrite>(anchor: Anchor<'_, Arc<AnchorQueue>>, mut writer: WriteHalf<W>) -> Result<(), WhyClosed> {
    while let Some(bytes) = anchor.queue.next().await {
        time::timeout(SEND_STUCK, writer.write_all(&bytes)).await.map_err(|_| WhyClosed::Stuck)??;
    }
    Ok(())
}

/// Asks for the fences that there was no room for, once there is. Pongs go on while they wait for the log.
async fn ask_fences(shared: &Arc<Shared>, anchor: Anchor<'_, Arc<AnchorQueue>>) -> Result<(), WhyClosed> {
    loop {
        let from = anchor.queue.fences().await;
        let (asked, commit) = shared.apply_aside(|core, _, effects| {
            anchors::check(&mut &shared.routes, anchor)?;
            Ok(core.ask_fences(anchor.session, from, FENCES_SLICE, effects))
        })?;
        if let Some(mut commit) = commit {
            commit.done().await?;
        }
        if let Some(rest) = asked.map_err(|Replaced| WhyClosed::Replaced)? {
            anchor.queue.postpone_fences(rest);
        }
    }
}

/// A connection that is a session's anchor; when it is dropped, however it
/// ended, the core learns that the anchor is lost.
#[derive(Debug)]
pub struct Registered {
    /// The shared state.
    pub shared: Arc<Shared>,
    /// Whose anchor it is.
    pub session: SessionId,
    /// What goes down it.
    pub queue: Arc<AnchorQueue>,
}

impl Registered {
    fn named(&self) -> Anchor<'_, Arc<AnchorQueue>> {
        Anchor { session: self.session, queue: &self.queue }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Under the core's lock: a newer anchor of the same session is not undone.
        let ended = |core: &mut Core, now, effects: &mut Effects| {
            anchors::ended(core, &mut &self.shared.routes, now, self.named(), effects)
        };
        if self.shared.apply_aside(ended).is_ok_and(|(ended, _)| ended) {
            tracing::debug!(session = self.session.0, "anchor ended");
        }
    }
}

#[cfg(test)]
mod tests {
    use mooncake_core::{
        Config, Ended, ListedViews, Origin, PutConfig, PutStarted, STEP_OBJECTS, SegmentSpec, SessionSpec,
        StartOutcome, Time,
    };
    use mooncake_ids::{Rid, SegmentUuid};
    use mooncake_wire::message::{
        AnchorDown, Beat, EpochTaken, FenceDone, Goodbye, Rechecked, SegmentGone, anchor_down, anchor_up,
    };
    use mooncake_wire::{FRAME_BYTES_MAX, FrameReader, encode_frame};
    use tokio::io::AsyncReadExt;
    use tokio::net::UnixStream;

    use super::*;
    use crate::log::Log;
    use crate::machine::anchors::AnchorTable;

    const MEMORY: [u8; 16] = [3; 16];

    /// A session that owns a segment, and its anchor.
    struct Owner {
        shared: Arc<Shared>,
        session: SessionId,
        anchor: Arc<AnchorQueue>,
        sequence: u64,
    }

    fn set_anchor(shared: &Shared, session: SessionId, queue: &Arc<AnchorQueue>) {
        if let Some(replaced) = (&shared.routes).with_anchors(|anchors| anchors.set(session, queue.clone())) {
            replaced.close();
        }
    }

    impl Owner {
        fn new() -> Owner {
            let shared = Arc::new(Shared::of(Arc::new(Log::new(1, 0, None, false))));
            let spec = SessionSpec { secret: 1, name: "o:1".to_owned(), boot_id: vec![7; 16], process: Vec::new() };
            let anchor = Arc::new(AnchorQueue::default());
            let opened = shared.apply(|core, now, effects| {
                core.begin(now, None, effects);
                let session = core.open_session(now, spec, effects).unwrap();
                set_anchor(&shared, session, &anchor);
                session
            });
            let mut owner = Owner { session: opened.unwrap(), shared, anchor, sequence: 0 };
            let spec = SegmentSpec {
                uuid: SegmentUuid(MEMORY),
                name: "o:1".to_owned(),
                bytes: 64 << 20,
                endpoint: Vec::new(),
            };
            let origin = owner.origin();
            owner.core(|core, now, effects| _ = core.mount(now, origin, spec, 64 << 20, effects).unwrap());
            owner
        }

        fn origin(&mut self) -> Origin {
            self.sequence += 1;
            Origin { session: self.session, sequence: self.sequence, answered_below: 0 }
        }

        fn core<R>(&self, operation: impl FnOnce(&mut Core, Time, &mut Effects) -> R) -> R {
            self.shared.apply(operation).unwrap()
        }

        /// Reserves room for a key.
        fn reserve(&mut self, key: &[u8]) -> Rid {
            let origin = self.origin();
            let started = self.core(|core, now, effects| {
                core.put_start(now, origin, &[(key, 1000)], &PutConfig::default(), false, effects).unwrap()
            });
            let PutStarted::Now(outcomes) = started else { panic!("{started:?}") };
            let [StartOutcome::Placed(replicas)] = &outcomes[..] else { panic!("{outcomes:?}") };
            replicas[0].rid
        }

        fn put(&mut self, key: &[u8]) -> Rid {
            let rid = self.reserve(key);
            let origin = self.origin();
            let ended = Ended { replicas: [(rid, true)].into_iter().collect(), crc32c: 1, stays: false };
            self.core(|core, now, effects| _ = core.put_end(now, origin, &[ended], effects).unwrap());
            rid
        }

        /// Takes a view, if there is something to see.
        fn pin(&mut self, key: &[u8]) -> bool {
            let origin = self.origin();
            self.core(|core, now, effects| core.pin(now, origin, &[key], effects).unwrap()[0].is_ok())
        }

        /// Comes back on another connection without a view. Of its mutations it waits for the answer to one alone.
        fn resume(&self, waits_for: u64) -> Arc<AnchorQueue> {
            let queue = Arc::new(AnchorQueue::default());
            self.core(|core, now, effects| {
                core.settle_replies(self.session, self.sequence + 1, &[waits_for]);
                let segments = [(SegmentUuid(MEMORY), 0)];
                assert!(
                    core.resume_session(now, self.session, 1, &segments, ListedViews::default(), effects)
                        .unwrap()
                        .gone
                        .is_empty()
                );
                set_anchor(&self.shared, self.session, &queue);
            });
            queue
        }

        fn stats(&self) -> mooncake_core::Stats {
            self.shared.read(|core, _| core.stats())
        }

        /// Reads what lies on an anchor's connection to its end.
        async fn hear(&self, queue: &Arc<AnchorQueue>, bodies: Vec<anchor_up::Body>) -> WhyClosed {
            let (near, mut far) = UnixStream::pair().unwrap();
            let mut bytes = Vec::new();
            bodies.into_iter().for_each(|body| encode_frame(&AnchorUp { body: Some(body) }, &mut bytes));
            far.write_all(&bytes).await.unwrap();
            drop(far);
            let (reader, _writer) = Connection::new(near).split();
            receive(&self.shared, Anchor { session: self.session, queue }, reader).await.unwrap_err()
        }
    }

    /// What is to be sent next.
    async fn sent(anchor: &AnchorQueue) -> Vec<anchor_down::Body> {
        let bytes = anchor.next().await.expect("something to send");
        messages(&bytes)
    }

    fn messages(bytes: &[u8]) -> Vec<anchor_down::Body> {
        let mut reader = FrameReader::default();
        reader.buffer_mut().extend_from_slice(bytes);
        let next = || reader.next_frame(FRAME_BYTES_MAX).unwrap();
        std::iter::from_fn(next).map(|frame| AnchorDown::decode(frame).unwrap().body.unwrap()).collect()
    }

    fn beat(number: u64, unpin: &[Rid], unpin_sequence: u64) -> anchor_up::Body {
        let unpin = unpin.iter().map(|rid| rid.0).collect();
        anchor_up::Body::Beat(Beat { number, unpin, unpin_sequence, ..Beat::default() })
    }

    #[tokio::test]
    async fn a_late_unpin_on_a_replaced_anchor_takes_no_pin_that_was_taken_since() {
        let mut owner = Owner::new();
        let rid = owner.put(b"k");
        assert!(owner.pin(b"k"));
        // The first view has ended, and the beat that says so lies unread while the client comes back without it.
        let ended = owner.origin().sequence;
        owner.resume(ended);
        assert_eq!(owner.stats().pins, 0);
        assert!(owner.pin(b"k"));
        owner.hear(&owner.anchor, vec![beat(1, &[rid], ended)]).await;
        assert_eq!(owner.stats().pins, 1, "the second view is held");
    }

    #[tokio::test]
    async fn nothing_that_a_replaced_anchor_says_is_done() {
        let mut owner = Owner::new();
        let bad = owner.put(b"k");
        let given_up = owner.reserve(b"l");
        let origin = owner.origin();
        owner.core(|core, now, effects| {
            core.abort(now, origin, &[given_up], true, effects).unwrap();
            core.bad_replica(now, owner.session, b"k", bad, effects);
            core.raise_epoch(now, 2, effects);
        });
        let current = owner.resume(0);
        let uuid = || bytes::Bytes::from_static(&MEMORY);
        let words = [
            anchor_up::Body::FenceDone(FenceDone { uuid: uuid(), rids: vec![given_up.0] }),
            anchor_up::Body::Rechecked(Rechecked { uuid: uuid(), rid: bad.0, good: false }),
            anchor_up::Body::EpochTaken(EpochTaken { epoch: 2, segments: vec![uuid()] }),
            anchor_up::Body::Goodbye(Goodbye {}),
        ];
        let state = |stats: mooncake_core::Stats| {
            (stats.quarantined_extents, stats.keys, stats.segments_closed, stats.sessions)
        };
        for word in words.clone() {
            let said = format!("{word:?}");
            let why = owner.hear(&owner.anchor, vec![word]).await;
            assert_eq!(state(owner.stats()), (1, 1, 1, 1), "{said}");
            assert!(matches!(why, WhyClosed::Replaced), "{said}: {why}");
        }
        // What was asked is asked again on the new one, and there the same words count.
        let asked = sent(&current).await;
        assert!(matches!(
            &asked[..],
            [anchor_down::Body::TakeEpoch(_), anchor_down::Body::Recheck(_), anchor_down::Body::Fence(_)]
        ));
        let [fenced, checked, taken, _] = words;
        owner.hear(&current, vec![fenced, checked, taken]).await;
        assert_eq!(state(owner.stats()), (0, 0, 0, 1));
    }

    #[tokio::test]
    async fn a_goodbye_is_answered_and_ends_the_connection() {
        let owner = Owner::new();
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut bytes = Vec::new();
        encode_frame(&AnchorUp { body: Some(anchor_up::Body::Goodbye(Goodbye {})) }, &mut bytes);
        far.write_all(&bytes).await.unwrap();
        let anchor = Anchor { session: owner.session, queue: &owner.anchor };
        let served = exchange(&owner.shared, anchor, Connection::new(near));
        time::timeout(SILENT / 2, served).await.expect("it ends").expect("as it should");
        assert_eq!(owner.stats().sessions, 0);
        let mut said = Vec::new();
        far.read_to_end(&mut said).await.unwrap();
        let said = messages(&said);
        assert!(matches!(said[..], [.., anchor_down::Body::SessionOver(_)]), "{said:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_anchor_and_one_that_takes_nothing_lead_nowhere() {
        let owner = Owner::new();
        let anchor = Anchor { session: owner.session, queue: &owner.anchor };
        let (near, _far) = UnixStream::pair().unwrap();
        let (reader, writer) = Connection::new(near).split();
        assert!(matches!(receive(&owner.shared, anchor, reader).await, Err(WhyClosed::Stuck)));
        let gone = SegmentGone { uuid: vec![0; 1 << 20].into(), ..SegmentGone::default() };
        owner.anchor.push(&AnchorDown { body: Some(anchor_down::Body::SegmentGone(gone)) });
        assert!(matches!(send(anchor, writer).await, Err(WhyClosed::Stuck)));
    }

    #[tokio::test]
    async fn a_late_beat_brings_no_session_back_that_has_no_anchor() {
        let owner = Owner::new();
        owner.core(|core, now, effects| {
            let anchor = Anchor { session: owner.session, queue: &owner.anchor };
            assert!(anchors::ended(core, &mut &owner.shared.routes, now, anchor, effects));
        });
        owner.hear(&owner.anchor, vec![beat(1, &[], 0)]).await;
        assert_eq!(owner.stats().sessions_away, 1);
    }

    #[tokio::test]
    async fn an_unpin_that_is_refused_for_now_is_not_confirmed() {
        let mut owner = Owner::new();
        let rid = owner.put(b"k");
        assert!(owner.pin(b"k"));
        while owner.sequence < Config::default().unanswered_max as u64 {
            assert!(!owner.pin(b"missing"));
        }
        let unpin = owner.origin().sequence;
        let confirmed = async |owner: &Owner| {
            owner.hear(&owner.anchor, vec![beat(1, &[rid], unpin)]).await;
            let all = sent(&owner.anchor).await;
            let [anchor_down::Body::Pong(pong)] = &all[..] else { panic!("{all:?}") };
            pong.unpin_sequence == unpin
        };
        assert!(!confirmed(&owner).await);
        assert_eq!(owner.stats().pins, 1);
        // The client has its answers by now, and says it once more.
        owner.core(|core, _, _| core.settle_replies(owner.session, unpin + 1, &[unpin]));
        assert!(confirmed(&owner).await);
        assert_eq!(owner.stats().pins, 0);
        assert!(confirmed(&owner).await, "a repeat is answered like the first");
    }

    #[tokio::test]
    async fn a_replaced_anchor_asks_for_no_more_fences() {
        let mut owner = Owner::new();
        let given_up = owner.reserve(b"k");
        owner.anchor.postpone_fences(given_up);
        // The one that it replaces has not been told yet.
        (&owner.shared.routes).with_anchors(|anchors| anchors.set(owner.session, Arc::default()));
        let anchor = Anchor { session: owner.session, queue: &owner.anchor };
        let asked = time::timeout(SEND_STUCK, ask_fences(&owner.shared, anchor)).await.expect("it ends");
        assert!(matches!(asked, Err(WhyClosed::Replaced)));
    }

    #[tokio::test]
    async fn every_fence_is_asked_for_however_many_there_are() {
        const FENCES: u32 = 12_000;
        let mut owner = Owner::new();
        let keys: Vec<[u8; 4]> = (0..FENCES).map(u32::to_le_bytes).collect();
        let entries: Vec<(&[u8], u64)> = keys.iter().map(|key| (&key[..], 1)).collect();
        let origins = [owner.origin(), owner.origin()];
        owner.core(|core, now, effects| {
            let config = PutConfig::default();
            let PutStarted::Now(outcomes) = core.put_start(now, origins[0], &entries, &config, false, effects).unwrap()
            else {
                panic!("there is room");
            };
            let placed = outcomes.iter().map(|outcome| match outcome {
                StartOutcome::Placed(replicas) => replicas[0].rid,
                other => panic!("{other:?}"),
            });
            core.abort(now, origins[1], &placed.collect::<Vec<_>>(), true, effects).unwrap();
        });
        assert_eq!(all_fences(&owner, &owner.anchor, FENCES).await, FENCES);
        // And once more for who comes back.
        let again = owner.resume(0);
        owner.core(|core, now, effects| while core.background(now, STEP_OBJECTS, effects) {});
        assert_eq!(all_fences(&owner, &again, FENCES).await, FENCES);
    }

    /// Reads what an anchor is sent, until it has been asked for so many fences.
    async fn all_fences(owner: &Owner, queue: &Arc<AnchorQueue>, wanted: u32) -> u32 {
        let (near, mut far) = UnixStream::pair().unwrap();
        let near = Connection::new(near);
        let mut asked = std::collections::BTreeSet::new();
        let hear = async {
            let mut reader = FrameReader::default();
            while asked.len() < wanted as usize && far.read_buf(reader.buffer_mut()).await.unwrap() > 0 {
                while let Some(frame) = reader.next_frame(FRAME_BYTES_MAX).unwrap() {
                    match AnchorDown::decode(frame).unwrap().body {
                        Some(anchor_down::Body::Fence(fence)) => _ = asked.insert(fence.rid),
                        other => panic!("{other:?}"),
                    }
                }
            }
        };
        tokio::select! {
            closed = exchange(&owner.shared, Anchor { session: owner.session, queue }, near) => panic!("{closed:?}"),
            () = tokio::time::sleep(Duration::from_secs(10)) => {}
            () = hear => {}
        }
        asked.len() as u32
    }
}
