//! With which members of this host this process would share memory, and why not with the others
//! (docs/deployment.md).

use mooncake_client::StoreOptions;
use mooncake_os::AboutProcess;

use super::finding::{Area, Finding, Findings};
use super::limits::kernel;
use super::member::Member;
use super::peers::{Process, Processes, Sockets};
use super::pool::Pool;

/// Members that have a line each; the others are counted.
const TOLD: usize = 20;

/// From here on two processes need no common pid namespace.
const PIDFD_OF_PEERS: (u32, u32) = (6, 5);

/// What was read.
#[derive(Debug, Clone)]
pub struct Sharing {
    /// `MC_SHM` of this environment.
    pub is_on: bool,
    /// The user of this process.
    pub user: String,
    /// The number of that user.
    pub uid: u32,
    /// The kernel's version.
    pub kernel: (u32, u32),
    /// Sockets of owners in this network namespace.
    pub sockets: usize,
    /// Members of this host that lend memory, each with its process where it is seen.
    pub peers: Vec<(Member, Option<Process>)>,
}

impl Sharing {
    /// Reads it.
    pub fn read(pool: &Pool) -> Sharing {
        let (sockets, processes) = (Sockets::read(), Processes::read());
        let here = pool.lenders().filter(|member| member.is_here && member.is_present && member.lent > 0.0);
        let peers = here
            .enumerate()
            .map(|(nth, member)| (member.clone(), (nth < TOLD).then(|| processes.find(member, &sockets)).flatten()));
        Sharing {
            // What is wrong with the variables is told of the installation.
            is_on: StoreOptions::new("", "").from_env().map_or(true, |options| options.shared_memory),
            user: AboutProcess::this().user,
            uid: rustix::process::geteuid().as_raw(),
            kernel: kernel(),
            sockets: sockets.count(),
            peers: peers.collect(),
        }
    }
}

/// Why bytes go by TCP, and what mends it.
struct ByTcp {
    why: String,
    remedy: String,
}

/// Judges it.
pub fn judge(read: &Sharing, pool: &Pool) -> Vec<Finding> {
    let mut found = Findings::of(Area::SharedMemory);
    if !read.is_on {
        found.warn(
            "switch",
            "MC_SHM=0: stores of this environment move bytes by TCP, within this host too",
            "unset MC_SHM, or MC_SHM=1",
        );
    }
    let others = pool.lenders().filter(|member| !member.is_here).count();
    if others > 0 {
        found.ok(
            "other_hosts",
            format!("members that lend memory on other hosts are reached by TCP ({others} of them)"),
        );
    }
    if read.peers.is_empty() {
        match pool.status() {
            Some(_) => found.skip("peers", "no member of this host lends memory"),
            None => found.skip("peers", "members are not known without a master's pages"),
        }
    }
    for (member, process) in read.peers.iter().take(TOLD) {
        let name = format!("{} ({} {})", member.name, member.program, member.pid);
        match verdict(read, member, process.as_ref()) {
            _ if !read.is_on => found.skip("peer", format!("{name}: by TCP, as MC_SHM=0 says")),
            Ok(None) => found.ok("peer", format!("{name}: shared memory")),
            Ok(Some(open)) => found.skip("peer", format!("{name}: {open}")),
            Err(ByTcp { why, remedy }) => found.warn("peer", format!("{name}: by TCP, for {why}"), remedy),
        }
    }
    if read.peers.len() > TOLD {
        found.skip("peers", format!("{} more members of this host were not looked at", read.peers.len() - TOLD));
    }
    found.sorted()
}

/// Nothing, or what is open, where nothing is in the way.
fn verdict(read: &Sharing, member: &Member, process: Option<&Process>) -> Result<Option<String>, ByTcp> {
    let by_tcp = |why: String, remedy: String| Err(ByTcp { why, remedy });
    let one_network = "give both one network namespace: network_mode: host of containers, hostNetwork or one pod in \
                       Kubernetes, no PrivateNetwork= in units";
    let one_pid_namespace = "Linux 6.5, or pid: host of both containers (hostPID in Kubernetes)";
    let needs_pids = read.kernel < PIDFD_OF_PEERS;
    if !member.offers_memory {
        let why = "it hands its memory to no process, as those do that lend a file".to_owned();
        return by_tcp(why, "lend memory of the process itself: --global_segment_size, global_segment_size".to_owned());
    }
    let one_user = |theirs: &str| {
        format!(
            "run both as one user (User= of units, user: of containers); if the engine is {theirs} already, ask as it: \
             sudo -u '{theirs}' mooncake doctor"
        )
    };
    let Some(process) = process else {
        return match () {
            () if read.sockets == 0 => {
                by_tcp("no socket of any owner is in this network namespace".to_owned(), one_network.to_owned())
            }
            () if !member.user.is_empty() && member.user != read.user => {
                by_tcp(format!("it runs as {}, and this process as {}", member.user, read.user), one_user(&member.user))
            }
            () if needs_pids => {
                by_tcp("its process is in another pid namespace".to_owned(), one_pid_namespace.to_owned())
            }
            () => Ok(Some(
                "its process is not seen from here (another pid namespace, or hidepid); the log of a store that reads \
                 it says path=shm or path=tcp"
                    .to_owned(),
            )),
        };
    };
    if !process.is_own_user {
        let theirs = format!("#{}", process.uid);
        return by_tcp(
            format!("its process is user {}'s ({}), and this one user {}'s", process.uid, member.user, read.uid),
            one_user(&theirs),
        );
    }
    if process.is_in_network == Some(false) || process.has_socket == Some(false) {
        return by_tcp("its socket is in another network namespace".to_owned(), one_network.to_owned());
    }
    if process.is_in_pid_namespace == Some(false) && needs_pids {
        return by_tcp("its process is in another pid namespace".to_owned(), one_pid_namespace.to_owned());
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::doctor::broken::{self, client};
    use crate::doctor::finding::{Severity, told};
    use crate::doctor::pool::NoPages;

    fn process() -> Process {
        Process {
            pid: 8,
            uid: 970,
            is_own_user: true,
            is_in_pid_namespace: Some(true),
            is_in_network: Some(true),
            has_socket: Some(true),
        }
    }

    fn with(process: Option<Process>) -> Sharing {
        let member = broken::pool(broken::status()).members.remove(0);
        let peers = vec![(member, process)];
        Sharing { is_on: true, user: "kv".to_owned(), uid: 970, kernel: (6, 8), sockets: 3, peers }
    }

    fn is(read: &Sharing, severity: Severity, says: &[&str]) {
        told::is(&judge(read, &broken::pool(broken::status())), "peer", severity, says);
    }

    #[test]
    fn two_processes_of_one_user_in_one_network_share_memory() {
        is(&with(Some(process())), Severity::Ok, &["127.0.0.1:12300 (mooncake 8): shared memory"]);
        let nested = Process { is_in_pid_namespace: Some(false), ..process() };
        is(&with(Some(nested.clone())), Severity::Ok, &["shared memory"]);
        let old = Sharing { kernel: (6, 4), ..with(Some(nested)) };
        is(&old, Severity::Warning, &["pid namespace", "Linux 6.5"]);
    }

    #[test]
    fn another_user_is_named_with_how_to_ask_as_that_user() {
        let other = Process { uid: 1000, is_own_user: false, ..process() };
        is(&with(Some(other)), Severity::Warning, &["user 1000's", "970's", "sudo -u '#1000' mooncake doctor"]);
        let unseen = Sharing { user: "root".to_owned(), ..with(None) };
        is(&unseen, Severity::Warning, &["it runs as kv, and this process as root", "sudo -u 'kv'"]);
    }

    #[test]
    fn another_network_namespace_is_told_by_the_kernel_or_by_a_socket_that_is_not_there() {
        let apart = Process { is_in_network: Some(false), has_socket: None, ..process() };
        is(&with(Some(apart)), Severity::Warning, &["network namespace", "network_mode: host"]);
        let unseen = Process { is_in_network: None, has_socket: Some(false), ..process() };
        is(&with(Some(unseen)), Severity::Warning, &["network namespace"]);
        is(&Sharing { sockets: 0, ..with(None) }, Severity::Warning, &["no socket of any owner"]);
    }

    #[test]
    fn what_cannot_be_seen_is_not_held_against_a_peer() {
        is(&with(None), Severity::Skipped, &["not seen from here"]);
        is(&Sharing { kernel: (5, 14), ..with(None) }, Severity::Warning, &["another pid namespace"]);
    }

    #[test]
    fn memory_that_is_a_file_is_not_handed_over() {
        let mut file = with(Some(process()));
        file.peers[0].0.offers_memory = false;
        is(&file, Severity::Warning, &["lend a file", "global_segment_size"]);
    }

    #[test]
    fn the_switch_is_told_once_and_no_peer_is_blamed() {
        let off = Sharing { is_on: false, ..with(Some(process())) };
        is(&off, Severity::Skipped, &["MC_SHM=0"]);
        let found = judge(&off, &broken::pool(broken::status()));
        told::is(&found, "switch", Severity::Warning, &["MC_SHM=0", "unset MC_SHM"]);
    }

    #[test]
    fn members_elsewhere_are_counted_and_many_here_are_cut_short() {
        let mut status = broken::status();
        status["clients"] = json!([client("192.0.2.7:12300", "h7", 9)]);
        let none = Sharing { peers: Vec::new(), ..with(None) };
        let found = judge(&none, &broken::pool(status));
        told::is(&found, "other_hosts", Severity::Ok, &["(1 of them)"]);
        told::is(&found, "peers", Severity::Skipped, &["no member of this host"]);
        let mut many = with(Some(process()));
        many.peers = vec![many.peers[0].clone(); 25];
        let found = judge(&many, &broken::pool(broken::status()));
        told::is(&found, "peers", Severity::Skipped, &["5 more"]);
        assert_eq!(found.iter().filter(|finding| finding.check == "peer").count(), 20);
        let alone = Pool { pages: Err(NoPages::NoMaster), members: Vec::new(), ..broken::pool(broken::status()) };
        told::is(&judge(&none, &alone), "peers", Severity::Skipped, &["not known"]);
    }
}
