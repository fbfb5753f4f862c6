//! What the fuzzers call: decoders by their names. The list itself is in the crates, where the tests use it, too.

use mooncake_engine::decoders::DECODERS;

/// Gives bytes to one of them.
pub fn read(name: &str, bytes: &[u8]) {
    let decoder = DECODERS.iter().find(|decoder| decoder.name == name).expect("a decoder of that name");
    (decoder.read)(bytes);
}
