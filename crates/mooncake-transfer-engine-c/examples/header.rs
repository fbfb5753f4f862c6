//! Writes `include/transfer_engine_c.h`, of what `src/lib.rs` offers C: `make reference`.

use std::fmt::Write;

/// Where it is. Asked for when it runs: a checkout that was moved keeps what cargo built in it.
pub fn place() -> std::path::PathBuf {
    let crate_folder = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where the crate is");
    std::path::Path::new(&crate_folder).join("include/transfer_engine_c.h")
}

const SOURCE: &str = include_str!("../src/lib.rs");

const BEGIN: &str = "/* The transfer engine for C: peers read and write each other's registered memory.
 *
 * Names, types and codes are those of Mooncake's header of this name. Every call may be made by any thread. Texts that
 * are given to a call may be freed when it returns. A failed call says why on stderr (MC_LOG_LEVEL).
 *
 * Made from the source by `make reference`.
 */
#ifndef TRANSFER_ENGINE_C_H
#define TRANSFER_ENGINE_C_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern \"C\" {
#endif
";

/// What no call takes or gives, for sources that name it.
const SEGMENT_DESC: &str = "
/* What a segment is made of. No call takes or gives one. */
struct segment_desc {
    int type;
    union {
        struct {
            void *addr;
            uint64_t size;
            const char *location;
        } rdma;
        struct {
            const char *file_path;
            const char *subsystem_name;
            const char *proto;
            const char *ip;
            uint64_t port;
        } nvmeof;
    } desc_;
};
typedef struct segment_desc segment_desc_t;
";

const END: &str = "
#ifdef __cplusplus
}
#endif

#endif
";

#[allow(dead_code)] // The test that looks whether it is fresh has no use for it.
fn main() {
    std::fs::write(place(), header()).expect("the header can be written");
}

/// The header, as the source wants it.
pub fn header() -> String {
    let mut out = BEGIN.to_owned();
    let (mut text, mut is_c, mut functions, mut lines) = (Vec::new(), false, false, SOURCE.lines());
    while let Some(line) = lines.next() {
        if let Some(said) = line.strip_prefix("///") {
            text.push(said.trim());
        } else if line.starts_with("#[") {
            is_c |= line == "#[repr(C)]";
        } else {
            let mut until = |is_last: fn(&str) -> bool| -> String {
                let (mut whole, mut line) = (line.to_owned(), line);
                while !is_last(line) {
                    line = lines.next().expect("rustfmt has been here");
                    whole.push('\n');
                    whole.push_str(line);
                }
                whole
            };
            let said = comment("", &text);
            if let Some(rest) = line.strip_prefix("pub const ") {
                let (name, value) = rest.trim_end_matches(';').split_once(": ").expect("a type");
                let value = value.split_once(" = ").expect("a value").1.replace("u64::MAX", "UINT64_MAX");
                let _ = writeln!(out, "\n{said}#define {name} ({value})");
            } else if let Some(rest) = line.strip_prefix("pub type ") {
                let (name, meant) = rest.trim_end_matches(';').split_once(" = ").expect("a type");
                // Mooncake's integers are macros, and sources may ask for them.
                let _ = match meant.starts_with('*') {
                    true => writeln!(out, "\n{said}typedef {};", declare(meant, name)),
                    false => writeln!(out, "\n{said}#define {name} {}", plain(meant)),
                };
            } else if is_c && let Some(name) = line.strip_prefix("pub struct ") {
                let (name, fields) = (snake(name.trim_end_matches(" {")), until(|line| line == "}"));
                let _ =
                    writeln!(out, "\n{said}struct {name} {{\n{}}};\ntypedef struct {name} {name}_t;", members(&fields));
            } else if line.starts_with("pub unsafe extern \"C\" fn ") {
                if !std::mem::replace(&mut functions, true) {
                    out.push_str(SEGMENT_DESC);
                }
                let _ = writeln!(out, "\n{said}{};", function(&until(|line| line.ends_with('{')).replace('\n', " ")));
            }
            (text, is_c) = (Vec::new(), false);
        }
    }
    out + END
}

/// Text before a declaration, without what Rust's callers have to keep.
fn comment(indent: &str, text: &[&str]) -> String {
    let said = text.split(|line| *line == "# Safety").next().unwrap_or_default().join(" ").replace('`', "");
    let mut lines = vec![String::new()];
    for word in said.split_whitespace() {
        let room = lines.last().is_some_and(|line| indent.len() + line.len() + word.len() < 110);
        if !room {
            lines.push(String::new());
        }
        let line = lines.last_mut().expect("one at least");
        line.push(' ');
        line.push_str(word);
    }
    if said.trim().is_empty() {
        String::new()
    } else {
        format!("{indent}/*{} */\n", lines.join(&format!("\n{indent} *")))
    }
}

fn members(fields: &str) -> String {
    let (mut out, mut text) = (String::new(), Vec::new());
    for line in fields.lines().skip(1).map(str::trim) {
        if let Some(said) = line.strip_prefix("///") {
            text.push(said.trim());
        } else if let Some((name, meant)) = line.trim_end_matches(',').split_once(": ") {
            let _ = writeln!(out, "{}    {};", comment("    ", &text), declare(meant, name));
            text.clear();
        }
    }
    out
}

fn function(signature: &str) -> String {
    let (name, rest) = signature.trim_start_matches("pub unsafe extern \"C\" fn ").split_once('(').expect("its name");
    let (arguments, gives) = rest.trim_end_matches([' ', '{']).rsplit_once(')').expect("its arguments");
    let arguments = arguments.split(',').map(str::trim).filter(|one| !one.is_empty());
    let arguments: Vec<String> = arguments
        .map(|one| one.split_once(": ").expect("a type"))
        .map(|(name, meant)| declare(meant, name.trim_start_matches('_')))
        .collect();
    let begin = declare(gives.trim().trim_start_matches("-> "), name) + "(";
    let mut out = begin.clone();
    let mut width = out.len();
    for (nth, one) in arguments.iter().enumerate() {
        let between = if nth > 0 { ", " } else { "" };
        if width + between.len() + one.len() > 116 {
            let _ = write!(out, ",\n{}{one}", " ".repeat(begin.len()));
            width = begin.len() + one.len();
        } else {
            let _ = write!(out, "{between}{one}");
            width += between.len() + one.len();
        }
    }
    out + ")"
}

/// A name with its type, as C says it.
fn declare(meant: &str, name: &str) -> String {
    if let Some((element, count)) = meant.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')?.split_once("; "))
    {
        return format!("{} {name}[{count}]", plain(element));
    }
    let (mut inner, mut stars, mut constant) = (meant, String::new(), "");
    while let Some((kind, pointee)) = inner.strip_prefix('*').and_then(|rest| rest.split_once(' ')) {
        constant = if kind == "const" { "const " } else { "" };
        (inner, stars) = (pointee, stars + "*");
    }
    format!("{constant}{} {stars}{name}", plain(inner))
}

fn plain(name: &str) -> String {
    match name {
        "" => "void",
        "c_void" => "void",
        "c_char" => "char",
        "c_int" => "int",
        "usize" => "size_t",
        "i32" => "int32_t",
        "u64" => "uint64_t",
        "f64" => "double",
        own if own.ends_with("_t") => own,
        structure => return format!("{}_t", snake(structure)),
    }
    .to_owned()
}

fn snake(name: &str) -> String {
    let mut out = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(letter.to_ascii_lowercase());
    }
    out
}
