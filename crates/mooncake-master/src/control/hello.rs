//! A connection's first frame: read, admitted, answered.

use std::sync::Arc;
use std::time::Instant;

use mooncake_ids::SessionId;
use mooncake_wire::message::hello::Role as Asks;
use mooncake_wire::message::{Hello, HelloReply, Refusal};
use mooncake_wire::{CONTROL_PREFACE, HELLO_FRAME_BYTES_MAX, encode_frame};
use prost::Message;

use crate::clients::About;
use crate::control::anchor::Registered;
use crate::control::connection::{Connection, Stream, WhyClosed};
use crate::log::LogClosed;
use crate::machine::hello::{self, Admission, Admitted, Kind, ReadHello};
use crate::metrics::Op;
use crate::process_watch::Via;
use crate::routes::AnchorQueue;
use crate::shared::Shared;

/// What a connection is from now on.
pub enum Role {
    /// Closed once the reply is out: refused, or told what it asked.
    Over,
    /// A session's anchor.
    Anchor(Registered),
    /// A call connection of a session.
    Call(SessionId),
}

/// Reads preface and hello.
pub async fn read<S: Stream>(connection: &mut Connection<S>) -> Result<Hello, WhyClosed> {
    connection.expect(&CONTROL_PREFACE).await?;
    let frame = connection.frame(HELLO_FRAME_BYTES_MAX).await?;
    Hello::decode(frame).map_err(|error| WhyClosed::Garbage(format!("hello does not decode: {error}")))
}

/// Whether the connection is to be a session's anchor.
pub fn asks_for_anchor(hello: &Hello) -> bool {
    matches!(hello.role, Some(Asks::Open(_) | Asks::Resume(_)))
}

/// Answers a hello: the framed reply, and what the connection is.
pub async fn answer(shared: &Arc<Shared>, hello: Hello, via: Via) -> Result<(Vec<u8>, Role), LogClosed> {
    // Of any version. A check of tokens, when there are tokens, belongs before this.
    if let Some(Asks::Ask(_)) = hello.role {
        return Ok((framed(&hello::introduced(&shared.identity.told, shared.position())), Role::Over));
    }
    let about = About::of(&hello);
    let (reply, role) = match ReadHello::read(hello, crate::random::number(), shared.routes.anchors()) {
        Ok(hello) => admit(shared, hello, about, via).await?,
        Err(refusal) => refuse(shared, refusal),
    };
    Ok((framed(&reply), role))
}

fn framed(reply: &HelloReply) -> Vec<u8> {
    let mut out = Vec::new();
    encode_frame(reply, &mut out);
    out
}

async fn admit(
    shared: &Arc<Shared>,
    mut hello: ReadHello,
    about: About,
    via: Via,
) -> Result<(HelloReply, Role), LogClosed> {
    while hello.look_for_views(&**shared) {
        let ((), commit) = shared.apply_aside(|core, now, effects| hello.note_views(core, now, effects))?;
        if let Some(mut commit) = commit {
            commit.done().await?;
        }
    }
    let queue = Arc::new(AnchorQueue::default());
    let (admitted, commit) = shared.apply_aside(|core, now, effects| {
        let admission = Admission {
            anchors: &mut &shared.routes,
            claims: &mut shared.epoch_claims.lock(),
            log: shared.log.standing(),
        };
        let mut admitted = hello.admit(core, admission, now, &queue, effects)?;
        if let Some(replaced) = admitted.replaced.take() {
            replaced.close();
        }
        let session = admitted.session;
        let role = match admitted.kind {
            Kind::Attached => Role::Call(session),
            // From here on the end of this task, wherever it is, ends the anchor.
            Kind::Opened { .. } | Kind::Resumed { .. } => {
                Role::Anchor(Registered { shared: shared.clone(), session, queue })
            }
        };
        Ok((admitted, role))
    })?;
    // What changes nothing may tell of what an earlier hello did: that it is back, or that its session is no more.
    let commit = match commit {
        Some(commit) => Some(commit),
        None => shared.commit_all_aside()?,
    };
    if let Some(mut commit) = commit {
        commit.done().await?;
    }
    let (admitted, role) = match admitted {
        Ok(admitted) => admitted,
        Err(refusal) => return Ok(refuse(shared, refusal)),
    };
    if !matches!(admitted.kind, Kind::Attached) {
        shared.clients.says(admitted.session, about, Instant::now());
    }
    let watched = match &admitted.kind {
        Kind::Opened { process, .. } | Kind::Resumed { process, .. } => {
            shared.processes.watch(admitted.session, process, via)
        }
        Kind::Attached => false,
    };
    tell(shared, &admitted, watched);
    Ok((admitted.reply(watched, &shared.identity.told, shared.position()), role))
}

fn refuse(shared: &Shared, refusal: Refusal) -> (HelloReply, Role) {
    shared.metrics.refused(&refusal);
    (hello::refused(refusal, &shared.identity.told, shared.position()), Role::Over)
}

/// Tells people, and the metrics, which client came.
fn tell(shared: &Shared, admitted: &Admitted<Arc<AnchorQueue>>, watched: bool) {
    let session = admitted.session.0;
    match &admitted.kind {
        Kind::Opened { name, claimed: None, .. } => tracing::info!(session, name, watched, "client connected"),
        Kind::Opened { name, claimed: Some(claimed), .. } => {
            let (segments, gone) = (claimed.taken, claimed.gone.len());
            tracing::info!(
                session,
                name,
                watched,
                segments,
                gone,
                "client connected, with memory that was kept for it"
            );
        }
        Kind::Resumed { name, segments, resumed, .. } => {
            let gone = resumed.gone.len();
            if *segments > 0 {
                shared.metrics.count(Op::RemountSegment, 1, usize::from(gone > 0));
            }
            tracing::info!(session, name, watched, gone, "client is back");
            if !resumed.unknown_pins.is_empty() {
                tracing::warn!(
                    session,
                    name,
                    views = resumed.unknown_pins.len(),
                    "this client holds views that the lost end of the log knew; segments that it maps take nothing \
                     until they end"
                );
            }
        }
        Kind::Attached => {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mooncake_os::ProcessIdentity;
    use mooncake_wire::message::{self, AskIdentity, OpenSession, ResumeSession};
    use mooncake_wire::{FEATURES, FrameReader, VERSION};
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;
    use tokio::time::timeout;

    use super::*;
    use crate::log::Log;

    fn master() -> Arc<Shared> {
        let shared = Arc::new(Shared::of(Arc::new(Log::new(1, 0, None, false))));
        shared.apply(|core, now, effects| core.begin(now, None, effects)).unwrap();
        shared
    }

    fn this_process() -> Option<message::ProcessIdentity> {
        let ProcessIdentity { boot_id, pid, start_time, pid_namespace } = ProcessIdentity::current().unwrap();
        let boot_id = boot_id.to_vec().into();
        Some(message::ProcessIdentity { boot_id, pid, start_time, pid_namespace, mark: 0 })
    }

    async fn say(shared: &Arc<Shared>, role: message::hello::Role) -> (HelloReply, Role) {
        let (version_min, version_max) = (VERSION, VERSION);
        let hello = Hello { version_min, version_max, features: FEATURES, role: Some(role), ..Hello::default() };
        let (reply, role) = answer(shared, hello, Via::Tcp).await.unwrap();
        let mut reader = FrameReader::default();
        reader.buffer_mut().extend_from_slice(&reply);
        (HelloReply::decode(reader.next_frame(HELLO_FRAME_BYTES_MAX).unwrap().unwrap()).unwrap(), role)
    }

    async fn open(shared: &Arc<Shared>) -> (HelloReply, Registered) {
        let open = OpenSession { host_name: "c:1".to_owned(), process: this_process(), claim: None };
        match say(shared, message::hello::Role::Open(open)).await {
            (reply, Role::Anchor(anchor)) => (reply, anchor),
            (reply, _) => panic!("{reply:?}"),
        }
    }

    async fn resume(shared: &Arc<Shared>, opened: &HelloReply) -> (HelloReply, Role) {
        let HelloReply { session, secret, .. } = *opened;
        let resume = ResumeSession { session, secret, process: this_process(), ..ResumeSession::default() };
        say(shared, message::hello::Role::Resume(resume)).await
    }

    #[tokio::test]
    async fn an_anchor_that_another_one_replaces_is_closed() {
        let shared = master();
        let (opened, first) = open(&shared).await;
        let (resumed, role) = resume(&shared, &opened).await;
        assert!(resumed.refusal.is_none() && matches!(role, Role::Anchor(_)), "{resumed:?}");
        let next = timeout(Duration::from_secs(5), first.queue.next()).await.expect("it is closed");
        assert!(next.is_none());
        drop(first);
        let Role::Anchor(second) = role else { unreachable!("seen above") };
        assert!(shared.routes.anchor(second.session).is_some(), "the end of the first one is not the second's");
        drop(second);
        assert!(shared.routes.anchor(mooncake_ids::SessionId(opened.session)).is_none());
    }

    #[tokio::test]
    async fn the_process_of_a_client_is_watched_when_it_comes_and_when_it_is_back() {
        let shared = master();
        let (opened, _anchor) = open(&shared).await;
        assert_eq!(opened.pid_proof, 1);
        shared.processes.end(mooncake_ids::SessionId(opened.session));
        let (resumed, _role) = resume(&shared, &opened).await;
        assert_eq!((resumed.refusal, resumed.pid_proof), (None, 1));
    }

    #[tokio::test]
    async fn one_that_asks_what_this_master_is_hears_it_and_is_no_client() {
        let shared = master();
        let (reply, role) = say(&shared, Asks::Ask(AskIdentity {})).await;
        assert!(reply.refusal.is_none() && matches!(role, Role::Over));
        assert_eq!((reply.pages, reply.session), (shared.identity.told.pages.clone(), 0));
        assert_eq!((shared.routes.anchors(), shared.read(|core, _| core.stats().sessions)), (0, 0));
    }

    #[tokio::test]
    async fn who_is_refused_has_no_anchor() {
        let shared = master();
        let (opened, anchor) = open(&shared).await;
        drop(anchor);
        let (reply, role) = resume(&shared, &HelloReply { secret: opened.secret ^ 1, ..opened }).await;
        assert!(reply.refusal.is_some() && matches!(role, Role::Over));
        assert_eq!(shared.routes.anchors(), 0);
    }

    #[tokio::test]
    async fn a_hello_that_is_too_long_is_not_read() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let length = (HELLO_FRAME_BYTES_MAX as u32 + 1).to_le_bytes();
        far.write_all(&[&CONTROL_PREFACE[..], &length].concat()).await.unwrap();
        let told =
            timeout(Duration::from_secs(5), read(&mut Connection::new(near))).await.expect("nothing is waited for");
        assert!(matches!(told, Err(WhyClosed::Garbage(_))));
    }
}
