//! A reader that gives no memory, in a pid namespace of its own as a container
//! has one: the master cannot watch its process. The owner of what it maps can.

mod cluster;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use cluster::{Cluster, MIB, eventually, put};
use mooncake_client::{Store, StoreOptions};

const MASTER: &str = "MOONCAKE_TEST_MASTER";

/// Starts a program as the first process of a pid namespace with its own /proc.
const APART: [&str; 5] = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// Not a test by itself: what the reader does.
#[test]
fn reader() {
    let Ok(master) = std::env::var(MASTER) else { return };
    let mut options = StoreOptions::new("127.0.0.1", master);
    options.global_segment_size = 0;
    options.local_buffer_size = 32 * MIB;
    let store = Store::connect(options).unwrap();
    println!("reader: {}", std::process::id());
    let mut views = Vec::new();
    for line in std::io::stdin().lines() {
        let view = store.view(&[line.unwrap()]).remove(0).unwrap().expect("it is there");
        println!("reader: {}", if view.is_private_copy() { "copied" } else { "viewed" });
        views.push(view);
    }
}

struct Reader {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Reader {
    /// None where no pid namespace can be had.
    fn apart(cluster: &Cluster) -> Option<Reader> {
        let usable = Command::new(APART[0]).args(&APART[1..]).arg("true").output();
        if !usable.as_ref().is_ok_and(|done| done.status.success()) {
            eprintln!("skipped: no pid namespace of one's own: {usable:?}");
            return None;
        }
        let mut child = Command::new(APART[0])
            .args(&APART[1..])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "reader", "--nocapture", "--test-threads=1"])
            .env(MASTER, cluster.address())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut reader = Reader { child, input, output };
        assert_eq!(reader.answer(), "1", "the first of its namespace");
        Some(reader)
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the reader ended");
            if let Some((_, answer)) = line.split_once("reader: ") {
                return answer.trim().to_owned();
            }
        }
    }

    fn view(&mut self, key: &str) -> String {
        writeln!(self.input, "{key}").unwrap();
        self.answer()
    }

    /// `unshare` takes it along.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// For a value that fits only where the viewed one is.
fn there_is_room(owner: &Store) -> bool {
    put(owner, "b", 24 << 20).is_ok()
}

#[test]
fn the_pin_of_a_killed_reader_apart_is_given_back() {
    let cluster = Cluster::start();
    let owner = cluster.store(32 * MIB);
    put(&owner, "a", 14 << 20).unwrap();
    let Some(mut reader) = Reader::apart(&cluster) else { return };
    assert_eq!(reader.view("a"), "viewed");
    assert!(!there_is_room(&owner), "a view holds space");
    reader.kill();
    eventually("the room is back", Duration::from_secs(3), || there_is_room(&owner));
}

#[test]
fn the_pin_of_a_reader_that_was_killed_while_the_master_was_away_is_given_back() {
    let mut cluster = Cluster::start();
    let owner = cluster.store(32 * MIB);
    put(&owner, "a", 14 << 20).unwrap();
    let Some(mut reader) = Reader::apart(&cluster) else { return };
    assert_eq!(reader.view("a"), "viewed");
    cluster.stop_master();
    reader.kill();
    cluster.start_master();
    eventually("the room is back", Duration::from_secs(8), || there_is_room(&owner));
}
