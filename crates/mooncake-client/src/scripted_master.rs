//! For tests: a master over loopback that says what a test has it say, a store of it, and memory that is lent.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mooncake_ids::SegmentUuid;
use mooncake_memory::{SegmentMemory, SegmentOptions};
use mooncake_os::ProcessIdentity;
use mooncake_segment::{Epoch, SegmentServer, ServerOptions};
use mooncake_wire::message::{
    AnchorDown, AnchorUp, AttachCall, Beat, Done, Endpoint, Hello, HelloReply, LogPosition, MountReply, Pong, Reply,
    Request, Segment, SegmentsReply, TakeEpoch, anchor_down, anchor_up, hello, reply, request,
};
use mooncake_wire::{CONTROL_PREFACE, FEATURES, encode_frame};
use parking_lot::Mutex;
use prost::Message;

use crate::anchor::{self, StoreContext};
use crate::discovery::listen_address::Advertised;
use crate::discovery::masters::MasterAddress;
use crate::machine::session::Identity;
use crate::options::StoreOptions;
use crate::process::wire_process;
use crate::segments::directory::Directory;
use crate::segments::links::LinkSet;
use crate::segments::owner::{Backing, Ownership, SegmentOwner};
use crate::segments::owner_events::{OwnerEvents, Reporter};
use crate::session::control::Control;
use crate::session::opening::{self, Opened};
use crate::store::Store;

/// Longest wait for what is to come.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// Waits until something is so.
#[track_caller]
pub(crate) fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A connection to this master that is to be an anchor.
pub(crate) struct Caller {
    pub stream: TcpStream,
    pub hello: Hello,
}

impl Caller {
    pub fn say(&mut self, message: &impl Message) {
        self.stream.write_all(&frame(message)).unwrap();
    }

    pub fn tell(&mut self, body: anchor_down::Body) {
        self.say(&AnchorDown { body: Some(body) });
    }

    pub fn pong(&mut self) {
        self.tell(anchor_down::Body::Pong(Pong::default()));
    }

    pub fn ask(&mut self, epoch: Epoch) {
        self.tell(take_epoch(epoch));
    }

    /// What comes next besides beats. `None`: the store hangs up.
    pub fn hear(&mut self) -> Option<anchor_up::Body> {
        loop {
            match receive::<AnchorUp>(&mut self.stream)?.body? {
                anchor_up::Body::Beat(_) => {}
                other => return Some(other),
            }
        }
    }

    /// The next beat.
    pub fn beat(&mut self) -> Beat {
        loop {
            let message: AnchorUp = receive(&mut self.stream).expect("the store says nothing more");
            if let Some(anchor_up::Body::Beat(beat)) = message.body {
                return beat;
            }
        }
    }
}

pub(crate) fn take_epoch(epoch: Epoch) -> anchor_down::Body {
    anchor_down::Body::TakeEpoch(TakeEpoch { epoch: epoch.number.into(), epoch_id: epoch.id })
}

pub(crate) fn frame(message: &impl Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_frame(message, &mut bytes);
    bytes
}

/// `None`: the peer hangs up.
fn receive<M: Message + Default>(stream: &mut TcpStream) -> Option<M> {
    let mut length = [0; 4];
    read(stream, &mut length)?;
    let mut body = vec![0; u32::from_le_bytes(length) as usize];
    read(stream, &mut body)?;
    Some(M::decode(&body[..]).unwrap())
}

fn read(stream: &mut TcpStream, bytes: &mut [u8]) -> Option<()> {
    let outcome = stream.read_exact(bytes);
    let is_late = outcome.as_ref().is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock));
    assert!(!is_late, "nothing comes, and no end either");
    outcome.ok()
}

pub(crate) fn hello_reply(session: u64) -> HelloReply {
    HelloReply {
        session,
        secret: session,
        features: FEATURES,
        instance: vec![1; 16].into(),
        position: Some(LogPosition { log_id: 1, epoch: 1, lsn: 1, epoch_id: 0 }),
        ..HelloReply::default()
    }
}

/// This body as the answer to a request.
pub(crate) fn reply_to(request: &Request, body: reply::Body) -> Reply {
    Reply { id: request.id, position: hello_reply(0).position, body: Some(body) }
}

/// What a master says that has one segment, and nobody behind it.
pub(crate) fn usual(request: &Request) -> Reply {
    let body = match &request.body {
        Some(request::Body::Mount(_)) => reply::Body::Mount(MountReply { number: 1 }),
        Some(request::Body::Segments(_)) => {
            let uuid = vec![1; 16].into();
            let segment = Segment { number: 1, uuid, endpoint: Some(Endpoint::default()), ..Segment::default() };
            reply::Body::Segments(SegmentsReply { segments: vec![segment] })
        }
        _ => reply::Body::Done(Done {}),
    };
    reply_to(request, body)
}

/// What a master does with a request. `None`: it hangs up.
type Script = Arc<dyn Fn(&Request) -> Option<Reply> + Send + Sync>;

struct Calls {
    script: Mutex<Script>,
    /// To those who attach.
    hello: Mutex<HelloReply>,
    asked: Mutex<Vec<request::Body>>,
    /// Of the call connections that are open.
    streams: Mutex<Vec<TcpStream>>,
    /// Call connections that have been answered, and those of them that are open.
    attached: AtomicUsize,
    open: AtomicUsize,
}

/// Gives a test each connection that is to be an anchor, and does what calls ask for.
pub(crate) struct Master {
    pub address: String,
    callers: Mutex<Receiver<Caller>>,
    calls: Arc<Calls>,
}

impl Master {
    pub fn start() -> Master {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (found, callers) = mpsc::channel();
        let calls = Arc::new(Calls {
            script: Mutex::new(Arc::new(|request| Some(usual(request)))),
            hello: Mutex::new(hello_reply(7)),
            asked: Mutex::default(),
            streams: Mutex::default(),
            attached: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
        });
        let inside = calls.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                let mut preface = CONTROL_PREFACE;
                let Ok(()) = stream.read_exact(&mut preface) else { continue };
                let Some(hello) = receive::<Hello>(&mut stream) else { continue };
                if let Some(hello::Role::Attach(AttachCall { .. })) = hello.role {
                    let calls = inside.clone();
                    stream.set_read_timeout(None).unwrap();
                    std::thread::spawn(move || calls.reply(stream));
                } else if found.send(Caller { stream, hello }).is_err() {
                    return;
                }
            }
        });
        Master { address, callers: Mutex::new(callers), calls }
    }

    /// From now on requests are answered so.
    pub fn answers(&self, script: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static) {
        *self.calls.script.lock() = Arc::new(script);
    }

    /// From now on those who attach are greeted so.
    pub fn greets(&self, hello: HelloReply) {
        *self.calls.hello.lock() = hello;
    }

    /// What it has been asked by now.
    pub fn asked(&self) -> Vec<request::Body> {
        self.calls.asked.lock().clone()
    }

    /// Call connections that there have been.
    pub fn attached(&self) -> usize {
        self.calls.attached.load(Ordering::SeqCst)
    }

    /// Call connections that there are.
    pub fn open(&self) -> usize {
        self.calls.open.load(Ordering::SeqCst)
    }

    /// Closes all call connections.
    pub fn hang_up(&self) {
        for stream in self.calls.streams.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// The next connection that is to be an anchor.
    pub fn next(&self) -> Caller {
        self.callers.lock().recv_timeout(TIMEOUT).unwrap()
    }

    /// Sets a store up that gives no memory.
    pub fn store(&self, change: impl FnOnce(&mut StoreOptions)) -> (Store, Caller) {
        let mut options = StoreOptions::new("127.0.0.1", &self.address);
        options.global_segment_size = 0;
        change(&mut options);
        let connecting = std::thread::spawn(|| Store::connect(options).unwrap());
        let mut caller = self.next();
        caller.say(&hello_reply(7));
        (connecting.join().unwrap(), caller)
    }
}

impl Calls {
    fn reply(&self, mut stream: TcpStream) {
        self.streams.lock().push(stream.try_clone().unwrap());
        self.attached.fetch_add(1, Ordering::SeqCst);
        self.open.fetch_add(1, Ordering::SeqCst);
        let mut bytes = frame(&*self.hello.lock());
        while stream.write_all(&bytes).is_ok() {
            let Some(request) = receive::<Request>(&mut stream) else { break };
            self.asked.lock().extend(request.body.clone());
            let script = self.script.lock().clone();
            let Some(reply) = script(&request) else { break };
            bytes = frame(&reply);
        }
        let _ = stream.shutdown(Shutdown::Both);
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What a store has around its anchor's thread, with that thread or without it.
pub(crate) struct Client {
    pub shared: Arc<StoreContext>,
    pub master: Master,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    pub fn connect() -> (Client, Caller) {
        let (mut client, identity, opened, caller) = Client::without_thread();
        client.thread = Some(anchor::start(client.shared.clone(), identity, opened).unwrap());
        (client, caller)
    }

    pub fn without_thread() -> (Client, Identity, Opened, Caller) {
        let master = Master::start();
        let masters = MasterAddress::parse(&master.address).unwrap();
        let process = ProcessIdentity::current().unwrap();
        let identity = opening::identity("host:1", &process, 3);
        let opening = {
            let (masters, identity) = (masters.clone(), identity.clone());
            std::thread::spawn(move || opening::open_first(&masters, &identity, &process, &|| false).unwrap())
        };
        let mut caller = master.next();
        caller.say(&hello_reply(7));
        let (opened, session) = opening.join().unwrap();
        let options = StoreOptions::new("127.0.0.1", &master.address);
        let control = Arc::new(Control::new(&options, masters, session, opened.position(), String::new()).unwrap());
        let (directory, owner) = (Arc::<Directory>::default(), OnceLock::new());
        let links = LinkSet::new(&options, 3, control.clone(), directory.clone()).unwrap();
        let shared = Arc::new(StoreContext {
            control,
            links,
            directory,
            owner,
            tiers: crate::tier::StoreTiers::default(),
            put_sessions: Mutex::default(),
            name: "host:1".into(),
            process,
        });
        (Client { shared, master, thread: None }, identity, opened, caller)
    }

    pub fn with_owner() -> (Client, Caller) {
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
            kept: None,
        };
        let owner = SegmentOwner::prepare(client.shared.control.clone(), ownership).unwrap();
        assert!(client.shared.owner.set(owner).is_ok());
        (client, caller)
    }

    pub fn owner(&self) -> &Arc<SegmentOwner> {
        self.shared.owner.get().unwrap()
    }

    pub fn mount(&self) -> SegmentUuid {
        self.owner().mount(Backing::Memory(1 << 20)).unwrap().0.0
    }

    pub fn holds(&self, uuid: SegmentUuid) -> bool {
        self.owner().held().iter().any(|(held, _)| *held == uuid)
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

/// Memory that is lent to the pool as segment 1.
pub(crate) struct Lender {
    pub memory: Arc<SegmentMemory>,
    server: Arc<SegmentServer>,
}

impl Lender {
    pub fn start() -> Lender {
        let events = Reporter(OwnerEvents::new());
        let options = ServerOptions::new([127, 0, 0, 1].into(), 0, 1);
        let server = SegmentServer::start(options, Box::new(events)).unwrap();
        let memory = Arc::new(SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap());
        server.add(memory.clone(), 1);
        server.mounted(memory.uuid(), Epoch::numbered(1));
        Lender { memory, server }
    }

    pub fn segment(&self) -> Segment {
        let process = ProcessIdentity::current().unwrap();
        let endpoint = Endpoint {
            boot_id: process.boot_id.to_vec().into(),
            unix_socket: self.server.unix_name().to_owned(),
            tcp: vec![self.server.tcp_addr().to_string()],
            access_key: 1,
            process: Some(wire_process(&process)),
        };
        Segment {
            number: 1,
            uuid: self.memory.uuid().0.to_vec().into(),
            bytes: self.memory.bytes(),
            endpoint: Some(endpoint),
            ..Segment::default()
        }
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        self.server.shutdown();
    }
}
