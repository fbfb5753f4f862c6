//! Every flag of the proxy.

use crate::setting::{Setting, Type};

/// Flags in the order of `--help`.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::done("model", Type::Text, "", "model that all instances serve; of a path the last part counts; none: any"),
    Setting::done(
        "prefill",
        Type::Text,
        "",
        "prefill instances, host:port or host:port:bootstrap_port, with commas or spaces between them; also -p",
    ),
    Setting::done("decode", Type::Text, "", "decode instances, host:port; also -d"),
    Setting::done(
        "bootstrap_port",
        Type::Port,
        "0",
        "bootstrap port of prefill instances that name none: the KV cache goes straight to the decode instance; 0: \
         through the pool",
    ),
    Setting::done("host", Type::Text, "127.0.0.1", "address to listen on: IPv4, IPv6 or a name"),
    Setting::done("port", Type::Port, "8000", "port to listen on; 0: any free port, printed at start"),
    Setting::done(
        "scheduling",
        Type::OneOf(&["round_robin", "least_loaded", "cache_aware"]),
        "round_robin",
        "how an instance is chosen for a request: in turn, the one with the fewest requests under way, or the one that \
         will have computed the prompt first",
    ),
    Setting::done("max_running", Type::Whole(1, u32::MAX as i128), "1024", "requests under way at a time"),
    Setting::done(
        "max_waiting",
        Type::Whole(0, u32::MAX as i128),
        "1024",
        "requests that wait beyond these; who comes then gets 429",
    ),
    Setting::done("max_connections", Type::Whole(1, u32::MAX as i128), "4096", "client connections at a time"),
    Setting::done("max_body_size", Type::Size, "64MB", "longest body of a request"),
    Setting::done("max_bodies_size", Type::Size, "1GB", "bodies of all requests under way; who comes then gets 429"),
    Setting::done(
        "instance_cache",
        Type::Size,
        "16MB",
        "text whose KV cache an instance holds: cache_aware takes what was sent to it before for forgotten",
    ),
    Setting::done("header_timeout", Type::Duration, "30s", "for a request's header, and between two of a connection"),
    Setting::done("body_timeout", Type::Duration, "30s", "for a request's body to come"),
    Setting::done("connect_timeout", Type::Duration, "3s", "to connect to an instance"),
    Setting::done("prefill_timeout", Type::Duration, "10m", "for a prompt to be computed"),
    Setting::done("request_timeout", Type::Duration, "1h", "for the first byte of an answer"),
    Setting::done(
        "stall_timeout",
        Type::Duration,
        "5m",
        "between two pieces of an answer, and for a client to read one",
    ),
    Setting::done(
        "drain_timeout",
        Type::Duration,
        "30s",
        "for requests under way after SIGTERM; a second signal ends them",
    ),
    Setting::done("health_interval", Type::Duration, "5s", "between two checks of an instance"),
    Setting::done("access_log", Type::Bool, "true", "a line for each request: how it ended, its times, its instances"),
    Setting::done("log_level", Type::LogLevel, "INFO", "least important lines that are written"),
];
