//! Instances on the command line, in the forms that users of Mooncake's and vLLM's proxies write, too.

/// Hosts and ports that do not go together; one that is not given is the default of `vllm_v1_proxy_server`.
#[derive(Debug, thiserror::Error)]
pub enum WrongLists {
    /// Both are given.
    #[error("--{0}-hosts has {1} and --{0}-ports {2} values: each host needs a port")]
    Lengths(&'static str, usize, usize),
    /// Several hosts, and no ports.
    #[error(
        "--{0}-hosts has {1} values and there is no --{0}-ports: each host needs a port, only a single one gets {2}"
    )]
    NoPorts(&'static str, usize, &'static str),
    /// Several ports, and no hosts.
    #[error(
        "--{0}-ports has {1} values and there is no --{0}-hosts: each port needs a host, only a single one gets {2}"
    )]
    NoHosts(&'static str, usize, &'static str),
}

/// One of the two groups: its flags, each followed by any number of values.
struct Group {
    name: &'static str,
    short: &'static str,
    /// What Mooncake's `vllm_v1_proxy_server` calls it.
    other: &'static str,
    /// Its port there by default.
    default_port: &'static str,
}

/// Where an instance of `vllm_v1_proxy_server` is by default.
const DEFAULT_HOST: &str = "localhost";

const GROUPS: [Group; 2] = [
    Group { name: "prefill", short: "-p", other: "prefiller", default_port: "8100" },
    Group { name: "decode", short: "-d", other: "decoder", default_port: "8200" },
];

/// What a value is, in the group of that number.
#[derive(Clone, Copy)]
enum List {
    Instances(usize),
    Hosts(usize),
    Ports(usize),
}

/// `--prefill A B` and `-p A -p B` as `--prefill=A,B`; `--prefill http://A 8998` as `--prefill=A:8998`;
/// `--prefiller-hosts A B --prefiller-ports 1 2` as `--prefill=A:1,B:2`.
pub fn with_lists(args: impl IntoIterator<Item = String>) -> Result<Vec<String>, WrongLists> {
    let [mut instances, mut hosts, mut ports]: [[Vec<String>; 2]; 3] = Default::default();
    let (mut rest, mut open) = (Vec::new(), None);
    for arg in args {
        let (value, list) = match (list_flag(&arg), open) {
            (Some(list), _) => {
                open = Some(list);
                let Some((_, value)) = arg.split_once('=') else { continue };
                (value.to_owned(), list)
            }
            (None, Some(list)) if !arg.starts_with('-') => (arg, list),
            _ => {
                open = None;
                rest.push(arg);
                continue;
            }
        };
        match list {
            List::Instances(group) => add(&mut instances[group], value),
            List::Hosts(group) => hosts[group].push(value),
            List::Ports(group) => ports[group].push(value),
        }
    }
    // With the flags of vllm_v1_proxy_server, a missing host or port means that proxy's default.
    let is_other = hosts.iter().chain(&ports).any(|list| !list.is_empty());
    for (number, group) in GROUPS.iter().enumerate() {
        if !is_other || !instances[number].is_empty() {
            continue;
        }
        instances[number] = paired(group, &hosts[number], &ports[number])?;
    }
    let joined = GROUPS.iter().zip(instances).filter(|(_, list)| !list.is_empty());
    rest.extend(joined.map(|(group, list)| format!("--{}={}", group.name, list.join(","))));
    Ok(rest)
}

/// Instances of a group by its hosts and ports, either of which may be the default.
fn paired(group: &Group, hosts: &[String], ports: &[String]) -> Result<Vec<String>, WrongLists> {
    let (host, port) = (DEFAULT_HOST, group.default_port);
    match (hosts, ports) {
        ([], []) => Ok(vec![format!("{host}:{port}")]),
        ([one], []) => Ok(vec![format!("{one}:{port}")]),
        ([], [one]) => Ok(vec![format!("{host}:{one}")]),
        (hosts, []) => Err(WrongLists::NoPorts(group.other, hosts.len(), port)),
        ([], ports) => Err(WrongLists::NoHosts(group.other, ports.len(), host)),
        _ if hosts.len() != ports.len() => Err(WrongLists::Lengths(group.other, hosts.len(), ports.len())),
        _ => Ok(hosts.iter().zip(ports).map(|(host, port)| format!("{host}:{port}")).collect()),
    }
}

/// The list that an argument begins.
fn list_flag(arg: &str) -> Option<List> {
    let name = arg.split('=').next()?;
    let bare = name.trim_start_matches('-');
    if bare == name {
        return None;
    }
    GROUPS.iter().enumerate().find_map(|(number, group)| {
        if arg == group.short || bare == group.name {
            return Some(List::Instances(number));
        }
        match bare.strip_prefix(group.other)? {
            "-host" | "-hosts" => Some(List::Hosts(number)),
            "-port" | "-ports" => Some(List::Ports(number)),
            _ => None,
        }
    })
}

/// A number alone, or `none`, is the bootstrap port of the instance before it.
fn add(instances: &mut Vec<String>, value: String) {
    let is_port = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    match instances.last_mut() {
        Some(_) if value.eq_ignore_ascii_case("none") => {}
        Some(last) if is_port => *last = format!("{}:{value}", last.trim_end_matches('/')),
        _ => instances.push(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> String {
        with_lists(line.split_whitespace().map(str::to_owned)).unwrap().join(" ")
    }

    #[test]
    fn instances_may_follow_their_flag_in_any_number() {
        assert_eq!(read("-p a:1 b:2 -d c:3 --port 9"), "--port 9 --prefill=a:1,b:2 --decode=c:3");
        assert_eq!(read("--prefill=a:1 -p b:2 --prefill c:3"), "--prefill=a:1,b:2,c:3");
        assert_eq!(read("--model m --decode d:1 --help"), "--model m --help --decode=d:1");
    }

    #[test]
    fn a_bootstrap_port_may_follow_its_instance() {
        let line = "--prefill http://a:1/ 8998 --prefill http://b:2 none --prefill c:3 --decode http://d:4";
        assert_eq!(read(line), "--prefill=http://a:1:8998,http://b:2,c:3 --decode=http://d:4");
    }

    #[test]
    fn hosts_and_ports_may_be_named_apart() {
        let line = "--prefiller-host a --prefiller-port 8010 --decoder-host b --decoder-port 8020 --port 9";
        assert_eq!(read(line), "--port 9 --prefill=a:8010 --decode=b:8020");
        let line = "--prefiller-hosts a b --prefiller-ports 1 2 --decoder-ports=3";
        assert_eq!(read(line), "--prefill=a:1,b:2 --decode=localhost:3");
        assert_eq!(read("--decoder-port 8201"), "--prefill=localhost:8100 --decode=localhost:8201");
        let wrong = with_lists(["--prefiller-hosts", "a", "b", "--prefiller-port", "1"].map(str::to_owned));
        assert!(wrong.unwrap_err().to_string().contains("--prefiller-hosts has 2 and --prefiller-ports 1 values"));
        assert_eq!(read("--prefiller-hosts a"), "--prefill=a:8100 --decode=localhost:8200");
        for (flag, said) in [("--prefiller-hosts", "no --prefiller-ports"), ("--decoder-ports", "no --decoder-hosts")] {
            let wrong = with_lists([flag, "1", "2"].map(str::to_owned)).unwrap_err().to_string();
            assert!(wrong.contains(&format!("{flag} has 2 values")) && wrong.contains(said), "{wrong}");
        }
    }
}
