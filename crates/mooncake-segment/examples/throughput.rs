//! Throughput and latency of every path, beside a plain loopback stream
//! measured in the same run:
//!
//! ```text
//! cargo run --release -p mooncake-segment --example throughput
//! ```
//!
//! "plain" sends the same bytes over one TCP connection with `write_all` and
//! `read_exact` and nothing else: no stamps, no checksum.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_ids::{Rid, SegmentUuid};
use mooncake_memory::{Destination, SegmentMemory, SegmentOptions, Source};
use mooncake_os::{Deadline, ProcessIdentity, boot_id};
use mooncake_segment::{
    EpochQuestion, LinkEvents, LinkOptions, Links, Path, Paths, SegmentAddress, SegmentServer, ServerEvents,
    ServerOptions,
};

struct Quiet;

impl ServerEvents for Quiet {
    fn fenced(&self, _: SegmentUuid, _: Rid) {}
    fn epoch_taken(&self, _: u16, _: SegmentUuid) {}
}

impl LinkEvents for Quiet {
    fn owner_gone(&self, _: SegmentUuid, _: Option<ProcessIdentity>) {}
    fn take_epoch(&self, question: EpochQuestion) {
        question.confirm();
    }
}

const SIZES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let segment: u64 = 64 << 20;
    let server = SegmentServer::start(ServerOptions::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0, 1), Box::new(Quiet))?;
    let memory = Arc::new(SegmentMemory::create(segment, SegmentOptions::default())?);
    memory.populate_step(segment)?;
    server.add(memory.clone(), 1);
    let address = SegmentAddress {
        uuid: memory.uuid(),
        bytes: segment,
        name: "bench".into(),
        boot_id: boot_id()?,
        unix_socket: server.unix_name().into(),
        tcp: vec![server.tcp_addr().to_string()],
        access_key: 1,
        process: None,
        tier_file_blocks: 0,
    };
    let links = |path| Links::new(LinkOptions { paths: Paths::only(path), ..LinkOptions::new(2) }, Box::new(Quiet));
    let (tcp, shm) = (links(Path::Tcp)?, links(Path::SharedMemory)?);

    println!("GB/s (median call); verified reads and checksummed writes");
    println!(
        "{:>9} {:>8} {:>9} {:>9} {:>7} {:>7} {:>9} {:>9}",
        "bytes", "plain", "tcp read", "tcp write", "read/p", "write/p", "shm read", "shm write"
    );
    let mut rid = Rid(1 << 48);
    let mut plain = Plain::new()?;
    for size in SIZES {
        let data: Vec<u8> = (0..size).map(|i| ((i * 31) >> 3) as u8).collect();
        let mut back = vec![0; size];
        let wait = Deadline::at(Instant::now() + Duration::from_secs(120));
        let (tcp, shm) = (tcp.link(&address, &wait)?, shm.link(&address, &wait)?);
        // One call of each kind in turn, so that a noisy machine disturbs all alike.
        let rounds = ((1 << 30) / size).clamp(50, 3000);
        let mut times: [Vec<f64>; 5] = Default::default();
        for _ in 0..rounds {
            times[0].push(seconds(|| plain.round(&mut back)));
            for (i, link) in [&tcp, &shm].into_iter().enumerate() {
                let mut crc = 0;
                rid.0 += 2;
                times[2 + 2 * i].push(seconds(|| {
                    crc = link.write(rid, 0, &[Source::new(&data)], &wait).expect("write");
                }));
                times[1 + 2 * i].push(seconds(|| {
                    link.read(rid, 0, &mut [Destination::new(&mut back)], Some(crc), &wait).expect("read");
                }));
                assert!(back == data, "the bytes that came are not those that went");
            }
        }
        let results = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[rounds / 2]
        });
        let rate = |seconds: f64| size as f64 / seconds / 1e9;
        let [p, tr, tw, sr, sw] = results;
        println!(
            "{size:>9} {:>8.2} {:>9.2} {:>9.2} {:>6.0}% {:>6.0}% {:>9.2} {:>9.2}",
            rate(p),
            rate(tr),
            rate(tw),
            100.0 * p / tr,
            100.0 * p / tw,
            rate(sr),
            rate(sw)
        );
        if size == SIZES[0] {
            println!(
                "          p50 us: plain {:.1}, tcp read {:.1}, write {:.1}, shm read {:.2}, write {:.2}",
                p * 1e6,
                tr * 1e6,
                tw * 1e6,
                sr * 1e6,
                sw * 1e6
            );
        }
    }
    Ok(())
}

fn seconds(call: impl FnOnce()) -> f64 {
    let started = Instant::now();
    call();
    started.elapsed().as_secs_f64()
}

/// One request of 64 bytes for so many bytes, over a bare connection.
struct Plain {
    stream: TcpStream,
}

impl Plain {
    fn new() -> std::io::Result<Plain> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        stream.set_nodelay(true)?;
        std::thread::spawn(move || -> std::io::Result<()> {
            let (mut peer, _) = listener.accept()?;
            peer.set_nodelay(true)?;
            let data = vec![7; 16 << 20];
            loop {
                let mut request = [0; 64];
                peer.read_exact(&mut request)?;
                let len = u64::from_le_bytes([
                    request[0], request[1], request[2], request[3], request[4], request[5], request[6], request[7],
                ]);
                peer.write_all(&data[..len as usize])?;
            }
        });
        Ok(Plain { stream })
    }

    fn round(&mut self, into: &mut [u8]) {
        let mut request = [0; 64];
        request[..8].copy_from_slice(&(into.len() as u64).to_le_bytes());
        self.stream.write_all(&request).expect("plain request");
        self.stream.read_exact(into).expect("plain bytes");
    }
}
