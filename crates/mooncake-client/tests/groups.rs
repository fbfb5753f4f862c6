//! Objects of a group stay and leave together.

use std::time::Duration;

use mooncake_client::{ErrorKind, PutItem, PutOptions, Source, Store};

use crate::cluster::{Cluster, MIB, eventually, put, value};

fn put_grouped(store: &Store, keys: &[String], groups: Vec<String>) -> Vec<Option<ErrorKind>> {
    let values: Vec<Vec<u8>> = keys.iter().map(|key| value(key, 1 << 20)).collect();
    let sources: Vec<[Source<'_>; 1]> = values.iter().map(|value| [Source::new(value)]).collect();
    let items: Vec<PutItem<'_>> =
        keys.iter().zip(&sources).map(|(key, value)| PutItem { key: key.as_bytes(), value }).collect();
    let results = store.put_batch(&items, &PutOptions { groups, ..PutOptions::default() });
    results.into_iter().map(|result| result.err().map(|error| error.kind())).collect()
}

#[test]
fn pages_of_keys_and_values_leave_page_by_page() {
    let cluster = Cluster::start();
    let store = cluster.store(16 * MIB);
    eventually("the segment is populated", Duration::from_secs(5), || {
        let whole = put(&store, "whole", 15 << 20).is_ok();
        store.remove_all(true).unwrap();
        whole
    });
    // All keys first, then all values: by age alone, every page would lose its key.
    for kind in ["k", "v"] {
        let keys: Vec<String> = (0..7).map(|page| format!("page{page}/{kind}")).collect();
        let groups = (0..7).map(|page| format!("hicache:page{page}")).collect();
        assert_eq!(put_grouped(&store, &keys, groups), vec![None; 7]);
    }
    for n in 0..6 {
        put(&store, &format!("other{n}"), 1 << 20).unwrap();
    }
    let keys: Vec<String> = (0..14).map(|n| format!("page{}/{}", n / 2, ["k", "v"][n % 2])).collect();
    let there = store.exists(&keys).unwrap();
    let torn = there.chunks(2).filter(|page| page[0] != page[1]).count();
    assert!(torn <= 1 && there.iter().any(|there| !there), "{there:?}");
}

#[test]
fn groups_are_one_per_object_or_none() {
    let cluster = Cluster::start();
    let store = cluster.store(16 * MIB);
    let keys = ["a".to_owned(), "b".to_owned()];
    let wrong = vec![Some(ErrorKind::InvalidParams); 2];
    assert_eq!(put_grouped(&store, &keys, vec!["g".into()]), wrong);
    assert_eq!(put_grouped(&store, &keys, vec!["g".repeat(70_000), "h".repeat(70_000)]), wrong);
    assert_eq!(put_grouped(&store, &keys, vec!["g".into(), String::new()]), [None, None]);
    // A replacement stays where the value is.
    for (key, group, fails) in [("a", "g", false), ("a", "", false), ("a", "h", true), ("b", "h", true)] {
        let options = PutOptions { groups: vec![group.into()], ..PutOptions::default() };
        let outcome = store.upsert(key.as_bytes(), &[Source::new(b"bytes")], &options);
        assert_eq!(outcome.err().map(|error| error.kind()), fails.then_some(ErrorKind::InvalidParams), "{key} {group}");
    }
}
