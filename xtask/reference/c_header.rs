//! The C header of what a Rust source offers C: its constants, types, `#[repr(C)]` structures and functions.
//!
//! By hand, since a general generator makes types of integers, where Mooncake's header has macros that sources ask for,
//! and names structures otherwise.

use std::fmt::Write;

use syn::{
    Attribute, Expr, ExprLit, Fields, FnArg, Ident, Item, ItemConst, ItemFn, ItemStruct, ItemType, Lit, Meta, Pat,
    PointerMutability, ReturnType, Type, Visibility,
};

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

/// The header of a source; an error with the line of what C cannot be told.
pub fn header(source: &str) -> Result<String, String> {
    let file = syn::parse_file(source).map_err(|error| format!("{}: {error}", error.span().start().line))?;
    let (mut out, mut has_functions) = (BEGIN.to_owned(), false);
    for item in &file.items {
        let (name, declared) = match item {
            Item::Const(one) if is_public(&one.vis) => (&one.ident, constant(one)),
            Item::Type(one) if is_public(&one.vis) => (&one.ident, alias(one)),
            Item::Struct(one) if is_public(&one.vis) && is_repr_c(&one.attrs) => (&one.ident, structure(one)),
            Item::Fn(one) if is_public(&one.vis) && one.sig.abi.is_some() => {
                if !std::mem::replace(&mut has_functions, true) {
                    out.push_str(SEGMENT_DESC);
                }
                (&one.sig.ident, function(one))
            }
            _ => continue,
        };
        out.push('\n');
        out.push_str(&declared.ok_or_else(|| untold(name))?);
    }
    Ok(out + END)
}

fn untold(name: &Ident) -> String {
    format!("{}: {name} is of a kind that xtask/reference/c_header.rs cannot tell C", name.span().start().line)
}

fn constant(one: &ItemConst) -> Option<String> {
    let value = match &*one.expr {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.to_string(),
        Expr::Path(path) if path.path.segments.iter().map(|part| part.ident.to_string()).eq(["u64", "MAX"]) => {
            "UINT64_MAX".to_owned()
        }
        _ => return None,
    };
    Some(format!("{}#define {} ({value})\n", comment("", &one.attrs), one.ident))
}

/// Mooncake's integers are macros, and sources may ask for them.
fn alias(one: &ItemType) -> Option<String> {
    let said = comment("", &one.attrs);
    Some(match &*one.ty {
        Type::Ptr(_) => format!("{said}typedef {};\n", declare(&one.ty, &one.ident.to_string())?),
        plain => format!("{said}#define {} {}\n", one.ident, name_of(plain)?),
    })
}

fn structure(one: &ItemStruct) -> Option<String> {
    let Fields::Named(fields) = &one.fields else { return None };
    let name = snake(&one.ident.to_string());
    let mut out = format!("{}struct {name} {{\n", comment("", &one.attrs));
    for field in &fields.named {
        let declared = declare(&field.ty, &field.ident.as_ref()?.to_string())?;
        let _ = writeln!(out, "{}    {declared};", comment("    ", &field.attrs));
    }
    let _ = writeln!(out, "}};\ntypedef struct {name} {name}_t;");
    Some(out)
}

fn function(one: &ItemFn) -> Option<String> {
    let name = one.sig.ident.to_string();
    let begin = match &one.sig.output {
        ReturnType::Default => format!("void {name}("),
        ReturnType::Type(_, gives) => declare(gives, &name)? + "(",
    };
    let mut out = begin.clone();
    let mut width = out.len();
    for (nth, argument) in one.sig.inputs.iter().enumerate() {
        let FnArg::Typed(argument) = argument else { return None };
        let Pat::Ident(name) = &*argument.pat else { return None };
        let argument = declare(&argument.ty, name.ident.to_string().trim_start_matches('_'))?;
        let between = if nth > 0 { ", " } else { "" };
        if width + between.len() + argument.len() > 116 {
            let _ = write!(out, ",\n{}{argument}", " ".repeat(begin.len()));
            width = begin.len() + argument.len();
        } else {
            let _ = write!(out, "{between}{argument}");
            width += between.len() + argument.len();
        }
    }
    Some(format!("{}{out});\n", comment("", &one.attrs)))
}

/// A name with its type, as C says it.
fn declare(meant: &Type, name: &str) -> Option<String> {
    if let Type::Array(array) = meant {
        let Expr::Lit(ExprLit { lit: Lit::Int(count), .. }) = &array.len else { return None };
        return Some(format!("{} {name}[{count}]", name_of(&array.elem)?));
    }
    let (mut inner, mut stars, mut constant) = (meant, String::new(), "");
    while let Type::Ptr(pointer) = inner {
        constant = if matches!(pointer.mutability, PointerMutability::Const(_)) { "const " } else { "" };
        (inner, stars) = (&pointer.elem, stars + "*");
    }
    Some(format!("{constant}{} {stars}{name}", name_of(inner)?))
}

/// The name of a type that is no pointer and no array.
fn name_of(meant: &Type) -> Option<String> {
    let Type::Path(path) = meant else { return None };
    let name = path.path.get_ident()?.to_string();
    let of_c = match name.as_str() {
        "c_void" => "void",
        "c_char" => "char",
        "c_int" => "int",
        "usize" => "size_t",
        "i32" => "int32_t",
        "u64" => "uint64_t",
        "f64" => "double",
        own if own.ends_with("_t") => own,
        structure if structure.starts_with(|first: char| first.is_ascii_uppercase()) => {
            return Some(format!("{}_t", snake(structure)));
        }
        _ => return None,
    };
    Some(of_c.to_owned())
}

/// Text before a declaration, without what Rust's callers have to keep.
fn comment(indent: &str, attributes: &[Attribute]) -> String {
    let text: Vec<String> = attributes.iter().filter_map(doc_line).collect();
    let said = text.split(|line| line == "# Safety").next().unwrap_or_default().join(" ").replace('`', "");
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

fn doc_line(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(said) = &attribute.meta else { return None };
    match &said.value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) if said.path.is_ident("doc") => {
            Some(text.value().trim().to_owned())
        }
        _ => None,
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn is_repr_c(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|one| {
        one.path().is_ident("repr") && one.parse_args::<Ident>().is_ok_and(|representation| representation == "C")
    })
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
