//! A master in this process, and a client that speaks the raw protocol.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mooncake_master::{LogFolder, Master, Settings, StartError, Wal, serve};
use mooncake_wire::message::{
    self, AnchorDown, AnchorUp, AttachCall, Hello, HelloReply, LogPosition, OpenSession, Reply, Request, ResumeSession,
    anchor_up, hello, put_slot, reply, request,
};
use mooncake_wire::{CONTROL_PREFACE, FRAME_BYTES_MAX, VERSION, encode_frame, pack_keys};
use prost::Message;
use tempfile::TempDir;

pub struct Running {
    runtime: tokio::runtime::Runtime,
    master: Option<Master>,
    pub rpc: SocketAddr,
    pub web: SocketAddr,
}

impl Running {
    pub fn start(settings: Settings) -> Running {
        Running::try_start(settings).expect("master starts")
    }

    pub fn try_start(settings: Settings) -> Result<Running, StartError> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("runtime");
        let master = runtime.block_on(serve(settings))?;
        let (rpc, web) = (master.rpc_address(), master.metrics_address());
        Ok(Running { runtime, master: Some(master), rpc, web })
    }

    pub fn stop(mut self) {
        self.runtime.block_on(self.master.take().expect("runs").shutdown());
    }

    /// Whether the master says that it cannot go on.
    pub fn has_failed(&self) -> bool {
        let failed = self.master.as_ref().expect("runs").failed();
        self.runtime.block_on(async { tokio::time::timeout(Duration::from_millis(50), failed).await.is_ok() })
    }

    /// One page of the HTTP server: status line, head and body.
    pub fn http(&self, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.web).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let body = if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            unchunk(body)
        } else {
            body.to_owned()
        };
        (head.to_owned(), body)
    }
}

fn unchunk(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        out.push_str(&rest[..length]);
        body = &rest[length + 2..];
        if length == 0 {
            break;
        }
    }
    out
}

/// A folder, which is gone with its owner where that made it.
pub struct Scratch(pub PathBuf, pub Option<TempDir>);

impl Scratch {
    pub fn new() -> Scratch {
        // Where a busy disk holds up no log, if there is such a place.
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = tempfile::Builder::new().prefix("mooncake-master-").tempdir_in(parent).unwrap();
        std::fs::create_dir(folder.path().join("witness")).unwrap();
        Scratch(folder.path().to_owned(), Some(folder))
    }

    pub fn settings(&self) -> Settings {
        Settings {
            wal: Wal::On,
            log_folder: LogFolder::Given(self.0.join("log")),
            witness_folder: self.0.join("witness"),
            ..Settings::default()
        }
    }

    pub fn current(&self) -> PathBuf {
        self.0.join("log/current")
    }

    /// Log files, oldest first.
    pub fn log_files(&self) -> Vec<PathBuf> {
        files(&self.current(), "wal")
    }

    pub fn snapshots(&self) -> Vec<PathBuf> {
        files(&self.current(), "snap")
    }

    /// Logs that were renamed away, oldest first.
    pub fn away(&self) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> =
            std::fs::read_dir(self.0.join("log")).unwrap().map(|e| e.unwrap().path()).collect();
        found.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with("away-"));
        found.sort();
        found
    }
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|e| e == extension));
    found.sort();
    found
}

pub fn write_frame<M: Message>(stream: &mut TcpStream, message: &M) -> std::io::Result<()> {
    let mut out = Vec::new();
    encode_frame(message, &mut out);
    stream.write_all(&out)
}

pub fn read_frame<M: Message + Default>(stream: &mut TcpStream, limit: usize) -> std::io::Result<M> {
    let mut header = [0; 4];
    stream.read_exact(&mut header)?;
    let length = u32::from_le_bytes(header) as usize;
    assert!(length <= limit, "a frame of {length} bytes");
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(M::decode(&body[..])?)
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

pub fn greet(address: SocketAddr, role: hello::Role, highest: Option<LogPosition>) -> (TcpStream, HelloReply) {
    let mut stream = connect(address);
    stream.write_all(&CONTROL_PREFACE).unwrap();
    let hello = Hello { version_min: VERSION, version_max: VERSION, highest, role: Some(role), ..Hello::default() };
    write_frame(&mut stream, &hello).unwrap();
    let reply = read_frame(&mut stream, FRAME_BYTES_MAX).unwrap();
    (stream, reply)
}

pub fn process() -> message::ProcessIdentity {
    let own = mooncake_os::ProcessIdentity::current().unwrap();
    message::ProcessIdentity {
        boot_id: own.boot_id.to_vec().into(),
        pid: own.pid,
        start_time: own.start_time,
        pid_namespace: own.pid_namespace,
        mark: 0,
    }
}

pub struct Client {
    pub anchor: TcpStream,
    pub call: TcpStream,
    pub session: u64,
    pub secret: u64,
    pub sequence: u64,
    pub hello: HelloReply,
    pub highest: Option<LogPosition>,
    pub segments: Vec<Vec<u8>>,
    beats: u64,
}

impl Client {
    pub fn open(address: SocketAddr) -> Client {
        Client::open_as(address, process(), None)
    }

    pub fn open_as(address: SocketAddr, process: message::ProcessIdentity, highest: Option<LogPosition>) -> Client {
        let open = OpenSession { host_name: "test:1".to_owned(), process: Some(process), claim: None };
        let (anchor, hello) = greet(address, hello::Role::Open(open), highest);
        assert_eq!(hello.refusal, None);
        let (session, secret) = (hello.session, hello.secret);
        let call = attach(address, session, secret);
        let highest = hello.position;
        Client { anchor, call, session, secret, sequence: 0, hello, highest, segments: Vec::new(), beats: 0 }
    }

    /// Comes back after the master or the connection was away.
    pub fn resume(&mut self, address: SocketAddr) -> HelloReply {
        self.resume_with(address, self.highest)
    }

    pub fn resume_with(&mut self, address: SocketAddr, highest: Option<LogPosition>) -> HelloReply {
        self.resume_as(address, highest, Vec::new())
    }

    /// Comes back with views.
    pub fn resume_with_views(&mut self, address: SocketAddr, pins: Vec<u64>) -> HelloReply {
        self.resume_as(address, self.highest, pins)
    }

    fn resume_as(&mut self, address: SocketAddr, highest: Option<LogPosition>, pins: Vec<u64>) -> HelloReply {
        let role = hello::Role::Resume(ResumeSession {
            session: self.session,
            secret: self.secret,
            process: Some(process()),
            host_name: "test:1".to_owned(),
            segments: self.segments.iter().map(|uuid| uuid.clone().into()).collect(),
            pins,
            epoch_taken: highest.map_or(0, |h| h.epoch),
            ..ResumeSession::default()
        });
        let (anchor, reply) = greet(address, role, highest);
        if reply.refusal.is_none() {
            self.anchor = anchor;
            self.call = attach(address, self.session, self.secret);
        }
        reply
    }

    /// A client that a log knows already, which comes back as this process, with these segments and pins.
    pub fn returned(
        address: SocketAddr,
        process: message::ProcessIdentity,
        (session, secret): (u64, u64),
        segments: Vec<Vec<u8>>,
        pins: Vec<u64>,
    ) -> (Client, HelloReply) {
        let role = hello::Role::Resume(ResumeSession {
            session,
            secret,
            process: Some(process),
            host_name: "test:1".to_owned(),
            segments: segments.iter().map(|uuid| uuid.clone().into()).collect(),
            pins,
            epoch_taken: u32::from(!segments.is_empty()),
            ..ResumeSession::default()
        });
        let (anchor, hello) = greet(address, role, None);
        assert_eq!(hello.refusal, None);
        let (call, highest) = (attach(address, session, secret), hello.position);
        let client =
            Client { anchor, call, session, secret, sequence: 0, hello: hello.clone(), highest, segments, beats: 0 };
        (client, hello)
    }

    pub fn call(&mut self, body: request::Body) -> reply::Body {
        self.call_as(0, body)
    }

    pub fn mutate(&mut self, body: request::Body) -> reply::Body {
        self.sequence += 1;
        self.call_as(self.sequence, body)
    }

    pub fn call_as(&mut self, sequence: u64, body: request::Body) -> reply::Body {
        let request = Request { id: 7, sequence, answered_below: 0, body: Some(body), ..Request::default() };
        write_frame(&mut self.call, &request).unwrap();
        let reply: Reply = read_frame(&mut self.call, FRAME_BYTES_MAX).unwrap();
        assert_eq!(reply.id, 7);
        self.highest = reply.position;
        reply.body.expect("a body")
    }

    pub fn mount(&mut self, bytes: u64) -> u32 {
        // Sessions of an epoch begin at a random number: all of it tells two of them apart.
        let uuid = [self.session.to_le_bytes(), (self.segments.len() as u64).to_le_bytes()].concat();
        self.segments.push(uuid.clone());
        match self.mutate(mount_request(uuid, bytes)) {
            reply::Body::Mount(mounted) => mounted.number,
            other => panic!("{other:?}"),
        }
    }

    /// Reserves, and returns the rids.
    pub fn start(&mut self, entries: &[(&str, u64)]) -> Vec<u64> {
        match self.mutate(put_start(entries)) {
            reply::Body::PutStart(started) => started
                .slots
                .iter()
                .map(|slot| {
                    assert_eq!(slot.kind(), put_slot::Kind::Placed, "{slot:?}");
                    slot.replicas[0].rid
                })
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    pub fn end(&mut self, rids: &[u64]) -> Vec<i32> {
        match self.mutate(put_end(rids)) {
            reply::Body::PutEnd(ended) => ended.outcomes,
            other => panic!("{other:?}"),
        }
    }

    pub fn put(&mut self, key: &str, size: u64) -> u64 {
        let rids = self.start(&[(key, size)]);
        assert_eq!(self.end(&rids), [message::put_end_reply::Outcome::Committed as i32]);
        rids[0]
    }

    pub fn exists(&mut self, key: &str) -> bool {
        let ask = message::Exists { keys: Some(pack_keys(&[key])), sizes: false };
        match self.call(request::Body::Exists(ask)) {
            reply::Body::Exists(found) => found.found[0] == 1,
            other => panic!("{other:?}"),
        }
    }

    /// Size of an object, and its first replica.
    pub fn lookup(&mut self, key: &str) -> Option<(u64, u64)> {
        match self.call(request::Body::Lookup(message::Lookup { keys: Some(pack_keys(&[key])) })) {
            reply::Body::Lookup(found) => {
                let object = &found.objects[0];
                object.replicas.first().map(|replica| (object.size, replica.rid))
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn beat(&mut self) -> AnchorDown {
        self.beats += 1;
        let beat = message::Beat { number: self.beats, ..message::Beat::default() };
        self.up(anchor_up::Body::Beat(beat));
        self.down()
    }

    pub fn up(&mut self, body: anchor_up::Body) {
        write_frame(&mut self.anchor, &AnchorUp { body: Some(body) }).unwrap();
    }

    pub fn down(&mut self) -> AnchorDown {
        read_frame(&mut self.anchor, FRAME_BYTES_MAX).unwrap()
    }

    /// Takes an epoch for all segments, as a client does when it is told to.
    pub fn take_epoch(&mut self, epoch: u32) {
        let segments = self.segments.iter().map(|uuid| uuid.clone().into()).collect();
        self.up(anchor_up::Body::EpochTaken(message::EpochTaken { epoch, segments }));
    }
}

pub fn attach(address: SocketAddr, session: u64, secret: u64) -> TcpStream {
    let (stream, reply) = greet(address, hello::Role::Attach(AttachCall { session, secret }), None);
    assert_eq!(reply.refusal, None);
    stream
}

pub fn mount_request(uuid: Vec<u8>, bytes: u64) -> request::Body {
    let endpoint = message::Endpoint {
        boot_id: process().boot_id,
        tcp: vec!["127.0.0.1:9".to_owned()],
        process: Some(process()),
        ..message::Endpoint::default()
    };
    let segment = message::Segment {
        uuid: uuid.into(),
        name: "test:1".to_owned(),
        bytes,
        endpoint: Some(endpoint),
        ..message::Segment::default()
    };
    request::Body::Mount(message::Mount { segment: Some(segment), populated: bytes })
}

pub fn put_start(entries: &[(&str, u64)]) -> request::Body {
    let keys: Vec<&str> = entries.iter().map(|(key, _)| *key).collect();
    let sizes = entries.iter().map(|(_, size)| *size).collect();
    request::Body::PutStart(message::PutStart { keys: Some(pack_keys(&keys)), sizes, ..message::PutStart::default() })
}

pub fn put_end(rids: &[u64]) -> request::Body {
    let ended = rids.iter().map(|rid| message::Ended {
        replicas: vec![message::ReplicaOutcome { rid: *rid, good: true }],
        crc32c: 1,
        stays: false,
    });
    request::Body::PutEnd(message::PutEnd { ended: ended.collect() })
}

pub fn eventually(what: &str, mut test: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !test() {
        assert!(start.elapsed() < Duration::from_secs(10), "not within 10 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
