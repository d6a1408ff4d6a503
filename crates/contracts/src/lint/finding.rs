//! A finding of the linter: how bad, about what, and where.

use serde::{Deserialize, Serialize};

use crate::enum_names::named;

named! {
    /// How bad it is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    pub enum LintSeverity {
        /// An import or a start refuses it.
        Error = "error",
        /// It is legal, and probably not what was meant.
        Warning = "warning",
    }
}

named! {
    /// What a finding is about: the code of an error, or the rule of a warning.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    pub enum LintRule {
        /// An error: an import or a start would refuse the recipe.
        RecipeInvalid = "recipe_invalid",
        /// An error: the plan exceeds the recipe's caps.
        QueuePolicyViolation = "queue_policy_violation",
        /// A fan-out whose tasks all do the same.
        EachUnused = "each-unused",
        /// A glob that keeps the whole working directory.
        ArtifactsOfEverything = "artifacts-of-everything",
        /// A phase without wall time of its own.
        TimeoutMissing = "timeout-missing",
        /// An image by a name that may mean another one tomorrow.
        ImageByName = "image-by-name",
        /// A credential in a recipe's text or form, which are on record.
        SecretInText = "secret-in-text",
        /// An expression that the form does not declare.
        InputUndeclared = "input-undeclared",
        /// An input that a start may leave out, and without which no start succeeds.
        InputOptional = "input-optional",
        /// An input that nothing uses.
        InputUnused = "input-unused",
        /// A form that takes names with typing mistakes.
        FormOpen = "form-open",
        /// An expression where none is filled in.
        ExpressionLiteral = "expression-literal",
        /// Two files at one path, of which one is hidden.
        FilesOverlap = "files-overlap",
        /// A number of a fan-out that YAML shortens, such as 3.10.
        NumberShortened = "number-shortened",
    }
}

/// One fault or warning.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LintFinding {
    /// Error or warning.
    pub severity: LintSeverity,
    /// Code of the error, or rule of the warning.
    pub code: LintRule,
    /// Line, from 1. Absent where the text has no such place.
    pub line: Option<u64>,
    /// Column, from 1.
    pub column: Option<u64>,
    /// What is wrong, with the field in front, and what to do.
    pub message: String,
}

/// Something found, with the field that it is about in place of a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Remark {
    pub(super) code: LintRule,
    /// Path such as `plan.tasks[0].exec.run`.
    pub(super) field: String,
    pub(super) what: String,
}

impl Remark {
    pub(super) fn new(code: LintRule, field: impl Into<String>, what: impl Into<String>) -> Self {
        Self { code, field: field.into(), what: what.into() }
    }

    /// A fault whose text begins with its field.
    pub(super) fn fault(text: &str) -> Self {
        let (field, what) = text.split_once(": ").unwrap_or(("", text));
        Self::new(LintRule::RecipeInvalid, field, what)
    }
}

impl LintRule {
    /// Error or warning.
    #[must_use]
    pub const fn severity(self) -> LintSeverity {
        match self {
            Self::RecipeInvalid | Self::QueuePolicyViolation => LintSeverity::Error,
            _ => LintSeverity::Warning,
        }
    }
}
