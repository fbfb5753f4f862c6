//! Another process of a test, with a store of its own.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use mooncake_client::StoreOptions;
use mooncake_test_support::ChildProcess;
use mooncake_test_support::child_process::role;

use crate::cluster::{Cluster, MIB};

/// What a role's store is set up with, lending this much. None in a run of all tests: a role is none by itself.
pub fn options(segment: u64) -> Option<StoreOptions> {
    let mut options = StoreOptions::new("127.0.0.1", role()?);
    options.global_segment_size = segment;
    options.local_buffer_size = 32 * MIB;
    Some(options)
}

/// Starts the test that plays a role, and waits until it is ready. The process, and what it said then.
pub fn start(cluster: &Cluster, role: &str) -> (ChildProcess, String) {
    start_by(&[], cluster, role)
}

/// The same by another program, which takes a command line.
pub fn start_by(program: &[&str], cluster: &Cluster, role: &str) -> (ChildProcess, String) {
    let mut child = ChildProcess::start_by(program, role, &cluster.address());
    let greeting = child.hear();
    (child, greeting)
}
