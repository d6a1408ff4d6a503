//! Reading a recipe, and what its types cannot say.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{MAX_RECIPE_BYTES, MAX_TASKS, Recipe, TaskSpec};
use crate::error::{ErrorCode, Refusal};
use crate::schema::{Validator, with_defaults};
use crate::yaml::{self, YamlError};
use crate::{artifact_glob, graph, secret, shell, test_report, user};

impl Recipe {
    /// Parses YAML (and so JSON). `origin` names the text in errors: a file name.
    pub fn from_yaml(origin: &str, text: &str) -> Result<Self, Refusal> {
        if text.len() > MAX_RECIPE_BYTES {
            return Err(invalid(origin, &format!("larger than {MAX_RECIPE_BYTES} bytes")));
        }
        let recipe: Self = yaml::parse(text).map_err(|e| unparsed(origin, &e))?;
        recipe.check().map_err(|what| {
            // Parsed once more, and only now: the types have no positions.
            let field = what.split(": ").next().unwrap_or_default();
            unparsed(origin, &YamlError { at: yaml::position(text, field), what })
        })?;
        Ok(recipe)
    }

    /// What the types cannot say.
    pub fn check(&self) -> Result<(), String> {
        self.faults().into_iter().next().map_or(Ok(()), Err)
    }

    /// All of it: the first fault of each part, each text with its field in front.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut add = |checked: Result<(), String>| faults.extend(checked.err());
        add(self.check_size());
        add(self.check_agent());
        add(self.check_gate());
        add(self.check_caps());
        add(self.check_form());
        add(self.check_schedule());
        for (i, task) in self.plan.tasks.iter().enumerate() {
            add(task.check().map_err(|e| format!("plan.tasks[{i}].{e}")));
        }
        add(graph::check(self).map_err(|fault| fault.to_string()));
        add(self.check_input());
        faults.extend(shell::faults(self, shell::RuleScope::All));
        faults
    }

    fn check_size(&self) -> Result<(), String> {
        if self.v.is_empty() || self.v.len() > 32 {
            return Err("v: must be 1 to 32 characters".into());
        }
        match self.plan.tasks.is_empty() || self.plan.tasks.len() > MAX_TASKS {
            true => Err(format!("plan.tasks: must list 1 to {MAX_TASKS} tasks")),
            false => Ok(()),
        }
    }

    fn check_agent(&self) -> Result<(), String> {
        let agent = self.plan.agent.as_ref();
        agent.map_or(Ok(()), |agent| agent.check(self).map_err(|e| format!("plan.agent{e}")))
    }

    fn check_gate(&self) -> Result<(), String> {
        if let Some(gate) = &self.plan.gate {
            gate.check(self.form.as_ref()).map_err(|e| format!("plan.gate.{e}"))?;
        }
        let mut keys = BTreeMap::new();
        for (i, task) in self.plan.tasks.iter().enumerate() {
            let Some(gate) = &task.gate else { continue };
            gate.check_of_task().map_err(|e| format!("plan.tasks[{i}].gate.{e}"))?;
            if let Some(other) = keys.insert(&gate.key, i) {
                return Err(format!(
                    "plan.tasks[{i}].gate.key: tasks[{other}] has a gate of this key; give each its own"
                ));
            }
        }
        Ok(())
    }

    fn check_caps(&self) -> Result<(), String> {
        let caps = self.caps;
        if !(1..=1000).contains(&caps.concurrency)
            || !(1..=10_000).contains(&caps.steps)
            || !(1..=100_000).contains(&caps.sandbox_minutes)
        {
            return Err(
                "caps: concurrency must be 1 to 1000, steps 1 to 10000, sandbox_minutes 1 to 100000".into()
            );
        }
        Ok(())
    }

    fn check_form(&self) -> Result<(), String> {
        let Some(form) = &self.form else { return Ok(()) };
        if form.get("type").and_then(Value::as_str) != Some("object") {
            return Err("form: must be a JSON Schema with `type: object`".into());
        }
        Validator::compile(form).map_err(|e| format!("form: {e}"))?;
        Ok(())
    }

    /// A run by the clock has no caller who could mend its inputs.
    fn check_schedule(&self) -> Result<(), String> {
        let Some(schedule) = &self.schedule else { return Ok(()) };
        schedule.check().map_err(|e| format!("schedule.{e}"))?;
        let (schema, mut form) = (self.form_schema(), Value::Object(schedule.inputs.clone()));
        with_defaults(&schema, &mut form);
        let fits = Validator::compile(&schema).and_then(|schema| schema.check(&form));
        fits.map_err(|e| format!("schedule.inputs: {e}"))
    }

    /// A run has one client, whose input one command reads.
    fn check_input(&self) -> Result<(), String> {
        let input = |task: &TaskSpec| task.exec.as_ref().is_some_and(|exec| exec.input.is_some());
        let mut takers = self.plan.tasks.iter().enumerate().filter(|(_, task)| input(task));
        let Some((first, task)) = takers.next() else { return Ok(()) };
        if task.each.is_some() || task.matrix.is_some() || task.retry.is_some() {
            return Err(format!(
                "plan.tasks[{first}].exec.input: one command reads it once; remove `input`, or `each`, `matrix` and `retry`"
            ));
        }
        if task.exec.as_ref().is_some_and(|exec| exec.stdin.is_some()) {
            return Err(format!(
                "plan.tasks[{first}].exec.input: the command has `stdin`; remove one of them"
            ));
        }
        match takers.next() {
            Some((second, _)) => Err(format!(
                "plan.tasks[{second}].exec.input: tasks[{first}] reads the client's input; remove one of them"
            )),
            None => Ok(()),
        }
    }
}

impl TaskSpec {
    /// A repository is checked out by the build phase, which a cached base replaces.
    fn check_repo(&self) -> Result<(), String> {
        let Some(repo) = &self.repo else { return Ok(()) };
        repo.check()?;
        if self.exec.is_none() {
            return Err("repo: a task with `value` has no files; remove `repo`".to_owned());
        }
        if self.cache.is_some() || self.build.as_ref().is_some_and(|build| build.cache.is_some()) {
            return Err("repo: cannot be combined with `cache`; remove one of them".to_owned());
        }
        match repo.url.is_some() && self.build.is_none() {
            true => Err("repo.url: needs `build.egress` with its host; add `build: {run: \"true\", egress: [HOST]}`".to_owned()),
            false => Ok(()),
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.name.is_empty() || self.name.len() > 128 {
            return Err("name: must be 1 to 128 characters".into());
        }
        match (&self.exec, &self.value) {
            (Some(_), None) => {}
            (None, Some(_)) => {
                if self.profile.is_some() {
                    return Err(
                        "profile: a task with `value` has no wall time or limits; remove `profile`"
                            .into(),
                    );
                }
                if self.build.is_some() || !self.files.is_empty() || !self.services.is_empty() {
                    return Err("value: a task with `value` has no build, files or services; remove them, or use `exec`".into());
                }
            }
            _ => return Err("exec: give exactly one of `exec` and `value`".into()),
        }
        self.check_repo()?;
        self.check_pipeline()?;
        let build_user = self.build.as_ref().and_then(|build| build.user.as_deref());
        user::check(self.user.as_deref(), build_user, self.exec.is_some())?;
        if let Some(models) = &self.models {
            if self.exec.is_none() {
                return Err("models: a task with `value` calls no model; remove `models`".into());
            }
            models.check()?;
        }
        if self.exec.is_none() && !self.reports.is_empty() {
            return Err("reports: a task with `value` runs no tests; remove `reports`".into());
        }
        test_report::check(&self.reports)?;
        for (i, artifact) in self.artifacts.iter().enumerate() {
            artifact_glob::check_text(&artifact.path)
                .map_err(|e| format!("artifacts[{i}]: {e}"))?;
        }
        for (i, report) in self.reports.iter().enumerate() {
            artifact_glob::check_text(&report.path).map_err(|e| format!("reports[{i}]: {e}"))?;
        }
        for (i, file) in self.files.iter().enumerate() {
            if file.from.is_some() == file.text.is_some() {
                return Err(format!("files[{i}]: give exactly one of `from` and `text`"));
            }
        }
        if self.cache.is_some() && self.build.is_none() {
            return Err(
                "cache: needs a build phase, which fills it; add `build`, or remove `cache`".into(),
            );
        }
        if self.cache.is_some() && self.build_cache().is_some() {
            return Err("cache: given here and at `build.cache`; give it once".into());
        }
        if let Some(exec) = &self.exec {
            secret::check(&exec.secrets, &exec.egress).map_err(|e| format!("exec.{e}"))?;
        }
        if let Some(build) = &self.build {
            secret::check(&build.secrets, &build.egress).map_err(|e| format!("build.{e}"))?;
        }
        if self.image.as_deref().is_none_or(|image| image == "host") {
            let exec = self.exec.as_ref().map(|exec| ("exec", &exec.egress));
            let build = self.build.as_ref().map(|build| ("build", &build.egress));
            for (phase, egress) in exec.into_iter().chain(build) {
                egress.of_host().map_err(|e| format!("{phase}.egress: {e}"))?;
            }
        }
        let timeouts = [
            ("exec.timeout", self.exec.as_ref().and_then(|e| e.timeout.as_ref())),
            ("build.timeout", self.build.as_ref().and_then(|b| b.timeout.as_ref())),
        ];
        for (field, timeout) in timeouts {
            if let Some(text) = timeout
                && !text.contains("${")
            {
                crate::timeout::read(text).map_err(|e| format!("{field}: {e}"))?;
            }
        }
        Ok(())
    }
}

/// `file:line:column: what`, as editors read it.
fn unparsed(origin: &str, error: &YamlError) -> Refusal {
    match error.at {
        Some((line, column)) => invalid(&format!("{origin}:{line}:{column}"), &error.what),
        None => invalid(origin, &error.what),
    }
}

fn invalid(origin: &str, why: &str) -> Refusal {
    Refusal::new(ErrorCode::RecipeInvalid, format!("{origin}: {why}"))
}
