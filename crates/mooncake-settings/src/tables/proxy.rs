//! Every flag of the proxy.

use crate::setting::{Setting, Type};
use crate::tables::LOG_FORMAT;

/// Flags in the order of `--help`.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::supported(
        "model",
        Type::Text,
        "",
        "model that all instances serve; of a path the last part counts; none: any",
    ),
    Setting::supported(
        "prefill",
        Type::Text,
        "",
        "prefill instances, host:port or host:port:bootstrap_port, with commas or spaces between them; also -p",
    ),
    Setting::supported("decode", Type::Text, "", "decode instances, host:port; also -d"),
    Setting::supported(
        "bootstrap_port",
        Type::Port,
        "0",
        "bootstrap port of prefill instances that name none: the KV cache goes straight to the decode instance; 0: \
         through the pool",
    ),
    Setting::supported("host", Type::Text, "127.0.0.1", "address to listen on: IPv4, IPv6 or a name"),
    Setting::supported("port", Type::Port, "8000", "port to listen on; 0: any free port, printed at start"),
    Setting::supported(
        "scheduling",
        Type::OneOf(&["round_robin", "least_loaded", "cache_aware"]),
        "round_robin",
        "how an instance is chosen for a request: in turn, the one with the fewest requests under way, or the one that \
         will have computed the prompt first",
    ),
    Setting::supported("max_running", Type::Whole(1, u32::MAX as i128), "1024", "requests under way at a time"),
    Setting::supported(
        "max_waiting",
        Type::Whole(0, u32::MAX as i128),
        "1024",
        "requests that wait beyond these; who comes then gets 429",
    ),
    Setting::supported("max_connections", Type::Whole(1, u32::MAX as i128), "4096", "client connections at a time"),
    Setting::supported("max_body_size", Type::Size, "64MB", "longest body of a request"),
    Setting::supported(
        "max_bodies_size",
        Type::Size,
        "1GB",
        "bodies of all requests under way; who comes then gets 429",
    ),
    Setting::supported(
        "instance_cache",
        Type::Size,
        "16MB",
        "text whose KV cache an instance holds: cache_aware takes what was sent to it before for forgotten",
    ),
    Setting::supported(
        "header_timeout",
        Type::Duration,
        "30s",
        "for a request's header, and between two of a connection",
    ),
    Setting::supported("body_timeout", Type::Duration, "30s", "for a request's body to come"),
    Setting::supported("connect_timeout", Type::Duration, "3s", "to connect to an instance"),
    Setting::supported("prefill_timeout", Type::Duration, "10m", "for a prompt to be computed"),
    Setting::supported("request_timeout", Type::Duration, "1h", "for the first byte of an answer"),
    Setting::supported(
        "stall_timeout",
        Type::Duration,
        "5m",
        "between two pieces of an answer, and for a client to read one",
    ),
    Setting::supported(
        "drain_timeout",
        Type::Duration,
        "30s",
        "for requests under way after SIGTERM; a second signal ends them",
    ),
    Setting::supported("health_interval", Type::Duration, "5s", "between two checks of an instance"),
    Setting::supported(
        "access_log",
        Type::Bool,
        "true",
        "a line for each request: how it ended, its times, its instances",
    ),
    Setting::supported("log_level", Type::LogLevel, "INFO", "least important lines that are written"),
    LOG_FORMAT,
];
