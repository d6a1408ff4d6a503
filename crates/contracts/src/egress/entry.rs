//! One entry of a phase's list: an exact domain name or a mirror, parsed once at the edge.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_with::{DeserializeFromStr, SerializeDisplay};

use crate::enum_names::named;
use crate::own_schema::own_schema;

/// Bytes of a domain name: the DNS protocol's own bound.
pub const MAX_NAME_BYTES: usize = 253;
/// Bytes of one label of a name: the DNS protocol's own bound.
const MAX_LABEL_BYTES: usize = 63;

/// A label that begins with a letter, and one that may begin with a digit, as regular expressions.
macro_rules! label {
    ($first:literal) => {
        concat!($first, "([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
    };
}
/// [`Name::parse`] as a regular expression, but for the length of the whole.
macro_rules! name_pattern {
    () => {
        concat!("(", label!("[A-Za-z0-9]"), r"\.)+", label!("[A-Za-z]"))
    };
}

/// What published schemas say of an exact name. A test compares it with [`Name::parse`].
pub const NAME_PATTERN: &str = concat!("^", name_pattern!(), "$");
/// What published schemas say of an entry. A test compares it with [`Entry`]'s parser.
pub const ENTRY_PATTERN: &str = concat!("^(@(apt|cargo|npm|pip)|", name_pattern!(), ")$");

/// A whole domain name in lower case, never an address in disguise.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// Two labels at least, and the last begins with a letter: texts that resolvers read as an address
    /// (`127.1`, `0x7f.1`, `2130706433`) are refused.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let name = text.to_ascii_lowercase();
        let label = |label: &str| {
            (1..=MAX_LABEL_BYTES).contains(&label.len())
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        let top = name.rsplit('.').next()?;
        let whole = name.len() <= MAX_NAME_BYTES
            && name.contains('.')
            && name.split('.').all(label)
            && top.starts_with(|c: char| c.is_ascii_alphabetic());
        whole.then_some(Self(name))
    }

    /// The name in lower case, without a dot at its end.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

named! {
    /// A registry, as the host's own clients are configured for it: the host fetches from it in the
    /// sandbox's stead.
    #[derive(
        Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
    )]
    pub enum Mirror {
        /// The sources of apt.
        Apt = "@apt",
        /// The registry of cargo.
        Cargo = "@cargo",
        /// The registry of npm.
        Npm = "@npm",
        /// The index of pip.
        Pip = "@pip",
    }
}

impl fmt::Display for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One entry of a phase's list.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, SerializeDisplay, DeserializeFromStr,
)]
pub enum Entry {
    /// An exact domain name, at the ports of HTTPS and HTTP.
    Name(Name),
    /// A mirror of the host.
    Mirror(Mirror),
}

impl Entry {
    /// The entry as recipes write it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Name(name) => name.as_str(),
            Self::Mirror(mirror) => mirror.as_str(),
        }
    }

    /// The mirror, where the entry is one.
    #[must_use]
    pub const fn mirror(&self) -> Option<Mirror> {
        match self {
            Self::Name(_) => None,
            Self::Mirror(mirror) => Some(*mirror),
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a text cannot be an entry of an egress list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// It begins with `@`.
    #[error("unknown mirror {0:?}; use @apt, @cargo, @npm or @pip")]
    Mirror(String),
    /// A wildcard, an address, a port, a path, or a name of one label.
    #[error(
        "{0:?} is not an exact domain name; write each name in full, such as pypi.org, without a \
         wildcard, port, address or path"
    )]
    Name(String),
}

impl FromStr for Entry {
    type Err = EntryError;

    fn from_str(text: &str) -> Result<Self, EntryError> {
        if text.starts_with('@') {
            let mirror = Mirror::parse(text).map(Self::Mirror);
            return mirror.ok_or_else(|| EntryError::Mirror(cut(text)));
        }
        Name::parse(text).map(Self::Name).ok_or_else(|| EntryError::Name(cut(text)))
    }
}

/// A refused text as an error repeats it: no longer than a name can be.
fn cut(text: &str) -> String {
    text.chars().take(MAX_NAME_BYTES).collect()
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom(EntryError::Name(cut(&text))))
    }
}

own_schema!(Name, |_| json_schema!({
    "type": "string", "maxLength": MAX_NAME_BYTES, "pattern": NAME_PATTERN
}));

impl JsonSchema for Entry {
    fn schema_name() -> Cow<'static, str> {
        "Entry".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        json_schema!({
            "type": "string", "maxLength": MAX_NAME_BYTES, "pattern": ENTRY_PATTERN
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Validator;
    use serde_json::{Value, json};

    const GOOD: &[&str] = &[
        "a.example",
        "A.Example",
        "x-1.b.co",
        "1.2.3.a4",
        "xn--p1ai.xn--p1ai",
        "@apt",
        "@cargo",
        "@npm",
        "@pip",
    ];
    const BAD: &[&str] = &[
        "",
        "*.example.org",
        "example",
        "a.example:443",
        "1.2.3.4",
        "127.1",
        "0x7f.1",
        "2130706433",
        "::1",
        "a..b",
        ".a.b",
        "a.example.",
        "https://a.example",
        "a.example/x",
        "-a.example",
        "a-.example",
        "a.-b",
        "a.b-",
        "a_b.example",
        "\u{e4}.example",
        "a.example@b.example",
        "a.example\n",
        "@maven",
        "@",
        "@Pip",
        "none",
    ];

    fn of<T: JsonSchema>() -> Validator {
        Validator::compile(&crate::schema::schema_of::<T>()).unwrap()
    }

    /// One letter of a label too many, and one byte of a name too many.
    fn bounds() -> [(String, bool); 4] {
        let long = |last: usize| format!("{}{}", "a.".repeat(95), "b".repeat(last));
        [
            (format!("{}.example", "a".repeat(63)), true),
            (format!("{}.example", "a".repeat(64)), false),
            (long(63), true),
            (long(64), false),
        ]
    }

    #[test]
    fn only_exact_names_and_known_mirrors_are_read() {
        for text in GOOD {
            assert!(text.parse::<Entry>().is_ok(), "{text}");
        }
        for text in BAD {
            let refused = text.parse::<Entry>().unwrap_err().to_string();
            assert!(refused.contains(&format!("{text:?}")), "{refused}");
        }
        for (text, is_good) in bounds() {
            assert_eq!(text.parse::<Entry>().is_ok(), is_good, "{text}");
        }
    }

    #[test]
    fn the_published_pattern_accepts_exactly_what_the_parser_does() {
        let (entry, name) = (of::<Entry>(), of::<Name>());
        let agree = |text: &str| {
            let value = json!(text);
            assert_eq!(entry.check(&value).is_ok(), text.parse::<Entry>().is_ok(), "{text:?}");
            assert_eq!(name.check(&value).is_ok(), Name::parse(text).is_some(), "{text:?}");
        };
        GOOD.iter().chain(BAD).for_each(|text| agree(text));
        bounds().iter().for_each(|(text, _)| agree(text));
        // Every text of up to five of the characters that decide.
        let letters = ['a', '0', '-', '.', '@'];
        let mut texts = vec![String::new()];
        for _ in 0..5 {
            texts = texts
                .iter()
                .flat_map(|text| letters.iter().map(move |letter| format!("{text}{letter}")))
                .collect();
            texts.iter().for_each(|text| agree(text));
        }
    }

    #[test]
    fn an_entry_reads_as_it_is_written() {
        for text in GOOD {
            let entry: Entry = text.parse().unwrap();
            assert_eq!(entry.to_string(), text.to_ascii_lowercase());
            assert_eq!(entry.to_string().parse::<Entry>().unwrap(), entry);
            let written = serde_json::to_value(&entry).unwrap();
            assert_eq!(written, Value::String(entry.to_string()));
            assert_eq!(serde_json::from_value::<Entry>(written).unwrap(), entry);
        }
    }
}
