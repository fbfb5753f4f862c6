//! A master whose disk was full goes on with a new log, without a restart. Alone in its process: it sets a limit.

mod support;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use support::{Client, Running, Scratch};

fn json(master: &Running, request: &str) -> (String, Value) {
    let (head, body) = master.http(request);
    (head[9..12].to_owned(), serde_json::from_str(&body).unwrap())
}

fn degraded(master: &Running) -> Value {
    let (status, health) = json(master, "GET /health");
    assert_eq!((status.as_str(), &health["service_ready"]), ("200", &Value::Bool(true)), "it serves: {health}");
    health["degraded"].clone()
}

#[test]
fn a_lost_log_degrades_health_until_a_new_one_is_begun_which_a_restart_reads() {
    let scratch = Scratch::new();
    let master = Running::start(scratch.settings());
    let mut client = Client::open(master.rpc);
    client.mount(1 << 20);
    client.put("before", 1000);
    assert_eq!(degraded(&master), Value::Array(vec![]));
    let (status, refused) = json(&master, "POST /api/v1/start_log");
    assert!(status == "409" && refused["error_message"].as_str().unwrap().contains("not lost"), "{refused}");

    let usual = getrlimit(Resource::Fsize);
    let size = std::fs::metadata(scratch.log_files().pop().unwrap()).unwrap().len();
    setrlimit(Resource::Fsize, Rlimit { current: Some(size + 40), ..usual }).unwrap();
    client.put("without", 1000);
    assert_eq!(degraded(&master), Value::from(vec!["log_lost"]));
    // The disk is as full as before: nothing changes.
    setrlimit(Resource::Fsize, Rlimit { current: Some(40), ..usual }).unwrap();
    let (status, refused) = json(&master, "POST /api/v1/start_log");
    setrlimit(Resource::Fsize, usual).unwrap();
    assert_eq!((status.as_str(), &refused["success"]), ("503", &Value::Bool(false)), "{refused}");
    assert!(degraded(&master) == Value::from(vec!["log_lost"]) && !scratch.current().exists());
    client.put("still without", 1000);

    let (status, begun) = json(&master, "POST /api/v1/start_log");
    assert_eq!((status.as_str(), &begun["success"]), ("200", &Value::Bool(true)), "{begun}");
    assert_eq!(degraded(&master), Value::Array(vec![]));
    let page = master.http("GET /metrics").1;
    assert!(page.contains("mooncake_log_lost 0") && page.contains("mooncake_log_enabled 1"), "{page}");
    let last = client.put("after", 1000);
    let seen = client.highest.unwrap();
    master.stop();

    // Nothing was lost, and the log's witness vouches for it: the epoch is kept.
    let master = Running::start(scratch.settings());
    assert!(master.http("GET /metrics").1.contains(&format!("mooncake_epoch {}\n", seen.epoch)));
    let resumed = client.resume_with(master.rpc, Some(seen));
    assert_eq!(resumed.refusal, None);
    for key in ["before", "without", "still without", "after"] {
        assert!(client.exists(key), "{key}");
    }
    client.mount(1 << 20);
    assert!(client.put("of the next run", 1000) > last, "no rid is given out twice");
    master.stop();
}
