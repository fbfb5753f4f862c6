//! `include/transfer_engine_c.h` declares what the library exports, and nothing else.

#[path = "../examples/header.rs"]
mod source;

#[test]
fn the_header_is_that_of_the_source() {
    let written = std::fs::read_to_string(source::place()).unwrap();
    let exported = include_str!("../src/lib.rs").matches("#[unsafe(no_mangle)]").count();
    assert_eq!(written.matches(");\n").count(), exported, "each function is declared");
    assert!(written == source::header(), "include/transfer_engine_c.h is stale: run `make reference`");
}
