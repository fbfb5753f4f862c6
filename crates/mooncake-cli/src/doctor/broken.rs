//! A pool that is well, for tests of checks to break.

use std::time::Duration;

use mooncake_client::{MasterInfo, MasterPages};
use serde_json::{Value, json};

use super::member::{Host, Member, members};
use super::pool::{Pages, Pool};

/// The host that the tests' pools are looked at from.
pub const HOST: &str = "h1";

/// A client as a status tells it.
pub fn client(name: &str, host: &str, pid: u32) -> Value {
    json!({
        "name": name, "host": host, "user": "kv", "program": "mooncake", "pid": pid, "state": "ok",
        "software": format!("mooncake-client {}", env!("CARGO_PKG_VERSION")),
        "segments": 1, "lent_bytes": 1_u64 << 30, "tiers": 0, "paths": ["tcp", "shm"],
    })
}

/// What a master says that is well, with one storage node.
pub fn status() -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"), "state": "serving", "host": HOST, "pid": 7, "problems": [],
        "rpc_address": "127.0.0.1:50051", "http_address": "127.0.0.1:9003", "time_ms": 1_000_000,
        "log": {"state": "on", "bytes": 4096},
        "clients": [client("127.0.0.1:12300", HOST, 8)],
    })
}

/// A pool with that status, which was asked for when the master's clock said the same.
pub fn pool(status: Value) -> Pool {
    let info = MasterInfo {
        software: format!("mooncake-master {}", env!("CARGO_PKG_VERSION")),
        cluster_id: "mine".to_owned(),
        instance: "07".repeat(16),
        pages: MasterPages::At("127.0.0.1:9003".to_owned()),
        is_on_this_host: true,
        took: Duration::from_micros(200),
    };
    let members: Vec<Member> = members(&status, &Host { name: HOST.to_owned(), addresses: Vec::new() });
    let pages = Pages { status, asked_ms: 1_000_000.0, took: Duration::from_millis(1) };
    Pool { address: "127.0.0.1:50051".to_owned(), master: Ok(info), pages: Ok(pages), members }
}
