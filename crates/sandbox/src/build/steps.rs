//! The step list of `image build`. Pure.

use std::collections::BTreeMap;

use cofferdam_contracts::recipe::Cmd;
use cofferdam_contracts::sandbox::{DEFAULT_TIMEOUT_MS, Limits};
use cofferdam_contracts::yaml;
use serde::Deserialize;

use crate::images::error::ImageError;
use crate::spec::refuse;

/// Beyond it a file of steps is a program; builders have the same bound on layers.
const MAX_STEPS: usize = 127;
/// A file that a person wrote.
const MAX_FILE_BYTES: usize = 1024 * 1024;
/// What `from` says for "nothing at all".
pub(super) const SCRATCH: &str = "scratch";

/// A build file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageFile {
    /// `scratch`, or an image of this host: a name, or `NAME@sha256:HEX`.
    pub from: String,
    /// Limits of every step.
    #[serde(default)]
    pub limits: Limits,
    /// Wall time of every step in milliseconds.
    #[serde(default = "default_timeout")]
    pub timeout_ms: u64,
    /// What is done, in order.
    #[serde(default)]
    pub steps: Vec<Step>,
}

fn default_timeout() -> u64 {
    DEFAULT_TIMEOUT_MS
}

/// One entry of `steps` in a build file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// A command, in a sandbox without a network; what it writes is a layer.
    Run(Cmd),
    /// Files of the build file's directory; they are a layer.
    Copy(CopyStep),
    /// Variables of later steps and of tasks.
    Env(BTreeMap<String, String>),
    /// Working directory of later steps and of tasks; made if it is not there.
    Workdir(String),
    /// User of later `run` steps and of tasks: a name or uid, and with `:` a group or gid.
    User(String),
    /// What the image is for, in a form for other tools: a task here names its own command.
    Cmd(Vec<String>),
}

/// What to copy.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyStep {
    /// A file or directory, relative to the build file's directory.
    pub from: String,
    /// Absolute: the file's new path, or the directory that takes the directory's content.
    pub to: String,
}

impl ImageFile {
    /// Parses YAML. `origin` names the text in errors.
    pub fn parse(origin: &str, text: &str) -> Result<Self, ImageError> {
        if text.len() > MAX_FILE_BYTES {
            return Err(ImageError::malformed(origin, "larger than 1 MiB"));
        }
        let file: Self = yaml::parse(text).map_err(|error| match error.at {
            Some((line, column)) => {
                ImageError::malformed(format!("{origin}:{line}:{column}"), error.what)
            }
            None => ImageError::malformed(origin, error.what),
        })?;
        file.check().map_err(|why| ImageError::malformed(origin, why))?;
        Ok(file)
    }

    fn check(&self) -> Result<(), String> {
        if self.steps.len() > MAX_STEPS {
            return Err(format!("steps: at most {MAX_STEPS}"));
        }
        for (index, step) in self.steps.iter().enumerate() {
            let field = |name: &str| format!("steps[{index}].{name}");
            match step {
                Step::Copy(copy) => {
                    refuse::absolute(&field("copy.to"), &copy.to)
                        .map_err(|error| error.to_string())?;
                    let plain = copy.from == "."
                        || !copy.from.is_empty()
                            && copy.from.split('/').all(|name| !matches!(name, "" | "." | ".."));
                    if !plain {
                        return Err(format!(
                            "{}: must be a relative path of plain names, or `.`",
                            field("copy.from")
                        ));
                    }
                }
                Step::Workdir(dir) => {
                    refuse::absolute(&field("workdir"), dir).map_err(|error| error.to_string())?;
                }
                Step::Env(env) => {
                    let fits = |(name, value): (&String, &String)| {
                        !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
                    };
                    if !env.iter().all(fits) {
                        return Err(format!(
                            "{}: a name is not empty and has no `=`; no NULs",
                            field("env")
                        ));
                    }
                }
                Step::Run(_) | Step::User(_) | Step::Cmd(_) => {}
            }
        }
        Ok(())
    }
}

/// A step as one line for people.
pub(super) fn line(step: &Step) -> String {
    let text = match step {
        Step::Run(Cmd::Shell(text)) => format!("run {text}"),
        Step::Run(Cmd::Argv(argv)) => format!("run {}", argv.join(" ")),
        Step::Copy(copy) => format!("copy {} {}", copy.from, copy.to),
        Step::Env(env) => format!("env {}", env.keys().cloned().collect::<Vec<_>>().join(" ")),
        Step::Workdir(dir) => format!("workdir {dir}"),
        Step::User(user) => format!("user {user}"),
        Step::Cmd(argv) => format!("cmd {}", argv.join(" ")),
    };
    text.lines().next().unwrap_or_default().chars().take(120).collect()
}

/// argv of a `run` step.
pub(super) fn argv(cmd: &Cmd) -> Vec<String> {
    match cmd {
        Cmd::Shell(text) => vec!["/bin/sh".into(), "-c".into(), text.clone()],
        Cmd::Argv(argv) => argv.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_file_is_a_list_of_steps() {
        let file = ImageFile::parse(
            "x",
            "from: base\nsteps:\n  - run: make all\n  - run: [make, install]\n  - copy: {from: src, to: /src}\n  \
             - env: {A: b}\n  - workdir: /src\n  - user: \"1000:1000\"\n  - cmd: [sh]\n",
        )
        .unwrap();
        assert_eq!(file.steps.len(), 7);
        assert_eq!(argv(&Cmd::Shell("a b".into())), ["/bin/sh", "-c", "a b"]);
        assert_eq!(line(&file.steps[1]), "run make install");
    }

    #[test]
    fn a_bad_build_file_names_the_step() {
        for (text, part) in [
            ("steps: []", "from"),
            ("from: a\nsteps: [{fetch: x}]", "fetch"),
            ("from: a\nsteps: [{copy: {from: ../x, to: /x}}]", "steps[0].copy.from"),
            ("from: a\nsteps: [{copy: {from: /x, to: /x}}]", "steps[0].copy.from"),
            ("from: a\nsteps: [{workdir: a}]", "steps[0].workdir"),
            ("from: a\nextra: 1", "extra"),
        ] {
            let error = ImageFile::parse("x", text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
