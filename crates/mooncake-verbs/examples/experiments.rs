//! Questions about devices that RDMA.md's rules rest on, asked of the ones that are here:
//! `experiments QUESTION LOCAL_DEVICE PEER_DEVICE`. `docs/rdma.md` has the answers of Soft-RoCE and the commands.
//!
//! Both ends of a connection are in one process, but where a process has to die.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mooncake_memory::ForeignRange;
use mooncake_verbs::{
    Access, Chain, Completion, CompletionQueue, Completions, Connection, Context, Domain, Gid, Library, Local,
    Operation, QueuePair, QueuePairOptions, Region, Remote, Request, Status, devices, keep_from_children,
};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const QUESTIONS: &[(&str, &str)] = &[
    ("bytes", "do bytes of all sizes arrive, both ways?"),
    ("late", "does anything land behind the end of either queue pair, under a stream of writes?"),
    ("times", "how long do a flush, the end of a queue pair and of a region take, under traffic?"),
    ("fence", "does a request with the fence flag wait for the READ before it?"),
    ("retries", "when does a request to a peer that is not there fail?"),
    ("child", "does a forked child keep what its killed parent had?"),
    ("link", "what does a link that goes down and comes back look like? (wants `ip`, and the link's name)"),
];

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["bytes", here, there] => bytes(here, there),
        ["late", here, there] => late(here, there),
        ["times", here, there] => times(here, there),
        ["fence", here, there] => fence(here, there),
        ["retries", here, there] => retries(here, there),
        ["child", here, there] => child(here, there),
        ["child-parent", there, keeps] => child_parent(there, keeps == "keeps"),
        ["link", here, there, netdev] => link(here, there, netdev),
        _ => {
            eprintln!("experiments QUESTION LOCAL_DEVICE PEER_DEVICE");
            for (name, asks) in QUESTIONS {
                eprintln!("  {name:<8}{asks}");
            }
            std::process::exit(2)
        }
    }
}

/// A device in use, with memory that its peers may touch.
struct Side {
    context: Arc<Context>,
    domain: Arc<Domain>,
    queue: Arc<CompletionQueue>,
    gid: (u8, Gid),
    memory: ForeignRange,
    region: Option<Region>,
}

impl Side {
    fn new(device: &str, bytes: usize) -> Outcome<Side> {
        let all = devices(Library::load()?)?;
        let found = all.iter().find(|known| known.name() == device).ok_or_else(|| format!("no {device}"))?;
        let context = Context::open(found)?;
        let domain = Domain::new(&context)?;
        let queue = CompletionQueue::new(&context, 1_024)?;
        let table = context.port(1)?.gids;
        // The last one that is in use: the address of version 4.
        let mut in_use = (0..table.min(16)).filter_map(|index| {
            let gid = context.gid(1, index).ok().filter(|gid| gid.address().to_ipv4_mapped().is_some())?;
            Some((index as u8, gid))
        });
        let gid = in_use.next_back().ok_or("no address of version 4")?;
        let memory = vec![0_u8; bytes].leak();
        // SAFETY: leaked, and touched by volatile reads and writes alone from here on.
        let memory = unsafe { ForeignRange::new(memory.as_mut_ptr().expose_provenance(), bytes) };
        let access = Access { local_write: true, remote_read: true, remote_write: true, relaxed_ordering: false };
        let region = Some(Region::register(&domain, memory, access, None)?);
        Ok(Side { context, domain, queue, gid, memory, region })
    }

    fn queue_pair(&self) -> Outcome<QueuePair> {
        let options = QueuePairOptions { send_depth: 256, pieces: 1, inline_bytes: 64 };
        Ok(QueuePair::new(&self.domain, &self.queue, options)?)
    }

    fn connect(&self, own: &QueuePair, peer: u32, gid: Gid) -> Outcome {
        self.connect_with(own, peer, gid, 6)
    }

    fn connect_with(&self, own: &QueuePair, peer: u32, gid: Gid, retries: u8) -> Outcome {
        let port = self.context.port(1)?;
        let to = Connection {
            port: 1,
            gid_index: self.gid.0,
            partition: 0,
            peer_gid: gid,
            peer_lid: 0,
            peer_queue_pair: peer,
            mtu: port.mtu,
            first_packets: (7, 7),
            reads: (16, 16),
            traffic: (0, 0),
            timeout: 14,
            retries,
        };
        Ok(own.connect(&to)?)
    }

    fn remote(&self, offset: usize) -> Remote {
        let region = self.region.as_ref().expect("registered");
        Remote { addr: (self.memory.addr() + offset) as u64, key: region.remote_key() }
    }

    fn request(&self, operation: Operation, at: usize, len: usize, remote: Remote) -> Chain {
        let mut chain = Chain::new();
        let piece = self.region.as_ref().expect("registered").piece(at, len).expect("inside");
        let local = Local::Pieces(&[piece]);
        chain.push(Request { id: at as u64, operation, local, remote, fenced: false, signaled: true });
        chain
    }

    fn fill(&self, offset: usize, len: usize, byte: impl Fn(usize) -> u8) {
        for at in 0..len {
            // SAFETY: inside of the leaked memory.
            unsafe { self.byte(offset + at).write_volatile(byte(at)) };
        }
    }

    /// The first byte that is another one.
    fn first_other(&self, offset: usize, len: usize, byte: impl Fn(usize) -> u8) -> Option<usize> {
        // SAFETY: inside of the leaked memory.
        (0..len).find(|at| unsafe { self.byte(offset + at).read_volatile() } != byte(*at))
    }

    fn byte(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.memory.len());
        std::ptr::with_exposed_provenance_mut(self.memory.addr() + offset)
    }

    /// Waits for so many completions; the first status that is no success, or success.
    fn wait(&self, count: usize) -> Outcome<Status> {
        let (mut room, mut seen, mut worst) = (Completions::with_room(16), 0, Status::SUCCESS);
        let end = Instant::now() + Duration::from_secs(30);
        while seen < count {
            for completion in self.queue.poll(&mut room)? {
                seen += 1;
                if worst == Status::SUCCESS {
                    worst = Completion::status(completion);
                }
            }
            if Instant::now() > end {
                return Err(format!("{seen} of {count} completions in 30 s").into());
            }
        }
        Ok(worst)
    }
}

fn pair(here: &Side, there: &Side) -> Outcome<(QueuePair, QueuePair)> {
    let (own, peer) = (here.queue_pair()?, there.queue_pair()?);
    there.connect(&peer, own.number(), here.gid.1)?;
    here.connect(&own, peer.number(), there.gid.1)?;
    Ok((own, peer))
}

fn bytes(here: &str, there: &str) -> Outcome {
    let (here, there) = (Side::new(here, 9 * MIB)?, Side::new(there, 9 * MIB)?);
    let (own, _peer) = pair(&here, &there)?;
    let mut wrong = 0;
    let sizes = [0, 1, 7, 8, 63, 64, 65, 4_095, 4_096, 4_097, 65_535, 65_537, MIB, 8 * MIB + 3];
    for (nth, len) in sizes.into_iter().enumerate() {
        let at = 11 * nth + 1;
        let byte = |place: usize| (place * 31 + nth * 7) as u8;
        here.fill(at, len, byte);
        there.fill(at, len, |_| 0xee);
        own.post(&mut here.request(Operation::Write, at, len, there.remote(at)))?;
        let written = here.wait(1)?;
        let arrived = there.first_other(at, len, byte);
        here.fill(at, len, |_| 0xdd);
        own.post(&mut here.request(Operation::Read, at, len, there.remote(at)))?;
        let read = here.wait(1)?;
        let came_back = here.first_other(at, len, byte);
        if [written, read] != [Status::SUCCESS; 2] || arrived.is_some() || came_back.is_some() {
            println!("{len} bytes: WRITE {written}, first wrong {arrived:?}; READ {read}, first wrong {came_back:?}");
            wrong += 1;
        }
    }
    println!("bytes: {} sizes up to {} bytes, {wrong} wrong", sizes.len(), sizes[sizes.len() - 1]);
    Ok(())
}

/// Posts WRITEs of 64 KiB, 16 at a time, one behind the other until it is told to stop or one fails.
fn stream(here: &Side, own: &QueuePair, remote: Remote, stop: &AtomicBool, written: &AtomicU64) -> Outcome<usize> {
    let (mut room, mut chain, mut under_way) = (Completions::with_room(16), Chain::new(), 0);
    let piece = here.region.as_ref().expect("registered").piece(0, 64 * KIB).expect("inside");
    loop {
        while under_way < 16 && !stop.load(Ordering::Relaxed) {
            let local = Local::Pieces(std::slice::from_ref(&piece));
            chain.push(Request { id: 1, operation: Operation::Write, local, remote, fenced: false, signaled: true });
            if own.post(&mut chain).is_err() {
                return Ok(under_way);
            }
            under_way += 1;
        }
        let done = here.queue.poll(&mut room)?;
        under_way -= done.len();
        let good = done.iter().filter(|completion| completion.status() == Status::SUCCESS).count();
        written.fetch_add(good as u64, Ordering::Relaxed);
        if good < done.len() {
            return Ok(under_way);
        }
        if under_way == 0 && stop.load(Ordering::Relaxed) {
            return Ok(0);
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum End {
    PeerDestroyed,
    PeerStopped,
    SenderFlushed,
    SenderDestroyed,
}

/// Whether bytes of a stream of writes land when an end is over: the memory is filled at that moment, and looked at for
/// a while.
fn late(here: &str, there: &str) -> Outcome {
    const ROUNDS: usize = 40;
    let (here, there) = (Side::new(here, MIB)?, Side::new(there, MIB)?);
    here.fill(0, 64 * KIB, |_| 0xaa);
    for end in [End::PeerDestroyed, End::PeerStopped, End::SenderFlushed, End::SenderDestroyed] {
        let (mut landed, mut latest) = (0, Duration::ZERO);
        for round in 0..ROUNDS {
            let (own, peer) = pair(&here, &there)?;
            let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
            let remote = there.remote(0);
            let mut peer = Some(peer);
            let own = std::thread::scope(|scope| -> Outcome<Option<QueuePair>> {
                let streaming =
                    scope.spawn(|| stream(&here, &own, remote, &stop, &written).map_err(|error| error.to_string()));
                while written.load(Ordering::Relaxed) < 8 + round as u64 % 5 {
                    std::hint::spin_loop();
                }
                std::thread::sleep(Duration::from_micros(137 * (round as u64 % 11)));
                match end {
                    End::PeerDestroyed => peer.take().expect("there").destroy().map_err(|(_, error)| error)?,
                    End::PeerStopped => peer.as_ref().expect("there").stop()?,
                    End::SenderFlushed | End::SenderDestroyed => {
                        own.stop()?;
                        let left = streaming.join().expect("no panic")?;
                        here.wait(left)?;
                        return Ok(None);
                    }
                }
                let (when, since) = watch(&there, Duration::from_millis(300));
                if when {
                    (landed, latest) = (landed + 1, latest.max(since));
                }
                stop.store(true, Ordering::Relaxed);
                own.stop()?;
                let left = streaming.join().expect("no panic")?;
                here.wait(left)?;
                Ok(None)
            })
            .map(|_| own)?;
            let own = if matches!(end, End::SenderDestroyed) {
                own.destroy().map_err(|(_, error)| error)?;
                None
            } else {
                Some(own)
            };
            if matches!(end, End::SenderFlushed | End::SenderDestroyed) {
                let (when, since) = watch(&there, Duration::from_millis(300));
                if when {
                    (landed, latest) = (landed + 1, latest.max(since));
                }
            }
            drop(own);
        }
        println!("late: {end:?}: something landed in {landed} of {ROUNDS} rounds, the latest after {latest:?}");
    }
    Ok(())
}

/// Fills the memory, then looks whether it changes: if so, when the last change was seen.
fn watch(there: &Side, how_long: Duration) -> (bool, Duration) {
    const GRAIN: usize = 512;
    let begin = Instant::now();
    let (mut changed, mut last) = (false, Duration::ZERO);
    there.fill(0, 64 * KIB, |_| 0x11);
    while begin.elapsed() < how_long {
        for at in (0..64 * KIB).step_by(GRAIN) {
            // SAFETY: inside of the leaked memory.
            if unsafe { there.byte(at).read_volatile() } != 0x11 {
                (changed, last) = (true, begin.elapsed());
                // SAFETY: as above.
                unsafe { there.byte(at).write_volatile(0x11) };
            }
        }
    }
    (changed, last)
}

fn times(here: &str, there: &str) -> Outcome {
    const ROUNDS: usize = 21;
    let (here, mut there) = (Side::new(here, 4 * MIB)?, Side::new(there, 4 * MIB)?);
    let mut taken: [(&str, Vec<Duration>); 4] =
        ["flush", "destroy, sender", "destroy, peer", "unregister, peer"].map(|name| (name, Vec::new()));
    for _ in 0..ROUNDS {
        let (own, peer) = pair(&here, &there)?;
        for _ in 0..64 {
            own.post(&mut here.request(Operation::Write, 0, 64 * KIB, there.remote(0)))?;
        }
        let begin = Instant::now();
        own.stop()?;
        here.wait(64)?;
        taken[0].1.push(begin.elapsed());
        drop((own, peer));

        let (own, peer) = pair(&here, &there)?;
        for _ in 0..64 {
            own.post(&mut here.request(Operation::Write, 0, 64 * KIB, there.remote(0)))?;
        }
        let begin = Instant::now();
        own.destroy().map_err(|(_, error)| error)?;
        taken[1].1.push(begin.elapsed());
        let mut room = Completions::with_room(64);
        while !here.queue.poll(&mut room)?.is_empty() {}
        drop(peer);

        for (nth, is_region) in [(2, false), (3, true)] {
            let (own, peer) = pair(&here, &there)?;
            let remote = there.remote(0);
            let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
            std::thread::scope(|scope| -> Outcome {
                let streaming =
                    scope.spawn(|| stream(&here, &own, remote, &stop, &written).map_err(|error| error.to_string()));
                while written.load(Ordering::Relaxed) < 8 {
                    std::hint::spin_loop();
                }
                let begin = Instant::now();
                if is_region {
                    there.region.take().expect("registered").give_up().map_err(|(_, error)| error)?;
                    taken[nth].1.push(begin.elapsed());
                } else {
                    peer.destroy().map_err(|(_, error)| error)?;
                    taken[nth].1.push(begin.elapsed());
                }
                stop.store(true, Ordering::Relaxed);
                own.stop()?;
                let left = streaming.join().expect("no panic")?;
                here.wait(left)?;
                Ok(())
            })?;
            if is_region {
                let access = Access { local_write: true, remote_read: true, remote_write: true, ..Access::default() };
                there.region = Some(Region::register(&there.domain, there.memory, access, None)?);
            }
        }
    }
    for (name, mut all) in taken {
        all.sort();
        println!("times: {name}: median {:?}, most {:?} of {ROUNDS}", all[ROUNDS / 2], all[ROUNDS - 1]);
    }
    Ok(())
}

/// A READ fills the memory that the WRITE behind it sends: what the WRITE has sent tells whether it waited.
fn fence(here: &str, there: &str) -> Outcome {
    const ROUNDS: usize = 40;
    let (here, there) = (Side::new(here, 4 * MIB)?, Side::new(there, 4 * MIB)?);
    let (own, _peer) = pair(&here, &there)?;
    // Soft-RoCE has 128 packets under way at most.
    const LEN: usize = 96 * KIB;
    for fenced in [false, true] {
        let mut early = 0;
        for _ in 0..ROUNDS {
            here.fill(0, LEN, |_| 0x01);
            there.fill(0, LEN, |_| 0x02);
            there.fill(2 * MIB, LEN, |_| 0x03);
            let piece = here.region.as_ref().expect("registered").piece(0, LEN).expect("inside");
            let mut chain = Chain::new();
            let local = Local::Pieces(std::slice::from_ref(&piece));
            let read = Request {
                id: 1,
                operation: Operation::Read,
                local,
                remote: there.remote(0),
                fenced: false,
                signaled: true,
            };
            chain.push(read);
            chain.push(Request { id: 2, operation: Operation::Write, remote: there.remote(2 * MIB), fenced, ..read });
            own.post(&mut chain)?;
            let status = here.wait(2)?;
            assert_eq!(status, Status::SUCCESS);
            if there.first_other(2 * MIB, LEN, |_| 0x02).is_some() {
                early += 1;
            }
        }
        println!(
            "fence: {}: {early} of {ROUNDS} WRITEs went before their READ was done",
            if fenced { "fenced" } else { "not fenced" }
        );
    }
    Ok(())
}

fn retries(here: &str, there: &str) -> Outcome {
    for retries in [1, 6, 7] {
        let (here, there) = (Side::new(here, 64 * KIB)?, Side::new(there, 64 * KIB)?);
        let gone = there.queue_pair()?;
        let number = gone.number();
        drop(gone);
        let own = here.queue_pair()?;
        here.connect_with(&own, number, there.gid.1, retries)?;
        own.post(&mut here.request(Operation::Write, 0, 64, there.remote(0)))?;
        let begin = Instant::now();
        match here.wait(1) {
            Ok(status) => println!("retries: {retries}: {status} after {:?}", begin.elapsed()),
            Err(error) => println!("retries: {retries}: {error}"),
        }
    }
    Ok(())
}

/// The parent of the child, which is killed: a process of its own.
struct Parent {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Parent {
    fn says(&mut self) -> Outcome<Vec<String>> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        Ok(line.split_whitespace().map(str::to_owned).collect())
    }
}

fn child(here: &str, there: &str) -> Outcome {
    for keeps in ["keeps", "leaves"] {
        let here = Side::new(here, 64 * KIB)?;
        let mut process = Command::new(std::env::current_exe()?)
            .args(["child-parent", there, keeps])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (to, from) = (process.stdin.take().ok_or("stdin")?, process.stdout.take().ok_or("stdout")?);
        let mut parent = Parent { process, to, from: BufReader::new(from) };
        let said = parent.says()?;
        let (number, gid, addr, key): (u32, Gid, u64, u32) =
            (said[0].parse()?, said[1].parse()?, said[2].parse()?, said[3].parse()?);
        let own = here.queue_pair()?;
        writeln!(parent.to, "{} {}", own.number(), here.gid.1)?;
        let child: i32 = parent.says()?[0].parse()?;
        here.connect(&own, number, gid)?;
        let remote = Remote { addr, key };
        let ask = |when: &str| -> Outcome<Status> {
            own.post(&mut here.request(Operation::Write, 0, 64, remote))?;
            let status = here.wait(1)?;
            println!(
                "child: mappings {}: a WRITE {when}: {status}",
                if keeps == "keeps" { "kept from it" } else { "inherited" }
            );
            Ok(status)
        };
        ask("while the parent lives")?;
        parent.process.kill()?;
        parent.process.wait()?;
        std::thread::sleep(Duration::from_millis(300));
        ask("behind the parent's death, the child alive")?;
        Command::new("kill").args(["-9", &child.to_string()]).status()?;
    }
    Ok(())
}

fn child_parent(there: &str, keeps: bool) -> Outcome {
    let there = Side::new(there, 64 * KIB)?;
    let peer = there.queue_pair()?;
    if keeps {
        keep_from_children();
    }
    let remote = there.remote(0);
    println!("{} {} {} {}", peer.number(), there.gid.1, remote.addr, remote.key);
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let (number, gid) = line.trim().split_once(' ').ok_or("NUMBER GID")?;
    there.connect(&peer, number.parse()?, gid.parse()?)?;
    // SAFETY: the child does nothing but sleep.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            std::thread::sleep(Duration::from_secs(60));
        }
    }
    println!("{child}");
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}

fn link(here: &str, there: &str, netdev: &str) -> Outcome {
    let (here, there) = (Side::new(here, 4 * MIB)?, Side::new(there, 4 * MIB)?);
    let (own, _peer) = pair(&here, &there)?;
    let set = |state: &str| Command::new("ip").args(["link", "set", netdev, state]).status();
    let begin = Instant::now();
    own.post(&mut here.request(Operation::Write, 0, 64, there.remote(0)))?;
    println!("link: up: {}", here.wait(1)?);
    set("down")?;
    let down = Instant::now();
    own.post(&mut here.request(Operation::Write, 0, 64 * KIB, there.remote(0)))?;
    println!("link: down: {} after {:?}", here.wait(1)?, down.elapsed());
    for side in [&here, &there] {
        while let Some(event) = side.context.next_event()? {
            println!("link: {}: {event:?} within {:?}", side.context.device().name(), begin.elapsed());
        }
        println!("link: {}: {:?}", side.context.device().name(), side.context.port(1)?.state);
    }
    set("up")?;
    let up = Instant::now();
    while here.context.port(1)?.state != mooncake_verbs::PortState::Active && up.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("link: up again: port {:?} after {:?}", here.context.port(1)?.state, up.elapsed());
    for side in [&here, &there] {
        while let Some(event) = side.context.next_event()? {
            println!("link: {}: {event:?}", side.context.device().name());
        }
    }
    let (again, _peer) = pair(&here, &there)?;
    again.post(&mut here.request(Operation::Write, 0, 64 * KIB, there.remote(0)))?;
    println!("link: up again, new queue pairs: {} {:?} after it came back", here.wait(1)?, up.elapsed());
    Ok(())
}
