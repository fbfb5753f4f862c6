//! What a service manager is told of a process: that it serves, goes on, or ends (systemd's `Type=notify` and
//! `WatchdogSec=`); and what it holds for the next one.

use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use mooncake_os::send_fds;

/// It serves from here on.
pub fn is_ready() {
    tell("READY=1");
}

/// It ends, and takes its time.
pub fn is_stopping() {
    tell("STOPPING=1");
}

/// It goes on.
pub fn is_alive() {
    tell("WATCHDOG=1");
}

/// Tells a watchdog that the process goes on, for as long as its runtime runs what is due.
pub async fn feed(every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        is_alive();
    }
}

/// How often a manager is to be told that it goes on: twice in the time after which it ends a process that does not
/// (systemd's `WatchdogSec=`). None where it wants to hear nothing.
pub fn watchdog_interval() -> Option<Duration> {
    let variable = |name: &str| std::env::var(name).ok();
    watched(variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"), std::process::id())
}

fn watched(us: Option<String>, pid: Option<String>, own: u32) -> Option<Duration> {
    // It may be meant for the process that this one was started by.
    let is_meant = pid.is_none_or(|pid| pid.parse() == Ok(own));
    let us: u64 = us?.parse().ok().filter(|us| *us > 0 && is_meant)?;
    Some(Duration::from_micros(us) / 2)
}

/// Where a manager wants to know; none where there is none.
pub fn manager() -> Option<String> {
    std::env::var("NOTIFY_SOCKET").ok().filter(|name| !name.is_empty())
}

/// Says nothing where no manager wants to know.
fn tell(state: &str) {
    let Some(name) = manager() else { return };
    if let Err(error) = tell_at(&name, state, &[]) {
        tracing::warn!(%error, "NOTIFY_SOCKET={name}: the service manager is not told {state}");
    }
}

/// A path, or an abstract name behind an `@`.
pub fn tell_at(name: &str, state: &str, fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    send_fds(&socket, state.as_bytes(), fds).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_is_fed_twice_in_its_time_by_the_process_that_it_watches() {
        let watched = |us: Option<&str>, pid: Option<&str>| watched(us.map(str::to_owned), pid.map(str::to_owned), 7);
        assert_eq!(watched(Some("30000000"), Some("7")), Some(Duration::from_secs(15)));
        assert_eq!(watched(Some("30000000"), None), Some(Duration::from_secs(15)));
        for (us, pid) in [(None, None), (Some("30000000"), Some("8")), (Some("0"), None), (Some("x"), None)] {
            assert_eq!(watched(us, pid), None, "{us:?} {pid:?}");
        }
    }

    #[test]
    fn a_manager_is_told_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = path.to_str().unwrap();
        let at_path = UnixDatagram::bind(&path).unwrap();
        let at_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        let mut heard = [0; 64];
        for (manager, name) in [(&at_path, name.to_owned()), (&at_name, format!("@{name}"))] {
            tell_at(&name, "READY=1", &[]).unwrap();
            let length = manager.recv(&mut heard).unwrap();
            assert_eq!(&heard[..length], b"READY=1", "{name}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(tell_at(name, "READY=1", &[]).is_err());
    }
}
