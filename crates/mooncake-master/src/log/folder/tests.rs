use tempfile::TempDir;

use super::super::Sink;
use super::super::step::watch;
use super::*;

const BOOT: [u8; 16] = [7; 16];

/// A state folder with three logs that were renamed away, and the names of those.
fn with_three_away() -> (TempDir, [&'static str; 3]) {
    let root = tempfile::tempdir().unwrap();
    let names = ["away-001700000000-000", "away-001700000000-001", "away-001800000000-000"];
    for name in names {
        let lost = root.path().join(name);
        std::fs::create_dir(&lost).unwrap();
        std::fs::write(lost.join("log-0000000000000001.wal"), b"lost").unwrap();
    }
    (root, names)
}

fn away(root: &Path) -> Vec<String> {
    let folder =
        Folder { root: root.to_owned(), name: CURRENT, lock: Locked { _file: Arc::new(File::open(root).unwrap()) } };
    folder.away().iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

/// A disk that is full as long as more than this many of those logs are on it.
fn full_above(root: &Path, kept: usize, kind: io::ErrorKind) {
    let root = root.to_owned();
    watch::with(move |_, _| if away(&root).len() > kept { Err(kind.into()) } else { Ok(()) });
}

fn start(root: &Path) -> Result<Sink, LogError> {
    Sink::open(Folder::open(root).unwrap(), 5, 0, BOOT, None)
}

#[test]
fn a_start_on_a_full_disk_removes_what_was_renamed_away_the_oldest_first() {
    for (kept, kind) in
        [(2, io::ErrorKind::StorageFull), (1, io::ErrorKind::QuotaExceeded), (0, io::ErrorKind::StorageFull)]
    {
        let (root, names) = with_three_away();
        let root = root.path();
        full_above(root, kept, kind);
        start(root).unwrap();
        assert_eq!(away(root), names[3 - kept..]);
    }
}

#[test]
fn what_fails_for_another_reason_removes_nothing() {
    let (root, names) = with_three_away();
    let root = root.path();
    full_above(root, 0, io::ErrorKind::FileTooLarge);
    let error = start(root).expect_err("it fails").to_string();
    assert!(!error.contains("make room"), "{error}");
    assert_eq!(away(root), names);
}

#[test]
fn where_nothing_is_left_to_remove_the_error_says_what_to_do() {
    let (root, _) = with_three_away();
    let root = root.path();
    watch::with(|_, _| Err(io::ErrorKind::StorageFull.into()));
    let error = start(root).expect_err("it fails").to_string();
    assert!(error.contains("make room on its disk"), "{error}");
    assert!(away(root).is_empty());
}

#[test]
fn what_a_person_has_put_there_stays() {
    let (root, _) = with_three_away();
    let root = root.path();
    for name in ["away-notes", "away-1-1", "away-001700000000-000.old"] {
        std::fs::create_dir(root.join(name)).unwrap();
    }
    watch::with(|_, _| Err(io::ErrorKind::StorageFull.into()));
    start(root).expect_err("it fails");
    let mut left: Vec<_> = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["away-001700000000-000.old", "away-1-1", "away-notes", "current", "lock"]);
}

#[test]
fn of_the_logs_that_were_renamed_away_the_newest_two_stay() {
    let (root, names) = with_three_away();
    let root = root.path();
    let folder = Folder::open(root).unwrap();
    assert_eq!(folder.rename_away().unwrap(), None, "there is no log");
    assert_eq!(away(root), names, "and nothing is removed for it");
    let theirs = [
        "away-001900000000-00x",
        "away-00190000000x-000",
        "away-001900000000-0000",
        "away-+01900000000-000",
        "away-1-1",
    ];
    for name in theirs {
        std::fs::create_dir_all(root.join(name)).unwrap();
    }
    for number in 0..3 {
        std::fs::create_dir(folder.current()).unwrap();
        std::fs::write(folder.current().join("what"), number.to_string()).unwrap();
        let target = folder.rename_away().unwrap().expect("it is renamed");
        assert!(!folder.current().exists() && target.starts_with(root));
        assert_eq!(std::fs::read(target.join("what")).unwrap(), number.to_string().as_bytes());
        // Those before it may be of the same second, or, as the clock was wrong, of a later one.
        let left = away(root);
        assert_eq!(left.len(), AWAY_KEPT);
        assert!(left.contains(&target.file_name().unwrap().to_str().unwrap().to_owned()));
    }
    assert!(theirs.iter().all(|name| root.join(name).exists()), "what a person has put there stays");
}

#[test]
fn a_log_that_is_renamed_away_is_so_after_a_power_loss() {
    let (root, _) = with_three_away();
    let root = root.path();
    let folder = Folder::open(root).unwrap();
    std::fs::create_dir(folder.current()).unwrap();
    let synced = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let seen = synced.clone();
    watch::with(move |step, path| {
        seen.borrow_mut().push((step, path.to_owned(), path.join("current").exists()));
        Ok(())
    });
    folder.rename_away().unwrap();
    watch::with(|_, _| Ok(()));
    assert_eq!(*synced.borrow(), [(Step::FolderSynced, root.to_owned(), false)]);
}

/// It is unlocked, but for other tests' children, which hold what was open until they are what they are to be.
fn opens(root: &Path) {
    let began = std::time::Instant::now();
    while let Err(error) = Folder::open(root) {
        assert!(began.elapsed() < std::time::Duration::from_secs(10), "{error}");
    }
}

#[test]
fn a_folder_that_cannot_be_made_or_locked_says_so() {
    let (root, _) = with_three_away();
    let root = root.path();
    let file = root.join("file");
    std::fs::write(&file, b"").unwrap();
    let error = Folder::open(&file.join("below")).unwrap_err();
    assert!(matches!(error, LogError::Folder { .. }), "{error}");
    std::fs::create_dir(root.join("lock")).unwrap();
    assert!(matches!(Folder::open(root).unwrap_err(), LogError::Folder { .. }));
    std::fs::remove_dir(root.join("lock")).unwrap();
    let folder = Folder::open(root).unwrap();
    let error = Folder::open(root).unwrap_err().to_string();
    assert!(error.contains(&format!("locked by another master (pid {})", std::process::id())), "{error}");
    std::fs::write(folder.current(), b"a file stands there").unwrap();
    assert!(folder.create_current().is_ok(), "whoever writes below it finds out");
    drop(folder);
    opens(root);
}
