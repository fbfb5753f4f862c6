//! A master that can neither write its log nor rename it away answers no operation any more, and says that it is not
//! ready, though alive. Alone in its process: it sets a limit.

mod support;

use std::io::Read;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use support::{Client, Running, Scratch, put_start, write_frame};

#[test]
fn a_master_whose_log_can_neither_be_written_nor_renamed_away_is_not_ready() {
    let scratch = Scratch::new();
    let master = Running::start(scratch.settings());
    let mut client = Client::open(master.rpc);
    client.mount(1 << 20);
    client.put("before", 1000);
    let ready = |master: &Running| {
        let health: Value = serde_json::from_str(&master.http("GET /health").1).unwrap();
        (health["status"] == "ok", health["service_ready"].as_bool().unwrap())
    };
    assert_eq!(ready(&master), (true, true));
    assert!(!master.has_failed());

    // A file stands where the folder of the logs was: nothing in it can be renamed.
    let folder = scratch.0.join("log");
    std::fs::rename(&folder, scratch.0.join("elsewhere")).unwrap();
    std::fs::write(&folder, b"").unwrap();
    let usual = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(1), ..usual }).unwrap();
    let body = Some(put_start(&[("after", 1000)]));
    let request =
        mooncake_wire::message::Request { id: 1, sequence: 100, answered_below: 0, body, ..Default::default() };
    write_frame(&mut client.call, &request).unwrap();
    let mut answer = Vec::new();
    let ended = client.call.read_to_end(&mut answer);
    setrlimit(Resource::Fsize, usual).unwrap();

    assert!(ended.is_err() || answer.is_empty(), "nothing that is not logged is answered");
    assert_eq!(ready(&master), (true, false));
    assert!(master.has_failed(), "whoever runs it is told");
    master.stop();
}
