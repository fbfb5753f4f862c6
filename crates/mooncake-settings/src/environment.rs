//! Settings of clients that come from the environment.

use std::collections::{BTreeMap, BTreeSet};

pub use crate::setting::log_level;
use crate::setting::{Setting, Support, Type, boolean};
use crate::tables::families::READ_BY_ENGINES;
use crate::tables::{engine, families, mooncake_config};

/// All of them.
pub const VARIABLES: &[Setting] = &[
    Setting::supported("MC_SHM", Type::Bool, "1", "map the memory of peers on the same host; 0: bulk data by TCP only"),
    Setting::supported("MC_SHM_VIEWS", Type::Bool, "1", "`get_buffer` borrows mapped memory; 0: it copies"),
    Setting::supported(
        "MOONCAKE_STORE_CHECKSUM",
        Type::Bool,
        "1",
        "verify the CRC-32C of whole objects as they are read",
    ),
    Setting::supported(
        "MC_LOOKUP_TIMEOUT_MS",
        Type::Milliseconds,
        "500",
        "longest wait for the master's answer to a query",
    ),
    Setting::supported("MC_DATA_TIMEOUT_MS", Type::Milliseconds, "3000", "longest time without a byte moved"),
    Setting::supported(
        "MC_PUT_TIMEOUT_MS",
        Type::Milliseconds,
        "5000",
        "longest time for a put's retries and waits for room",
    ),
    Setting::supported(
        "MC_STORE_USE_HUGEPAGE",
        Type::Text,
        "",
        "set to anything but 0, false, no, off or nothing: huge pages for the segment",
    ),
    Setting::supported("MC_STORE_CLIENT_MIN_PORT", Type::Port, "12300", "first port to choose from for data"),
    Setting::supported("MC_STORE_CLIENT_MAX_PORT", Type::Port, "14300", "last port to choose from for data"),
    Setting::supported(
        "MC_STORE_CLIENT_BIND_ADDRESS",
        Type::Address,
        "",
        "what to listen on for data where that is not what the host name says",
    ),
    crate::tables::engine::TCP_ADDRESSES,
    crate::tables::engine::TCP_ADDRESS_PAUSE,
    crate::tables::engine::RAISE_DESCRIPTORS,
    Setting::supported(
        "MC_LOG_LEVEL",
        Type::LogLevel,
        "INFO",
        "what clients say, by Python's logger `mooncake` or on stderr: TRACE, DEBUG, INFO, WARNING, ERROR or OFF",
    ),
    Setting::supported(
        "MC_STORE_CLIENT_METRIC",
        Type::Bool,
        "1",
        "count calls, bytes and times of a client; 0: do not",
    ),
    Setting::supported(
        "MC_STORE_CLIENT_METRIC_INTERVAL",
        Type::Whole(0, u64::MAX as i128),
        "0",
        "seconds between two log lines about what was counted; 0: none",
    ),
    Setting::supported("MC_STORE_CLIENT_METRIC_BANDWIDTH", Type::Bool, "0", "those lines say bytes a second too"),
    Setting::supported("MC_STORE_CLUSTER_ID", Type::Text, "", "label `cluster_id` of a client's metrics"),
    Setting::supported(
        "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",
        Type::Text,
        "/data/file_storage",
        "folder in which a client keeps its tier, where it keeps one; made if it is not there",
    ),
    Setting::supported(
        "MOONCAKE_OFFLOAD_FILE_STORAGE_PATHS",
        Type::Text,
        "",
        "instead: folders on several disks, with commas between them; a client keeps a tier in each",
    ),
    Setting::supported(
        "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES",
        Type::Whole(1, u64::MAX as i128),
        "",
        "most bytes of a client's tiers, which share them evenly; none: nine tenths of each file system",
    ),
    Setting::supported(
        "MOONCAKE_OFFLOAD_BUCKET_MAX_PHYSICAL_BYTES",
        Type::Whole(0, u64::MAX as i128),
        "0",
        "most bytes that the tiers of all processes below one path take of the disk together; 0: no such limit",
    ),
    Setting::supported(
        "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE",
        Type::Whole(0, u64::MAX as i128),
        "0",
        "the same as `MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES`; of both, the lower one counts. 0: no such limit",
    ),
    Setting::supported(
        "MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT",
        Type::Whole(0, u64::MAX as i128),
        "10000000",
        "most objects of one tier: one that has as many gives up its oldest file. More than 10,000,000, or 0: these",
    ),
    Setting::supported(
        "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES",
        Type::Whole(0, u64::MAX as i128),
        "",
        "a quarter of it is for buffers of 1 MiB and a little through which a client reads disks; none: 64 of them",
    ),
    Setting::supported(
        "MOONCAKE_OFFLOAD_USE_URING",
        Type::Bool,
        "",
        "0: threads write and read disks. 1, or nothing: io_uring does, where the kernel lets the process use it",
    ),
    Setting::supported(
        "MC_TIER_ENGINE",
        Type::OneOf(&["ring", "threads"]),
        "",
        "the same, without the trial: ring is io_uring, and where that fails there is no tier",
    ),
    Setting::supported(
        "MOONCAKE_STORAGE_ROOT_DIR",
        Type::Text,
        "",
        "folder of a tier of the store that `setup()` makes, which it keeps then (LMCache's `storage_root_dir`); \
         `mooncake_client` takes --enable_offload",
    ),
    Setting::supported(
        "MOONCAKE_OFFLOAD_CLOSE_SECONDS",
        Type::U32,
        "5",
        "most time that a client that closes takes to write to its tier what is in its memory alone",
    ),
    Setting::supported(
        "MOONCAKE_OFFLOAD_ADOPT_SECONDS",
        Type::U32,
        "60",
        "a folder below a client's path that no process has had for so long is read by the client, and given up first",
    ),
    Setting::no_effect(
        "MC_RPC_TIMEOUT_MS",
        Type::Text,
        "",
        "MC_LOOKUP_TIMEOUT_MS and MC_PUT_TIMEOUT_MS bound the calls",
    ),
    Setting::no_effect(
        "MC_RPC_CONNECT_TIMEOUT_MS",
        Type::Text,
        "",
        "setup gives up after 3 s, calls go by MC_LOOKUP_TIMEOUT_MS",
    ),
    Setting::no_effect(
        "MC_TRANSFER_TIMEOUT",
        Type::Text,
        "",
        "MC_DATA_TIMEOUT_MS bounds the time without a byte moved",
    ),
    Setting::no_effect("MC_TCP_BIND_ADDRESS", Type::Text, "", "MC_STORE_CLIENT_BIND_ADDRESS says what to listen on"),
    Setting::no_effect("MC_STORE_HUGEPAGE_SIZE", Type::Text, "", "huge pages have the size that is the host's default"),
    Setting::no_effect("MC_STORE_CLIENT_SETUP_RETRIES", Type::Text, "", "every port of the range is tried"),
    Setting::no_effect(
        "MC_LOG_DIR",
        Type::Text,
        "",
        "the store's lines go to Python's logger `mooncake`; mooncake_client has --log_dir",
    ),
];

/// Of every process, read before anything else is.
pub const PROCESS_VARIABLES: &[Setting] = &[
    Setting::supported(
        "MOONCAKE_ALLOW_CLASH",
        Type::Text,
        "",
        "1: start and import although another distribution of Mooncake is installed beside this one",
    ),
    Setting::supported(
        "MOONCAKE_STATE_DIR",
        Type::Text,
        "",
        "folder for the master's logs, where --wal_dir names none",
    ),
];

/// What reads the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// A store, or a storage node.
    Store,
    /// A transfer engine.
    Engine,
}

/// What there is to say of the variables that a process has: those of Mooncake's that do nothing here, and why.
pub fn remarks(reader: Reader, names: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut remarks = Vec::new();
    let mut families: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut unknown = Vec::new();
    let (own, others) = match reader {
        Reader::Store => (VARIABLES, engine::VARIABLES),
        Reader::Engine => (engine::VARIABLES, VARIABLES),
    };
    let config = std::iter::once(&mooncake_config::CONFIG_PATH)
        .chain(mooncake_config::VALUES.iter().map(|value| &value.variable));
    // What the other kind of reader reads is not this one's affair, unless that reader passes over it too.
    let known: Vec<&Setting> = own.iter().chain(others).chain(PROCESS_VARIABLES).chain(config).collect();
    let is_ours = |name: &String| name.starts_with("MC_") || name.starts_with("MOONCAKE_");
    for name in names.into_iter().filter(is_ours).collect::<BTreeSet<_>>() {
        match known.iter().find(|variable| variable.name == name) {
            Some(_) if reader == Reader::Store && engine::OF_RDMA.contains(&name.as_str()) => {
                families.entry(engine::RDMA_OF_STORES).or_default().push(name);
            }
            Some(variable) if variable.support == Support::Supported => {}
            Some(Setting { support: Support::Inactive, help, .. }) => {
                remarks.push(format!("{name} has no effect: this version does not have {help}"));
            }
            Some(variable) => families.entry(variable.help).or_default().push(name),
            None if READ_BY_ENGINES.contains(&name.as_str()) => {}
            None => match families::reason(&name) {
                Some(why) => families.entry(why).or_default().push(name),
                None => unknown.push(name),
            },
        }
    }
    for (why, names) in families {
        let verb = if names.len() == 1 { "has" } else { "have" };
        remarks.push(format!("{} {verb} no effect: {why}", names.join(", ")));
    }
    if !unknown.is_empty() {
        remarks.push(format!("not known here, without effect: {}", unknown.join(", ")));
    }
    remarks
}

/// A value that does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value:?}: expected {expected}")]
pub struct BadVariable {
    /// The variable.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// What was expected.
    pub expected: String,
}

/// A switch; `None` when it is not set, or set to nothing.
pub fn switch(name: &str, var: &impl Fn(&str) -> Option<String>) -> Result<Option<bool>, BadVariable> {
    Ok(checked(name, var)?.and_then(|value| boolean(&value)))
}

/// A number, an address or whatever parses; `None` when it is not set, or set to nothing.
pub fn parsed<T: std::str::FromStr>(
    name: &str,
    var: &impl Fn(&str) -> Option<String>,
) -> Result<Option<T>, BadVariable> {
    let Some(value) = checked(name, var)? else { return Ok(None) };
    match value.trim().parse() {
        Ok(parsed) => Ok(Some(parsed)),
        Err(_) => Err(BadVariable { name: find(name).name, value, expected: "a value that parses".to_owned() }),
    }
}

/// Whether it is set to anything that is not a no: what Mooncake reads by its being there alone.
pub fn is_on(name: &str, var: &impl Fn(&str) -> Option<String>) -> bool {
    var(find(name).name).is_some_and(|value| !value.trim().is_empty() && boolean(&value) != Some(false))
}

/// A variable of this process. What is no UTF-8 is shown as well as it can be, and then means nothing.
pub fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn checked(name: &str, var: &impl Fn(&str) -> Option<String>) -> Result<Option<String>, BadVariable> {
    let variable = find(name);
    let Some(value) = var(name).filter(|value| !value.trim().is_empty()) else { return Ok(None) };
    match variable.value.check(&value) {
        Ok(()) => Ok(Some(value)),
        Err(expected) => Err(BadVariable { name: variable.name, value, expected }),
    }
}

/// Panics for names that are not in the registry.
fn find(name: &str) -> &'static Setting {
    let mut found = VARIABLES.iter().chain(engine::VARIABLES).filter(|variable| variable.name == name);
    // What one kind of client passes over means something to the other.
    let done = found.clone().find(|variable| variable.support == Support::Supported);
    done.or_else(|| found.next()).unwrap_or_else(|| panic!("{name} is no variable of the registry"))
}
