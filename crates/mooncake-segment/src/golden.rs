//! What travels on lanes and attach connections keeps its form: the bytes of each message, and of what an owner and a
//! process that attaches say to each other.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use mooncake_ids::{Rid, SegmentUuid};
use mooncake_os::Guarded;
use mooncake_os::recv_fds;
use mooncake_test_support::{Golden, every};

use crate::epoch::Epoch;
use crate::link::fixture::{Quiet, hello, owner};
use crate::machine::Fence;
use crate::protocol::attach_stream::AttachPipe;
use crate::protocol::frames::{
    FEATURE_INTRODUCTIONS, FEATURE_KNOWN_PINS, FEATURE_LOCKS, FRAME_LEN, Frame, HELLO_LEN, Hello, HelloReply,
    LANE_VERSION, Op, Purpose, Reply, Status, Trailer,
};

const UUID: SegmentUuid = SegmentUuid(*b"0123456789abcdef");
const EPOCH: Epoch = Epoch { number: 0x0102, id: 0x8101_0203 };

#[test]
fn messages_are_what_they_were() {
    let mut golden = Golden::default();
    golden.bytes("version", LANE_VERSION.to_le_bytes());
    golden.bytes("feature.known_pins", [FEATURE_KNOWN_PINS]);
    golden.bytes("feature.introductions", [FEATURE_INTRODUCTIONS]);
    golden.bytes("feature.locks", [FEATURE_LOCKS]);

    for (name, purpose) in every!(Purpose { Lane, Attach, Files }) {
        let (session, access_key, start_time) = (0x1112_1314_1516_1718, 0x2122_2324_2526_2728, 0x3132_3334_3536_3738);
        let hello =
            Hello { version: 0x0102, purpose, features: 3, session, access_key, uuid: UUID, pid: 70_000, start_time };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        golden.bytes(format!("hello.{name}"), hello.encode());
    }
    for (name, op) in every!(Op {
        Read,
        Write,
        Upgrade,
        Upgraded,
        Quiesce,
        Quiesced,
        TakeEpoch,
        EpochTaken,
        Detached,
        Introduce,
        Record,
        File,
        View,
        Viewable
    }) {
        let (rid, offset, len) = (0x0102_1314_1516_1718, 0x2122_2324_2526_2728, 0x3132_3334_3536_3738);
        let frame = Frame { op, epoch: 0x0102, rid, offset, len, sequence: 0x4142_4344_4546_4748 };
        assert_eq!(Frame::decode(&frame.encode()), Some(frame));
        golden.bytes(format!("frame.{name}"), frame.encode());
    }
    golden.bytes("frame.take_epoch", Frame::take_epoch(EPOCH).encode());

    let statuses = every!(Status {
        Ok,
        Stale,
        Superseded,
        OldEpoch,
        Busy,
        UnknownSegment,
        WrongKey,
        OutOfRange,
        Overloaded,
        Version,
        NotTrusted,
        Unsupported,
        Failed,
    });
    for (name, status) in &statuses {
        let bytes = 0x5152_5354_5556_5758;
        let reply =
            HelloReply { version: 0x0102, status: *status, epoch: EPOCH, bytes, uuid: UUID, features: 2, tenure: 0 };
        assert_eq!(HelloReply::decode(&reply.encode()), Some(reply));
        golden.bytes(format!("hello_reply.{name}"), reply.encode());
    }
    let (status, bytes, tenure) = (Status::Ok, 1 << 40, 0x8182_8384);
    let kept = HelloReply { version: 0x0102, status, epoch: EPOCH, bytes, uuid: UUID, features: 2, tenure };
    assert_eq!(HelloReply::decode(&kept.encode()), Some(kept));
    golden.bytes("hello_reply.of_memory_that_outlives_its_owner", kept.encode());
    for (name, status) in &statuses {
        let (len, detail) = (0x6162_6364_6566_6768, 0x7172_7374_7576_7778);
        let reply = Reply { status: *status, epoch: 0x0102, sequence: 0x4142_4344_4546_4748, len, detail };
        assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        golden.bytes(format!("reply.{name}"), reply.encode());
    }
    for (name, status) in statuses {
        let trailer = Trailer { status, sequence: 0x4142_4344_4546_4748 };
        assert_eq!(Trailer::decode(&trailer.encode()), Some(trailer));
        golden.bytes(format!("trailer.{name}"), trailer.encode());
    }
    golden.check("messages.txt");
}

#[test]
fn an_attach_connection_is_what_it_was() {
    let mut golden = Golden::default();
    let (server, memory, address) = owner(8 << 10, Quiet);
    let random = address.unix_socket.rsplit('-').next().unwrap();
    golden.text("unix_socket.name", address.unix_socket.replace(random, &format!("<{} digits>", random.len())));

    let mut peer = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&address.unix_socket).unwrap()).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    peer.write_all(&hello(Purpose::Attach, memory.uuid()).encode()).unwrap();
    let (mut reply, mut fds) = ([0; HELLO_LEN], Vec::new());
    assert_eq!(recv_fds(&peer, &mut reply, &mut fds).unwrap(), HELLO_LEN);
    assert!(HelloReply::decode(&reply).is_some());
    // But for the random name of the memory, and the checksum that it is in.
    assert_eq!(reply[24..40], memory.uuid().0);
    reply[24..40].fill(0);
    golden.bytes("hello_reply", &reply[..60]);
    for (nth, fd) in fds.iter().enumerate() {
        let file = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
        golden.text(format!("descriptor.{nth}"), file.to_str().unwrap());
    }

    let mut said = |name: &str, peer: &mut UnixStream| {
        let mut frame = [0; FRAME_LEN];
        peer.read_exact(&mut frame).unwrap();
        let frame = Frame::decode(&frame).unwrap();
        // Where an owner begins to count its questions is its own affair.
        golden.bytes(name, Frame { sequence: 0, ..frame }.encode());
        frame
    };
    peer.write_all(&Frame::plain(Op::Upgrade, 1).encode()).unwrap();
    said("upgraded", &mut peer);
    let (uuid, rid, writer) = (memory.uuid(), Rid(0x0001_0000_0000_0002), 2);
    server.fence(Fence { uuid, rid, offset: 1024, len: 1500, writer, writer_done: false });
    let asked = said("quiesce", &mut peer);
    peer.write_all(&Frame { op: Op::Quiesced, ..asked }.encode()).unwrap();
    server.take_epoch(EPOCH).unwrap();
    said("take_epoch", &mut peer);

    // The other side writes its frames by the same pipe.
    let (mine, mut theirs) = UnixStream::pair().unwrap();
    let mut pipe = AttachPipe::new(Arc::new(Guarded::new(mine)));
    let frames = [Frame::plain(Op::Introduce, 1), Frame::plain(Op::Detached, 1)];
    pipe.send(&frames[0]).unwrap();
    assert!(pipe.send_last(&frames[1]).unwrap());
    let mut stream = [0; 2 * FRAME_LEN];
    theirs.read_exact(&mut stream).unwrap();
    golden.bytes("pipe", stream);
    golden.check("attach_connection.txt");
}
