//! Processes of this host that lend memory, as this process sees them in `/proc`.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use mooncake_os::PeerCredentials;

use super::member::Member;

/// What the names of the sockets begin with on which owners hand their memory over.
const SOCKETS: &str = "@mooncake-segment-";

/// `SO_ACCEPTCON` of `/proc/net/unix`: it is listened on.
const LISTENS: &str = "00010000";

/// A process of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id here.
    pub pid: u32,
    /// The user that it acts as, by its number here.
    pub uid: u32,
    /// An owner that is this process would give it memory, and the other way round.
    pub is_own_user: bool,
    /// It is in this process's pid namespace; none: the kernel does not tell.
    pub is_in_pid_namespace: Option<bool>,
    /// It is in this process's network namespace; none: the kernel does not tell.
    pub is_in_network: Option<bool>,
    /// It listens on a socket for its memory that is seen here; none: the kernel does not tell.
    pub has_socket: Option<bool>,
}

/// Sockets in this network namespace on which owners hand their memory over, by their inodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sockets(BTreeSet<u64>);

impl Sockets {
    /// As the kernel lists them.
    pub fn read() -> Sockets {
        Sockets::of(&fs::read_to_string("/proc/net/unix").unwrap_or_default())
    }

    fn of(table: &str) -> Sockets {
        let inode = |line: &str| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let [_, _, _, flags, _, _, inode, name] = fields[..] else { return None };
            let is_one = flags == LISTENS && name.starts_with(SOCKETS);
            inode.parse().ok().filter(|_| is_one)
        };
        Sockets(table.lines().filter_map(inode).collect())
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether a process has one of them open; none: its descriptors cannot be looked at.
    fn are_of(&self, pid: u32) -> Option<bool> {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let inode = |path: PathBuf| {
            let target = fs::read_link(path).ok()?;
            target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        };
        Some(open.flatten().filter_map(|entry| inode(entry.path())).any(|inode| self.0.contains(&inode)))
    }
}

/// What `/proc/PID/status` says of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    name: String,
    pid: u32,
    /// In the namespace that it lives in.
    own_pid: u32,
    uid: u32,
    is_nested: bool,
}

impl Entry {
    fn of(status: &str) -> Option<Entry> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let pids = field("NSpid:")?.split_ascii_whitespace().map(|pid| pid.parse().ok());
        let pids = pids.collect::<Option<Vec<u32>>>()?;
        let uid = field("Uid:")?.split_ascii_whitespace().nth(1)?.parse().ok()?;
        let (pid, own_pid) = (*pids.first()?, *pids.last()?);
        Some(Entry { name: field("Name:")?.to_owned(), pid, own_pid, uid, is_nested: pids.len() > 1 })
    }

    fn process(&self, sockets: &Sockets) -> Process {
        let is_in = |kind: &str| {
            let theirs = fs::read_link(format!("/proc/{}/ns/{kind}", self.pid)).ok()?;
            Some(theirs == fs::read_link(format!("/proc/self/ns/{kind}")).ok()?)
        };
        Process {
            pid: self.pid,
            uid: self.uid,
            is_own_user: PeerCredentials { pid: self.pid, uid: self.uid, gid: 0 }.is_own_user(),
            is_in_pid_namespace: Some(!self.is_nested),
            is_in_network: is_in("net"),
            has_socket: sockets.are_of(self.pid),
        }
    }
}

/// All processes that are seen here, those of containers among them where this process is outside of these.
#[derive(Debug, Default)]
pub struct Processes(Vec<Entry>);

impl Processes {
    /// Those that there are.
    pub fn read() -> Processes {
        let Ok(entries) = fs::read_dir("/proc") else { return Processes::default() };
        let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let status = |name: String| Entry::of(&fs::read_to_string(format!("/proc/{name}/status")).ok()?);
        Processes(names.filter(|name| is_process(name)).filter_map(status).collect())
    }

    /// The process that a member is, which offers memory. Its pid is that of its own namespace, and each namespace has
    /// a process 1: the name tells them apart, and the socket for the memory.
    pub fn find(&self, member: &Member, sockets: &Sockets) -> Option<Process> {
        let numbered = self.0.iter().filter(|entry| entry.own_pid == member.pid);
        let seen: Vec<(bool, Process)> = numbered
            .map(|entry| (entry.name == member.program, entry.process(sockets)))
            // One of this network would be seen to have the socket.
            .filter(|(_, process)| process.has_socket != Some(false) || process.is_in_network != Some(true))
            .collect();
        // A program may call itself something else once it has joined the pool.
        let has_socket = |(_, process): &&(bool, Process)| process.has_socket == Some(true);
        let named = || seen.iter().find(|(is_named, _)| *is_named);
        seen.iter().find(has_socket).or_else(named).map(|(_, process)| process.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use mooncake_os::AboutProcess;

    use super::*;

    #[test]
    fn sockets_are_those_that_owners_listen_on() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01 31331 @mooncake-segment-77aa\n\
                     0000000000000000: 00000003 00000000 00000000 0001 03 31332 @mooncake-segment-77aa\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01 31333 @mooncake-master-50051-1\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01 31334\n";
        assert_eq!(Sockets::of(table), Sockets([31_331].into()));
    }

    #[test]
    fn a_process_of_a_container_has_both_of_its_numbers() {
        let status = "Name:\tVLLM::Core 1\nUmask:\t0022\nUid:\t1000\t970\t1000\t1000\nNSpid:\t4711\t7\n";
        let expected = Entry { name: "VLLM::Core 1".to_owned(), pid: 4711, own_pid: 7, uid: 970, is_nested: true };
        assert_eq!(Entry::of(status), Some(expected));
        assert_eq!(Entry::of("Name:\tx\nUid:\t0\n"), None);
    }

    #[test]
    fn this_process_is_found_by_its_socket_and_a_stranger_with_its_number_is_not() {
        let (pid, own) = (std::process::id(), AboutProcess::this().program);
        let member = |program: &str| Member { pid, program: program.to_owned(), ..Member::default() };
        let processes = Processes::read();
        assert_eq!(processes.find(&member(&own), &Sockets::default()), None, "it offers no memory");
        let name = format!("mooncake-segment-test-{pid}");
        let _listens = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        let sockets = Sockets::read();
        assert!(sockets.count() > 0);
        let found = processes.find(&member(&own), &sockets).unwrap();
        assert!(found.is_own_user && found.is_in_network == Some(true), "{found:?}");
        assert_eq!((found.pid, found.has_socket), (pid, Some(true)));
        assert_eq!(processes.find(&member("renamed"), &sockets), Some(found));
    }
}
