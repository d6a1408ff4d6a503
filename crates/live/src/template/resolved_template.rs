//! What a sandbox is made of and begins with: a template of the host, or one that its tenant built.

use std::time::Duration;

use cofferdam_contracts::id::{BuildId, SnapshotId, TemplateId, TemplateName};
use cofferdam_contracts::template_build::BuildState;
use cofferdam_ledger::builds::NewBuildAssignment;
use cofferdam_sandbox::templates::Template;
use serde::{Deserialize, Serialize};

/// How long one ready command of a host's template may take: one that hangs is asked again.
const HOSTS_READY: Duration = Duration::from_secs(5);
/// Of a built one: some of E2B's are `sleep N`.
const BUILT_READY: Duration = Duration::from_secs(20);

/// What a build left, beside its files. It lies at the head of their sealed file: its variables may be secrets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BuildOutput {
    /// Id of the template that the build made.
    pub template: TemplateId,
    /// The template's name when it was built.
    pub name: TemplateName,
    /// What its steps set.
    pub state: BuildState,
    /// Shell command of the program that each sandbox begins with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// Shell command that succeeds once a sandbox can be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// CPUs of its sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Memory in MiB that its sandboxes have at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_mb: Option<u32>,
}

/// What a sandbox is made of and begins with.
#[derive(Debug, Clone)]
pub(crate) struct ResolvedTemplate {
    /// Its template, as the record names it.
    pub name: TemplateName,
    /// The image, by digest; `None`: the host's programs.
    pub image: Option<String>,
    /// CPUs, where the template says so.
    pub cpu: Option<u32>,
    /// Memory in MiB that it has at least.
    pub mem_mb: Option<u64>,
    /// The program that it begins with.
    pub program: Option<StartupProgram>,
    /// Of a built template: what its build left.
    pub built: Option<BuildOutput>,
}

/// A build that a sandbox is made for.
#[derive(Debug)]
pub(crate) struct BuildAssignment {
    /// Build whose steps the sandbox runs.
    pub id: BuildId,
    /// The layer that its files are, and how many steps that has behind it.
    pub layer: Option<(SnapshotId, usize)>,
}

impl BuildAssignment {
    /// For the record.
    pub(crate) fn row(&self) -> NewBuildAssignment<'_> {
        let layer = self.layer.as_ref().map(|(id, steps)| (id, *steps));
        NewBuildAssignment { build: &self.id, layer }
    }
}

/// A program that a sandbox begins with.
#[derive(Debug, Clone)]
pub(crate) struct StartupProgram {
    /// Shell command that starts it; `None`: nothing is started, and the ready command is waited for.
    pub start: Option<String>,
    /// Shell command that succeeds once it can be used.
    pub ready: Option<String>,
    /// What both run under.
    pub state: BuildState,
    /// How long one ready command may take.
    pub ready_patience: Duration,
}

impl StartupProgram {
    fn of(start: Option<&String>, ready: Option<&String>, state: BuildState) -> Option<Self> {
        let is_any = start.is_some() || ready.is_some();
        is_any.then(|| Self {
            start: start.cloned(),
            ready: ready.cloned(),
            state,
            ready_patience: BUILT_READY,
        })
    }
}

impl ResolvedTemplate {
    /// Of a template of the host; `None`: its own programs. Pure.
    pub(crate) fn of_host(name: &TemplateName, template: Option<Template>) -> Self {
        let program = template.as_ref().and_then(|template| {
            let state = BuildState { user: template.user, ..BuildState::default() };
            let begins =
                StartupProgram::of(template.start.as_ref(), template.ready.as_ref(), state)?;
            Some(StartupProgram { ready_patience: HOSTS_READY, ..begins })
        });
        let mem_mb = template.as_ref().and_then(|template| template.mem_mb);
        let image = template.map(|template| template.image);
        Self { name: name.clone(), image, cpu: None, mem_mb, program, built: None }
    }

    /// Of a built template, whose files lie on this image. Pure.
    pub(crate) fn of_built(name: TemplateName, image: Option<String>, built: BuildOutput) -> Self {
        Self {
            name,
            image,
            cpu: built.cpu,
            mem_mb: built.mem_mb.map(u64::from),
            program: built.program(),
            built: Some(built),
        }
    }
}

impl BuildOutput {
    /// The program that its sandboxes begin with.
    pub(crate) fn program(&self) -> Option<StartupProgram> {
        StartupProgram::of(self.start.as_ref(), self.ready.as_ref(), self.state.clone())
    }
}
