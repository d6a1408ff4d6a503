//! What a sandbox is launched from.

use std::collections::BTreeMap;
use std::sync::Arc;

use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::TemplateName;
use cofferdam_contracts::live::LiveRequest;
use cofferdam_flows::Result;
use cofferdam_sandbox::{DetachedLayer, InitialFiles};

use crate::early::StartFiles;
use crate::layer::loan::Loan;
use crate::refusal::refuse;
use crate::template::resolved_template::ResolvedTemplate;
use crate::tokens::Tokens;

/// A sandbox that is asked for, once what it is made of is at hand.
#[derive(Debug)]
pub(crate) struct Spec {
    /// What its tenant asks for. Its environment may hold secrets, so no table has it.
    pub request: LiveRequest,
    /// What it is made of and begins with.
    pub template: ResolvedTemplate,
    /// Variables of the sandbox whose files these are; its own come before them.
    pub inherited: BTreeMap<String, String>,
    /// The files that it begins with.
    pub source: Source,
    /// Tokens of its lives before, where they stay; `None`: new ones.
    pub tokens: Option<Tokens>,
}

/// The files that a sandbox begins with.
#[derive(Debug)]
pub(crate) enum Source {
    /// The image of its template alone.
    Template,
    /// Files that are kept.
    Snapshot(InitialFiles),
    /// The layer of its own pause, which stays that until the sandbox has begun.
    Layer(Arc<DetachedLayer>, Loan),
}

impl Spec {
    /// Of a new sandbox.
    pub(crate) fn of(request: LiveRequest, template: ResolvedTemplate, source: Source) -> Self {
        Self { request, template, inherited: BTreeMap::new(), source, tokens: None }
    }
}

impl From<Source> for StartFiles {
    fn from(source: Source) -> Self {
        match source {
            Source::Template => Self::of(None, None),
            Source::Snapshot(files) => Self::of(Some(files), None),
            Source::Layer(layer, loan) => Self::of(Some(InitialFiles::Layer(layer)), Some(loan)),
        }
    }
}

/// The template and the time to live in seconds of a request, once all of it is within its bounds.
pub(crate) fn checked(request: &LiveRequest) -> Result<(TemplateName, u64)> {
    request.check().map_err(|why| refuse(ErrorCode::PolicyViolation, why.to_string()))
}
