//! The fake verbs of `tests/fake_verbs`: a libibverbs whose network cards and network are a process of their own, which
//! does to bytes whatever the specification allows, in an order that a seed gives. `fabric.c` lists what it can be
//! told.

use std::collections::hash_map::DefaultHasher;
use std::ffi::CString;
use std::hash::{Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Names and texts of what is built.
macro_rules! sources {
    ($($name:literal),*) => {
        &[$(($name, include_str!(concat!("../../../tests/fake_verbs/", $name)))),*]
    };
}

const SOURCES: &[(&str, &str)] = sources![
    "abi.h",
    "protocol.h",
    "fabric.h",
    "libibverbs.map",
    "library.c",
    "fabric.c",
    "objects.c",
    "queue_pairs.c",
    "network.c",
    "control.c",
    "sysfs.c"
];
const FABRIC: &[&str] = &["fabric.c", "objects.c", "queue_pairs.c", "network.c", "control.c", "sysfs.c"];

/// A fabric that runs, and its library in this process. One test of a process has it at a time.
pub struct FakeVerbs {
    folder: PathBuf,
    seed: u64,
    fabric: Child,
    control: Mutex<BufReader<UnixStream>>,
    _one_at_a_time: MutexGuard<'static, ()>,
}

impl FakeVerbs {
    /// Starts a fabric of so many cards, `fake0` and so on, with all that it can do to bytes, and has this process
    /// find its library where it looks for the real one. The seed, which is printed, is `MOONCAKE_TEST_SEED` or by
    /// chance.
    pub fn start(nics: usize) -> FakeVerbs {
        static ONE: Mutex<()> = Mutex::new(());
        let one_at_a_time = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let built = build();
        load(&built.join("libibverbs.so.1"));
        let seed = seed();
        let folder = std::env::temp_dir().join(format!("fake-verbs-{}-{seed:x}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut fabric = Command::new(built.join("fabric"))
            .arg(&folder)
            .args(["--seed", &seed.to_string(), "--nics", &nics.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the fabric starts");
        let mut said = String::new();
        BufReader::new(fabric.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.starts_with("ready"), "the fabric says {said:?}");
        eprintln!("fake verbs: {}", said.trim());
        // SAFETY: tests of one process that use this take turns, and nothing else of them changes or reads it.
        unsafe { std::env::set_var("FAKE_VERBS", &folder) };
        let control = UnixStream::connect(folder.join("control")).unwrap();
        control.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let control = Mutex::new(BufReader::new(control));
        FakeVerbs { folder, seed, fabric, control, _one_at_a_time: one_at_a_time }
    }

    /// What its order comes from.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Where another process finds it: its variable `FAKE_VERBS`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of the library: another process's `LD_LIBRARY_PATH`.
    pub fn library_folder(&self) -> PathBuf {
        build()
    }

    /// Tells it something that is answered by one line, and gives what stands behind `ok`.
    pub fn tell(&self, command: &str) -> String {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let said = ask(&mut control, command);
        let ok = said.strip_prefix("ok").unwrap_or_else(|| panic!("{command}: {said}"));
        ok.trim().to_owned()
    }

    /// Asks for something that is answered by several lines.
    pub fn ask(&self, command: &str) -> Vec<String> {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut lines, mut line) = (Vec::new(), ask(&mut control, command));
        while line != "." {
            assert!(!line.starts_with("error"), "{command}: {line}");
            lines.push(std::mem::take(&mut line));
            control.read_line(&mut line).unwrap();
            line.truncate(line.trim_end().len());
        }
        lines
    }
}

impl Drop for FakeVerbs {
    fn drop(&mut self) {
        let _ = self.fabric.kill();
        let _ = self.fabric.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn ask(control: &mut BufReader<UnixStream>, command: &str) -> String {
    writeln!(control.get_mut(), "{command}").unwrap();
    let mut line = String::new();
    control.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn seed() -> u64 {
    if let Some(seed) = std::env::var("MOONCAKE_TEST_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return seed;
    }
    let mut hash = DefaultHasher::new();
    (std::time::SystemTime::now(), std::process::id()).hash(&mut hash);
    hash.finish() >> 1
}

/// The linker finds it from then on by its name, as it is loaded.
fn load(library: &Path) {
    static LOADED: OnceLock<()> = OnceLock::new();
    LOADED.get_or_init(|| {
        let path = CString::new(library.to_path_buf().into_os_string().into_encoded_bytes()).unwrap();
        // SAFETY: a library of this repository's own, without constructors.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "the fake verbs cannot be loaded");
    });
}

/// A folder with the library and the fabric; built by the first test that wants it.
fn build() -> PathBuf {
    let mut hash = DefaultHasher::new();
    SOURCES.hash(&mut hash);
    // Beside the test's program: that lies where cargo builds, wherever that is.
    let test = std::env::current_exe().expect("the path of the test's program");
    let made = test.parent().expect("its folder").join(format!("fake-verbs-{:016x}", hash.finish()));
    if made.exists() {
        return made;
    }
    let mine = made.with_extension(std::process::id().to_string());
    std::fs::create_dir_all(&mine).unwrap();
    for (name, text) in SOURCES {
        std::fs::write(mine.join(name), text).unwrap();
    }
    let map = "-Wl,--version-script,libibverbs.map";
    let library = ["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", map, "-o", "libibverbs.so.1"];
    let to_fabric = ["-o", "fabric"];
    for (options, names) in [(&library[..], &["library.c"][..]), (&to_fabric[..], FABRIC)] {
        let built = Command::new("cc")
            .args(["-std=gnu17", "-O1", "-Wall", "-pthread"])
            .args(options)
            .args(names)
            .current_dir(&mine)
            .output()
            .expect("a C compiler, which Rust's linker needs too");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    }
    // Whole or not at all: other tests build it at the same time.
    if std::fs::rename(&mine, &made).is_err() {
        std::fs::remove_dir_all(&mine).unwrap();
    }
    made
}
