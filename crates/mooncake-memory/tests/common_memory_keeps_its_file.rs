//! Files of memory that peers would map are kept open as far as descriptors go; common memory always has its own. The
//! only test of its process: what is kept is counted per process.

use mooncake_memory::{CommonMemory, allocate_shared, free_host_memory, shared_block};

#[test]
fn common_memory_is_had_beyond_the_blocks_that_peers_can_map() {
    let is_mappable = |addr: &usize| shared_block(*addr, 1).is_some();
    let before = CommonMemory::make(5000).unwrap();
    let own: Vec<usize> = (0..300).map(|_| allocate_shared(1).unwrap()).collect();
    assert_eq!(own.iter().filter(|addr| is_mappable(addr)).count(), 256, "descriptors are few");
    let common = CommonMemory::make(5000).unwrap();
    let mapped = CommonMemory::map(common.file().unwrap(), 5000).unwrap();
    assert!(is_mappable(&mapped.addr()) && before.file().is_some());
    drop((before, common, mapped));
    for addr in own {
        // SAFETY: this test's.
        assert!(unsafe { free_host_memory(addr) });
    }
    let again: Vec<usize> = (0..300).map(|_| allocate_shared(1).unwrap()).collect();
    assert_eq!(again.iter().filter(|addr| is_mappable(addr)).count(), 256, "those that were freed are counted no more");
}
