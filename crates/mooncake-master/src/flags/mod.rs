//! Command-line flags in gflags syntax: `--x=v`, `--x v`, `-x=v`, `--flag`,
//! `--noflag`, `--help`, `--version`.

mod table;

pub use table::FLAGS;

use std::collections::BTreeMap;
use std::fmt::Write;

/// A flag.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// Name without dashes.
    pub name: &'static str,
    /// What its values look like.
    pub value: Type,
    /// Its default.
    pub default: &'static str,
    /// What it does; for the other kinds: why it does nothing, or what is missing.
    pub help: &'static str,
    /// Whether it does anything.
    pub kind: Kind,
}

/// Whether a flag does anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It does what it says.
    Done,
    /// Tuning without a meaning here: accepted, one line says so.
    Accepted,
    /// A setting of a capability that is missing: accepted, one line says so.
    Idle,
    /// A capability that is missing: refused unless the value is one of these.
    Refused {
        /// Values that leave it switched off.
        off: &'static [&'static str],
    },
}

/// What a flag's values look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// true, false, 1, 0, yes, no, t, f, y, n.
    Bool,
    /// 32-bit integer.
    I32,
    /// 32-bit unsigned integer.
    U32,
    /// 64-bit integer.
    I64,
    /// 64-bit unsigned integer.
    U64,
    /// A number.
    F64,
    /// A number from 0 to 1.
    Ratio,
    /// 0 to 65535.
    Port,
    /// Milliseconds, or a number with ms, s, m or h.
    Duration,
    /// Anything.
    Text,
}

/// Flags as given, checked against the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given {
    values: BTreeMap<&'static str, String>,
    /// Lines to say at start.
    pub notes: Vec<String>,
}

/// What a command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandLine {
    /// `--help`: print this, exit with 0.
    Help(String),
    /// `--version`: print this, exit with 0.
    Version(String),
    /// Run with these.
    Run(Given),
}

/// What is wrong with a command line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlagError {
    /// Not in the table.
    #[error("unknown flag --{name}{}; --help lists all", suggestion(close))]
    Unknown {
        /// As given.
        name: String,
        /// Names that look like it.
        close: Vec<&'static str>,
    },
    /// No value.
    #[error("flag --{0} needs a value, as in --{0}={1}")]
    NoValue(&'static str, &'static str),
    /// A value of the wrong kind.
    #[error("flag --{name}={value}: expected {expected}")]
    BadValue {
        /// The flag.
        name: &'static str,
        /// As given.
        value: String,
        /// What it should look like.
        expected: String,
    },
    /// A capability that is missing.
    #[error(
        "flag --{name}={value} asks for what this master does not have: {missing}. Remove the flag to start without it"
    )]
    Missing {
        /// The flag.
        name: &'static str,
        /// As given.
        value: String,
        /// The capability.
        missing: &'static str,
    },
}

/// Parses a command line without the program's name.
pub fn parse(args: impl IntoIterator<Item = String>) -> Result<CommandLine, FlagError> {
    let mut given = Given::default();
    let mut args = args.into_iter().peekable();
    while let Some(arg) = args.next() {
        let name = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')).unwrap_or("");
        if arg == "--" || name.is_empty() {
            if arg != "--" {
                given.notes.push(format!("argument '{arg}' is not a flag and is ignored"));
            }
            continue;
        }
        let (name, value) = match name.split_once('=') {
            Some((name, value)) => (name.replace('-', "_"), Some(value.to_owned())),
            None => (name.replace('-', "_"), None),
        };
        match name.as_str() {
            "help" | "h" | "helpfull" | "helpshort" => return Ok(CommandLine::Help(help())),
            "version" => {
                return Ok(CommandLine::Version(format!(
                    "mooncake_master (mooncake-rs) {}",
                    env!("CARGO_PKG_VERSION")
                )));
            }
            _ => {}
        }
        if let Some(flag) = find(&name) {
            let value = match value {
                Some(value) => value,
                None if flag.value == Type::Bool => {
                    if let Some(next) = args.peek()
                        && boolean(next).is_some()
                    {
                        given.notes.push(format!(
                            "--{name} {next}: a boolean flag takes no separate value and is now true; write --{name}={next}"
                        ));
                        args.next();
                    }
                    "true".to_owned()
                }
                None => args.next().ok_or(FlagError::NoValue(flag.name, example(flag)))?,
            };
            given.set(flag, value)?;
        } else if let Some(flag) = name.strip_prefix("no").and_then(find)
            && flag.value == Type::Bool
            && value.is_none()
        {
            given.set(flag, "false".to_owned())?;
        } else {
            let close = close_to(&name);
            return Err(FlagError::Unknown { name, close });
        }
    }
    Ok(CommandLine::Run(given))
}

impl Given {
    /// The value of a flag if it was given. Panics for names that are not in the table.
    pub fn text(&self, name: &str) -> Option<&str> {
        assert!(find(name).is_some(), "{name} is not in the table of flags");
        self.values.get(name).map(String::as_str)
    }

    /// The value of a boolean flag, or its default.
    pub fn boolean(&self, name: &str) -> bool {
        let value = self.text(name).or_else(|| find(name).map(|flag| flag.default));
        value.and_then(boolean).expect("checked when it was set")
    }

    /// The value of a number if it was given.
    pub fn number<N: std::str::FromStr>(&self, name: &str) -> Option<N> {
        self.text(name).map(|value| value.trim().parse().ok().expect("checked when it was set"))
    }

    /// The value of a duration in milliseconds if it was given.
    pub fn milliseconds(&self, name: &str) -> Option<u64> {
        self.text(name).map(|value| duration_ms(value).expect("checked when it was set"))
    }

    fn set(&mut self, flag: &'static Flag, value: String) -> Result<(), FlagError> {
        if let Err(expected) = check(flag.value, &value) {
            return Err(FlagError::BadValue { name: flag.name, value, expected: expected.to_owned() });
        }
        let note = match flag.kind {
            Kind::Done => None,
            Kind::Accepted => Some(format!("flag --{} has no effect: {}", flag.name, flag.help)),
            Kind::Idle => Some(format!("flag --{} has no effect: this master does not have {}", flag.name, flag.help)),
            Kind::Refused { off } => {
                let switched_off = match flag.value {
                    Type::Bool => boolean(&value) == Some(false),
                    _ => off.contains(&value.as_str()),
                };
                if !switched_off {
                    return Err(FlagError::Missing { name: flag.name, value, missing: flag.help });
                }
                None
            }
        };
        if self.values.insert(flag.name, value).is_none() {
            self.notes.extend(note);
        }
        Ok(())
    }
}

/// Milliseconds of `1500`, `1500ms`, `2s`, `5m`, `1h`.
pub fn duration_ms(text: &str) -> Option<u64> {
    let text = text.trim_ascii().to_ascii_lowercase();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let factor = match text[digits..].trim_ascii() {
        "" | "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(factor)
}

fn check(value: Type, text: &str) -> Result<(), &'static str> {
    let trimmed = text.trim();
    let (good, expected) = match value {
        Type::Bool => (boolean(text).is_some(), "true or false"),
        Type::I32 => (trimmed.parse::<i32>().is_ok(), "a whole number of 32 bits"),
        Type::U32 => (trimmed.parse::<u32>().is_ok(), "a whole number from 0 to 4294967295"),
        Type::I64 => (trimmed.parse::<i64>().is_ok(), "a whole number of 64 bits"),
        Type::U64 => (trimmed.parse::<u64>().is_ok(), "a whole number, not negative"),
        Type::F64 => (trimmed.parse::<f64>().is_ok_and(f64::is_finite), "a number"),
        Type::Ratio => (trimmed.parse::<f64>().is_ok_and(|r| (0.0..=1.0).contains(&r)), "a number from 0 to 1"),
        Type::Port => (trimmed.parse::<u16>().is_ok(), "a port from 0 to 65535"),
        Type::Duration => (duration_ms(text).is_some(), "milliseconds, or a whole number with ms, s, m or h, as in 5s"),
        Type::Text => (true, ""),
    };
    if good { Ok(()) } else { Err(expected) }
}

fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "y" | "yes" => Some(true),
        "0" | "f" | "false" | "n" | "no" => Some(false),
        _ => None,
    }
}

fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

fn example(flag: &Flag) -> &'static str {
    if flag.default.is_empty() { "VALUE" } else { flag.default }
}

fn suggestion(close: &[&str]) -> String {
    match close {
        [] => String::new(),
        names => format!("; did you mean --{}?", names.join(" or --")),
    }
}

/// Names within a few edits, best first.
fn close_to(name: &str) -> Vec<&'static str> {
    let mut near: Vec<(usize, &'static str)> = FLAGS
        .iter()
        .map(|flag| (edits(name, flag.name), flag.name))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
        .collect();
    near.sort_unstable();
    near.into_iter().take(3).map(|(_, name)| name).collect()
}

/// Levenshtein distance.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<u8> = b.bytes().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

fn help() -> String {
    let mut out = String::from(
        "mooncake_master: directory of a KV-cache pool. It knows where objects lie; the bytes stay with the clients.\n\n\
         Usage: mooncake_master [--flag=value ...]\n\n\
         A pool on one machine:     mooncake_master --rpc_address=127.0.0.1 --metrics_host=127.0.0.1\n\
         A pool in a network:       mooncake_master --rpc_address=10.0.0.5\n\
         Without a log on disk:     mooncake_master --wal=off\n\n\
         Clients connect to port 50051, metrics are at http://HOST:9003/metrics. The log of what is stored where lies in\n\
         $MOONCAKE_STATE_DIR, $XDG_STATE_HOME/mooncake, /var/lib/mooncake (root) or ~/.local/state/mooncake, and a\n\
         restarted master goes on from there.\n\nFlags:\n",
    );
    let mut section = |title: &str, with: fn(&Kind) -> bool| {
        if !title.is_empty() {
            let _ = writeln!(out, "\n{title}");
        }
        for flag in FLAGS.iter().filter(|flag| with(&flag.kind)) {
            let default = if flag.default.is_empty() { "\"\"" } else { flag.default };
            let _ = writeln!(out, "  --{} (default {default})\n      {}", flag.name, flag.help);
        }
    };
    section("", |kind| *kind == Kind::Done);
    section("Accepted without effect:", |kind| matches!(kind, Kind::Accepted));
    section("Settings of what this master does not have, accepted without effect:", |kind| matches!(kind, Kind::Idle));
    section("What this master does not have; refused when switched on:", |kind| matches!(kind, Kind::Refused { .. }));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(args: &[&str]) -> Result<Given, FlagError> {
        match parse(args.iter().map(|a| (*a).to_owned()))? {
            CommandLine::Run(given) => Ok(given),
            other => panic!("{other:?}"),
        }
    }

    /// Names of the reference's §1.2, and glog's.
    const REFERENCE: &str = "config_path port rpc_port max_threads rpc_thread_num rpc_address rpc_interface \
        rpc_conn_timeout_seconds rpc_enable_tcp_no_delay enable_metric_reporting metrics_port metrics_host \
        default_kv_lease_ttl default_kv_soft_pin_ttl max_kv_soft_pin_ttl allow_evict_soft_pinned_objects \
        eviction_ratio eviction_high_watermark_ratio nof_eviction_ratio nof_eviction_high_watermark_ratio enable_ha \
        ha_backend_type ha_backend_connstring etcd_endpoints cluster_id pod_name pod_namespace enable_oplog \
        oplog_poll_interval_ms oplog_batch_max_entries batch_oplog_retry_timeout_sec client_ttl enable_offload \
        offload_on_evict offload_force_evict offloading_queue_limit offload_cap_ratio promotion_on_hit \
        promotion_admission_threshold promotion_queue_limit promotion_max_per_heartbeat dynamic_replication_mode \
        dynamic_replication_heat_window_seconds dynamic_replication_admission_qps_threshold \
        dynamic_replication_max_memory_replicas enable_kv_events kv_events_bind_endpoint kv_events_backend_id \
        kv_events_emit_legacy_compat kv_events_emit_object_key kv_events_queue_capacity kv_events_model_name \
        kv_events_tenant_id kv_events_additional_salt kv_events_lora_name kv_events_block_size kv_events_dp_rank \
        nof_heartbeat_interval_sec nof_heartbeat_probe_timeout_ms nof_heartbeat_failures_threshold root_fs_dir \
        global_file_segment_size enable_disk_eviction quota_bytes enable_multi_tenants tenant_quota_connector_type \
        tenant_quota_connector_uri memory_allocator allocation_strategy enable_http_metadata_server \
        http_metadata_server_port http_metadata_server_host enable_metadata_cleanup_on_timeout \
        put_start_discard_timeout_sec put_start_release_timeout_sec enable_snapshot enable_snapshot_restore \
        snapshot_backup_dir snapshot_interval_seconds snapshot_child_timeout_seconds snapshot_retention_count \
        snapshot_object_store_type snapshot_payload_store_type snapshot_payload_backend_type \
        snapshot_catalog_store_type snapshot_catalog_backend_type snapshot_catalog_store_connstring \
        snapshot_catalog_backend_connstring max_total_finished_tasks max_total_pending_tasks \
        max_total_processing_tasks pending_task_timeout_sec processing_task_timeout_sec max_retry_attempts enable_cxl \
        cxl_path cxl_size log_dir logtostderr alsologtostderr colorlogtostderr stderrthreshold minloglevel v vmodule \
        max_log_size stop_logging_if_full_disk logbufsecs log_prefix";

    #[test]
    fn every_flag_of_the_reference_is_in_the_table_once() {
        for name in REFERENCE.split_whitespace() {
            assert_eq!(FLAGS.iter().filter(|flag| flag.name == name).count(), 1, "{name}");
        }
        for flag in FLAGS {
            assert_eq!(FLAGS.iter().filter(|other| other.name == flag.name).count(), 1, "{}", flag.name);
        }
    }

    #[test]
    fn every_default_passes_its_own_check() {
        for flag in FLAGS.iter().filter(|flag| !flag.default.is_empty()) {
            assert_eq!(check(flag.value, flag.default), Ok(()), "{}", flag.name);
            let kept = given(&[&format!("--{}={}", flag.name, flag.default)]).unwrap();
            assert_eq!(kept.text(flag.name), Some(flag.default));
        }
    }

    #[test]
    fn values_come_in_every_gflags_spelling() {
        for args in [
            &["--rpc_port=7", "--noenable_metric_reporting"][..],
            &["--rpc_port", "7", "--enable_metric_reporting=false"],
            &["-rpc_port=7", "-enable_metric_reporting=0"],
            &["-rpc-port", "7", "--enable-metric-reporting=No"],
            &["--rpc_port=1", "--rpc_port=7", "--enable_metric_reporting", "--noenable_metric_reporting"],
        ] {
            let given = given(args).unwrap();
            assert_eq!(given.number::<u16>("rpc_port"), Some(7), "{args:?}");
            assert!(!given.boolean("enable_metric_reporting"), "{args:?}");
        }
        assert!(given(&["--enable_metric_reporting"]).unwrap().boolean("enable_metric_reporting"));
    }

    #[test]
    fn an_unknown_flag_names_its_neighbours() {
        let error = given(&["--rcp_port=1"]).unwrap_err().to_string();
        assert!(error.contains("--rcp_port") && error.contains("--rpc_port"), "{error}");
        let error = given(&["--something_else_entirely"]).unwrap_err().to_string();
        assert!(!error.contains("did you mean"), "{error}");
    }

    #[test]
    fn missing_capabilities_are_refused_when_on_and_fine_when_off() {
        for flag in FLAGS {
            let Kind::Refused { off } = flag.kind else { continue };
            let on = if flag.value == Type::Bool { "true" } else { "something" };
            let error = given(&[&format!("--{}={on}", flag.name)]).unwrap_err().to_string();
            assert!(error.contains(flag.name) && error.contains("does not have"), "{error}");
            if flag.value == Type::Bool {
                given(&[&format!("--no{}", flag.name)]).unwrap();
            } else {
                given(&[&format!("--{}={}", flag.name, off[0])]).unwrap();
            }
        }
        let names = ["enable_ha", "enable_offload", "root_fs_dir", "enable_snapshot", "enable_snapshot_restore"];
        let more =
            ["enable_cxl", "enable_kv_events", "enable_multi_tenants", "enable_http_metadata_server", "config_path"];
        for name in names.into_iter().chain(more) {
            assert!(matches!(find(name).unwrap().kind, Kind::Refused { .. }), "{name}");
        }
    }

    #[test]
    fn what_has_no_effect_is_said_once() {
        let given = given(&["--max_threads=4", "--max_threads=8", "--cxl_size=1", "stray"]).unwrap();
        assert_eq!(given.notes.len(), 3, "{:?}", given.notes);
    }

    #[test]
    fn durations_read_as_the_reference_reads_them() {
        for (text, ms) in [("1500", 1500), ("10ms", 10), (" 2S ", 2000), ("5m", 300_000), ("1h", 3_600_000)] {
            assert_eq!(duration_ms(text), Some(ms), "{text}");
        }
        for text in ["", "s", "-1", "1.5s", "5d", "18446744073709551615s"] {
            assert_eq!(duration_ms(text), None, "{text}");
        }
    }

    #[test]
    fn help_lists_every_flag() {
        let CommandLine::Help(text) = parse(["--help".to_owned()]).unwrap() else { panic!("no help") };
        for flag in FLAGS {
            assert!(text.contains(&format!("--{} ", flag.name)), "{}", flag.name);
        }
    }
}
