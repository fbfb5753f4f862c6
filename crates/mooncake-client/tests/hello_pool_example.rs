//! The example runs as it is printed.

use crate::cluster;

#[allow(dead_code, reason = "the example uses a part of it")]
#[path = "../examples/hello_pool.rs"]
mod example;

#[test]
fn the_example_runs() {
    let cluster = cluster::Cluster::start();
    example::hello_pool(&cluster.address()).unwrap();
}
