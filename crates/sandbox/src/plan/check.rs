//! What this host does not enforce is refused, by the name of the field.
//!
//! Nothing here looks at the host: the facts are an argument.

use std::path::Path;

use cofferdam_contracts::cache::{MAX_DIRS, MAX_LOCKS, MAX_REPO_BYTES};
use cofferdam_contracts::sandbox::{
    AccessMode, Egress, MAX_TIMEOUT_MS, PhaseSpec, SandboxRequest, SandboxSpec,
};
use cofferdam_contracts::secret::{self, SecretUse, UseFault};
use cofferdam_contracts::test_report::MAX_REPORT_SPECS;
use cofferdam_guest::glob::Glob;

use crate::spec::facts::HostFacts;
use crate::spec::refuse::{Check, PlanError, absolute, argv, full_access, require, variables};

/// Files and globs of one request.
const MAX_ITEMS: usize = 4_096;
/// Where a cached directory would hide what a sandbox is made of.
const RESERVED: [&str; 4] = ["/.cofferdam", "/dev", "/proc", "/sys"];

/// Checks everything that does not depend on what the fields are merged into.
pub(crate) fn request(request: &SandboxRequest, facts: &HostFacts) -> Check {
    argv("cmd", &request.cmd)?;
    variables("env", &request.env)?;
    require(
        (1..=MAX_TIMEOUT_MS).contains(&request.timeout_ms),
        "timeoutMs",
        "must be 1 to 86,400,000 milliseconds",
    )?;
    if let Some(file) = &request.stdin {
        absolute("stdin", file)?;
        require(request.input.is_none(), "input", "cannot be combined with `stdin`")?;
    }
    if let Some(dir) = &request.workdir {
        absolute("workdir", dir)?;
    }
    secrets("", &request.secrets, &request.egress)?;
    files(request)?;
    globs(request)?;
    if let Some(build) = &request.build {
        argv("build.cmd", &build.cmd)?;
        variables("build.env", &build.env)?;
        secrets("build.", &build.secrets, &build.egress)?;
        if let Some(ms) = build.timeout_ms {
            require(
                (1..=MAX_TIMEOUT_MS).contains(&ms),
                "build.timeoutMs",
                "must be 1 to 86,400,000 milliseconds",
            )?;
        }
    }
    request.spec.as_ref().map_or(Ok(()), |wanted| spec(request, wanted))?;
    written_through(request, facts)
}

fn secrets(phase: &str, uses: &[SecretUse], egress: &Egress) -> Check {
    let fault = |fault: UseFault| PlanError::new(format!("{phase}{}", fault.field), fault.why);
    secret::check(uses, egress).map_err(fault)
}

fn spec(request: &SandboxRequest, spec: &SandboxSpec) -> Check {
    const TIER_ONE: &str = "is a policy on an agent's tools, which a sandbox cannot see";
    require(spec.tools_allowed.is_none(), "spec.tools_allowed", TIER_ONE)?;
    require(spec.tools_denied.is_none(), "spec.tools_denied", TIER_ONE)?;
    require(spec.commands.is_none(), "spec.commands", TIER_ONE)?;
    require(spec.max_turns.is_none(), "spec.max_turns", TIER_ONE)?;
    require(spec.max_commands.is_none(), "spec.max_commands", TIER_ONE)?;
    cache(request, spec)?;
    require(
        spec.access_mode.is_none_or(|mode| mode == AccessMode::WorkspaceWrite),
        "spec.access_mode",
        "a sandbox gives `workspace-write`: the task writes its own layer and nothing else",
    )?;
    require(
        spec.image.as_ref().is_none_or(|image| *image == request.env_ref),
        "spec.image",
        "differs from envRef; a sandbox has one root file system",
    )?;
    if let Some(dir) = &spec.working_dir {
        absolute("spec.working_dir", dir)?;
        require(
            request.workdir.as_ref().is_none_or(|wanted| wanted == dir),
            "spec.working_dir",
            "differs from workdir",
        )?;
    }
    require(
        spec.user.as_ref().is_none_or(|user| request.user.as_ref() == Some(user)),
        "spec.user",
        "differs from user",
    )?;
    phases(request, spec)?;
    mounts(spec)
}

fn cache(request: &SandboxRequest, spec: &SandboxSpec) -> Check {
    let Some(cache) = &spec.cache else { return Ok(()) };
    require(
        request.build.is_some(),
        "spec.cache",
        "is filled by the build phase, and there is none",
    )?;
    let named = cache.repo.as_ref().is_none_or(|repo| {
        (1..=MAX_REPO_BYTES).contains(&repo.len()) && !repo.chars().any(char::is_control)
    });
    require(named, "spec.cache.repo", "must have 1 to 256 bytes and no control characters")?;
    require(
        (1..=MAX_LOCKS).contains(&cache.paths.len()),
        "spec.cache.paths",
        "must name 1 to 16 lock files: their bytes select the base",
    )?;
    for (index, path) in cache.paths.iter().enumerate() {
        let whole = if path.starts_with('/') { path.clone() } else { format!("/{path}") };
        absolute(&format!("spec.cache.paths[{index}]"), &whole)?;
    }
    let dirs = cache.base_dirs();
    require(dirs.len() <= MAX_DIRS, "spec.cache.dirs", "at most 8 directories")?;
    for (index, dir) in dirs.iter().enumerate() {
        let field = format!("spec.cache.dirs[{index}]");
        absolute(&field, dir)?;
        let reserved = RESERVED.iter().any(|taken| Path::new(dir).starts_with(taken));
        require(!reserved, &field, "lies where the sandbox keeps things of its own")?;
        let apart = dirs.iter().enumerate().all(|(other, path)| {
            other == index
                || !(Path::new(path).starts_with(dir) || Path::new(dir).starts_with(path))
        });
        require(apart, &field, "lies in, above or at another cached directory")?;
        let mounts = spec.mounts.as_deref().unwrap_or_default();
        let given = request.files_in.iter().map(|file| &file.path);
        let hides = given
            .chain(mounts.iter().map(|mount| &mount.target))
            .any(|path| Path::new(path).starts_with(dir));
        require(!hides, &field, "would hold what the task is given; a base holds what is built")?;
    }
    Ok(())
}

fn phases(request: &SandboxRequest, spec: &SandboxSpec) -> Check {
    let Some(phases) = &spec.phases else { return Ok(()) };
    let said = |phase: &PhaseSpec, field: &str, planned: &[SecretUse]| {
        let is_equal = phase.secrets.as_ref().is_none_or(|secrets| secrets == planned);
        require(is_equal, field, "differs from the secrets of the request")
    };
    if let Some(build) = &phases.build {
        let planned = request.build.as_ref().map_or(&Egress::None, |wanted| &wanted.egress);
        require(
            build.egress.as_ref().is_none_or(|egress| egress == planned),
            "spec.phases.build.egress",
            "differs from build.net",
        )?;
        let planned = request.build.as_ref().map_or(&[][..], |wanted| &wanted.secrets);
        said(build, "spec.phases.build.secrets", planned)?;
        let planned = request.build.as_ref().map(|wanted| wanted.timeout_ms);
        require(
            build.timeout_ms.is_none() || planned == Some(build.timeout_ms),
            "spec.phases.build.timeout_ms",
            "differs from build.timeoutMs",
        )?;
    }
    if let Some(exec) = &phases.exec {
        require(
            exec.egress.as_ref().is_none_or(|egress| *egress == request.egress),
            "spec.phases.exec.egress",
            "differs from net",
        )?;
        said(exec, "spec.phases.exec.secrets", &request.secrets)?;
        require(
            exec.timeout_ms.is_none_or(|ms| ms == request.timeout_ms),
            "spec.phases.exec.timeout_ms",
            "differs from timeoutMs",
        )?;
    }
    Ok(())
}

fn mounts(spec: &SandboxSpec) -> Check {
    let mounts = spec.mounts.as_deref().unwrap_or_default();
    require(mounts.len() <= MAX_ITEMS, "spec.mounts", "at most 4,096 mounts")?;
    for (index, mount) in mounts.iter().enumerate() {
        let field = |name: &str| format!("spec.mounts[{index}].{name}");
        absolute(&field("source"), &mount.source)?;
        absolute(&field("target"), &mount.target)?;
        require(
            mount.access != AccessMode::Full,
            &field("access"),
            "this host gives no source to write through; ask for `workspace-write`",
        )?;
    }
    Ok(())
}

fn files(request: &SandboxRequest) -> Check {
    require(request.files_in.len() <= MAX_ITEMS, "filesIn", "at most 4,096 files")?;
    for (index, file) in request.files_in.iter().enumerate() {
        let field = |name: &str| format!("filesIn[{index}].{name}");
        absolute(&field("path"), &file.path)?;
        require(
            file.inline.is_some() != file.uri.is_some(),
            &field("inline"),
            "exactly one of `inline` and `uri` must be given",
        )?;
    }
    Ok(())
}

/// A source to write through is the host's own admin's to give.
fn written_through(request: &SandboxRequest, facts: &HostFacts) -> Check {
    full_access(
        request,
        |_| facts.is_open(),
        "only the host's own admin gives a source to write through; ask for `workspace-write`",
    )
}

fn globs(request: &SandboxRequest) -> Check {
    require(request.artifacts.len() <= MAX_ITEMS, "artifacts", "at most 4,096 globs")?;
    for (index, artifact) in request.artifacts.iter().enumerate() {
        if let Err(error) = Glob::parse(&artifact.path) {
            return Err(PlanError::new(format!("artifacts[{index}]"), error.to_string()));
        }
    }
    require(request.reports.len() <= MAX_REPORT_SPECS, "reports", "at most 20 entries")?;
    for (index, report) in request.reports.iter().enumerate() {
        if let Err(error) = Glob::parse(&report.path) {
            return Err(PlanError::new(format!("reports[{index}]"), error.to_string()));
        }
    }
    Ok(())
}
