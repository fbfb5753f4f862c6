//! Decoders of what others send, as functions of bytes: each crate that has some lists them in its `fuzz_targets.rs`,
//! for the fuzzers in `fuzz/` and for a test of its own, which calls [`run`].

use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::mutations::Mutator;

/// Mutations of what a decoder is meant for, in each test.
const MUTATIONS: usize = 20_000;

/// Most memory that a decoder may ask for beyond what the test has: of a few kilobytes that come in, a multiple at
/// most, and never what they announce.
const MEMORY: u64 = 64 << 20;

/// One decoder.
#[derive(Debug, Clone, Copy)]
pub struct FuzzTarget {
    /// As `fuzz/fuzz_targets` has it.
    pub name: &'static str,
    /// Reads what may be anything. It may not panic.
    pub read: fn(&[u8]),
    /// What it is meant for.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Gives each decoder what it is meant for, mutations of that, and what is nested deeply: none may panic, or ask for
/// much memory. Panics with the decoder's name and the bytes otherwise, and if it has no fuzz target.
pub fn run(decoders: &[FuzzTarget]) {
    // Asked for when it runs: a checkout that was moved keeps what cargo built in it.
    let crate_folder = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where the crate is");
    let targets = Path::new(&crate_folder).join("../../fuzz/fuzz_targets");
    // Not the address space: each thread that starts beside this test reserves as much of that as all of a decoder may
    // have.
    let before = getrlimit(Resource::Data);
    setrlimit(Resource::Data, Rlimit { current: Some(memory() + MEMORY), ..before }).expect("less than before");
    for decoder in decoders {
        assert!(targets.join(decoder.name).with_extension("rs").exists(), "{} has no fuzz target", decoder.name);
        let (seeds, mut mutator) = ((decoder.seeds)(), Mutator::default());
        let read = |bytes: &[u8]| {
            let ended = std::panic::catch_unwind(|| (decoder.read)(bytes));
            assert!(ended.is_ok(), "{}: {:?}", decoder.name, &bytes[..bytes.len().min(1 << 12)]);
        };
        seeds.iter().for_each(|seed| read(seed));
        for _ in 0..MUTATIONS {
            read(&mutator.bytes(&seeds));
        }
        // Nothing is read by a recursion without end.
        read(&b"[".repeat(1 << 20));
        read(&b"{\"a\":".repeat(1 << 18));
    }
    setrlimit(Resource::Data, before).expect("as it was");
}

/// Bytes of memory that this process can write and shares with nobody, whether it has touched them or not.
fn memory() -> u64 {
    let said = std::fs::read_to_string("/proc/self/status").expect("Linux says so");
    let kib =
        said.lines().find_map(|line| line.strip_prefix("VmData:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.expect("a number of kilobytes") << 10
}
