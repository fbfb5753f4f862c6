//! All that reads data lanes and attach connections, as functions of bytes: for the fuzzers in `fuzz/` and for the test
//! here.
//!
//! What is read must be written as it was. Messages have fixed sizes: nothing is reserved for what one announces.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use mooncake_ids::SegmentUuid;
use mooncake_os::Guarded;
use mooncake_test_support::FuzzTarget;

use crate::epoch::Epoch;
use crate::protocol::attach_stream::AttachPipe;
use crate::protocol::frames::{
    FRAME_LEN, Frame, HELLO_LEN, Hello, HelloReply, Op, Purpose, REPLY_LEN, Reply, Status, TRAILER_LEN, Trailer,
    begins_as_hello, seal,
};

/// All of them.
pub const FUZZ_TARGETS: [FuzzTarget; 3] = [
    FuzzTarget { name: "lane_hello", read: hello, seeds: hello_seeds },
    FuzzTarget { name: "lane_frame", read: frame, seeds: frame_seeds },
    FuzzTarget { name: "attach_pipe", read: pipe, seeds: frame_seeds },
];

/// The bytes as they are, and with a checksum that is right.
fn sealed(raw: &[u8; 64]) -> [[u8; 64]; 2] {
    let mut right = *raw;
    seal(&mut right);
    [*raw, right]
}

fn hello(bytes: &[u8]) {
    let begins = begins_as_hello(bytes);
    let Some(raw) = bytes.first_chunk::<HELLO_LEN>() else { return };
    for raw in sealed(raw) {
        if let Some(hello) = Hello::decode(&raw) {
            assert!(begins && Hello::decode(&hello.encode()) == Some(hello));
        }
        if let Some(reply) = HelloReply::decode(&raw) {
            assert!(begins && HelloReply::decode(&reply.encode()) == Some(reply));
        }
    }
}

fn hello_seeds() -> Vec<Vec<u8>> {
    let hello = |purpose| Hello {
        version: 1,
        purpose,
        features: 1,
        session: 1,
        access_key: 2,
        uuid: SegmentUuid([3; 16]),
        pid: 4,
        start_time: 5,
    };
    let epoch = Epoch { number: 1, id: 6 };
    let reply = HelloReply {
        version: 1,
        status: Status::Ok,
        epoch,
        bytes: 1 << 30,
        uuid: SegmentUuid([3; 16]),
        features: 2,
        tenure: 3,
    };
    let hellos = [Purpose::Lane, Purpose::Attach].map(|purpose| hello(purpose).encode());
    hellos.into_iter().chain([reply.encode()]).map(|raw| raw.to_vec()).collect()
}

fn frame(bytes: &[u8]) {
    if let Some(raw) = bytes.first_chunk::<FRAME_LEN>() {
        for frame in sealed(raw).iter().filter_map(Frame::decode) {
            assert_eq!(Frame::decode(&frame.encode()), Some(frame));
        }
    }
    if let Some(reply) = bytes.first_chunk::<REPLY_LEN>().and_then(Reply::decode) {
        assert_eq!(Reply::decode(&reply.encode()), Some(reply));
    }
    if let Some(trailer) = bytes.first_chunk::<TRAILER_LEN>().and_then(Trailer::decode) {
        assert_eq!(Trailer::decode(&trailer.encode()), Some(trailer));
    }
}

fn frame_seeds() -> Vec<Vec<u8>> {
    let frame = |op| Frame { op, epoch: 1, rid: 2, offset: 4096, len: 1 << 20, sequence: 5 };
    let frames = [Op::Read, Op::Write, Op::Quiesce, Op::TakeEpoch].map(|op| frame(op).encode().to_vec());
    let reply = Reply { status: Status::Stale, epoch: 1, sequence: 2, len: 3, detail: 4 }.encode().to_vec();
    let trailer = Trailer { status: Status::Ok, sequence: 2 }.encode().to_vec();
    frames.into_iter().chain([reply, trailer]).collect()
}

/// What comes in at an attach connection, whole frames with a right checksum every other time.
fn pipe(bytes: &[u8]) {
    let (mut there, here) = UnixStream::pair().expect("two sockets");
    here.set_nonblocking(true).expect("a socket");
    let mut pipe = AttachPipe::new(Arc::new(Guarded::new(here)));
    let (mut sent, mut received) = (0, 0);
    for (nth, part) in bytes.chunks(FRAME_LEN).take(100).enumerate() {
        let part = part.first_chunk().map_or(part.to_vec(), |raw| sealed(raw)[nth % 2].to_vec());
        there.write_all(&part).expect("there is room");
        sent += part.len();
        while let Ok(Some(_)) = pipe.receive() {
            received += FRAME_LEN;
        }
    }
    // The kernel may take its time over what a drop closes.
    there.shutdown(Shutdown::Both).expect("an end");
    assert!(received <= sent && !matches!(pipe.receive(), Ok(None)), "the end is seen");
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_others_send_is_read_or_refused_and_never_a_panic() {
        mooncake_test_support::run(&super::FUZZ_TARGETS);
    }
}
