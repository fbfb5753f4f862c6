//! A lane against an owner that does what the test says.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::thread::{scope, sleep};

use mooncake_ids::SegmentUuid;
use mooncake_test_support::DeafListener;

use super::*;
use crate::epoch::Epoch;
use crate::link::fixture::hello;
use crate::protocol::frames::Purpose;

const UUID: SegmentUuid = SegmentUuid([7; 16]);
const BYTES: u64 = 64 << 20;
const RID: Rid = Rid::new(1, 1);

fn welcome() -> HelloReply {
    HelloReply {
        version: 1,
        status: Status::Ok,
        epoch: Epoch::default(),
        bytes: BYTES,
        uuid: UUID,
        features: 0,
        tenure: 0,
    }
}

/// A lane, and the owner's end of it: the owner answers the hello with this, and then does as it is told.
fn lane_to(
    answer: &[u8; HELLO_LEN],
    stall_timeout: Duration,
    owner: impl FnOnce(TcpStream) + Send,
    peer: impl FnOnce(Result<Lane, TransferError>, &Deadline<'_>),
) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Connections have it from here: what a peer does not read soon fills the way to it.
    socket2::SockRef::from(&listener).set_recv_buffer_size(64 << 10).unwrap();
    let address = listener.local_addr().unwrap();
    scope(|threads| {
        threads.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; HELLO_LEN]).unwrap();
            stream.write_all(answer).unwrap();
            owner(stream);
        });
        let deadline = Deadline::at(Instant::now() + Duration::from_secs(20));
        peer(
            Lane::open(
                address,
                &hello(Purpose::Lane, UUID),
                Some(BYTES),
                &"owner".into(),
                (Duration::from_secs(10), stall_timeout),
                &deadline,
            ),
            &deadline,
        );
    });
}

fn request(stream: &mut TcpStream) -> Frame {
    let mut frame = [0; FRAME_LEN];
    stream.read_exact(&mut frame).unwrap();
    Frame::decode(&frame).unwrap()
}

fn reply(frame: &Frame, status: Status, len: u64) -> Vec<u8> {
    Reply { status, epoch: 1, sequence: frame.sequence, len, detail: 0 }.encode().into()
}

fn trailer(frame: &Frame, status: Status) -> Vec<u8> {
    Trailer { status, sequence: frame.sequence }.encode().into()
}

/// A lane whose stall timeout this is meets an owner that takes longer in all, but never so long for one step.
const TIMEOUT: Duration = Duration::from_millis(400);
const STEP: Duration = Duration::from_millis(100);
const STEPS: usize = 6;

fn by_and_by(stream: &mut TcpStream, bytes: &[u8]) {
    for part in bytes.chunks(bytes.len().div_ceil(STEPS)) {
        sleep(STEP);
        stream.write_all(part).unwrap();
    }
}

#[test]
fn bytes_that_come_end_a_standstill() {
    let read = |slow_reply: bool| {
        let owner = move |mut stream: TcpStream| {
            let frame = request(&mut stream);
            let (reply, bytes) = (reply(&frame, Status::Ok, frame.len), vec![5; frame.len as usize]);
            let (slow, quick) = if slow_reply { (reply, bytes) } else { (bytes, reply) };
            if slow_reply {
                by_and_by(&mut stream, &slow);
                stream.write_all(&quick).unwrap();
            } else {
                stream.write_all(&quick).unwrap();
                by_and_by(&mut stream, &slow);
            }
            stream.write_all(&trailer(&frame, Status::Ok)).unwrap();
        };
        lane_to(&welcome().encode(), TIMEOUT, owner, |lane, deadline| {
            let mut back = [0; 60];
            let span = Span { rid: RID, offset: 0, len: 60 };
            lane.unwrap().read(span, &mut [Destination::new(&mut back)], true, deadline).result.unwrap();
            assert_eq!(back, [5; 60]);
        });
    };
    let write = || {
        const PART: usize = 256 << 10;
        let owner = |mut stream: TcpStream| {
            let frame = request(&mut stream);
            for _ in 0..STEPS {
                sleep(STEP);
                stream.read_exact(&mut vec![0; PART]).unwrap();
            }
            stream.write_all(&reply(&frame, Status::Ok, 0)).unwrap();
        };
        lane_to(&welcome().encode(), TIMEOUT, owner, |lane, deadline| {
            let mut lane = lane.unwrap();
            socket2::SockRef::from(&*lane.stream).set_send_buffer_size(16 << 10).unwrap();
            let bytes = vec![5; STEPS * PART];
            let span = Span { rid: RID, offset: 0, len: bytes.len() as u64 };
            lane.write(span, &[Source::new(&bytes)], deadline).result.unwrap();
        });
    };
    scope(|threads| {
        threads.spawn(|| read(true));
        threads.spawn(|| read(false));
        threads.spawn(write);
    });
}

#[test]
fn the_answer_to_another_request_is_taken_for_none() {
    type Answer = fn(&Frame) -> Vec<Vec<u8>>;
    const fn earlier(frame: &Frame) -> Frame {
        Frame { sequence: frame.sequence - 1, ..*frame }
    }
    let answers: [Answer; 5] = [
        |frame| vec![reply(&earlier(frame), Status::Ok, 100), vec![5; 100], trailer(frame, Status::Ok)],
        |frame| vec![reply(frame, Status::Ok, 99), vec![5; 99], trailer(frame, Status::Ok)],
        |frame| vec![reply(frame, Status::Ok, 100), vec![5; 100], trailer(&earlier(frame), Status::Ok)],
        |frame| vec![reply(frame, Status::Ok, 100), vec![5; 116]],
        |_| vec![vec![5; 32]],
    ];
    for (nth, answer) in answers.into_iter().enumerate() {
        let owner = move |mut stream: TcpStream| {
            for part in answer(&request(&mut stream)) {
                // What the lane has been given up for may have come already.
                let _ = stream.write_all(&part);
            }
        };
        lane_to(&welcome().encode(), Duration::from_secs(5), owner, |lane, deadline| {
            let span = Span { rid: RID, offset: 0, len: 100 };
            let outcome = lane.unwrap().read(span, &mut [Destination::new(&mut [0; 100])], false, deadline);
            assert!(matches!(outcome.result, Err(TransferError::Broken { .. })), "{nth}: {:?}", outcome.result);
            assert!(!outcome.reusable, "{nth}: what comes next on the lane is not known");
        });
    }
}

#[test]
fn the_requests_of_a_lane_are_told_apart() {
    let owner = |mut stream: TcpStream| {
        let first = request(&mut stream);
        stream.write_all(&reply(&first, Status::Stale, 0)).unwrap();
        // As one that answers the first request twice.
        let second = request(&mut stream);
        assert!(second.sequence > first.sequence);
        stream.write_all(&reply(&first, Status::Ok, 1)).unwrap();
    };
    lane_to(&welcome().encode(), Duration::from_secs(5), owner, |lane, deadline| {
        let (mut lane, span) = (lane.unwrap(), Span { rid: RID, offset: 0, len: 1 });
        let mut read = || lane.read(span, &mut [Destination::new(&mut [0])], false, deadline);
        let first = read();
        assert!(matches!(first.result, Err(TransferError::Stale { .. })) && first.reusable);
        assert!(matches!(read().result, Err(TransferError::Broken { .. })));
    });
}

#[test]
fn a_write_that_is_refused_on_its_way_ends_without_the_rest_of_its_bytes() {
    let bytes = vec![5; 32 << 20];
    let most = bytes.len() / 2;
    for (status, settled) in [(Status::Superseded, true), (Status::Ok, false)] {
        let owner = move |mut stream: TcpStream| {
            let frame = request(&mut stream);
            stream.write_all(&reply(&frame, status, 0)).unwrap();
            assert_reset_before(stream, most);
        };
        lane_to(&welcome().encode(), Duration::from_secs(2), owner, |lane, deadline| {
            let mut lane = lane.unwrap();
            let span = Span { rid: RID, offset: 0, len: bytes.len() as u64 };
            let outcome = lane.write(span, &[Source::new(&bytes)], deadline);
            let e = outcome.result.unwrap_err();
            let refused = matches!(e, TransferError::Superseded { .. } | TransferError::Refused { .. });
            assert!(refused && !outcome.reusable, "{e}");
            assert_eq!(outcome.settled, settled, "{status:?}");
        });
    }
}

/// The lane is gone. What lay in its socket, by reference, has gone with it: the caller has the memory again.
fn assert_reset_before(mut stream: TcpStream, most: usize) {
    let mut found = Vec::new();
    let e = stream.read_to_end(&mut found).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::ConnectionReset);
    assert!(found.len() < most, "{} bytes", found.len());
}

#[test]
fn a_large_write_arrives_whole_and_its_checksum_is_that_of_its_bytes() {
    let bytes: Vec<u8> = (0..9_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 21) as u8).collect();
    let (first, second) = bytes.split_at((5 << 20) + 17);
    let owner = |mut stream: TcpStream| {
        // One that is large, and one behind it on the same lane.
        for _ in 0..2 {
            let frame = request(&mut stream);
            let mut found = vec![0; frame.len as usize];
            stream.read_exact(&mut found).unwrap();
            assert!(found == bytes[..found.len()], "other bytes than went");
            stream.write_all(&reply(&frame, Status::Ok, 0)).unwrap();
        }
    };
    lane_to(&welcome().encode(), Duration::from_secs(5), owner, |lane, deadline| {
        let mut lane = lane.unwrap();
        for pieces in [&[Source::new(first), Source::new(second)][..], &[Source::new(&bytes[..1000])]] {
            let span = Span { rid: RID, offset: 0, len: total_of_sources(pieces) };
            let outcome = lane.write(span, pieces, deadline);
            let crc = mooncake_memory::crc32c(&bytes[..span.len as usize]);
            assert!(outcome.reusable && outcome.settled);
            assert_eq!(outcome.result.unwrap(), crc);
        }
    });
}

#[test]
fn what_of_a_write_has_not_left_when_it_is_given_up_never_leaves() {
    let bytes = vec![5; 32 << 20];
    let (end, ended) = channel::<()>();
    let most = bytes.len() / 2;
    let owner = move |mut stream: TcpStream| {
        request(&mut stream);
        assert!(ended.recv().is_err(), "nothing is sent");
        assert_reset_before(stream, most);
    };
    lane_to(&welcome().encode(), Duration::from_millis(200), owner, |lane, deadline| {
        let span = Span { rid: RID, offset: 0, len: bytes.len() as u64 };
        let mut lane = lane.unwrap();
        let outcome = lane.write(span, &[Source::new(&bytes)], deadline);
        assert!(matches!(outcome.result, Err(TransferError::Timeout { .. })) && !outcome.settled && !outcome.reusable);
        drop((lane, end));
    });
}

#[test]
fn an_owner_that_shows_other_memory_or_no_hello_is_not_used() {
    let (welcome, mut damaged) = (welcome(), welcome().encode());
    damaged[20] ^= 1;
    for answer in [
        HelloReply { uuid: SegmentUuid([8; 16]), ..welcome }.encode(),
        HelloReply { bytes: BYTES / 2, ..welcome }.encode(),
        HelloReply { status: Status::WrongKey, ..welcome }.encode(),
        damaged,
    ] {
        lane_to(&answer, Duration::from_secs(5), |_| {}, |lane, _| assert!(lane.is_err()));
    }
    lane_to(&welcome.encode(), Duration::from_secs(5), |_| {}, |lane, _| assert!(lane.is_ok()));
}

#[test]
fn an_owner_whose_host_does_not_answer_is_not_waited_for_longer_than_the_caller_likes() {
    let deaf = DeafListener::start();
    let address = deaf.at();
    let began = Instant::now();
    let open = |timeout, deadline: &Deadline<'_>| {
        let hello = hello(Purpose::Lane, UUID);
        Lane::open(address, &hello, Some(BYTES), &"owner".into(), (timeout, TIMEOUT), deadline).unwrap_err()
    };
    let long = Duration::from_secs(60);
    for e in [
        open(Duration::from_millis(120), &Deadline::after(long, &|| false)),
        open(long, &Deadline::after(Duration::from_millis(120), &|| false)),
        open(long, &Deadline::after(Duration::ZERO, &|| false)),
    ] {
        let TransferError::Broken { source, .. } = e else { panic!("{e:?}") };
        assert_eq!(
            (source.kind(), source.to_string()),
            (io::ErrorKind::TimedOut, format!("{address} does not answer"))
        );
    }
    let e = open(long, &Deadline::after(long, &|| true));
    assert!(matches!(e, TransferError::Interrupted), "{e:?}");
    assert!(began.elapsed() < Duration::from_secs(30));
}
