//! Settings of a master, and how flags and environment make them.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mooncake_core::{Config, Offload, PlacementStrategy, Promotion, SharedStorage};
use mooncake_settings::{Given, SettingError};

use crate::connections::Limits;
use crate::events::Events;

/// Longest cluster id that tiers say is theirs.
const CLUSTER_ID_MAX: usize = 255;

/// What the log does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wal {
    /// No log: a restart forgets every object.
    Off,
    /// Survives the master's end, not the host's.
    #[default]
    On,
    /// Waits for the disk before each reply.
    Fsync,
}

/// Everything that a master is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Address of the control server.
    pub rpc_address: IpAddr,
    /// Its port, 0 = any.
    pub rpc_port: u16,
    /// Also listen on an abstract Unix socket.
    pub unix_socket: bool,
    /// Address of the HTTP server.
    pub metrics_address: IpAddr,
    /// Its port, 0 = any.
    pub metrics_port: u16,
    /// Where the HTTP metadata server listens, if there is to be one.
    pub metadata_server: Option<SocketAddr>,
    /// Write a summary line to the output every 10 s.
    pub metric_reporting: bool,
    /// Times and shares of the core.
    pub core: Config,
    /// Lifetime of a soft pin whose request names none.
    pub soft_pin_ttl_ms: u64,
    /// Name of the pool.
    pub cluster_id: String,
    /// What the log does.
    pub wal: Wal,
    /// Folder of the log.
    pub log_folder: LogFolder,
    /// A log smaller than this, bytes, is not compacted.
    pub compact_min: u64,
    /// The longest time between two snapshots of a log that grows; `None`: a snapshot comes as it has grown.
    pub snapshot_interval: Option<Duration>,
    /// Folder of the witness.
    pub witness_folder: PathBuf,
    /// How many connections there may be, where there are descriptors for them.
    pub connections: Limits,
    /// Called after many objects were freed, so that an allocator can give memory back.
    pub after_bulk_free: Option<fn()>,
    /// Lines of output at start.
    pub notes: Vec<String>,
    /// Where what logs puts the lines that pages show.
    pub events: Arc<Events>,
}

/// Where the log lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogFolder {
    /// Right here, as the user said.
    Given(PathBuf),
    /// Nobody said: here, unless this place cannot be made.
    Default(PathBuf),
    /// Nowhere.
    None,
}

impl Default for Settings {
    /// A master on loopback, any port, without a log.
    fn default() -> Settings {
        Settings {
            rpc_address: IpAddr::from([127, 0, 0, 1]),
            rpc_port: 0,
            unix_socket: true,
            metrics_address: IpAddr::from([127, 0, 0, 1]),
            metrics_port: 0,
            metadata_server: None,
            metric_reporting: true,
            core: Config::default(),
            soft_pin_ttl_ms: 30 * 60 * 1000,
            cluster_id: "mooncake_cluster".to_owned(),
            wal: Wal::Off,
            log_folder: LogFolder::None,
            compact_min: 64 << 20,
            snapshot_interval: None,
            witness_folder: PathBuf::from("/dev/shm"),
            connections: Limits::default(),
            after_bulk_free: None,
            notes: Vec::new(),
            events: Arc::default(),
        }
    }
}

impl Settings {
    /// Settings of a command line. `env` reads the environment.
    pub fn from_flags(given: &Given, env: impl Fn(&str) -> Option<String>) -> Result<Settings, SettingError> {
        let mut settings = Settings { notes: given.notes.clone(), ..Settings::default() };
        // Mooncake's rule: 0 means "see --port"; an explicit --rpc_port=0 alone asks for any port.
        settings.rpc_port = match (given.number::<u16>("rpc_port"), given.number::<u16>("port")) {
            (Some(port), None) => port,
            (Some(port), Some(_)) if port != 0 => port,
            (_, Some(port)) => port,
            (None, None) => 50_051,
        };
        settings.rpc_address = match given.text("rpc_interface").filter(|name| !name.is_empty()) {
            Some(name) => interface_address(name).map_err(|reason| given.unfit("rpc_interface", reason))?,
            None => address(given, "rpc_address")?,
        };
        settings.metrics_port = given.number("metrics_port").unwrap_or(9003);
        settings.metrics_address = address(given, "metrics_host")?;
        if given.boolean("enable_http_metadata_server") {
            let host = address(given, "http_metadata_server_host")?;
            settings.metadata_server =
                Some(SocketAddr::new(host, given.number("http_metadata_server_port").unwrap_or(8080)));
        }
        settings.metric_reporting = given.boolean("enable_metric_reporting");
        settings.objects(given)?;
        settings.log(given, env);
        Ok(settings)
    }

    fn objects(&mut self, given: &Given) -> Result<(), SettingError> {
        if let Some(ms) = given.milliseconds("default_kv_lease_ttl") {
            self.core.lookup_protect_ms = ms;
        }
        if let Some(seconds) = given.number::<u64>("put_start_discard_timeout_sec") {
            self.core.reservation_ms = seconds * 1000;
        }
        if let Some(ms) = given.milliseconds("max_kv_soft_pin_ttl") {
            self.core.soft_pin_ttl_max_ms = ms;
        }
        if let Some(ms) = given.milliseconds("default_kv_soft_pin_ttl") {
            if ms > self.core.soft_pin_ttl_max_ms {
                let reason = format!("longer than max_kv_soft_pin_ttl, {} ms", self.core.soft_pin_ttl_max_ms);
                return Err(given.unfit("default_kv_soft_pin_ttl", reason));
            }
            self.soft_pin_ttl_ms = ms;
        }
        self.soft_pin_ttl_ms = self.soft_pin_ttl_ms.min(self.core.soft_pin_ttl_max_ms);
        self.core.evict_soft_pinned = given.boolean("allow_evict_soft_pinned_objects");
        if let Some(ratio) = given.number("eviction_high_watermark_ratio") {
            self.core.high_watermark = ratio;
        }
        if let Some(ratio) = given.number("eviction_ratio") {
            self.core.eviction_share = ratio;
            self.notes.push(format!(
                "{}={ratio} is a share of the capacity in bytes, and counts once eviction_high_watermark_ratio is \
                 below 1",
                given.label("eviction_ratio")
            ));
        }
        self.core.offload =
            Offload { on_evict: given.boolean("offload_on_evict"), force_evict: given.boolean("offload_force_evict") };
        let threshold = given.number_or_default::<u32>("promotion_admission_threshold").clamp(1, 255) as u8;
        self.core.promotion = Promotion {
            prefetch: given.boolean("tier_prefetch"),
            on_hit: given.boolean("promotion_on_hit"),
            threshold,
        };
        self.shared_storage(given)?;
        self.core.tier_fills_per_day = given.number_or_default("tier_writes_per_day");
        if !(0.0..=1e6).contains(&self.core.tier_fills_per_day) {
            return Err(given.unfit("tier_writes_per_day", "it is a number of fills a day, 0 for any"));
        }
        self.core.tier_retention_ms = given.milliseconds("tier_retention").unwrap_or(self.core.tier_retention_ms);
        self.core.tiers_allowed = given.boolean("enable_offload");
        self.core.placement = match given.text("allocation_strategy").unwrap_or("random") {
            "random" => PlacementStrategy::Random,
            // Memory is placed first, whatever is behind it.
            "free_ratio_first" | "ssd_free_ratio_first" => PlacementStrategy::FreeRatioFirst,
            "local_first" => PlacementStrategy::LocalFirst,
            "cxl" => {
                return Err(given.unfit("allocation_strategy", "this master has no CXL memory"));
            }
            // As Mooncake's master does.
            other => {
                let label = given.label("allocation_strategy");
                self.notes.push(format!("{label}={other} is unknown; random is used"));
                PlacementStrategy::Random
            }
        };
        Ok(())
    }

    fn shared_storage(&mut self, given: &Given) -> Result<(), SettingError> {
        let Some(root) = given.text("root_fs_dir").filter(|folder| !folder.is_empty()) else { return Ok(()) };
        // As upstream's tests have it: with tiers on local disks there are no others.
        if given.text("enable_offload").is_some() && given.boolean("enable_offload") {
            let label = given.label("root_fs_dir");
            self.notes
                .push(format!("{label} has no effect with enable_offload: tiers lie in folders of their clients"));
            return Ok(());
        }
        if !Path::new(root).is_absolute() {
            let reason = "each client looks for it on its own host: give the whole path, from / on";
            return Err(given.unfit("root_fs_dir", reason));
        }
        let cluster_id = given.text_or_default("cluster_id");
        if cluster_id.is_empty() || cluster_id.len() > CLUSTER_ID_MAX || cluster_id.contains('/') || cluster_id == ".."
        {
            let reason = format!("with root_fs_dir it names a folder there: 1 to {CLUSTER_ID_MAX} bytes without a /");
            return Err(given.unfit("cluster_id", reason));
        }
        self.core.shared_storage = Some(SharedStorage {
            root: root.to_owned(),
            cluster_id: cluster_id.to_owned(),
            quota_bytes: given.number_or_default("quota_bytes"),
            evicts: given.boolean("enable_disk_eviction"),
        });
        Ok(())
    }

    fn log(&mut self, given: &Given, env: impl Fn(&str) -> Option<String>) {
        self.cluster_id = given.text_or_default("cluster_id").to_owned();
        self.wal = match given.text_or_default("wal").to_ascii_lowercase().as_str() {
            "fsync" => Wal::Fsync,
            "off" | "false" | "0" => Wal::Off,
            _ => Wal::On,
        };
        let interval = given.number("snapshot_interval_seconds").filter(|seconds| *seconds > 0);
        self.snapshot_interval = interval.map(Duration::from_secs);
        let own = given.text("wal_dir").filter(|dir| !dir.is_empty());
        self.log_folder = match own {
            Some(folder) => LogFolder::Given(PathBuf::from(folder)),
            // Any port: the next start would get another, and another folder.
            None if self.rpc_port == 0 => LogFolder::None,
            None => match state_folder(env) {
                Some(folder) => LogFolder::Default(folder.join(format!("{}-{}", self.cluster_id, self.rpc_port))),
                None => LogFolder::None,
            },
        };
    }
}

/// The address that a setting names.
pub fn address(given: &Given, name: &str) -> Result<IpAddr, SettingError> {
    resolve(given.text_or_default(name)).map_err(|reason| given.unfit(name, reason))
}

/// An IP address, with or without brackets, or that of a name; else what is wrong.
pub fn resolve(text: &str) -> Result<IpAddr, String> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let resolved = mooncake_net::resolve_without_deadline(bare, 0)
        .map_err(|error| format!("neither an IP address nor a name that resolves: {error}"))?;
    let first = resolved.iter().find(|address| address.is_ipv4()).unwrap_or(&resolved[0]);
    Ok(first.ip())
}

fn interface_address(name: &str) -> Result<IpAddr, String> {
    let all = nix::ifaddrs::getifaddrs().map_err(|error| error.to_string())?;
    let mut names = Vec::new();
    for interface in all {
        if interface.interface_name == name
            && let Some(v4) = interface.address.as_ref().and_then(|address| address.as_sockaddr_in())
        {
            return Ok(IpAddr::V4(v4.ip()));
        }
        if !names.contains(&interface.interface_name) {
            names.push(interface.interface_name);
        }
    }
    Err(format!("no such interface with an IPv4 address; there are {}", names.join(", ")))
}

/// Where state belongs on this machine. `env` reads the environment.
pub fn state_folder(env: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let set = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = set("MOONCAKE_STATE_DIR") {
        return Some(folder);
    }
    if let Some(folder) = set("XDG_STATE_HOME") {
        return Some(folder.join("mooncake"));
    }
    let system = PathBuf::from("/var/lib");
    if rustix::process::geteuid().is_root() && rustix::fs::access(&system, rustix::fs::Access::WRITE_OK).is_ok() {
        return Some(system.join("mooncake"));
    }
    set("HOME").map(|home| home.join(".local/state/mooncake"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncake_settings::{CommandLine, MASTER, parse};

    fn run(args: &[&str]) -> Result<Settings, String> {
        let parsed = parse(&MASTER, args.iter().map(|a| (*a).to_owned())).map_err(|e| e.to_string())?;
        let CommandLine::Run(given) = parsed else { panic!("printed") };
        let env = |name: &str| (name == "MOONCAKE_STATE_DIR").then(|| "/state".to_owned());
        Settings::from_flags(&given, env).map_err(|e| e.to_string())
    }

    #[test]
    fn ports_follow_the_older_name_unless_the_newer_is_given() {
        assert_eq!(run(&[]).unwrap().rpc_port, 50_051);
        assert_eq!(run(&["--port=7"]).unwrap().rpc_port, 7);
        assert_eq!(run(&["--port=7", "--rpc_port=8"]).unwrap().rpc_port, 8);
        assert_eq!(run(&["--port=7", "--rpc_port=0"]).unwrap().rpc_port, 7);
        assert_eq!(run(&["--rpc_port=0"]).unwrap().rpc_port, 0);
    }

    #[test]
    fn reference_defaults_count_only_when_given() {
        let plain = run(&[]).unwrap();
        assert_eq!((plain.core.lookup_protect_ms, plain.core.reservation_ms), (2_000, 30_000));
        assert_eq!(plain.core.high_watermark, 1.0);
        let given = run(&[
            "--default_kv_lease_ttl=5s",
            "--put_start_discard_timeout_sec=3",
            "--eviction_high_watermark_ratio",
            "0.9",
            "--eviction_ratio=0.1",
            "--client_ttl=60",
            "--put_start_release_timeout_sec=700",
            "--default_kv_soft_pin_ttl=1m",
        ])
        .unwrap();
        assert_eq!((given.core.lookup_protect_ms, given.core.reservation_ms), (5_000, 3_000));
        assert_eq!((given.core.high_watermark, given.core.eviction_share), (0.9, 0.1));
        assert_eq!(given.soft_pin_ttl_ms, 60_000);
        assert_eq!((given.core.away_ms, given.core.retention_ms), (2_000, 600_000));
        for flag in ["client_ttl", "put_start_release_timeout_sec", "eviction_ratio"] {
            assert_eq!(given.notes.iter().filter(|note| note.contains(flag)).count(), 1, "{flag}: {:?}", given.notes);
        }
    }

    #[test]
    fn the_log_lies_in_a_folder_of_cluster_and_port() {
        let folder = |args: &[&str]| run(args).unwrap().log_folder;
        assert_eq!(folder(&[]), LogFolder::Default("/state/mooncake_cluster-50051".into()));
        assert_eq!(folder(&["--cluster_id=a", "--rpc_port=5"]), LogFolder::Default("/state/a-5".into()));
        assert_eq!(folder(&["--rpc_port=0"]), LogFolder::None);
        assert_eq!(folder(&["--rpc_port=0", "--wal_dir=/x"]), LogFolder::Given("/x".into()));
    }

    #[test]
    fn addresses_may_be_bracketed() {
        let addresses = |args: &[&str]| {
            let settings = run(args).unwrap();
            (settings.rpc_address.to_string(), settings.metrics_address.to_string())
        };
        assert_eq!(addresses(&["--rpc_address=[::1]"]).0, "::1");
        assert_eq!(addresses(&["--rpc_address=::1", "--metrics_host", "127.0.0.2"]).1, "127.0.0.2");
        assert_eq!(addresses(&[]), ("0.0.0.0".to_owned(), "0.0.0.0".to_owned()));
        assert_eq!(addresses(&["--rpc_interface=lo"]).0, "127.0.0.1");
    }

    #[test]
    fn bad_values_are_fatal_and_named() {
        for bad in [
            "--rpc_port=65536",
            "--metrics_port=-1",
            "--eviction_ratio=1.5",
            "--eviction_high_watermark_ratio=nan",
            "--cluster_id=a/b",
            "--cluster_id=",
            "--wal=perhaps",
            "--allocation_strategy=cxl",
            "--memory_allocator=buddy",
            "--default_kv_lease_ttl=soon",
            "--default_kv_lease_ttl=99999999999999h",
            "--default_kv_soft_pin_ttl=48h",
            "--put_start_discard_timeout_sec=0",
            "--rpc_interface=none0",
            "--rpc_address=256.0.0.1",
            "--enable_metric_reporting=perhaps",
        ] {
            let error = run(&[bad]).unwrap_err();
            let name = bad.trim_start_matches('-').split('=').next().unwrap();
            assert!(error.contains(name), "{bad}: {error}");
        }
    }

    #[test]
    fn what_fits_no_other_setting_names_the_file_that_it_stands_in() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("unfit.json");
        for (name, value) in [
            ("default_kv_soft_pin_ttl", "48h"),
            ("allocation_strategy", "cxl"),
            ("rpc_interface", "none0"),
            ("metrics_host", "256.0.0.1"),
        ] {
            std::fs::write(&path, format!("{{{name:?}: {value:?}}}")).unwrap();
            let error = run(&[&format!("--config_path={}", path.display())]).unwrap_err();
            assert!(error.starts_with(&format!("{}: {name}={value}: ", path.display())), "{error}");
        }
    }

    #[test]
    fn clients_share_a_file_system_unless_tiers_on_local_disks_take_its_place() {
        let root = "--root_fs_dir=/mnt/fs";
        let storage = |more: &[&str]| run(&[&[root], more].concat()).unwrap().core.shared_storage;
        let default = storage(&[]).unwrap();
        assert_eq!(
            (default.folder().as_str(), default.quota_bytes, default.evicts),
            ("/mnt/fs/mooncake_cluster", 0, true)
        );
        assert_eq!(storage(&["--enable_offload=false"]), Some(default.clone()));
        let given = storage(&["--cluster_id=c", "--quota_bytes=1000000000", "--enable_disk_eviction=false"]).unwrap();
        assert_eq!((given.folder().as_str(), given.quota_bytes, given.evicts), ("/mnt/fs/c", 1_000_000_000, false));
        assert_eq!(run(&["--root_fs_dir="]).unwrap().core.shared_storage, None);
        assert!(run(&["--root_fs_dir=relative"]).unwrap_err().contains("root_fs_dir"));
        for cluster_id in ["--cluster_id=a/b", "--cluster_id=.."] {
            assert!(run(&[root, cluster_id]).unwrap_err().contains("cluster_id"), "{cluster_id}");
        }
        let settings = run(&["--root_fs_dir=/mnt/fs", "--enable_offload=true", "--promotion_on_hit"]).unwrap();
        assert!(settings.notes.iter().any(|note| note.contains("root_fs_dir")), "{:?}", settings.notes);
        assert!(settings.core.promotion.on_hit && settings.core.tiers_allowed);
        assert_eq!(settings.core.shared_storage, None);
    }

    #[test]
    fn command_lines_in_use_are_accepted() {
        run(&[
            "--rpc_address=127.0.0.1",
            "--rpc_port=50051",
            "--metrics_host=127.0.0.1",
            "--metrics_port=9003",
            "--logtostderr=true",
            "--max_threads",
            "4",
            "-v=1",
            "--eviction_high_watermark_ratio=0.95",
            "--noenable_ha",
            "--enable_offload=false",
            "--root_fs_dir=",
            "--allocation_strategy=best",
        ])
        .unwrap();
    }
}
