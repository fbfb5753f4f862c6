//! What the fuzzers call: decoders by their names. The lists themselves are in the crates, where the tests use them,
//! too.

use mooncake_test_support::Decoder;

/// Those of all crates.
const ALL: [&[Decoder]; 6] = [
    &mooncake_transfer_engine::decoders::DECODERS,
    &mooncake_http::fuzz_targets::DECODERS,
    &mooncake_master::decoders::DECODERS,
    &mooncake_settings::fuzz_targets::DECODERS,
    &mooncake_segment::decoders::DECODERS,
    &mooncake_wire::decoders::DECODERS,
];

/// Gives bytes to one of them.
pub fn read(name: &str, bytes: &[u8]) {
    let decoder = ALL.into_iter().flatten().find(|decoder| decoder.name == name).expect("a decoder of that name");
    (decoder.read)(bytes);
}
