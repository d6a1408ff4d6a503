//! What a source file says, read from its syntax: the modules in it, what it imports, gives on and names. Tests are left out.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// A path of modules, from the crate's root.
pub(super) type Path = Vec<String>;

/// One name of a `use`.
pub(super) struct Import {
    /// The module that it stands in.
    pub(super) at: Path,
    /// As it is written.
    pub(super) path: Path,
    /// What it is called there; `*` for all that there is.
    pub(super) name: String,
    /// Whether others get it by this file.
    pub(super) is_given_on: bool,
}

/// What one file says.
#[derive(Default)]
pub(super) struct Source {
    /// Modules that are written in it, its own not among them.
    pub(super) inline: Vec<Path>,
    pub(super) imports: Vec<Import>,
    /// Paths in its code, each with the module that it stands in.
    pub(super) paths: Vec<(Path, Path)>,
    /// What it defines.
    pub(super) defined: BTreeSet<String>,
    at: Path,
}

/// Whether only a test's build has what these stand before.
pub(super) fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        let is_cfg = || {
            let syn::Meta::List(list) = &attribute.meta else { return false };
            let words: Vec<String> =
                list.tokens.clone().into_iter().map(|t| t.to_string()).collect();
            words.first().is_some_and(|word| word == "test")
        };
        path.segments.last().is_some_and(|last| last.ident == "test")
            || (path.is_ident("cfg") && is_cfg())
    })
}

/// A file without the modules of tests that are written in it. `mod tests;` is a line among others: what follows it stays.
pub(crate) fn product(text: &str) -> String {
    const MARK: &str = "#[cfg(test)]\nmod ";
    let mut kept = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(MARK) {
        let (before, module) = rest.split_at(at);
        kept.push_str(before);
        let begins = module.lines().nth(1).is_some_and(|line| line.ends_with('{'));
        let end = match begins && (before.is_empty() || before.ends_with('\n')) {
            true => module.find("\n}\n").map_or(module.len(), |end| end + 3),
            false => {
                kept.push_str(MARK);
                MARK.len()
            }
        };
        rest = module.get(end..).unwrap_or_default();
    }
    kept + rest
}

#[test]
fn modules_of_tests_are_no_part_of_the_product_and_what_follows_them_is() {
    let text = "a\n#[cfg(test)]\nmod tests {\n    fn t() {\n    }\n}\nb\n#[cfg(test)]\nmod fuzz;\nc\n#[cfg(test)]\nfn d() {}\n";
    let kept = "a\nb\n#[cfg(test)]\nmod fuzz;\nc\n#[cfg(test)]\nfn d() {}\n";
    assert_eq!(product(text), kept);
    assert_eq!(product("#[cfg(test)]\nmod tests {\n}"), "");
    assert_eq!(product("a"), "a");
}

fn attributes_of(item: &syn::Item) -> &[syn::Attribute] {
    use syn::Item;
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &syn::Item) -> Option<String> {
    use syn::Item;
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

impl Source {
    /// Reads a file that is the module `at`.
    pub(super) fn read(text: &str, at: Path) -> Self {
        let file = syn::parse_file(text).unwrap();
        let mut source = Self { at, ..Self::default() };
        source.visit_file(&file);
        source
    }

    fn tree(&mut self, tree: &syn::UseTree, before: &[String], is_given_on: bool) {
        let (last, name) = match tree {
            syn::UseTree::Path(path) => {
                let before = [before, &[path.ident.to_string()]].concat();
                return self.tree(&path.tree, &before, is_given_on);
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.tree(tree, before, is_given_on));
                return;
            }
            syn::UseTree::Name(name) => (name.ident.to_string(), name.ident.to_string()),
            syn::UseTree::Rename(name) => (name.ident.to_string(), name.rename.to_string()),
            syn::UseTree::Glob(_) => (String::new(), "*".to_owned()),
        };
        let is_itself = last == "self" || last.is_empty();
        let path = if is_itself {
            before.to_vec()
        } else {
            [before, std::slice::from_ref(&last)].concat()
        };
        let name = if last == "self" && name == "self" {
            path.last().cloned().unwrap_or_default()
        } else {
            name
        };
        self.imports.push(Import { at: self.at.clone(), path, name, is_given_on });
    }

    /// Paths in what a macro is given, which has no syntax of its own.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Path = Vec::new();
        let mut colons = 0;
        let mut end = |path: &mut Path| {
            let path = std::mem::take(path);
            // The word alone stands in `pub(crate)`.
            let is_word = path.len() == 1 && ["crate", "self", "super"].contains(&path[0].as_str());
            if !path.is_empty() && !is_word {
                self.paths.push((self.at.clone(), path));
            }
        };
        let mut groups = Vec::new();
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        end(&mut path);
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark)
                    if mark.as_char() == ':' && !path.is_empty() && colons < 2 =>
                {
                    colons += 1
                }
                other => {
                    end(&mut path);
                    colons = 0;
                    match other {
                        TokenTree::Group(group) => groups.push(group.stream()),
                        // serde's `with = "crate::x"`
                        TokenTree::Literal(text) => {
                            let text = text.to_string();
                            let said = text.trim_matches('"');
                            if ["crate::", "super::", "self::"]
                                .iter()
                                .any(|head| said.starts_with(head))
                            {
                                end(&mut said.split("::").map(str::to_owned).collect());
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
        end(&mut path);
        groups.into_iter().for_each(|group| self.tokens(group));
    }
}

impl<'a> Visit<'a> for Source {
    fn visit_item(&mut self, item: &'a syn::Item) {
        if is_test(attributes_of(item)) {
            return;
        }
        self.defined.extend(name_of(item));
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, function: &'a syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if module.content.is_none() {
            return;
        }
        self.at.push(module.ident.to_string());
        self.inline.push(self.at.clone());
        visit::visit_item_mod(self, module);
        self.at.pop();
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        let is_given_on = !matches!(item.vis, syn::Visibility::Inherited);
        self.tree(&item.tree, &[], is_given_on);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.leading_colon.is_none() {
            let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.paths.push((self.at.clone(), names));
        }
        visit::visit_path(self, path);
    }

    /// `pub(in crate::x)` says who may import, and imports nothing.
    fn visit_visibility(&mut self, _: &'a syn::Visibility) {}

    fn visit_attribute(&mut self, attribute: &'a syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
        }
    }

    fn visit_macro(&mut self, called: &'a syn::Macro) {
        self.tokens(called.tokens.clone());
        visit::visit_macro(self, called);
    }
}
