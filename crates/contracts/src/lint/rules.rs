//! What is legal and probably not meant: the warnings, a rule each.

use std::collections::BTreeSet;

use serde_json::Value;

use super::MAX_LINT_FINDINGS;
use super::field_text::{FieldText, TaskFields, in_order};
use super::finding::{LintRule, Remark};
use super::names::{beginning, paths_in};
use crate::form;
use crate::recipe::{Recipe, TaskSpec};
use crate::sandbox::DEFAULT_TIMEOUT_MS;
use crate::service::KNOWN_SERVICES;
use crate::yaml;

/// Globs that match all or nearly all files.
const EVERYTHING: [&str; 4] = ["**", "**/*", "**/**", "*"];
/// Words of a variable's name that say that its value is a credential.
const CREDENTIALS: [&str; 8] =
    ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "APIKEY", "CREDENTIAL", "CREDENTIALS"];
/// Words before `KEY` that say the same.
const KEYS: [&str; 5] = ["API", "ACCESS", "SECRET", "PRIVATE", "AUTH"];
/// Last words of names whose value only says where a credential is.
const WHEREABOUTS: [&str; 5] = ["FILE", "PATH", "DIR", "URL", "NAME"];
/// Beginnings of credentials of well-known issuers.
const ISSUED: [&str; 9] =
    ["ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "AKIA", "sk-ant-"];
/// Characters that such a credential has at least.
const MIN_ISSUED: usize = 16;

/// Numbers of a fan-out that YAML shortens: `3.10` is 3.1.
pub(super) fn numbers(recipe: &Recipe, text: &str) -> Vec<Remark> {
    let fields = recipe.plan.tasks.iter().enumerate().flat_map(|(i, task)| {
        let matrix = task.matrix.iter().flatten();
        let lists = matrix.map(|(name, values)| (format!("matrix.{name}"), values.as_slice()));
        let each = task.each.as_ref().and_then(Value::as_array);
        let lists = lists.chain(each.map(|items| ("each".to_owned(), items.as_slice())));
        lists.flat_map(move |(field, values)| {
            let numbers = values.iter().enumerate().filter(|(_, value)| value.is_f64());
            numbers.map(move |(n, value)| (format!("plan.tasks[{i}].{field}[{n}]"), value))
        })
    });
    // Each costs the parsing of the text.
    let looked_at = fields.take(MAX_LINT_FINDINGS);
    let shortened = looked_at.filter_map(|(field, value)| {
        let (line, column) = yaml::position(text, &field)?;
        let line = text.lines().nth(usize::try_from(line).ok()?.checked_sub(1)?)?;
        let written: String = line
            .chars()
            .skip(usize::try_from(column).ok()?.checked_sub(1)?)
            .take_while(|c| c.is_ascii_digit() || *c == '.')
            .collect();
        let number = value.to_string();
        let is_shorter = written.contains('.') && written.ends_with('0') && written != number;
        is_shorter.then(|| {
            let what = format!("{written} is the number {number}: write '{written}' in quotes, where a version is meant");
            Remark::new(LintRule::NumberShortened, field, what)
        })
    });
    shortened.collect()
}

/// All of them.
pub(super) fn remarks(recipe: &Recipe) -> Vec<Remark> {
    let mut remarks = Vec::new();
    let mut used = BTreeSet::new();
    for (i, task) in recipe.plan.tasks.iter().enumerate() {
        let texts = TaskFields::of(task);
        used.extend(inputs_of(&texts.texts));
        let of_task = of_task(task, &texts).into_iter();
        remarks.extend(
            of_task.map(|remark| Remark {
                field: format!("plan.tasks[{i}].{}", remark.field),
                ..remark
            }),
        );
    }
    let agent = recipe.plan.agent.as_ref().and_then(|agent| serde_json::to_value(agent).ok());
    used.extend(inputs_of(&agent.iter().flat_map(in_order).collect::<Vec<_>>()));
    if let Some(image) = recipe.plan.agent.as_ref().and_then(|agent| agent.image.as_deref()) {
        remarks.extend(image_by_name("plan.agent.image", image));
    }
    remarks.extend(of_form(recipe, &used));
    remarks
}

/// First names below `form` in expressions of these texts; empty for the whole form.
fn inputs_of(texts: &[FieldText]) -> BTreeSet<String> {
    let paths = texts.iter().flat_map(|text| paths_in(&text.text));
    let inputs = paths.filter_map(|path| match beginning(path) {
        ("form", name) => Some(name.unwrap_or_default().to_owned()),
        _ => None,
    });
    inputs.collect()
}

fn of_form(recipe: &Recipe, used: &BTreeSet<String>) -> Vec<Remark> {
    let Some(schema) = &recipe.form else { return Vec::new() };
    let Some(declared) = form::declared(schema) else { return Vec::new() };
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |name: &str| required.is_some_and(|all| all.iter().any(|one| one == name));
    let mut remarks = Vec::new();
    if !form::is_closed(schema) {
        let what = "takes inputs with any name, so the API does not refuse one with a typing mistake: add \
                    `additionalProperties: false`, or `true` where that is meant";
        remarks.push(Remark::new(LintRule::FormOpen, "form", what));
    }
    for name in declared {
        let field = format!("form.properties.{name}");
        if !used.contains(name) && !used.contains("") {
            let what = format!("no task uses this input: use `${{form.{name}}}`, or remove it");
            remarks.push(Remark::new(LintRule::InputUnused, &field, what));
        }
        let property = schema.get("properties").and_then(|all| all.get(name));
        let has_default = property.is_some_and(|property| property.get("default").is_some());
        if used.contains(name) && !has_default && !is_required(name) {
            let what = "a start without it fails, because an expression uses it: list it in `required`, or give it a `default`";
            remarks.push(Remark::new(LintRule::InputOptional, &field, what));
        }
        if is_credential(name) {
            let what = "an input is on record and shown to approvers: set the credential with `cofferdam secret set`, and name it \
                        in `secrets`";
            remarks.push(Remark::new(LintRule::SecretInText, &field, what));
        }
    }
    remarks
}

fn of_task(task: &TaskSpec, texts: &TaskFields) -> Vec<Remark> {
    let mut remarks = Vec::new();
    remarks.extend(each_unused(texts));
    remarks.extend(timeouts(task));
    remarks.extend(task.image.as_deref().and_then(|image| image_by_name("image", image)));
    for (i, service) in task.services.iter().enumerate() {
        // The sandbox's own image is said of the task.
        let image = service.detail.as_ref().and_then(|detail| detail.image.as_deref());
        let image = image.filter(|image| task.image.as_deref() != Some(image));
        let field = format!("services[{i}].image");
        remarks.extend(image.and_then(|image| image_by_name(&field, image)));
        let has_command = service.detail.as_ref().is_some_and(|detail| detail.cmd.is_some());
        if !has_command && !KNOWN_SERVICES.contains(&service.name.as_str()) {
            let known = KNOWN_SERVICES.join("` and `");
            let what = format!(
                "no host starts {:?} by its name alone, only `{known}`: add `cmd` and `port`",
                service.name
            );
            remarks.push(Remark::new(LintRule::RecipeInvalid, format!("services[{i}]"), what));
        }
    }
    for (i, artifact) in task.artifacts.iter().enumerate() {
        if EVERYTHING.contains(&artifact.path.as_str()) {
            let what = format!(
                "{:?} keeps the whole working directory, sources and dependencies included: name what the task makes, such as \
                 `dist/**`",
                artifact.path
            );
            remarks.push(Remark::new(
                LintRule::ArtifactsOfEverything,
                format!("artifacts[{i}]"),
                what,
            ));
        }
    }
    remarks.extend(overlaps(task));
    for text in &texts.texts {
        if text.is_literal() && text.text.contains("${") {
            let what =
                format!("{:?} is taken as it is: no expression is filled in here", text.text);
            remarks.push(Remark::new(LintRule::ExpressionLiteral, &text.field, what));
        }
        remarks.extend(secret(text));
    }
    remarks
}

/// Tasks of a fan-out that differ in their names alone.
fn each_unused(texts: &TaskFields) -> Option<Remark> {
    if !texts.is_fan_out {
        return None;
    }
    let is_of_item = |text: &&FieldText| {
        let is_named = ["name", "each", "matrix", "id"].iter().any(|field| text.is_in(field));
        let of_item = |path: &str| ["item", "index", "matrix"].contains(&beginning(path).0);
        !is_named && paths_in(&text.text).into_iter().any(of_item)
    };
    let is_used = texts.texts.iter().any(|text| is_of_item(&text));
    (!is_used).then(|| {
        let what = "all its tasks do the same: use `${item}` or `${index}` beyond the name, for example `env: {SHARD: \"${index}\"}`";
        Remark::new(LintRule::EachUnused, "each", what)
    })
}

/// Phases whose wall time only the server's configuration bounds.
fn timeouts(task: &TaskSpec) -> Vec<Remark> {
    if task.profile.is_some() {
        return Vec::new();
    }
    let exec = task.exec.as_ref().map(|exec| ("exec", exec.timeout.is_some()));
    let build = task.build.as_ref().map(|build| ("build", build.timeout.is_some()));
    let without = build.into_iter().chain(exec).filter(|(_, has_one)| !has_one);
    let minutes = DEFAULT_TIMEOUT_MS.div_euclid(60_000);
    let what = |phase: &str| {
        format!(
            "no `timeout`: it ends after {minutes} minutes, or what the server's configuration says; add `timeout: 2m` to `{phase}`, or \
             `profile` to the task"
        )
    };
    without.map(|(phase, _)| Remark::new(LintRule::TimeoutMissing, phase, what(phase))).collect()
}

fn image_by_name(field: &str, image: &str) -> Option<Remark> {
    let name = image.strip_prefix("image:")?;
    if name.contains("@sha256:") || name.contains("${") {
        return None;
    }
    let what = format!(
        "{image:?} may mean another image tomorrow: pin it as `image:NAME@sha256:..`; `cofferdam image ls` shows digests"
    );
    Some(Remark::new(LintRule::ImageByName, field, what))
}

/// Files of which the later hides the earlier. Those of earlier tasks may meet in one directory: equal names there are refused when they
/// are known.
fn overlaps(task: &TaskSpec) -> Vec<Remark> {
    let mut seen = BTreeSet::new();
    let again = task
        .files
        .iter()
        .enumerate()
        .filter(|(_, file)| !file.from.as_deref().is_some_and(|from| from.starts_with("task://")))
        .filter(|(_, file)| !seen.insert(file.to.trim_end_matches('/')));
    let what = |to: &str| {
        format!("another file of the task has the path {to:?} as well: give each its own")
    };
    again
        .map(|(i, file)| Remark::new(LintRule::FilesOverlap, format!("files[{i}]"), what(&file.to)))
        .collect()
}

/// A credential as a text of the task.
fn secret(text: &FieldText) -> Option<Remark> {
    let variable = text.field.split_once("env.").map(|(_, name)| name);
    let is_flag =
        text.text.len() < 2 || ["true", "false", "yes", "no"].contains(&text.text.as_str());
    // A value from the form is said of the form.
    let is_given = !is_flag && !text.text.starts_with('/') && !text.text.contains("${");
    let is_named = variable.is_some_and(is_credential) && is_given;
    let mut words = text.text.split(|c: char| c.is_whitespace() || "\"'=:,".contains(c));
    let is_issued = |word: &str| {
        word.len() >= MIN_ISSUED && ISSUED.iter().any(|begins| word.starts_with(begins))
    };
    let is_key = text.text.contains("-----BEGIN") && text.text.contains("PRIVATE KEY");
    (is_named || is_key || words.any(is_issued)).then(|| {
        let what = "a credential in a recipe is on record and in every plan: set it with `cofferdam secret set`, and name it in \
                    `secrets`, which adds it outside of the sandbox";
        Remark::new(LintRule::SecretInText, &text.field, what)
    })
}

/// Whether a name says that its value is a credential.
fn is_credential(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    let words: Vec<&str> = upper.split(['_', '-', '.']).collect();
    if words.last().is_some_and(|last| WHEREABOUTS.contains(last)) {
        return false;
    }
    let is_key = |pair: &[&str]| matches!(pair, [kind, "KEY"] if KEYS.contains(kind));
    words.iter().any(|word| CREDENTIALS.contains(word)) || words.windows(2).any(is_key)
}
