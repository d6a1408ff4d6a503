//! What a reader of a call or of a type has to hold in mind: parameters have names, and a type has few methods.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::arrows::TESTS;
use super::source::is_test;
use super::sources;

/// Methods of one type or trait. The reader of one of them may need any other.
const MAX_METHODS: usize = 25;
/// Types with more: the crate, the type, how many, and what takes it apart. A line goes with its type, and none is added.
const LARGER: &[(&str, &str, usize, &str)] = &[];

/// What holds a value of the type that stands between its brackets, and nothing else.
const HOLDERS: [&str; 8] = ["Option", "Vec", "VecDeque", "Box", "Arc", "Rc", "Cow", "Result"];

/// The functions and types of one crate.
#[derive(Default)]
struct Signatures {
    /// The file that is read.
    file: String,
    /// Names of types that stand for a tuple.
    aliases: BTreeSet<String>,
    /// Traits that are defined here, each with its methods.
    traits: BTreeMap<String, usize>,
    /// Which of our types a trait is implemented for.
    implementors: BTreeMap<String, BTreeSet<String>>,
    /// Inherent methods by type.
    methods: BTreeMap<String, usize>,
    /// Functions with a tuple in a parameter, each with the trait that asks for it.
    tuples: Vec<(String, Option<String>)>,
    within: Option<String>,
}

impl Signatures {
    fn of(files: &[(String, syn::File)], aliases: &BTreeSet<String>) -> Self {
        let mut all = Self { aliases: aliases.clone(), ..Self::default() };
        for (name, file) in files {
            all.file.clone_from(name);
            all.visit_file(file);
        }
        all
    }

    /// Whether a caller writes a tuple here: itself, or in what holds it.
    fn is_tuple(&self, of: &syn::Type) -> bool {
        match of {
            syn::Type::Tuple(tuple) => tuple.elems.len() > 1,
            syn::Type::Reference(to) => self.is_tuple(&to.elem),
            syn::Type::Paren(inner) => self.is_tuple(&inner.elem),
            syn::Type::Slice(each) => self.is_tuple(&each.elem),
            syn::Type::Array(each) => self.is_tuple(&each.elem),
            syn::Type::Path(path) => {
                let Some(last) = path.path.segments.last() else { return false };
                let name = last.ident.to_string();
                let syn::PathArguments::AngleBracketed(inner) = &last.arguments else {
                    return self.aliases.contains(&name);
                };
                let holds = HOLDERS.contains(&name.as_str());
                self.aliases.contains(&name)
                    || (holds
                        && inner.args.iter().any(|argument| {
                            matches!(argument, syn::GenericArgument::Type(inner) if self.is_tuple(inner))
                        }))
            }
            _ => false,
        }
    }

    /// Functions of ours with a tuple in a parameter: what a trait of others asks for is not ours.
    fn wrong_tuples(&self, traits: &BTreeSet<String>) -> Vec<&String> {
        let ours = |of: &Option<String>| of.as_ref().is_none_or(|of| traits.contains(of));
        self.tuples.iter().filter(|(_, of)| ours(of)).map(|(what, _)| what).collect()
    }

    /// Types and traits with more methods than a reader keeps. A trait of one type alone is that type's methods.
    fn large(&self) -> BTreeMap<String, usize> {
        let mut all = self.methods.clone();
        for (name, count) in &self.traits {
            let of = self.implementors.get(name).filter(|of| of.len() == 1);
            let holder = of.and_then(BTreeSet::first).unwrap_or(name);
            *all.entry(holder.clone()).or_default() += count;
        }
        all.retain(|_, count| *count > MAX_METHODS);
        all
    }
}

/// Names of types that stand for a tuple, by each other too.
#[derive(Default)]
struct Aliases(BTreeSet<String>);

impl Aliases {
    fn of<'a>(files: impl Iterator<Item = &'a syn::File> + Clone) -> BTreeSet<String> {
        let mut found = Self::default();
        loop {
            let before = found.0.len();
            files.clone().for_each(|file| found.visit_file(file));
            if found.0.len() == before {
                return found.0;
            }
        }
    }
}

impl<'a> Visit<'a> for Aliases {
    fn visit_item_type(&mut self, item: &'a syn::ItemType) {
        let known = Signatures { aliases: self.0.clone(), ..Signatures::default() };
        if known.is_tuple(&item.ty) {
            self.0.insert(item.ident.to_string());
        }
    }
}

fn name_of(of: &syn::Type) -> Option<String> {
    match of {
        syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
        syn::Type::Reference(to) => name_of(&to.elem),
        _ => None,
    }
}

impl<'a> Visit<'a> for Signatures {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'a syn::ItemFn) {
        if !is_test(&function.attrs) {
            // One inside a method is no method.
            let within = self.within.take();
            visit::visit_item_fn(self, function);
            self.within = within;
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'a syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_signature(&mut self, signature: &'a syn::Signature) {
        for parameter in &signature.inputs {
            let syn::FnArg::Typed(parameter) = parameter else { continue };
            if self.is_tuple(&parameter.ty) {
                self.tuples
                    .push((format!("{}: {}", self.file, signature.ident), self.within.clone()));
            }
        }
        visit::visit_signature(self, signature);
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        if is_test(&item.attrs) {
            return;
        }
        let of = item
            .trait_
            .as_ref()
            .and_then(|(_, of, _)| of.segments.last())
            .map(|last| last.ident.to_string());
        let is_method =
            |item: &&syn::ImplItem| matches!(item, syn::ImplItem::Fn(f) if !is_test(&f.attrs));
        match (&of, name_of(&item.self_ty)) {
            (None, Some(name)) => {
                *self.methods.entry(name).or_default() +=
                    item.items.iter().filter(is_method).count()
            }
            (Some(of), Some(name)) => {
                self.implementors.entry(of.clone()).or_default().insert(name);
            }
            (_, None) => {}
        }
        self.within = of;
        visit::visit_item_impl(self, item);
        self.within = None;
    }

    fn visit_item_trait(&mut self, item: &'a syn::ItemTrait) {
        if is_test(&item.attrs) {
            return;
        }
        let methods =
            item.items.iter().filter(|item| matches!(item, syn::TraitItem::Fn(_))).count();
        self.traits.insert(item.ident.to_string(), methods);
        visit::visit_item_trait(self, item);
    }
}

/// What the crates say, each by its name.
fn crates() -> BTreeMap<String, Signatures> {
    let mut files: BTreeMap<String, Vec<(String, syn::File)>> = BTreeMap::new();
    for (name, text) in sources(&["crates"]) {
        let parts: Vec<&str> = name.split('/').collect();
        let is_tests = |part: &&str| TESTS.contains(part) || *part == "tests";
        if parts[2] == "src" && !parts[3..].iter().any(is_tests) {
            let file = syn::parse_file(&text).unwrap();
            files.entry(parts[1].to_owned()).or_default().push((name, file));
        }
    }
    let of = |files: Vec<(String, syn::File)>| {
        let aliases = Aliases::of(files.iter().map(|(_, file)| file));
        Signatures::of(&files, &aliases)
    };
    files.into_iter().map(|(name, files)| (name, of(files))).collect()
}

/// A place in a tuple has no name: its reader counts. What belongs together is a struct, and what does not is two parameters.
#[test]
fn no_function_takes_a_tuple() {
    let crates = crates();
    let traits: BTreeSet<String> =
        crates.values().flat_map(|all| all.traits.keys().cloned()).collect();
    let wrong: Vec<&String> = crates.values().flat_map(|all| all.wrong_tuples(&traits)).collect();
    assert!(wrong.is_empty(), "these take a tuple: {wrong:#?}");
}

#[test]
fn no_type_has_more_methods_than_a_reader_keeps() {
    let found: BTreeSet<(String, String, usize)> = crates()
        .iter()
        .flat_map(|(name, all)| {
            all.large().into_iter().map(|(of, count)| (name.clone(), of, count))
        })
        .collect();
    let listed = LARGER
        .iter()
        .map(|(name, of, count, _)| ((*name).to_owned(), (*of).to_owned(), *count))
        .collect();
    assert_eq!(found, listed, "more than {MAX_METHODS} methods: as found, and as listed");
}

#[test]
fn tuples_and_methods_are_found_where_they_are() {
    let of = |text: &str| {
        let file = syn::parse_file(text).unwrap();
        let aliases = Aliases::of(std::iter::once(&file));
        Signatures::of(&[("a.rs".to_owned(), file)], &aliases)
    };
    let tuples = |text: &str| of(text).wrong_tuples(&["Ours".to_owned()].into()).len();
    for wrong in [
        "fn f(a: (u8, u8)) {}",
        "fn f(a: &[(u8, u8)]) {}",
        "fn f(a: Option<&(u8, u8)>) {}",
        "impl S { fn f(&self, a: Vec<(u8, u8)>) {} }",
        "trait T { fn f(&self, (a, b): (u8, u8)); }",
        "mod m { type P = (u8, u8); }\nfn f(a: m::P) {}",
        "type P<T> = (T, T);\nfn f(a: P<u8>) {}",
        "impl Ours for S { fn f(a: (u8, u8)) {} }",
        "impl From<u8> for S { fn from(a: u8) -> S { fn f(a: (u8, u8)) {} } }",
        "type P = (u8, u8);\ntype Q = P;\nfn f(a: Q) {}",
    ] {
        assert_eq!(tuples(wrong), 1, "{wrong}");
    }
    for right in [
        "fn f(a: u8, b: ()) -> (u8, u8) { (a, a) }",
        "impl From<(u8, u8)> for S { fn from(a: (u8, u8)) -> S {} }",
        "#[cfg(test)]\nmod tests { fn f(a: (u8, u8)) {} }",
    ] {
        assert_eq!(tuples(right), 0, "{right}");
    }
    let many =
        |count: usize| (0..count).map(|at| format!("fn f{at}(&self) {{}}")).collect::<String>();
    let (half, more) = (many(20), many(6));
    assert!(of(&format!("impl S {{ {half} }}")).large().is_empty());
    assert_eq!(
        of(&format!("impl S {{ {half} }}\nimpl S {{ {more} }}")).large(),
        [("S".to_owned(), 26)].into()
    );
    let extension = format!("impl S {{ {half} }}\ntrait T {{ {more} }}\nimpl T for S {{}}");
    assert_eq!(
        of(&extension).large(),
        [("S".to_owned(), 26)].into(),
        "a trait of one type is its methods"
    );
    assert!(of(&format!("{extension}\nimpl T for U {{}}")).large().is_empty());
}
