//! What one module defines and which paths it names, in code and in the text of macros.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, ItemMod, Meta, TraitItem, UseTree};

/// A path that a module names.
#[derive(Debug, Clone)]
pub struct Mention {
    pub path: Vec<String>,
    pub line: usize,
    pub kind: Kind,
    /// Within `#[cfg(test)]`.
    pub is_test: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// In a type, an expression, a pattern or the text of a macro.
    Inline,
    /// `use path as name`, for the whole module or, `is_local`, for a block of it.
    Use { name: String, is_local: bool },
    /// `use path::*`.
    Glob,
}

/// What stands before a path that begins with `::`, at a crate's name.
pub const GLOBAL: &str = "";

/// Walks a module's items. Modules in it are kept for whoever reads their files.
pub struct Collector<'ast> {
    pub items: BTreeSet<String>,
    pub mentions: Vec<Mention>,
    /// Each with whether it is of tests.
    pub modules: Vec<(&'ast ItemMod, bool)>,
    known: BTreeSet<(Vec<String>, bool)>,
    is_test: bool,
    /// Blocks around what is looked at.
    depth: usize,
}

impl Collector<'_> {
    pub fn new(is_test: bool) -> Self {
        let (items, mentions, modules, known) = Default::default();
        Self { items, mentions, modules, known, is_test, depth: 0 }
    }

    /// Looks at something with attributes: it may be there in tests only.
    fn within(&mut self, attributes: &[Attribute], look: impl FnOnce(&mut Self)) {
        let before = self.is_test;
        self.is_test |= attributes.iter().any(is_for_tests);
        look(self);
        self.is_test = before;
    }

    fn define(&mut self, name: &syn::Ident) {
        if self.depth == 0 && !self.is_test {
            self.items.insert(name.to_string());
        }
    }

    fn mention(&mut self, path: Vec<String>, line: usize) {
        if self.known.insert((path.clone(), self.is_test)) {
            self.mentions.push(Mention { path, line, kind: Kind::Inline, is_test: self.is_test });
        }
    }

    fn import(&mut self, tree: &UseTree, before: &[String]) {
        let joined = |name: &syn::Ident| before.iter().cloned().chain([name.to_string()]).collect::<Vec<_>>();
        let (ident, renamed) = match tree {
            UseTree::Path(path) => return self.import(&path.tree, &joined(&path.ident)),
            UseTree::Group(group) => return group.items.iter().for_each(|tree| self.import(tree, before)),
            UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                let (path, is_test) = (before.to_vec(), self.is_test);
                return self.mentions.push(Mention { path, line, kind: Kind::Glob, is_test });
            }
            UseTree::Name(name) => (&name.ident, None),
            UseTree::Rename(rename) => (&rename.ident, Some(rename.rename.to_string())),
        };
        let path = if ident == "self" && !before.is_empty() { before.to_vec() } else { joined(ident) };
        let name = renamed.unwrap_or_else(|| path[path.len() - 1].clone());
        let (line, kind) = (ident.span().start().line, Kind::Use { name, is_local: self.depth > 0 });
        self.mentions.push(Mention { path, line, kind, is_test: self.is_test });
    }

    /// Paths in the text of a macro, of a definition or a call; in attributes only those that say where they begin.
    fn scan(&mut self, tokens: TokenStream, is_attribute: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.scan(group.stream(), is_attribute),
                TokenTree::Literal(literal) if is_attribute => {
                    let text = literal.to_string();
                    let path: Vec<String> = text.trim_matches('"').split("::").map(str::to_owned).collect();
                    if path.len() > 1 && matches!(path[0].as_str(), "crate" | "super" | "self") {
                        self.mention(path, literal.span().start().line);
                    }
                }
                TokenTree::Ident(first) => {
                    let mut path = vec![first.to_string()];
                    let before = Before::of(&tokens[..at]);
                    while let Some(TokenTree::Ident(next)) =
                        tokens.get(at + 3).filter(|_| is_path_separator(&tokens[at + 1..]))
                    {
                        path.push(next.to_string());
                        at += 3;
                    }
                    let is_call = matches!(tokens.get(at + 1), Some(TokenTree::Punct(p)) if p.as_char() == '!');
                    let is_rooted = matches!(path[0].as_str(), "crate" | "super" | "self");
                    if before != Before::Inner && (path.len() > 1 || is_call) && (is_rooted || !is_attribute) {
                        let global = (before == Before::Global).then(|| GLOBAL.to_owned());
                        self.mention(global.into_iter().chain(path).collect(), first.span().start().line);
                    }
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            at += 1;
        }
    }
}

impl<'ast> Visit<'ast> for Collector<'ast> {
    fn visit_item(&mut self, item: &'ast Item) {
        self.within(attributes(item), |this| {
            match item {
                Item::Use(item) => {
                    let global = item.leading_colon.as_ref().map(|_| GLOBAL.to_owned());
                    this.import(&item.tree, global.as_slice());
                }
                Item::Mod(item) => this.modules.push((item, this.is_test)),
                Item::Const(item) => this.define(&item.ident),
                Item::Enum(item) => this.define(&item.ident),
                Item::Fn(item) => this.define(&item.sig.ident),
                Item::Static(item) => this.define(&item.ident),
                Item::Struct(item) => this.define(&item.ident),
                Item::Trait(item) => this.define(&item.ident),
                Item::TraitAlias(item) => this.define(&item.ident),
                Item::Type(item) => this.define(&item.ident),
                Item::Union(item) => this.define(&item.ident),
                Item::Macro(item) => item.ident.iter().for_each(|name| this.define(name)),
                _ => {}
            }
            if !matches!(item, Item::Use(_) | Item::Mod(_)) {
                visit::visit_item(this, item);
            }
        });
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Const(item) => &item.attrs[..],
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            _ => &[],
        };
        self.within(attributes, |this| visit::visit_impl_item(this, item));
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        let attributes = match item {
            TraitItem::Fn(item) => &item.attrs[..],
            _ => &[],
        };
        self.within(attributes, |this| visit::visit_trait_item(this, item));
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        self.within(&local.attrs, |this| visit::visit_local(this, local));
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        self.within(&field.attrs, |this| visit::visit_field(this, field));
    }

    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        self.within(&field.attrs, |this| visit::visit_field_value(this, field));
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.within(&variant.attrs, |this| visit::visit_variant(this, variant));
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        self.within(&arm.attrs, |this| visit::visit_arm(this, arm));
    }

    fn visit_expr_block(&mut self, block: &'ast syn::ExprBlock) {
        self.within(&block.attrs, |this| visit::visit_expr_block(this, block));
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.depth += 1;
        visit::visit_block(self, block);
        self.depth -= 1;
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let global = path.leading_colon.as_ref().map(|_| GLOBAL.to_owned());
        let names = global.into_iter().chain(path.segments.iter().map(|segment| segment.ident.to_string())).collect();
        self.mention(names, path.segments[0].ident.span().start().line);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.scan(call.tokens.clone(), false);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        match &attribute.meta {
            Meta::List(list) => self.scan(list.tokens.clone(), true),
            Meta::Path(_) | Meta::NameValue(_) => {}
        }
    }

    /// `pub(in path)` says who may look, not what is looked at.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

/// What stands before a name in the text of a macro.
#[derive(Debug, PartialEq, Eq)]
enum Before {
    /// Nothing of a path.
    Nothing,
    /// `::`, with nothing before it: a crate's name follows.
    Global,
    /// `.`, or the `::` behind a type's parameters: no path begins here.
    Inner,
}

impl Before {
    fn of(tokens: &[TokenTree]) -> Self {
        let punct = |back: usize| match tokens.len().checked_sub(back).and_then(|at| tokens.get(at)) {
            Some(TokenTree::Punct(punct)) => punct.as_char(),
            _ => ' ',
        };
        match (punct(3), punct(2), punct(1)) {
            ('>', ':', ':') => Self::Inner,
            (_, ':', ':') => Self::Global,
            (_, before, '.') if before != '.' => Self::Inner,
            _ => Self::Nothing,
        }
    }
}

fn is_path_separator(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [TokenTree::Punct(a), TokenTree::Punct(b), ..] if a.as_char() == ':' && b.as_char() == ':')
}

/// `#[test]`, `#[cfg(test)]`, `#[cfg(all(test, ...))]`.
fn is_for_tests(attribute: &Attribute) -> bool {
    match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            syn::parse2::<Meta>(list.tokens.clone()).is_ok_and(|m| needs_test(&m))
        }
        _ => false,
    }
}

fn needs_test(condition: &Meta) -> bool {
    let Meta::List(list) = condition else { return condition.path().is_ident("test") };
    let parser = syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated;
    let Ok(inner) = syn::parse::Parser::parse2(parser, list.tokens.clone()) else { return false };
    match list.path.get_ident().map(ToString::to_string).as_deref() {
        Some("all") => inner.iter().any(needs_test),
        Some("any") => inner.iter().all(needs_test),
        _ => false,
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
