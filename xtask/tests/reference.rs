//! `cargo xtask reference`: pages and the C header are what the code makes of them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const C_LIBRARY: &str = "crates/mooncake-transfer-engine-c";

/// Asked for when it runs: a checkout that was moved keeps what cargo built in it.
fn root() -> PathBuf {
    let crate_folder = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where the crate is");
    Path::new(&crate_folder).parent().expect("the repository").to_owned()
}

fn reference(folder: &Path, args: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_reference");
    Command::new(program).args(args).current_dir(folder).output().unwrap()
}

/// A repository that has no more than what the pages are made of.
fn repository(source: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for made in ["docs", &format!("{C_LIBRARY}/include"), &format!("{C_LIBRARY}/src")] {
        std::fs::create_dir_all(folder.path().join(made)).unwrap();
    }
    std::fs::write(folder.path().join(C_LIBRARY).join("src/lib.rs"), source).unwrap();
    folder
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn pages_and_header_are_those_that_the_code_makes() {
    let checked = reference(&root(), &["--check"]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
}

#[test]
fn the_header_declares_what_the_library_exports_and_nothing_else() {
    let folder = root().join(C_LIBRARY);
    let source = std::fs::read_to_string(folder.join("src/lib.rs")).unwrap();
    let header = std::fs::read_to_string(folder.join("include/transfer_engine_c.h")).unwrap();
    assert_eq!(header.matches(");\n").count(), source.matches("#[unsafe(no_mangle)]").count());
}

#[test]
fn what_is_stale_is_told_and_written() {
    let folder = repository("/// A number.\npub const NUMBER: i32 = 7;\n");
    let checked = reference(folder.path(), &["--check"]);
    assert_eq!(checked.status.code(), Some(1));
    let header = format!("{C_LIBRARY}/include/transfer_engine_c.h");
    let stale = ["docs/settings.md", "docs/metrics.md", &header];
    let told: Vec<&str> = text(&checked.stderr).lines().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(told, stale);
    assert!(reference(folder.path(), &[]).status.success());
    assert!(reference(folder.path(), &["--check"]).status.success());
    let header = std::fs::read_to_string(folder.path().join(header)).unwrap();
    assert!(header.contains("/* A number. */\n#define NUMBER (7)\n"), "{header}");
}

#[test]
fn what_c_cannot_be_told_is_an_error_with_its_line() {
    for refused in ["pub type words_t = &'static str;", "pub unsafe extern \"C\" fn taken(one: [u8; 4]) {}"] {
        let folder = repository(&format!("pub const NUMBER: i32 = 7;\n{refused}\n"));
        let made = reference(folder.path(), &[]);
        assert_eq!(made.status.code(), Some(2));
        assert!(text(&made.stderr).contains(&format!("{C_LIBRARY}/src/lib.rs:2: ")), "{}", text(&made.stderr));
    }
}
