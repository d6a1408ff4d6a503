//! A field of a request that is refused, by its name; and the checks that several fields share.

use std::collections::BTreeMap;

use cofferdam_contracts::sandbox::{AccessMode, InputFile, SandboxRequest};

/// Arguments of a command and variables of its environment: the kernel takes 2 MiB of them together,
/// which is far beyond what a plan that a person reads should hold.
const MAX_WORDS: usize = 4_096;
/// Bytes of one argument or variable: the kernel's own bound (`MAX_ARG_STRLEN`).
const MAX_WORD_BYTES: usize = 131_072;
/// A field that this host cannot enforce as requested. Nothing ran.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct PlanError {
    /// The field as the request names it, such as `limits.memMB`.
    pub field: String,
    /// Why, and what would be accepted.
    pub message: String,
}

impl PlanError {
    pub(crate) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

/// Whether a field may stay as it is.
pub(crate) type Check = Result<(), PlanError>;

pub(crate) fn require(ok: bool, field: &str, message: &str) -> Check {
    if ok { Ok(()) } else { Err(PlanError::new(field, message)) }
}

pub(crate) fn argv(field: &str, words: &[String]) -> Check {
    require(words.first().is_some_and(|name| !name.is_empty()), field, "names no program")?;
    require(words.len() <= MAX_WORDS, field, "at most 4,096 arguments")?;
    require(
        words.iter().all(|word| word.len() < MAX_WORD_BYTES && !word.contains('\0')),
        field,
        "an argument has at most 131,071 bytes and no NUL",
    )
}

pub(crate) fn variables(field: &str, env: &BTreeMap<String, String>) -> Check {
    require(env.len() <= MAX_WORDS, field, "at most 4,096 variables")?;
    let fits = |(name, value): (&String, &String)| {
        !name.is_empty()
            && !name.contains(['=', '\0'])
            && !value.contains('\0')
            && name.len() + value.len() < MAX_WORD_BYTES - 1
    };
    require(
        env.iter().all(fits),
        field,
        "a name is not empty and has no `=`, neither has a NUL, both have at most 131,070 bytes",
    )
}

/// An absolute path of plain names, below the root.
pub(crate) fn absolute(field: &str, path: &str) -> Check {
    let plain = path.len() > 1
        && path.len() < 4_096
        && !path.contains('\0')
        && path.strip_prefix('/').is_some_and(|rest| {
            rest.trim_end_matches('/').split('/').all(|name| !matches!(name, "" | "." | ".."))
        });
    require(plain, field, "must be an absolute path below /, without empty, `.` or `..` components")
}

/// Refuses full access to a file for which it may not be had.
pub(crate) fn full_access(
    request: &SandboxRequest,
    may: impl Fn(&InputFile) -> bool,
    why: &str,
) -> Check {
    for (index, file) in request.files_in.iter().enumerate() {
        let field = format!("filesIn[{index}].access");
        require(file.access != AccessMode::Full || may(file), &field, why)?;
    }
    Ok(())
}

/// Whether a file is one of the host.
pub(crate) fn is_host(file: &InputFile) -> bool {
    file.host_source().is_some()
}

/// Whether a value lies within bounds that are `of` something.
pub(crate) fn within(field: &str, value: Option<u64>, least: u64, most: u64, of: &str) -> Check {
    let message = format!("must be {least} to {most}, the {of}");
    require(value.is_none_or(|value| (least..=most).contains(&value)), field, &message)
}
