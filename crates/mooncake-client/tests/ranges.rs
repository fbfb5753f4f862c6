//! A range is a part of its object, and of nothing that lies behind it.

use mooncake_client::{Destination, ErrorKind, GetRanges, ReadRange};

use crate::cluster::{Cluster, MIB, put, value};

#[test]
fn a_range_ends_with_its_object_at_the_latest() {
    const SIZE: usize = 1000;
    let cluster = Cluster::start();
    let owner = cluster.store(8 * MIB);
    put(&owner, "k", SIZE).unwrap();
    let bytes = value("k", SIZE);
    for store in [&owner, &cluster.store(0), &cluster.tcp_store(0)] {
        let read = |offset: u64, len: usize| {
            let mut into = vec![0; len];
            let ranges = vec![ReadRange { offset, destination: Destination::new(&mut into) }];
            let read = store.get_ranges(&mut [GetRanges { key: b"k", ranges }]).remove(0).remove(0);
            read.map(|count| (count, into)).map_err(|error| error.kind())
        };
        assert_eq!(read(996, 4), Ok((Some(4), bytes[996..].to_vec())));
        assert_eq!(read(0, SIZE), Ok((Some(1000), bytes.clone())));
        for (offset, len) in [(996, 5), (0, SIZE + 1), (1000, 1), (999, 2), (u64::MAX, 1), (u64::MAX, 2)] {
            assert_eq!(read(offset, len), Err(ErrorKind::InvalidParams), "{len} bytes from {offset} on");
        }
    }
}
