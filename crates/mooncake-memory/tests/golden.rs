//! Shared memory is laid out as it was: the control memory of a segment, the two pages that processes have in common,
//! and the names under which all of it is seen in `/proc`. A page is told by those of its words that each step changes.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use mooncake_ids::{GRANULE, Rid, SegmentUuid};
use mooncake_memory::{
    AccessPage, AccessPageView, CommonMemory, RevisionPage, RevisionPageView, SegmentMemory, SegmentOptions, Source,
};
use mooncake_test_support::Golden;
use rustix::fs::{SealFlags, fcntl_get_seals};

/// A file in memory, as it was last looked at.
struct Seen<'a> {
    fd: BorrowedFd<'a>,
    bytes: Vec<u8>,
}

impl Seen<'_> {
    /// With its name, its size and its seals.
    fn new<'a>(golden: &mut Golden, name: &str, fd: BorrowedFd<'a>) -> Seen<'a> {
        let bytes = vec![0; rustix::fs::fstat(fd).unwrap().st_size as usize];
        golden.text(format!("{name}.name"), file_name(fd));
        golden.bytes(format!("{name}.size"), (bytes.len() as u64).to_le_bytes());
        // Those without which nobody maps it; some kernels set further ones.
        let needed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        golden.bytes(format!("{name}.seals"), [(fcntl_get_seals(fd).unwrap() & needed).bits() as u8]);
        Seen { fd, bytes }
    }

    /// The words that are other ones than they were: where, and what they are now. Neighbours of one value are told
    /// together.
    fn note(&mut self, golden: &mut Golden, name: &str) {
        let mut now = vec![0; self.bytes.len()];
        assert_eq!(rustix::io::pread(self.fd, &mut now, 0), Ok(now.len()));
        let word = |at: usize| (now[at..at + 8] != self.bytes[at..at + 8]).then(|| &now[at..at + 8]);
        let all: Vec<usize> = (0..now.len()).step_by(8).collect();
        for run in all.chunk_by(|one, other| word(*one) == word(*other)) {
            if let Some(value) = word(run[0]) {
                golden.bytes(format!("{name}@{}..{}", run[0], run[run.len() - 1] + 8), value);
            }
        }
        self.bytes = now;
    }
}

fn file_name(fd: BorrowedFd<'_>) -> String {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap().into_os_string().into_string().unwrap()
}

#[test]
fn the_control_memory_of_a_segment_is_laid_out_as_it_was() {
    let mut golden = Golden::default();
    let memory = SegmentMemory::create(8 * GRANULE, SegmentOptions::default()).unwrap();
    golden.text("data.name", file_name(memory.data_fd()));
    let mut control = Seen::new(&mut golden, "control", memory.control_fd());
    // The segment's random name is no part of the layout.
    control.note(&mut Golden::default(), "uuid");
    assert_eq!(control.bytes[24..40], memory.uuid().0);
    golden.bytes("header", &control.bytes[..24]);
    assert!(control.bytes[40..].iter().all(|byte| *byte == 0));

    let mapping = memory.mapping();
    mapping.write(Rid(0x0001_0000_0000_0002), GRANULE, &[Source::new(&[7; 1500])]).unwrap();
    control.note(&mut golden, "written");
    mapping.stamp_if_newest(Rid(0x0001_0000_0000_0004), 3 * GRANULE, 1).unwrap();
    control.note(&mut golden, "stamped");
    mapping.tombstone(Rid(0x0001_0000_0000_0004), 2 * GRANULE, 2 * GRANULE).unwrap();
    control.note(&mut golden, "tombstone");
    let buried = || {
        control.note(&mut golden, "buried");
        Vec::new()
    };
    mapping.give_back(buried).unwrap();
    control.note(&mut golden, "given_back");
    golden.text("uuid.text", SegmentUuid(std::array::from_fn(|at| at as u8)).to_string());
    golden.check("control_memory.txt");
}

#[test]
fn the_pages_that_processes_have_in_common_are_laid_out_as_they_were() {
    let mut golden = Golden::default();
    let board = RevisionPage::new().unwrap();
    let mut page = Seen::new(&mut golden, "board", board.fd());
    let view = RevisionPageView::map(&board.fd().try_clone_to_owned().unwrap()).unwrap();
    board.advance();
    page.note(&mut golden, "board.advanced");
    board.set_note(7);
    page.note(&mut golden, "board.note");

    let (access, fd) = AccessPage::new().unwrap();
    let mut page = Seen::new(&mut golden, "passage", fd.as_fd());
    let mut visitor = AccessPageView::map(&fd).unwrap();
    let visit = visitor.enter(&view, 1, 9).expect("nothing has changed");
    page.note(&mut golden, "passage.entered");
    drop(visit);
    page.note(&mut golden, "passage.left");
    let copying = access.copy().expect("it is wanted");
    page.note(&mut golden, "passage.copying");
    drop(copying);
    page.note(&mut golden, "passage.copied");
    visitor.withdraw();
    page.note(&mut golden, "passage.withdrawn");
    access.look();
    page.note(&mut golden, "passage.looked_at");
    assert!(visitor.ask([0x11, 0x12, 0x13].into_iter()));
    page.note(&mut golden, "passage.asked");
    assert!(visitor.fall_asleep());
    page.note(&mut golden, "passage.asleep");
    assert!(!access.answer(0x21), "the visitor sleeps");
    page.note(&mut golden, "passage.answered");
    access.close();
    page.note(&mut golden, "passage.closed");

    let common = CommonMemory::make(1).unwrap().file().unwrap();
    golden.text("common.name", file_name(common.as_fd()));
    golden.check("pages.txt");
}
