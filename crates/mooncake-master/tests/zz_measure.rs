mod support;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixStream;
use std::time::Instant;
use mooncake_wire::message::*;
use mooncake_wire::*;
use support::*;

fn rss() -> u64 {
    let s = std::fs::read_to_string("/proc/self/statm").unwrap();
    s.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
#[ignore]
fn measure() {
    let scratch = Scratch::new("measure");
    let master = Running::start(scratch.settings());
    let mut client = Client::open(master.rpc);
    client.mount(1 << 30);
    let name = client.hello.unix_socket.clone();
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let mut s = UnixStream::connect_addr(&address).unwrap();
    s.write_all(&CONTROL_PREFACE).unwrap();
    write_frame(&mut s, &Hello { version_min: 1, version_max: 1, role: Some(hello::Role::Attach(AttachCall { session: client.session, secret: client.secret })), ..Hello::default() }).unwrap();
    let r: HelloReply = read_frame(&mut s, MAX_FRAME).unwrap();
    assert!(r.refusal.is_none());
    client.put("k", 1000);
    let mut out = Vec::new();
    let ex = Request { id: 1, body: Some(request::Body::Exists(Exists { keys: Some(pack_keys(&["k"])), sizes: false })), ..Default::default() };
    encode_frame(&ex, &mut out);
    let mut buf = vec![0u8; 1 << 20];
    for round in 0..3 {
        let mut times = Vec::new();
        for _ in 0..20000 {
            let t = Instant::now();
            s.write_all(&out).unwrap();
            s.read(&mut buf).unwrap();
            times.push(t.elapsed());
        }
        times.sort();
        println!("unix exists p50 {:?} p99 {:?} ({round})", times[10000], times[19800]);
        let mut times = Vec::new();
        for _ in 0..5000 {
            let t = Instant::now();
            client.call.write_all(&out).unwrap();
            client.call.read(&mut buf).unwrap();
            times.push(t.elapsed());
        }
        times.sort();
        println!("tcp exists p50 {:?}", times[2500]);
        let mut times = Vec::new();
        let mut ends = Vec::new();
        for i in 0..2000 {
            client.sequence += 1;
            out_put(&mut s, client.sequence, &format!("put-{round}-{i}"), &mut times, &mut ends);
            if i % 500 == 0 { client.beat(); }
            client.sequence += 1;
        }
        times.sort(); ends.sort();
        println!("put_start p50 {:?}  put_end p50 {:?}", times[1000], ends[1000]);
    }
    let keys: Vec<String> = (0..1000).map(|i| format!("put-0-{i}")).collect();
    let ex = Request { id: 1, body: Some(request::Body::Exists(Exists { keys: Some(pack_keys(&keys)), sizes: false })), ..Default::default() };
    let mut times = Vec::new();
    for _ in 0..1000 {
        let t = Instant::now();
        write_frame(&mut s, &ex).unwrap();
        let _: Reply = read_frame(&mut s, MAX_FRAME).unwrap();
        times.push(t.elapsed());
    }
    times.sort();
    println!("batch exists 1000: p50 {:?}", times[500]);
    // 8 clients
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut s = UnixStream::connect_addr(&address).unwrap();
                s.write_all(&CONTROL_PREFACE).unwrap();
                write_frame(&mut s, &Hello { version_min: 1, version_max: 1, role: Some(hello::Role::Attach(AttachCall { session: client.session, secret: client.secret })), ..Hello::default() }).unwrap();
                let _: HelloReply = read_frame(&mut s, MAX_FRAME).unwrap();
                let mut buf = [0; 1000];
                for _ in 0..20000 { s.write_all(&out).unwrap(); s.read(&mut buf).unwrap(); }
            });
        }
    });
    println!("8 clients: {} ops/s", (160000.0 / start.elapsed().as_secs_f64()) as u64);
    client.beat(); let before = rss();
    for batch in 0..200 {
        let keys: Vec<String> = (0..1000).map(|i| format!("mem-{:08}", batch * 1000 + i)).collect();
        let entries: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), 64)).collect();
        let rids = client.start(&entries);
        client.end(&rids);
        client.beat();
    }
    println!("bytes per object: {}", (rss() - before) as f64 / 200000.0);
    let seq = client.mutate(request::Body::RemoveAll(RemoveAll { force: true }));
    println!("{seq:?} after remove_all {} KiB more", (rss().saturating_sub(before)) >> 10);
    std::thread::sleep(std::time::Duration::from_millis(500));
    println!("after remove_all {} KiB more", (rss().saturating_sub(before)) >> 10);
    master.stop();
}

fn out_put(s: &mut UnixStream, seq: u64, key: &str, times: &mut Vec<std::time::Duration>, ends: &mut Vec<std::time::Duration>) {
    let t = Instant::now();
    write_frame(s, &Request { id: 1, sequence: seq, answered_below: seq, body: Some(put_start(&[(key, 1000)])) }).unwrap();
    let r: Reply = read_frame(s, MAX_FRAME).unwrap();
    times.push(t.elapsed());
    let Some(reply::Body::PutStart(p)) = r.body else { panic!("{r:?}") };
    let rid = p.slots[0].replicas[0].rid;
    let t = Instant::now();
    write_frame(s, &Request { id: 1, sequence: seq + 1, answered_below: seq + 1, body: Some(put_end(&[rid])) }).unwrap();
    let _: Reply = read_frame(s, MAX_FRAME).unwrap();
    ends.push(t.elapsed());
}
