//! The owner's side: serves segments, and proves that no old writer writes there any more.

mod acceptor;
mod attach;
mod callers;
mod carry;
mod elders;
mod fences;
mod lanes;
mod pending;
mod record_files;
mod record_lane;
mod stall_timer;
mod tcp_lane;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mooncake_ids::{Rid, SegmentUuid};
use mooncake_memory::{SegmentMemory, TenureLocks};
use mooncake_os::{forked, hex, random_bytes};
use parking_lot::Mutex;

use crate::epoch::Epoch;
use crate::error::ServerError;
use crate::local::{self, Served};
use crate::machine::{Owner, Tenure};
use crate::readiness::Readiness;
use crate::records::Records;
use mooncake_os::{Waker, thread};

pub use crate::machine::{Fence, ProcessGone};

use acceptor::Acceptor;
use attach::Attached;
use lanes::Lanes;
use record_lane::ServedTier;

/// How a server listens.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Address that data lanes are accepted on, and no other but these.
    pub bind: IpAddr,
    /// Addresses of its other networks, on which they are accepted at the same port.
    pub also: Vec<IpAddr>,
    /// Port of the data lanes; 0 = one that the kernel chooses.
    pub port: u16,
    /// Session of the owner.
    pub session: u64,
    /// Whether same-host peers may ask for the memory itself.
    pub unix: bool,
    /// Longest time a lane may stand still in mid-request.
    pub stall_timeout: Duration,
    /// Most data lanes at a time. Beyond it the owner closes lanes that have long been idle, then refuses new ones.
    pub max_lanes: usize,
    /// Most threads for them, as many as may be in the midst of a large request. When all are at work, requests wait.
    pub max_workers: usize,
}

impl ServerOptions {
    /// Listens on an address, with the defaults for all else.
    pub fn new(bind: IpAddr, port: u16, session: u64) -> ServerOptions {
        let stall_timeout = Duration::from_secs(3);
        ServerOptions {
            bind,
            also: Vec::new(),
            port,
            session,
            unix: true,
            stall_timeout,
            max_lanes: 16_384,
            max_workers: 2_048,
        }
    }
}

/// What a server reports later. Called on its own thread: hand over, do not block.
pub trait ServerEvents: Send + Sync {
    /// A fence that [`SegmentServer::fence`] could not finish at once is done.
    fn fenced(&self, uuid: SegmentUuid, rid: Rid);
    /// A segment obeys an epoch that [`SegmentServer::take_epoch`] could not finish at once.
    fn epoch_taken(&self, epoch: u16, uuid: SegmentUuid);
    /// A process that had a segment mapped is gone, and had shown whose it is.
    fn process_gone(&self, _gone: ProcessGone) {}
}

/// Serves the segments of one process.
#[derive(Debug)]
pub struct SegmentServer {
    shared: Arc<Shared>,
    acceptor: Mutex<Option<JoinHandle<()>>>,
}

pub(crate) struct Shared {
    options: ServerOptions,
    tcp: SocketAddr,
    unix_name: String,
    events: Box<dyn ServerEvents>,
    waker: Arc<Waker>,
    /// What the acceptor waits for.
    readiness: Arc<Readiness>,
    /// Origin of the owner's time.
    started: Instant,
    stopping: AtomicBool,
    state: Mutex<State>,
    lanes: Arc<Lanes>,
    tiers: Mutex<HashMap<SegmentUuid, Arc<ServedTier>>>,
}

#[derive(Default)]
struct State {
    owner: Owner<Arc<Served>>,
    /// The processes of the owner's attachments, by the same numbers.
    attached: HashMap<u64, Attached>,
    /// Of memory that outlives its owners.
    locks: HashMap<SegmentUuid, TenureLocks>,
}

impl SegmentServer {
    /// Starts to listen. Segments are added later.
    pub fn start(options: ServerOptions, events: Box<dyn ServerEvents>) -> Result<Arc<SegmentServer>, ServerError> {
        let os = |what| move |source| ServerError::Os { what, source };
        let wanted = SocketAddr::new(options.bind, options.port);
        let tcp = listen_tcp(wanted).map_err(|source| ServerError::Bind { address: wanted, source })?;
        let address = tcp.local_addr().map_err(os("getsockname"))?;
        let mut listeners = vec![tcp];
        for also in &options.also {
            let wanted = SocketAddr::new(*also, address.port());
            listeners.push(listen_tcp(wanted).map_err(|source| ServerError::Bind { address: wanted, source })?);
        }
        let (unix, unix_name) = if options.unix {
            let (listener, name) = listen_unix().map_err(os("listen on an abstract Unix socket"))?;
            (Some(listener), name)
        } else {
            (None, String::new())
        };
        let lanes = Lanes::new(options.max_lanes, options.max_workers).map_err(os("epoll_create"))?;
        let shared = Arc::new(Shared {
            options,
            tcp: address,
            unix_name,
            events,
            waker: Arc::new(Waker::new().map_err(os("eventfd"))?),
            readiness: Arc::new(Readiness::new().map_err(os("epoll_create"))?),
            started: Instant::now(),
            stopping: AtomicBool::new(false),
            state: Mutex::default(),
            lanes,
            tiers: Mutex::default(),
        });
        let acceptor = Acceptor::new(shared.clone(), listeners, unix).map_err(os("epoll_ctl"))?;
        let builder = std::thread::Builder::new().name("mooncake-door".into());
        let acceptor = thread::start(builder, move || acceptor.run()).map_err(os("start a thread"))?;
        Ok(Arc::new(SegmentServer { shared, acceptor: Mutex::new(Some(acceptor)) }))
    }

    /// Serves a segment to peers that show its access key. [`SegmentServer::mounted`] follows.
    pub fn add(&self, memory: Arc<SegmentMemory>, access_key: u64) {
        let waker = self.shared.waker.clone();
        let mut state = self.shared.state.lock();
        let epoch = Epoch::numbered(state.owner.epoch().number);
        let served = Arc::new(Served::new(memory, access_key, epoch, waker));
        local::announce(&served);
        state.owner.add(served.memory.uuid(), served);
    }

    /// Serves a segment whose memory outlives this process, as it may have outlived others: [`SegmentServer::add`] with
    /// a [tenure](Tenure), which the memory's state has by now. Of the first one [`SegmentServer::mounted`] follows.
    pub fn inherit(&self, memory: Arc<SegmentMemory>, access_key: u64, tenure: Tenure) -> std::io::Result<()> {
        let (waker, locks) = (self.shared.waker.clone(), TenureLocks::of(memory.mapping())?);
        let uuid = memory.uuid();
        let mut state = self.shared.state.lock();
        let epoch = match tenure.number {
            // Fresh memory.
            1 => Epoch::numbered(state.owner.epoch().number),
            _ => tenure.taken,
        };
        let served = Arc::new(Served::new(memory, access_key, epoch, waker));
        local::announce(&served);
        state.owner.inherit(uuid, served, Tenure { taken: epoch, ..tenure });
        state.locks.insert(uuid, locks);
        drop(state);
        // It looks at the locks from now on.
        self.shared.waker.wake();
        Ok(())
    }

    /// Latest epoch that it was asked to obey.
    pub fn epoch(&self) -> Epoch {
        self.shared.state.lock().owner.epoch()
    }

    /// Number of segments where a process may write, or has views, that an earlier owner of the memory let in: until
    /// none does, nothing is placed there, or no later epoch is taken.
    pub fn awaiting_elders(&self) -> usize {
        let state = self.shared.state.lock();
        state.locks.keys().filter(|uuid| state.owner.awaits_elders(uuid)).count()
    }

    /// Serves the records of a tier to peers that show its access key. It has a UUID like a segment.
    pub fn add_tier(&self, uuid: SegmentUuid, bytes: u64, access_key: u64, records: Arc<dyn Records>) {
        let withdrawn = AtomicBool::new(false);
        let served = Arc::new(ServedTier { access_key, bytes, records, withdrawn });
        self.shared.tiers.lock().insert(uuid, served);
    }

    /// Serves a tier no more.
    pub fn remove_tier(&self, uuid: SegmentUuid) {
        if let Some(served) = self.shared.tiers.lock().remove(&uuid) {
            served.withdrawn.store(true, Ordering::Release);
        }
    }

    /// A master knows the segment since this epoch: a process that maps it from here on is told so.
    pub fn mounted(&self, uuid: SegmentUuid, epoch: Epoch) {
        if let Some(served) = self.shared.state.lock().owner.segment(&uuid) {
            served.insiders.mounted(epoch);
        }
    }

    /// Serves a segment no more. True when it is sure that nothing of this
    /// process and of no lane writes there any more: its memory can be given
    /// back. Peers that map it are told by the master.
    pub fn remove(&self, uuid: SegmentUuid) -> bool {
        if forked() {
            return false;
        }
        local::withdraw(&uuid);
        let mut state = self.shared.state.lock();
        let mut out = Vec::new();
        let Some((served, over)) = state.owner.remove(&uuid, &mut out) else { return true };
        served.removed.store(true, Ordering::Release);
        state.locks.remove(&uuid);
        // Their streams close.
        let later = state.carry_out(out);
        drop(state);
        self.shared.report(later);
        let mut writing = served.gate.close();
        let deadline = Instant::now() + self.shared.options.stall_timeout;
        self.shared.lanes.cut(uuid);
        let drained = loop {
            let are_gone = self.shared.lanes.are_gone(uuid, Duration::from_millis(5));
            served.gate.retain_active(&mut writing);
            if are_gone && writing.is_empty() {
                break true;
            }
            if Instant::now() >= deadline {
                break false;
            }
            if are_gone {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        self.shared.waker.wake();
        for rid in over {
            self.shared.events.fenced(uuid, rid);
        }
        drained
    }

    /// Highest epoch that a segment has taken; 0 for one that is not served here. It may have been asked for a higher
    /// one.
    pub fn taken(&self, uuid: SegmentUuid) -> u16 {
        self.shared.state.lock().owner.taken(&uuid)
    }

    /// Where data lanes are accepted, on the first of its addresses.
    pub fn tcp_addr(&self) -> SocketAddr {
        self.shared.tcp
    }

    /// Abstract name of the Unix socket, "" without one.
    pub fn unix_name(&self) -> &str {
        &self.shared.unix_name
    }

    /// Number of data lanes that are open.
    pub fn lanes(&self) -> usize {
        self.shared.lanes.len()
    }

    /// Number of processes that have one of the segments mapped, once per attachment.
    pub fn attached(&self) -> usize {
        self.shared.state.lock().owner.attached()
    }

    /// Whether an extent still carries a placement whose bytes have this checksum.
    pub fn recheck(&self, uuid: SegmentUuid, rid: Rid, offset: u64, len: u64, crc: u32) -> bool {
        let Some(served) = self.shared.state.lock().owner.segment(&uuid).cloned() else { return false };
        let mapping = served.memory.mapping();
        let is_whole = || matches!(mapping.check_stamps(rid, offset, len), Ok(true));
        // Once before, which saves the sum, and once behind it, which says what the sum was of.
        is_whole() && matches!(mapping.crc(offset, len), Ok(found) if found == crc) && is_whole()
    }

    /// Stops listening, closes every lane and ends every thread.
    pub fn shutdown(&self) {
        if forked() {
            return;
        }
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.waker.wake();
        let uuids: Vec<SegmentUuid> = self.shared.state.lock().owner.uuids().collect();
        for uuid in uuids {
            self.remove(uuid);
        }
        for (_, tier) in self.shared.tiers.lock().drain() {
            tier.withdrawn.store(true, Ordering::Release);
        }
        self.shared.lanes.stop();
        let acceptor = self.acceptor.lock().take();
        if let Some(acceptor) = acceptor {
            // It only panics if one of its invariants is broken; that has been reported.
            let _ = acceptor.join();
        }
    }
}

impl Drop for SegmentServer {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("tcp", &self.tcp).field("unix", &self.unix_name).finish_non_exhaustive()
    }
}

fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    // A restarted owner gets its port back at once.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // It binds what it was told: an IPv6 address is not an IPv4 one too.
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

fn listen_unix() -> io::Result<(UnixListener, String)> {
    let random: [u8; 16] = random_bytes()?;
    let name = format!("mooncake-segment-{}", hex(&random));
    let listener = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name.as_bytes())?)?;
    listener.set_nonblocking(true)?;
    Ok((listener, name))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    use mooncake_memory::SegmentOptions;

    use super::*;
    use crate::link::fixture::{Quiet, hello, owner};
    use crate::protocol::frames::{Frame, HELLO_LEN, Op, Purpose, REPLY_LEN, Reply, Status};

    #[test]
    fn memory_that_a_thread_of_this_process_still_writes_is_not_to_be_given_back() {
        let options = ServerOptions {
            unix: false,
            stall_timeout: Duration::from_millis(50),
            ..ServerOptions::new([127, 0, 0, 1].into(), 0, 1)
        };
        let server = SegmentServer::start(options, Box::new(Quiet)).unwrap();
        let [kept, ended] =
            [(); 2].map(|()| Arc::new(SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap()));
        for memory in [&kept, &ended] {
            server.add(memory.clone(), 1);
        }
        let begin = |memory: &SegmentMemory| {
            let served = server.shared.state.lock().owner.segment(&memory.uuid()).unwrap().clone();
            served.gate.admit(memory.mapping(), Rid::new(1, 1), 0, 4096, None).unwrap()
        };
        let (write, short) = (begin(&kept), begin(&ended));
        assert!(!server.remove(kept.uuid()), "it may still write");
        drop(short);
        assert!(server.remove(ended.uuid()));
        assert!(server.remove(ended.uuid()), "what is not served is not written");
        drop(write);
    }

    fn lane_of(server: &SegmentServer, memory: &SegmentMemory) -> TcpStream {
        let mut lane = TcpStream::connect(server.tcp_addr()).unwrap();
        lane.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        lane.write_all(&hello(Purpose::Lane, memory.uuid()).encode()).unwrap();
        lane.read_exact(&mut [0; HELLO_LEN]).unwrap();
        lane
    }

    #[test]
    fn a_segment_that_is_removed_ends_its_own_lanes_and_no_others() {
        let (server, kept, _) = owner(1 << 20, Quiet);
        let removed = Arc::new(SegmentMemory::create(1 << 20, SegmentOptions::default()).unwrap());
        server.add(removed.clone(), 1);
        let mut lanes = [&kept, &removed, &removed].map(|memory| lane_of(&server, memory));
        // Somebody has it still, which no new link of this process may.
        let served = local::find(&removed.uuid()).unwrap();
        assert!(server.remove(removed.uuid()), "others' lanes are not waited for");
        assert!(served.is_removed() && local::find(&removed.uuid()).is_none() && local::find(&kept.uuid()).is_some());
        for lane in &mut lanes[1..] {
            assert_eq!(lane.read(&mut [0]).unwrap(), 0);
        }
        let rid = Rid::new(1, 1);
        let write = Frame { op: Op::Write, epoch: 1, rid: rid.0, offset: 0, len: 1, sequence: 1 };
        lanes[0].write_all(&write.encode()).unwrap();
        lanes[0].write_all(&[7]).unwrap();
        let mut reply = [0; REPLY_LEN];
        lanes[0].read_exact(&mut reply).unwrap();
        assert_eq!(Reply::decode(&reply).map(|reply| reply.status), Some(Status::Ok));
        assert_eq!((server.lanes(), server.remove(removed.uuid())), (1, true));
    }

    #[test]
    fn a_server_that_is_dropped_is_gone_with_its_port_its_socket_and_its_lanes() {
        let (server, memory, address) = owner(1 << 20, Quiet);
        let (mut lane, shared) = (lane_of(&server, &memory), Arc::downgrade(&server.shared));
        let (tcp, unix) = (server.tcp_addr(), UnixAddr::from_abstract_name(&address.unix_socket).unwrap());
        UnixStream::connect_addr(&unix).unwrap();
        drop(server);
        assert_eq!(lane.read(&mut [0]).unwrap(), 0);
        assert!(TcpStream::connect(tcp).is_err() && UnixStream::connect_addr(&unix).is_err());
        assert!(local::find(&memory.uuid()).is_none());
        let until = Instant::now() + Duration::from_secs(5);
        while shared.strong_count() > 0 {
            assert!(Instant::now() < until, "a thread goes on");
            std::thread::yield_now();
        }
    }

    #[test]
    fn an_owner_listens_where_it_was_told_and_nowhere_else() {
        let start = |bind| {
            let options = ServerOptions { unix: false, ..ServerOptions::new(bind, 0, 1) };
            SegmentServer::start(options, Box::new(Quiet))
        };
        let server = start([127, 0, 0, 1].into()).unwrap();
        assert_eq!(server.unix_name(), "", "nobody is told of a socket that is not wanted");
        let taken = ServerOptions::new([127, 0, 0, 1].into(), server.tcp_addr().port(), 1);
        assert!(matches!(SegmentServer::start(taken, Box::new(Quiet)), Err(ServerError::Bind { .. })));
        // Every IPv6 address of the host, and none of its IPv4 ones.
        let Ok(six) = start(std::net::Ipv6Addr::UNSPECIFIED.into()) else {
            return eprintln!("skipped: this host has no IPv6");
        };
        let port = six.tcp_addr().port();
        TcpStream::connect((std::net::Ipv6Addr::LOCALHOST, port)).unwrap();
        assert!(TcpStream::connect((std::net::Ipv4Addr::LOCALHOST, port)).is_err());
    }
}
