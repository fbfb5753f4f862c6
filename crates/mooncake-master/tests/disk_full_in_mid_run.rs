//! docs/safety.md, rule 19: an append that fails renames the log away before the next
//! placement, and the master goes on. Alone in its process: it sets a limit.

mod support;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{Client, Running, Scratch};

#[test]
fn a_failing_append_renames_the_log_away_and_the_master_goes_on() {
    let scratch = Scratch::new();
    let master = Running::start(scratch.settings());
    let mut client = Client::open(master.rpc);
    client.mount(1 << 20);
    let before = client.put("before", 1000);
    let seen = client.highest.unwrap();
    let log_id = seen.log_id;

    let usual = getrlimit(Resource::Fsize);
    let size = std::fs::metadata(scratch.log_files().pop().unwrap()).unwrap().len();
    setrlimit(Resource::Fsize, Rlimit { current: Some(size + 40), ..usual }).unwrap();
    let after = client.put("after", 1000);
    setrlimit(Resource::Fsize, usual).unwrap();

    assert!(after > before);
    assert!(client.exists("before") && client.exists("after"));
    assert_eq!(scratch.away().len(), 1, "renamed away");
    assert!(!scratch.current().exists());
    assert_ne!(client.highest.unwrap().log_id, log_id, "positions of this run are no longer that log's");
    let page = master.http("GET /metrics").1;
    assert!(page.contains("mooncake_log_lost 1") && page.contains("mooncake_log_enabled 0"), "{page}");
    let again = client.resume_with(master.rpc, Some(seen)).position.unwrap();
    assert_eq!((again.log_id != log_id, again.epoch), (true, seen.epoch), "what it did itself is no other log's");
    master.stop();

    let master = Running::start(scratch.settings());
    assert!(client.resume(master.rpc).refusal.is_some(), "the run without a log left nothing to resume");
    master.stop();

    // Somebody puts the log back that was given up. It does not know of "after", whose rid must not be given out again.
    std::fs::remove_dir_all(scratch.current()).unwrap();
    std::fs::rename(&scratch.away()[0], scratch.current()).unwrap();
    let master = Running::start(scratch.settings());
    let resumed = client.resume_with(master.rpc, None);
    assert_eq!((resumed.refusal, resumed.position.unwrap().epoch), (None, seen.epoch + 1));
    assert!(client.exists("before") && !client.exists("after"));
    master.stop();
}
