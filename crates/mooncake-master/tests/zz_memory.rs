mod support;
use mooncake_wire::message::*;
use support::*;
fn rss(pid: &str) -> u64 {
    let s = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    s.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
#[test]
#[ignore]
fn memory() {
    let pid = std::env::var("PID").unwrap();
    let batch_size: usize = std::env::var("BATCH").unwrap().parse().unwrap();
    let mut client = Client::open(std::env::var("RPC").unwrap().parse().unwrap());
    client.mount(1 << 30);
    let before = rss(&pid);
    for batch in 0..200_000 / batch_size {
        let keys: Vec<String> = (0..batch_size).map(|i| format!("mem-{:08}", batch * batch_size + i)).collect();
        let entries: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), 64)).collect();
        let rids = client.start(&entries);
        client.end(&rids);
        if batch_size > 100 || batch % 200 == 0 { client.beat(); }
    }
    println!("before {} KiB, bytes per object: {}", before >> 10, (rss(&pid) - before) as f64 / 200000.0);
    client.beat();
    let n = client.mutate(request::Body::RemoveAll(RemoveAll { force: true }));
    println!("{n:?} after remove_all {} KiB more", (rss(&pid).saturating_sub(before)) >> 10);
    for _ in 0..4 {
        std::thread::sleep(std::time::Duration::from_millis(500));
        client.beat();
        println!("after remove_all {} KiB more", (rss(&pid).saturating_sub(before)) >> 10);
    }
}
