//! Toolchains of the host for the tasks of a plan: looked for when it is submitted, pinned when it is compiled, compared when a task begins.

use std::path::{Path, PathBuf};

use cofferdam_ambient::env;
use cofferdam_contracts::config::{ConfigKey, ConfigRow, ConfigScope};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::plan::Plan;
use cofferdam_contracts::sandbox::SandboxRequest;
use cofferdam_contracts::toolchain::{Toolchain, path_with};
use cofferdam_contracts::work::Work;
use cofferdam_sandbox::{HostPath, Input, find_toolchain, has_toolchain};
use serde_json::json;

const PATH: &str = "PATH";

/// Where this host's toolchains may be, `~/` being the home of the server's user.
pub(crate) fn dirs(rows: &[ConfigRow]) -> Vec<PathBuf> {
    let key = ConfigKey::ToolchainDirs;
    let is_hosts = |row: &&ConfigRow| {
        row.key == key && row.scope == ConfigScope::Global && !row.value.is_null()
    };
    let written = rows.iter().find(is_hosts).map(|row| row.value.clone());
    let dirs = serde_json::from_value(written.unwrap_or_else(|| key.default_value()));
    let dirs: Vec<String> = dirs.unwrap_or_default();
    // A service manager may leave it out for root.
    let home = env::var("HOME").unwrap_or_else(|| "/root".to_owned());
    let placed = |dir: &String| match dir.strip_prefix("~/") {
        Some(below) => Path::new(&home).join(below),
        None => PathBuf::from(dir),
    };
    dirs.iter().map(placed).collect()
}

/// Whether a task of the plan asks for any. Pure.
pub(crate) fn has_any(plan: &Plan) -> bool {
    let requests = plan.all_tasks().filter_map(|task| task.work.request());
    requests.into_iter().any(|request| !request.toolchains.is_empty())
}

/// The plan with what this host has of what its tasks ask for. Reads directories.
///
/// # Errors
/// `recipe_invalid` for the first that is absent, with what was looked at.
pub(crate) fn pinned(mut plan: Plan, dirs: &[PathBuf]) -> Result<Plan, Refusal> {
    for task in plan.all_tasks_mut() {
        let name = task.name.clone();
        let Work::Sandbox(request) = &mut task.work else { continue };
        for one in &mut request.toolchains {
            let found = find_toolchain(&one.asked, dirs).map_err(|absence| {
                let details = json!({"task": name, "field": "toolchains", "toolchain": one.asked});
                Refusal::new(ErrorCode::RecipeInvalid, format!("task {name:?}: {absence}"))
                    .with(details)
            })?;
            one.found = Some(found);
        }
        with_path(request);
    }
    Ok(plan)
}

/// Why a run of the plan would be refused by this host; `None`: it has all that its tasks ask for. Reads directories.
pub(crate) fn absence(plan: &Plan, dirs: &[PathBuf]) -> Option<Refusal> {
    has_any(plan).then(|| pinned(plan.clone(), dirs).err()).flatten()
}

/// Programs of its toolchains come first, in both phases.
fn with_path(request: &mut SandboxRequest) {
    if request.toolchains.is_empty() {
        return;
    }
    let toolchains = &request.toolchains;
    let path = |said: Option<&String>| path_with(toolchains, said.map(String::as_str));
    if let Some(build) = &mut request.build {
        let said = path(build.env.get(PATH));
        build.env.insert(PATH.to_owned(), said);
    }
    let said = path(request.env.get(PATH));
    request.env.insert(PATH.to_owned(), said);
}

/// What a task is given of the toolchains that its plan pins. Reads directories.
///
/// # Errors
/// One is not on this host, or changed since.
pub(crate) fn inputs(toolchains: &[Toolchain], dirs: &[PathBuf]) -> Result<Vec<Input>, String> {
    let given = toolchains.iter().map(|one| {
        let Some(found) = &one.found else {
            return Err(format!("the toolchain {} was not looked for: this kind of run is not given any", one.asked));
        };
        match has_toolchain(one.asked.kind, found, dirs) {
            true => Ok(Input::Toolchain {
                path: found.mount(one.asked.kind),
                source: HostPath::said(&found.path),
            }),
            false => Err(format!(
                "the toolchain {} {} in {} is not on this host as the plan names it: start a new run",
                one.asked.kind.as_str(),
                found.version,
                Path::new(&found.path).display()
            )),
        }
    });
    given.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use cofferdam_contracts::plan;
    use cofferdam_contracts::profile::Settings;
    use cofferdam_contracts::recipe::Recipe;

    use super::*;

    #[test]
    fn a_plan_pins_what_is_there_and_a_build_sees_it_first() {
        let host = tempfile::tempdir().unwrap();
        fs::create_dir_all(host.path().join("go/bin")).unwrap();
        fs::write(host.path().join("go/bin/go"), "g").unwrap();
        fs::write(host.path().join("go/VERSION"), "go1.22.1\n").unwrap();
        let text = "id: r\nv: \"1\"\nplan:\n  tasks:\n    - {name: t, toolchains: [go@1.22], build: {run: [go, build]}, exec: {run: [go, test]}}\n";
        let compiled = |text: &str| {
            let recipe = Recipe::from_yaml("r.yaml", text).unwrap();
            plan::compile(&recipe, &json!({}), &Settings::default(), &|_, _| Ok(Vec::new()))
        };
        let plan = compiled(text).unwrap();
        assert!(has_any(&plan));
        let before = plan.digest().unwrap();
        let refused = pinned(plan.clone(), &[]).unwrap_err();
        assert_eq!(refused.code, ErrorCode::RecipeInvalid);
        let dirs = [host.path().to_owned()];
        let plan = pinned(plan, &dirs).unwrap();
        assert_ne!(plan.digest().unwrap(), before, "a consent binds it");
        let request = plan.tasks[0].work.request().unwrap();
        let path = &request.env["PATH"];
        assert!(path.starts_with("/opt/toolchains/go-1.22.1-") && path.ends_with("/bin"), "{path}");
        assert_eq!(&request.build.as_ref().unwrap().env["PATH"], path);
        assert_eq!(inputs(&request.toolchains, &dirs).unwrap().len(), 1);
        fs::write(host.path().join("go/bin/go"), "another").unwrap();
        assert!(inputs(&request.toolchains, &dirs).unwrap_err().contains("start a new run"));
        assert!(compiled(&text.replace("go@1.22", "go, go@1.21")).is_err(), "one of each kind");
    }
}
