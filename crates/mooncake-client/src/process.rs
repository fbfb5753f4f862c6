//! Processes as messages name them.

use mooncake_os::ProcessIdentity;
use mooncake_wire::message::ProcessIdentity as WireProcess;

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
