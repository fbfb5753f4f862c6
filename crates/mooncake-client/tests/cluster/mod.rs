//! A master in this process, and clients of it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mooncake_client::{PutOptions, PutOutcome, Source, Store, StoreError, StoreOptions};
use mooncake_master::{LogFolder, Master, Settings, Wal, serve};
use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;

/// Stopped and removed when dropped.
pub struct Cluster {
    runtime: tokio::runtime::Runtime,
    master: Option<Master>,
    settings: Settings,
    folder: TempDir,
}

#[allow(dead_code, reason = "each test binary uses a part of it")]
impl Cluster {
    pub fn start() -> Self {
        Self::start_with(|_| {})
    }

    /// With a log, so that it can be restarted.
    pub fn start_with(change: impl FnOnce(&mut Settings)) -> Self {
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init();
        // Where a busy disk holds up no log, if there is such a place.
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = tempfile::Builder::new().prefix("mooncake-client-").tempdir_in(parent).unwrap();
        let mut settings = Settings {
            wal: Wal::On,
            log_folder: LogFolder::Given(folder.path().join("log")),
            witness_folder: folder.path().to_owned(),
            metric_reporting: false,
            ..Settings::default()
        };
        change(&mut settings);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let mut cluster = Cluster { runtime, master: None, settings, folder };
        cluster.start_master();
        cluster
    }

    pub fn start_master(&mut self) {
        let until = Instant::now() + Duration::from_secs(5);
        let master = loop {
            match self.runtime.block_on(serve(self.settings.clone())) {
                Ok(master) => break master,
                Err(error) if Instant::now() > until => panic!("{error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        self.settings.rpc_port = master.rpc_address().port();
        self.master = Some(master);
    }

    pub fn stop_master(&mut self) {
        if let Some(master) = self.master.take() {
            self.runtime.block_on(master.shutdown());
        }
    }

    /// The log is lost with it.
    pub fn forget_log(&mut self) {
        std::fs::remove_dir_all(self.folder.path().join("log")).unwrap();
    }

    /// As after a reboot of the host: nothing vouches for the log any more.
    pub fn forget_witness(&mut self) {
        let files = std::fs::read_dir(&self.folder).unwrap().map(|entry| entry.unwrap().path());
        let witnesses = files.filter(|path| path.is_file());
        assert_eq!(witnesses.map(|path| std::fs::remove_file(path).unwrap()).count(), 1, "one log, one witness");
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.settings.rpc_port)
    }

    /// A figure of the master's metrics page.
    pub fn metric(&self, name: &str) -> u64 {
        let address = self.master.as_ref().expect("it runs").metrics_address();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let figure = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<f64>().ok());
        figure.unwrap_or_else(|| panic!("no {name} in {page}")) as u64
    }

    pub fn options(&self, segment: u64) -> StoreOptions {
        let mut options = StoreOptions::new("127.0.0.1", self.address());
        options.global_segment_size = segment;
        options.local_buffer_size = 64 * MIB;
        options
    }

    pub fn store(&self, segment: u64) -> Store {
        Store::connect(self.options(segment)).unwrap()
    }

    /// Files of the log, to be put back later.
    pub fn copy_log(&self) -> Vec<(PathBuf, Vec<u8>)> {
        files(&self.folder.path().join("log"))
            .into_iter()
            .map(|path| (path.clone(), std::fs::read(path).unwrap()))
            .collect()
    }

    /// The log as it was.
    pub fn put_log_back(&mut self, copy: &[(PathBuf, Vec<u8>)]) {
        self.forget_log();
        for (path, bytes) in copy {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
    }

    /// A client that uses TCP only.
    pub fn tcp_store(&self, segment: u64) -> Store {
        let mut options = self.options(segment);
        options.shared_memory = false;
        Store::connect(options).unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop_master();
    }
}

fn files(folder: &std::path::Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Bytes that only this key and length have.
#[allow(dead_code, reason = "each test binary uses a part of it")]
pub fn value(key: &str, length: usize) -> Vec<u8> {
    let mut state = key.bytes().fold(length as u64 ^ 0x9e37_79b9_7f4a_7c15, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let mut bytes = vec![0; length];
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        chunk.copy_from_slice(&(state ^ (state >> 29)).to_le_bytes()[..chunk.len()]);
    }
    bytes
}

#[allow(dead_code, reason = "each test binary uses a part of it")]
pub fn put(store: &Store, key: &str, length: usize) -> Result<PutOutcome, StoreError> {
    store.put(key.as_bytes(), &[Source::new(&value(key, length))], &PutOptions::default())
}

/// Polls until something holds, and says what did not within a time.
#[allow(dead_code, reason = "each test binary uses a part of it")]
pub fn eventually(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + within;
    while !holds() {
        assert!(Instant::now() < until, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
