//! Files of tiers on this host, by which this process reads them itself: the initiator's end.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use mooncake_ids::SegmentUuid;
use mooncake_net::{connect_abstract, receive_with_fds};
use mooncake_os::{Deadline, Guarded, ProcessIdentity, peer_credentials};
use parking_lot::Mutex;

use super::options::{LinkOptions, SegmentAddress};
use crate::protocol::frames::{
    Frame, HELLO_LEN, Hello, HelloReply, LANE_REUSED, LANE_VERSION, Op, Purpose, REPLY_LEN, Reply, Status,
};

/// An owner opens a file within so long, or its tier is read by lanes.
const OPEN_LIMIT: Duration = Duration::from_secs(1);

/// Connections to owners of tiers, kept for the next file.
#[derive(Debug)]
pub struct RecordFiles {
    options: LinkOptions,
    process: ProcessIdentity,
    idle: Mutex<HashMap<SegmentUuid, (Guarded<UnixStream>, Instant)>>,
}

impl RecordFiles {
    /// None yet.
    pub fn new(options: LinkOptions, process: ProcessIdentity) -> RecordFiles {
        RecordFiles { options, process, idle: Mutex::default() }
    }

    /// Whether this process may read that tier by itself: it is on this host, and shared memory is not switched off.
    pub fn can_reach(&self, tier: &SegmentAddress) -> bool {
        self.options.paths.shared_memory && tier.boot_id == self.process.boot_id && !tier.unix_socket.is_empty()
    }

    /// A file of a tier, to be read; [`ErrorKind::NotFound`] if it is there no more. Takes a second at most.
    pub fn open(&self, tier: &SegmentAddress, number: u64) -> io::Result<File> {
        let deadline = Deadline::at(Instant::now() + OPEN_LIMIT);
        let stream = match self.take_idle(tier.uuid) {
            Some(stream) => stream,
            None => self.connect(tier, &deadline)?,
        };
        let frame = Frame { offset: number, sequence: 1, ..Frame::plain(Op::File, 0) };
        (&*stream).write_all(&frame.encode())?;
        let (mut reply, mut files) = ([0; REPLY_LEN], Vec::new());
        receive_with_fds(&stream, &mut reply, &mut files, &deadline)?;
        let reply = Reply::decode(&reply).filter(|reply| reply.sequence == frame.sequence);
        let status = reply.ok_or(ErrorKind::InvalidData)?.status;
        self.idle.lock().insert(tier.uuid, (stream, Instant::now()));
        match (status, files.pop()) {
            (Status::Ok, Some(file)) => Ok(file.into()),
            // The kernel leaves descriptors out that this process has no room for.
            (Status::Ok, None) => Err(io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error())),
            (Status::Stale, _) => Err(ErrorKind::NotFound.into()),
            (status, _) => Err(io::Error::other(status.to_string())),
        }
    }

    /// Ends those that are kept.
    pub fn close(&self) {
        self.idle.lock().clear();
    }

    fn take_idle(&self, uuid: SegmentUuid) -> Option<Guarded<UnixStream>> {
        let (stream, since) = self.idle.lock().remove(&uuid)?;
        (since.elapsed() < LANE_REUSED).then_some(stream)
    }

    fn connect(&self, tier: &SegmentAddress, deadline: &Deadline<'_>) -> io::Result<Guarded<UnixStream>> {
        let hello = Hello {
            version: LANE_VERSION,
            purpose: Purpose::Files,
            features: 0,
            session: self.options.session,
            access_key: tier.access_key,
            uuid: tier.uuid,
            pid: self.process.pid,
            start_time: self.process.start_time,
        };
        let stream = connect_abstract(&tier.unix_socket)?;
        if !peer_credentials(&*stream)?.is_own_user() {
            return Err(io::Error::new(ErrorKind::PermissionDenied, "its owner is another user"));
        }
        stream.set_write_timeout(Some(OPEN_LIMIT))?;
        (&*stream).write_all(&hello.encode())?;
        let mut reply = [0; HELLO_LEN];
        receive_with_fds(&stream, &mut reply, &mut Vec::new(), deadline)?;
        let reply = HelloReply::decode(&reply).ok_or(ErrorKind::InvalidData)?;
        match reply.status {
            Status::Ok if reply.version == LANE_VERSION && reply.uuid == tier.uuid => Ok(stream),
            Status::Ok => Err(io::Error::other("its owner serves another tier")),
            status => Err(io::Error::other(status.to_string())),
        }
    }
}
