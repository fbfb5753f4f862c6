//! A log that lost its end brings objects back whose memory has others by now: no key is poisoned by that.

use std::time::Duration;

use mooncake_client::PutOutcome;

use crate::cluster::{Cluster, MIB, eventually, put, value};

const SIZE: usize = 200_000;

#[test]
fn a_key_that_an_older_log_brought_back_can_be_put_again_within_two_seconds() {
    let mut cluster = Cluster::start();
    let owner = cluster.store(16 * MIB);
    let reader = cluster.store(0);
    let old: Vec<String> = (0..40).map(|n| format!("old{n}")).collect();
    for key in &old {
        put(&owner, key, SIZE).unwrap();
    }
    cluster.stop_master();
    let copy = cluster.copy_log();
    cluster.start_master();
    eventually("the pool is there again", Duration::from_secs(5), || {
        reader.exists(&["old0"]).is_ok_and(|found| found[0])
    });
    // All of them leave, and others have their memory.
    for n in 0..160 {
        put(&owner, &format!("lost{n}"), SIZE).unwrap();
    }
    cluster.stop_master();
    cluster.put_log_back(&copy);
    cluster.start_master();
    eventually("the pool takes objects again", Duration::from_secs(10), || {
        put(&owner, "probe", 1000).is_ok_and(|put| matches!(put, PutOutcome::Stored { .. }))
    });

    let mut poisoned = 0;
    for key in &old {
        if !reader.exists(&[key]).unwrap()[0] || reader.get(key.as_bytes()).unwrap().is_some() {
            continue;
        }
        poisoned += 1;
        eventually(&format!("{key} is stored and read"), Duration::from_secs(2), || {
            put(&reader, key, SIZE).unwrap();
            reader.get(key.as_bytes()).unwrap() == Some(value(key, SIZE))
        });
    }
    assert!(poisoned > 20, "only {poisoned} keys came back without their bytes");
    assert!(cluster.metric("mooncake_bad_replicas_total") >= poisoned);
}

#[test]
fn a_segment_number_that_a_lost_log_gave_out_means_what_the_new_master_says() {
    const MOUNTS: usize = 1_030;
    let mut cluster = Cluster::start();
    let owner = cluster.store(4 * MIB);
    let client = cluster.store(0);
    // An epoch has 1,024 numbers for itself; beyond those the next one does not know which were given out.
    for _ in 0..MOUNTS {
        let (id, _) = owner.mount_memory(64 << 10).unwrap();
        owner.unmount_segment(id, Duration::ZERO).unwrap();
    }
    put(&client, "known", 1 << 10).unwrap();
    let copy = cluster.copy_log();
    let lost = cluster.store(4 * MIB);
    for number in 0..16 {
        put(&client, &format!("lost{number}"), 256 << 10).unwrap();
    }
    cluster.stop_master();
    cluster.put_log_back(&copy);
    cluster.start_master();
    eventually("all are back", Duration::from_secs(5), || cluster.metric("mooncake_segments_live") == 2);
    eventually("all are open", Duration::from_secs(5), || cluster.metric("mooncake_segments_closed") == 0);
    let other = cluster.store(0);
    for number in 0..16 {
        let key = format!("new{number}");
        put(&client, &key, 128 << 10).unwrap();
        assert_eq!(other.get(key.as_bytes()).unwrap(), Some(value(&key, 128 << 10)), "{key}");
        assert_eq!(client.get(key.as_bytes()).unwrap(), Some(value(&key, 128 << 10)), "{key}");
    }
    drop(lost);
}
