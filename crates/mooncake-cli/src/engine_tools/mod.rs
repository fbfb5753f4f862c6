//! The transfer engine's tools: two processes, one of which moves bytes to or from the other.

pub mod bench;
pub mod links;
mod load;
pub mod sweep;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use mooncake_client::parse_size;
use mooncake_memory::{CopyError, ForeignRange, MemoryError, leak_shared};
use mooncake_settings::{Given, Program, SettingError, environment};
use mooncake_transfer_engine::{Engine, EngineError, EngineOptions, Status};

use crate::flags;
use crate::logging::{self, say};

/// Why a tool has nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The command line.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A flag's value that means nothing.
    #[error("--{name}={value}: expected {expected}")]
    Value {
        /// The flag.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is understood.
        expected: &'static str,
    },
    /// A flag that this use of the tool needs.
    #[error("--{name}={what} is needed: {why}")]
    Needed {
        /// The flag.
        name: &'static str,
        /// What it takes.
        what: &'static str,
        /// Where that comes from.
        why: &'static str,
    },
    /// The engine, or its peer.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Memory for the blocks.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Reading or writing them.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// Threads, signals or the log.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// A batch did not come through.
    #[error("a batch ended as {status:?}: {reason}")]
    Batch {
        /// How.
        status: Status,
        /// Why.
        reason: String,
    },
    /// Peers that cannot be met or read; each by its error.
    #[error("{}", .0.join("; "))]
    Peers(Vec<String>),
    /// Bytes came back as others than were sent.
    #[error("{block} bytes a request, {batch} requests a batch: thread {thread}'s bytes came back changed")]
    Changed {
        /// Bytes of a request.
        block: u64,
        /// Requests of a batch.
        batch: u64,
        /// Which thread's.
        thread: u64,
    },
}

/// The flags, with the log open; none if they asked for a text that has been printed.
fn begin(program: &'static Program, args: impl IntoIterator<Item = String>) -> Result<Option<Given>, ToolError> {
    let given = flags::read(program, args)?;
    if let Some(given) = &given {
        logging::start_at("INFO");
        given.notes.iter().for_each(|note| tracing::info!("{note}"));
    }
    Ok(given)
}

/// An engine under `name`, which listens where that leads and nowhere else: what a tool lends is for the other tool's
/// eyes.
fn connect(metadata: &str, name: &str) -> Result<Engine, ToolError> {
    EngineOptions::warn_ignored_variables();
    let mut options = EngineOptions::default().from_env(environment::variable)?;
    if options.bind.is_none() && options.bind_if_told.is_none() {
        options.bind = own_address(name);
        if options.bind.is_none() {
            tracing::warn!(
                "the name {name:?} leads to no address that other hosts reach this one by, so that the tool listens on \
                 all addresses; MC_TE_BIND_ADDRESS is the one that it listens on"
            );
        }
    }
    let cluster = environment::variable("MC_METADATA_CLUSTER_ID").unwrap_or_default();
    Ok(Engine::connect(metadata, name, options, &cluster)?)
}

/// The address of this host that a name, with or without a port, leads to. There is none if the address is another
/// host's, a gateway's perhaps, or if a host's name leads to this host alone: Debian's leads to 127.0.1.1, and peers
/// find another address under it.
fn own_address(name: &str) -> Option<IpAddr> {
    let host = match name.parse::<SocketAddr>() {
        Ok(both) => return is_own(both.ip()),
        Err(_) => name.rsplit_once(':').filter(|(host, _)| !host.contains(':')).map_or(name, |(host, _)| host),
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse() {
        Ok(ip) => is_own(ip),
        Err(_) if bare == "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        Err(_) => named(bare),
    }
}

/// Where a host's name leads from everywhere; the first address, which is the one that peers try first.
fn named(host: &str) -> Option<IpAddr> {
    let first = (host, 0).to_socket_addrs().ok()?.next()?.ip();
    if first.is_loopback() { None } else { is_own(first) }
}

fn is_own(ip: IpAddr) -> Option<IpAddr> {
    UdpSocket::bind((ip, 0)).is_ok().then_some(ip)
}

/// Memory that the engine lends.
fn lend(engine: &Engine, bytes: u64) -> Result<ForeignRange, ToolError> {
    let memory = leak_shared(bytes)?;
    engine.register(&[memory], "cpu:0")?;
    Ok(memory)
}

/// Prints a line, for which scripts wait, and lends memory until it is told to end.
fn lend_until_interrupted(line: &str) -> Result<(), ToolError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        say(line);
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        Ok(())
    })
}

fn bad_value(name: &'static str, value: &str, expected: &'static str) -> ToolError {
    ToolError::Value { name, value: value.to_owned(), expected }
}

/// Bytes, 1 or more.
fn size(given: &Given, name: &'static str) -> Result<u64, ToolError> {
    let text = given.text_or_default(name);
    let bytes = parse_size(text).ok().filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| bad_value(name, text, "bytes, or a number with KB, MB or GB"))
}

/// Seconds.
fn seconds(given: &Given, name: &'static str) -> Result<std::time::Duration, ToolError> {
    let text = given.text_or_default(name);
    let duration = text.parse().ok().and_then(|seconds| std::time::Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| bad_value(name, text, "seconds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_listens_where_its_name_leads() {
        for name in ["127.0.0.1", "127.0.0.1:12345", "localhost", "localhost:1"] {
            assert_eq!(own_address(name), Some(Ipv4Addr::LOCALHOST.into()), "{name}");
        }
        for name in ["no-such-host.invalid", "no-such-host.invalid:1", "192.0.2.1", "192.0.2.1:5", ""] {
            assert_eq!(own_address(name), None, "{name}");
        }
    }
}
