//! The thread over sockets, with a master that says what a test wants it to say.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;

use mooncake_transfer::{Reign, SegmentServer, ServerOptions};
use mooncake_wire::message::{
    AttachCall, Done, Endpoint, EpochTaken, FenceDone, Hello, HelloReply, MountReply, Refusal, Reply, Request, Segment,
    SegmentsReply, TakeEpoch, anchor_down, anchor_up, refusal, reply, request,
};
use mooncake_wire::{CONTROL_PREFACE, FEATURES, encode_frame};
use prost::Message;

use super::*;
use crate::host::Advertised;
use crate::machine::numbering::Numbering;
use crate::master_address::MasterAddress;
use crate::opening;
use crate::options::StoreOptions;
use crate::owner_events::{OwnerEvents, Reporter};
use crate::segment_owner::{Backing, Ownership};

const PATIENCE: Duration = Duration::from_secs(5);
const A2: Reign = Reign { epoch: 2, id: 7 };
const B2: Reign = Reign { epoch: 2, id: 8 };

/// A connection to this master that is to be an anchor.
struct Caller {
    stream: TcpStream,
    hello: Hello,
}

impl Caller {
    fn say(&mut self, message: &impl Message) {
        let mut bytes = Vec::new();
        encode_frame(message, &mut bytes);
        self.stream.write_all(&bytes).unwrap();
    }

    fn ask(&mut self, reign: Reign) {
        let take = TakeEpoch { epoch: reign.epoch.into(), reign: reign.id };
        self.say(&AnchorDown { body: Some(anchor_down::Body::TakeEpoch(take)) });
    }

    /// What comes next besides beats.
    fn hear(&mut self) -> Option<anchor_up::Body> {
        loop {
            match receive::<AnchorUp>(&mut self.stream)?.body? {
                anchor_up::Body::Beat(_) => {}
                other => return Some(other),
            }
        }
    }
}

fn receive<M: Message + Default>(stream: &mut TcpStream) -> Option<M> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut body = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut body).ok()?;
    Some(M::decode(&body[..]).unwrap())
}

fn hello_reply(session: u64) -> HelloReply {
    HelloReply {
        session,
        secret: session,
        features: FEATURES,
        instance: vec![1; 16].into(),
        position: Some(LogPosition { log_id: 1, epoch: 1, lsn: 1, reign: 0 }),
        ..HelloReply::default()
    }
}

/// Gives the test each connection that is to be an anchor, and does what calls ask for.
fn master() -> (String, Receiver<Caller>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (found, callers) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut preface = CONTROL_PREFACE;
            let Ok(()) = stream.read_exact(&mut preface) else { continue };
            let Some(hello) = receive::<Hello>(&mut stream) else { continue };
            if let Some(hello::Role::Attach(AttachCall { session, .. })) = hello.role {
                std::thread::spawn(move || answer_calls(stream, session));
            } else if found.send(Caller { stream, hello }).is_err() {
                return;
            }
        }
    });
    (address, callers)
}

fn answer_calls(mut stream: TcpStream, session: u64) {
    let mut bytes = Vec::new();
    encode_frame(&hello_reply(session), &mut bytes);
    while stream.write_all(&bytes).is_ok() {
        let Some(request) = receive::<Request>(&mut stream) else { return };
        let body = match request.body {
            Some(request::Body::Mount(_)) => reply::Body::Mount(MountReply { number: 1 }),
            Some(request::Body::Segments(_)) => {
                let uuid = vec![1; 16].into();
                let segment = Segment { number: 1, uuid, endpoint: Some(Endpoint::default()), ..Segment::default() };
                reply::Body::Segments(SegmentsReply { segments: vec![segment] })
            }
            _ => reply::Body::Done(Done {}),
        };
        let position = hello_reply(session).position;
        bytes.clear();
        encode_frame(&Reply { id: request.id, position, body: Some(body) }, &mut bytes);
    }
}

/// A store with its anchor's thread.
struct Client {
    shared: Arc<Shared>,
    callers: Receiver<Caller>,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    fn connect() -> (Client, Caller) {
        let (mut client, identity, opened, caller) = Client::without_thread();
        client.thread = Some(start(client.shared.clone(), identity, opened).unwrap());
        (client, caller)
    }

    fn without_thread() -> (Client, Identity, Opened, Caller) {
        let (address, callers) = master();
        let masters = MasterAddress::parse(&address).unwrap();
        let process = ProcessIdentity::current().unwrap();
        let identity = opening::identity("host:1", &process, 3);
        let opening = {
            let (masters, identity) = (masters.clone(), identity.clone());
            std::thread::spawn(move || opening::open_first(&masters, &identity, &process, &|| Ok(())).unwrap())
        };
        let mut caller = callers.recv_timeout(PATIENCE).unwrap();
        caller.say(&hello_reply(7));
        let (opened, session) = opening.join().unwrap();
        let options = StoreOptions::new("127.0.0.1", &address);
        let control = Arc::new(Control::new(&options, masters, session, opened.position()).unwrap());
        let links = LinkSet::new(&options, 3, control.clone()).unwrap();
        let (directory, owner) = (Directory::default(), OnceLock::new());
        let shared = Arc::new(Shared { control, links, directory, owner, name: "host:1".into(), process });
        (Client { shared, callers, thread: None }, identity, opened, caller)
    }

    fn with_owner() -> (Client, Caller) {
        let (client, caller) = Client::connect();
        let events = OwnerEvents::new();
        events.report_to(client.shared.control.clone());
        let options = ServerOptions::new([127, 0, 0, 1].into(), 0, 1);
        let server = SegmentServer::start(options, Box::new(Reporter(events))).unwrap();
        let ownership = Ownership {
            server,
            huge_pages: false,
            name: "host:1".into(),
            advertised: Advertised::Addresses(Vec::new()),
            process: client.shared.process,
        };
        let owner = SegmentOwner::prepare(client.shared.control.clone(), ownership).unwrap();
        assert!(client.shared.owner.set(owner).is_ok());
        (client, caller)
    }

    fn owner(&self) -> &SegmentOwner {
        self.shared.owner.get().unwrap()
    }

    fn mount(&self) -> Uuid {
        self.owner().mount(Backing::Memory(1 << 20)).unwrap().0.0
    }

    fn holds(&self, uuid: Uuid) -> bool {
        self.owner().held().iter().any(|(held, _)| *held == uuid)
    }

    /// The next connection that is to be an anchor.
    fn next(&self) -> Caller {
        self.callers.recv_timeout(PATIENCE).unwrap()
    }

    fn wait_for(&self, what: &str, mut is_so: impl FnMut(&Client) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < until, "{what}");
            std::thread::yield_now();
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.control.stop();
        let _ = self.thread.take().map(JoinHandle::join);
        if let Some(owner) = self.shared.owner.get() {
            owner.close();
        }
    }
}

#[test]
fn a_store_without_memory_says_at_once_that_it_obeys() {
    let (_client, mut caller) = Client::connect();
    caller.ask(A2);
    let taken = EpochTaken { epoch: 2, segments: Vec::new() };
    assert_eq!(caller.hear(), Some(anchor_up::Body::EpochTaken(taken)));
}

#[test]
fn an_owner_that_obeys_another_reign_of_an_epoch_has_the_store_say_hello_anew() {
    let (client, mut caller) = Client::with_owner();
    assert!(client.owner().take_epoch(B2), "another master asked for it");
    assert_eq!(caller.hear().map(|told| matches!(told, anchor_up::Body::EpochTaken(_))), Some(true));
    caller.ask(A2);
    assert_eq!(caller.hear(), None, "it hangs up");
    let highest = client.next().hello.highest.unwrap();
    assert_eq!((highest.epoch, highest.lsn), (2, u64::MAX));
}

#[test]
fn a_resumed_session_lists_what_is_held_and_replaces_what_the_master_does_not_know() {
    let (client, caller) = Client::with_owner();
    let (kept, gone) = (client.mount(), client.mount());
    drop(caller);
    let mut caller = client.next();
    let Some(hello::Role::Resume(resume)) = &caller.hello.role else { panic!("{:?}", caller.hello) };
    assert_eq!((resume.session, &resume.segments[..]), (7, &[kept.to_vec(), gone.to_vec()].map(Into::into)[..]));
    let gone_segments = vec![gone.to_vec().into()];
    caller.say(&HelloReply { gone_segments, instance: vec![2; 16].into(), ..hello_reply(7) });
    client.wait_for("another segment in its place", |client| {
        client.holds(kept) && !client.holds(gone) && client.owner().held().len() == 2
    });
    let session = client.shared.control.session();
    assert_eq!((session.id, session.secret, &session.instance[..]), (7, 7, &[2; 16][..]));
}

#[test]
fn another_session_begins_with_other_memory_and_without_the_segments_that_were_met() {
    let (client, caller) = Client::with_owner();
    let mounted = client.mount();
    let (control, directory) = (&client.shared.control, &client.shared.directory);
    let numbering = Numbering { log_id: 1, instance: [1; 16] };
    let extent = mooncake_wire::message::Extent { segment: 1, ..Default::default() };
    let replica = mooncake_wire::message::Replica { rid: 2, extents: vec![extent] };
    directory.meet(control, numbering, [&replica].into_iter()).unwrap();
    assert!(directory.find(numbering, 1).is_some());
    drop(caller);
    let refusal = Refusal { kind: refusal::Kind::UnknownSession.into(), reason: "no".into() };
    client.next().say(&HelloReply { refusal: Some(refusal), ..HelloReply::default() });
    let mut caller = client.next();
    assert!(matches!(caller.hello.role, Some(hello::Role::Open(_))), "{:?}", caller.hello);
    caller.say(&hello_reply(8));
    client.wait_for("other memory", |client| !client.holds(mounted) && client.owner().held().len() == 1);
    assert!(directory.find(numbering, 1).is_none());
    assert_eq!(control.session().id, 8);
}

#[test]
fn what_a_broken_connection_did_not_take_waits_for_the_next_one() {
    let (client, identity, opened, caller) = Client::without_thread();
    let control = &client.shared.control;
    let mut driver = Driver::new(client.shared.clone(), identity, opened);
    driver.tell();
    // With that beat unread the connection is reset.
    drop(caller);
    let done = anchor_up::Body::FenceDone(FenceDone { uuid: vec![1; 16].into(), rids: vec![2] });
    let waits = || control.decide(|parts| parts.up.clone());
    client.wait_for("an end of the connection", |_| {
        control.tell(done.clone());
        driver.tell();
        driver.connection.is_none()
    });
    assert_eq!(waits(), [AnchorUp { body: Some(done.clone()) }]);
    assert!(!driver.machine.is_connected());
}
