//! What a run needs of the host that executes it, looked at when the run is submitted and when it is compiled: what is absent
//! then would fail every attempt.
//!
//! ```text
//! plan --needs, pure--> host paths, images, programs --AllowedPaths, /usr--> the first that is absent --only host?--> refused, nothing written
//! ```
//! **A tenant gets one answer for what is absent and for what it may not be given**, as from the sandbox later. Nothing is looked at
//! where it would not be decided by it: in a process without a worker, where a worker of another host may take the run, and where
//! a provider holds the sandboxes.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::patch::REPO_MOUNT;
use cofferdam_contracts::plan::Plan;
use cofferdam_contracts::recipe::EXEC_RECIPE;
use cofferdam_contracts::sandbox::SandboxRequest;
use cofferdam_ledger::Ledger;
use cofferdam_sandbox::image::{ImageError, Images};
use cofferdam_sandbox::{
    AllowedPaths, HostFacts, HostPath, Links, OpenError, USUAL_PATH, is_executable,
};
use serde_json::{Value, json};

use crate::error::Result;

/// Paths and programs that are looked at for one run, each once: a fan-out names the same few. Others are found absent by
/// their sandbox.
pub(crate) const MAX_LOOKS: usize = 1_024;
/// Bytes of a program's name: the kernel's own bound.
const MAX_NAME_BYTES: usize = 255;
/// Directories of the host that the image `host` shows at the same place, or links into its `/usr`.
const SHOWN: [&str; 5] = ["/usr", "/bin", "/sbin", "/lib", "/lib64"];

/// Looks at the host that executes the runs of this process, once it is known.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostAdmission(Arc<OnceLock<HostView>>);

#[derive(Debug)]
struct HostView {
    /// As in `app.executors`.
    host_id: String,
    allowed: AllowedPaths,
    /// Absent where they cannot be read: what is missing is found by the sandbox then.
    images: Option<Images>,
}

/// Who asks, as far as it decides what is looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostReach {
    /// The host's own admin, to whom every directory is open.
    pub is_admin: bool,
    /// A client that waits for the command's own exit status: a program that is absent is 127 to it, as in a shell.
    pub is_relayed: bool,
}

/// Something that a task needs of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HostNeed<'a> {
    /// Entry of `files`, or the repository.
    File { index: usize, file: &'a str, source: &'a str },
    /// A mount of `spec`: in a recipe, the program of an agent.
    Mount(&'a str),
    /// A directory that is the root file system.
    Root(&'a str),
    /// Name of an image of this host.
    Image(&'a str),
    /// First word of a phase's command.
    Program { phase: &'static str, name: &'a str },
}

impl<'a> HostNeed<'a> {
    /// What is looked at. Equal ones are looked at once.
    const fn key(self) -> (u8, &'a str) {
        match self {
            Self::File { source, .. } | Self::Mount(source) => (0, source),
            Self::Root(source) => (1, source),
            Self::Program { name, .. } => (2, name),
            Self::Image(name) => (3, name),
        }
    }

    /// The recipe's field.
    fn field(self) -> String {
        match self {
            Self::File { file, .. } if file == REPO_MOUNT => "repo.path".to_owned(),
            Self::File { index, .. } => format!("files[{index}].from"),
            Self::Mount(_) => "spec.mounts".to_owned(),
            Self::Root(_) | Self::Image(_) => "image".to_owned(),
            Self::Program { phase, .. } => format!("{phase}.run"),
        }
    }

    /// Why a run with it would fail; `None`: it would not, as far as can be seen. Looks at the host.
    fn absence(self, allowed: &AllowedPaths, images: Option<&Images>) -> Option<String> {
        let (source, links) = match self {
            Self::File { source, .. } | Self::Mount(source) => (source, Links::Beneath),
            Self::Root(source) => (source, Links::Refused),
            Self::Image(name) => return no_image(images?, name),
            Self::Program { name, .. } => {
                return (!is_program(name)).then(|| {
                    format!(
                        "{name:?} is not among the programs of this host, which the image `host` shows: correct its name, install \
                         it below /usr, or name an image that has it"
                    )
                });
            }
        };
        let error = allowed.open(&HostPath::said(source), links).err()?;
        error.is_permanent().then(|| {
            // Without the path: an answer that leaves this host hides some.
            let what = match &error {
                OpenError::Refused(_) => {
                    "it is not there, or not within a directory that this run may be given"
                        .to_owned()
                }
                other => other.to_string(),
            };
            format!("{what}; correct the path, or let the operator allow it with --allow-dir")
        })
    }
}

/// Why no sandbox of an image can be made here; `None`: it is there, or cannot be looked at. An image that was built from a recipe has a
/// name that is easily forgotten, so it is looked for.
fn no_image(images: &Images, name: &str) -> Option<String> {
    let error = images.resolve(name).err()?;
    match error {
        ImageError::Unknown(_) => {
            let built = format!("template/{name}");
            Some(match images.resolve(&built) {
                Ok(_) => format!("{error}; one that was built is here: `image:{built}`"),
                Err(_) => error.to_string(),
            })
        }
        ImageError::Moved { .. } | ImageError::Name(_) => Some(error.to_string()),
        _ => None,
    }
}

/// What the tasks of a plan need, in its order. Pure.
fn needs(plan: &Plan) -> impl Iterator<Item = (&str, HostNeed<'_>)> {
    plan.all_tasks().flat_map(|task| {
        let needs = task.work.request().into_iter().flat_map(needs_of);
        needs.map(move |need| (task.name.as_str(), need))
    })
}

fn needs_of(request: &SandboxRequest) -> impl Iterator<Item = HostNeed<'_>> {
    let files = request.files_in.iter().enumerate().filter_map(|(index, file)| {
        let source = file.uri.as_deref()?.strip_prefix("host://")?;
        // What is bound is held, whatever became of the path since.
        let is_live = file.tree.is_none();
        is_live.then_some(HostNeed::File { index, file: &file.path, source })
    });
    let spec = request.spec.as_ref();
    let mounts = spec.and_then(|spec| spec.mounts.as_ref()).into_iter().flatten();
    let root = request.env_ref.strip_prefix("dir:").map(HostNeed::Root);
    // That of a template is pinned when its sandbox is made.
    let image = request.env_ref.strip_prefix("image:").filter(|_| request.template_key.is_none());
    let files = files.chain(mounts.map(|mount| HostNeed::Mount(&mount.source)));
    files.chain(root).chain(image.map(HostNeed::Image)).chain(programs_of(request))
}

/// Programs that only the host's `/usr` can have: what a build phase or an input may bring, and what a `PATH` of the task's own may
/// find, is not known before the task runs. Pure.
fn programs_of(request: &SandboxRequest) -> impl Iterator<Item = HostNeed<'_>> {
    let has_mounts = request.spec.as_ref().is_some_and(|spec| spec.mounts.is_some());
    let is_covered = request.files_in.iter().any(|file| is_shown(&file.path));
    let is_hosts = request.env_ref == "host" && request.template_key.is_none();
    let is_known = is_hosts && !has_mounts && !is_covered && request.toolchains.is_empty();
    let build = request.build.as_ref().map(|build| ("build", &build.cmd, &build.env));
    // What the build phase leaves is there when the command starts.
    let first = build.unwrap_or(("exec", &request.cmd, &request.env));
    let first = Some(first).filter(|_| is_known);
    first.into_iter().filter_map(|(phase, cmd, env)| {
        let name = cmd.first()?.as_str();
        let is_looked_up = match name.contains('/') {
            true => is_shown(name) && is_straight(name),
            false => !env.contains_key("PATH") && !matches!(name, "" | "." | ".."),
        };
        let is_name = name.len() <= MAX_NAME_BYTES && !name.contains('\0');
        (is_looked_up && is_name).then_some(HostNeed::Program { phase, name })
    })
}

/// Whether a path is one of what the image `host` shows of the host, or lies below it.
fn is_shown(path: &str) -> bool {
    SHOWN.iter().any(|dir| Path::new(path).starts_with(dir))
}

/// Whether no component of an absolute path leads elsewhere by its text.
fn is_straight(path: &str) -> bool {
    path.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."))
}

/// Whether the host has it, where a sandbox of the image `host` looks for it.
fn is_program(name: &str) -> bool {
    match name.contains('/') {
        true => is_executable(Path::new(name)),
        false => USUAL_PATH.split(':').any(|dir| is_executable(&Path::new(dir).join(name))),
    }
}

impl HostAdmission {
    /// The host that this process executes runs on. A provider's sandboxes have nothing of it.
    pub(crate) fn executes_on(&self, host_id: &str, facts: &HostFacts) {
        if facts.provider.is_none() {
            let view = HostView {
                host_id: host_id.to_owned(),
                allowed: facts.allowed.clone(),
                images: Images::open(&facts.state_dir).ok(),
            };
            // One worker a process; of a second one's host nothing else would be seen.
            let _ = self.0.set(view);
        }
    }

    /// Why the plan's run would fail on this host, however often it is tried. Looks at the host, so it is called in a slot of
    /// [`crate::checks`].
    pub(crate) fn absence(&self, plan: &Plan, reach: HostReach) -> Option<Refusal> {
        let view = self.0.get()?;
        let allowed = match reach.is_admin {
            true => view.allowed.everything(),
            false => view.allowed.clone(),
        };
        // Whoever waits for one command's status is told of a missing one by that.
        let is_command = reach.is_relayed || plan.recipe_ref.id.as_str() == EXEC_RECIPE;
        let mut looks = BTreeSet::new();
        for (task, need) in needs(plan) {
            if is_command && matches!(need, HostNeed::Program { .. }) {
                continue;
            }
            if looks.len() >= MAX_LOOKS {
                break;
            }
            if looks.insert(need.key())
                && let Some(why) = need.absence(&allowed, view.images.as_ref())
            {
                return Some(refusal(plan, task, need, &why));
            }
        }
        None
    }

    /// Whether no worker of another host may take the run, so that what is absent here decides.
    pub(crate) async fn is_decisive(&self, ledger: &Ledger) -> Result<bool> {
        let Some(view) = self.0.get() else { return Ok(false) };
        let executors = ledger.executors();
        let here = executors.live_count_on(&view.host_id).await?;
        Ok(executors.live_count().await? <= here)
    }
}

fn refusal(plan: &Plan, task: &str, need: HostNeed<'_>, why: &str) -> Refusal {
    let (recipe, field) = (&plan.recipe_ref, need.field());
    let mut details = json!({"task": task, "field": field});
    if let (HostNeed::Program { name, .. }, Value::Object(fields)) = (need, &mut details) {
        fields.insert("program".to_owned(), json!(name));
    }
    let why = format!("recipe {}@{}: task {task:?}: {field}: {why}", recipe.id, recipe.v);
    Refusal::new(ErrorCode::RecipeInvalid, why).with(details)
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::plan;
    use cofferdam_contracts::profile::Settings;
    use cofferdam_contracts::recipe::Recipe;

    use super::*;

    const TENANT: HostReach = HostReach { is_admin: false, is_relayed: false };

    fn plan_of(tasks: &str) -> Plan {
        let text = format!("id: r\nv: \"1\"\nplan:\n  tasks:\n{tasks}");
        let recipe = Recipe::from_yaml("r.yaml", &text).unwrap();
        plan::compile(&recipe, &json!({}), &Settings::default(), &|_, _| Ok(Vec::new())).unwrap()
    }

    fn admission(root: &Path) -> HostAdmission {
        let admission = HostAdmission::default();
        let allowed = AllowedPaths::new(&[root.to_owned()], Vec::new()).unwrap();
        let images = Images::open(root).ok();
        admission.0.set(HostView { host_id: "h".to_owned(), allowed, images }).unwrap();
        admission
    }

    fn programs(task: &str) -> Vec<String> {
        let plan = plan_of(&format!("    - {{name: t, {task}}}\n"));
        let names = needs(&plan).filter_map(|(_, need)| match need {
            HostNeed::Program { phase, name } => Some(format!("{phase} {name}")),
            _ => None,
        });
        names.collect()
    }

    #[test]
    fn only_programs_that_nothing_but_the_host_can_have_are_looked_for() {
        assert_eq!(programs("exec: {run: [make, -j2]}"), ["exec make"]);
        assert_eq!(programs("exec: {run: make}"), ["exec /bin/sh"], "shell text is not read");
        assert_eq!(programs("exec: {run: [/usr/bin/x]}"), ["exec /usr/bin/x"]);
        assert_eq!(programs("build: {run: [a]}, exec: {run: [b]}"), ["build a"]);
        for unknown in [
            "exec: {run: [./x]}",
            "exec: {run: [/work/x]}",
            "exec: {run: [/usr/../etc/shadow]}",
            "exec: {run: [x], env: {PATH: /work/bin}}",
            "exec: {run: [x]}, image: 'image:debian'",
            "exec: {run: [x]}, files: [{text: '', to: /usr/local/bin/x}]",
            "value: x",
        ] {
            assert_eq!(programs(unknown), Vec::<String>::new(), "{unknown}");
        }
    }

    #[test]
    fn a_tenant_has_one_answer_for_what_is_absent_and_what_is_outside() {
        let (open, secret) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(open.path().join("here"), "x").unwrap();
        let admission = admission(open.path());
        let words = |path: &str, reach: HostReach| {
            let plan = plan_of(&format!(
                "    - name: t\n      files: [{{text: x, to: /work/a}}, {{from: {path}, to: /work/b}}]\n      exec: {{run: 'true'}}\n"
            ));
            let refusal = admission.absence(&plan, reach)?;
            assert_eq!(refusal.code, ErrorCode::RecipeInvalid);
            Some(refusal.message.replace(path, "PATH"))
        };
        let inside = |name: &str| open.path().join(name).display().to_string();
        assert_eq!(words(&inside("here"), TENANT), None);
        let absent = words(&inside("nowhere"), TENANT).unwrap();
        assert!(absent.contains("task \"t\": files[1].from:"), "{absent}");
        assert!(absent.contains("--allow-dir"), "it says what to do: {absent}");
        for outside in [secret.path().display().to_string(), "/etc/passwd".to_owned()] {
            assert_eq!(words(&outside, TENANT).unwrap(), absent);
        }
        let admin = HostReach { is_admin: true, is_relayed: false };
        assert_eq!(words(&secret.path().display().to_string(), admin), None);
        assert!(words(&inside("nowhere"), admin).unwrap().contains("No such file"));
    }

    #[test]
    fn a_program_and_a_root_that_are_absent_are_refused_and_a_relayed_command_is_not() {
        let open = tempfile::tempdir().unwrap();
        let admission = admission(open.path());
        let task = |task: &str| plan_of(&format!("    - {{name: t, {task}}}\n"));
        let absent = task("exec: {run: [no-such-program-anywhere]}");
        let refusal = admission.absence(&absent, TENANT).unwrap();
        assert!(refusal.message.contains("exec.run: \"no-such-program-anywhere\""), "{refusal}");
        assert_eq!(refusal.details.unwrap()["program"], "no-such-program-anywhere");
        let relayed = HostReach { is_admin: false, is_relayed: true };
        assert_eq!(admission.absence(&absent, relayed), None);
        assert_eq!(admission.absence(&task("exec: {run: [sh, -c, x]}"), TENANT), None);
        let root = task("image: 'dir:/no/such/root', exec: {run: 'true'}");
        assert!(admission.absence(&root, TENANT).unwrap().message.contains(": image: "));
        let image = task("image: 'image:no-such-image', exec: {run: 'true'}");
        let refusal = admission.absence(&image, TENANT).unwrap();
        assert!(refusal.message.contains(": image: no image \"no-such-image\""), "{refusal}");
        assert_eq!(HostAdmission::default().absence(&root, TENANT), None, "no worker here");
    }

    #[test]
    fn a_fan_out_over_many_paths_is_looked_at_within_a_bound() {
        let open = tempfile::tempdir().unwrap();
        let items: Vec<String> = (0..=MAX_LOOKS).map(|n| format!("f{n}")).collect();
        for name in &items {
            std::fs::write(open.path().join(name), "").unwrap();
        }
        let tasks = format!(
            "    - name: 't-${{item}}'\n      each: [{}]\n      files: [{{from: '{}/${{item}}', to: /work/a}}]\n      exec: {{run: [no-such-program-anywhere]}}\n",
            items.join(", "),
            open.path().display()
        );
        let text = format!("id: r\nv: \"1\"\ncaps: {{steps: 5000}}\nplan:\n  tasks:\n{tasks}");
        let recipe = Recipe::from_yaml("r.yaml", &text).unwrap();
        let plan = plan::compile(&recipe, &json!({}), &Settings::default(), &|_, _| Ok(Vec::new()));
        let mut plan = plan.unwrap();
        let admission = admission(open.path());
        assert!(admission.absence(&plan, TENANT).is_some(), "the program is the second look");
        plan.tasks.iter_mut().for_each(|task| {
            task.work.request_mut().unwrap().cmd = vec!["sh".to_owned()];
        });
        assert_eq!(admission.absence(&plan, TENANT), None);
        std::fs::remove_file(open.path().join(items.last().unwrap())).unwrap();
        assert_eq!(admission.absence(&plan, TENANT), None, "beyond the bound");
        std::fs::remove_file(open.path().join("f5")).unwrap();
        assert!(admission.absence(&plan, TENANT).is_some());
    }
}
