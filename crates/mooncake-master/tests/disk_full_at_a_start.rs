//! A log that was lost on a full disk keeps the disk full: the next master starts nevertheless, with a new log.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::{Client, Running, Scratch};

/// Where the other process has its small disk.
const DISK: &str = "MOONCAKE_TEST_SMALL_DISK";

/// Runs a program with a file system of 512 KiB at a folder, which nobody else sees and which ends with the program.
/// Root of a user namespace of one's own may mount it.
const APART: [&str; 6] = [
    "unshare",
    "--map-root-user",
    "--mount",
    "sh",
    "-c",
    "mount -t tmpfs -o size=512k tmpfs \"$MOONCAKE_TEST_SMALL_DISK\" && exec \"$0\" \"$@\"",
];

#[test]
fn a_master_starts_on_a_disk_that_a_lost_log_keeps_full() {
    let scratch = Scratch::new();
    let apart = |program: &Path, arguments: &[&str]| {
        let mut command = Command::new(APART[0]);
        command.args(&APART[1..]).arg(program).args(arguments).env(DISK, &scratch.0);
        command.output()
    };
    let usable = apart(Path::new("true"), &[]);
    if !usable.as_ref().is_ok_and(|done| done.status.success()) {
        eprintln!("skipped: no small disk can be mounted: {usable:?}");
        return;
    }
    let this = std::env::current_exe().unwrap();
    let done = apart(&this, &["--exact", "on_a_small_disk", "--nocapture", "--test-threads=1"]).unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Not a test by itself: what the other process does on its small disk.
#[test]
fn on_a_small_disk() {
    let Some(disk) = std::env::var_os(DISK) else { return };
    fs::create_dir(Path::new(&disk).join("witness")).unwrap();
    let scratch = Scratch(disk.into(), None);
    let mut master = Running::start(scratch.settings());
    // Twice, so that there are two logs that were given up.
    for lost in 1..=2 {
        let mut client = Client::open(master.rpc);
        client.mount(1 << 20);
        fill(&scratch.0.join("ballast"));
        let mut puts = 0;
        while scratch.away().len() < lost {
            client.put(&format!("k{lost}/{puts}"), 100);
            puts += 1;
            assert!(puts < 1_000, "the disk was not full");
        }
        assert!(!scratch.current().exists());
        master.stop();
        if lost == 1 {
            fs::remove_file(scratch.0.join("ballast")).unwrap();
        }
        let before = scratch.away();
        master = Running::start(scratch.settings());
        let log = fs::read_dir(scratch.current()).unwrap().count();
        assert_eq!(log, 1, "it has a log");
        // The newest stays where there is room without it.
        let kept = if lost == 1 { &before[..] } else { &before[1..] };
        assert_eq!(scratch.away(), kept);
    }
    Client::open(master.rpc);
    master.stop();
}

/// Takes all room that is left.
fn fill(ballast: &Path) {
    use std::io::Write;
    let mut file = fs::File::create(ballast).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
}
