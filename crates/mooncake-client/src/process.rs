//! Processes as messages name them.

use mooncake_os::{AboutProcess, ProcessIdentity};
use mooncake_wire::message::{ClientInfo, ProcessIdentity as WireProcess};

/// A process that a message names; `None` where it names none.
pub(crate) fn process(process: WireProcess) -> Option<ProcessIdentity> {
    Some(ProcessIdentity {
        boot_id: process.boot_id[..].try_into().ok()?,
        pid: process.pid,
        start_time: process.start_time,
        pid_namespace: process.pid_namespace,
    })
}

/// A process as messages name it.
pub(crate) fn wire_process(process: &ProcessIdentity) -> WireProcess {
    WireProcess {
        boot_id: process.boot_id.to_vec().into(),
        pid: process.pid,
        start_time: process.start_time,
        pid_namespace: process.pid_namespace,
        mark: 0,
    }
}

/// What people are told of this process, as messages say it.
pub(crate) fn client_info(about: AboutProcess) -> ClientInfo {
    let AboutProcess { host, user, pod, program } = about;
    ClientInfo { host, user, pod, program }
}
