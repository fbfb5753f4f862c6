use mooncake_core::Keep;
use mooncake_mutant::{Mutant, is_noticed_by};
use mooncake_wire::message::{self, EpochTaken, FenceDone, Goodbye, PeerGone, Populated, Rechecked};

use super::super::testbed::{Client, End, HOST, MARK, MEMORY, Testbed};
use super::*;

fn uuid() -> bytes::Bytes {
    MEMORY.to_vec().into()
}

fn beat() -> anchor_up::Body {
    anchor_up::Body::Beat(Beat { number: 8, ..Beat::default() })
}

fn peer_gone() -> anchor_up::Body {
    anchor_up::Body::PeerGone(PeerGone { uuid: uuid(), process: None })
}

fn reader_gone(reader: Client, mark: u64) -> anchor_up::Body {
    anchor_up::Body::ReaderGone(ReaderGone { session: reader.session.0, uuid: uuid(), mark })
}

/// A client that has something to come back for: it lingers as away when its anchor ends.
fn reader(testbed: &mut Testbed, boot_id: &[u8]) -> Client {
    let reader = testbed.open_on(boot_id);
    let keys = Some(mooncake_wire::pack_keys(&[b"missing"]));
    testbed.call(reader, mooncake_wire::message::request::Body::Pin(mooncake_wire::message::Pin { keys }));
    reader
}

#[test]
fn a_beat_is_answered_by_its_number_with_where_the_log_stands_then() {
    let mut testbed = Testbed::new();
    let client = testbed.open();
    let position = Some(LogPosition { lsn: 51, ..LogPosition::default() });
    let pong = Pong { number: 8, position, unpin_sequence: 0 };
    assert_eq!(testbed.says(client, beat()), Ok(Some(anchor_down::Body::Pong(pong))));
}

#[test]
fn while_the_disk_is_slow_a_client_hears_that_its_master_is_there_and_nothing_is_confirmed() {
    let (mut pongs, position) = (Pongs::default(), LogPosition { lsn: 51, ..LogPosition::default() });
    let mut pong = |number, unpin_sequence, logged| {
        let beat = Heard::Beat { number, unpin_sequence, unpinned: Ok(()) };
        match pongs.reply(&beat, logged, position).and_then(|reply| reply.body) {
            Some(anchor_down::Body::Pong(pong)) => (pong.number, pong.unpin_sequence, pong.position),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(pong(1, 0, false), (0, 0, None), "what came before the first beat is told once more");
    assert_eq!(pong(2, 7, true), (2, 7, Some(position)));
    assert_eq!(pong(3, 8, false), (2, 0, None));
    assert_eq!(pong(4, 8, true), (4, 8, Some(position)));
    let gone = Heard::ReaderGone { reader: SessionId(1), uuid: SegmentUuid([3; 16]), judged: Judged::Proven };
    assert!(pongs.reply(&gone, false, position).is_none(), "its owner says it again");
    assert!(pongs.reply(&gone, true, position).is_some());
}

#[test]
fn its_answers_mutant_is_noticed() {
    assert!(is_noticed_by(
        Mutant::PongsConfirmUnlogged,
        while_the_disk_is_slow_a_client_hears_that_its_master_is_there_and_nothing_is_confirmed
    ));
}

#[test]
fn nothing_that_a_replaced_anchor_says_of_its_session_is_done() {
    let mut testbed = Testbed::new();
    let first = testbed.owner();
    testbed.core.raise_epoch(testbed.now, 2, &mut testbed.effects);
    let second = testbed.resume(first);
    let words = || {
        [
            beat(),
            anchor_up::Body::FenceDone(FenceDone { uuid: uuid(), rids: vec![2] }),
            anchor_up::Body::Rechecked(Rechecked { uuid: uuid(), rid: 2, good: false }),
            anchor_up::Body::EpochTaken(EpochTaken { epoch: 2, segments: vec![uuid()] }),
            anchor_up::Body::Goodbye(Goodbye {}),
        ]
    };
    for word in words() {
        let said = format!("{word:?}");
        assert_eq!(testbed.says(first, word), Err(End::Replaced), "{said}");
        assert_eq!((testbed.stats().segments_closed, testbed.stats().sessions), (1, 1), "{said}");
    }
    for word in words() {
        assert!(testbed.says(second, word).is_ok());
    }
    assert_eq!((testbed.stats().sessions, testbed.owner_of_memory()), (0, None), "the same counts on the other one");
}

#[test]
fn what_comes_late_on_an_anchor_that_ended_brings_no_session_back() {
    let mut testbed = Testbed::new();
    let client = testbed.owner();
    assert!(testbed.hangs_up(client));
    assert_eq!(testbed.says(client, beat()), Err(End::Replaced));
    assert_eq!(testbed.stats().sessions_away, 1);
}

#[test]
fn a_peers_proof_counts_at_once_behind_the_end_of_the_owners_anchor() {
    let mut testbed = Testbed::new();
    let (owner, peer) = (testbed.owner(), testbed.open());
    testbed.hangs_up(owner);
    assert!(testbed.knows(owner));
    assert_eq!(testbed.says(peer, peer_gone()), Ok(None));
    assert!(!testbed.knows(owner));
}

#[test]
fn a_peers_proof_that_comes_before_the_end_of_the_owners_anchor_counts_with_it() {
    let mut testbed = Testbed::new();
    let (owner, first) = (testbed.owner(), testbed.open());
    // Also of a peer whose own anchor was replaced since.
    testbed.resume(first);
    assert_eq!(testbed.says(first, peer_gone()), Ok(None));
    assert!(testbed.knows(owner), "no peer talks a living owner away");
    testbed.hangs_up(owner);
    assert!(!testbed.knows(owner));
}

#[test]
fn a_process_that_cannot_have_seen_an_owners_end_proves_nothing() {
    for boot_id in [&[8; 16][..], &[]] {
        let mut testbed = Testbed::new();
        let (owner, stranger) = (testbed.owner(), testbed.open_on(boot_id));
        testbed.says(stranger, peer_gone()).unwrap();
        testbed.says(owner, peer_gone()).unwrap();
        testbed.hangs_up(owner);
        testbed.says(stranger, peer_gone()).unwrap();
        assert!(testbed.knows(owner), "{boot_id:?}");
    }
}

fn is_gone(pid: u32) -> anchor_up::Body {
    let process = ProcessIdentity { boot_id: HOST.to_vec().into(), pid, ..ProcessIdentity::default() };
    anchor_up::Body::PeerGone(PeerGone { uuid: uuid(), process: Some(process) })
}

#[test]
fn what_a_peer_has_seen_of_another_process_says_nothing_of_the_owner() {
    let mut testbed = Testbed::new();
    let (owner, peer) = (testbed.owner(), testbed.open());
    testbed.hangs_up(owner);
    assert_eq!(testbed.says(peer, is_gone(7)), Ok(None));
    assert!(testbed.knows(owner));
    assert_eq!(testbed.says(peer, is_gone(0)), Ok(None));
    assert!(!testbed.knows(owner));
}

/// Of an older version, which does not say whose end it has seen.
#[test]
fn a_word_without_a_process_says_nothing_where_memory_may_have_had_another_owner() {
    let mut testbed = Testbed::new();
    let (owner, peer) = (testbed.owner(), testbed.open());
    let origin = Origin { session: owner.session, sequence: 90, answered_below: 90 };
    let keep = Keep { ms: 60_000, secret: [9; 16], turn: 0 };
    testbed.core.keep(testbed.now, origin, keep, &mut testbed.effects).unwrap();
    testbed.hangs_up(owner);
    testbed.says(peer, peer_gone()).unwrap();
    assert!(!testbed.core.is_bereft(owner.session));
    testbed.says(peer, is_gone(0)).unwrap();
    assert!(testbed.core.is_bereft(owner.session) && testbed.knows(owner), "it waits for an heir");
}

#[test]
fn an_owners_proof_of_a_readers_end_is_taken_once_it_counts() {
    let mut testbed = Testbed::new();
    let owner = testbed.owner();
    let reader = reader(&mut testbed, &HOST);
    let taken = ReaderGoneTaken { session: reader.session.0, uuid: uuid() };
    let taken = Ok(Some(anchor_down::Body::ReaderGoneTaken(taken)));
    assert_eq!(testbed.says(owner, reader_gone(reader, MARK)), Ok(None), "the reader's anchor is there");
    assert!(testbed.knows(reader));
    testbed.hangs_up(reader);
    assert!(!testbed.knows(reader), "it was kept for this moment");
    assert_eq!(testbed.says(owner, reader_gone(reader, MARK)), taken, "it need not be said again");
}

#[test]
fn a_reader_without_an_anchor_is_over_by_its_owners_proof_and_by_no_other() {
    for (boot_id, mark, by_owner) in
        [(HOST, MARK + 1, true), (HOST, 0, true), ([8; 16], MARK, true), (HOST, MARK, false)]
    {
        let mut testbed = Testbed::new();
        let (owner, other) = (testbed.owner(), testbed.open());
        let reader = reader(&mut testbed, &boot_id);
        testbed.hangs_up(reader);
        let by = if by_owner { owner } else { other };
        let said = testbed.says(by, reader_gone(reader, mark)).unwrap();
        assert!(matches!(said, Some(anchor_down::Body::ReaderGoneTaken(_))), "it is no proof, now or later");
        assert!(testbed.knows(reader), "{boot_id:?} {mark} {by_owner}");
        let own = testbed.says(owner, reader_gone(owner, MARK));
        assert!(own.is_ok() && testbed.knows(owner), "an owner says nothing of itself");
        testbed.hangs_up(owner);
        assert!(testbed.knows(owner), "now or later");
    }
    let mut testbed = Testbed::new();
    let owner = testbed.owner();
    let reader = reader(&mut testbed, &HOST);
    testbed.hangs_up(reader);
    assert!(testbed.says(owner, reader_gone(reader, MARK)).unwrap().is_some());
    assert!(!testbed.knows(reader));
}

#[test]
fn what_makes_no_sense_ends_the_connection_and_changes_nothing() {
    let short = || bytes::Bytes::from_static(&[1; 15]);
    let populated = vec![Populated { uuid: short(), ..Populated::default() }];
    let garbage = [
        anchor_up::Body::Beat(Beat { populated, ..Beat::default() }),
        anchor_up::Body::EpochTaken(EpochTaken { epoch: 65_536, segments: vec![uuid()] }),
        anchor_up::Body::EpochTaken(EpochTaken { epoch: 1, segments: vec![uuid(), short()] }),
        anchor_up::Body::PeerGone(PeerGone { uuid: short(), process: None }),
        anchor_up::Body::ReaderGone(ReaderGone { session: 1, uuid: short(), mark: MARK }),
        anchor_up::Body::TierStats(message::TierStats { tier: short(), ..Default::default() }),
        anchor_up::Body::TierStats(message::TierStats::default()),
    ];
    let mut testbed = Testbed::new();
    let client = testbed.owner();
    testbed.effects = Effects::default();
    for word in garbage {
        let said = format!("{word:?}");
        assert!(matches!(testbed.says(client, word), Err(End::Garbage(_))), "{said}");
    }
    assert!(testbed.effects.is_empty());
    assert!(Said::read(AnchorUp { body: None }).unwrap().is_none(), "a newer client's message is ignored");
}

#[test]
fn what_an_owner_says_of_its_disk_is_what_metrics_are_made_of() {
    use mooncake_core::{TierEngine, TierOperations};

    let mut testbed = Testbed::new();
    let client = testbed.owner();
    let tier = testbed.tier(client, 1 << 30);
    let told = |testbed: &Testbed| testbed.core.tiers().map(|tier| tier.stats.copied()).collect::<Vec<_>>();
    assert_eq!(told(&testbed), [None]);
    let operations = |count| Some(message::TierOperations { count, micros: count + 1, failed: count + 2 });
    let mut said = message::TierStats {
        tier,
        engine: message::tier_stats::Engine::IoUring as i32,
        used_bytes: 4,
        capacity_bytes: 9,
        reads: operations(10),
        syncs: operations(30),
        bad_records: u64::MAX,
        read_for_kept: 5,
        written_rest: 6,
        lacks_room: true,
        unknown_folders: 2,
        ..Default::default()
    };
    assert_eq!(testbed.says(client, anchor_up::Body::TierStats(said.clone())), Ok(None));
    let expected = TierStats {
        engine: TierEngine::Ring,
        used_bytes: 4,
        capacity_bytes: 9,
        reads: TierOperations { count: 10, micros: 11, failed: 12 },
        syncs: TierOperations { count: 30, micros: 31, failed: 32 },
        bad_records: u64::MAX,
        read_bytes: [0, 0, 5, 0, 0],
        written_bytes: [0, 0, 6],
        lacks_room: true,
        unknown_folders: 2,
        ..TierStats::default()
    };
    assert_eq!(told(&testbed), [Some(expected)]);
    // An engine of a later version.
    said.engine = 77;
    testbed.says(client, anchor_up::Body::TierStats(said)).unwrap();
    assert_eq!(told(&testbed), [Some(TierStats { engine: TierEngine::Unknown, ..expected })]);
    testbed.hangs_up(client);
    assert_eq!(told(&testbed), [None], "it is hidden");
}

#[test]
fn clients_that_do_not_say_on_which_host_they_are_are_on_none_together() {
    let mut testbed = Testbed::new();
    let (owner, peer) = (testbed.owner_on(&[]), testbed.open_on(&[]));
    let reader = reader(&mut testbed, &[]);
    testbed.hangs_up(reader);
    let said = testbed.says(owner, reader_gone(reader, MARK)).unwrap();
    assert!(said.is_some() && testbed.knows(reader), "it is no proof");
    testbed.hangs_up(owner);
    testbed.says(peer, peer_gone()).unwrap();
    assert!(testbed.knows(owner));
}

#[test]
fn their_mutants_are_noticed() {
    assert!(is_noticed_by(
        Mutant::PeerGoneNamesNoProcess,
        what_a_peer_has_seen_of_another_process_says_nothing_of_the_owner
    ));
    assert!(is_noticed_by(
        Mutant::LivingClientsAreReportedGone,
        a_peers_proof_that_comes_before_the_end_of_the_owners_anchor_counts_with_it
    ));
    assert!(is_noticed_by(
        Mutant::MarksAreNotCompared,
        a_reader_without_an_anchor_is_over_by_its_owners_proof_and_by_no_other
    ));
}
