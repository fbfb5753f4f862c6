use super::*;

const SECOND: Epoch = Epoch { number: 2, id: 77 };

fn lsn_in(folder: &Path, log_id: u64) -> Option<u64> {
    Witness::find(folder, log_id).map(|known| known.seen.lsn)
}

#[test]
fn a_master_that_stands_still_holds_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut first = Witness::anew(folder, 9, None).unwrap();
    first.store_raised(41, SECOND).unwrap();
    let known = Witness::find(folder, 9).unwrap();
    assert!(known.seen.vouches_for(41, SECOND) && known.witness.is_none());
    let mut second = Witness::anew(folder, 9, Some(SECOND)).unwrap();
    second.store_raised(50, Epoch { number: 3, id: 78 }).unwrap();
    first.store(42).unwrap();
    assert_eq!(lsn_in(folder, 9), Some(50), "what the first one goes on to say is not about this log any more");
    drop((first, second));
    assert!(Witness::find(folder, 9).unwrap().witness.is_some());
}

#[test]
fn it_vouches_for_the_epoch_that_it_has_seen() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut witness = Witness::anew(folder, 8, None).unwrap();
    witness.store(41).unwrap();
    let former = Witness::find(folder, 8).unwrap().seen;
    assert!(former.vouches_for(41, SECOND), "an earlier version does not say which it was");
    witness.store_raised(50, SECOND).unwrap();
    witness.store(51).unwrap();
    let seen = Witness::find(folder, 8).unwrap().seen;
    assert_eq!(seen, Seen { lsn: 51, epoch: SECOND });
    assert!(seen.vouches_for(51, SECOND) && !seen.vouches_for(50, SECOND));
    for other in [Epoch { number: 1, id: 0 }, Epoch { id: 78, ..SECOND }, Epoch { number: 3, id: 9 }] {
        assert!(!seen.vouches_for(1000, other), "{other:?}");
    }
    let anew = Witness::anew(folder, 8, Some(seen.epoch)).unwrap();
    let seen = Witness::find(folder, 8).unwrap().seen;
    assert!(seen.epoch == SECOND && !seen.vouches_for(u64::MAX - 1, SECOND), "{seen:?}");
    anew.remove();
}

#[test]
fn it_knows_only_its_own_log() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let id = 0x5a;
    assert_eq!(lsn_in(folder, id), None);
    let mut witness = Witness::anew(folder, id, None).unwrap();
    assert_eq!(lsn_in(folder, id), None, "it has not seen anything yet");
    witness.store(41).unwrap();
    drop(witness);
    let mut again = Witness::find(folder, id).unwrap().witness.unwrap();
    again.store(42).unwrap();
    assert_eq!(lsn_in(folder, id), Some(42));
    assert_eq!(lsn_in(folder, id + 1), None);
    assert!(again.store(41).is_err(), "it does not go down");
    assert_eq!(lsn_in(folder, id), Some(42));
    again.store_raised(41, SECOND).unwrap();
    assert_eq!(lsn_in(folder, id), Some(41), "but under a higher epoch");
    again.file.write_all_at(b"X", 0).unwrap();
    assert_eq!(lsn_in(folder, id), None, "a damaged one says nothing");
    again.remove();
    assert_eq!(lsn_in(folder, id), None);
}

#[test]
fn a_file_of_another_user_vouches_for_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut witness = Witness::anew(folder, 6, None).unwrap();
    witness.store(41).unwrap();
    let path = Witness::path(folder, 6);
    let user = geteuid().as_raw();
    assert_eq!(Witness::existing(&path, 6, user).map(|(_, seen)| seen.lsn), Some(41));
    assert!(Witness::existing(&path, 6, user + 1).is_none());
    // Only root can make a file another user's.
    if std::os::unix::fs::chown(&path, Some(user + 1), None).is_ok() {
        assert_eq!(lsn_in(folder, 6), None);
        drop(Witness::anew(folder, 6, None).unwrap());
        assert_eq!(path.metadata().unwrap().uid(), user, "it is replaced where that is allowed");
    }
}

#[test]
fn what_stands_elsewhere_under_its_name_vouches_for_nothing_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let theirs = folder.join("theirs");
    type Plant<'a> = &'a dyn Fn(&Path);
    let plant: [(&str, Plant<'_>); 4] = [
        ("symlink", &|at| std::os::unix::fs::symlink(&theirs, at).unwrap()),
        ("hard link", &|at| std::fs::hard_link(&theirs, at).unwrap()),
        ("pipe", &|at| rustix::fs::mkfifoat(rustix::fs::CWD, at, rustix::fs::Mode::RWXU).unwrap()),
        ("folder", &|at| std::fs::create_dir(at).unwrap()),
    ];
    for (what, plant) in plant {
        let mut said = MAGIC.to_vec();
        said.extend(5u64.to_le_bytes());
        said.extend([0; 8]);
        std::fs::write(&theirs, &said).unwrap();
        plant(&Witness::path(folder, 5));
        assert_eq!(lsn_in(folder, 5), None, "{what}");
        let mut witness = Witness::anew(folder, 5, None).unwrap();
        assert_eq!(lsn_in(folder, 5), None, "{what}");
        witness.store(41).unwrap();
        assert_eq!(lsn_in(folder, 5), Some(41), "{what}");
        assert_eq!(std::fs::read(&theirs).unwrap(), said, "{what}");
        witness.remove();
    }
}

#[test]
fn a_folder_with_contents_under_its_name_stays_and_the_error_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let path = Witness::path(folder, 7);
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("theirs"), b"kept").unwrap();
    for _ in 0..2 {
        let error = Witness::anew(folder, 7, None).expect_err("it stands in the way").to_string();
        assert!(error.contains(&format!("rm -r {}", path.display())), "{error}");
        assert_eq!(std::fs::read(path.join("theirs")).unwrap(), b"kept");
        assert_eq!(lsn_in(folder, 7), None);
    }
}

#[test]
fn under_the_name_of_another_log_it_says_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut witness = Witness::anew(folder, 3, None).unwrap();
    witness.store(41).unwrap();
    std::fs::rename(Witness::path(folder, 3), Witness::path(folder, 4)).unwrap();
    assert_eq!((lsn_in(folder, 3), lsn_in(folder, 4)), (None, None));
}

#[test]
fn it_goes_on_from_where_it_was_raised_and_stays_where_it_is_told_to_twice() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut witness = Witness::anew(folder, 3, None).unwrap();
    witness.store(41).unwrap();
    witness.store(41).unwrap();
    witness.store_raised(30, SECOND).unwrap();
    assert!(witness.store(29).is_err());
    for lsn in [30, 31, 40] {
        witness.store(lsn).unwrap();
        assert_eq!(Witness::find(folder, 3).unwrap().seen, Seen { lsn, epoch: SECOND });
    }
    drop(witness);
    let mut found = Witness::find(folder, 3).unwrap().witness.unwrap();
    assert!(found.store(39).is_err(), "also the one who finds it");
    found.store(41).unwrap();
    Witness::remove_of(folder, 4);
    assert_eq!(lsn_in(folder, 3), Some(41));
    Witness::remove_of(folder, 3);
    assert!(Witness::find(folder, 3).is_none());
}
