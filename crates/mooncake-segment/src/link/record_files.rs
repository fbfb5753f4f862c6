//! Files of tiers on this host, by which this process reads them itself: the peer's end.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use mooncake_ids::SegmentUuid;
use mooncake_net::{connect_abstract, receive_with_fds};
use mooncake_os::{Deadline, Guarded, ProcessIdentity, peer_credentials};
use parking_lot::Mutex;

use super::options::{LinkOptions, SegmentAddress};
use crate::protocol::frames::{
    Frame, HELLO_LEN, HelloReply, LANE_REUSED, LANE_VERSION, Op, Purpose, REPLY_LEN, Reply, Status,
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
        let idle = self.take_idle(tier.uuid).and_then(|stream| Some((ask(&stream, number, &deadline).ok()?, stream)));
        let (answer, stream) = match idle {
            Some(answered) => answered,
            // Its owner may be another process by now.
            None => {
                let stream = self.connect(tier, &deadline)?;
                (ask(&stream, number, &deadline)?, stream)
            }
        };
        self.idle.lock().insert(tier.uuid, (stream, Instant::now()));
        match answer {
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
        let hello = tier.hello(Purpose::Files, self.options.session, &self.process);
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

/// What its owner answers, and the file that comes with it.
fn ask(stream: &UnixStream, number: u64, deadline: &Deadline<'_>) -> io::Result<(Status, Option<OwnedFd>)> {
    let frame = Frame { offset: number, sequence: 1, ..Frame::plain(Op::File, 0) };
    (&*stream).write_all(&frame.encode())?;
    let (mut reply, mut files) = ([0; REPLY_LEN], Vec::new());
    receive_with_fds(stream, &mut reply, &mut files, deadline)?;
    let reply = Reply::decode(&reply).filter(|reply| reply.sequence == frame.sequence);
    Ok((reply.ok_or(ErrorKind::InvalidData)?.status, files.pop()))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::ops::Range;
    use std::sync::Arc;

    use super::*;
    use crate::link::fixture::{Quiet, mapping, owner};
    use crate::protocol::frames::FRAME_LEN;
    use crate::records::{RecordAddress, RecordError, RecordPart, RecordReads, Records};
    use crate::server::SegmentServer;

    /// A tier whose file 7 there is.
    #[derive(Debug)]
    struct OneFile;

    impl Records for OneFile {
        fn reads(self: Arc<Self>) -> Box<dyn RecordReads> {
            Box::new(NoRecords)
        }

        fn file(&self, number: u64) -> Result<OwnedFd, RecordError> {
            let (file, mut writer) = io::pipe().map_err(|_| RecordError::Failed)?;
            writer.write_all(b"seven").map_err(|_| RecordError::Failed)?;
            if number == 7 { Ok(file.into()) } else { Err(RecordError::Gone) }
        }
    }

    struct NoRecords;

    impl RecordReads for NoRecords {
        fn ask(&mut self, _: &RecordAddress, _: u64, _: Vec<u8>, _: Range<usize>, _: RecordPart) {}

        fn next(&mut self) -> Option<(Vec<u8>, Result<(), RecordError>)> {
            None
        }
    }

    const TIER: SegmentUuid = SegmentUuid([9; 16]);

    fn tier() -> (Arc<SegmentServer>, SegmentAddress, RecordFiles) {
        let (server, _, address) = owner(1 << 20, Quiet);
        server.add_tier(TIER, 1 << 30, 5, Arc::new(OneFile));
        let tier = SegmentAddress { uuid: TIER, access_key: 5, tier_file_blocks: 16, ..address };
        (server, tier, RecordFiles::new(mapping(), ProcessIdentity::current().unwrap()))
    }

    #[test]
    fn files_come_by_their_numbers_and_those_that_are_gone_are_not_found() {
        let (server, tier, files) = tier();
        assert!(files.can_reach(&tier));
        for _ in 0..2 {
            let mut found = String::new();
            files.open(&tier, 7).unwrap().read_to_string(&mut found).unwrap();
            assert_eq!(found, "seven");
            assert_eq!(files.open(&tier, 8).unwrap_err().kind(), ErrorKind::NotFound);
        }
        let key = files.open(&SegmentAddress { uuid: SegmentUuid([8; 16]), ..tier.clone() }, 7).unwrap_err();
        assert!(key.to_string().contains("no such segment"), "{key}");
        files.close();
        let key = files.open(&SegmentAddress { access_key: 6, ..tier.clone() }, 7).unwrap_err();
        assert!(key.to_string().contains("access key"), "{key}");
        server.remove_tier(TIER);
        assert!(files.open(&tier, 7).is_err());
        for elsewhere in
            [SegmentAddress { boot_id: [1; 16], ..tier.clone() }, SegmentAddress { unix_socket: String::new(), ..tier }]
        {
            assert!(!files.can_reach(&elsewhere));
        }
    }

    #[test]
    fn who_asks_for_anything_but_files_is_shown_out_and_nobody_is_waited_for() {
        let (_server, tier, files) = tier();
        for nonsense in [Frame::plain(Op::Read, 0).encode(), [7; FRAME_LEN]] {
            let stream = files.connect(&tier, &Deadline::at(Instant::now() + OPEN_LIMIT)).unwrap();
            (&*stream).write_all(&nonsense).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            assert_eq!((&*stream).read(&mut [0]).unwrap(), 0);
        }
        // One that hangs up before it has its file costs the next one nothing.
        let stream = files.connect(&tier, &Deadline::at(Instant::now() + OPEN_LIMIT)).unwrap();
        (&*stream).write_all(&Frame { offset: 7, ..Frame::plain(Op::File, 0) }.encode()).unwrap();
        drop(stream);
        assert!(files.open(&tier, 7).is_ok());
    }
}
