//! An owner, its peers, and a second process to be stopped and killed.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use mooncake_ids::{Rid, SegmentUuid};
use mooncake_memory::{Expect, SegmentMemory, SegmentOptions};
use mooncake_os::{Deadline, ProcessIdentity, boot_id};
use mooncake_segment::machine::Tenure;
use mooncake_segment::{
    Epoch, EpochQuestion, Link, LinkError, LinkEvents, LinkOptions, Links, Path, Paths, ProcessGone, SegmentAddress,
    SegmentServer, ServerEvents, ServerOptions,
};
use mooncake_test_support::child_process::{asked, say};
use mooncake_test_support::{ChildProcess, child_process};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub const MIB: u64 = 1 << 20;
pub const OWNER: u64 = 1;
pub const WRITER: u64 = 2;
/// Of the master that names what is pinned, and of owners that know no other.
pub const FIRST: Epoch = Epoch::numbered(1);
const KEY: u64 = 0x0123_4567_89ab_cdef;

/// A rid of an epoch.
pub const fn rid(epoch: u64, counter: u64) -> Rid {
    Rid(epoch << 48 | counter << 1)
}

pub fn soon() -> Deadline<'static> {
    Deadline::at(Instant::now() + Duration::from_secs(20))
}

/// Returns once it holds, which must not take 5 s.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(5);
    while !holds() {
        assert!(Instant::now() < until, "not within 5 s: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a server reported.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    Fenced(Rid),
    EpochTaken(u16),
    ProcessGone(ProcessGone),
}

struct Report(Sender<Heard>);

impl ServerEvents for Report {
    fn fenced(&self, _: SegmentUuid, rid: Rid) {
        let _ = self.0.send(Heard::Fenced(rid));
    }
    fn epoch_taken(&self, epoch: u16, _: SegmentUuid) {
        let _ = self.0.send(Heard::EpochTaken(epoch));
    }
    fn process_gone(&self, gone: ProcessGone) {
        let _ = self.0.send(Heard::ProcessGone(gone));
    }
}

pub struct Owner {
    pub server: Arc<SegmentServer>,
    pub memory: Arc<SegmentMemory>,
    pub heard: Receiver<Heard>,
}

impl Owner {
    pub fn new(bytes: u64) -> Owner {
        Owner::with(bytes, ServerOptions::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0, OWNER))
    }

    pub fn with(bytes: u64, options: ServerOptions) -> Owner {
        Owner::of(SegmentMemory::create(bytes, SegmentOptions::default()).unwrap(), options)
    }

    pub fn of(memory: SegmentMemory, options: ServerOptions) -> Owner {
        let (sender, heard) = channel();
        let server = SegmentServer::start(options, Box::new(Report(sender))).unwrap();
        let memory = Arc::new(memory);
        server.add(memory.clone(), KEY);
        Owner { server, memory, heard }
    }

    /// Of memory that outlives its owners: fresh, or with the descriptors of a former one's.
    pub fn of_tenure(number: u32, taken: Epoch, former: Option<&SegmentMemory>) -> Owner {
        let memory = match former {
            None => SegmentMemory::create(MIB, SegmentOptions::default()).unwrap(),
            Some(former) => {
                let [data, control] =
                    [former.data_fd(), former.control_fd()].map(|fd| fd.try_clone_to_owned().unwrap());
                let expect = Expect { uuid: former.uuid(), bytes: former.bytes() };
                SegmentMemory::adopt(data, control, expect, MIB).unwrap()
            }
        };
        let (sender, heard) = channel();
        let options = ServerOptions::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0, OWNER);
        let server = SegmentServer::start(options, Box::new(Report(sender))).unwrap();
        let memory = Arc::new(memory);
        server.inherit(memory.clone(), KEY, Tenure { number, taken }).unwrap();
        Owner { server, memory, heard }
    }

    pub fn address(&self) -> SegmentAddress {
        SegmentAddress {
            uuid: self.memory.uuid(),
            bytes: self.memory.bytes(),
            name: "owner".into(),
            boot_id: boot_id().unwrap(),
            unix_socket: self.server.unix_name().into(),
            tcp: vec![self.server.tcp_addr().to_string()],
            access_key: KEY,
            process: None,
            tier_file_blocks: 0,
        }
    }

    /// Asked by a master that does not say which epoch it is in.
    pub fn take_epoch(&self, epoch: u16) -> Vec<SegmentUuid> {
        self.server.take_epoch(Epoch::numbered(epoch)).unwrap()
    }

    pub fn fence(&self, rid: Rid, offset: u64, len: u64) -> bool {
        self.server.fence(mooncake_segment::Fence {
            uuid: self.memory.uuid(),
            rid,
            offset,
            len,
            writer: WRITER,
            writer_done: false,
        })
    }

    /// The next report, or none within the time.
    pub fn hears_within(&self, ms: u64) -> Option<Heard> {
        self.heard.recv_timeout(Duration::from_millis(ms)).ok()
    }
}

/// What links reported.
#[derive(Debug)]
pub enum Noticed {
    OwnerGone(SegmentUuid),
    Epoch(EpochQuestion),
}

struct Notice(Sender<Noticed>);

impl LinkEvents for Notice {
    fn owner_gone(&self, uuid: SegmentUuid, _: Option<ProcessIdentity>) {
        let _ = self.0.send(Noticed::OwnerGone(uuid));
    }
    fn take_epoch(&self, question: EpochQuestion) {
        let _ = self.0.send(Noticed::Epoch(question));
    }
}

pub fn links(paths: Paths) -> (Links, Receiver<Noticed>) {
    links_with(LinkOptions { paths, ..LinkOptions::new(WRITER) })
}

pub fn links_with(options: LinkOptions) -> (Links, Receiver<Noticed>) {
    let (sender, noticed) = channel();
    (Links::new(options, Box::new(Notice(sender))).unwrap(), noticed)
}

/// What a connect to an owner ends with that is stopped once the connect waits for it, and goes on after `act`.
pub fn while_connecting(
    links: &Links,
    owner: &ChildProcess,
    address: &SegmentAddress,
    act: impl FnOnce(&ScopedJoinHandle<'_, Result<Arc<Link>, LinkError>>),
) -> Result<Arc<Link>, LinkError> {
    owner.stop();
    std::thread::scope(|scope| {
        let (waiting, waits) = channel();
        let connecting = scope.spawn(move || {
            let interrupted = || waiting.send(()).is_err();
            links.link(address, &Deadline { interrupted: &interrupted, ..soon() })
        });
        waits.recv().unwrap();
        act(&connecting);
        owner.go_on();
        connecting.join().unwrap()
    })
}

/// Bytes that differ between seeds and between places.
pub fn pattern(len: u64, seed: u8) -> Vec<u8> {
    let block: Vec<u8> = (0..10_007u64).map(|i| (i.wrapping_mul(31) as u8) ^ ((i >> 8) as u8) ^ seed).collect();
    let mut out = block.repeat((len as usize).div_ceil(block.len()));
    out.truncate(len as usize);
    out
}

// ----------------------------------------------------- a lane spoken by hand

fn seal(mut bytes: [u8; 64]) -> [u8; 64] {
    let crc = mooncake_memory::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// A lane that has been let in, for tests that stop in the middle of a request.
pub fn lane_by_hand(address: &SegmentAddress, receive_buffer: Option<usize>) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    if let Some(bytes) = receive_buffer {
        socket.set_recv_buffer_size(bytes).unwrap();
    }
    socket.connect(&address.tcp[0].parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    let mut stream = TcpStream::from(socket);
    let mut hello = [0; 64];
    hello[..8].copy_from_slice(&mooncake_wire::LANE_PREFACE);
    (hello[8], hello[10]) = (1, 1);
    hello[16..24].copy_from_slice(&WRITER.to_le_bytes());
    hello[24..32].copy_from_slice(&address.access_key.to_le_bytes());
    hello[32..48].copy_from_slice(&address.uuid.0);
    stream.write_all(&seal(hello)).unwrap();
    let mut reply = [0; 64];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[10], 0, "let in");
    stream
}

/// Asks for a segment's descriptors, which are not received yet.
pub fn attach_by_hand(address: &SegmentAddress, features: u8) -> UnixStream {
    let name = UnixAddr::from_abstract_name(address.unix_socket.as_bytes()).unwrap();
    let mut stream = UnixStream::connect_addr(&name).unwrap();
    let mut hello = [0; 64];
    hello[..8].copy_from_slice(&mooncake_wire::LANE_PREFACE);
    (hello[8], hello[10], hello[11]) = (1, 2, features);
    hello[12..16].copy_from_slice(&std::process::id().to_le_bytes());
    hello[16..24].copy_from_slice(&WRITER.to_le_bytes());
    hello[24..32].copy_from_slice(&address.access_key.to_le_bytes());
    hello[32..48].copy_from_slice(&address.uuid.0);
    stream.write_all(&seal(hello)).unwrap();
    stream
}

/// What was answered, and the descriptors that came with it.
pub fn descriptors_by_hand(stream: &UnixStream) -> ([u8; 64], Vec<OwnedFd>) {
    let (mut reply, mut fds) = ([0; 64], Vec::new());
    assert_eq!(mooncake_os::recv_fds(stream, &mut reply, &mut fds).unwrap(), reply.len());
    (reply, fds)
}

/// The frame with which an attached process shows its mark.
pub fn introduction_by_hand(mark: u64) -> [u8; 64] {
    words_by_hand(10, mark, 0, 0)
}

/// The frame with which an attached process says that it has nothing mapped.
pub fn detached_by_hand() -> [u8; 64] {
    words_by_hand(9, 0, 0, 0)
}

/// A request: 1 reads, 2 writes.
pub fn request_by_hand(op: u8, rid: Rid, offset: u64, len: u64) -> [u8; 64] {
    words_by_hand(op, rid.0, offset, len)
}

/// A frame; `word` is what its kind has in the place of the rid.
fn words_by_hand(op: u8, word: u64, offset: u64, len: u64) -> [u8; 64] {
    let mut frame = [0; 64];
    frame[..4].copy_from_slice(&0x4c4d_4352_u32.to_le_bytes());
    frame[4] = op;
    frame[8..16].copy_from_slice(&word.to_le_bytes());
    frame[16..24].copy_from_slice(&offset.to_le_bytes());
    frame[24..32].copy_from_slice(&len.to_le_bytes());
    seal(frame)
}

/// An attach connection that has been let in, and the memory let go of.
pub fn attached_by_hand(address: &SegmentAddress, features: u8) -> UnixStream {
    let mut stream = attach_by_hand(address, features);
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert_eq!(frame_by_hand(&mut stream)[10], 0, "let in");
    stream
}

/// What comes next on an attach connection.
pub fn frame_by_hand(stream: &mut UnixStream) -> [u8; 64] {
    let mut frame = [0; 64];
    stream.read_exact(&mut frame).unwrap();
    frame
}

/// A message that needs no extent.
pub fn attach_frame(op: u8, epoch: u16) -> [u8; 64] {
    let mut frame = [0; 64];
    frame[..4].copy_from_slice(&0x4c4d_4352_u32.to_le_bytes());
    frame[4] = op;
    frame[6..8].copy_from_slice(&epoch.to_le_bytes());
    seal(frame)
}

// ------------------------------------------------------------ second process

/// A process that writes to a segment over one path, at the test's command.
pub fn start_writer(address: &SegmentAddress, path: Path) -> ChildProcess {
    start(&format!("writer {path} {}", pack(address)))
}

/// The same for one whose session's master knows it by a mark.
pub fn start_marked(address: &SegmentAddress, mark: u64) -> ChildProcess {
    start(&format!("writer shm {} {mark}", pack(address)))
}

/// A process that owns a segment of so many bytes, and its address.
pub fn start_owner(bytes: u64) -> (ChildProcess, SegmentAddress) {
    let mut owner = start(&format!("owner {bytes}"));
    let address = unpack(&owner.hear());
    (owner, address)
}

fn start(role: &str) -> ChildProcess {
    ChildProcess::start("other_process", role)
}

/// To be called by a test named `other_process` in every binary that starts one.
pub fn play_role() {
    let Some(role) = child_process::role() else { return };
    let mut words = role.split(' ');
    match words.next() {
        Some("owner") => play_owner(words.next().unwrap().parse().unwrap()),
        Some("writer") => {
            let path = match words.next() {
                Some("shm") => Path::SharedMemory,
                _ => Path::Tcp,
            };
            let address = unpack(words.next().unwrap());
            play_writer(&address, path, words.next().map_or(0, |mark| mark.parse().unwrap()));
        }
        other => panic!("no such role: {other:?}"),
    }
}

fn play_owner(bytes: u64) {
    let owner = Owner::new(bytes);
    say(pack(&owner.address()));
    for line in asked() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "take-epoch" => {
                let epoch = Epoch { number: words[1].parse().unwrap(), id: words[2].parse().unwrap() };
                say(format_args!("taken by {}", owner.server.take_epoch(epoch).unwrap().len()));
            }
            other => panic!("no such command: {other}"),
        }
    }
}

fn play_writer(address: &SegmentAddress, path: Path, mark: u64) {
    let (links, noticed) = links_with(LinkOptions { paths: Paths::only(path), mark, ..LinkOptions::new(WRITER) });
    let mut links = Some(links);
    let mut held = Vec::new();
    let mut attached = Vec::new();
    for line in asked() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let link = || links.as_ref().expect("let go of").link(address, &soon()).unwrap();
        match words[0] {
            "write" => {
                let data = pattern(number(3), number(1) as u8);
                let source = [mooncake_memory::Source::new(&data)];
                match link().write(Rid(number(1)), number(2), &source, &soon()) {
                    Ok(crc) => say(format_args!("ok {crc}")),
                    Err(e) => say(format_args!("{} settled={}", e.error, e.settled)),
                }
            }
            "write-for-ever" => {
                let data = pattern(number(3), number(1) as u8);
                let source = [mooncake_memory::Source::new(&data)];
                let link = link();
                say("begun");
                let e = loop {
                    if let Err(e) = link.write(Rid(number(1)), number(2), &source, &soon()) {
                        break e;
                    }
                };
                say(format_args!("{} settled={}", e.error, e.settled));
            }
            "attach-to-write" => {
                let mut stream = attached_by_hand(address, 1);
                stream.write_all(&attach_frame(3, 0)).unwrap();
                assert_eq!(frame_by_hand(&mut stream)[4], 4, "it may write");
                attached.push(stream);
                say("attached");
            }
            "introduce" => {
                attached[0].write_all(&introduction_by_hand(number(1))).unwrap();
                say("introduced");
            }
            "hang-up" => {
                attached.clear();
                say("hung up");
            }
            "view" => {
                held.push(link().view(Rid(number(1)), number(2), number(3), None).unwrap().unwrap());
                say("viewed");
            }
            "unview" => {
                held.clear();
                // On a segment that is Gone: whatever this process does about it has been done.
                let until = Instant::now() + Duration::from_secs(5);
                while std::fs::read_to_string("/proc/self/maps").unwrap().contains("memfd:kv-segment") {
                    assert!(Instant::now() < until, "the segment is still mapped");
                    std::thread::yield_now();
                }
                say("unviewed");
            }
            "forget" => {
                links.as_ref().expect("let go of").forget(address.uuid, &[(number(1), number(2))], FIRST);
                say("forgotten");
            }
            "let-go" => {
                links = None;
                say("let go");
            }
            "attach-short-of" => say(attach_short_of(words[1], number(2), address)),
            "confirm" => match noticed.recv_timeout(Duration::from_secs(5)).unwrap() {
                Noticed::Epoch(question) => {
                    question.confirm();
                    say("confirmed");
                }
                other => say(format_args!("{other:?}")),
            },
            other => panic!("no such command: {other}"),
        }
    }
}

/// Tries to map a segment while all but `left` descriptors, or bytes of address space, are in use. Gives the path that
/// was found, or why there was none.
fn attach_short_of(what: &str, left: u64, address: &SegmentAddress) -> String {
    let (links, _noticed) = links(Paths::only(Path::SharedMemory));
    let (resource, limit, mut spare) = match what {
        "descriptors" => {
            let mut spare: Vec<std::fs::File> = Vec::new();
            // Numbers are given out from the lowest free one on: the gaps first.
            while spare.last().is_none_or(|file| file.as_raw_fd() < 200) {
                spare.push(std::fs::File::open("/dev/null").unwrap());
            }
            (Resource::Nofile, 200, spare)
        }
        "addresses" => (Resource::As, vm_bytes() + left, Vec::new()),
        other => panic!("no such shortage: {other}"),
    };
    if resource == Resource::Nofile {
        let keep = spare.len() - 1 - left as usize;
        spare.truncate(keep);
    }
    let before = getrlimit(resource);
    setrlimit(resource, Rlimit { current: Some(limit), ..before }).unwrap();
    let link = links.link(address, &soon());
    setrlimit(resource, before).unwrap();
    link.map_or_else(|error| error.to_string(), |link| link.path().to_string())
}

fn vm_bytes() -> u64 {
    let pages: u64 = std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().parse().unwrap();
    pages * 4096
}

fn pack(address: &SegmentAddress) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let SegmentAddress { uuid, bytes, boot_id, unix_socket, tcp, access_key, .. } = address;
    format!("{},{bytes},{},{unix_socket},{},{access_key}", hex(&uuid.0), hex(boot_id), tcp[0])
}

fn unpack(packed: &str) -> SegmentAddress {
    let parts: Vec<&str> = packed.split(',').collect();
    let unhex = |text: &str| {
        let mut out = [0; 16];
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap();
        }
        out
    };
    SegmentAddress {
        uuid: SegmentUuid(unhex(parts[0])),
        bytes: parts[1].parse().unwrap(),
        name: "owner".into(),
        boot_id: unhex(parts[2]),
        unix_socket: parts[3].into(),
        tcp: vec![parts[4].into()],
        access_key: parts[5].parse().unwrap(),
        process: None,
        tier_file_blocks: 0,
    }
}
