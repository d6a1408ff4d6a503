//! Why a recipe has no plan.

use crate::error::{ErrorCode, Refusal};
use crate::recipe::{Recipe, TaskSpec};
use crate::template::TemplateError;

/// Why a recipe has no plan for a form.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CompileError {
    /// The recipe, the form or a bound forbids it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It lists files, and the caller cannot: whether it has a plan is known only on a worker.
    #[error("the recipe lists files, which only a worker does")]
    NeedsFiles,
}

impl CompileError {
    /// What the caller gets.
    #[must_use]
    pub fn refusal(self) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal,
            needs_files @ Self::NeedsFiles => {
                Refusal::new(ErrorCode::RecipeInvalid, needs_files.to_string())
            }
        }
    }
}

/// Why a task has no plan.
pub(super) enum Fault {
    /// Something in it does not hold together.
    Invalid(String),
    /// It would be larger than a plan may be.
    TooLarge { metric: &'static str, limit: usize },
    /// It lists files.
    NeedsFiles,
}

impl From<String> for Fault {
    fn from(why: String) -> Self {
        Self::Invalid(why)
    }
}

impl From<&str> for Fault {
    fn from(why: &str) -> Self {
        Self::Invalid(why.to_owned())
    }
}

impl Fault {
    pub(super) fn of(error: TemplateError, field: &str) -> Self {
        match error {
            TemplateError::TooLarge { metric, limit } => Self::TooLarge { metric, limit },
            TemplateError::NeedsFiles => Self::NeedsFiles,
            other => Self::Invalid(format!("{field}: {other}")),
        }
    }

    pub(super) fn of_task(self, recipe: &Recipe, task: &TaskSpec) -> CompileError {
        match self {
            Self::NeedsFiles => CompileError::NeedsFiles,
            Self::Invalid(why) => broken(recipe, task, &why).into(),
            Self::TooLarge { metric, limit } => {
                let why = format!(
                    "recipe {}@{}: task {:?}: {metric} would pass {limit}",
                    recipe.id, recipe.v, task.name
                );
                let details = serde_json::json!({"metric": metric, "limit": limit});
                Refusal::new(ErrorCode::QueuePolicyViolation, why).with(details).into()
            }
        }
    }
}

pub(super) fn broken(recipe: &Recipe, task: &TaskSpec, why: &str) -> Refusal {
    invalid(recipe, &format!("task {:?}: {why}", task.name))
}

pub(super) fn invalid(recipe: &Recipe, why: &str) -> Refusal {
    Refusal::new(ErrorCode::RecipeInvalid, format!("recipe {}@{}: {why}", recipe.id, recipe.v))
}
