//! A program that declares the library by itself, as Mooncake's header has it: the two agree, and a transfer that did
//! not come about is no success.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tempfile::TempDir;

const SOURCE: &str = include_str!("sources/own_declarations.c");

/// The library that belongs to this test, beside it.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    [deps, deps.parent().unwrap()]
        .iter()
        .map(|folder| folder.join("libtransfer_engine.so"))
        .find(|path| path.exists())
        .expect("cargo has built the library")
}

/// Asked for when it runs: a checkout that was moved keeps what cargo built in it.
fn crate_folder() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where the crate is").into()
}

/// What the compiler says; nothing if it takes the source.
fn compile(arguments: &[&str]) -> String {
    let always = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-fmax-errors=3"];
    let made = Command::new("cc")
        .args(always)
        .args(arguments)
        .arg(crate_folder().join("tests/sources/own_declarations.c"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    if made.status.success() { String::new() } else { said }
}

#[test]
fn the_header_agrees_with_a_program_that_declares_everything_itself() {
    let include = crate_folder().join("include");
    let said = compile(&["-fsyntax-only", "-DHEADER_OF_THIS_LIBRARY", "-I", include.to_str().unwrap()]);
    assert_eq!(said, "", "the header and the program differ");
    // The same test finds it where they do.
    let said = compile(&["-fsyntax-only", "-DsyncSegmentCache=showLinks"]);
    assert!(said.contains("conflicting types"), "{said}");
}

#[test]
fn the_program_declares_each_function_that_the_library_exports_and_no_other() {
    let exported: Vec<&str> = include_str!("../src/lib.rs")
        .split("#[unsafe(no_mangle)]")
        .skip(1)
        .map(|rest| rest.split_once("extern \"C\" fn ").unwrap().1.split_once('(').unwrap().0)
        .collect();
    let (_, declarations) = SOURCE.split_once("/* All of them").unwrap();
    let (declarations, _) = declarations.split_once("#define BYTES").unwrap();
    let mut declared: Vec<&str> = declarations
        .lines()
        .filter_map(|line| line.strip_suffix(");")?.split_once('('))
        .map(|(before, _)| before.rsplit([' ', '*']).next().unwrap())
        .collect();
    let mut exported = exported;
    exported.sort_unstable();
    declared.sort_unstable();
    assert_eq!(declared, exported);
    assert_eq!(exported.len(), 27, "as Mooncake's header has");
}

/// A process of the program.
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(program: &Path, role: &str, environment: &[(&str, &str)]) -> Process {
        let mut command = Command::new(program);
        command.arg(role).envs(environment.iter().copied()).env("MC_LOG_LEVEL", "off");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Process { input: child.stdin.take(), output, child }
    }

    fn hear(&mut self) -> String {
        self.output.next().expect("it goes on").unwrap()
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as libc::pid_t, signal) }, 0);
    }

    /// Stops it, and returns once none of its threads runs any more.
    fn freeze(&self) {
        self.signal(libc::SIGSTOP);
        let (child, mut status) = (self.child.id() as libc::pid_t, 0);
        // SAFETY: the status is written before the call returns.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, libc::WUNTRACED) }, child);
        assert!(libc::WIFSTOPPED(status));
    }

    fn end(&mut self) -> bool {
        drop(self.input.take());
        self.child.wait().unwrap().success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The program, in a folder of its own that goes when this does.
struct Program {
    path: PathBuf,
    _folder: TempDir,
}

impl Program {
    fn compile(name: &str) -> Program {
        let folder = tempfile::tempdir().unwrap();
        let (path, library) = (folder.path().join(name), library());
        let [to, with] = [&path, &library].map(|path| path.to_str().unwrap());
        assert_eq!(compile(&["-o", to, "-Wl,--no-as-needed", with, "-xc"]), "");
        Program { path, _folder: folder }
    }
}

#[test]
fn calls_take_as_many_arguments_and_give_what_their_declarations_say() {
    let program = Program::compile("calls");
    let mut initiator = Process::start(&program.path, "initiator", &[]);
    initiator.tell("calls");
    assert_eq!(initiator.hear(), "as declared");
    assert!(initiator.end());
}

/// Both ways between two processes; then to a peer that is killed while bytes are under way, and to one that stands
/// still.
fn transfers(program: &Path, environment: &[(&str, &str)]) {
    let mut initiator = Process::start(program, "initiator", environment);
    for killed in [true, false] {
        let mut target = Process::start(program, "target", environment);
        let at = target.hear();
        initiator.tell(&format!("both {at}"));
        for said in ["under way", "success", "under way", "success", "the same bytes"] {
            assert_eq!(initiator.hear(), said, "{environment:?}");
        }
        target.freeze();
        initiator.tell(&format!("write {at}"));
        assert_eq!(initiator.hear(), "under way");
        if killed {
            target.signal(libc::SIGKILL);
        }
        assert_eq!(initiator.hear(), "failed", "killed: {killed}, {environment:?}");
    }
    assert!(initiator.end());
}

#[test]
fn bytes_that_a_killed_or_frozen_peer_did_not_get_are_a_failure_and_never_a_success() {
    let program = Program::compile("transfers");
    // Within the host, and as between hosts.
    let deadline = ("MC_TCP_STATUS_TIMEOUT_SEC", "1");
    let environments = [vec![deadline], vec![deadline, ("MC_SHM", "0")]];
    std::thread::scope(|scope| {
        for environment in &environments {
            scope.spawn(|| transfers(&program.path, environment));
        }
    });
}
