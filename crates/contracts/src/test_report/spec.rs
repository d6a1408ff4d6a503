//! Reports that a task declares.

use schemars::json_schema;
use serde::{Deserialize, Serialize};

use super::ReportKind;
use crate::own_schema::{own_schema, text_or_object};

/// Entries of a task's `reports`: each is looked for by itself.
pub const MAX_REPORT_SPECS: usize = 20;
/// Reports of one task, those included that could not be read.
pub const MAX_REPORTS: usize = 100;

/// An entry of a task's `reports`: a glob, or a glob and the kind of what it matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportSpec {
    /// Glob, relative to the working directory.
    pub path: String,
    /// Kind of the files that match; `None`: each file's first 4 KiB say it.
    pub kind: Option<ReportKind>,
}

/// The long form of an entry.
#[derive(Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReportFields {
    /// Glob, relative to the working directory.
    #[schemars(length(min = 1))]
    path: String,
    /// Kind of the files that match: `junit`, `tap`, `lcov` or `cobertura`. Default: as their content says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<ReportKind>,
}

own_schema!(ReportSpec, |generator| {
    let fields = generator.subschema_for::<ReportFields>();
    json_schema!({"oneOf": [{"type": "string", "minLength": 1}, fields]})
});

impl Serialize for ReportSpec {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.kind {
            None => serializer.serialize_str(&self.path),
            kind => ReportFields { path: self.path.clone(), kind }.serialize(serializer),
        }
    }
}

text_or_object!(
    ReportSpec,
    "a report: a glob, or {path, kind}",
    |path| Ok(ReportSpec { path: path.to_owned(), kind: None }),
    ReportFields => |ReportFields { path, kind }| ReportSpec { path, kind }
);

/// What a recipe's types cannot say of a task's reports.
///
/// # Errors
/// More than [`MAX_REPORT_SPECS`], or an empty path.
pub(crate) fn check(specs: &[ReportSpec]) -> Result<(), String> {
    if specs.len() > MAX_REPORT_SPECS {
        return Err(format!("reports: at most {MAX_REPORT_SPECS} entries"));
    }
    match specs.iter().position(|spec| spec.path.is_empty()) {
        Some(index) => Err(format!("reports[{index}]: an empty path")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_is_written_as_a_glob_or_with_its_kind() {
        let all = json!(["junit.xml", {"path": "out/*.info", "kind": "lcov"}, {"path": "a"}]);
        let specs: Vec<ReportSpec> = serde_json::from_value(all).unwrap();
        let kinds: Vec<_> = specs.iter().map(|spec| spec.kind).collect();
        assert_eq!(kinds, [None, Some(ReportKind::Lcov), None]);
        assert_eq!(check(&specs), Ok(()));
        // Both ways to write one thing have one form, and so one hash.
        let form = json!(["junit.xml", {"path": "out/*.info", "kind": "lcov"}, "a"]);
        assert_eq!(serde_json::to_value(&specs).unwrap(), form);
        for wrong in [json!(3), json!({"kind": "tap"}), json!({"path": "a", "kind": "html"})] {
            assert!(serde_json::from_value::<ReportSpec>(wrong.clone()).is_err(), "{wrong}");
        }
        assert!(serde_json::from_value::<ReportSpec>(json!({"path": "a", "of": "b"})).is_err());
    }

    #[test]
    fn too_many_entries_and_empty_ones_are_refused() {
        let spec = |path: &str| ReportSpec { path: path.to_owned(), kind: None };
        assert!(check(&vec![spec("a"); MAX_REPORT_SPECS]).is_ok());
        assert!(check(&vec![spec("a"); MAX_REPORT_SPECS + 1]).is_err());
        assert_eq!(check(&[spec("a"), spec("")]), Err("reports[1]: an empty path".to_owned()));
    }
}
