#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| mooncake_fuzz::read("kept_state", bytes));
