//! Another process of a test: the program that the test is in, told to run one test of its own, which plays a *role*.
//! The two speak in lines: what the test says, and what the role answers.
//!
//! In a run of all tests nothing gives that one a role, and it does nothing.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

const ROLE: &str = "MOONCAKE_TEST_ROLE";

/// Goes before what a role says, as the test harness writes to the same output.
const ANSWER: &str = "other: ";

/// For a process to become another program, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// What the harness calls the test `name` of the module in which this stands.
#[macro_export]
macro_rules! test_name {
    ($name:expr) => {
        $crate::child_process::within(module_path!(), $name)
    };
}

/// A test's name without its program's, which is the first of the modules.
#[doc(hidden)]
pub fn within(module: &str, test: &str) -> String {
    module.split_once("::").map_or_else(|| test.to_owned(), |(_, module)| format!("{module}::{test}"))
}

/// The other process, as the test sees it. Killed when dropped.
pub struct ChildProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl ChildProcess {
    /// Starts the test `test` of this program, by its [`test_name`], in a process of its own, with
    /// this role.
    pub fn start(test: &str, role: &str) -> ChildProcess {
        ChildProcess::start_by(&[], test, role)
    }

    /// The same by a program that runs the command after it, `unshare` for instance.
    pub fn start_by(program: &[&str], test: &str, role: &str) -> ChildProcess {
        let this = std::env::current_exe().unwrap();
        let mut words = program.iter().map(OsStr::new).chain([this.as_os_str()]);
        let mut child = Command::new(words.next().expect("this program at least"))
            .args(words)
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        ChildProcess { child, input, output }
    }

    /// Says a line, and waits for nothing.
    pub fn say(&mut self, what: impl Display) {
        writeln!(self.input.as_mut().expect("it was not told to leave"), "{what}").unwrap();
    }

    /// Its next answer.
    pub fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the other process ended");
            if let Some((_, said)) = line.split_once(ANSWER) {
                return said.trim().to_owned();
            }
        }
    }

    /// Says a line, and waits for the answer.
    pub fn ask(&mut self, what: impl Display) -> String {
        self.say(what);
        self.hear()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it, and returns once none of its threads runs any more.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        // The kernel tells a parent when the last thread has stopped.
        let (_, status) = waitpid(Some(Pid::from_child(&self.child)), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "the other process ended");
    }

    /// What was stopped runs again.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// Returns once the process runs that program.
    pub fn wait_until_it_is(&self, program: &str) {
        let comm = format!("/proc/{}/comm", self.child.id());
        let until = Instant::now() + SOON;
        // Where a thread that is not the first calls `exec`, it takes the first one's place, and meanwhile the kernel
        // may find no process (ENOENT, ESRCH) at the number.
        while !std::fs::read_to_string(&comm).is_ok_and(|name| name.trim() == program) {
            assert!(Instant::now() < until, "it did not become {program}");
            std::thread::yield_now();
        }
    }

    /// Ends its input, and waits until it ends by itself.
    pub fn leave(mut self) -> ExitStatus {
        drop(self.input.take());
        self.child.wait().unwrap()
    }

    /// SIGKILL, and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The role of this process; none in a run of all tests.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// The next line that the test says; empty when it has ended.
pub fn hear() -> String {
    asked().next().unwrap_or_default()
}

/// What the test says, line after line, until it has ended.
pub fn asked() -> impl Iterator<Item = String> {
    std::io::stdin().lines().map(|line| line.unwrap().trim().to_owned())
}

/// Answers the test.
pub fn say(what: impl Display) {
    println!("{ANSWER}{what}");
}
