//! The flags of `mooncake_client`: every name that existing command lines use.

use crate::flags::{Flag, Kind, Value};

const fn done(name: &'static str, default: &'static str, help: &'static str) -> Flag {
    Flag { name, value: Value::Text, default, kind: Kind::Done, help }
}

const fn idle(name: &'static str, value: Value, default: &'static str, why: &'static str) -> Flag {
    Flag { name, value, default, kind: Kind::NoEffect(why), help: "" }
}

const fn missing(name: &'static str, value: Value, default: &'static str, advice: &'static str) -> Flag {
    Flag { name, value, default, kind: Kind::Missing(advice), help: "" }
}

const GLOG: &str = "log lines go to stderr; RUST_LOG sets their level";
const SSD: &str = "memory is the only tier in this version; leave the flag out";
const HTTP: &str = "clients have no HTTP server in this version; the master's metrics port shows every client";

/// All of them, those that work first.
pub static CLIENT_FLAGS: &[Flag] = &[
    done("host", "0.0.0.0", "Address to listen on for data, with or without :PORT; the wildcard takes all of them"),
    done("master_server_address", "127.0.0.1:50051", "host:port of the master"),
    done("global_segment_size", "4 GB", "Memory lent to the pool: bytes, or with KB, MB, GB, TB"),
    done("local_buffer_size", "0", "Most bytes borrowed from others at a time"),
    done("metadata_server", "http://127.0.0.1:8080/metadata", "P2PHANDSHAKE or an address: the store needs none"),
    done("protocol", "tcp", "tcp; peers on the same host use shared memory"),
    idle("device_names", Value::Text, "", "there is no RDMA in this version"),
    idle("port", Value::Integer, "50052", "applications embed the store and need no RPC service on their node"),
    idle("threads", Value::Integer, "1", "threads follow the connections"),
    idle("tenant_id", Value::Text, "default", "tenants are not kept apart, all clients see the same keys"),
    idle("start_offload_rpc_server", Value::Switch, "true", SSD),
    idle("http_port", Value::Integer, "9300", HTTP),
    idle("logtostderr", Value::Switch, "true", GLOG),
    idle("alsologtostderr", Value::Switch, "false", GLOG),
    idle("colorlogtostderr", Value::Switch, "false", GLOG),
    idle("stderrthreshold", Value::Integer, "0", GLOG),
    idle("minloglevel", Value::Integer, "0", GLOG),
    idle("log_dir", Value::Text, "", GLOG),
    idle("v", Value::Integer, "0", GLOG),
    idle("vmodule", Value::Text, "", GLOG),
    missing("enable_offload", Value::Switch, "false", SSD),
    missing("enable_http_server", Value::Switch, "false", HTTP),
];
