//! Settings of a store, and the one place that reads the environment.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mooncake_ids::FileSystemUuid;
use mooncake_net::parse_addresses;
use mooncake_settings::environment::{is_on, parsed, switch, variable};
use mooncake_tier::medium::folder::Engine;
use mooncake_tier::slots::SLOT_BYTES;

use crate::error::{Cause, StoreError};
use crate::kept::holder::KeepOptions;

/// Asked at least every 100 ms while a call waits; true ends the call.
pub type InterruptHook = Arc<dyn Fn() -> bool + Send + Sync>;

/// How a store is set up. Start from [`StoreOptions::new`], change what you
/// need, lay the environment over it with [`StoreOptions::from_env`].
#[derive(Clone)]
pub struct StoreOptions {
    /// Name of this client, `host` or `host:port`. The host is what it listens
    /// on for data; without a port a free one of [`StoreOptions::ports`] is taken.
    pub local_hostname: String,
    /// `host:port` of the master.
    pub master: String,
    /// Bytes given to the pool; 0 = none, a pure client.
    pub global_segment_size: u64,
    /// Most bytes that views may hold pinned at a time; beyond it they are copies.
    pub local_buffer_size: u64,
    /// Map the memory of same-host peers. `MC_SHM=0|1`.
    pub shared_memory: bool,
    /// Hand out views of mapped memory; otherwise views are private copies. `MC_SHM_VIEWS=0|1`.
    pub shared_views: bool,
    /// Check the CRC-32C of whole objects as they are read. `MOONCAKE_STORE_CHECKSUM=0|1`.
    pub verify: bool,
    /// Longest wait for the master's answer to a query. `MC_LOOKUP_TIMEOUT_MS`.
    pub lookup_timeout: Duration,
    /// Longest time without a byte moved. `MC_DATA_TIMEOUT_MS`.
    pub stall_timeout: Duration,
    /// Longest time for a put's retries and waits for room, its copying aside. `MC_PUT_TIMEOUT_MS`.
    pub put_timeout: Duration,
    /// Huge pages for the segment. `MC_STORE_USE_HUGEPAGE` (any value but a no).
    pub huge_pages: bool,
    /// First and last port to choose from. `MC_STORE_CLIENT_MIN_PORT`, `MC_STORE_CLIENT_MAX_PORT`.
    pub ports: (u16, u16),
    /// What to listen on for data where that is not what the host name says
    /// (behind address translation). `MC_STORE_CLIENT_BIND_ADDRESS`.
    pub bind_address: Option<IpAddr>,
    /// Addresses of this machine in its networks: data is listened for on each of them, unless `bind_address` says
    /// where, and peers are told them all. If there is none: the one that the host name says. `MC_TCP_ADDRESSES`.
    pub tcp_addresses: Vec<IpAddr>,
    /// An address of a peer that failed, where the peer has others, is left out for so long. `MC_TCP_ADDRESS_PAUSE_MS`.
    pub tcp_address_pause: Duration,
    /// Raise the process's limit of open files to what it may be, at most 65,536. `MOONCAKE_RAISE_DESCRIPTORS=0|1`.
    pub raise_descriptors: bool,
    /// Count calls, bytes and times. `MC_STORE_CLIENT_METRIC=0|1`.
    pub metrics: bool,
    /// Log a line of what was counted so often. `MC_STORE_CLIENT_METRIC_INTERVAL`, seconds; 0 = never.
    pub metric_interval: Option<Duration>,
    /// With the bytes a second in that line. `MC_STORE_CLIENT_METRIC_BANDWIDTH=0|1`.
    pub metric_bandwidth: bool,
    /// Told with all metrics. `MC_STORE_CLUSTER_ID`.
    pub cluster_id: Option<String>,
    /// Folders behind the memory.
    pub tiers: Vec<TierOptions>,
    /// What reads and writes tiers; none for io_uring where that can be had, and threads elsewhere. `MC_TIER_ENGINE`,
    /// `MOONCAKE_OFFLOAD_USE_URING`.
    pub tier_engine: Option<Engine>,
    /// Buffers for reads of tiers past their owners. `MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES`, a quarter of it.
    pub tier_slots: usize,
    /// The segment that it begins with outlives this process.
    pub keep: Option<KeepOptions>,
    /// Ends calls that wait.
    pub interrupted: Option<InterruptHook>,
}

/// Where a store's tier lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierOptions {
    /// Made if it is not there; the tier has a folder of its own in it.
    pub path: PathBuf,
    /// Most bytes of its files; none: nine tenths of the file system.
    pub bytes: Option<u64>,
    /// Most bytes that the files of all tiers below the path have, whoever owns them; none: no such limit.
    pub bytes_below_path: Option<u64>,
    /// Most objects of it; none: as many as the master lets any tier have.
    pub records_max: Option<u64>,
    /// What reads and writes it; none for io_uring where that can be had, and threads elsewhere.
    pub engine: Option<Engine>,
    /// Bytes of one file; none: a 64th of all, 16 to 256 MiB.
    pub file_bytes: Option<u64>,
    /// Time for what memory has and the tier has not to come to the disk when the store closes.
    pub close_limit: Duration,
    /// A folder below the path that no process has had for so long is read by this store, and given up first.
    pub adopt_after: Duration,
    /// The path is on a file system that clients share; none: it is this host's.
    pub shared: Option<SharedTier>,
}

/// What is known of a file system that clients share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedTier {
    /// Which it is.
    pub file_system: FileSystemUuid,
    /// What is oldest goes where there is no room; otherwise nothing more is written.
    pub evicts: bool,
}

/// Below which paths a store has its tiers: at least one.
fn tier_paths(path: &str, var: impl Fn(&str) -> Option<String>) -> Result<Vec<String>, StoreError> {
    const SEVERAL: &str = "MOONCAKE_OFFLOAD_FILE_STORAGE_PATHS";
    if !path.is_empty() {
        return Ok(vec![path.to_owned()]);
    }
    let named = var(SEVERAL).unwrap_or_default();
    let mut paths: Vec<String> = Vec::new();
    for path in named.split(',').map(str::trim).filter(|path| !path.is_empty()) {
        // Two tiers on one disk write no faster than one, and would share its room.
        if paths.iter().any(|other| Path::new(other) == Path::new(path)) {
            let problem = format!("{SEVERAL}={named:?}: {path} is there twice; name each path once, a disk each");
            return Err(Cause::InvalidParams(problem).into());
        }
        paths.push(path.to_owned());
    }
    if paths.is_empty() {
        let one = var("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH").filter(|path| !path.is_empty());
        paths.push(one.unwrap_or_else(|| TIER_PATH.to_owned()));
    }
    Ok(paths)
}

impl TierOptions {
    /// Below that path, with the defaults for all else.
    pub fn new(path: impl Into<PathBuf>) -> TierOptions {
        TierOptions {
            path: path.into(),
            bytes: None,
            bytes_below_path: None,
            records_max: None,
            engine: None,
            file_bytes: None,
            close_limit: CLOSE_LIMIT,
            adopt_after: ADOPT_AFTER,
            shared: None,
        }
    }
}

/// Time to close, unless something else is said.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Time for which a folder is left to a process that may begin again, unless something else is said.
const ADOPT_AFTER: Duration = Duration::from_secs(60);

/// Buffers for reads of tiers, unless something else is said.
const TIER_SLOTS: usize = 64;

/// A batch has so many in use at a time, and more of them than any disk needs are of no use.
const TIER_SLOTS_MIN: usize = 8;
const TIER_SLOTS_MAX: usize = 4_096;

/// What reads and writes tiers, if anything says so.
fn tier_engine(var: &impl Fn(&str) -> Option<String>) -> Result<Option<Engine>, StoreError> {
    let is_ring = match parsed::<String>("MC_TIER_ENGINE", var)? {
        Some(name) => Some(name.eq_ignore_ascii_case("ring")),
        // Where it is wanted and cannot be had, as in most containers, threads do.
        None => switch("MOONCAKE_OFFLOAD_USE_URING", var)?.filter(|wanted| !wanted),
    };
    Ok(is_ring.map(|is_ring| if is_ring { Engine::Ring } else { Engine::Threads }))
}

/// Where a tier lies of which nothing says where.
const TIER_PATH: &str = "/data/file_storage";

impl StoreOptions {
    /// The defaults for a client of a master.
    pub fn new(local_hostname: impl Into<String>, master: impl Into<String>) -> Self {
        Self {
            local_hostname: local_hostname.into(),
            master: master.into(),
            global_segment_size: 16 << 20,
            local_buffer_size: 16 << 20,
            shared_memory: true,
            shared_views: true,
            verify: true,
            lookup_timeout: Duration::from_millis(500),
            stall_timeout: Duration::from_secs(3),
            put_timeout: Duration::from_secs(5),
            huge_pages: false,
            ports: (12300, 14300),
            bind_address: None,
            tcp_addresses: Vec::new(),
            tcp_address_pause: Duration::from_secs(30),
            raise_descriptors: true,
            metrics: true,
            metric_interval: None,
            metric_bandwidth: false,
            cluster_id: None,
            tiers: Vec::new(),
            tier_engine: None,
            tier_slots: TIER_SLOTS,
            keep: None,
            interrupted: None,
        }
    }

    /// The environment over these settings. A value that means nothing is an error that names it.
    pub fn from_env(self) -> Result<Self, StoreError> {
        self.overlaid(variable)
    }

    /// With tiers: one below that path, or, if it is empty, one below each of those of
    /// `MOONCAKE_OFFLOAD_FILE_STORAGE_PATHS`, or below that of `MOONCAKE_OFFLOAD_FILE_STORAGE_PATH`; of
    /// `MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES` or `MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE` at most, all together, and
    /// with those of other processes below one path of `MOONCAKE_OFFLOAD_BUCKET_MAX_PHYSICAL_BYTES`.
    pub fn with_tier(self, path: &str) -> Result<Self, StoreError> {
        self.with_tier_of(path, variable)
    }

    fn with_tier_of(mut self, path: &str, var: impl Fn(&str) -> Option<String>) -> Result<Self, StoreError> {
        let paths = tier_paths(path, &var)?;
        let bytes = parsed::<u64>("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", &var)?;
        let of_buckets = parsed::<u64>("MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE", &var)?.filter(|bytes| *bytes > 0);
        let bytes = bytes.into_iter().chain(of_buckets).min();
        let share = bytes.map(|bytes| bytes / paths.len() as u64);
        let bytes_below_path =
            parsed::<u64>("MOONCAKE_OFFLOAD_BUCKET_MAX_PHYSICAL_BYTES", &var)?.filter(|bytes| *bytes > 0);
        let records_max = parsed::<u64>("MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT", &var)?.filter(|records| *records > 0);
        let close_limit = parsed::<u32>("MOONCAKE_OFFLOAD_CLOSE_SECONDS", &var)?;
        let close_limit = close_limit.map_or(CLOSE_LIMIT, |seconds| Duration::from_secs(seconds.into()));
        let adopt_after = parsed::<u32>("MOONCAKE_OFFLOAD_ADOPT_SECONDS", &var)?;
        let adopt_after = adopt_after.map_or(ADOPT_AFTER, |seconds| Duration::from_secs(seconds.into()));
        let tier = |path| TierOptions {
            close_limit,
            adopt_after,
            bytes: share,
            bytes_below_path,
            records_max,
            engine: self.tier_engine,
            ..TierOptions::new(path)
        };
        self.tiers = paths.into_iter().map(tier).collect();
        Ok(self)
    }

    /// With the addresses of a list, as that setting gives it.
    pub fn with_tcp_addresses(self, setting: &str, list: &str) -> Result<Self, StoreError> {
        let addresses = parse_addresses(list);
        let tcp_addresses = addresses.map_err(|error| Cause::InvalidParams(format!("{setting}={list:?}: {error}")))?;
        Ok(Self { tcp_addresses, ..self })
    }

    fn overlaid(mut self, var: impl Fn(&str) -> Option<String>) -> Result<Self, StoreError> {
        if let Some(on) = switch("MC_SHM", &var)? {
            self.shared_memory = on;
        }
        if let Some(on) = switch("MC_SHM_VIEWS", &var)? {
            self.shared_views = on;
        }
        if let Some(on) = switch("MOONCAKE_STORE_CHECKSUM", &var)? {
            self.verify = on;
        }
        if let Some(ms) = parsed::<u64>("MC_LOOKUP_TIMEOUT_MS", &var)? {
            self.lookup_timeout = Duration::from_millis(ms);
        }
        if let Some(ms) = parsed::<u64>("MC_DATA_TIMEOUT_MS", &var)? {
            self.stall_timeout = Duration::from_millis(ms);
        }
        if let Some(ms) = parsed::<u64>("MC_PUT_TIMEOUT_MS", &var)? {
            self.put_timeout = Duration::from_millis(ms);
        }
        self.huge_pages |= is_on("MC_STORE_USE_HUGEPAGE", &var);
        if let Some(port) = parsed("MC_STORE_CLIENT_MIN_PORT", &var)? {
            self.ports.0 = port;
        }
        if let Some(port) = parsed("MC_STORE_CLIENT_MAX_PORT", &var)? {
            self.ports.1 = port;
        }
        if self.ports.0 == 0 || self.ports.0 > self.ports.1 {
            return Err(Cause::InvalidParams(format!(
                "MC_STORE_CLIENT_MIN_PORT {} and MC_STORE_CLIENT_MAX_PORT {} are no range of ports",
                self.ports.0, self.ports.1
            ))
            .into());
        }
        if let Some(address) = parsed("MC_STORE_CLIENT_BIND_ADDRESS", &var)? {
            self.bind_address = Some(address);
        }
        if let Some(list) = parsed::<String>("MC_TCP_ADDRESSES", &var)? {
            self = self.with_tcp_addresses("MC_TCP_ADDRESSES", &list)?;
        }
        if let Some(ms) = parsed::<u64>("MC_TCP_ADDRESS_PAUSE_MS", &var)? {
            self.tcp_address_pause = Duration::from_millis(ms);
        }
        if let Some(on) = switch("MOONCAKE_RAISE_DESCRIPTORS", &var)? {
            self.raise_descriptors = on;
        }
        if let Some(on) = switch("MC_STORE_CLIENT_METRIC", &var)? {
            self.metrics = on;
        }
        if let Some(seconds) = parsed::<u64>("MC_STORE_CLIENT_METRIC_INTERVAL", &var)? {
            self.metric_interval = (seconds > 0).then(|| Duration::from_secs(seconds));
        }
        if let Some(on) = switch("MC_STORE_CLIENT_METRIC_BANDWIDTH", &var)? {
            self.metric_bandwidth = on;
        }
        if let Some(id) = parsed("MC_STORE_CLUSTER_ID", &var)? {
            self.cluster_id = Some(id);
        }
        if let Some(engine) = tier_engine(&var)? {
            self.tier_engine = Some(engine);
        }
        if let Some(bytes) = parsed::<u64>("MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES", &var)? {
            let slots = usize::try_from(bytes / 4 / SLOT_BYTES as u64).unwrap_or(usize::MAX);
            self.tier_slots = slots.clamp(TIER_SLOTS_MIN, TIER_SLOTS_MAX);
        }
        Ok(self)
    }
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreOptions")
            .field("local_hostname", &self.local_hostname)
            .field("master", &self.master)
            .field("global_segment_size", &self.global_segment_size)
            .field("local_buffer_size", &self.local_buffer_size)
            .field("shared_memory", &self.shared_memory)
            .field("shared_views", &self.shared_views)
            .field("verify", &self.verify)
            .finish_non_exhaustive()
    }
}

/// How long an object must stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PinKind {
    /// Evicted in the policy's order. What replaces a value keeps its soft pin,
    /// with the end that it had (PRESERVE).
    #[default]
    None,
    /// Evicted only when nothing else is left, until it lapses (ENABLE).
    Soft {
        /// Lifetime from the put on, milliseconds; `None` = the master's
        /// `--default_kv_soft_pin_ttl`, 0 = [`PinKind::Cleared`], more than its
        /// `--max_kv_soft_pin_ttl` is refused.
        ttl_ms: Option<u64>,
    },
    /// Never evicted. Decided when the object is made: what replaces a value is
    /// pinned if that was, and not otherwise.
    Hard,
    /// Evicted in the policy's order, without the soft pin of the value that is
    /// replaced (DISABLE).
    Cleared,
}

/// How a put is placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutOptions {
    /// Replicas wanted, each with another client; fewer clients store fewer, and
    /// more than 64 are never made.
    pub replica_num: u32,
    /// Names of segments (= clients) to try first, in order.
    pub preferred_segments: Vec<String>,
    /// How long the object must stay.
    pub pin: PinKind,
    /// Prefer a segment on the writer's own host.
    pub prefer_local: bool,
    /// Replace values that are there (upsert). The old value can be read until
    /// the new one is whole, and stays if that fails.
    pub replace: bool,
    /// Groups of the objects: none for all, or one per object of the batch, of
    /// which "" is none. Another number is refused. Objects of a group leave the
    /// pool one after another, and a caller that looks one up keeps them together.
    pub groups: Vec<String>,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self {
            replica_num: 1,
            preferred_segments: Vec::new(),
            pin: PinKind::None,
            prefer_local: false,
            replace: false,
            groups: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<StoreOptions, StoreError> {
        let pairs: Vec<(String, String)> = pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        StoreOptions::new("localhost", "localhost:50051")
            .overlaid(|name| pairs.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()))
    }

    #[test]
    fn the_environment_lies_over_the_settings() {
        let options = with(&[
            ("MC_SHM", "0"),
            ("MC_SHM_VIEWS", "off"),
            ("MOONCAKE_STORE_CHECKSUM", "0"),
            ("MC_STORE_CLIENT_MIN_PORT", "20000"),
            ("MC_STORE_CLIENT_MAX_PORT", "20010"),
            ("MC_DATA_TIMEOUT_MS", "1500"),
            ("MC_STORE_CLIENT_BIND_ADDRESS", "::1"),
            ("MC_TCP_ADDRESSES", "10.0.0.5,[fd00::5]"),
            ("MC_TCP_ADDRESS_PAUSE_MS", "250"),
        ])
        .unwrap();
        assert!(!options.shared_memory && !options.shared_views && !options.verify);
        assert_eq!(options.ports, (20000, 20010));
        assert_eq!(options.stall_timeout, Duration::from_millis(1500));
        assert_eq!(options.bind_address, Some("::1".parse().unwrap()));
        assert_eq!(options.tcp_addresses, ["10.0.0.5".parse::<IpAddr>().unwrap(), "fd00::5".parse().unwrap()]);
        assert_eq!(options.tcp_address_pause, Duration::from_millis(250));
        assert!(with(&[]).unwrap().shared_memory);
    }

    #[test]
    fn what_reads_and_writes_disks_is_asked_for_or_found_out() {
        const URING: &str = "MOONCAKE_OFFLOAD_USE_URING";
        const ENGINE: &str = "MC_TIER_ENGINE";
        for (pairs, engine) in [
            (&[][..], None),
            (&[(URING, "true")], None),
            (&[(URING, "false")], Some(Engine::Threads)),
            (&[(URING, "0"), (ENGINE, "Ring")], Some(Engine::Ring)),
            (&[(ENGINE, "threads")], Some(Engine::Threads)),
            (&[(ENGINE, "")], None),
        ] {
            assert_eq!(with(pairs).unwrap().tier_engine, engine, "{pairs:?}");
        }
        let error = with(&[(ENGINE, "uring")]).unwrap_err().to_string();
        assert!(error.contains("one of ring, threads"), "{error}");
        const BUFFERS: &str = "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES";
        for (bytes, slots) in [("", 64), ("0", 8), ("1342177280", 301), ("18446744073709551615", 4096)] {
            assert_eq!(with(&[(BUFFERS, bytes)]).unwrap().tier_slots, slots, "{bytes}");
        }
    }

    #[test]
    fn values_without_a_meaning_are_named() {
        for (name, value) in [
            ("MC_SHM", "2"),
            ("MC_STORE_CLIENT_MIN_PORT", "x"),
            ("MC_STORE_CLIENT_MIN_PORT", "15000"),
            ("MC_DATA_TIMEOUT_MS", "-1"),
            ("MC_LOOKUP_TIMEOUT_MS", "0"),
            ("MC_SHM", "\u{fffd}"),
        ] {
            let error = with(&[(name, value)]).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidParams);
            assert!(error.to_string().contains(name), "{error}");
        }
        let error = with(&[("MC_TCP_ADDRESSES", "10.0.0.5,10.0.0.5")]).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidParams);
        let twice = "MC_TCP_ADDRESSES=\"10.0.0.5,10.0.0.5\": 10.0.0.5 is there twice; name each address once";
        assert_eq!(error.to_string(), twice);
        let error = with(&[("MC_STORE_CLIENT_BIND_ADDRESS", "256.1.1.1")]).unwrap_err().to_string();
        assert_eq!(error, "MC_STORE_CLIENT_BIND_ADDRESS=\"256.1.1.1\": expected an IP address, as in 10.0.0.5 or ::1");
    }

    #[test]
    fn a_tier_lies_where_the_caller_says_or_the_environment_does() {
        let tier_of = |path: &str, pairs: &[(&str, &str)]| {
            let pairs: Vec<(String, String)> = pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
            StoreOptions::new("localhost", "localhost:50051")
                .with_tier_of(path, |name| pairs.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()))
                .map(|options| options.tiers)
        };
        const PATH: (&str, &str) = ("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "/b");
        const PATHS: (&str, &str) = ("MOONCAKE_OFFLOAD_FILE_STORAGE_PATHS", "/c, /d,");
        const LIMIT: (&str, &str) = ("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", "1000");
        let paths_of = |path: &str, pairs: &[(&str, &str)]| -> Vec<PathBuf> {
            tier_of(path, pairs).unwrap().into_iter().map(|tier| tier.path).collect()
        };
        assert_eq!(paths_of("/a", &[PATH, PATHS]), [PathBuf::from("/a")]);
        assert_eq!(paths_of("", &[PATH]), [PathBuf::from("/b")]);
        assert_eq!(paths_of("", &[PATH, PATHS]), [PathBuf::from("/c"), PathBuf::from("/d")]);
        assert_eq!(paths_of("", &[PATH, (PATHS.0, " , ")]), [PathBuf::from("/b")]);
        assert_eq!(paths_of("", &[]), [PathBuf::from(TIER_PATH)]);
        let twice = tier_of("", &[(PATHS.0, "/c,/d,/c/")]).unwrap_err().to_string();
        assert!(twice.contains(PATHS.0) && twice.contains("/c/ is there twice"), "{twice}");
        // What is named is all that a store may take, however many disks it lies on.
        for (path, shares) in [("/a", vec![Some(1000)]), ("", vec![Some(500), Some(500)])] {
            let limited = tier_of(path, &[LIMIT, PATHS]).unwrap();
            assert_eq!(limited.iter().map(|tier| tier.bytes).collect::<Vec<_>>(), shares);
        }
        for (value, limit) in [("0", None), ("2000", Some(2000))] {
            let limited = tier_of("", &[PATHS, ("MOONCAKE_OFFLOAD_BUCKET_MAX_PHYSICAL_BYTES", value)]).unwrap();
            assert!(limited.iter().all(|tier| tier.bytes_below_path == limit), "of each path: {limited:?}");
        }
        const BUCKETS: &str = "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE";
        for (pairs, bytes) in [
            (&[(BUCKETS, "0")][..], None),
            (&[(BUCKETS, "900")], Some(900)),
            (&[LIMIT, (BUCKETS, "0")], Some(1000)),
            (&[LIMIT, (BUCKETS, "900")], Some(900)),
        ] {
            assert_eq!(tier_of("/a", pairs).unwrap()[0].bytes, bytes, "{pairs:?}");
        }
        for (value, records_max) in [("0", None), ("500", Some(500))] {
            let limited = tier_of("", &[PATHS, ("MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT", value)]).unwrap();
            assert!(limited.iter().all(|tier| tier.records_max == records_max), "of each tier: {limited:?}");
        }
        let error = tier_of("/a", &[("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", "1 GB")]).unwrap_err();
        assert!(error.to_string().contains("TOTAL_SIZE_LIMIT"), "{error}");
    }

    #[test]
    fn huge_pages_are_asked_for_by_anything_but_a_no() {
        for (value, wanted) in [("1", true), ("on", true), ("2MB", true), ("0", false), ("false", false), ("", false)] {
            assert_eq!(with(&[("MC_STORE_USE_HUGEPAGE", value)]).unwrap().huge_pages, wanted, "{value:?}");
        }
    }
}
