//! A test file as several processes: it starts itself again, and each has a role.
#![allow(dead_code)] // Each test binary uses a part of it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

const ROLE: &str = "MOONCAKE_TEST_ROLE";
pub const SAME_HOST: &str = "MOONCAKE_TEST_SAME_HOST";

/// The test file as another process: its test `other` runs there.
pub struct Other {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    pub fn start(role: &str, same_host: bool) -> Other {
        Other::start_within(&[], role, same_host)
    }

    /// The same by a command that runs the command after it, `unshare` for instance.
    pub fn start_within(wrapper: &[&str], role: &str, same_host: bool) -> Other {
        let test = std::env::current_exe().unwrap();
        let mut words = wrapper.iter().map(OsStr::new).chain([test.as_os_str()]);
        let mut child = Command::new(words.next().expect("the test at least"))
            .args(words)
            .args(["--exact", "other", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(SAME_HOST, if same_host { "1" } else { "0" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Other { child, input, output }
    }

    pub fn say(&mut self, what: &str) {
        writeln!(self.input, "{what}").unwrap();
    }

    pub fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the other process ended");
            if let Some((_, said)) = line.split_once("other: ") {
                return said.trim().to_owned();
            }
        }
    }

    /// Stops the process, and returns once none of its threads runs any more.
    pub fn freeze(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).unwrap();
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().flatten() {
            let stands = || {
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
            };
            while !stands() {
                std::thread::yield_now();
            }
        }
    }

    /// Returns once the process runs that program.
    pub fn wait_until_it_is(&self, program: &str) {
        let comm = format!("/proc/{}/comm", self.child.id());
        while std::fs::read_to_string(&comm).unwrap().trim() != program {
            std::thread::yield_now();
        }
    }

    pub fn thaw(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What this process is told.
pub fn hear() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Tells whoever started this process.
pub fn say(what: &str) {
    println!("other: {what}");
}

/// What this process is; empty if nobody started it as something.
pub fn role() -> String {
    std::env::var(ROLE).unwrap_or_default()
}
