use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

struct Item(u32, Link);
impl Linked for Item {
    fn link(&self) -> Link {
        self.1
    }
    fn link_mut(&mut self) -> &mut Link {
        &mut self.1
    }
}

#[test]
fn empty_chunks_are_given_back_and_numbers_are_reused() {
    let mut slab = Slab::new();
    let slots: Vec<u32> = (0..3 * CHUNK as u32).map(|i| slab.insert(Item(i, Link::default()))).collect();
    for slot in &slots {
        assert_eq!(slab.remove(*slot).0, *slot);
    }
    assert_eq!(slab.len(), 0);
    slab.check_invariants().unwrap();
    let kept = |slab: &Slab<Item>| slab.chunks.iter().map(|chunk| chunk.entries.capacity()).sum::<usize>();
    assert_eq!(kept(&slab), CHUNK, "one stays for what comes next");
    // It stays beside one that was full, too.
    let slots: Vec<u32> = (0..=CHUNK as u32).map(|i| slab.insert(Item(i, Link::default()))).collect();
    for slot in slots.iter().rev() {
        slab.remove(*slot);
        slab.check_invariants().unwrap();
    }
    assert_eq!(kept(&slab), CHUNK, "one, not two");
    // What came of the others is used first.
    assert_eq!(slab.spent.len(), 2);
    let again: Vec<u32> = (0..3 * CHUNK as u32).map(|i| slab.insert(Item(i, Link::default()))).collect();
    assert_eq!((slab.bound(), slab.spent.len()), (3 * CHUNK as u32, 0));
    assert_eq!(again.iter().collect::<std::collections::BTreeSet<_>>().len(), again.len());
    again.into_iter().for_each(|slot| _ = slab.remove(slot));
    slab.check_invariants().unwrap();
    assert_eq!([slab.give_back(), slab.give_back(), slab.give_back()], [true, true, false]);
}

#[test]
fn list_keeps_its_order() {
    let mut slab = Slab::new();
    let mut list = List::default();
    let slots: Vec<u32> = (0..5).map(|i| slab.insert(Item(i, Link::default()))).collect();
    for slot in &slots {
        list.push_back(&mut slab, *slot);
    }
    list.move_to_back(&mut slab, slots[1]);
    list.remove(&mut slab, slots[3]);
    list.push_front(&mut slab, slots[3]);
    list.remove(&mut slab, slots[4]);
    list.insert_after(&mut slab, Some(slots[2]), slots[4]);
    let mut seen = vec![];
    let mut at = list.head();
    while let Some(slot) = at {
        seen.push(slab[slot].0);
        at = list.next(&slab, slot);
    }
    assert_eq!(seen, [3, 0, 2, 4, 1]);
    assert_eq!(list.len(), 5);
    let backwards: Vec<u32> =
        std::iter::successors(list.tail(), |slot| list.prev(&slab, *slot)).map(|slot| slab[slot].0).collect();
    assert_eq!(backwards, [1, 4, 2, 0, 3]);
}

/// A key of a length, which says whose it is.
fn key(number: u32, len: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn keys_of_every_length_stay_what_they_are_whatever_comes_and_goes_beside_them(
        changes in proptest::collection::vec(
            (any::<u32>(), prop_oneof![4 => 1..200usize, 1 => 200..5_000usize, 1 => 60_000..=65_536usize], 0..10u8),
            1..400,
        ),
    ) {
        let mut slab = Slab::new();
        let mut model: BTreeMap<u32, (u32, usize)> = BTreeMap::new();
        for (nth, (dice, len, what)) in changes.into_iter().enumerate() {
            let number = nth as u32;
            if what < 6 || model.is_empty() {
                let slot = slab.insert_with(Item(number, Link::default()), &key(number, len));
                prop_assert_eq!(model.insert(slot, (number, len)), None, "a slot is one value's");
            } else {
                let slot = *model.keys().nth(dice as usize % model.len()).unwrap();
                prop_assert_eq!(slab.remove(slot).0, model.remove(&slot).unwrap().0);
            }
            slab.check_invariants().unwrap();
        }
        for (slot, (number, len)) in &model {
            prop_assert_eq!(&slab.bytes(*slot)[..*len], &key(*number, *len)[..]);
            prop_assert_eq!(slab[*slot].0, *number);
        }
        for slot in model.into_keys() {
            slab.remove(slot);
        }
        slab.check_invariants().unwrap();
        prop_assert!(slab.chunks.iter().all(|chunk| chunk.entries.capacity() + chunk.bytes.capacity() == 0));
    }
}

#[test]
fn a_key_of_any_length_leaves_little_of_its_room() {
    for len in 1..=65_536 {
        let spare = stride(len) as usize - len;
        assert!(spare < 8 || spare * 8 < len, "{spare} bytes beside a key of {len}");
        assert!(spare <= usize::from(u16::MAX));
    }
    assert_eq!((stride(0), stride(64)), (0, 64));
}

#[test]
fn no_insert_moves_what_is_there_and_a_chunk_takes_a_bounded_number_of_bytes() {
    for len in [1, 64, 100, 1_000, 65_536] {
        let (mut slab, mut places) = (Slab::new(), BTreeMap::new());
        for number in 0..2 * CHUNK as u32 {
            let slot = slab.insert_with(Item(number, Link::default()), &key(number, len));
            let chunk = &slab.chunks[(slot >> CHUNK_BITS) as usize];
            let place = (chunk.entries.as_ptr() as usize, chunk.bytes.as_ptr() as usize);
            assert_eq!(*places.entry(slot >> CHUNK_BITS).or_insert(place), place, "keys of {len}");
            let most = CHUNK_BYTES.max(CHUNK_MIN * stride(len) as usize);
            assert!(chunk.bytes.capacity() <= most && chunk.entries.capacity() <= CHUNK, "keys of {len}");
            if number > 300 && len > 1_000 {
                break;
            }
        }
    }
}
