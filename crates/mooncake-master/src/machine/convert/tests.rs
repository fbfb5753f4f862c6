use super::*;

const SOFT_PIN: SoftPinTtl = SoftPinTtl { default_ms: 1_000, max_ms: 10_000 };

fn config(said: message::PutConfig) -> Result<PutConfig, Bad> {
    put_config(Some(said), Vec::new(), SOFT_PIN)
}

#[test]
fn a_put_says_how_long_its_object_stays_and_only_what_it_says_is_changed() {
    let said = |hard_pin, soft_pin_ttl_ms, soft_pin_clear| {
        let said = message::PutConfig { hard_pin, soft_pin_ttl_ms, soft_pin_clear, ..Default::default() };
        config(said).map(|config| config.pin)
    };
    assert_eq!(said(false, 0, false), Ok(PinKind::None), "a pin that is there stays");
    assert_eq!(said(false, 0, true), Ok(PinKind::Cleared));
    assert_eq!(said(false, SoftPinTtl::DEFAULT, false), Ok(PinKind::Soft { ttl_ms: 1_000 }));
    assert_eq!(said(false, 10_000, false), Ok(PinKind::Soft { ttl_ms: 10_000 }));
    let long = said(false, 10_001, false).unwrap_err();
    assert!(long.contains("10001 ms") && long.contains("--max_kv_soft_pin_ttl allows 10000 ms"), "{long}");
    for (ttl_ms, clear) in [(0, false), (0, true), (5, false), (10_001, false)] {
        assert_eq!(said(true, ttl_ms, clear), Ok(PinKind::Hard));
    }
}

#[test]
fn a_put_asks_for_one_replica_to_as_many_as_there_may_be() {
    let replicas =
        |replica_num| config(message::PutConfig { replica_num, ..Default::default() }).map(|config| config.replica_num);
    assert_eq!((replicas(0), replicas(1), replicas(2)), (Ok(1), Ok(1), Ok(2)));
    assert_eq!(replicas(REPLICAS_MAX), Ok(REPLICAS_MAX));
    let many = replicas(REPLICAS_MAX + 1).unwrap_err();
    assert!(many.contains("65 replicas") && many.contains("limit is 64"), "{many}");
    assert_eq!(put_config(None, Vec::new(), SOFT_PIN).unwrap().first_rid, None);
    let first_rid = |first_rid| config(message::PutConfig { first_rid, ..Default::default() }).unwrap().first_rid;
    assert_eq!((first_rid(0), first_rid(4)), (None, Some(Rid(4))));
}

#[test]
fn a_segment_has_a_name_an_endpoint_and_a_uuid_of_bounded_length() {
    let said = |name: usize, endpoint: usize, uuid: usize| {
        // Tag and length of its only field take three bytes.
        let unix_socket = "e".repeat(endpoint.saturating_sub(3));
        segment_spec(Some(message::Segment {
            uuid: vec![3; uuid].into(),
            name: "n".repeat(name),
            bytes: 77,
            endpoint: Some(message::Endpoint { unix_socket, ..Default::default() }),
            ..Default::default()
        }))
    };
    for (name, endpoint) in [(1, 1_000), (NAME_MAX, ENDPOINT_MAX)] {
        let spec = said(name, endpoint, 16).unwrap();
        assert_eq!((spec.name.len(), spec.endpoint.len(), spec.bytes), (name, endpoint, 77));
        assert_eq!(spec.uuid, SegmentUuid([3; 16]));
    }
    for (name, endpoint, uuid, why) in [
        (0, 1_000, 16, "not 0"),
        (NAME_MAX + 1, 1_000, 16, "1 to 1024 bytes, not 1025"),
        (1, ENDPOINT_MAX + 1, 16, "8193 bytes, the limit is 8192"),
        (1, 1_000, 15, "16 bytes, not 15"),
        (1, 1_000, 17, "16 bytes, not 17"),
    ] {
        let refused = said(name, endpoint, uuid).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
    assert!(segment_spec(None).is_err());
    assert!(segment_spec(Some(message::Segment { endpoint: None, ..Default::default() })).is_err());
    assert_eq!((epoch(65_535), epoch(65_536).is_err()), (Ok(65_535), true));
}
