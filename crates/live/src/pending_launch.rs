//! A sandbox that this process asked for, until its task takes it.

use std::collections::BTreeMap;

use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::live::LiveRequest;

use crate::early::StartFiles;
use crate::template::resolved_template::ResolvedTemplate;
use crate::tokens::Tokens;

/// A sandbox that was asked for, until its task takes it.
#[derive(Debug)]
pub(crate) struct PendingLaunch {
    pub tenant: TenantId,
    /// The key that asked.
    pub key_id: String,
    /// The whole request. Its environment may hold secrets, so no table has it.
    pub request: LiveRequest,
    /// What it is made of and begins with.
    pub template: ResolvedTemplate,
    /// Variables of the sandbox whose files these are; its own come before them.
    pub inherited: BTreeMap<String, String>,
    /// What it begins with.
    pub files: StartFiles,
    /// Tokens of its lives before, where they stay; `None`: new ones.
    pub tokens: Option<Tokens>,
}
