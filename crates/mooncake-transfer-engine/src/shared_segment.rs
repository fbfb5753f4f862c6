//! Memory that the processes of a group on one host have in common: made once by one of them, mapped by all.
//!
//! In two steps. Each rank makes a *ticket*; the ranks tell each other theirs by a channel of their own, and each takes
//! all of them in. The owner's ticket says where its memory is handed out: a Unix socket of an abstract name that asks
//! for a secret. The descriptor goes to processes of the same user only, until each rank has it.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mooncake_memory::CommonMemory;
use mooncake_net::listen_abstract;
use mooncake_os::{Deadline, Guarded, forked, hex, peer_credentials, random_bytes, recv_fds, send_fds};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::error::EngineError;

const MAGIC: [u8; 8] = *b"MCRSSEG1";

/// Tickets of all ranks have the same length, so that a gather of tensors carries them too.
const TICKET_LEN: usize = 64;

/// Longest that a rank waits for the owner, and the owner for what a rank has to say.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// What a rank says: the secret, and its number.
const ASK_LEN: usize = 20;

/// Most processes that the owner attends to at once; a rank says what it wants as soon as it has come.
const CLAIMANTS_MAX: usize = 64;

/// A rank's share in memory of a group.
#[derive(Debug)]
pub struct SharedSegment {
    ticket: Ticket,
    world_size: u32,
    owner_rank: u32,
    bytes: u64,
    memory: Mutex<Option<Arc<CommonMemory>>>,
    ready: AtomicBool,
    listener: Option<Listener>,
}

/// What a rank tells the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// Of what the ranks have to agree on.
    pub fingerprint: u64,
    pub rank: u32,
    /// Where the memory is, and what to say there; zeros but for the owner's.
    pub place: [u8; 16],
    pub secret: [u8; 16],
}

impl Ticket {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(TICKET_LEN);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.fingerprint.to_le_bytes());
        out.extend_from_slice(&self.rank.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.place);
        out.extend_from_slice(&self.secret);
        out.resize(TICKET_LEN, 0);
        out
    }

    pub fn decode(raw: &[u8]) -> Option<Ticket> {
        let raw: &[u8; TICKET_LEN] = raw.try_into().ok()?;
        let bytes = |at| std::array::from_fn(|step| raw[at + step]);
        let number = |at| u64::from_le_bytes(std::array::from_fn(|step| raw[at + step]));
        let ticket = Ticket { fingerprint: number(8), rank: number(16) as u32, place: bytes(24), secret: bytes(40) };
        (raw[..8] == MAGIC).then_some(ticket)
    }
}

impl SharedSegment {
    /// The first step of one rank of `world_size`: the segment, and the ticket for the others. All ranks give the same
    /// name, size in bytes, number and owner. Fails if the owner cannot have the memory.
    pub fn create(
        name: &str,
        bytes: u64,
        world_size: u32,
        rank: u32,
        owner_rank: u32,
    ) -> Result<(SharedSegment, Vec<u8>), EngineError> {
        if forked() {
            return Err(EngineError::Forked);
        }
        if bytes == 0 || rank >= world_size || owner_rank >= world_size {
            let what = format!("a segment of {bytes} bytes, rank {rank} and owner {owner_rank} of {world_size}");
            return Err(EngineError::InvalidArgument(what));
        }
        let os = |what| EngineError::socket("shared segment", what);
        let fingerprint = fingerprint(name, bytes, world_size, owner_rank);
        let mut ticket = Ticket { fingerprint, rank, place: [0; 16], secret: [0; 16] };
        let (mut memory, mut listener) = (None, None);
        if rank == owner_rank {
            let made = CommonMemory::make(bytes).map_err(|error| EngineError::Memory(error.to_string()))?;
            let made = Arc::new(made);
            if world_size > 1 {
                ticket.place = random_bytes().map_err(os("random bytes"))?;
                ticket.secret = random_bytes().map_err(os("random bytes"))?;
                listener = Some(Listener::open(made.clone(), ticket, world_size).map_err(os("hand out its memory"))?);
            }
            memory = Some(made);
        }
        let (memory, ready) = (Mutex::new(memory), AtomicBool::new(false));
        let encoded = ticket.encode();
        Ok((SharedSegment { ticket, world_size, owner_rank, bytes, memory, ready, listener }, encoded))
    }

    /// The second step: takes the tickets of all ranks in, by rank, and maps the owner's memory. `interrupted` is asked
    /// every 50 ms, and true ends the call. After a failure it may be tried again.
    pub fn complete<T: AsRef<[u8]>>(&self, tickets: &[T], interrupted: &dyn Fn() -> bool) -> Result<(), EngineError> {
        if forked() {
            return Err(EngineError::Forked);
        }
        let wrong = |what: String| Err(EngineError::InvalidArgument(what));
        if tickets.len() != self.world_size as usize {
            return wrong(format!("{} tickets for {} ranks", tickets.len(), self.world_size));
        }
        let mut owner = None;
        for (rank, raw) in (0..self.world_size).zip(tickets) {
            let Some(ticket) = Ticket::decode(raw.as_ref()) else {
                return wrong(format!("rank {rank} gave no ticket"));
            };
            if ticket.rank != rank {
                return wrong(format!("the ticket of rank {} stands in the place of rank {rank}", ticket.rank));
            }
            if ticket.fingerprint != self.ticket.fingerprint {
                return wrong(format!("rank {rank} declares another segment than rank {}", self.ticket.rank));
            }
            if rank == self.ticket.rank && ticket != self.ticket {
                return wrong(format!("the ticket of rank {rank} is not the one that it gave"));
            }
            owner = if rank == self.owner_rank { Some(ticket) } else { owner };
        }
        let owner = owner.expect("one of the ranks");
        let mut memory = self.memory.lock();
        if memory.is_none() {
            let file = fetch(&owner, self.ticket.rank, interrupted)?;
            let mapped = CommonMemory::map(file, self.bytes).map_err(|error| EngineError::Memory(error.to_string()))?;
            *memory = Some(Arc::new(mapped));
        }
        self.ready.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Whether both steps are done here.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::SeqCst)
    }

    /// First address in this process; 0 before there is one: with the owner after the first step, elsewhere after the
    /// second.
    pub fn base(&self) -> usize {
        self.memory.lock().as_ref().map_or(0, |memory| memory.addr())
    }

    /// Bytes, as they were asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for SharedSegment {
    fn drop(&mut self) {
        // First: its thread holds the memory, too.
        self.listener.take();
    }
}

fn fingerprint(name: &str, bytes: u64, world_size: u32, owner_rank: u32) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(name.as_bytes());
    for word in [bytes, world_size.into(), owner_rank.into(), name.len() as u64] {
        hasher.write_u64(word);
    }
    hasher.finish()
}

fn listener_name(place: &[u8; 16]) -> String {
    format!("mooncake-segment-{}", hex(place))
}

/// Fetches the owner's memory.
fn fetch(owner: &Ticket, rank: u32, interrupted: &dyn Fn() -> bool) -> Result<OwnedFd, EngineError> {
    let os = |what| EngineError::socket("the owner of a shared segment", what);
    let stream =
        SocketAddr::from_abstract_name(listener_name(&owner.place)).and_then(|at| UnixStream::connect_addr(&at));
    let mut stream = Guarded::new(stream.map_err(os("connect"))?);
    // The name of an owner that has ended is free, for other users, too.
    if !peer_credentials(&*stream).is_ok_and(|peer| peer.is_own_user()) {
        let foreign = io::Error::new(io::ErrorKind::PermissionDenied, "it is another user's process");
        return Err(os("connect")(foreign));
    }
    stream.set_read_timeout(Some(Deadline::SLICE)).map_err(os("prepare"))?;
    stream.write_all(&[&owner.secret[..], &rank.to_le_bytes()].concat()).map_err(os("ask for its memory"))?;
    let (mut answer, mut fds) = ([0; 1], Vec::new());
    let until = Instant::now() + REPLY_TIMEOUT;
    loop {
        match recv_fds(&*stream, &mut answer, &mut fds) {
            Ok(1) => break,
            Ok(_) => {
                let why = "it does not hand its memory to this process";
                return Err(EngineError::malformed("the owner of a shared segment", why));
            }
            Err(error) if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Err(os("wait for its memory")(error));
            }
            Err(_) if interrupted() => return Err(EngineError::Interrupted),
            Err(_) if Instant::now() >= until => {
                let (peer, what) = ("the owner of a shared segment".to_owned(), "wait for its memory");
                return Err(EngineError::Timeout { peer, what, waited: REPLY_TIMEOUT });
            }
            Err(_) => {}
        }
    }
    fds.pop().ok_or_else(|| EngineError::malformed("the owner of a shared segment", "it sent no memory"))
}

/// Where the owner hands its memory out, until every other rank has it.
#[derive(Debug)]
struct Listener {
    shut: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    fn open(memory: Arc<CommonMemory>, ticket: Ticket, world_size: u32) -> io::Result<Listener> {
        let listener = Guarded::new(listen_abstract(&listener_name(&ticket.place))?);
        listener.set_nonblocking(true)?;
        let shut = Arc::new(AtomicBool::new(false));
        let mut distributor = Distributor { listener, memory, ticket, world_size, claimants: Vec::new() };
        let seen = shut.clone();
        let builder = std::thread::Builder::new().name("mooncake-share".into());
        let thread = mooncake_os::thread::start(builder, move || distributor.serve(&seen))?;
        Ok(Listener { shut, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        self.shut.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Attends to all claimants at once: one that says nothing keeps no other waiting.
struct Distributor {
    listener: Guarded<UnixListener>,
    memory: Arc<CommonMemory>,
    ticket: Ticket,
    world_size: u32,
    /// Oldest first.
    claimants: Vec<Claimant>,
}

/// A process of this user that has come, and what it has said so far.
struct Claimant {
    stream: Guarded<UnixStream>,
    said: Vec<u8>,
    since: Instant,
}

impl Distributor {
    fn serve(&mut self, shut: &AtomicBool) {
        let mut missing: BTreeSet<u32> = (0..self.world_size).filter(|rank| *rank != self.ticket.rank).collect();
        while !missing.is_empty() && !shut.load(Ordering::SeqCst) && !forked() {
            let claimants = self.claimants.iter().map(|claimant| claimant.stream.as_fd());
            let all = claimants.chain([self.listener.as_fd()]);
            let mut all: Vec<_> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            let slice = Timespec { tv_sec: 0, tv_nsec: Deadline::SLICE.as_nanos() as i64 };
            // Whatever it says, all of them are looked at.
            let _ = poll(&mut all, Some(&slice));
            self.let_in();
            for mut claimant in std::mem::take(&mut self.claimants) {
                match self.attend_to(&mut claimant) {
                    Ok(None) => self.claimants.push(claimant),
                    Ok(Some(rank)) => drop(missing.remove(&rank)),
                    Err(error) => tracing::warn!(%error, "a process did not get a shared segment"),
                }
            }
        }
    }

    fn let_in(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let stream = Guarded::new(stream);
                    if !peer_credentials(&*stream).is_ok_and(|peer| peer.is_own_user()) {
                        tracing::warn!("another user's process asked for a shared segment");
                        continue;
                    }
                    // The one that has been silent for longest makes room.
                    if self.claimants.len() == CLAIMANTS_MAX {
                        self.claimants.remove(0);
                    }
                    self.claimants.push(Claimant { stream, said: Vec::new(), since: Instant::now() });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // Too many descriptors, most often.
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            }
        }
    }

    /// Gives one process the memory once it has said its secret; says which rank it is.
    fn attend_to(&self, claimant: &mut Claimant) -> io::Result<Option<u32>> {
        let mut more = [0; ASK_LEN];
        let room = &mut more[claimant.said.len()..];
        match rustix::net::recv(&*claimant.stream, &mut *room, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((count, _)) => claimant.said.extend_from_slice(&room[..count]),
            Err(Errno::AGAIN | Errno::INTR) if claimant.since.elapsed() > REPLY_TIMEOUT => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        let Some((secret, rank)) = claimant.said.split_at_checked(16) else { return Ok(None) };
        let Ok(rank) = rank.try_into().map(u32::from_le_bytes) else { return Ok(None) };
        // Not in constant time: a process that may connect may read this process anyway.
        if secret != self.ticket.secret || rank >= self.world_size {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is no rank of this segment"));
        }
        let file = self.memory.file().ok_or_else(|| io::Error::other("this process was forked"))?;
        // The first byte on a fresh socket: there is room for it.
        send_fds(&*claimant.stream, &[1], &[file.as_fd()])?;
        Ok(Some(rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 100_000;

    fn group(world_size: u32, owner: u32) -> (Vec<SharedSegment>, Vec<Vec<u8>>) {
        let one = |rank| SharedSegment::create("kv", SIZE, world_size, rank, owner).unwrap();
        (0..world_size).map(one).unzip()
    }

    #[test]
    fn ranks_that_disagree_are_told() {
        let (segments, tickets) = group(2, 0);
        let refused = |tickets: &[Vec<u8>]| segments[1].complete(tickets, &|| false).unwrap_err().to_string();
        assert!(refused(&tickets[..1]).contains("1 tickets for 2 ranks"));
        assert!(refused(&[tickets[1].clone(), tickets[0].clone()]).contains("in the place of rank 0"));
        assert!(refused(&[tickets[0].clone(), b"nonsense".to_vec()]).contains("rank 1 gave no ticket"));
        for (name, bytes, owner) in [("other", SIZE, 0), ("kv", SIZE + 1, 0), ("kv", SIZE, 1)] {
            let (_other, ticket) = SharedSegment::create(name, bytes, 2, 0, owner).unwrap();
            assert!(refused(&[ticket, tickets[1].clone()]).contains("declares another segment"));
        }
        assert!(!segments[1].is_ready() && segments[1].base() == 0);
        segments[1].complete(&tickets, &|| false).unwrap();
        for (bytes, rank, owner) in [(0, 0, 0), (1, 2, 0), (1, 0, 2), (u64::MAX, 0, 0)] {
            assert!(SharedSegment::create("kv", bytes, 2, rank, owner).is_err());
        }
    }

    #[test]
    fn memory_is_handed_to_those_who_know_the_secret_until_each_rank_has_it() {
        let (mut segments, tickets) = group(3, 0);
        segments[1].complete(&tickets, &|| false).unwrap();
        let owner = Ticket::decode(&tickets[0]).unwrap();
        let wrong = Ticket { secret: [7; 16], ..owner };
        assert!(fetch(&wrong, 2, &|| false).is_err(), "another secret");
        assert!(fetch(&owner, 9, &|| false).is_err(), "no rank");
        segments[2].complete(&tickets, &|| false).unwrap();
        segments[0].listener.as_mut().unwrap().thread.take().unwrap().join().unwrap();
        assert!(fetch(&owner, 2, &|| false).is_err(), "the listener is shut");
    }

    #[test]
    fn who_says_nothing_or_half_of_it_keeps_nobody_waiting() {
        let (mut segments, tickets) = group(3, 0);
        let owner = Ticket::decode(&tickets[0]).unwrap();
        let at = SocketAddr::from_abstract_name(listener_name(&owner.place)).unwrap();
        let silent: Vec<_> = (0..2 * CLAIMANTS_MAX).map(|_| UnixStream::connect_addr(&at).unwrap()).collect();
        for mut half in &silent {
            // The first ones have been hung up on.
            let _ = half.write_all(&owner.secret[..9]);
        }
        let began = Instant::now();
        segments[1].complete(&tickets, &|| false).unwrap();
        assert!(began.elapsed() < REPLY_TIMEOUT / 2, "{:?}", began.elapsed());
        let began = Instant::now();
        drop(segments.remove(0));
        assert!(began.elapsed() < REPLY_TIMEOUT / 2, "{:?}", began.elapsed());
    }

    #[test]
    fn an_owner_that_says_nothing_is_said_to_have_been_waited_for() {
        let (segments, tickets) = group(2, 1);
        let mut owner = Ticket::decode(&tickets[1]).unwrap();
        // Not a fixed one: another run of this test may be under way on this host.
        owner.place = random_bytes().unwrap();
        let _listener = listen_abstract(&listener_name(&owner.place)).unwrap();
        let error = segments[0].complete(&[tickets[0].clone(), owner.encode()], &|| false).unwrap_err();
        assert!(matches!(error, EngineError::Timeout { waited: REPLY_TIMEOUT, .. }), "{error}");
    }

    #[test]
    fn an_owner_that_is_gone_is_an_error() {
        let (mut segments, tickets) = group(2, 0);
        drop(segments.remove(0));
        let error = segments[0].complete(&tickets, &|| false).unwrap_err();
        assert!(matches!(error, EngineError::Socket { .. }), "{error}");
    }
}
