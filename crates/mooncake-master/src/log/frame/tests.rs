use mooncake_ids::{Rid, SessionId};
use proptest::prelude::*;

use super::*;

fn frame(log_id: u64, lsn: u64, records: &[Record]) -> Vec<u8> {
    let mut out = Vec::new();
    let start = begin(&mut out);
    for record in records {
        put_record(record, &mut out);
    }
    finish(&mut out, start, log_id, lsn);
    out
}

fn sample(n: u64) -> Vec<Record> {
    vec![Record::SessionOver(SessionId(n)), Record::Dropped(Rid(n * 2)), Record::Epoch(7)]
}

#[test]
fn records_come_back_in_order() {
    let bytes = frame(5, 9, &sample(3));
    let Decoded::Frame { lsn, payload, size } = decode(&bytes, 5) else { panic!("does not decode") };
    assert_eq!((lsn, size), (9, bytes.len()));
    let back: Vec<Record> = records(payload).map(Result::unwrap).collect();
    assert_eq!(back, sample(3));
}

#[test]
fn another_log_or_another_place_does_not_check() {
    let mut bytes = frame(5, 9, &sample(3));
    assert_eq!(decode(&bytes, 6), Decoded::Bad);
    bytes[8] ^= 1;
    assert_eq!(decode(&bytes, 5), Decoded::Bad);
    assert_eq!(decode(&[0; 64], 5), Decoded::Bad);
}

#[test]
fn a_later_frame_is_found_behind_damage() {
    let mut bytes = frame(5, 9, &sample(3));
    bytes[20] ^= 0x40;
    bytes.extend(frame(5, 10, &sample(4)));
    assert_eq!(find_later(&bytes, 5, 10..=1000), Some(10));
    bytes.pop();
    assert_eq!(find_later(&bytes, 5, 10..=1000), None);
}

proptest! {
    #[test]
    fn random_bytes_never_panic_and_never_pass(bytes in proptest::collection::vec(any::<u8>(), 0..300), id: u64) {
        match decode(&bytes, id) {
            // 2^-32 of random inputs of the right length pass; proptest's fixed case count makes that a non-event.
            Decoded::Frame { .. } => prop_assert!(false, "random bytes decode as a frame"),
            Decoded::Short(size) => prop_assert!(size > bytes.len()),
            Decoded::Bad => {}
        }
        for record in records::<&[u8]>(&bytes) {
            if record.is_err() { break }
        }
    }

    #[test]
    fn any_flipped_bit_is_noticed(n in 1u64..1000, bit in 0usize..8, at: proptest::sample::Index) {
        let mut bytes = frame(1, n, &sample(n));
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let whole = bytes.len();
        match decode(&bytes, 1) {
            Decoded::Frame { .. } => prop_assert!(false, "damage at {at} passes"),
            Decoded::Short(size) => prop_assert!(size > whole),
            Decoded::Bad => {}
        }
    }
}

#[test]
fn a_frame_of_lsn_zero_or_beyond_the_largest_is_none() {
    assert_eq!(decode(&frame(5, 0, &sample(3)), 5), Decoded::Bad, "its sum is right");
    let announced = |length: usize| [(length as u32).to_le_bytes(), [0; 4], [9, 0, 0, 0], [0; 4]].concat();
    assert_eq!(decode(&announced(PAYLOAD_BYTES_MAX), 5), Decoded::Short(HEADER + PAYLOAD_BYTES_MAX));
    assert_eq!(decode(&announced(PAYLOAD_BYTES_MAX + 1), 5), Decoded::Bad);
}

#[test]
fn behind_a_record_that_does_not_decode_there_is_none() {
    let mut payload = Vec::new();
    put_record(&Record::Dropped(Rid(2)), &mut payload);
    payload.extend([0xff; 20]);
    let found: Vec<_> = records::<&[u8]>(&payload).take(5).collect();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].as_ref().is_ok_and(|record| *record == Record::Dropped(Rid(2))) && found[1].is_err());
}

#[test]
fn only_a_frame_of_this_log_and_of_what_is_looked_for_is_found_behind_damage() {
    let bytes =
        [&[0x5a; 7][..], &frame(6, 11, &sample(1)), &frame(5, 8, &sample(1)), &frame(5, 12, &sample(1))].concat();
    assert_eq!(find_later(&bytes, 5, 9..=1000), Some(12));
    assert_eq!(find_later(&bytes, 5, 13..=1000), None);
    assert_eq!(find_later(&bytes, 5, 9..=11), None, "11 is another log's");
    assert_eq!(find_later(&bytes[..HEADER - 1], 5, 0..=u64::MAX), None);
}
