//! Who answers requests reaches who holds sandboxes by messages alone: what `live` gives it is a message, data, or on this list.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::source::{Source, is_test};
use super::sources;

/// Crates that answer requests.
const API: [&str; 3] = ["e2b", "http", "server"];
/// What `live` gives for the command that starts a process, and no API may use.
const STARTER: [&str; 6] =
    ["Comparison", "StoreComparison", "Live", "SEAL_COMMAND", "Snapshots", "seal_layer"];
/// What a sender holds: (name, its public methods).
const SENDERS: [(&str, &[&str]); 2] =
    [("Guest", &["ask", "is_revoked", "revoked"]), ("LiveClient", &["ask"])];
/// What `live` gives on of the crate `sandbox`: data, of which each has its reason to be that.
const GIVEN_ON: [&str; 5] = ["CommandEvent", "ExecOptions", "Stream", "Template", "inside"];
/// Words of types by which data is put together, and channels.
const PLAIN: [&str; 3] = ["mpsc", "oneshot", "DuplexStream"];

/// What a file of `live` says of its types.
#[derive(Default)]
struct Said {
    /// Those that are messages, and the words of their answers.
    replies: BTreeMap<String, BTreeSet<String>>,
    /// Words in public fields and variants of the public ones.
    fields: BTreeMap<String, BTreeSet<String>>,
    /// Public methods.
    methods: BTreeMap<String, BTreeSet<String>>,
}

struct Words(BTreeSet<String>);

impl<'a> Visit<'a> for Words {
    fn visit_path_segment(&mut self, segment: &'a syn::PathSegment) {
        self.0.insert(segment.ident.to_string());
        visit::visit_path_segment(self, segment);
    }
}

fn words(of: &syn::Type) -> BTreeSet<String> {
    let mut words = Words(BTreeSet::new());
    words.visit_type(of);
    words.0
}

fn name(of: &syn::Type) -> String {
    match of {
        syn::Type::Path(path) => path.path.segments.last().unwrap().ident.to_string(),
        _ => String::new(),
    }
}

const fn is_public(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Public(_))
}

impl<'a> Visit<'a> for Said {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_struct(&mut self, item: &'a syn::ItemStruct) {
        let public = item.fields.iter().filter(|field| is_public(&field.vis));
        let words = public.flat_map(|field| words(&field.ty)).collect();
        self.fields.insert(item.ident.to_string(), words);
    }

    fn visit_item_enum(&mut self, item: &'a syn::ItemEnum) {
        let fields = item.variants.iter().flat_map(|variant| variant.fields.iter());
        self.fields.insert(item.ident.to_string(), fields.flat_map(|f| words(&f.ty)).collect());
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        let of = name(&item.self_ty);
        let of_trait = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        let of_trait = of_trait.map(|last| last.ident.to_string()).unwrap_or_default();
        for part in &item.items {
            match part {
                syn::ImplItem::Type(reply)
                    if reply.ident == "Reply" && of_trait.ends_with("Message") =>
                {
                    self.replies.insert(of.clone(), words(&reply.ty));
                }
                syn::ImplItem::Fn(method) if is_public(&method.vis) => {
                    let methods = self.methods.entry(of.clone()).or_default();
                    methods.insert(method.sig.ident.to_string());
                }
                _ => {}
            }
        }
    }
}

fn said(of: &[(String, String)]) -> Said {
    let mut said = Said::default();
    for (path, text) in of.iter().filter(|(path, _)| !path.ends_with("/tests.rs")) {
        let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{path}: {error}"));
        said.visit_file(&file);
    }
    said
}

/// Names that a crate's root gives to others.
fn given(root: &str) -> BTreeSet<String> {
    let source = Source::read(root, Vec::new());
    source.imports.into_iter().filter(|one| one.is_given_on).map(|one| one.name).collect()
}

/// What is wrong with what `live` gives, where `handles` are types that belong to who holds a sandbox.
fn faults(root: &str, said: &Said, handles: &BTreeSet<String>) -> Vec<String> {
    let mut faults = Vec::new();
    let bad = |words: &BTreeSet<String>| -> Vec<String> {
        words.iter().filter(|word| handles.contains(*word)).cloned().collect()
    };
    for name in given(root) {
        if STARTER.contains(&name.as_str()) || GIVEN_ON.contains(&name.as_str()) {
            continue;
        }
        if let Some((_, known)) = SENDERS.iter().find(|(sender, _)| *sender == name) {
            let methods = said.methods.get(&name).cloned().unwrap_or_default();
            if methods.iter().map(String::as_str).ne(known.iter().copied()) {
                faults.push(format!("{name}: has the methods {methods:?}, not {known:?}"));
            }
        }
        let fields = said.fields.get(&name).map(bad).unwrap_or_default();
        let reply = said.replies.get(&name).map(bad).unwrap_or_default();
        if !fields.is_empty() || !reply.is_empty() {
            faults.push(format!("{name}: gives {fields:?} {reply:?}"));
        }
    }
    faults
}

/// Types of who holds sandboxes: those of the crate `sandbox` that are no data, and the handle itself.
fn handles() -> BTreeSet<String> {
    let defined = sources(&["crates/sandbox/src"]).into_iter().flat_map(|(_, text)| {
        let public = |line: &&str| line.starts_with("pub struct ") || line.starts_with("pub enum ");
        let name = |line: &str| {
            let rest = line.split_whitespace().nth(2).unwrap_or_default();
            rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
        };
        text.lines().filter(public).map(name).collect::<Vec<_>>()
    });
    let mut handles: BTreeSet<String> = defined.collect();
    handles.extend(["LiveHandle", "Live"].map(str::to_owned));
    // What an agent says on the wire is data, whatever else has its name.
    let (_, root) = sources(&["crates/sandbox/src"])
        .into_iter()
        .find(|(path, _)| path == "crates/sandbox/src/lib.rs")
        .unwrap();
    let of_wire = Source::read(&root, Vec::new()).imports.into_iter();
    let of_wire: BTreeSet<String> =
        of_wire.filter(|one| one.at == ["inside"]).map(|one| one.name).collect();
    assert!(of_wire.contains("Entry"), "{of_wire:?}");
    let is_data = |name: &str| GIVEN_ON.contains(&name) || PLAIN.contains(&name);
    handles.retain(|name| !is_data(name) && !of_wire.contains(name));
    handles
}

#[test]
fn what_live_gives_an_api_is_a_message_or_data() {
    let live = sources(&["crates/live/src"]);
    let root = &live.iter().find(|(path, _)| path.ends_with("src/lib.rs")).unwrap().1;
    let said = said(&live);
    assert!(said.replies.len() > 30, "{} messages", said.replies.len());
    assert_eq!(faults(root, &said, &handles()), Vec::<String>::new());
}

#[test]
fn no_api_imports_what_is_for_the_command_that_starts_a_process() {
    let mut bad = Vec::new();
    for krate in API {
        for (path, text) in sources(&[&format!("crates/{krate}/src")]) {
            let source = Source::read(&text, Vec::new());
            let all = source.imports.iter().map(|import| &import.path);
            for path_of in all.chain(source.paths.iter().map(|(_, path)| path)) {
                let is_lives = path_of.first().is_some_and(|first| first == "cofferdam_live");
                let is_starters = path_of.iter().any(|word| STARTER.contains(&word.as_str()));
                if is_lives && is_starters {
                    bad.push(format!("{path}: {}", path_of.join("::")));
                }
            }
        }
    }
    assert_eq!(bad, Vec::<String>::new());
}

#[test]
fn a_handle_that_is_given_is_found() {
    let root = "pub use a::{LiveClient, Open};";
    let text = "pub struct LiveClient; impl LiveClient { pub fn ask(&self) {} pub fn agent(&self) {} }\n\
        pub struct Open { pub agent: Option<Agent> } impl Message for Open { type Reply = Agent; }";
    let said = said(&[("crates/live/src/a.rs".to_owned(), text.to_owned())]);
    let handles = BTreeSet::from(["Agent".to_owned()]);
    assert_eq!(faults(root, &said, &handles).len(), 2);
    assert!(faults(root, &said, &BTreeSet::new()).len() == 1);
}
