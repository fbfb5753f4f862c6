//! The handshake: who is it, may it, and what does its memory of the log say?

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use mooncake_core::{Core, Effects, Reign, Resumed, Rid, SegmentUuid, SessionId, SessionSpec, Time};
use mooncake_wire::message::{self, Hello, HelloReply, LogPosition, ProcessIdentity, Refusal, hello, refusal};
use mooncake_wire::{CONTROL_PREFACE, FEATURES, Feature, MAX_HELLO_FRAME, VERSION, encode_frame};
use prost::Message;

use crate::anchor::Registered;
use crate::connection::{Connection, Ended, Stream};
use crate::convert::{self, NAME_MAX};
use crate::epoch_claim::Shown;
use crate::log::LogClosed;
use crate::metrics::Op;
use crate::routes::AnchorQueue;
use crate::shared::Shared;

/// Sessions with an anchor at a time.
const SESSIONS_MAX: usize = 8192;

const BOOT_ID: usize = 16;

/// Most pins that a reply names: with all else it is well below the limit of a hello's frame.
const UNKNOWN_PINS_MAX: usize = 65_536;

/// How a peer came.
#[derive(Debug)]
pub enum Via {
    /// By TCP.
    Tcp,
    /// By the Unix socket, with the pidfd of the process that connected.
    Unix(Option<OwnedFd>),
}

/// What a connection is from now on.
pub enum Role<'a> {
    /// Closed once the reply is out.
    Refused,
    /// A session's anchor.
    Anchor(Registered<'a>),
    /// A call connection of a session.
    Call(SessionId),
}

/// Reads preface and hello.
pub async fn read<S: Stream>(connection: &mut Connection<S>) -> Result<Hello, Ended> {
    connection.expect(&CONTROL_PREFACE).await?;
    let frame = connection.frame(MAX_HELLO_FRAME).await?;
    Hello::decode(frame).map_err(|error| Ended::Garbage(format!("hello does not decode: {error}")))
}

/// Answers a hello: the framed reply, and what the connection is.
pub async fn answer(shared: &Arc<Shared>, hello: Hello, via: Via) -> Result<(Vec<u8>, Role<'_>), LogClosed> {
    let (reply, role) = match admit(shared, hello, via).await? {
        Ok((reply, role)) => (reply, role),
        Err(refusal) => {
            shared.metrics.refused(&refusal);
            (HelloReply { refusal: Some(refusal), ..HelloReply::default() }, Role::Refused)
        }
    };
    let reply = HelloReply {
        version: VERSION,
        features: FEATURES,
        software: concat!("mooncake-master ", env!("CARGO_PKG_VERSION")).to_owned(),
        position: Some(shared.position()),
        instance: shared.identity.instance.to_vec().into(),
        boot_id: shared.identity.boot_id.to_vec().into(),
        unix_socket: shared.identity.unix_socket.clone(),
        lookup_protect_ms: shared.identity.lookup_protect_ms,
        ..reply
    };
    let mut out = Vec::new();
    encode_frame(&reply, &mut out);
    Ok((out, role))
}

type Admitted<'a> = Result<(HelloReply, Role<'a>), Refusal>;

async fn admit(shared: &Arc<Shared>, hello: Hello, via: Via) -> Result<Admitted<'_>, LogClosed> {
    if hello.version_min > VERSION || hello.version_max < VERSION {
        let asked = (hello.version_min, hello.version_max);
        let reason = format!("this master speaks version {VERSION}, the client {} to {}", asked.0, asked.1);
        return Ok(Err(refuse(refusal::Kind::Version, reason)));
    }
    let features = hello.features;
    let highest = hello.highest.map(|position| Shown { position, says_reigns: Feature::Reigns.is_in(features) });
    match hello.role {
        Some(hello::Role::Open(open)) => open_session(shared, highest, open, via).await,
        Some(hello::Role::Resume(resume)) => resume_session(shared, highest, features, resume, via).await,
        Some(hello::Role::Attach(attach)) => attach_call(shared, highest, attach).await,
        None => Ok(Err(refuse(refusal::Kind::BadRequest, "the hello asks for no role known here".to_owned()))),
    }
}

async fn open_session(
    shared: &Arc<Shared>,
    highest: Option<Shown>,
    open: message::OpenSession,
    via: Via,
) -> Result<Admitted<'_>, LogClosed> {
    if shared.routes.anchors() >= SESSIONS_MAX {
        return Ok(Err(refuse(refusal::Kind::Overloaded, format!("{SESSIONS_MAX} clients are connected already"))));
    }
    let process = open.process.unwrap_or_default();
    if let Err(reason) = check_identity(&open.host_name, &process) {
        return Ok(Err(refuse(refusal::Kind::BadRequest, reason)));
    }
    let secret = crate::random::number();
    let name = open.host_name.clone();
    let spec = SessionSpec {
        secret,
        name: open.host_name,
        boot_id: process.boot_id.to_vec(),
        process: process.encode_to_vec(),
    };
    let queue = Arc::new(AnchorQueue::default());
    let opened = shared
        .apply_async(|core, now, effects| {
            believe(shared, core, now, highest.as_ref(), effects)?;
            let session = core.open_session(now, spec, effects).map_err(|refused| convert::refusal(&refused))?;
            shared.routes.set_anchor(session, &queue);
            Ok(Registered { shared, session, queue })
        })
        .await?;
    let anchor = match opened {
        Ok(anchor) => anchor,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let session = anchor.session;
    let watched = shared.processes.watch(session, &process, via);
    tracing::info!(session = session.0, name, watched, "client connected");
    let reply = HelloReply { session: session.0, secret, pid_proof: u32::from(watched), ..HelloReply::default() };
    Ok(Ok((reply, Role::Anchor(anchor))))
}

async fn resume_session(
    shared: &Arc<Shared>,
    highest: Option<Shown>,
    features: u64,
    resume: message::ResumeSession,
    via: Via,
) -> Result<Admitted<'_>, LogClosed> {
    let segments = match segments_of(features, &resume) {
        Ok(segments) => segments,
        Err(reason) => return Ok(Err(refuse(refusal::Kind::BadRequest, reason))),
    };
    let process = resume.process.unwrap_or_default();
    if let Err(reason) = check_identity(&resume.host_name, &process) {
        return Ok(Err(refuse(refusal::Kind::BadRequest, reason)));
    }
    let session = SessionId(resume.session);
    let pins = convert::rids(&resume.pins);
    let queue = Arc::new(AnchorQueue::default());
    let resumed = shared
        .apply_async(|core, now, effects| {
            // First of all: strangers are not believed.
            core.check_session(session, resume.secret).map_err(|refused| convert::refusal(&refused))?;
            if !core.is_latest_list(session, resume.list) {
                let reason = format!("the client has come back since it sent this (list {})", resume.list);
                return Err(refuse(refusal::Kind::BadRequest, reason));
            }
            believe(shared, core, now, highest.as_ref(), effects)?;
            core.settle_replies(session, resume.settled_below, &resume.unsettled);
            let resumed = core
                .resume_session(now, session, resume.secret, &segments, &pins, effects)
                .map_err(|refused| convert::refusal(&refused))?;
            shared.routes.set_anchor(session, &queue);
            Ok((resumed, Registered { shared, session, queue }))
        })
        .await?;
    let (Resumed { gone, mut unknown_pins }, anchor) = match resumed {
        Ok(resumed) => resumed,
        Err(refusal) => return Ok(Err(refusal)),
    };
    if !segments.is_empty() {
        shared.metrics.count(Op::RemountSegment, 1, usize::from(!gone.is_empty()));
    }
    let watched = shared.processes.watch(session, &process, via);
    tracing::info!(session = session.0, name = resume.host_name, watched, gone = gone.len(), "client is back");
    if !unknown_pins.is_empty() {
        tracing::warn!(
            session = session.0,
            name = resume.host_name,
            views = unknown_pins.len(),
            "this client holds views that the lost end of the log knew; segments that it maps take nothing until they end"
        );
    }
    if unknown_pins.len() > UNKNOWN_PINS_MAX {
        unknown_pins = vec![Rid(0)];
    }
    let reply = HelloReply {
        session: session.0,
        secret: resume.secret,
        unknown_pins: unknown_pins.iter().map(|rid| rid.0).collect(),
        gone_segments: gone.iter().map(|uuid| uuid.0.to_vec().into()).collect(),
        pid_proof: u32::from(watched),
        ..HelloReply::default()
    };
    Ok(Ok((reply, Role::Anchor(anchor))))
}

/// The segments that an owner still holds, each with the epoch that it has taken. Where the owner is one that says for all of
/// them what it was asked to take, that is 0: it tells what it has done as it is done, and is asked once more for it.
fn segments_of(features: u64, resume: &message::ResumeSession) -> Result<Vec<(SegmentUuid, u16)>, String> {
    let no_such = |epoch: u32| format!("epoch {epoch} does not exist");
    u16::try_from(resume.epoch_taken).map_err(|_| no_such(resume.epoch_taken))?;
    let said = if Feature::SegmentEpochs.is_in(features) { &resume.epochs[..] } else { &[] };
    let each = resume.segments.iter().enumerate().map(|(index, uuid)| {
        let epoch = said.get(index).copied().unwrap_or(0);
        Ok((convert::uuid(uuid)?, u16::try_from(epoch).map_err(|_| no_such(epoch))?))
    });
    each.collect()
}

async fn attach_call(
    shared: &Arc<Shared>,
    highest: Option<Shown>,
    attach: message::AttachCall,
) -> Result<Admitted<'_>, LogClosed> {
    let session = SessionId(attach.session);
    let checked = shared
        .apply_async(|core, now, effects| {
            core.check_session(session, attach.secret).map_err(|refused| convert::refusal(&refused))?;
            believe(shared, core, now, highest.as_ref(), effects)
        })
        .await?;
    Ok(checked.map(|()| (HelloReply { session: session.0, ..HelloReply::default() }, Role::Call(session))))
}

/// It is kept for as long as the session is, and in the log.
fn check_identity(name: &str, process: &ProcessIdentity) -> Result<(), String> {
    if name.len() > NAME_MAX {
        return Err(format!("a name has at most {NAME_MAX} bytes, not {}", name.len()));
    }
    match process.boot_id.len() {
        0 | BOOT_ID => Ok(()),
        other => Err(format!("a boot id has {BOOT_ID} bytes, not {other}")),
    }
}

/// Raises the epoch if what an admitted client has seen asks for it.
fn believe(
    shared: &Shared,
    core: &mut Core,
    now: Time,
    highest: Option<&Shown>,
    effects: &mut Effects,
) -> Result<(), Refusal> {
    let Some(seen) = highest else { return Ok(()) };
    let Reign { epoch, id } = shared.log.reign();
    let own =
        LogPosition { log_id: shared.log.log_id(), epoch: epoch.into(), lsn: shared.log.assigned_lsn(), reign: id };
    let mut seen = *seen;
    if shared.log.is_own(seen.position.log_id) {
        seen.position.log_id = own.log_id;
    }
    if let Some(raised) = shared.epoch_claims.lock().judge(Instant::now(), own, &seen)? {
        core.raise_epoch(now, raised, effects);
    }
    Ok(())
}

fn refuse(kind: refusal::Kind, reason: String) -> Refusal {
    Refusal { kind: kind.into(), reason }
}

/// The identity that a session was opened with.
pub fn process_of(core: &Core, session: SessionId) -> Option<ProcessIdentity> {
    ProcessIdentity::decode(core.session_process(session)?).ok()
}
