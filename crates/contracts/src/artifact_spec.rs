//! Files that a task declares to be kept.

use schemars::json_schema;
use serde::{Deserialize, Serialize};

use crate::own_schema::{own_schema, text_or_object};

/// An entry of a task's `artifacts`: a glob, or a glob and whether it must match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactSpec {
    /// Glob, relative to the working directory.
    pub path: String,
    /// Whether a task fails that leaves nothing that matches.
    pub required: bool,
}

/// The long form of an entry.
#[derive(Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct ArtifactFields {
    /// Glob, relative to the working directory.
    #[schemars(length(min = 1))]
    path: String,
    /// Whether the task fails where nothing matches. Default: no.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    required: bool,
}

own_schema!(ArtifactSpec, |generator| {
    let fields = generator.subschema_for::<ArtifactFields>();
    json_schema!({"oneOf": [{"type": "string", "minLength": 1}, fields]})
});

impl Serialize for ArtifactSpec {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.required {
            false => serializer.serialize_str(&self.path),
            required => ArtifactFields { path: self.path.clone(), required }.serialize(serializer),
        }
    }
}

text_or_object!(
    ArtifactSpec,
    "an artifact: a glob, or {path, required}",
    |path| Ok(ArtifactSpec { path: path.to_owned(), required: false }),
    ArtifactFields => |ArtifactFields { path, required }| ArtifactSpec { path, required }
);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_artifact_is_a_glob_or_says_that_it_must_match() {
        let all = json!(["dist/*", {"path": "out/**", "required": true}, {"path": "a"}]);
        let specs: Vec<ArtifactSpec> = serde_json::from_value(all).unwrap();
        assert_eq!(
            specs.iter().map(|spec| spec.required).collect::<Vec<_>>(),
            [false, true, false]
        );
        // A glob without conditions has one form, and so the hash that it had before there was another.
        let form = json!(["dist/*", {"path": "out/**", "required": true}, "a"]);
        assert_eq!(serde_json::to_value(&specs).unwrap(), form);
        for wrong in [json!(3), json!({"required": true}), json!({"path": "a", "of": "b"})] {
            assert!(serde_json::from_value::<ArtifactSpec>(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
