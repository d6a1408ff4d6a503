//! A type, a module and a file are called by a noun. A participle or a gerund says what happened to a thing and leaves its
//! reader to guess which: `Held`, `Kept`, `Told`, `Watching`.
//!
//! ```text
//! name --words--> each: a function word or a finite verb             -> refused, wherever it stands
//!                       a participle or a gerund, last or alone      -> refused
//!                       the same before a noun: a state of the list  -> `SealedFile`, `RunningCommand`
//!                                               any other            -> refused: `HeldSandbox`, `KeptChanges`
//!                       a word that the glossary gave up             -> refused
//! ```
//! Names are read wherever one can be given: at the top of a file, in a function, in a macro or what it is given, as a type's
//! parameter, by `use .. as`, as a module and as a part of a path. Variants are states, and may be participles; so are functions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::LazyLock;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::arrows::TESTS;
use super::source::is_test;
use super::{root, sources};

/// Past forms and participles that do not end in `ed`, without those that are nouns (`bound`, `cut`, `put`, `set`, `spread`).
const IRREGULAR: &str = "arisen arose awoke awoken beaten became become been began begot begotten begun bent bitten blew blown \
    borne bought bred broke broken brought built burnt came caught chose chosen clung crept dealt did done drank drawn drew driven \
    drove drunk dug dwelt eaten fallen fed fell felt fled flew flown flung forbade forbidden foreseen forgave forgiven forgot \
    forgotten forsaken fought found froze frozen gave given gone got gotten grew grown had heard held hid hidden hung kept knew \
    known laid lain led left lent leapt learnt lit lost made meant met mistaken outgrown overcome overtaken paid proven ridden \
    risen rode rung said sang sank sat sawn seen sent sewn shaken shone shown shrank shrunk slain slept slid slung sold sought \
    sown spelt spent spoke spoken sprang sprung spun stole stolen stood struck strung stuck stung sung sunk swam swept swollen \
    sworn swum swung taken taught thought threw thrown told took tore torn trod trodden understood undone upheld went withdrawn \
    withdrew withheld woke woken won wore worn wove woven written wrote wrung";

/// Words that end like participles and gerunds and are nouns. `building` and `recording` are not among them: they name an act.
const NOUNS: &str = "bed ceiling embed feed hundred keyring need nothing red reed seed shed sibling speed string thing \
    binding encoding finding firing setting";

/// Words that name nothing: `Again`, `Still`, `Within`, `Of`.
const FUNCTION_WORDS: &str = "about above again ahead alike alone along already apart as aside at away back before behind below \
    beside between beyond but by down else elsewhere ever for from here how in into it my never not now nowhere of off on once onto \
    or other others our out over since so still such that then there these they this those through thus together too towards under \
    until up upon us we what when where whereabouts which while who whose why with within without yet";

/// Finite verbs: `Does`, `WaitsFor`, `Begins`.
const VERBS: &str = "am are be begin begins come comes do does give gives go goes has have hears holds is keep keeps says stands stays \
    takes tells wants was waits were";

/// States that stand before a noun, each of which some name has: the field calls them so.
const STATES: &[&str] = &[
    "allowed",
    "approved",
    "cached",
    "checked",
    "collected",
    "detached",
    "existing",
    "frozen",
    "inherited",
    "installed",
    "locked",
    "observed",
    "paused",
    "pending",
    "planned",
    "refused",
    "resolved",
    "retained",
    "running",
    "sealed",
    "shared",
    "signing",
    "stored",
    "verified",
    "waiting",
];

/// Names that stay: (crate, name, why). The list only shrinks.
const STAY: &[(&str, &str, &str)] = &[
    ("contracts", "ThinkingConfig", "the member `thinking` of a provider's API, in its own word"),
    (
        "tests",
        "not_run",
        "the file that four crates include, and the words of the report that it writes",
    ),
];

/// Words that were given up, and the glossary's noun instead.
const GONE: &[(&str, &str)] = &[
    ("basis", "template"),
    ("board", "session states"),
    ("boarding", "flight"),
    ("dawn", "restore"),
    ("desk", "gateway, or queue of asks"),
    ("ear", "listener"),
    ("fate", "outcome"),
    ("footing", "host layout"),
    ("ground", "launch input"),
    ("heart", "heartbeat"),
    ("hold", "handle, or guard"),
    ("holder", "runtime kind, or worker"),
    ("keeper", "source, supervisor or snapshotter"),
    ("lodge", "subreaper"),
    ("lodger", "subreaper agent"),
    ("lookout", "health listener"),
    ("manner", "options"),
    ("night", "sleep"),
    ("pilot", "driver"),
    ("place", "directory, location, identity or slot"),
    ("plain", "detached"),
    ("pulse", "health probe"),
    ("rest", "retention, or remainder"),
    ("room", "allowance, or budget"),
    ("shelf", "store"),
    ("teller", "reporter"),
    ("tidy", "cleanup"),
    ("vitals", "fleet health"),
];

/// Of these, what nothing at all is called by: a picture that its reader has to guess. The others are everyday words.
const PICTURES: &str = "basis board boarding dawn desk ear fate footing heart keeper lodge lodger lookout manner night pilot \
    pulse shelf teller tidy vitals";

fn has(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|one| one == word)
}

/// The words of a name, in lower case: of `CamelCase`, of `snake_case`, and of `HTTPWord`; without digits behind them.
fn words(name: &str) -> Vec<String> {
    let letters: Vec<char> = name.trim_start_matches("r#").chars().collect();
    let (mut found, mut word) = (Vec::new(), String::new());
    for (at, letter) in letters.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|at| letters.get(at));
        let after = letters.get(at + 1);
        let begins = letter.is_uppercase()
            && (before.is_some_and(|before| !before.is_uppercase())
                || after.is_some_and(|after| after.is_lowercase()));
        if !letter.is_alphabetic() || begins {
            found.push(std::mem::take(&mut word));
        }
        if letter.is_alphabetic() {
            word.extend(letter.to_lowercase());
        }
    }
    found.push(word);
    found.retain(|word| !word.is_empty());
    found
}

/// Whether a word is the participle of a verb, its past or its gerund: `held`, `unheld`, `sealed`, `watching`, `watchings`.
fn is_participle(word: &str) -> bool {
    let one = word.strip_suffix('s').filter(|one| one.ends_with("ing")).unwrap_or(word);
    if has(NOUNS, one) {
        return false;
    }
    let bare = ["un", "re"].iter().filter_map(|prefix| word.strip_prefix(prefix));
    let is_regular = one.len() > 4 && one.ends_with("ing") || one.len() > 3 && one.ends_with("ed");
    is_regular || has(IRREGULAR, word) || bare.into_iter().any(|word| has(IRREGULAR, word))
}

/// The words of a name that it must not have.
fn wrong(name: &str) -> Vec<String> {
    let words = words(name);
    let last = words.len().saturating_sub(1);
    let is_wrong = |(at, word): &(usize, String)| {
        let is_state = *at < last && STATES.contains(&word.as_str());
        has(FUNCTION_WORDS, word)
            || has(VERBS, word)
            || is_participle(word) && !is_state
            || GONE.iter().any(|(gone, _)| gone == word)
    };
    words.into_iter().enumerate().filter(is_wrong).map(|(_, word)| word).collect()
}

/// Every name that a file gives to a type, a trait or a module; what only its tests have left out.
#[derive(Default)]
struct Names(BTreeSet<String>);

impl Names {
    fn of(text: &str) -> BTreeSet<String> {
        let mut names = Self::default();
        names.visit_file(&syn::parse_file(text).unwrap());
        names.0
    }

    fn add(&mut self, name: &syn::Ident) {
        self.0.insert(name.to_string());
    }

    /// What a macro is given, or is made of, has no syntax: a name stands behind the word that says what it is of.
    fn tokens(&mut self, tokens: TokenStream) {
        const BEFORE: [&str; 7] = ["struct", "enum", "trait", "union", "type", "mod", "as"];
        let mut is_next = false;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if is_next {
                        self.0.insert(name.to_string());
                    }
                    is_next = BEFORE.contains(&name.to_string().as_str());
                }
                TokenTree::Group(group) => {
                    is_next = false;
                    self.tokens(group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => is_next = false,
            }
        }
    }
}

/// Visits an item that gives a name, where not only a test's build has it.
macro_rules! named_items {
    ($($visit:ident: $item:ident),* $(,)?) => {$(
        fn $visit(&mut self, item: &'a syn::$item) {
            if !is_test(&item.attrs) {
                self.add(&item.ident);
                visit::$visit(self, item);
            }
        }
    )*};
}

/// Visits what gives no name itself, with the same exception.
macro_rules! other_items {
    ($($visit:ident: $item:ident),* $(,)?) => {$(
        fn $visit(&mut self, item: &'a syn::$item) {
            if !is_test(&item.attrs) {
                visit::$visit(self, item);
            }
        }
    )*};
}

impl<'a> Visit<'a> for Names {
    named_items! {
        visit_item_struct: ItemStruct,
        visit_item_enum: ItemEnum,
        visit_item_union: ItemUnion,
        visit_item_trait: ItemTrait,
        visit_item_trait_alias: ItemTraitAlias,
        visit_item_type: ItemType,
        visit_item_mod: ItemMod,
        visit_trait_item_type: TraitItemType,
        visit_type_param: TypeParam,
    }

    other_items! {
        visit_item_fn: ItemFn,
        visit_item_impl: ItemImpl,
        visit_impl_item_fn: ImplItemFn,
        visit_item_const: ItemConst,
        visit_item_static: ItemStatic,
        visit_item_use: ItemUse,
        visit_item_macro: ItemMacro,
    }

    fn visit_use_rename(&mut self, rename: &'a syn::UseRename) {
        if rename.rename != "_" {
            self.add(&rename.rename);
        }
    }

    fn visit_macro(&mut self, called: &'a syn::Macro) {
        self.tokens(called.tokens.clone());
    }
}

/// The names of the product and of the tests' library: (crate, file, name). Read once for all tests.
static NAMES: LazyLock<Vec<(String, String, String)>> = LazyLock::new(names);

fn names() -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for (path, text) in sources(&["crates", "tests"]) {
        let Some((top, below)) = path.split_once("/src/") else { continue };
        let krate = top.trim_start_matches("crates/").to_owned();
        if krate.contains('/')
            || below.split('/').any(|part| TESTS[..4].contains(&part) || part == "tests")
        {
            continue;
        }
        let parts = below.trim_end_matches(".rs").split('/').map(str::to_owned);
        let parts = parts.filter(|part| !["lib", "main", "mod"].contains(&part.as_str()));
        let all = Names::of(&text).into_iter().chain(parts);
        found.extend(all.map(|name| (krate.clone(), path.clone(), name)));
    }
    found
}

#[test]
fn a_name_is_a_noun() {
    let names = &*NAMES;
    let stays =
        |krate: &str, name: &str| STAY.iter().any(|(at, of, _)| (*at, *of) == (krate, name));
    let mut found = BTreeMap::new();
    for (krate, path, name) in names {
        let wrong = wrong(name);
        if !wrong.is_empty() && !stays(krate, name) {
            found.insert(format!("{path}: {name}"), wrong);
        }
    }
    assert!(found.is_empty(), "name each by the glossary's noun: {} {found:#?}", found.len());
    let gone: Vec<_> = STAY
        .iter()
        .filter(|(krate, name, _)| !names.iter().any(|(at, _, of)| at == krate && of == name))
        .collect();
    assert!(gone.is_empty(), "there are none of these any more; take them out of STAY: {gone:#?}");
}

/// A list that nobody uses is a stock of names for later.
#[test]
fn every_state_is_one_that_a_name_has() {
    let names = &*NAMES;
    let has =
        |state: &&&str| names.iter().any(|(_, _, name)| words(name).iter().any(|w| w == **state));
    let unused: Vec<_> = STATES.iter().filter(|state| !has(state)).collect();
    assert!(unused.is_empty(), "take them out of STATES: {unused:?}");
}

/// Every identifier of a text: fields, parameters and variables as well.
fn identifiers(tokens: TokenStream, found: &mut BTreeSet<String>) {
    let mut rest: Vec<TokenTree> = tokens.into_iter().collect();
    while let Some(token) = rest.pop() {
        match token {
            TokenTree::Ident(name) => {
                found.insert(name.to_string());
            }
            TokenTree::Group(group) => rest.extend(group.stream()),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

#[test]
fn nothing_is_called_by_a_picture() {
    for (path, text) in sources(&["crates", "tests"]) {
        let mut names = BTreeSet::new();
        identifiers(text.parse().unwrap_or_else(|error| panic!("{path}: {error}")), &mut names);
        for name in names {
            let found = words(&name).into_iter().find(|word| has(PICTURES, word));
            assert!(
                found.is_none(),
                "{path}: {name}: say what it is or does: {found:?} was given up"
            );
        }
    }
}

/// The terms of the glossary, as they are written.
fn terms() -> Vec<String> {
    let page = fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let nouns = page.split("## Imposed spellings").next().unwrap_or_default();
    let cells = nouns.lines().filter_map(|line| line.strip_prefix("* **")?.split("**: ").next());
    cells
        .flat_map(|cell| cell.split("**, **"))
        .map(|term| term.trim_end_matches("**").to_owned())
        .collect()
}

#[test]
fn a_term_of_the_glossary_is_defined_once_and_none_was_given_up() {
    let terms = terms();
    let once: BTreeSet<&String> = terms.iter().collect();
    assert!(terms.len() > 150 && once.len() == terms.len(), "{} of {}", once.len(), terms.len());
    for term in &terms {
        let is_gone = |word: &str| GONE.iter().any(|(gone, _)| *gone == word);
        assert!(!term.split(' ').any(is_gone), "{term}: given up");
        assert!(!term.contains('('), "{term}: a word for two things; give each its own");
    }
}

#[test]
fn words_and_names_are_found_where_they_are() {
    assert_eq!(words("HTTPHeldPath2"), ["http", "held", "path"]);
    assert_eq!(words("kept_files"), ["kept", "files"]);
    for name in [
        "Held",
        "HeldSandbox",
        "KeptChanges",
        "kept_files",
        "Watching",
        "Findings2Told",
        "HELD",
        "Unkept",
        "Retold",
        "Again",
        "WaitsFor",
        "PausedInto",
        "Sealed",
        "LeftMemory",
        "OwnPlace",
        "Held2",
        "r#Told",
        "Recordings",
        "TooLarge",
    ] {
        assert!(!wrong(name).is_empty(), "{name}");
    }
    for name in [
        "SealedFile",
        "Findings",
        "RunningCommand",
        "Keyring",
        "Thread",
        "Feed",
        "Ceiling",
        "HostHandle",
        "Embed",
    ] {
        assert!(wrong(name).is_empty(), "{name}");
    }
    let text = "struct A; fn f() { enum B {} }\nlist! { pub struct C {} mod d {} }\nuse x::Y as E;\nuse x::Z as _;\n\
                trait F { type G; }\nimpl F for A { type G = A; }\nfn g<H>() {}\nmacro_rules! m { () => { struct I; } }\n\
                mod j;\ntype K = A;\n#[cfg(test)]\nmod tests { struct T; }\n#[test]\nfn t() { struct U; }\nunion L { a: u8 }\n";
    let names: Vec<String> = Names::of(text).into_iter().collect();
    assert_eq!(names, ["A", "B", "C", "E", "F", "G", "H", "I", "K", "L", "d", "j"]);
}
