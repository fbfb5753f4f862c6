//! `mooncake proxy`: the front door of disaggregated inference.

use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use mooncake_client::parse_size;
use mooncake_master::address;
use mooncake_proxy::{InstanceAddress, NoAddress, ProxyOptions, ProxyServer, StartError};
use mooncake_settings::{Given, PROXY, SettingError, duration_ms};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::logging::{self, announce};
use crate::proxy_lists::{WrongLists, with_lists};
use crate::{descriptors, flags, service};

/// Why it did not start.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The command line.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Hosts and ports that do not go together.
    #[error(transparent)]
    Lists(#[from] WrongLists),
    /// No instance to answer requests, and no way to name one later.
    #[error("no decode instance is named: name one with --decode, or set ADMIN_API_KEY to add one later")]
    NoInstance,
    /// An instance's address.
    #[error("{0}")]
    Instance(#[from] NoAddress),
    /// The port, or an instance.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The runtime, signals or the log.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// Runs until a signal says that it is over.
pub fn run(args: impl IntoIterator<Item = String>) -> Result<(), ProxyError> {
    let Some(given) = flags::read(&PROXY, with_lists(args)?)? else { return Ok(()) };
    logging::start_in(given.text_or_default("log_level"), given.text_or_default("log_format"));
    for note in &given.notes {
        tracing::info!("{note}");
    }
    let mut options = options(&given)?;
    // A connection is a descriptor, and each request needs more of them, to the instances.
    let most = descriptors::raise_limit() / 2;
    if options.connections_max > most {
        tracing::warn!("--max_connections is {most}: half of what `ulimit -n` lets be open");
        options.connections_max = most;
    }
    let bootstrap = Some(given.number_or_default::<u16>("bootstrap_port")).filter(|port| *port != 0);
    let prefill: Vec<InstanceAddress> =
        instances(&given, "prefill")?.into_iter().map(|one| one.or_bootstrap(bootstrap)).collect();
    let decode = instances(&given, "decode")?;
    if decode.is_empty() {
        if options.admin_key.is_none() {
            return Err(ProxyError::NoInstance);
        }
        tracing::warn!("no decode instance is named: it answers requests when one is added: POST /instances/add");
    }
    if !options.listen.ip().is_loopback() {
        let key = if options.upstream_key.is_some() { ", with OPENAI_API_KEY" } else { "" };
        tracing::warn!(
            "whoever reaches {} can use the instances{key}: the proxy asks nobody who he is",
            options.listen
        );
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let server = ProxyServer::open(options, prefill, decode).await?;
        announce(&format!("mooncake_proxy listens on http://{}", server.address()));
        service::is_ready();
        let _fed = service::watchdog_interval().map(|every| tokio::spawn(service::feed(every)));
        let stop = Arc::new(Notify::new());
        let signals = stop.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                service::is_stopping();
                signals.notify_one();
            }
        });
        server.serve(&stop).await;
        Ok(())
    })
}

fn instances(given: &Given, name: &'static str) -> Result<Vec<InstanceAddress>, ProxyError> {
    let text = given.text_or_default(name);
    let named = text.split([',', ' ']).filter(|one| !one.is_empty());
    Ok(named.map(InstanceAddress::from_str).collect::<Result<_, _>>()?)
}

fn options(given: &Given) -> Result<ProxyOptions, ProxyError> {
    let time = |name: &'static str| {
        let ms = duration_ms(given.text_or_default(name)).filter(|ms| *ms > 0);
        let ms = ms.ok_or_else(|| given.unfit(name, "a time longer than none is needed"))?;
        Ok::<Duration, ProxyError>(Duration::from_millis(ms))
    };
    let key = |name: &str| std::env::var(name).ok().filter(|key| !key.is_empty());
    let size = |name: &'static str| {
        let bytes = parse_size(given.text_or_default(name));
        let bytes = bytes.map_err(|error| given.unfit(name, error.to_string()))?;
        Ok::<usize, ProxyError>(usize::try_from(bytes).unwrap_or(usize::MAX))
    };
    let scheduling = given.text_or_default("scheduling").parse();
    Ok(ProxyOptions {
        listen: SocketAddr::new(address(given, "host")?, given.number_or_default("port")),
        model: Some(given.text_or_default("model").to_owned()).filter(|model| !model.is_empty()),
        scheduling: scheduling.map_err(|why: String| given.unfit("scheduling", why))?,
        running_max: given.number_or_default("max_running"),
        waiting_max: given.number_or_default("max_waiting"),
        connections_max: given.number_or_default("max_connections"),
        body_max: size("max_body_size")?,
        bodies_max: size("max_bodies_size")?,
        instance_cache: size("instance_cache")?,
        header_timeout: time("header_timeout")?,
        body_timeout: time("body_timeout")?,
        drain_timeout: time("drain_timeout")?,
        connect_timeout: time("connect_timeout")?,
        prefill_timeout: time("prefill_timeout")?,
        request_timeout: time("request_timeout")?,
        stall_timeout: time("stall_timeout")?,
        check_interval: time("health_interval")?,
        access_log: given.boolean("access_log"),
        admin_key: key("ADMIN_API_KEY"),
        upstream_key: key("OPENAI_API_KEY"),
    })
}
