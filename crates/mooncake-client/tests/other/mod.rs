//! Another process of a test: the program that the test is in, told to run one test of its own, the *role*. The two
//! speak in lines: what the test asks, and what the role answers.
#![allow(dead_code)] // Each test file uses a part of it.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use mooncake_client::StoreOptions;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::cluster::{Cluster, MIB};

const MASTER: &str = "MOONCAKE_TEST_MASTER";

/// Goes before what a role says, as the test harness writes to the same output.
const ANSWER: &str = "other: ";

/// What a role's store is set up with, lending this much. None in a run of all tests: a role is none by itself.
pub fn options(segment: u64) -> Option<StoreOptions> {
    let mut options = StoreOptions::new("127.0.0.1", std::env::var(MASTER).ok()?);
    options.global_segment_size = segment;
    options.local_buffer_size = 32 * MIB;
    Some(options)
}

/// What a role is asked, one after the other, until the test has ended.
pub fn asked() -> impl Iterator<Item = String> {
    std::io::stdin().lines().map(Result::unwrap)
}

/// A role's answer.
pub fn answer(what: impl Display) {
    println!("{ANSWER}{what}");
}

/// The other process, as the test sees it. Killed when dropped.
pub struct Other {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// What it said when it was ready.
    pub greeting: String,
}

impl Other {
    /// Starts a role and waits until it is ready.
    pub fn start(cluster: &Cluster, role: &str) -> Other {
        Self::start_by(&[], cluster, role)
    }

    /// The same by another program, which takes a command line.
    pub fn start_by(program: &[&str], cluster: &Cluster, role: &str) -> Other {
        let this = std::env::current_exe().unwrap().into_os_string();
        let mut words = program.iter().map(OsString::from).chain([this]);
        let mut child = Command::new(words.next().unwrap())
            .args(words)
            .args(["--exact", role, "--nocapture", "--test-threads=1"])
            .env(MASTER, cluster.address())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut other = Other { child, input, output, greeting: String::new() };
        other.greeting = other.hear();
        other
    }

    /// Asks without waiting for the answer.
    pub fn tell(&mut self, what: &str) {
        writeln!(self.input, "{what}").unwrap();
    }

    pub fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.hear()
    }

    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the other process ended");
            if let Some((_, answer)) = line.split_once(ANSWER) {
                return answer.trim().to_owned();
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it, and returns once none of its threads runs any more.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let (_, status) = waitpid(Some(Pid::from_child(&self.child)), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped());
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
