//! What it costs a master that many clients are connected to it and do nothing: their beats, and its answers.
//!
//!     cargo build --release -p mooncake-cli
//!     cargo run --release -p mooncake-scale --bin mooncake-beats -- --sessions 1000 --seconds 20
//!
//! Opens the sessions over TCP from this one process, as clients of this version do, and has each beat twice a second,
//! spread evenly. Prints the processor time of the master's process, a share of one core, and how often it was woken
//! up.

#![forbid(unsafe_code)]

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use mooncake_wire::message::{AnchorDown, AnchorUp, Beat, Hello, HelloReply, OpenSession, anchor_up, hello};
use mooncake_wire::{CONTROL_PREFACE, FEATURES, FRAME_BYTES_MAX, FrameReader, VERSION, encode_frame};
use prost::Message;
use serde::Serialize;

/// Between two beats of a session.
const BEAT: Duration = Duration::from_millis(500);

/// In a second, as Linux counts processor time for its users.
const TICKS: f64 = 100.0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Options { sessions: count, seconds, master, json } = Options::parse();
    let built = std::env::current_exe()?.ancestors().nth(1).ok_or("no folder of builds")?.join("mooncake");
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let master = Master::start(&master.unwrap_or(built), port)?;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let began = Instant::now();
    let mut sessions = (0..count).map(|number| Session::open(address, number)).collect::<Result<Vec<_>, _>>()?;
    let opened_in = began.elapsed().as_secs_f64();

    beat(&mut sessions, Duration::from_secs(2))?;
    let before = (Instant::now(), master.processor_time()?, master.wake_ups()?);
    let beats = beat(&mut sessions, Duration::from_secs(seconds))?;
    let seconds = before.0.elapsed().as_secs_f64();
    let after = master.processor_time()?;
    let (all, user, system) = (after.all - before.1.all, after.user - before.1.user, after.system - before.1.system);
    let cost = Cost {
        sessions: count,
        opened_in,
        beats,
        seconds,
        share_of_a_core: 100.0 * all / seconds,
        user: 100.0 * user / seconds,
        system: 100.0 * system / seconds,
        microseconds_a_beat: 1e6 * all / beats as f64,
        wake_ups_a_second: (master.wake_ups()? - before.2) as f64 / seconds,
    };
    match json {
        true => println!("{}", serde_json::to_string(&cost)?),
        false => println!("{cost}"),
    }
    Ok(())
}

/// Measures what it costs a master that many clients are connected to it and do nothing.
#[derive(Debug, Parser)]
struct Options {
    /// Clients.
    #[arg(long, default_value_t = 1_000)]
    sessions: usize,
    /// How long they are watched.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// The program; without one, the `mooncake` that was built beside this.
    #[arg(long)]
    master: Option<PathBuf>,
    /// Figures as JSON.
    #[arg(long)]
    json: bool,
}

/// What it came to.
#[derive(Debug, Serialize)]
struct Cost {
    sessions: usize,
    /// Seconds in which all of them were opened.
    opened_in: f64,
    beats: u64,
    seconds: f64,
    /// Percent of one.
    share_of_a_core: f64,
    /// Of which for the program itself, as the clock's ticks found it.
    user: f64,
    /// And for the kernel.
    system: f64,
    microseconds_a_beat: f64,
    wake_ups_a_second: f64,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cost { sessions, opened_in, beats, seconds, share_of_a_core, user, system, .. } = self;
        writeln!(f, "{sessions} sessions opened in {opened_in:.2} s")?;
        write!(
            f,
            "{beats} beats in {seconds:.1} s: {share_of_a_core:.2} % of a core (user {user:.2} %, system {system:.2} \
             %), {:.1} us a beat, {:.0} wake-ups a second",
            self.microseconds_a_beat, self.wake_ups_a_second
        )
    }
}

/// Seconds. The clock's ticks say who has a processor at that moment: they tell user from system, but are no measure of
/// threads that wake up with the clock.
struct ProcessorTime {
    all: f64,
    user: f64,
    system: f64,
}

/// A master's process; ended when dropped.
struct Master(Child);

impl Master {
    fn start(binary: &PathBuf, port: u16) -> Result<Master, Box<dyn std::error::Error>> {
        let child = Command::new(binary)
            .args(["master", "--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1", "--metrics_port=0", "--wal=off"])
            .arg(format!("--rpc_port={port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let master = Master(child.map_err(|error| format!("{}: {error}", binary.display()))?);
        let until = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > until {
                return Err("the master does not listen".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(master)
    }

    /// Of all its threads so far.
    fn processor_time(&self) -> std::io::Result<ProcessorTime> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        // Behind the name, which may hold anything.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().collect();
        let ticks = |field: usize| fields[field].parse::<f64>().unwrap_or_default();
        let mut all = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.0.id()))? {
            let times = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            all += times.split_ascii_whitespace().next().and_then(|run| run.parse::<u64>().ok()).unwrap_or_default();
        }
        Ok(ProcessorTime { all: all as f64 / 1e9, user: ticks(11) / TICKS, system: ticks(12) / TICKS })
    }

    /// How often any of its threads has waited, and been woken up.
    fn wake_ups(&self) -> std::io::Result<u64> {
        let mut all = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.0.id()))? {
            let status = std::fs::read_to_string(thread?.path().join("status"))?;
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            all += line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or_default();
        }
        Ok(all)
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The anchor of a session that does nothing.
struct Session {
    anchor: TcpStream,
    reader: FrameReader,
    beats: u64,
    pongs: u64,
}

impl Session {
    fn open(address: SocketAddr, number: usize) -> Result<Session, Box<dyn std::error::Error>> {
        let mut anchor = TcpStream::connect(address)?;
        anchor.set_nodelay(true)?;
        let role = hello::Role::Open(OpenSession { host_name: format!("crowd:{number}"), process: None, claim: None });
        let hello = Hello {
            version_min: VERSION,
            version_max: VERSION,
            features: FEATURES,
            role: Some(role),
            ..Hello::default()
        };
        let mut bytes = CONTROL_PREFACE.to_vec();
        encode_frame(&hello, &mut bytes);
        anchor.write_all(&bytes)?;
        let mut reader = FrameReader::default();
        let mut room = [0; 4096];
        let frame = loop {
            if let Some(frame) = reader.next_frame(FRAME_BYTES_MAX)? {
                break frame;
            }
            let count = anchor.read(&mut room)?;
            if count == 0 {
                return Err("the master hung up".into());
            }
            reader.buffer_mut().extend_from_slice(&room[..count]);
        };
        if let Some(refusal) = HelloReply::decode(frame)?.refusal {
            return Err(refusal.reason.into());
        }
        anchor.set_nonblocking(true)?;
        Ok(Session { anchor, reader, beats: 0, pongs: 0 })
    }

    /// Takes the answer to the last beat, and sends the next.
    fn beat(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        let mut room = [0; 4096];
        match self.anchor.read(&mut room) {
            Ok(0) => return Err("the master hung up".into()),
            Ok(count) => self.reader.buffer_mut().extend_from_slice(&room[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        while let Some(frame) = self.reader.next_frame(FRAME_BYTES_MAX)? {
            AnchorDown::decode(frame)?;
            self.pongs += 1;
        }
        if self.beats > self.pongs + 4 {
            return Err(format!("{} beats were answered {} times", self.beats, self.pongs).into());
        }
        self.beats += 1;
        let beat = AnchorUp { body: Some(anchor_up::Body::Beat(Beat { number: self.beats, ..Beat::default() })) };
        let mut bytes = Vec::new();
        encode_frame(&beat, &mut bytes);
        self.anchor.write_all(&bytes)?;
        Ok(())
    }
}

/// Has all sessions beat for so long, one after the other. Gives the number of beats.
fn beat(sessions: &mut [Session], time: Duration) -> Result<u64, Box<dyn std::error::Error>> {
    let (began, step) = (Instant::now(), BEAT / sessions.len() as u32);
    let mut beats = 0;
    while began.elapsed() < time {
        let due = began + step * beats as u32;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let next = beats as usize % sessions.len();
        sessions[next].beat()?;
        beats += 1;
    }
    Ok(beats)
}
