//! A process whose stderr cannot be written (a full disk, a closed pipe) goes on: it is the lines that are lost.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(20);

/// A process of the binary that cannot write to stderr.
struct Mute(Child);

impl Mute {
    fn start(args: &[&str]) -> Mute {
        let full: File = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_mooncake"));
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(full);
        Mute(command.spawn().unwrap())
    }

    fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    fn stop(mut self) -> ExitStatus {
        let pid = rustix::process::Pid::from_raw(self.0.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        eventually("an end", || self.0.try_wait().unwrap())
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn eventually<T>(what: &str, mut is: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = is() {
            return value;
        }
        assert!(began.elapsed() < TIMEOUT, "there was no {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What the journal says behind these words, up to the end of the line.
fn told(folder: &Path, words: &str) -> Option<String> {
    let journals = fs::read_dir(folder).ok()?.flatten().filter_map(|entry| fs::read_to_string(entry.path()).ok());
    let lines: Vec<String> = journals.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    lines.iter().find_map(|line| Some(line.split_once(words)?.1.to_owned()))
}

fn get(port: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_master_and_a_node_that_cannot_write_to_stderr_serve_and_stop_as_ever() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("logs");
    let log_dir = format!("--log_dir={}", folder.display());
    let mut master = Mute::start(&[
        "master",
        "--rpc_address=127.0.0.1",
        "--rpc_port=0",
        "--metrics_host=127.0.0.1",
        "--metrics_port=0",
        "--wal=off",
        &log_dir,
    ]);
    let mut port_behind = |words: &str| {
        eventually(words, || {
            assert!(master.lives(), "the master ended");
            told(&folder, words)
        })
    };
    let control = port_behind("Master service started on port ");
    let pages = port_behind("HTTP metrics server started on port ");
    let mut node = Mute::start(&[
        "client",
        &format!("--master_server_address=127.0.0.1:{control}"),
        "--host=127.0.0.1",
        "--port=0",
        "--global_segment_size=16 MB",
    ]);
    eventually("segment", || {
        assert!(node.lives() && master.lives(), "a process ended");
        get(&pages, "/get_all_segments").contains("127.0.0.1").then_some(())
    });
    // The master logs the end of the node.
    assert_eq!(node.stop().code(), Some(0));
    eventually("end of the segment", || (!get(&pages, "/get_all_segments").contains("127.0.0.1:")).then_some(()));
    assert!(get(&pages, "/health").starts_with("HTTP/1.1 200"));
    assert_eq!(master.stop().code(), Some(0));
}

#[test]
fn a_refusal_that_cannot_be_written_keeps_its_exit_code() {
    let code = |args: &[&str]| eventually("an end", || Mute::start(args).0.wait().ok()).code();
    assert_eq!(code(&[]), Some(2));
    assert_eq!(code(&["no-such-command"]), Some(2));
    assert_eq!(code(&["master", "--rpc_port=none"]), Some(1));
}
