//! Paths, types and shapes that dashboards and engines rely on.

use mooncake_master::Settings;
use mooncake_wire::message::remove_reply::Outcome;
use mooncake_wire::message::{self, request};
use mooncake_wire::pack_keys;
use serde_json::Value;

use crate::support;
use crate::support::{Client, Running, Scratch};

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
fn keys_are_listed_by_prefix_up_to_a_limit_and_odd_ones_in_one_line_each() {
    let (master, mut client) = filled();
    client.put("a/\n2", 1024);
    let listed = |query: &str| -> Vec<String> {
        let (head, body) = master.http(&format!("GET /get_all_keys{query}"));
        assert!(head.starts_with("HTTP/1.1 200"), "{query}: {head}");
        let mut keys: Vec<String> = body.lines().map(str::to_owned).collect();
        keys.sort_unstable();
        keys
    };
    assert_eq!(listed(""), ["a/%0A2", "a/1", "b@2", "c"]);
    for prefix in ["a/", "a%2F"] {
        assert_eq!(listed(&format!("?prefix={prefix}")), ["a/%0A2", "a/1"]);
    }
    assert_eq!((listed("?limit=0").len(), listed("?limit=3").len(), listed("?prefix=a&limit=1").len()), (0, 3, 1));
    let (head, body) = master.http("GET /get_all_keys?limit=few");
    assert!(head.starts_with("HTTP/1.1 400") && body.contains("limit"), "{head} {body}");
    // As they are listed they can be asked for.
    let found: Value = serde_json::from_str(&master.http("GET /batch_query_keys?keys=a/%0A2").1).unwrap();
    assert_eq!(found["data"]["a/%0A2"]["ok"], true, "{found}");
    let (head, found) = master.http("GET /query_key?key=a/%0A2");
    assert!(head.starts_with("HTTP/1.1 200"), "{head} {found}");
    master.stop();
}

#[test]
fn the_index_names_every_page() {
    let (master, _client) = filled();
    let (head, index) = master.http("GET /");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/plain"), "{head}");
    let pages: Vec<&str> = index.split([' ', ',', '\n']).filter(|word| word.starts_with('/')).collect();
    assert!(pages.len() > 12, "{pages:?}");
    for page in pages {
        assert!(!master.http(&format!("GET {page}")).1.contains("no such page"), "{page}");
    }
    assert!(master.http("GET /nothing").1.contains("/ lists those"));
    master.stop();
}

#[test]
fn health_and_details_are_json() {
    let (master, _client) = filled();
    let (head, body) = master.http("GET /health");
    assert!(head.contains("application/json; charset=utf-8"), "{head}");
    let health: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((health["status"].as_str(), health["service_ready"].as_bool()), (Some("ok"), Some(true)));
    let leader: Value = serde_json::from_str(&master.http("GET /leader").1).unwrap();
    assert_eq!(leader["present"], false);
    for page in [&health, &leader] {
        for absent in ["leader_address", "view_version"] {
            assert_eq!(page.get(absent), Some(&Value::Null), "{absent}: {page}");
        }
    }
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
    let (high, low) = segment["segment_id"].as_str().unwrap().split_once('-').unwrap();
    assert!(high.parse::<u64>().is_ok() && low.parse::<u64>().is_ok(), "{segment}");
    assert_eq!((segment["size_bytes"].as_u64(), segment["allocator_used_bytes"].as_u64()), (Some(1 << 20), Some(3072)));
    master.stop();
}

#[test]
fn objects_and_segments_can_be_asked_for() {
    let (master, mut client) = filled();
    client.put("x+y,z%41", 10);
    let json = |request: &str| -> (u16, Value) {
        let (head, body) = master.http(request);
        (head[9..12].parse().unwrap(), serde_json::from_str(&body).unwrap())
    };
    // The key stands in the address as it is.
    for key in ["a/1", "b@2", "x+y,z%41"] {
        let (status, found) = json(&format!("GET /query_key?other=1&key={key}"));
        assert_eq!((status, &found["success"]), (200, &Value::Bool(true)), "{key}");
        let [replica] = &found["data"].as_array().unwrap()[..] else { panic!("{found}") };
        assert_eq!(replica["size_"], if key == "x+y,z%41" { 10 } else { 1024 });
        assert!(replica["buffer_address_"].is_u64() && replica["protocol_"] == "tcp", "{replica}");
        assert_eq!(replica["transport_endpoint_"], "test:1");
    }
    let (status, refused) = json("GET /query_key?key=a%2F2");
    assert_eq!((status, refused["error_code"].as_i64()), (404, Some(-704)));
    assert_eq!(refused["error_message"], "OBJECT_NOT_FOUND");
    for page in ["/query_key?key=", "/query_segment?segment="] {
        for request in [format!("GET {page}"), format!("GET {}", page.split('?').next().unwrap())] {
            let (status, refused) = json(&request);
            assert_eq!((status, refused["error_code"].as_i64()), (400, Some(-600)), "{request}");
            assert!(refused["error_message"].as_str().unwrap().contains(page), "{request}: {refused}");
        }
    }

    let (status, found) = json("GET /batch_query_keys?keys=a%2F1,none,c");
    assert_eq!((status, &found["success"]), (200, &Value::Bool(true)));
    let data = &found["data"];
    assert_eq!((&data["a/1"]["ok"], &data["none"]["ok"]), (&Value::Bool(true), &Value::Bool(false)));
    assert_eq!(data["c"]["values"][0]["size_"], 1024);
    assert_eq!((&data["c"]["error"], &data["none"]["error"]), (&Value::Null, &Value::from("OBJECT_NOT_FOUND")));
    assert_eq!((&data["none"]["values"], data.as_object().unwrap().len()), (&Value::Null, 3));
    for entry in data.as_object().unwrap().values() {
        let names: Vec<&str> = entry.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names.len(), 6, "{names:?}");
        for absent in ["disk_values", "local_disk_values", "nof_values"] {
            assert_eq!(entry.get(absent), Some(&Value::Null), "{absent}");
        }
    }
    for request in ["GET /batch_query_keys", "GET /batch_query_keys?keys=", "GET /batch_query_keys?keys=,"] {
        let (status, refused) = json(request);
        assert_eq!(status, 400);
        assert_eq!(refused["error"], "No keys provided. Use ?keys=key1,key2,...");
    }

    let (head, body) = master.http("GET /query_segment?segment=test:1");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/plain"), "{head}");
    assert_eq!(body, "test:1\nUsed(bytes): 4096\nCapacity(bytes) : 1048576\n");
    let (head, body) = master.http("GET /query_segment?segment=nobody");
    assert!(head.starts_with("HTTP/1.1 500"), "{head}");
    assert_eq!(body, "Failed to query segment");
    master.stop();
}

#[test]
fn a_page_of_one_key_protects_it_and_a_page_of_several_does_not() {
    let (master, mut client) = filled();
    master.http("GET /batch_query_keys?keys=a/1,b@2,c");
    master.http("GET /query_key?key=c");
    let remove = |key: &str| {
        let remove = message::Remove { keys: Some(pack_keys(&[key])), force: false };
        request::Body::Remove(remove)
    };
    for (key, outcome) in [("a/1", Outcome::Removed), ("c", Outcome::Protected)] {
        let removed = client.mutate(remove(key));
        let outcomes = vec![outcome.into()];
        assert_eq!(removed, message::reply::Body::Remove(message::RemoveReply { outcomes }), "{key}");
    }
    master.stop();
}

#[test]
fn metrics_carry_the_references_names() {
    let (master, mut client) = filled();
    client.exists("a/1");
    client.lookup("a/1");
    client.lookup("nothing");
    client.beat();
    let (head, page) = master.http("GET /metrics");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    for line in [
        "master_allocated_bytes 3072",
        "master_total_capacity_bytes 1048576",
        "master_key_count 3",
        "master_soft_pin_key_count 0",
        "master_active_clients 1",
        "mem_cache_nums_ 3",
        "mem_cache_hit_nums_ 1",
        "mem_cache_hit_bytes_total 1024",
        "total_get_nums_ 2",
        "valid_get_nums_ 1",
        "mooncake_memory_hit_ratio 0.5",
        "master_put_start_requests_total 3",
        "master_put_end_requests_total 3",
        "master_exist_key_requests_total 1",
        "master_get_replica_list_requests_total 2",
        "master_get_replica_list_failures_total 1",
        "master_ping_requests_total 1",
        "master_batch_put_start_requests_total 0",
        "master_batch_get_replica_list_partial_successes_total 0",
        "master_mount_segment_requests_total 1",
        "master_remount_segment_requests_total 0",
        "master_remove_by_regex_requests_total 0",
        "master_put_start_alloc_failures_total 0",
        "master_put_start_partial_allocations_total 0",
        "master_put_start_discarded_staging_size 0",
        "master_attempted_evictions_total 0",
        "master_successful_evictions_mem 0",
        "master_evicted_key_count 0",
        "master_evicted_size_bytes_mem 0",
        "master_snapshot_success 0",
        "master_snapshot_fail 0",
        "master_snapshot_duration_ms_bucket{le=\"240000\"} 0",
        "segment_allocated_bytes{segment=\"test:1\"} 3072",
        "segment_total_capacity_bytes{segment=\"test:1\"} 1048576",
        "master_value_size_bytes_bucket{le=\"4096\"} 3",
        "master_value_size_bytes_sum 3072",
        "mooncake_epoch 1",
    ] {
        assert!(page.lines().any(|have| have == line), "{line} is not in\n{page}");
    }
    master.stop();
}

#[test]
fn every_metric_says_what_it_is_before_its_first_value() {
    let (master, _client) = filled();
    let (_, page) = master.http("GET /metrics");
    let mut begun = String::new();
    let mut helped = String::new();
    for line in page.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            helped = help.split_once(' ').expect("a help text").0.to_owned();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram", "summary"].contains(&kind), "{line}");
            assert_eq!(name, helped, "no help for it");
            begun = name.to_owned();
        } else {
            let name = line.split(['{', ' ']).next().unwrap();
            let of_histogram = ["_bucket", "_sum", "_count"].iter().any(|end| name == format!("{begun}{end}"));
            assert!(name == begun || of_histogram, "{line} under {begun}");
            assert!(line.rsplit_once(' ').unwrap().1.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
        }
    }
    master.stop();
}

#[test]
fn how_long_operations_and_the_log_take_is_told_by_kind() {
    let scratch = Scratch::new();
    let master = Running::start(scratch.settings());
    let mut client = Client::open(master.rpc);
    client.mount(1 << 20);
    for key in ["a", "b"] {
        client.put(key, 1024);
        client.exists(key);
    }
    let page = master.http("GET /metrics").1;
    let value = |name: &str| -> f64 {
        let line = page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in\n{page}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    for (op, count) in [("exists", 2.0), ("put_start", 2.0), ("put_end", 2.0), ("mount", 1.0), ("lookup", 0.0)] {
        assert_eq!(value(&format!("mooncake_request_duration_seconds_count{{op=\"{op}\"}}")), count, "{op}");
        let sum = value(&format!("mooncake_request_duration_seconds_sum{{op=\"{op}\"}}"));
        assert!((sum > 0.0) == (count > 0.0) && sum < 10.0, "{op}: {sum}");
        let all = value(&format!("mooncake_request_duration_seconds_bucket{{op=\"{op}\",le=\"+Inf\"}}"));
        assert_eq!(all, count, "{op}");
    }
    assert_eq!(value("mooncake_log_append_duration_seconds_count"), value("mooncake_log_writes_total"));
    assert!(value("mooncake_log_writes_total") >= 6.0);
    assert_eq!(value("mooncake_log_fsync_duration_seconds_count"), 1.0, "only the first epoch waits for the disk");
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
fn without_tenants_every_tenant_is_the_same() {
    let (master, _client) = filled();
    for (tenant, removed) in [("x", 3), ("default", 0), ("", 0), ("a%20b/%00", 0)] {
        let (head, body) = master.http(&format!("POST /api/v1/remove_all?force=1&tenant_id={tenant}"));
        assert!(head.starts_with("HTTP/1.1 200"), "{tenant}: {head}");
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(answer["removed_count"], removed, "{tenant}: {answer}");
    }
    master.stop();
}

#[test]
fn remove_all_wants_post_and_counts() {
    let (master, mut client) = filled();
    assert!(client.exists("c"));
    assert!(master.http("GET /api/v1/remove_all").0.starts_with("HTTP/1.1 405"));
    for unclear in ["force=maybe", "forse=true", "force=TRUE"] {
        let (head, body) = master.http(&format!("POST /api/v1/remove_all?{unclear}"));
        assert!(head.starts_with("HTTP/1.1 400") && body.contains("force"), "{unclear}: {head} {body}");
    }
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
