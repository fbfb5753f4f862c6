//! Paths, types and shapes that dashboards and engines rely on.

mod support;

use mooncake_master::Settings;
use serde_json::Value;
use support::{Client, Running};

fn filled() -> (Running, Client) {
    let master = Running::start(Settings::default());
    let mut client = Client::open(master.rpc);
    client.mount(1 << 20);
    for key in ["a/1", "b@2", "c"] {
        client.put(key, 1024);
    }
    (master, client)
}

#[test]
fn lists_are_one_name_per_line() {
    let (master, client) = filled();
    let (head, body) = master.http("GET /get_all_keys");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/plain; version=0.0.4"), "{head}");
    let mut keys: Vec<&str> = body.lines().collect();
    keys.sort_unstable();
    assert_eq!(keys, ["a/1", "b@2", "c"]);
    assert_eq!(master.http("GET /get_all_segments").1, "test:1\n");
    drop(client);
    support::eventually("a segment without its owner is not listed", || {
        master.http("GET /get_all_segments").1.is_empty()
    });
    assert_eq!(master.http("GET /get_all_keys").1, "");
    master.stop();
}

#[test]
fn health_and_details_are_json() {
    let (master, _client) = filled();
    let (head, body) = master.http("GET /health");
    assert!(head.contains("application/json; charset=utf-8"), "{head}");
    let health: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((health["status"].as_str(), health["service_ready"].as_bool()), (Some("ok"), Some(true)));
    let detail: Value = serde_json::from_str(&master.http("GET /get_segments_detail").1).unwrap();
    assert_eq!(detail["total_segments"], 1);
    let segment = &detail["segments"][0];
    for field in [
        "segment_name",
        "segment_id",
        "client_id",
        "base_address",
        "size_bytes",
        "size_human",
        "te_endpoint",
        "protocol",
        "status",
        "allocator_used_bytes",
        "allocator_capacity_bytes",
        "allocator_usage_percent",
    ] {
        assert!(!segment[field].is_null(), "{field} is missing: {segment}");
    }
    assert_eq!((segment["size_bytes"].as_u64(), segment["allocator_used_bytes"].as_u64()), (Some(1 << 20), Some(3072)));
    master.stop();
}

#[test]
fn metrics_carry_the_references_names() {
    let (master, mut client) = filled();
    client.exists("a/1");
    let (head, page) = master.http("GET /metrics");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    for line in [
        "master_allocated_bytes 3072",
        "master_total_capacity_bytes 1048576",
        "master_key_count 3",
        "master_active_clients 1",
        "mem_cache_nums_ 3",
        "mem_cache_hit_nums_ 0",
        "total_get_nums_ 0",
        "master_put_start_requests_total 3",
        "master_put_end_requests_total 3",
        "master_exist_key_requests_total 1",
        "master_batch_put_start_requests_total 0",
        "master_mount_segment_requests_total 1",
        "master_put_start_alloc_failures_total 0",
        "master_evicted_key_count 0",
        "segment_total_capacity_bytes{segment=\"test:1\"} 1048576",
        "master_value_size_bytes_bucket{le=\"4096.0\"} 3",
        "mooncake_epoch 1",
    ] {
        assert!(page.lines().any(|have| have == line), "{line} is not in\n{page}");
    }
    master.stop();
}

#[test]
fn the_summary_reads_like_the_references() {
    let master = Running::start(Settings::default());
    let (_, body) = master.http("GET /metrics/summary");
    assert!(
        body.starts_with(
            "role=leader, state=serving, service_ready=true, master={Storage: 0.00 B / 0.00 B | Keys: 0 | "
        ),
        "{body}"
    );
    assert!(body.contains("Requests (Success/Total per sec): PutStart=0/0, PutEnd=0/0"), "{body}");
    let mut client = Client::open(master.rpc);
    support::eventually("rates since the last periodic line", || {
        for _ in 0..100 {
            client.exists("k");
        }
        let (_, body) = master.http("GET /metrics/summary");
        let (_, rates) = body.split_once("Exist=").unwrap();
        !rates.starts_with("0/0")
    });
    master.stop();
}

#[test]
fn remove_all_wants_post_and_counts() {
    let (master, mut client) = filled();
    assert!(client.exists("c"));
    assert!(master.http("GET /api/v1/remove_all").0.starts_with("HTTP/1.1 405"));
    let (_, body) = master.http("POST /api/v1/remove_all");
    let unforced: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(unforced["success"], true);
    let (_, body) = master.http("POST /api/v1/remove_all?force=1");
    let forced: Value = serde_json::from_str(&body).unwrap();
    let count = |value: &Value| value["removed_count"].as_u64().unwrap();
    assert_eq!(count(&unforced) + count(&forced), 3);
    assert_eq!(master.http("GET /get_all_keys").1, "");
    let (head, body) = master.http("POST /api/v1/remove_all?force=true&force=1");
    assert!(head.starts_with("HTTP/1.1 400") && head.contains("application/json"), "{head}");
    let error: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((error["success"].as_bool(), error["error_code"].as_i64()), (Some(false), Some(-600)));
    assert!(error["error_message"].as_str().unwrap().contains("force"), "{error}");
    let (head, body) = master.http("GET /nothing");
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["success"], false);
    master.stop();
}
