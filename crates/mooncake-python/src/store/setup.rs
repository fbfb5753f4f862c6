//! Arguments of `setup` in its three forms.

use std::net::SocketAddr;
use std::sync::Arc;

use mooncake_client::{Cause, InterruptHook, NodeInfo, Store, StoreError, StoreOptions, parse_size};
use mooncake_client_http::ClientServer;
use mooncake_settings::environment::Reader;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

use crate::convert::flag::Flag;
use crate::convert::integer::unsigned;
use crate::convert::text::text;
use crate::entry::interrupt;
use crate::entry::notice::{say_once, warn_ignored_variables};

/// Names of the positional form, in order; the first seven are required.
const NAMES: [&str; 13] = [
    "local_hostname",
    "metadata_server",
    "global_segment_size",
    "local_buffer_size",
    "protocol",
    "rdma_devices",
    "master_server_addr",
    "engine",
    "enable_ssd_offload",
    "ssd_offload_path",
    "tenant_id",
    "enable_client_http_server",
    "client_http_port",
];
const REQUIRED: usize = 7;

/// Segments and buffers of the dict form that says nothing of them.
const DEFAULT_BYTES: u64 = 16 << 20;
const BUFFER_BYTES_MAX: u64 = 1 << 40;
const LEAST_BYTES: u64 = 1 << 10;

const HTTP_PORT: u64 = 9300;

/// What `setup` was asked for.
#[derive(Debug, Clone)]
pub struct Setup {
    /// "host" or "host:port".
    pub local_hostname: String,
    /// Bytes lent to the pool.
    pub global_segment_size: u64,
    /// Bound of what this client borrows; 0 = it only lends.
    pub local_buffer_size: u64,
    /// "host:port" of the master.
    pub master: String,
    /// Port of this client's HTTP server, where one is wanted.
    pub http_port: Option<u64>,
    /// Folder of this client's tier, where one is wanted; empty: the environment says which.
    pub tier: Option<String>,
}

impl Setup {
    /// For the client, with the environment laid over it.
    pub fn options(self) -> Result<StoreOptions, StoreError> {
        warn_ignored_variables(Reader::Store);
        let mut options = StoreOptions::new(self.local_hostname, self.master).from_env()?;
        options.global_segment_size = self.global_segment_size;
        options.local_buffer_size = self.local_buffer_size;
        options.interrupted = Some(Arc::new(interrupt::requested));
        // LMCache's `storage_root_dir` comes as this variable.
        let of_lmcache = std::env::var("MOONCAKE_STORAGE_ROOT_DIR").ok().filter(|path| !path.is_empty());
        match self.tier.or(of_lmcache) {
            Some(path) => options.with_tier(&path),
            None => Ok(options),
        }
    }
}

/// Serves the client's health and metrics, to this host; a port that is taken is no more than a line.
pub fn serve_http(port: u64, client: &Store) -> Option<ClientServer> {
    let address = SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).ok()?));
    match ClientServer::open(address) {
        Ok(server) => {
            server.show(client);
            Some(server)
        }
        Err(error) => {
            say_once(&format!("client_http_port={port}: {error}; this client has no HTTP server"));
            None
        }
    }
}

/// A client of the pool that a storage node of this host belongs to.
pub fn connect_dummy(node: &str, local_buffer_size: u64) -> Result<Store, StoreError> {
    let interrupted: InterruptHook = Arc::new(interrupt::requested);
    warn_ignored_variables(Reader::Store);
    let found = NodeInfo::ask(node, Some(&interrupted))?;
    let connect = |hostname: &str| {
        let mut options = StoreOptions::new(hostname, &found.master).from_env()?;
        options.global_segment_size = 0;
        options.local_buffer_size = local_buffer_size;
        options.interrupted = Some(interrupted.clone());
        Store::connect(options)
    };
    let host = found.segment.rsplit_once(':').map_or(found.segment.as_str(), |(host, _)| host);
    match connect(host) {
        // Another network namespace on the same host, a container for instance: the name is only a name.
        Err(error) if matches!(error.cause(), Cause::NotThisMachine { .. }) => connect("127.0.0.1"),
        connected => connected,
    }
}

/// Refused with -600 and a reason; conversion failures are exceptions instead.
pub type Parsed = Result<Setup, String>;

/// Parses a call of `setup`.
pub fn parse(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Parsed> {
    if let Some(config) = lone_config(args, kwargs)? {
        return from_dict(&config);
    }
    let mut slots: [Option<Bound<'_, PyAny>>; NAMES.len()] = Default::default();
    if args.len() > NAMES.len() {
        return Err(type_error(format!("takes at most {} arguments, {} were given", NAMES.len(), args.len())));
    }
    for (slot, arg) in slots.iter_mut().zip(args.iter()) {
        *slot = Some(arg);
    }
    for (name, value) in kwargs.into_iter().flatten() {
        let name = text(&name, "setup(): name of an argument")?;
        let Some(at) = NAMES.iter().position(|known| *known == name) else {
            return Err(type_error(format!("got an unexpected keyword argument '{name}'")));
        };
        if slots[at].replace(value).is_some() {
            return Err(type_error(format!("got multiple values for argument '{name}'")));
        }
    }
    let missing: Vec<_> =
        NAMES.iter().zip(&slots).take(REQUIRED).filter(|(_, s)| s.is_none()).map(|(n, _)| *n).collect();
    if !missing.is_empty() {
        return Err(type_error(format!("missing required arguments: {}", missing.join(", "))));
    }
    from_slots(&slots)
}

/// The argument of `setup(config)`, by position or by name.
fn lone_config<'py>(
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let kwargs_len = kwargs.map_or(0, |k| k.len());
    if args.len() + kwargs_len != 1 {
        return Ok(None);
    }
    let config = match kwargs {
        Some(kwargs) if kwargs_len == 1 => match kwargs.get_item("config")? {
            Some(config) => config,
            None => return Ok(None),
        },
        _ => args.get_item(0)?,
    };
    match config.cast_into::<PyDict>() {
        Ok(config) => Ok(Some(config)),
        Err(other) => {
            let other = other.into_inner();
            // A `MooncakeConfig`, or what an engine has in its place.
            if let Some(fields) = fields_of(&other)? {
                return Ok(Some(fields));
            }
            if kwargs_len == 1 {
                let what = other.get_type().name()?;
                return Err(type_error(format!("config: a dict or a MooncakeConfig is needed, not {what}")));
            }
            Ok(None)
        }
    }
}

/// The values of a dataclass.
fn fields_of<'py>(config: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyDict>>> {
    if config.is_instance_of::<PyType>() || !config.hasattr("__dataclass_fields__")? {
        return Ok(None);
    }
    Ok(config.getattr("__dict__")?.cast_into::<PyDict>().ok())
}

fn from_slots(slots: &[Option<Bound<'_, PyAny>>; NAMES.len()]) -> PyResult<Parsed> {
    let text = |at: usize| -> PyResult<Option<String>> {
        slots[at].as_ref().map(|value| text(value, &format!("setup(): {}", NAMES[at]))).transpose()
    };
    let number = |at: usize| -> PyResult<u64> {
        slots[at].as_ref().map_or(Ok(0), |value| unsigned(value, &format!("setup(): {}", NAMES[at])))
    };
    let switch = |at: usize| -> PyResult<bool> {
        slots[at].as_ref().map_or(Ok(false), |value| {
            value
                .extract::<Flag>()
                .map(|flag| flag.0)
                .map_err(|_| type_error(format!("{}: a bool is needed", NAMES[at])))
        })
    };
    let http_port = if slots[12].is_some() { number(12)? } else { HTTP_PORT };
    let setup = Setup {
        local_hostname: text(0)?.unwrap_or_default(),
        global_segment_size: number(2)?,
        local_buffer_size: number(3)?,
        master: text(6)?.unwrap_or_default(),
        http_port: switch(11)?.then_some(http_port),
        tier: if switch(8)? { Some(text(9)?.unwrap_or_default()) } else { None },
    };
    if slots[7].as_ref().is_some_and(|engine| !engine.is_none()) {
        warn_engine();
    }
    // Looked at for its type alone.
    text(5)?;
    warn_unneeded(&text(1)?.unwrap_or_default(), &text(4)?.unwrap_or_default());
    warn_ignored_tenant(text(10)?.as_deref().unwrap_or("default"));
    Ok(check(setup))
}

/// All values are taken by their `str()`. Names may carry `mooncake_` in front;
/// Mooncake's own names win over the documented aliases.
fn from_dict(config: &Bound<'_, PyDict>) -> PyResult<Parsed> {
    tell_unknown_keys(config)?;
    let value = |names: &[&str]| -> PyResult<Option<String>> {
        for prefix in ["", "mooncake_"] {
            for name in names {
                if let Some(value) = config.get_item(format!("{prefix}{name}"))? {
                    let value = text(value.str()?.as_any(), &format!("setup(): {name}"))?;
                    // An empty alias says nothing, so that it does not hide the other spelling.
                    if names.len() == 1 || !value.is_empty() {
                        return Ok(Some(value));
                    }
                }
            }
        }
        Ok(None)
    };
    let size = |name: &str| -> PyResult<Result<u64, String>> {
        Ok(value(&[name])?.map_or(Ok(DEFAULT_BYTES), |v| parse_size(&v).map_err(|e| format!("setup: {name}: {e}"))))
    };
    let switch = |name: &str| -> PyResult<bool> {
        Ok(match value(&[name])?.map(|v| v.to_ascii_lowercase()).as_deref() {
            None | Some("" | "false" | "0" | "no" | "off" | "disable") => false,
            Some("true" | "1" | "yes" | "on" | "enable") => true,
            Some(other) => {
                say_once(&format!("setup: {name}={other:?} is not a boolean, taken as false"));
                false
            }
        })
    };
    let (Some(local_hostname), Some(metadata_server)) = (value(&["local_hostname"])?, value(&["metadata_server"])?)
    else {
        return Ok(Err("setup: the dict needs local_hostname and metadata_server".into()));
    };
    let (segment, buffer) = (size("global_segment_size")?, size("local_buffer_size")?);
    let (segment, buffer) = match (segment, buffer) {
        (Ok(segment), Ok(buffer)) => (segment, buffer),
        (Err(refused), _) | (_, Err(refused)) => return Ok(Err(refused)),
    };
    if value(&["engine"])?.is_some_and(|engine| !["", "None"].contains(&engine.as_str())) {
        warn_engine();
    }
    warn_unneeded(&metadata_server, &value(&["protocol"])?.unwrap_or_default());
    let tenant = value(&["tenant_id"])?.unwrap_or_else(|| "default".into());
    warn_ignored_tenant(&tenant);
    let http_port = match value(&["client_http_port"])? {
        None => HTTP_PORT,
        Some(port) => match port.trim().parse() {
            Ok(port) => port,
            Err(_) => return Ok(Err(format!("setup: client_http_port is {port:?}; a port is needed"))),
        },
    };
    Ok(check(Setup {
        local_hostname,
        global_segment_size: segment,
        local_buffer_size: buffer,
        master: value(&["master_server_addr", "master_server_address"])?.unwrap_or_else(|| "127.0.0.1:50051".into()),
        http_port: switch("enable_client_http_server")?.then_some(http_port),
        tier: match switch("enable_ssd_offload")? {
            true => Some(value(&["ssd_offload_path"])?.unwrap_or_default()),
            false => None,
        },
    }))
}

/// Names of the dict form besides those of the positional one.
const ALIASES: [&str; 2] = ["device_name", "master_server_address"];

/// What has no meaning is told, once, with what it may have been meant for.
fn tell_unknown_keys(config: &Bound<'_, PyDict>) -> PyResult<()> {
    let known: Vec<&str> = NAMES.into_iter().chain(ALIASES).collect();
    for (key, _) in config {
        let key = key.str()?.to_string_lossy().into_owned();
        let name = key.strip_prefix("mooncake_").unwrap_or(&key);
        if known.contains(&name) {
            continue;
        }
        let close = config.py().import("difflib")?.call_method1("get_close_matches", (name, &known, 1))?;
        let meant: Vec<String> = close.extract()?;
        let meant = meant.first().map(|meant| format!("; did you mean {meant:?}?")).unwrap_or_default();
        say_once(&format!("setup: {key:?} is no setting and has no effect{meant}"));
    }
    Ok(())
}

fn warn_engine() {
    say_once("engine: a TransferEngine is accepted, but the store needs none: it moves its bytes itself");
}

fn check(setup: Setup) -> Parsed {
    for (name, bytes) in
        [("global_segment_size", setup.global_segment_size), ("local_buffer_size", setup.local_buffer_size)]
    {
        if bytes != 0 && bytes < LEAST_BYTES {
            return Err(format!("setup: {name} is {bytes} bytes; it is 0 or at least {LEAST_BYTES}"));
        }
    }
    if setup.local_buffer_size > BUFFER_BYTES_MAX {
        return Err(format!("setup: local_buffer_size is {} bytes, the limit is 1 TiB", setup.local_buffer_size));
    }
    if setup.local_hostname.is_empty() {
        return Err("setup: local_hostname is empty; give the address at which peers reach this process".into());
    }
    if let Some(port) = setup.http_port.filter(|port| !(1..=0xffff).contains(port)) {
        return Err(format!("setup: client_http_port is {port}; it is from 1 to 65535"));
    }
    Ok(setup)
}

fn warn_unneeded(metadata_server: &str, protocol: &str) {
    if !matches!(metadata_server, "" | "P2PHANDSHAKE") {
        say_once(&format!(
            "metadata server {metadata_server:?} is accepted, but the store needs none: peers find each other through \
             the master"
        ));
    }
    if !matches!(protocol.to_ascii_lowercase().as_str(), "" | "tcp") {
        say_once(&format!(
            "protocol {protocol:?} is accepted, but bytes move by shared memory on one host and by TCP between hosts"
        ));
    }
}

fn warn_ignored_tenant(tenant: &str) {
    if tenant != "default" && !tenant.is_empty() {
        say_once(&format!("tenant_id {tenant:?}: tenants are not kept apart, all clients see the same keys"));
    }
}

fn type_error(text: String) -> PyErr {
    PyTypeError::new_err(format!("setup(): {text}"))
}
