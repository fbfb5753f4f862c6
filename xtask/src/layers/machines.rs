//! Files of `machine` folders decide without I/O, clocks, locks and threads, so that what they decide runs in virtual
//! time too. Of other crates and of their own they name only what `xtask/layers.toml` lists; tests in them, too.

use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};

use super::imports::is_in_scope;
use super::manifest::Manifest;
use super::mentions::{GLOBAL, Kind, Mention};
use super::source::{Sources, is_of_machine};
use super::table::{Machines, PATH};
use crate::fault::Fault;

const REMEDY: &str = "a machine has no I/O, clock, lock or thread, and no driver: what is named belongs to its driver";

/// Looks at all machines of a crate.
pub fn check(
    root: &Path,
    crate_: &Manifest,
    sources: &Sources,
    machines: &Machines,
    faults: &mut Vec<Fault>,
) -> Result<(), String> {
    let place = |file: &str| format!("{}/src/{file}", crate_.folder);
    for file in sources.files.iter().filter(|file| is_of_machine(file)) {
        let path = root.join(place(file));
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let tokens: TokenStream = text.parse().map_err(|error| format!("{}: {error}", path.display()))?;
        words(tokens, &machines.never, &mut |word, line| {
            faults.push(Fault::new(place(file), line, format!("`{word}` in a machine"), REMEDY));
        });
    }
    let externals: Vec<String> = crate_.all.iter().map(|name| name.replace('-', "_")).collect();
    for (number, module) in sources.modules.iter().enumerate() {
        let file = &sources.files[module.file];
        if !is_of_machine(file) {
            continue;
        }
        for mention in &module.mentions {
            let Some(named) = outside(sources, number, mention, &externals) else { continue };
            let list = machines.may.get(&named[0]).map_or(&[][..], Vec::as_slice);
            let is_listed = |names: &[String]| list.iter().any(|entry| *entry == names.join("::"));
            let is_allowed = list.iter().any(|entry| entry == "*")
                || named.len() > 1 && is_listed(&named[1..2])
                || named.len() > 2 && is_listed(&named[1..3]);
            let is_left_by_super = named[0] == "crate" && mention.path[0] == "super";
            if !is_allowed || is_left_by_super {
                let star = if mention.kind == Kind::Glob { "::*" } else { "" };
                let what = format!("`{}{star}` in a machine, which {PATH} does not list", mention.path.join("::"));
                faults.push(Fault::new(place(file), mention.line, what, REMEDY));
            }
        }
    }
    Ok(())
}

/// The path, from a crate's name on, if it leads out of the machines.
fn outside(sources: &Sources, number: usize, mention: &Mention, externals: &[String]) -> Option<Vec<String>> {
    if let Some((first, named)) = mention.path.split_first()
        && first == GLOBAL
    {
        return Some(named.to_vec());
    }
    let first = mention.path.first()?;
    match first.as_str() {
        "std" | "core" | "alloc" if mention.path.len() > 1 || mention.kind != Kind::Inline => {
            (!is_in_scope(sources, number, first)).then(|| mention.path.clone())
        }
        "crate" => (!leads_inside(&mention.path[1..])).then(|| mention.path.clone()),
        "self" | "super" => {
            let mut here = number;
            for _ in mention.path.iter().filter(|name| *name == "super") {
                here = sources.modules[here].parent?;
            }
            let rest = mention.path.iter().skip_while(|name| matches!(name.as_str(), "self" | "super"));
            let whole: Vec<String> = sources.modules[here].path.iter().chain(rest).cloned().collect();
            let from_crate = || ["crate".to_owned()].into_iter().chain(whole.iter().cloned()).collect();
            (!leads_inside(&whole)).then(from_crate)
        }
        _ => {
            let is_path = mention.path.len() > 1 || mention.kind != Kind::Inline;
            let is_external = is_path && externals.contains(first) && !is_in_scope(sources, number, first);
            is_external.then(|| mention.path.clone())
        }
    }
}

/// Whether a path from the crate's root ends in or below a `machine` module.
fn leads_inside(path: &[String]) -> bool {
    path.iter().any(|name| name == "machine")
}

fn words(tokens: TokenStream, never: &[String], found: &mut dyn FnMut(&str, usize)) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Group(group) => words(group.stream(), never, found),
            TokenTree::Ident(ident) => {
                let is_call = matches!(tokens.peek(), Some(TokenTree::Punct(next)) if next.as_char() == '!');
                let (line, name) = (ident.span().start().line, ident.to_string());
                let call = format!("{name}!");
                for word in never.iter().filter(|word| **word == name || is_call && **word == call) {
                    found(word, line);
                }
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}
