//! Whom a task or a service runs as, written as Docker's `--user` is: `NAME`, `UID`, `NAME:GROUP`, `UID:GID`.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::own_schema::own_schema;

/// The highest user or group id of a sandbox, which has 65,536 of each.
pub const MAX_ID: u32 = 65_535;
/// Bytes of a name: Linux's own tools take 32.
const MAX_NAME: usize = 64;
/// One side of the colon, as a regular expression.
const PATTERN: &str = "^[A-Za-z0-9_][A-Za-z0-9_.@$-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.@$-]{0,63})?$";

/// A user, and after a colon a group: each a name of the root file system's own databases, or a number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserName(String);

/// A text that names no user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a user: write NAME, UID, NAME:GROUP or UID:GID, with ids of 0 to {MAX_ID}"
)]
pub struct UserNameError {
    /// The text, cut to 64 characters.
    text: String,
}

impl UserName {
    /// Reads a user.
    ///
    /// # Errors
    /// An empty side, another character than letters, digits and `_.@$-`, or an id beyond [`MAX_ID`].
    pub fn parse(text: &str) -> Result<Self, UserNameError> {
        let (user, group) = text.split_once(':').map_or((text, None), |(u, g)| (u, Some(g)));
        match is_side(user) && group.is_none_or(is_side) {
            true => Ok(Self(text.to_owned())),
            false => Err(UserNameError { text: text.chars().take(64).collect() }),
        }
    }

    /// The text as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether both sides are numbers, so that no database is needed.
    #[must_use]
    pub fn is_numeric(&self) -> bool {
        self.0.split(':').all(is_number)
    }
}

fn is_number(side: &str) -> bool {
    side.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_side(side: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.@$-".contains(&byte);
    let first = side.bytes().next();
    side.len() <= MAX_NAME
        && first.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && side.bytes().all(plain)
        && (!is_number(side) || side.parse::<u32>().is_ok_and(|id| id <= MAX_ID))
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for UserName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for UserName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = deserializer.deserialize_any(UserVisitor)?;
        Self::parse(&text).map_err(D::Error::custom)
    }
}

own_schema!(UserName, |_| json_schema!({"oneOf": [
    {"type": "string", "pattern": PATTERN},
    {"type": "integer", "minimum": 0, "maximum": MAX_ID}
]}));

/// A user as a person writes it: YAML has numbers of its own.
struct UserVisitor;

impl Visitor<'_> for UserVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a user: a name or a number, and after a colon a group")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<String, E> {
        Ok(id.to_string())
    }

    fn visit_i64<E: Error>(self, id: i64) -> Result<String, E> {
        Ok(id.to_string())
    }
}

/// Reads a recipe's user, which may hold expressions until it is rendered.
pub(crate) fn template<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    deserializer.deserialize_any(UserVisitor).map(Some)
}

/// Holds the users of a recipe's task and of its build phase to the form. One that holds an expression is read once that is
/// rendered.
pub(crate) fn check(
    task: Option<&str>,
    build: Option<&str>,
    has_commands: bool,
) -> Result<(), String> {
    if task.is_some() && !has_commands {
        return Err("user: a task with `value` runs nothing; remove `user`".to_owned());
    }
    for (field, text) in [("user", task), ("build.user", build)] {
        if let Some(text) = text.filter(|text| !text.contains("${")) {
            UserName::parse(text).map_err(|error| format!("{field}: {error}"))?;
        }
    }
    Ok(())
}

/// The schema of a recipe's user.
pub(crate) fn template_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"oneOf": [
        {"type": "string", "minLength": 1},
        {"type": "integer", "minimum": 0, "maximum": MAX_ID}
    ]})
}

/// What the sandbox's command ran as, by number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EffectiveUser {
    /// Id of the user.
    pub uid: u32,
    /// Id of its primary group.
    pub gid: u32,
    /// Every group that it is a member of, the primary one included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_a_name_or_a_number_and_may_have_a_group() {
        for good in ["root", "app", "1000", "app:staff", "0:0", "1000:app", "_apt", "a.b@c", "m$"] {
            assert_eq!(UserName::parse(good).unwrap().as_str(), good);
        }
        for bad in
            ["", ":", "app:", ":app", "a:b:c", "-u", "a b", "a/b", "65536", "1:65536", "a\n", "é"]
        {
            let words = UserName::parse(bad).unwrap_err().to_string();
            assert!(words.contains("UID:GID") && words.contains("65535"), "{words}");
        }
        assert!(UserName::parse(&"a".repeat(65)).is_err());
    }

    #[test]
    fn a_number_of_yaml_is_a_user_and_a_negative_one_is_not() {
        let read = |text: &str| serde_json::from_str::<UserName>(text);
        assert_eq!(read("1000").unwrap(), UserName::parse("1000").unwrap());
        assert_eq!(serde_json::to_string(&read("1000").unwrap()).unwrap(), "\"1000\"");
        assert!(read("\"1000:50\"").unwrap().is_numeric());
        assert!(!read("\"1000:app\"").unwrap().is_numeric());
        for bad in ["-1", "1.5", "65536", "null", "[]"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
