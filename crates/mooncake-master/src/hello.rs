//! A connection's first frame: read, admitted, answered.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use mooncake_core::SessionId;
use mooncake_wire::message::{Hello, HelloReply, Refusal};
use mooncake_wire::{CONTROL_PREFACE, MAX_HELLO_FRAME, encode_frame};
use prost::Message;

use crate::anchor::Registered;
use crate::connection::{Connection, Ended, Stream};
use crate::log::LogClosed;
use crate::machine::hello::{self, Admission, Admitted, Asked, Kind};
use crate::metrics::Op;
use crate::routes::AnchorQueue;
use crate::shared::Shared;

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
    let (reply, role) = match Asked::read(hello, crate::random::number(), shared.routes.anchors()) {
        Ok(asked) => admit(shared, asked, via).await?,
        Err(refusal) => refuse(shared, refusal),
    };
    let mut out = Vec::new();
    encode_frame(&reply, &mut out);
    Ok((out, role))
}

async fn admit(shared: &Arc<Shared>, asked: Asked, via: Via) -> Result<(HelloReply, Role<'_>), LogClosed> {
    let queue = Arc::new(AnchorQueue::default());
    let admitted = shared.apply_async(|core, now, effects| {
        let admission = Admission {
            anchors: &mut &shared.routes,
            claims: &mut shared.epoch_claims.lock(),
            log: shared.log.standing(),
        };
        let mut admitted = asked.admit(core, admission, now, &queue, effects)?;
        if let Some(replaced) = admitted.replaced.take() {
            replaced.close();
        }
        let session = admitted.session;
        let role = match admitted.kind {
            Kind::Attached => Role::Call(session),
            // From here on the end of this task, wherever it is, ends the anchor.
            Kind::Opened { .. } | Kind::Resumed { .. } => Role::Anchor(Registered { shared, session, queue }),
        };
        Ok((admitted, role))
    });
    let (admitted, role) = match admitted.await? {
        Ok(admitted) => admitted,
        Err(refusal) => return Ok(refuse(shared, refusal)),
    };
    let watched = match &admitted.kind {
        Kind::Opened { process, .. } | Kind::Resumed { process, .. } => {
            shared.processes.watch(admitted.session, process, via)
        }
        Kind::Attached => false,
    };
    tell(shared, &admitted, watched);
    Ok((admitted.reply(watched, &shared.identity.told, shared.position()), role))
}

fn refuse<'a>(shared: &Shared, refusal: Refusal) -> (HelloReply, Role<'a>) {
    shared.metrics.refused(&refusal);
    (hello::refused(refusal, &shared.identity.told, shared.position()), Role::Refused)
}

/// Tells people, and the metrics, which client came.
fn tell(shared: &Shared, admitted: &Admitted<Arc<AnchorQueue>>, watched: bool) {
    let session = admitted.session.0;
    match &admitted.kind {
        Kind::Opened { name, .. } => tracing::info!(session, name, watched, "client connected"),
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
                    "this client holds views that the lost end of the log knew; segments that it maps take nothing until \
                     they end"
                );
            }
        }
        Kind::Attached => {}
    }
}
