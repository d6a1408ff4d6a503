//! What this host does not enforce is refused, by the name of the field.
//!
//! Nothing here looks at the host: the facts are an argument.

use std::collections::BTreeMap;

use cofferdam_contracts::sandbox::{
    AccessMode, DEFAULT_PIDS, Egress, FileIn, Limits, MAX_STREAM_BYTES, MAX_TIMEOUT_MS, MIN_NOFILE,
    SandboxRequest, SandboxSpec,
};
use cofferdam_guest::glob::Glob;

use crate::cache;
use crate::class::Class;
use crate::crypt;
use crate::gvisor;
use crate::host::HostFacts;
use crate::microvm;

/// Arguments of a command and variables of its environment: the kernel takes 2 MiB of them together,
/// which is far beyond what a plan that a person reads should hold.
const MAX_WORDS: usize = 4_096;
/// Bytes of one argument or variable: the kernel's own bound (`MAX_ARG_STRLEN`).
const MAX_WORD_BYTES: usize = 131_072;
/// The agent, a shell and a program of some size.
const MIN_MEM_MB: u64 = 16;
/// Files and globs of one request.
const MAX_ITEMS: usize = 4_096;

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

type Check = Result<(), PlanError>;

fn require(ok: bool, field: &str, message: &str) -> Check {
    if ok { Ok(()) } else { Err(PlanError::new(field, message)) }
}

/// Checks everything that does not depend on what the fields are merged into.
pub(crate) fn check(request: &SandboxRequest) -> Check {
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
    files(request)?;
    globs(request)?;
    if let Some(build) = &request.build {
        argv("build.cmd", &build.cmd)?;
        variables("build.env", &build.env)?;
        if let Some(ms) = build.timeout_ms {
            require(
                (1..=MAX_TIMEOUT_MS).contains(&ms),
                "build.timeoutMs",
                "must be 1 to 86,400,000 milliseconds",
            )?;
        }
    }
    request.spec.as_ref().map_or(Ok(()), |wanted| spec(request, wanted))
}

fn spec(request: &SandboxRequest, spec: &SandboxSpec) -> Check {
    const TIER_ONE: &str = "is a policy on an agent's tools, which a sandbox cannot see";
    require(spec.tools_allowed.is_none(), "spec.tools_allowed", TIER_ONE)?;
    require(spec.tools_denied.is_none(), "spec.tools_denied", TIER_ONE)?;
    require(spec.max_turns.is_none(), "spec.max_turns", TIER_ONE)?;
    require(spec.max_commands.is_none(), "spec.max_commands", TIER_ONE)?;
    cache::check(request, spec)?;
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
    phases(request, spec)?;
    mounts(spec)
}

fn phases(request: &SandboxRequest, spec: &SandboxSpec) -> Check {
    let Some(phases) = &spec.phases else { return Ok(()) };
    if let Some(build) = &phases.build {
        let planned = request.build.as_ref().map_or(&Egress::None, |wanted| &wanted.egress);
        require(
            build.egress.as_ref().is_none_or(|egress| egress == planned),
            "spec.phases.build.egress",
            "differs from build.net",
        )?;
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
pub(crate) fn written_through(request: &SandboxRequest, facts: &HostFacts) -> Check {
    full_access(
        request,
        |_| facts.is_open(),
        "only the host's own admin gives a source to write through; ask for `workspace-write`",
    )
}

/// Without ids of its own a sandbox's root is the host's, and what it leaves there is root's.
pub(crate) fn written_as_root(request: &SandboxRequest, class: Class, facts: &HostFacts) -> Check {
    full_access(
        request,
        |file| class != Class::Container || facts.ids.is_ok() || !is_host(file),
        "this host has no user namespaces for sandboxes, so what the task writes would be root's; ask for \
         `workspace-write`, or see `cofferdam doctor`",
    )
}

fn is_host(file: &FileIn) -> bool {
    file.uri.as_ref().is_some_and(|uri| uri.starts_with("host://"))
}

/// A machine sees the host's trees as a disk that it only reads.
pub(crate) fn machine_written_through(request: &SandboxRequest, class: Class) -> Check {
    full_access(
        request,
        |file| class != Class::Microvm || !is_host(file),
        "the class `microvm` gives no source to write through; ask for `workspace-write`, or for the \
         class `container`",
    )
}

fn full_access(request: &SandboxRequest, may: impl Fn(&FileIn) -> bool, why: &str) -> Check {
    for (index, file) in request.files_in.iter().enumerate() {
        let field = format!("filesIn[{index}].access");
        require(file.access != AccessMode::Full || may(file), &field, why)?;
    }
    Ok(())
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

/// Merges the two places that may set limits, and holds the result against the machine.
pub(crate) fn limits(
    request: &SandboxRequest,
    facts: &HostFacts,
    class: Class,
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
    let least = if class == Class::Gvisor { gvisor::MIN_MEM_MB } else { MIN_MEM_MB };
    within("limits.memMB", merged.mem_mb, least, facts.mem_mb, "MiB of this host")?;
    if class == Class::Gvisor {
        within("limits.pids", merged.pids, 1, gvisor::MAX_PIDS, "processes of a gVisor sandbox")?;
    }
    if class == Class::Microvm {
        within("limits.pids", merged.pids, 1, microvm::MAX_PIDS, "processes of a machine")?;
    }
    within("limits.pids", merged.pids, 1, facts.pids, "processes of this host")?;
    crypt::check(class, merged, facts)?;
    let (most, of) = (MAX_STREAM_BYTES, "bytes of a stream that a host keeps");
    within("limits.outputBytes", merged.output_bytes, 1, most, of)?;
    within(
        "limits.nofile",
        merged.nofile,
        MIN_NOFILE,
        facts.nofile_most,
        "hard limit of this host",
    )?;
    if class.is_on_host_kernel() {
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

fn within(field: &str, value: Option<u64>, least: u64, most: u64, of: &str) -> Check {
    let message = format!("must be {least} to {most}, the {of}");
    require(value.is_none_or(|value| (least..=most).contains(&value)), field, &message)
}
