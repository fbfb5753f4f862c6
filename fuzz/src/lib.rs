//! What the fuzzers call: decoders by their names. The lists themselves are in the crates, where the tests use them,
//! too.

use mooncake_test_support::FuzzTarget;

/// Those of all crates.
const ALL: [&[FuzzTarget]; 8] = [
    &mooncake_transfer_engine::fuzz_targets::FUZZ_TARGETS,
    &mooncake_http::fuzz_targets::FUZZ_TARGETS,
    &mooncake_master::fuzz_targets::FUZZ_TARGETS,
    &mooncake_settings::fuzz_targets::FUZZ_TARGETS,
    &mooncake_segment::fuzz_targets::FUZZ_TARGETS,
    &mooncake_client::fuzz_targets::FUZZ_TARGETS,
    &mooncake_tier::fuzz_targets::FUZZ_TARGETS,
    &mooncake_wire::fuzz_targets::FUZZ_TARGETS,
];

/// Gives bytes to one of them.
pub fn read(name: &str, bytes: &[u8]) {
    let decoder = ALL.into_iter().flatten().find(|decoder| decoder.name == name).expect("a decoder of that name");
    (decoder.read)(bytes);
}
