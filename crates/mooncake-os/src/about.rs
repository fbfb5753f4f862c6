//! What people call this process: by its host, its user, its pod and its program.

use std::fs::File;
use std::io::Read;
use std::sync::OnceLock;

use rustix::process::getuid;

/// Longest of these names, bytes. The rest of a longer one is left out.
pub const NAME_BYTES_MAX: usize = 255;

/// So much of a file is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Names of this process, for people: nothing is proven by them. One that is not known is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AboutProcess {
    /// Of the host, or of the container that has a name of its own.
    pub host: String,
    /// Of the user that it runs as: the name, or `uid 1000` where no file of users has one.
    pub user: String,
    /// Of the Kubernetes pod that it is in.
    pub pod: String,
    /// What the kernel calls the program, as `ps -o comm` does.
    pub program: String,
}

impl AboutProcess {
    /// This process: its host and program as they are called now, its user and pod as of the first call.
    pub fn this() -> AboutProcess {
        // Once, and so in the caller's first call: a thread of ours that read the environment later could do so while
        // the host program sets it.
        static USER_AND_POD: OnceLock<(String, String)> = OnceLock::new();
        let host = short(read("/proc/sys/kernel/hostname").trim());
        let (user, pod) = USER_AND_POD.get_or_init(|| {
            let is_in_one = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
            let pod = is_in_one.then(|| std::env::var("POD_NAME").unwrap_or_else(|_| host.clone()));
            (short(&user_of(&read("/etc/passwd"), getuid().as_raw())), short(&pod.unwrap_or_default()))
        });
        AboutProcess { host, user: user.clone(), pod: pod.clone(), program: short(read("/proc/self/comm").trim()) }
    }
}

fn read(path: &str) -> String {
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)) {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    }
}

/// The name of a user, by the lines of a file of users.
fn user_of(passwd: &str, uid: u32) -> String {
    let entry = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    });
    entry.map_or_else(|| format!("uid {uid}"), str::to_owned)
}

fn short(name: &str) -> String {
    name[..name.floor_char_boundary(NAME_BYTES_MAX)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_the_name_of_the_file_of_users_or_the_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\n# a remark\nodd\nkv:x:1000:1000::/home/kv:/bin/sh\n";
        for (uid, name) in [(0, "root"), (1000, "kv"), (10, "uid 10")] {
            assert_eq!(user_of(passwd, uid), name);
        }
        assert_eq!(user_of("", 7), "uid 7");
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let long = "\u{4e2d}".repeat(100);
        assert_eq!(short(&long), "\u{4e2d}".repeat(85));
        assert_eq!(short("kv"), "kv");
    }

    #[test]
    fn this_process_has_a_host_a_user_and_a_program() {
        let about = AboutProcess::this();
        assert!(!about.host.is_empty() && !about.user.is_empty() && !about.program.is_empty(), "{about:?}");
    }
}
