//! Values of `mooncake.mooncake_config.MooncakeConfig`: keys of `mooncake.json`, or variables where there is no file.

use crate::setting::{Setting, Type};

/// One value: the key of the file, and its variable.
#[derive(Debug, Clone, Copy)]
pub struct ConfigValue {
    /// Key of the file, and attribute of the class.
    pub attribute: &'static str,
    /// Its variable.
    pub variable: Setting,
}

/// Names the file.
pub const CONFIG_PATH: Setting =
    Setting::supported("MOONCAKE_CONFIG_PATH", Type::Text, "", "a mooncake.json, which then says everything");

/// All of them, in the order of the class.
pub const VALUES: &[ConfigValue] = &[
    value(
        "local_hostname",
        Setting::supported("MOONCAKE_LOCAL_HOSTNAME", Type::Text, "localhost", "name of this client"),
    ),
    value(
        "metadata_server",
        Setting::supported(
            "MOONCAKE_TE_META_DATA_SERVER",
            Type::Text,
            "P2PHANDSHAKE",
            "accepted; the store needs none",
        ),
    ),
    value(
        "global_segment_size",
        Setting::supported("MOONCAKE_GLOBAL_SEGMENT_SIZE", Type::Size, "3355443200", "memory lent to the pool"),
    ),
    value(
        "local_buffer_size",
        Setting::supported(
            "MOONCAKE_LOCAL_BUFFER_SIZE",
            Type::Size,
            "1073741824",
            "most bytes borrowed from others at a time",
        ),
    ),
    value("protocol", Setting::supported("MOONCAKE_PROTOCOL", Type::Text, "tcp", "as of `setup`")),
    value(
        "device_name",
        Setting::no_effect("MOONCAKE_DEVICE", Type::Text, "", "there are no RDMA devices to choose from"),
    ),
    value(
        "master_server_address",
        Setting::supported("MOONCAKE_MASTER", Type::Text, "", "host:port of the master; must be given"),
    ),
    value(
        "enable_ssd_offload",
        Setting::supported("MOONCAKE_OFFLOAD_ENABLED", Type::Bool, "false", "keep a tier: a folder behind the memory"),
    ),
    value(
        "ssd_offload_path",
        Setting::supported("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", Type::Text, "", "folder of that tier"),
    ),
    value(
        "tenant_id",
        Setting::no_effect(
            "MOONCAKE_TENANT_ID",
            Type::Text,
            "default",
            "tenants are not kept apart, all clients see the same keys",
        ),
    ),
    value(
        "enable_client_http_server",
        Setting::supported(
            "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER",
            Type::Bool,
            "false",
            "for `setup`: serve /health, /metrics and /metrics/summary over HTTP, on 127.0.0.1",
        ),
    ),
    value(
        "client_http_port",
        Setting::supported("MOONCAKE_CLIENT_HTTP_PORT", Type::Port, "9300", "for `setup`: port of that HTTP server"),
    ),
];

const fn value(attribute: &'static str, variable: Setting) -> ConfigValue {
    ConfigValue { attribute, variable }
}
