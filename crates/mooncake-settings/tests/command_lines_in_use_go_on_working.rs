//! Existing command lines and files of settings go on working, and mistakes are named.

use std::path::PathBuf;

use mooncake_settings::{CLIENT, CommandLine, Given, MASTER, Program, SettingError, Source, Support, Type, parse};
use tempfile::TempDir;

/// Names of Mooncake's §1.2, and glog's.
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

/// Names of Mooncake's §1.3, and glog's.
const CLIENT_REFERENCE: &str = "host metadata_server device_names master_server_address protocol port \
    global_segment_size local_buffer_size threads tenant_id enable_offload start_offload_rpc_server \
    enable_http_server http_port log_dir logtostderr alsologtostderr stderrthreshold minloglevel v max_log_size";

/// Names of tebench's.
const SWEEP_REFERENCE: &str = "seg_name seg_type seg_type_mix target_seg_name op_type check_consistency \
    total_buffer_size start_block_size max_block_size start_batch_size max_batch_size duration start_num_threads \
    max_num_threads target_offset target_range_size request_interval_us local_gpu_id target_gpu_id metadata_type \
    metadata_url_list rpc_server_port xport_type backend notifi tent_transport_hint tent_intent_type qos_classes \
    qos_classes_json workload_classes_json qos_link_capacity_gbps qos_output_jsonl deadline_us deadline_tight_threads \
    deadline_bw_arbitration";

fn given_to(program: &'static Program, args: &[&str]) -> Result<Given, SettingError> {
    match parse(program, args.iter().map(|a| (*a).to_owned()))? {
        CommandLine::Run(given) => Ok(given),
        other => panic!("{other:?}"),
    }
}

fn given(args: &[&str]) -> Result<Given, SettingError> {
    given_to(&MASTER, args)
}

/// A file that goes with its test.
struct File {
    path: PathBuf,
    _folder: TempDir,
}

impl File {
    fn new(name: &str, text: &str) -> File {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        File { path, _folder: folder }
    }

    fn flag(&self, name: &str) -> String {
        format!("--{name}={}", self.path.display())
    }
}

#[test]
fn every_flag_of_the_reference_is_in_the_table() {
    let sweep = (&mooncake_settings::ENGINE_SWEEP, SWEEP_REFERENCE);
    for (program, names) in [(&MASTER, REFERENCE), (&CLIENT, CLIENT_REFERENCE), sweep] {
        for name in names.split_whitespace() {
            assert!(program.find(name).is_some(), "{} --{name}", program.name);
        }
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
    for program in mooncake_settings::PROGRAMS {
        for setting in program.settings {
            let Support::Refused { off } = setting.support else { continue };
            let on = if setting.value == Type::Bool { "true" } else { "something" };
            let error = given_to(program, &[&format!("--{}={on}", setting.name)]).unwrap_err().to_string();
            assert!(error.contains(setting.name) && error.contains("does not have"), "{error}");
            let switched_off = match setting.value {
                Type::Bool => format!("--no{}", setting.name),
                _ => format!("--{}={}", setting.name, off[0]),
            };
            given_to(program, &[&switched_off]).unwrap();
        }
    }
}

#[test]
fn what_has_no_effect_is_said_once() {
    let given = given(&["--max_threads=4", "--max_threads=8", "--cxl_size=1"]).unwrap();
    assert_eq!(given.notes.len(), 2, "{:?}", given.notes);
}

#[test]
fn help_lists_every_flag() {
    for program in mooncake_settings::PROGRAMS {
        let Ok(CommandLine::Help(text)) = parse(program, ["--help-all".to_owned()]) else { panic!("no help") };
        for setting in program.settings {
            let told = [' ', '=', '\n'].iter().any(|end| text.contains(&format!("--{}{end}", setting.name)));
            assert!(told, "{} {}", program.name, setting.name);
        }
    }
}

#[test]
fn a_file_gives_what_the_command_line_does_not() {
    let yaml = File::new("a.yaml", "rpc_port: 7000\ncluster_id: from-file\nclient_live_ttl_sec: 60\n");
    let json = File::new("a.json", r#"{"rpc_port": 7000, "cluster_id": "from-file", "client_live_ttl_sec": 60}"#);
    for file in [yaml, json] {
        let given = given(&[&file.flag("config_path"), "--rpc_port=8000"]).unwrap();
        assert_eq!(given.number::<u16>("rpc_port"), Some(8000));
        assert_eq!(given.text("cluster_id"), Some("from-file"));
        assert_eq!(given.text("client_ttl"), Some("60"));
        let source = |name| given.effective().find(|(known, ..)| *known == name).unwrap().2;
        assert_eq!(source("rpc_port"), Source::CommandLine);
        assert_eq!(source("cluster_id"), Source::File(file.path.display().to_string()));
        assert_eq!(source("wal"), Source::Default);
    }
}

#[test]
fn a_file_that_is_wrong_says_where() {
    for (name, text, wanted) in [
        ("b.yaml", "rpc_port: many\n", "rpc_port=many"),
        ("c.yaml", "enable_ha: true\n", "enable_ha"),
        ("d.yaml", "rpc_port: [1, 2]\n", "not a list"),
        ("e.yaml", "- 1\n", "rpc_port: 50051"),
        ("f.yaml", ": : :", ""),
        ("g.json", "{", ""),
        ("h.toml", "", ".yaml"),
        ("m.yaml", "x: &x\n  rpc_port: 1\n<<: *x\n", "merge key"),
        ("n.yaml", "x: &x\n  rpc_port: 1\ny:\n  <<: *x\n", "merge key"),
        ("o.yaml", &format!("# {}", "x".repeat(1 << 20)), "at most 1048576 bytes"),
    ] {
        let file = File::new(name, text);
        let error = given(&[&file.flag("config_path")]).unwrap_err().to_string();
        assert!(error.contains(wanted) && error.contains(name), "{name}: {error}");
    }
    assert!(given(&["--config_path=/nowhere/x.yaml"]).unwrap_err().to_string().contains("/nowhere/x.yaml"));
}

/// Each range of a setting that does something: what is still in it, and what is just outside, with what is said of it.
#[test]
fn values_outside_a_settings_range_are_refused_with_the_range_and_where_they_stand() {
    for (name, good, bad, range) in [
        ("rpc_port", &["0", "65535"][..], &["-1", "65536", "5.0", ""][..], "0 to 65535"),
        ("metrics_port", &["0"], &["x"], "0 to 65535"),
        ("http_metadata_server_port", &["8080"], &["70000"], "0 to 65535"),
        ("default_kv_lease_ttl", &["0", "5000", "10s", "8784h"], &["-1", "soon", "8785h", "1.5s"], "366 days"),
        ("default_kv_soft_pin_ttl", &["0", "30m"], &["-30m", "99999999999999h"], "366 days"),
        ("eviction_ratio", &["0", "1", "0.05", ".5"], &["-0.1", "1.01", "nan", "5%"], "0 to 1"),
        ("eviction_high_watermark_ratio", &["0.95"], &["95", "inf"], "0 to 1"),
        ("put_start_discard_timeout_sec", &["1", "86400"], &["0", "-1", "86401"], "1 to 86400"),
        ("max_log_size", &["1", "4096"], &["-1", "0", "2147483648"], "1 to 2147483647"),
        ("v", &["-1", "9"], &["loud"], "-2147483648 to 2147483647"),
        ("cluster_id", &["a", "A-b.c_9"], &["", "a/b", "..\u{e9}", "a b"], "1 to 128"),
        ("wal", &["on", "OFF", "fsync", "true", "0"], &["perhaps", ""], "on, off, fsync"),
        ("memory_allocator", &["offset", "cachelib"], &["buddy"], "offset, cachelib"),
        // Of no effect, and yet never refused for what Mooncake takes.
        ("rpc_thread_num", &["0", "-1", "64"], &["many"], "-2147483648 to 2147483647"),
        ("client_ttl", &["0", "60"], &["1m"], "-9223372036854775808 to 9223372036854775807"),
        ("quota_bytes", &["0", "18446744073709551615"], &["-1"], "0 to 18446744073709551615"),
    ] {
        let with = |value: &str, by_file: bool| {
            if !by_file {
                return given(&[&format!("--{name}={value}")])
                    .map_err(|error| (error, format!("flag --{name}={value}")));
            }
            let file = File::new(&format!("{name}.json"), &format!("{{{name:?}: {value:?}}}"));
            let label = format!("{}: {name}={value}", file.path.display());
            given(&[&file.flag("config_path")]).map_err(|error| (error, label))
        };
        for by_file in [false, true] {
            for value in good {
                assert!(with(value, by_file).is_ok(), "{name}={value}: {:?}", with(value, by_file));
            }
            for value in bad {
                let (error, label) = with(value, by_file).expect_err(value);
                let error = error.to_string();
                assert!(error.starts_with(&label) && error.contains(range), "{name}={value}: {error}");
            }
        }
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_file() {
    for (name, text) in [("p.json", "\u{feff}{\"rpc_port\": 5}"), ("q.yaml", "\u{feff}rpc_port: 5\n")] {
        let file = File::new(name, text);
        assert_eq!(given(&[&file.flag("config_path")]).unwrap().number::<u16>("rpc_port"), Some(5), "{name}");
    }
}

#[test]
fn a_path_that_is_no_regular_file_is_refused_without_reading_it() {
    let folder = tempfile::tempdir().unwrap();
    let (pipe, zeros) = (folder.path().join("pipe.yaml"), folder.path().join("zeros.yaml"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::os::unix::fs::symlink("/dev/zero", &zeros).unwrap();
    let error = |flag: &str| {
        [&pipe, &zeros].map(|path| given(&[&format!("--{flag}={}", path.display())]).unwrap_err().to_string())
    };
    let errors = ["config_path", "flagfile"].map(error);
    for error in errors.as_flattened() {
        assert!(error.contains("not a regular file"), "{error}");
    }
}

#[test]
fn a_key_that_is_no_setting_is_refused_with_its_neighbours_and_empty_files_say_nothing() {
    for (text, wanted) in [
        ("rpc_prot: 20071\n", "rpc_prot is no setting of mooncake_master; did you mean rpc_port?"),
        ("rpc_port: 1\nmaster:\n  rpc_port: 1\n", "master.rpc_port is no setting"),
        ("something_else_entirely: 2\n", "something_else_entirely is no setting of mooncake_master"),
    ] {
        let file = File::new("i.yaml", text);
        let error = given(&[&file.flag("config_path")]).expect_err(text).to_string();
        assert!(error.contains(wanted) && error.contains("i.yaml"), "{error}");
    }
    let empty = File::new("j.yaml", "");
    assert!(given(&[&empty.flag("config_path")]).unwrap().notes.is_empty());
}

#[test]
fn a_key_that_stands_twice_in_a_file_is_refused() {
    for (name, text) in [
        ("s.yaml", "rpc_port: 1\ncluster_id: a\nrpc_port: 2\n"),
        ("t.json", "{\"rpc_port\": 1, \"rpc_port\": 1}"),
        ("u.yaml", "a:\n  b: 1\na.b: 2\n"),
    ] {
        let file = File::new(name, text);
        let error = given(&[&file.flag("config_path")]).expect_err(text).to_string();
        assert!(error.contains("given twice") && error.contains(name), "{error}");
    }
}

#[test]
fn a_stray_word_is_refused_by_every_program_with_what_it_was_meant_for() {
    for program in mooncake_settings::PROGRAMS.into_iter().filter(|program| program.operands.most == 0) {
        for word in ["help", "version"] {
            let error = given_to(program, &[word]).unwrap_err().to_string();
            assert!(error.contains(&format!("did you mean --{word}?")), "{}: {error}", program.name);
        }
        let error = given_to(program, &["status"]).unwrap_err().to_string();
        assert!(error.contains("unexpected argument \"status\""), "{}: {error}", program.name);
    }
    for (program, word, meant) in [
        (&MASTER, "rpc_port=7", "--rpc_port=7"),
        (&MASTER, "\u{2014}rpc-port=7", "--rpc_port=7"),
        (&MASTER, "master.yaml", "--config_path=master.yaml"),
        (&CLIENT, "10.0.0.5:50051", "--master_server_address=10.0.0.5:50051"),
        (&mooncake_settings::SHOW_LINK, "10.0.0.5:12345", "--segment_id=10.0.0.5:12345"),
    ] {
        let error = given_to(program, &[word]).map(|given| given.notes).unwrap_err().to_string();
        assert!(error.contains(&format!("did you mean {meant}?")), "{error}");
    }
    for word in ["", "-", "/etc/passwd"] {
        let error = given(&[word]).unwrap_err().to_string();
        assert!(!error.contains("did you mean") && error.contains("--help"), "{error}");
    }
}

#[test]
fn a_command_takes_as_many_words_as_it_is_about() {
    use mooncake_settings::{EXPLAIN, GET, RM, TIER_FORGET};
    let words = |program, args: &[&str]| given_to(program, args).map(|given| given.operands);
    assert_eq!(words(&GET, &["a", "--master=h:1", "b"]).unwrap(), ["a", "b"]);
    assert_eq!(words(&GET, &["--", "--json"]).unwrap(), ["--json"], "a key may begin with dashes");
    assert_eq!(words(&EXPLAIN, &["-706"]).unwrap(), ["-706"], "a number is no flag");
    assert_eq!(words(&RM, &["a", "b", "c", "--force"]).unwrap(), ["a", "b", "c"]);
    assert_eq!(words(&RM, &["--force", "1", "on"]).unwrap(), ["1", "on"], "a switch takes none of them");
    assert!(words(&GET, &["a", "b", "c"]).unwrap_err().to_string().contains("unexpected argument \"c\""));
    assert!(words(&GET, &["--", "a", "b", "--c"]).unwrap_err().to_string().contains("unexpected argument \"--c\""));
    let lacks = words(&TIER_FORGET, &[]).unwrap_err().to_string();
    assert_eq!(lacks, "mooncake tier forget: which UUID? --help tells more");
}

#[test]
fn a_file_of_flags_is_read_in_its_place_and_cannot_name_itself_for_ever() {
    let file = File::new("k.flags", "# ports\n--rpc_port=1\n\n--metrics_port\n2\n");
    let given_some = given(&[&file.flag("flagfile"), "--rpc_port=3"]).unwrap();
    assert_eq!(given_some.number::<u16>("rpc_port"), Some(3));
    assert_eq!(given_some.number::<u16>("metrics_port"), Some(2));
    let circle = File::new("l.flags", "");
    std::fs::write(&circle.path, circle.flag("flagfile")).unwrap();
    assert!(given(&[&circle.flag("flagfile")]).unwrap_err().to_string().contains("one another"));
}
