//! What a store of this machine would announce, and which ports are left for it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use mooncake_client::{NodeInfo, StoreOptions};
use mooncake_os::AboutProcess;

use super::answer::Answer;
use super::finding::{Area, Finding, Findings};
use super::listeners::Listeners;
use super::member::{literal, resolve};
use super::pool::Pool;
use crate::client::names;
use crate::pool::status::text;

/// Where a storage node tells processes of its host about the pool.
const NODE_PORT: u16 = 50_052;

/// What was read.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// The host name of this machine.
    pub host: String,
    /// What a store with the wildcard as its host would announce, or why it cannot.
    pub own: Result<String, String>,
    /// Addresses of this machine's own name.
    pub of_host_name: Vec<IpAddr>,
    /// Ports that are taken.
    pub listeners: Listeners,
    /// Ports that stores of this environment choose from.
    pub ports: (u16, u16),
    /// The storage node that answers at 50052.
    pub node: Option<NodeInfo>,
}

impl Addresses {
    /// Reads it.
    pub fn read(master: &str) -> Addresses {
        let (master, host) = (master.to_owned(), AboutProcess::this().host);
        let own = Answer::of(move || match names("0.0.0.0", &master) {
            Ok((name, _)) => Ok(name),
            Err(error) => Err(error.to_string()),
        });
        let named = format!("{host}:0");
        let of_host_name = Answer::of(move || resolve(&named));
        let listeners = Listeners::read();
        let node = listeners
            .has(NODE_PORT)
            .then(|| Answer::of(|| NodeInfo::ask(&format!("127.0.0.1:{NODE_PORT}"), None).ok()))
            .and_then(|node| node.wait().flatten());
        // What is wrong with the variables is told of the installation.
        let options = StoreOptions::new("", "").from_env().unwrap_or_else(|_| StoreOptions::new("", ""));
        Addresses {
            host,
            own: own.wait().unwrap_or_else(|| Err("the name of the master was not resolved in time".to_owned())),
            of_host_name: of_host_name.wait().unwrap_or_default(),
            listeners,
            ports: options.ports,
            node,
        }
    }
}

/// Judges it.
pub fn judge(read: &Addresses, pool: &Pool) -> Vec<Finding> {
    let mut found = Findings::of(Area::Addresses);
    own(read, pool, &mut found);
    host_name(read, pool, &mut found);
    data_ports(read, pool, &mut found);
    node_port(read, &mut found);
    open(pool, &mut found);
    found.sorted()
}

fn has_other_hosts(pool: &Pool) -> bool {
    pool.is_on_this_host() == Some(false) || pool.lenders().any(|member| !member.is_here)
}

fn own(read: &Addresses, pool: &Pool, found: &mut Findings) {
    let is_loopback = |name: &str| literal(name).is_some_and(|address| address.is_loopback());
    let has_other_hosts = has_other_hosts(pool);
    let remedy = "mooncake_client --host=ADDRESS (local_hostname of an engine), an address that the others reach";
    match &read.own {
        Err(why) => found.warn("own_address", format!("what a store here would announce is not known: {why}"), remedy),
        Ok(name) if is_loopback(name) && has_other_hosts => found.warn(
            "own_address",
            format!("a store here would announce {name}, which no other host reaches, and the pool has other hosts"),
            remedy,
        ),
        Ok(name) if is_loopback(name) => {
            found.ok("own_address", format!("a store here would announce {name}: good for a pool on this host alone"));
        }
        Ok(name) => found.ok("own_address", format!("a store here would announce {name}")),
    }
}

/// Distributions write such a line for every host, and it does harm where a store was given the name.
fn host_name(read: &Addresses, pool: &Pool, found: &mut Findings) {
    let host = &read.host;
    let loopback = read.of_host_name.iter().find(|address| address.is_loopback() && has_other_hosts(pool));
    let Some(address) = loopback else { return };
    let message = format!("this host's name, {host}, is {address} here: an engine that is given it announces that");
    let remedy = format!("give engines an address as local_hostname, or mend the line of {host} in /etc/hosts");
    let mut announces = pool.members.iter().filter(|member| member.is_here && member.is_present);
    match announces.find(|member| member.address.is_some_and(|address| address.is_loopback())) {
        Some(member) => found.warn("host_name", format!("{message}, as {} does", member.name), remedy),
        None => found.hint("host_name", message, remedy),
    }
}

/// Each store that lends memory takes one, and a range may be as small as one for each of them.
fn data_ports(read: &Addresses, pool: &Pool, found: &mut Findings) {
    let (min, max) = read.ports;
    let count = usize::from(max.saturating_sub(min)) + 1;
    let taken = read.listeners.taken(&(min..=max));
    let left = count.saturating_sub(taken.len());
    let message = format!("{left} of {count} data ports ({min}-{max}) are free");
    if left > 0 {
        return found.ok("data_ports", message);
    }
    let port = |name: &str| name.rsplit_once(':')?.1.parse().ok();
    let members: BTreeSet<u16> =
        pool.members.iter().filter(|member| member.is_here).filter_map(|member| port(&member.name)).collect();
    let others = taken.iter().filter(|port| !members.contains(port)).count();
    let remedy = "MC_STORE_CLIENT_MIN_PORT and MC_STORE_CLIENT_MAX_PORT give stores more ports";
    if others == 0 {
        return found.hint("data_ports", format!("{message}: members of this host have all of them"), remedy);
    }
    match pool.status() {
        Some(_) => {
            let message = format!("{message}, and {others} of them are taken by no member of this host");
            found.error("data_ports", message, remedy);
        }
        None => found.warn("data_ports", format!("{message}; which members have them is not known"), remedy),
    }
}

fn node_port(read: &Addresses, found: &mut Findings) {
    match (&read.node, read.listeners.has(NODE_PORT)) {
        (Some(node), _) => found.ok(
            "node_port",
            format!("a storage node has port {NODE_PORT}: {}, of master {}", node.segment, node.master),
        ),
        (None, true) => found.warn(
            "node_port",
            format!("port {NODE_PORT} is taken, and no storage node answers there: setup_dummy finds no pool by it"),
            format!("ss -ltnp | grep {NODE_PORT} shows what has it; mooncake_client --port=0 takes any free one"),
        ),
        (None, false) => found.ok("node_port", format!("port {NODE_PORT} is free for a storage node")),
    }
}

/// Not more than a note: a firewall may stand before it, and the master warns at its start.
fn open(pool: &Pool, found: &mut Findings) {
    let Some(status) = pool.status() else { return };
    let is_open = |address: &String| address.starts_with("0.0.0.0:") || address.starts_with("[::]:");
    let open: Vec<String> =
        [text(&status["rpc_address"]), text(&status["http_address"])].into_iter().filter(is_open).collect();
    if !open.is_empty() {
        found.hint(
            "open_ports",
            format!("the master listens on all addresses ({}), and asks no caller for a password", open.join(", ")),
            "a firewall, or --rpc_address and --metrics_host with an address of a private network (SECURITY.md)",
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::doctor::broken::{self, client};
    use crate::doctor::finding::{Severity, told};
    use crate::doctor::pool::NoPages;

    fn well() -> Addresses {
        Addresses {
            host: "h1".to_owned(),
            own: Ok("10.0.0.1".to_owned()),
            of_host_name: vec!["127.0.1.1".parse().unwrap()],
            listeners: Listeners::default(),
            ports: (12_300, 14_300),
            node: None,
        }
    }

    fn with_another_host() -> Pool {
        let mut status = broken::status();
        status["clients"] = json!([client("192.0.2.7:12300", "h7", 9)]);
        broken::pool(status)
    }

    #[test]
    fn a_pool_on_one_host_may_have_loopback_addresses_and_one_of_several_not() {
        let local = Addresses { own: Ok("127.0.0.1".to_owned()), ..well() };
        let found = judge(&local, &broken::pool(broken::status()));
        told::is(&found, "own_address", Severity::Ok, &["127.0.0.1", "this host alone"]);
        assert!(found.iter().all(|finding| finding.severity == Severity::Ok), "{found:#?}");
        let found = judge(&local, &with_another_host());
        told::is(&found, "own_address", Severity::Warning, &["127.0.0.1", "--host=ADDRESS"]);
        told::is(&found, "host_name", Severity::Ok, &["h1, is 127.0.1.1", "/etc/hosts"]);
        let mut status = broken::status();
        status["clients"].as_array_mut().unwrap().push(client("192.0.2.7:12300", "h7", 9));
        let found = judge(&well(), &broken::pool(status.clone()));
        told::is(&found, "host_name", Severity::Warning, &["127.0.1.1", "as 127.0.0.1:12300 does", "/etc/hosts"]);
        status["clients"][0]["state"] = json!("away");
        told::is(&judge(&well(), &broken::pool(status)), "host_name", Severity::Ok, &[]);
        let mut forwarded = broken::pool(broken::status());
        forwarded.master.as_mut().unwrap().is_on_this_host = false;
        told::is(&judge(&local, &forwarded), "own_address", Severity::Warning, &[]);
        told::is(&judge(&well(), &with_another_host()), "own_address", Severity::Ok, &["10.0.0.1"]);
        let unknown = Addresses { own: Err("no route".to_owned()), ..well() };
        told::is(&judge(&unknown, &with_another_host()), "own_address", Severity::Warning, &["no route"]);
    }

    #[test]
    fn ports_that_are_gone_are_an_error_unless_members_of_this_host_have_them() {
        let with = |ports, listeners: Listeners, pool: &Pool| judge(&Addresses { ports, listeners, ..well() }, pool);
        // With a member of this host at 12300.
        let pool = broken::pool(broken::status());
        told::is(&with((12_300, 14_300), [12_301].into(), &pool), "data_ports", Severity::Ok, &["2000 of 2001"]);
        told::is(&with((5, 7), [6].into(), &pool), "data_ports", Severity::Ok, &["2 of 3"]);
        let own = with((12_300, 12_300), [12_300].into(), &pool);
        told::is(&own, "data_ports", Severity::Ok, &["0 of 1", "have all of them", "MC_STORE_CLIENT_MAX_PORT"]);
        let (both, listeners) = ((12_300, 12_301), Listeners::from([12_300, 12_301]));
        let says = ["0 of 2", "1 of them are taken by no member", "MC_STORE_CLIENT_MAX_PORT"];
        told::is(&with(both, listeners.clone(), &pool), "data_ports", Severity::Error, &says);
        let unknown = Pool { pages: Err(NoPages::NoMaster), members: Vec::new(), ..pool };
        told::is(&with(both, listeners, &unknown), "data_ports", Severity::Warning, &["not known"]);
    }

    #[test]
    fn the_port_of_a_storage_node_is_free_or_a_nodes_or_taken() {
        let pool = broken::pool(broken::status());
        told::is(&judge(&well(), &pool), "node_port", Severity::Ok, &["50052 is free"]);
        let taken = Addresses { listeners: [50_052].into(), ..well() };
        told::is(&judge(&taken, &pool), "node_port", Severity::Warning, &["ss -ltnp | grep 50052", "--port=0"]);
        let node = Some(NodeInfo::new("10.0.0.1:50051", "10.0.0.2:12300"));
        told::is(&judge(&Addresses { node, ..taken }, &pool), "node_port", Severity::Ok, &["10.0.0.2:12300"]);
    }

    #[test]
    fn a_master_on_all_addresses_is_a_note() {
        let mut status = broken::status();
        status["rpc_address"] = json!("0.0.0.0:50051");
        let found = judge(&well(), &broken::pool(status));
        told::is(&found, "open_ports", Severity::Ok, &["0.0.0.0:50051", "--rpc_address"]);
    }
}
