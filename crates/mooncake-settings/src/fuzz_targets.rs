//! All that reads settings, as functions of bytes: for the fuzzers in `fuzz/` and for the test here. A file has a
//! mebibyte at most.

use mooncake_test_support::FuzzTarget;

use crate::environment::{log_level, parsed, switch};
use crate::{PROGRAMS, boolean, duration_ms, file, parse};

/// All of them.
pub const FUZZ_TARGETS: [FuzzTarget; 3] = [
    FuzzTarget { name: "settings_file", read: settings_file, seeds: file_seeds },
    FuzzTarget { name: "command_line", read: command_line, seeds: command_line_seeds },
    FuzzTarget { name: "setting", read: setting, seeds: setting_seeds },
];

/// Short ones: a file is its user's own, and the reader of YAML takes minutes for a mebibyte of brackets.
fn settings_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(&bytes[..bytes.len().min(1 << 12)]) else { return };
    for is_json in [true, false] {
        if let Ok(found) = file::parse(text, is_json) {
            assert!(found.keys().all(|name| name.len() <= text.len()));
        }
    }
}

fn file_seeds() -> Vec<Vec<u8>> {
    let bomb = "a: &a [x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a]\nc: [*b, *b, *b, *b, *b, *b]\n";
    let yaml = "rpc_port: 50051\nnested:\n  deeper: {a: 1.5e3, b: [1]}\ntext: |\n  lines\n  of it\n";
    let json = "{\"rpc_port\": 50051, \"nested\": {\"a\": null, \"b\": true}}";
    [bomb, yaml, json].map(|text| text.as_bytes().to_vec()).to_vec()
}

/// Words between spaces, to each program; files are not opened.
fn command_line(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if ["flagfile", "config", "path", "/"].iter().any(|name| text.contains(name)) {
        return;
    }
    for program in PROGRAMS {
        let _ = parse(program, text.split(' ').map(str::to_owned)).map(|line| format!("{line:?}"));
    }
}

fn command_line_seeds() -> Vec<Vec<u8>> {
    ["--rpc_port=50051 -v=1 --help", "--norpc_port --block_size 64KB --json extra", "--rpc-port=-1 --wal=off -- --x"]
        .map(|text| text.as_bytes().to_vec())
        .to_vec()
}

/// One value.
fn setting(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = (boolean(text), log_level(text));
    if let Some(ms) = duration_ms(text) {
        assert_eq!(duration_ms(&format!("{ms}ms")), Some(ms));
    }
    let variable = |_: &str| Some(text.to_owned());
    let _ = (switch("MC_SHM", &variable), parsed::<u64>("MC_TRANSFER_TIMEOUT", &variable));
}

fn setting_seeds() -> Vec<Vec<u8>> {
    ["1500", "2s", "18446744073709551615h", "TRUE", " warn "].map(|text| text.as_bytes().to_vec()).to_vec()
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_others_send_is_read_or_refused_and_never_a_panic() {
        mooncake_test_support::run(&super::FUZZ_TARGETS);
    }
}
