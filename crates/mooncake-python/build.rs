//! Docstrings of the store's methods, out of the one place that has them: the stub that type checkers read.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::Path;

const STUB: &str = "../../python/mooncake/store/__init__.pyi";
const CLASS: &str = "class MooncakeDistributedStore:";

fn main() {
    println!("cargo::rerun-if-changed={STUB}");
    println!("cargo::rerun-if-changed=build.rs");
    let stub = fs::read_to_string(STUB).expect("the stub of mooncake.store is there");
    let docs = docs(&stub);
    assert!(!docs.is_empty(), "{STUB} has docstrings");
    let (mut arms, mut table) = (String::new(), String::new());
    for (name, doc) in &docs {
        writeln!(arms, "    ({name}) => {{ {doc:?} }};").unwrap();
        writeln!(table, "    ({name:?}, {doc:?}),").unwrap();
    }
    let made = format!(
        "/// The docstring of a method of the store.\nmacro_rules! doc {{\n{arms}}}\n\n\
         /// All of them, by the names of their methods.\npub const DOCS: &[(&str, &str)] = &[\n{table}];\n"
    );
    let folder = env::var_os("OUT_DIR").expect("cargo says where");
    fs::write(Path::new(&folder).join("docs.rs"), made).expect("it can be written there");
}

/// The names and the docstrings of the class and of each method that has one; of overloads the first that has.
fn docs(stub: &str) -> Vec<(String, String)> {
    let mut lines = stub.lines().skip_while(|line| *line != CLASS).skip(1);
    let mut docs: Vec<(String, String)> = Vec::new();
    let mut method = CLASS.split([' ', ':']).nth(1);
    while let Some(line) = lines.next().filter(|line| line.is_empty() || line.starts_with(' ')) {
        if let Some(signature) = line.strip_prefix("    def ") {
            method = signature.split('(').next();
        }
        let (Some(name), Some(begun)) = (method, line.trim_start().strip_prefix("\"\"\"")) else { continue };
        let mut text = begun.to_owned();
        while !text.ends_with("\"\"\"") {
            let next = lines.next().expect("a docstring ends").trim();
            text.push('\n');
            text.push_str(next);
        }
        text.truncate(text.len() - 3);
        method = None;
        if !docs.iter().any(|(known, _)| known == name) {
            docs.push((name.to_owned(), text.trim_end().to_owned()));
        }
    }
    docs
}
