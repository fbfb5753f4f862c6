//! The example runs as it is printed.

mod cluster;
#[allow(dead_code)]
#[path = "../examples/hello_pool.rs"]
mod example;

#[test]
fn the_example_runs() {
    let cluster = cluster::Cluster::start();
    example::hello_pool(&cluster.address()).unwrap();
}
