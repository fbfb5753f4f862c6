//! `cargo xtask layers` finds what is against the table, says where and what mends it, and nothing else.

use crate::repository::{Repository, assert_says};

const LAYERS: &[&str] = &["layers"];

const TWO: &str = "layers = [[\"low.rs\"], [\"high.rs\"]]";

const LIB: (&str, &str) = ("lib.rs", "mod high;\nmod low;\npub use high::High;\n");

#[test]
fn imports_of_lower_layers_are_clean() {
    let low = "pub struct Low;\n";
    let high = "use crate::low::Low;\npub struct High(Low);\n";
    Repository::of_a_crate(TWO, &[LIB, ("low.rs", low), ("high.rs", high)]).is_clean(LAYERS);
}

#[test]
fn an_upward_import_is_found_however_it_is_written() {
    let ways = [
        "use crate::high::High;\n",
        "\nuse super::high;\n",
        "use crate::{high::{High as Other}};\n",
        "fn f() -> crate::high::High { todo!() }\n",
        "fn f() { println!(\"{:?}\", crate::high::High) }\n",
        "fn f() { use super::high::*; }\n",
        // Handed on by the crate's head: it counts for the file that defines it.
        "use crate::High;\n",
        "macro_rules! made { () => { $crate::high::High } }\n",
        "#[serde(with = \"crate::high\")]\nstruct Low;\n",
        "struct Low { high: Vec<super::High> }\n",
    ];
    for low in ways {
        let repository = Repository::of_a_crate(TWO, &[LIB, ("low.rs", low), ("high.rs", "pub struct High;\n")]);
        let line = 1 + low.chars().take_while(|char| *char == '\n').count();
        let place = format!("crates/a/src/low.rs:{line}: ");
        assert_says(&repository.fault(LAYERS), &[&place, "imports high.rs, of layer 2, into layer 1", "further down"]);
    }
}

#[test]
fn tests_texts_and_visibility_import_nothing() {
    let low = "\
        //! [`crate::high::High`]\n\
        pub(in crate::high) struct Low;\n\
        #[cfg(test)]\nuse crate::high::High;\n\
        fn high() { let high = 1; drop(high) }\n\
        #[cfg(all(test, unix))]\nmod more { use crate::high::High; }\n\
        #[cfg(test)]\nmod tests;\n";
    let tests = ("low/tests.rs", "use crate::high::High;\n");
    Repository::of_a_crate(TWO, &[LIB, ("low.rs", low), ("high.rs", "pub struct High;\n"), tests]).is_clean(LAYERS);
}

#[test]
fn an_import_of_what_the_head_of_the_crate_defines_is_upward() {
    let lib = "mod low;\npub struct Head;\n";
    let repository =
        Repository::of_a_crate("layers = [[\"low.rs\"]]", &[("lib.rs", lib), ("low.rs", "use crate::Head;\n")]);
    assert_says(
        &repository.fault(LAYERS),
        &["crates/a/src/low.rs:1: `crate::Head` imports lib.rs", "above all layers"],
    );
}

#[test]
fn files_of_a_folder_may_be_in_a_circle() {
    let files = [
        ("lib.rs", "mod low;\nmod more;\n"),
        ("low.rs", "pub struct Low;\n"),
        ("more/mod.rs", "mod one;\nmod two;\npub use one::One;\n"),
        ("more/one.rs", "use super::two::Two;\nuse crate::low::Low;\npub struct One;\n"),
        ("more/two.rs", "use super::One;\npub struct Two;\n"),
    ];
    Repository::of_a_crate("layers = [[\"low.rs\"], [\"more/{one,two}.rs\"]]", &files).is_clean(LAYERS);
    Repository::of_a_crate("layers = \"open\"", &files).is_clean(LAYERS);
}

const CIRCLE: [(&str, &str); 4] = [
    ("lib.rs", "mod one;\nmod two;\nmod three;\n"),
    ("one.rs", "use crate::two::Two;\npub struct One;\n"),
    ("two.rs", "\nuse crate::three::Three;\npub struct Two;\n"),
    ("three.rs", "use crate::one::One;\npub struct Three;\n"),
];

#[test]
fn a_circle_across_folders_is_found_without_layers_too() {
    let repository = Repository::of_a_crate("layers = \"open\"", &CIRCLE);
    let circle = "one.rs -> two.rs (line 1) -> three.rs (line 2) -> one.rs (line 1)";
    let found = repository.fault(LAYERS);
    assert_says(&found, &["crates/a/src/one.rs:1: a circle of imports leaves a folder: ", circle, "break it"]);
}

#[test]
fn exceptions_are_kept_as_long_as_they_are_needed() {
    let section = "layers = \"open\"\nexceptions = [\n    \"three.rs -> one.rs\",\n]";
    let repository = Repository::of_a_crate(section, &CIRCLE);
    repository.is_clean(LAYERS);

    repository.write("crates/a/src/two.rs", "pub struct Two;\n");
    let stale = ["xtask/layers.toml:5: a: the exception \"three.rs -> one.rs\" is against no rule", "delete this line"];
    assert_says(&repository.fault(LAYERS), &stale);

    repository.write("crates/a/src/three.rs", "pub struct Three;\n");
    assert_says(&repository.fault(LAYERS), &["xtask/layers.toml:5: ", "there is no such import", "delete this line"]);

    let upward = Repository::of_a_crate(
        &format!("{TWO}\nexceptions = [\"low.rs -> high.rs\"]"),
        &[LIB, ("low.rs", "use crate::High;\n"), ("high.rs", "pub struct High;\n")],
    );
    upward.is_clean(LAYERS);
    upward.write(
        "xtask/layers.toml",
        "[crates.a]\nuses = []\nlayers = [[\"high.rs\"], [\"low.rs\"]]\nexceptions = [\"low.rs -> high.rs\"]\n",
    );
    assert_says(&upward.fault(LAYERS), &["is against no rule any more"]);
}

#[test]
fn every_file_has_one_layer_and_every_entry_its_file() {
    let files = [LIB, ("low.rs", ""), ("high.rs", "pub struct High;\n")];
    let without = Repository::of_a_crate("layers = [[\"low.rs\"]]", &files);
    let remedy = "cargo xtask layers --show a";
    assert_says(&without.fault(LAYERS), &["crates/a/src/high.rs: this file has no layer in xtask/layers.toml", remedy]);

    let gone = Repository::of_a_crate("layers = [\n    [\"low.rs\", \"gone.rs\"],\n    [\"high.rs\"],\n]", &files);
    assert_says(&gone.fault(LAYERS), &["xtask/layers.toml:4: ", "layer 1 names gone.rs", "correct the entry"]);

    let twice = Repository::of_a_crate("layers = [[\"low.rs\"], [\"{high,low}.rs\"]]", &files);
    assert_says(&twice.fault(LAYERS), &["low.rs is in layer 1 and in layer 2", "name it once"]);

    let orphan = Repository::of_a_crate(TWO, &files);
    orphan.write("crates/a/src/forgotten.rs", "");
    assert_says(&orphan.fault(LAYERS), &["crates/a/src/forgotten.rs: no `mod` line leads to this file", "declare it"]);
}

#[test]
fn crates_are_linked_with_what_the_table_says() {
    let repository = Repository::of_a_crate("layers = []", &[("lib.rs", "")]);
    repository
        .write("crates/b/Cargo.toml", "[package]\nname = \"b\"\n\n[dependencies]\na.workspace = true\nserde = \"1\"\n");
    repository.write("crates/b/src/lib.rs", "");
    assert_says(
        &repository.fault(LAYERS),
        &["crates/b/Cargo.toml: b has no section in xtask/layers.toml", "[crates.b]"],
    );

    let table = "[crates.a]\nuses = []\nlayers = []\n[crates.b]\nuses = []\nlayers = []\n";
    repository.write("xtask/layers.toml", table);
    assert_says(&repository.fault(LAYERS), &["crates/b/Cargo.toml:5: b depends on a", "do without it"]);

    repository.write(
        "xtask/layers.toml",
        &table.replacen(
            "uses = []\nlayers = []\n[crates.b]\nuses = []",
            "uses = [\"b\"]\nlayers = []\n[crates.b]\nuses = [\"a\"]",
            1,
        ),
    );
    assert_says(&repository.fault(LAYERS), &["xtask/layers.toml:2: a may use b, and does not", "delete \"b\""]);
}

#[test]
fn a_machine_names_no_socket_thread_lock_or_clock() {
    let table = "\
        [machines]\nnever = [\"Instant\", \"Mutex\", \"println!\", \"extern\"]\n\
        [machines.may]\nstd = [\"cell\", \"rc\", \"time\", \"sync::Arc\", \"sync::atomic\"]\n\
        crate = [\"error\"]\nb = [\"Plain\"]\n\
        [crates.a]\nuses = []\nlayers = [[\"machine\", \"error.rs\", \"store.rs\"]]\n";
    let repository = Repository::of_a_crate(
        "",
        &[("lib.rs", "mod error;\nmod machine;\nmod store;\n"), ("error.rs", ""), ("store.rs", "")],
    );
    repository.write("crates/a/Cargo.toml", "[package]\nname = \"a\"\n[dependencies]\nb = \"1\"\n");
    repository.write("xtask/layers.toml", table);
    repository.write("crates/a/src/machine/mod.rs", "mod inner;\n");

    let pure = [
        "use std::{cell::Cell, rc::Rc};",
        "use std::sync::{Arc, atomic::Ordering};",
        "use std::time::Duration; // no std::io",
        "use crate::machine::inner;",
        "use super::inner;",
        "use b::Plain;",
        "mod tests {\n    use super::super::inner;\n}",
    ];
    for text in pure {
        repository.write("crates/a/src/machine/inner.rs", text);
        repository.is_clean(LAYERS);
    }
    let impure = [
        "use std::{collections::BTreeMap, thread, net::TcpStream};",
        "use std::{\n    cell,\n    io,\n};",
        "fn f() { let name = std::env::var(\"X\"); }",
        "fn f() { ::std::process::exit(1) }",
        "fn f() { drop!(a: ::std::process::exit(1)) }",
        "use ::std::net;",
        "use std::sync::{Arc, mpsc};",
        "use std::sync::{Arc, Mutex};",
        "use std::time::{Duration, Instant};",
        "use std as s;",
        "use std::*;",
        "use core::net;",
        "use b::{Plain, Socket};",
        "fn f() { b::random_bytes() }",
        "use crate::store::Store;",
        "use crate::{error::Cause, store};",
        "use crate as all;",
        "use super::super::error;",
        "fn f() { println!(\"x\") }",
        "#[cfg(test)]\nmod tests {\n    use std::thread;\n}",
        "extern crate b as c;",
    ];
    for text in impure {
        repository.write("crates/a/src/machine/inner.rs", text);
        let (_, found) = repository.run(LAYERS);
        let of_machines: Vec<&String> = found.iter().filter(|fault| fault.contains("in a machine")).collect();
        assert!(!of_machines.is_empty(), "nothing is found in: {text}");
        assert_says(of_machines[0], &["crates/a/src/machine/inner.rs:", "belongs to its driver"]);
    }
}

#[test]
fn what_is_shown_of_a_crate_is_a_section_that_passes() {
    let repository = Repository::of_a_crate("layers = \"open\"", &CIRCLE);
    let (section, _) = repository.run(&["layers", "--show", "a"]);
    assert_says(&section, &["# circle of 3 files, 3 imports leave a folder: ", "[crates.a]", "exceptions = ["]);
    let layered = section.split("# or,").next().unwrap();
    repository.write("xtask/layers.toml", layered);
    repository.is_clean(LAYERS);

    let (imports, _) = repository.run(&["layers", "--show", "a", "two.rs"]);
    assert_says(&imports, &["three.rs    crate::three::Three, line 2", "one.rs    crate::two::Two, line 1"]);
}
