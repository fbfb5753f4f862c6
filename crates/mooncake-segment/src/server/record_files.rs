//! The owner's end of a connection by which a process of its user and host gets the files of a tier, to read them
//! itself: a thread of its own, as opening one may wait for the disk.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use mooncake_os::{Guarded, peer_credentials, send_fds, thread};

use super::record_lane::{Counted, Frames, ServedTier, prepare, status_of};
use crate::protocol::frames::{Hello, HelloReply, Op, REPLY_LEN, Reply, Status};

/// Answers a good hello of a process of this user, and serves it until it ends.
pub(super) fn open(
    stream: Guarded<UnixStream>,
    hello: &Hello,
    tier: Arc<ServedTier>,
    stall_timeout: Duration,
) -> Result<(), Status> {
    // What may read the file of one may read those of all: only who could open the folder's files by itself.
    let is_own_user = peer_credentials(&*stream).is_ok_and(|credentials| credentials.is_own_user());
    let counted = match is_own_user {
        true => Counted::one_more().ok_or(Status::Overloaded),
        false => Err(Status::NotTrusted),
    };
    let counted = match counted {
        Ok(counted) => counted,
        Err(status) => return super::acceptor::refuse(&*stream, hello, status),
    };
    let reply = tier.welcome(hello);
    let builder = std::thread::Builder::new().name("mooncake-files".into());
    let serve = move || {
        let _counted = counted;
        if let Err(error) = serve(&stream, &reply, &tier, stall_timeout) {
            tracing::debug!(%error, "a process that reads a tier by itself asks for no more of its files");
        }
    };
    thread::start(builder, serve).map(drop).map_err(|_| Status::Overloaded)
}

fn serve(
    stream: &Guarded<UnixStream>,
    reply: &HelloReply,
    tier: &ServedTier,
    stall_timeout: Duration,
) -> io::Result<()> {
    prepare(&**stream, stall_timeout)?;
    (&**stream).write_all(&reply.encode())?;
    let mut frames = Frames::new();
    while let Some(frame) = frames.next(&**stream, tier, stall_timeout)? {
        if frame.op != Op::File {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let answer = |status| Reply { status, epoch: 0, sequence: frame.sequence, len: 0, detail: 0 }.encode();
        match tier.records.file(frame.offset) {
            // So few bytes go whole, or not at all.
            Ok(file) => match send_fds(stream.as_fd(), &answer(Status::Ok), &[file.as_fd()])? {
                REPLY_LEN => {}
                _ => return Err(io::ErrorKind::WriteZero.into()),
            },
            Err(error) => (&**stream).write_all(&answer(status_of(error)))?,
        }
    }
    Ok(())
}
