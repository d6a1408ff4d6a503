//! What a phase of a sandbox may reach, and what was refused.

mod entry;

use schemars::{JsonSchema, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use entry::{ENTRY_PATTERN, Entry, EntryError, MAX_NAME_BYTES, Mirror, NAME_PATTERN, Name};

use crate::enum_names::named;
use crate::grant::grant_gate_form;
use crate::id::GateKey;
use crate::own_schema::own_schema;

const APT_OF_HOST: &str = "`@apt` installs nothing with the image `host`, whose packages are this machine's and read-only; use an \
     image with packages of its own: `cofferdam image pull REF`, then `image: image:NAME`; or, without a registry of images, \
     `cofferdam template build base`, then `image: image:template/base`";

/// Entries that one phase may list: a list that a person can still read before approving it.
pub const MAX_ENTRIES: usize = 64;

/// Network of a phase. `none` is an empty network namespace; names need an egress proxy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Egress {
    /// Exact names, and mirrors such as `@pip`.
    Names(Vec<Entry>),
    /// No interface but loopback.
    #[default]
    None,
}

impl Egress {
    /// The entries; none of `none`.
    #[must_use]
    pub const fn entries(&self) -> &[Entry] {
        match self {
            Self::Names(entries) => entries.as_slice(),
            Self::None => &[],
        }
    }

    /// Refuses what serves no task of the image `host`.
    pub(crate) fn of_host(&self) -> Result<(), &'static str> {
        let has_apt = self.entries().iter().any(|entry| entry.mirror() == Some(Mirror::Apt));
        if has_apt { Err(APT_OF_HOST) } else { Ok(()) }
    }

    /// Whether nothing may be reached.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}

// Each keyword speaks of its own type, so that a violation names the entry and not the list.
own_schema!(Egress, |generator| json_schema!({
    "type": ["string", "array"],
    "pattern": "^none$",
    "minItems": 1, "maxItems": MAX_ENTRIES,
    "items": generator.subschema_for::<Entry>()
}));

impl Serialize for Egress {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_str("none"),
            Self::Names(names) => names.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Egress {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Egress;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("\"none\" or a list of 1 to 64 names")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Egress, E> {
                if text == "none" {
                    Ok(Egress::None)
                } else {
                    Err(E::invalid_value(serde::de::Unexpected::Str(text), &self))
                }
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                mut seq: A,
            ) -> Result<Egress, A::Error> {
                let mut names = Vec::new();
                while let Some(entry) = seq.next_element::<Entry>()? {
                    if names.len() == MAX_ENTRIES {
                        return Err(serde::de::Error::custom(
                            "more than 64 names; list at most 64 in a phase",
                        ));
                    }
                    names.push(entry);
                }
                if names.is_empty() {
                    return Err(serde::de::Error::custom("an empty list of names; write \"none\""));
                }
                Ok(Egress::Names(names))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

named! {
    /// A part of a sandbox's life with a network policy of its own. It only goes forward.
    #[derive(
        Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
    )]
    pub enum Phase {
        /// The command that runs first.
        Build = "build",
        /// The task's own command, after the build phase.
        Exec = "exec",
    }
}

/// A name that a running task was refused and asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EgressAsk {
    /// The exact name.
    pub name: String,
    /// The phase that asks, and alone gets it.
    pub phase: Phase,
}

/// Why the egress proxy refused an attempt.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ViolationReason {
    /// The name is not one of the phase's.
    Name,
    /// The name is, the port is not one of its ports.
    Port,
    /// An address instead of a name.
    IpLiteral,
    /// The name leads to an address of the worker's host, or to one that no public name has.
    Address,
    /// TLS asked for another name than the tunnel.
    Sni,
    /// TLS named no server.
    NoSni,
    /// TLS hides the name that it asks for (encrypted client hello).
    Ech,
    /// Something else than TLS where only TLS is carried.
    NotTls,
    /// A DNS question that only a tunnel would ask of an allowed name.
    DnsType,
    /// Not a request at all.
    Malformed,
    /// More connections at once than a sandbox may have.
    Flood,
    /// A mirror is only fetched from: GET and HEAD.
    Method,
    /// The mirror has it, but outside what its index is and links to.
    Path,
    /// The worker may have lost the task to another one.
    Lease,
    /// The name gets a secret, and plain HTTP would show it to everybody on the way.
    Plain,
    /// The name gets a secret, and TLS was not ended at the proxy.
    Unended,
    /// The name gets a secret, and the request is for another host than its connection.
    Host,
    /// The request carries a placeholder of a secret, which nothing is put in the place of.
    Placeholder,
    /// A secret that the request needs cannot be used: removed, not for this host, or its key is away.
    Secret,
    /// The answer repeats the secret.
    Echo,
    /// Not by way of the proxy, and there is no other: an address dialled directly, a datagram.
    NoRoute,
}

impl ViolationReason {
    /// The reason in words that follow the attempt.
    #[must_use]
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::Name => "the name is not on the phase's list",
            Self::Port => "the port is not one of this name's",
            Self::IpLiteral => "an address is not a name",
            Self::Address => "the name leads to an address that sandboxes must not reach",
            Self::Sni => "TLS asks for another name than the tunnel",
            Self::NoSni => "TLS names no server",
            Self::Ech => "TLS hides the name of the server",
            Self::NotTls => "only TLS is carried here",
            Self::DnsType => "a question that no client of this name needs to ask",
            Self::Malformed => "not a request",
            Self::Flood => "too many connections at once",
            Self::Method => "a mirror takes GET and HEAD only",
            Self::Path => "the path is outside the mirror's index and what it links to",
            Self::Lease => "the worker was cut off from its ledger, and another may run this task",
            Self::Plain => "a name that gets a secret takes HTTPS only",
            Self::Unended => "TLS to a name that gets a secret was not ended at the proxy",
            Self::Host => "the request is for another host than its connection",
            Self::Placeholder => "the request carries a placeholder of a secret",
            Self::Secret => "a secret that it needs cannot be used",
            Self::Echo => "the answer repeats a secret",
            Self::NoRoute => "no route leads there",
        }
    }
}

/// Attempts of one kind that the egress proxy refused. Nothing of them left the sandbox.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Violation {
    /// When in the sandbox's life.
    pub phase: Phase,
    /// What was asked for, as far as it can be printed: at most 253 characters.
    pub name: Option<String>,
    /// The address that was asked for, or that the name leads to.
    pub address: Option<String>,
    /// The port that was asked for.
    pub port: Option<u16>,
    /// Why it was refused.
    pub why: ViolationReason,
    /// Number of refused attempts of this kind.
    pub count: u64,
    /// The first attempt, ms since the epoch.
    pub first_ms: i64,
    /// The last attempt, ms since the epoch.
    pub last_ms: i64,
}

/// A name that a person granted to a running phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EgressGrant {
    /// To which phase.
    pub phase: Phase,
    /// The exact name.
    pub name: String,
    /// The gate that decided it.
    pub gate: GateKey,
    /// ms since the epoch.
    pub until: i64,
}

/// The last instant that a grant may name, in the year 2200: times are whole numbers that every JSON
/// reader holds. The phase's own end, a day away at most, comes before any of them.
const MAX_UNTIL_MS: i64 = 7_258_118_400_000;

/// The form of a gate that a refused name opens: no, or yes with exactly this name and a time.
#[must_use]
pub fn grant_form(name: &str) -> Value {
    grant_gate_form(&json!({
        "type": "object",
        "properties": {
            "name": {"const": name},
            "until": {"type": "integer", "minimum": 0, "maximum": MAX_UNTIL_MS,
                      "description": "ms since the epoch"}
        },
        "required": ["name", "until"],
        "additionalProperties": false
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Validator;

    #[test]
    fn packages_of_the_host_are_installed_by_no_task() {
        let of = |phase: &str, image: &str| {
            let text = format!(
                "id: a\nv: \"1\"\nplan:\n  tasks:\n    - name: b\n      {image}exec: {{run: c{phase}}}\n"
            );
            crate::recipe::Recipe::from_yaml("x.yaml", &text)
        };
        let apt = ", egress: ['@apt', a.example]";
        for image in ["", "image: host\n      "] {
            let error = of(apt, image).unwrap_err().to_string();
            assert!(
                error.contains("exec.egress: `@apt`") && error.contains("image pull"),
                "{error}"
            );
        }
        assert!(of(apt, "image: image:deb\n      ").is_ok());
        assert!(of(", egress: ['@pip']", "").is_ok());
    }

    #[test]
    fn a_list_is_refused_by_its_entry_in_words() {
        let schema = Validator::compile(&crate::schema::schema_of::<Egress>()).unwrap();
        for good in [json!("none"), json!(["@pip"]), json!(["a.example", "b.example"])] {
            assert!(schema.check(&good).is_ok(), "{good}");
            assert!(serde_json::from_value::<Egress>(good).is_ok());
        }
        for (bad, path, word) in [
            (json!(["a.example", "*.example.org"]), "/1", "\"*.example.org\" is not an exact"),
            (json!(["127.1"]), "/0", "\"127.1\" is not an exact domain name"),
            (json!(["@maven"]), "/0", "use @apt, @cargo, @npm or @pip"),
            (json!([7]), "/0", "string"),
            (json!([]), "", ""),
            (json!("all"), "", ""),
            (json!(vec!["a.example"; 65]), "", ""),
            (json!(null), "", ""),
        ] {
            let found = schema.violations(&bad);
            assert_eq!((found.len(), found[0].instance_path.as_str()), (1, path), "{found:?}");
            assert!(found[0].message.contains(word), "{found:?}");
            assert!(serde_json::from_value::<Egress>(bad).is_err());
        }
    }

    #[test]
    fn a_grant_names_exactly_what_was_asked_for_and_a_time() {
        let form = Validator::compile(&grant_form("a.example")).unwrap();
        let grant = |name: &str| json!({"name": name, "until": 1_800_000_000_000_i64});
        for good in [
            json!({"choice": "no"}),
            json!({"choice": "no", "rationale": "why"}),
            json!({"choice": "yes", "grant": grant("a.example")}),
        ] {
            assert!(form.check(&good).is_ok(), "{good}");
        }
        for bad in [
            json!({}),
            json!({"choice": "yes"}),
            json!({"choice": "yes", "grant": grant("b.example")}),
            json!({"choice": "yes", "grant": grant("*.example")}),
            json!({"choice": "yes", "grant": {"name": "a.example"}}),
            json!({"choice": "yes", "grant": {"name": "a.example", "until": "10m"}}),
            json!({"choice": "yes", "grant": {"name": "a.example", "until": -1}}),
            json!({"choice": "yes", "grant": {"name": "a.example", "until": 1e17}}),
            json!({"choice": "no", "grant": grant("a.example")}),
            json!({"choice": "yes", "grant": grant("a.example"), "more": 1}),
        ] {
            assert!(form.check(&bad).is_err(), "{bad}");
        }
    }
}
