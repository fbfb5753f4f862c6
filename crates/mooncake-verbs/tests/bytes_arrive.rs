//! Over the fake: bytes go both ways, whatever is refused is named, and events and notices are told.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_memory::ForeignRange;
use mooncake_test_support::FakeVerbs;
use mooncake_verbs::{
    Access, Chain, CompletionQueue, Completions, Connection, Context, Domain, EventKind, Gid, Library, Local,
    Operation, PortState, QueuePair, QueuePairOptions, Region, Remote, Request, Status, Subject, VerbsError, devices,
};

const OPTIONS: QueuePairOptions = QueuePairOptions { send_depth: 64, pieces: 2, inline_bytes: 64 };
const ALL: Access = Access { local_write: true, remote_read: true, remote_write: true, relaxed_ordering: false };

struct Side {
    context: Arc<Context>,
    domain: Arc<Domain>,
    queue: Arc<CompletionQueue>,
    gid: (u8, Gid),
    memory: &'static mut [u8],
    region: Region,
}

impl Side {
    fn new(nth: usize, bytes: usize) -> Side {
        let found = devices(Library::load().unwrap()).unwrap();
        let context = Context::open(&found[nth]).unwrap();
        let domain = Domain::new(&context).unwrap();
        let queue = CompletionQueue::new(&context, 256).unwrap();
        let port = context.port(1).unwrap();
        assert_eq!(port.state, PortState::Active);
        let mut gids = (0..port.gids).map(|index| (index as u8, context.gid(1, index).unwrap()));
        let gid = gids.rfind(|(_, gid)| gid.address().to_ipv4_mapped().is_some()).expect("of version 4");
        let memory = vec![0_u8; bytes].leak();
        // SAFETY: leaked; tests look at it only while nothing is under way.
        let range = unsafe { ForeignRange::new(memory.as_mut_ptr().expose_provenance(), bytes) };
        let region = Region::register(&domain, range, ALL, None).unwrap();
        Side { context, domain, queue, gid, memory, region }
    }

    fn queue_pair(&self) -> QueuePair {
        QueuePair::new(&self.domain, &self.queue, OPTIONS).unwrap()
    }

    fn connect(&self, own: &QueuePair, peer: u32, to: Gid) {
        let mtu = self.context.port(1).unwrap().mtu;
        let connection = Connection {
            port: 1,
            gid_index: self.gid.0,
            partition: 0,
            peer_gid: to,
            peer_lid: 0,
            peer_queue_pair: peer,
            mtu,
            first_packets: (5, 5),
            reads: (16, 16),
            traffic: (0, 0),
            timeout: 14,
            retries: 6,
        };
        own.connect(&connection).unwrap();
    }

    fn remote(&self, offset: usize) -> Remote {
        Remote { addr: (self.region.range().addr() + offset) as u64, key: self.region.remote_key() }
    }

    fn post(&self, own: &QueuePair, operation: Operation, at: usize, len: usize, remote: Remote) {
        let piece = self.region.piece(at, len).unwrap();
        let mut chain = Chain::new();
        let local = Local::Pieces(std::slice::from_ref(&piece));
        chain.push(Request { id: 7, operation, local, remote, fenced: false, signaled: true });
        own.post(&mut chain).unwrap();
        assert!(chain.is_empty());
    }

    fn done(&self) -> Status {
        let mut room = Completions::with_room(4);
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            if let [first, ..] = self.queue.poll(&mut room).unwrap() {
                return first.status();
            }
            assert!(Instant::now() < end, "no completion");
        }
    }
}

fn pair(here: &Side, there: &Side) -> (QueuePair, QueuePair) {
    let (own, peer) = (here.queue_pair(), there.queue_pair());
    there.connect(&peer, own.number(), here.gid.1);
    here.connect(&own, peer.number(), there.gid.1);
    (own, peer)
}

#[test]
fn every_byte_of_every_size_arrives_both_ways() {
    let fake = FakeVerbs::start(2);
    let (here, there) = (Side::new(0, 1 << 20), Side::new(1, 1 << 20));
    let (own, _peer) = pair(&here, &there);
    for (nth, len) in [0, 1, 7, 8, 63, 65, 4_095, 4_097, 65_537, 900_001].into_iter().enumerate() {
        let at = 13 * nth + 1;
        let bytes: Vec<u8> = (0..len).map(|place| (place * 31 + nth * 7) as u8).collect();
        write(&here, at, &bytes);
        here.post(&own, Operation::Write, at, len, there.remote(at));
        assert_eq!(here.done(), Status::SUCCESS);
        // A READ behind it sees it, whatever was still on its way to memory.
        write(&here, at, &vec![0; len]);
        here.post(&own, Operation::Read, at, len, there.remote(at));
        assert_eq!(here.done(), Status::SUCCESS);
        assert!(read(&here, at, len) == bytes, "{len} bytes came back otherwise (seed {})", fake.seed());
        assert!(read(&there, at, len) == bytes, "{len} bytes arrived otherwise (seed {})", fake.seed());
    }
    let mut chain = Chain::new();
    let inline = b"taken along";
    let remote = there.remote(0);
    let request = Request {
        id: 1,
        operation: Operation::Write,
        local: Local::Inline(inline),
        remote,
        fenced: false,
        signaled: false,
    };
    chain.push(request);
    let parts = [here.region.piece(100, 5).unwrap(), here.region.piece(200, 6).unwrap()];
    let read_back = Request { operation: Operation::Read, local: Local::Pieces(&parts), signaled: true, ..request };
    chain.push(read_back);
    own.post(&mut chain).unwrap();
    assert_eq!(here.done(), Status::SUCCESS);
    assert_eq!((read(&here, 100, 5), read(&here, 200, 6)), (inline[..5].to_vec(), inline[5..].to_vec()));
}

#[test]
fn what_a_peer_does_not_allow_is_refused_and_told_at_both_ends() {
    let _fake = FakeVerbs::start(2);
    let (here, there) = (Side::new(0, 4_096), Side::new(1, 4_096));
    let (own, peer) = pair(&here, &there);
    let wrong = Remote { key: there.region.remote_key() ^ 1, ..there.remote(0) };
    here.post(&own, Operation::Write, 0, 64, wrong);
    assert_eq!(here.done(), Status::REMOTE_ACCESS);
    assert!(own.has_failed().unwrap() && read(&there, 0, 64) == [0; 64]);
    let event = wait_for(|| there.context.next_event().unwrap());
    assert_eq!((event.kind, event.subject), (EventKind::PeerRefused, Subject::QueuePair(peer.number())));
    here.post(&own, Operation::Write, 0, 64, there.remote(0));
    assert_eq!(here.done(), Status::FLUSHED);
    // Its events are acknowledged, so that nothing waits.
    peer.destroy().unwrap();
}

#[test]
fn a_notice_comes_where_it_was_asked_for() {
    let _fake = FakeVerbs::start(2);
    let (here, there) = (Side::new(0, 4_096), Side::new(1, 4_096));
    let (own, _peer) = pair(&here, &there);
    here.queue.arm().unwrap();
    here.post(&own, Operation::Write, 0, 64, there.remote(0));
    let notices = wait_for(|| Some(here.queue.take_notices().unwrap()).filter(|count| *count > 0));
    assert_eq!((notices, here.done()), (1, Status::SUCCESS));
    here.post(&own, Operation::Write, 0, 64, there.remote(0));
    assert_eq!((here.done(), here.queue.take_notices().unwrap()), (Status::SUCCESS, 0));
}

#[test]
fn refusals_of_the_library_name_the_call_and_the_device() {
    let fake = FakeVerbs::start(1);
    let here = Side::new(0, 4_096);
    for (verb, named) in [("reg_mr", "ibv_reg_mr"), ("create_qp", "ibv_create_qp"), ("create_cq", "ibv_create_cq")] {
        fake.tell(&format!("fail {verb} 12 1"));
        let error = match verb {
            "reg_mr" => Region::register(&here.domain, here.region.range(), ALL, None).unwrap_err(),
            "create_qp" => QueuePair::new(&here.domain, &here.queue, OPTIONS).unwrap_err(),
            _ => CompletionQueue::new(&here.context, 16).unwrap_err(),
        };
        let device = here.context.device().name().to_owned();
        assert_eq!(error, VerbsError::Refused { verb: named, device, errno: 12 });
    }
    fake.tell("fail dereg_mr 16 1");
    let other = Region::register(&here.domain, here.region.range(), ALL, None).unwrap();
    let (other, error) = other.give_up().unwrap_err();
    assert_eq!(error.errno(), Some(16));
    other.give_up().unwrap();
}

#[test]
fn nothing_is_left_at_the_device_when_its_owners_are_gone() {
    let fake = FakeVerbs::start(2);
    {
        let (here, there) = (Side::new(0, 4_096), Side::new(1, 4_096));
        let (own, _peer) = pair(&here, &there);
        here.post(&own, Operation::Write, 0, 64, there.remote(0));
        assert_eq!(here.done(), Status::SUCCESS);
        assert!(fake.ask("count")[0].contains("contexts=1 pds=1 mrs=1 channels=1 cqs=1 qps=1"));
    }
    for line in fake.ask("count") {
        assert!(line.split('=').skip(1).all(|count| count.starts_with('0')), "{line}");
    }
}

fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "it never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn write(side: &Side, at: usize, bytes: &[u8]) {
    for (nth, byte) in bytes.iter().enumerate() {
        // SAFETY: inside of the leaked memory.
        unsafe { side.memory.as_ptr().cast_mut().add(at + nth).write_volatile(*byte) };
    }
}

fn read(side: &Side, at: usize, len: usize) -> Vec<u8> {
    // SAFETY: inside of the leaked memory.
    (at..at + len).map(|place| unsafe { side.memory.as_ptr().add(place).read_volatile() }).collect()
}
