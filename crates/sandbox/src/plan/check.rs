//! What this host does not enforce is refused, by the name of the field.
//!
//! Nothing here looks at the host: the facts are an argument.

use cofferdam_contracts::sandbox::{
    AccessMode, DEFAULT_PIDS, Egress, Limits, MAX_STREAM_BYTES, MAX_TIMEOUT_MS, MIN_NOFILE,
    PhaseSpec, SandboxRequest, SandboxSpec,
};
use cofferdam_contracts::secret::{self, SecretUse, UseFault};
use cofferdam_guest::glob::Glob;

use super::large;
use crate::class::ClassProfile;
use crate::spec::cached;
use crate::spec::facts::HostFacts;
use crate::spec::refuse::{
    Check, PlanError, absolute, argv, full_access, require, variables, within,
};

/// Files and globs of one request.
const MAX_ITEMS: usize = 4_096;

/// Checks everything that does not depend on what the fields are merged into.
pub(crate) fn check(request: &SandboxRequest, facts: &HostFacts) -> Check {
    argv("cmd", &request.cmd)?;
    variables("env", &request.env)?;
    require(
        (1..=MAX_TIMEOUT_MS).contains(&request.timeout_ms),
        "timeoutMs",
        "must be 1 to 86,400,000 milliseconds",
    )?;
    if let Some(file) = &request.stdin {
        absolute("stdin", file)?;
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
    cached::check(request, spec)?;
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
    for (index, text) in request.artifacts.iter().enumerate() {
        if let Err(error) = Glob::parse(text) {
            return Err(PlanError::new(format!("artifacts[{index}]"), error.to_string()));
        }
    }
    Ok(())
}

/// Merges the two places that may set limits, and holds the result against the machine and the class, which
/// refuses here whatever else it cannot enforce.
pub(crate) fn limits(
    request: &SandboxRequest,
    facts: &HostFacts,
    profile: &dyn ClassProfile,
) -> Result<Limits, PlanError> {
    let spec = request.spec.as_ref().and_then(|spec| spec.limits).unwrap_or_default();
    let asked = request.limits;
    let merged = Limits {
        cpu: one_of("spec.limits.cpu", asked.cpu, spec.cpu)?,
        mem_mb: one_of("spec.limits.mem_mb", asked.mem_mb, spec.mem_mb)?,
        pids: one_of("spec.limits.pids", asked.pids, spec.pids)?,
        disk_mb: one_of("spec.limits.disk_mb", asked.disk_mb, spec.disk_mb)?,
        output_bytes: one_of("spec.limits.output_bytes", asked.output_bytes, spec.output_bytes)?,
        nofile: one_of("spec.limits.nofile", asked.nofile, spec.nofile)?,
    };
    if let Some(cpu) = merged.cpu {
        let most = f64::from(facts.cpus);
        let message = format!("must be 0.01 to {most}, the CPUs of this host");
        require((0.01..=most).contains(&cpu), "limits.cpu", &message)?;
    }
    let least = profile.least_mem_mb();
    within("limits.memMB", merged.mem_mb, least, facts.mem_mb, "MiB of this host")?;
    profile.refuse(request, merged, facts)?;
    within("limits.pids", merged.pids, 1, facts.pids, "processes of this host")?;
    large::check(profile, merged, facts)?;
    let (most, of) = (MAX_STREAM_BYTES, "bytes of a stream that a host keeps");
    within("limits.outputBytes", merged.output_bytes, 1, most, of)?;
    within(
        "limits.nofile",
        merged.nofile,
        MIN_NOFILE,
        facts.nofile_most,
        "hard limit of this host",
    )?;
    if profile.class().is_on_host_kernel() {
        let most = facts.ceilings.nofile(merged.pids.unwrap_or(DEFAULT_PIDS));
        let message = format!(
            "must be at most {most} for each of so many processes (limits.pids): together they may have half of the \
             files that this host's kernel opens (fs.file-max)"
        );
        require(merged.nofile.is_none_or(|asked| asked <= most), "limits.nofile", &message)?;
    }
    for (controller, field) in
        [("memory", "limits.memMB"), ("pids", "limits.pids"), ("cpu", "limits.cpu")]
    {
        let message = format!("the cgroup controller `{controller}` is not available on this host");
        require(facts.cgroups.has(controller), field, &message)?;
    }
    Ok(merged)
}

fn one_of<T: PartialEq>(field: &str, a: Option<T>, b: Option<T>) -> Result<Option<T>, PlanError> {
    match (a, b) {
        (Some(a), Some(b)) if a != b => Err(PlanError::new(field, "differs from limits")),
        (Some(value), _) | (None, Some(value)) => Ok(Some(value)),
        (None, None) => Ok(None),
    }
}
