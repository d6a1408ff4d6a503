//! Builds of templates: what a client asks for, checked step by step, and where a build is. Pure.
//!
//! ```text
//! waiting --its sandbox is on record--> building --files kept, program ready--> ready
//!                                          `--a step fails, or its sandbox ends--> error
//! ```
//!
//! One file: one state machine and the steps that it reads.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::enum_names::named;
use crate::id::{Digest, TemplateName};
use crate::live::{MAX_ENV_BYTES, MAX_LIVE_PAIRS, MAX_VARIABLE_BYTES};

/// Steps of one build: a long Dockerfile has a hundred.
pub const MAX_STEPS: usize = 256;
/// Bytes of a command: what the kernel takes as one argument.
pub const MAX_COMMAND_BYTES: usize = 128 * 1_024;
/// Bytes of a path, as the kernel bounds it.
pub const MAX_PATH_BYTES: usize = 4_096;
/// Tags of one build, and of one call.
pub const MAX_TAGS: usize = 32;
/// The tag of a name without one.
pub const DEFAULT_TAG: &str = "default";
/// Log entries of one build; what is said after these is left out.
pub const MAX_LOG_ENTRIES: usize = 10_000;
/// Bytes of all of them.
pub const MAX_LOG_TOTAL: usize = 1_024 * 1_024;
/// Bytes of one log entry.
pub const MAX_LOG_BYTES: usize = 4_096;
/// Time of one whole build in seconds.
pub const MAX_BUILD_S: u64 = 3_600;
/// Bytes of one upload, compressed as it comes: more than a sandbox's writable layer has by default.
pub const MAX_UPLOAD_BYTES: u64 = 512 * 1_024 * 1_024;

named! {
    /// Where a build is in its life.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum BuildStatus {
        /// It was asked for, and its steps are not known yet.
        Waiting = "waiting",
        /// Its sandbox is made, or runs its steps.
        Building = "building",
        /// Sandboxes can be made from it.
        Ready = "ready",
        /// A step failed, or its sandbox ended before it was ready.
        Error = "error",
    }
}

named! {
    /// A user whom a step can name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
    pub enum TemplateUser {
        /// uid 1000, with the home `/home/user`.
        #[default]
        User = "user",
        /// uid 0 of the sandbox.
        Root = "root",
    }
}

impl TemplateUser {
    /// Absolute path of the user's home directory in the sandbox.
    #[must_use]
    pub const fn home(self) -> &'static str {
        match self {
            Self::User => "/home/user",
            Self::Root => "/root",
        }
    }
}

/// What a build begins with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BuildSource {
    /// A template of the host or of the tenant, `NAME` or `NAME:TAG`.
    Template(String),
    /// An image of the host.
    Image(String),
}

/// One step as a client sends it.
#[derive(Debug, Clone)]
pub struct RawStep {
    /// Its type, such as `RUN`.
    pub kind: String,
    /// Its arguments, by type.
    pub args: Vec<String>,
    /// Of a COPY: which upload.
    pub files: Option<String>,
    /// It and those after it are to run, whatever ran before.
    pub force: bool,
}

/// A variable that a step sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildVariable {
    /// Name of the variable, without `$`.
    pub name: String,
    /// Its value; `$NAME` and `${NAME}` in it are other variables.
    pub value: String,
}

impl Serialize for BuildVariable {
    /// As a list of both: layers that hosts have are found by this form.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.name, &self.value).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for BuildVariable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (name, value) = Deserialize::deserialize(deserializer)?;
        Ok(Self { name, value })
    }
}

/// One step. What a layer depends on has it as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BuildStep {
    /// Runs a shell command.
    Run {
        /// Shell command, at most [`MAX_COMMAND_BYTES`] bytes.
        command: String,
        /// As whom; `None`: as the build's user at that point.
        user: Option<TemplateUser>,
    },
    /// Copies uploaded files.
    Copy {
        /// Path or pattern among the uploaded files.
        from: String,
        /// Path in the sandbox; a relative one begins at the working directory.
        to: String,
        /// Owner; `None`: the build's user at that point.
        user: Option<TemplateUser>,
        /// Mode of every file and directory, octal.
        mode: Option<String>,
        /// Name of the upload.
        files: Digest,
    },
    /// Sets variables, in this order.
    Env(Vec<BuildVariable>),
    /// Sets the working directory, and makes it.
    Workdir(String),
    /// Sets the user.
    User(TemplateUser),
}

/// A whole build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildPlan {
    /// What it begins with.
    pub from: BuildSource,
    /// Its steps, in order.
    pub steps: Vec<BuildStep>,
    /// How many of these, from the first one on, need not run where they ran before.
    pub cacheable: usize,
    /// Shell command of the program that each sandbox begins with.
    pub start: Option<String>,
    /// Shell command that succeeds once a sandbox can be used.
    pub ready: Option<String>,
}

impl BuildPlan {
    /// Checks a whole build. A refusal names the step by its number, from 1.
    ///
    /// # Errors
    /// In words: the first part that is out of its bounds.
    pub fn parse(
        from: BuildSource,
        steps: Vec<RawStep>,
        start: Option<String>,
        ready: Option<String>,
        force: bool,
    ) -> Result<Self, String> {
        let (BuildSource::Template(base) | BuildSource::Image(base)) = &from;
        if base.is_empty() || base.len() > MAX_PATH_BYTES {
            return Err("fromImage or fromTemplate is empty or too long".to_owned());
        }
        if steps.len() > MAX_STEPS {
            return Err(format!("steps: {} of them; at most {MAX_STEPS}", steps.len()));
        }
        let forced = steps.iter().position(|step| step.force);
        let cacheable = if force { 0 } else { forced.unwrap_or(steps.len()) };
        let numbered = steps.into_iter().zip(1u32..);
        let steps = numbered.map(|(step, number)| {
            let kind = step.kind.clone();
            step.parse().map_err(|why| format!("step {number} ({}): {why}", shown(&kind)))
        });
        let steps = steps.collect::<Result<_, _>>()?;
        // An empty command is what some clients send where their user gave none.
        let command = |what: &str, text: Option<String>| match text.filter(|text| !text.is_empty())
        {
            Some(text) => command(text).map(Some).map_err(|why| format!("{what}: {why}")),
            None => Ok(None),
        };
        let (start, ready) = (command("startCmd", start)?, command("readyCmd", ready)?);
        Ok(Self { from, steps, cacheable, start, ready })
    }

    /// The uploads that it needs.
    pub fn uploads(&self) -> impl Iterator<Item = &Digest> {
        self.steps.iter().filter_map(|step| match step {
            BuildStep::Copy { files, .. } => Some(files),
            _ => None,
        })
    }
}

/// The beginning of a text of the caller's.
fn shown(text: &str) -> String {
    text.chars().take(32).collect()
}

fn command(text: String) -> Result<String, String> {
    let fits = !text.trim().is_empty() && text.len() <= MAX_COMMAND_BYTES && !text.contains('\0');
    if fits {
        Ok(text)
    } else {
        Err(format!("a command has 1 to {MAX_COMMAND_BYTES} bytes without NUL"))
    }
}

fn path(text: String) -> Result<String, String> {
    let fits = !text.is_empty() && text.len() <= MAX_PATH_BYTES && !text.contains('\0');
    if fits { Ok(text) } else { Err(format!("a path has 1 to {MAX_PATH_BYTES} bytes without NUL")) }
}

fn user(text: &str) -> Result<TemplateUser, String> {
    TemplateUser::parse(text).ok_or_else(|| {
        format!("user {:?}: a sandbox has the users `user` and `root` alone", shown(text))
    })
}

/// An argument that may be left out or empty.
fn optional(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

impl RawStep {
    fn parse(self) -> Result<BuildStep, String> {
        let count = self.args.len();
        let mut args = self.args.into_iter();
        let counted = |least: usize, most: usize| match (least..=most).contains(&count) {
            true => Ok(()),
            false => Err(format!("{count} arguments; {least} to {most} are meant")),
        };
        let mut next = || args.next();
        match self.kind.as_str() {
            "RUN" => {
                counted(1, 2)?;
                let command = command(next().unwrap_or_default())?;
                let user = optional(next()).map(|name| user(&name)).transpose()?;
                Ok(BuildStep::Run { command, user })
            }
            "COPY" => {
                counted(2, 4)?;
                let from = path(next().unwrap_or_default())?;
                let to = path(next().unwrap_or_default())?;
                let user = optional(next()).map(|name| user(&name)).transpose()?;
                let mode = optional(next());
                if from.starts_with('/') || from.split('/').any(|part| part == "..") {
                    return Err("its source leads out of what was uploaded".to_owned());
                }
                let is_octal = |text: &String| {
                    (3..=5).contains(&text.len())
                        && text.bytes().all(|b| (b'0'..=b'7').contains(&b))
                };
                if !mode.as_ref().is_none_or(is_octal) {
                    return Err("its mode is not octal, such as 0644".to_owned());
                }
                let files = self.files.ok_or("filesHash is missing")?;
                let files = Digest::parse(&files)
                    .map_err(|_| "filesHash is not a SHA-256 in lower-case hex".to_owned())?;
                Ok(BuildStep::Copy { from, to, user, mode, files })
            }
            "ENV" => {
                if count == 0 || !count.is_multiple_of(2) || count / 2 > MAX_LIVE_PAIRS {
                    return Err(format!(
                        "1 to {MAX_LIVE_PAIRS} pairs of a name and a value are meant"
                    ));
                }
                let mut variables = Vec::with_capacity(count / 2);
                while let (Some(name), Some(value)) = (next(), next()) {
                    variable(&name, &value)?;
                    variables.push(BuildVariable { name, value });
                }
                Ok(BuildStep::Env(variables))
            }
            "WORKDIR" => {
                counted(1, 1)?;
                Ok(BuildStep::Workdir(path(next().unwrap_or_default())?))
            }
            "USER" => {
                counted(1, 1)?;
                Ok(BuildStep::User(user(&next().unwrap_or_default())?))
            }
            _ => Err("not a type of step: RUN, COPY, ENV, WORKDIR and USER are".to_owned()),
        }
    }
}

fn variable(name: &str, value: &str) -> Result<(), String> {
    let is_name = name.bytes().enumerate().all(|(at, byte)| {
        byte == b'_' || byte.is_ascii_alphabetic() || at > 0 && byte.is_ascii_digit()
    });
    if name.is_empty() || name.len() > 256 || !is_name {
        return Err(format!("{:?} is not the name of a variable", shown(name)));
    }
    if value.len() > MAX_VARIABLE_BYTES || value.contains('\0') {
        return Err(format!("{name} has more than {MAX_VARIABLE_BYTES} bytes, or a NUL"));
    }
    Ok(())
}

/// What the steps have set so far.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuildState {
    /// Variables, by name.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory, absolute; `None`: the user's home.
    #[serde(default)]
    pub workdir: Option<String>,
    /// As whom commands run.
    #[serde(default)]
    pub user: TemplateUser,
}

impl BuildState {
    /// Where commands run and relative paths begin.
    #[must_use]
    pub fn cwd(&self) -> &str {
        self.workdir.as_deref().unwrap_or_else(|| self.user.home())
    }

    /// A path, absolute.
    #[must_use]
    pub fn absolute(&self, path: &str) -> String {
        match path.starts_with('/') {
            true => path.to_owned(),
            false => format!("{}/{path}", self.cwd().trim_end_matches('/')),
        }
    }

    /// Sets variables in their order; `$NAME` and `${NAME}` in a value are what `look` or an earlier one says.
    ///
    /// # Errors
    /// There would be too many.
    pub fn set(
        &mut self,
        variables: &[BuildVariable],
        look: impl Fn(&str) -> Option<String>,
    ) -> Result<(), String> {
        for BuildVariable { name, value } in variables {
            let known = |name: &str| self.env.get(name).cloned().or_else(|| look(name));
            let value = expanded(value, known)
                .ok_or_else(|| format!("{name} has more than {MAX_VARIABLE_BYTES} bytes"))?;
            variable(name, &value)?;
            self.env.insert(name.clone(), value);
        }
        let bytes: usize =
            self.env.iter().map(|(name, value)| name.len().saturating_add(value.len())).sum();
        if self.env.len() > MAX_LIVE_PAIRS || bytes > MAX_ENV_BYTES {
            return Err(format!(
                "more than {MAX_LIVE_PAIRS} variables or {MAX_ENV_BYTES} bytes of them"
            ));
        }
        Ok(())
    }
}

/// A value with the variables that it names; an unset variable is empty. `None` as soon as it would have more than
/// [`MAX_VARIABLE_BYTES`]: a value of many `$A` is otherwise as large as their number times the size of A. Pure.
fn expanded(value: &str, look: impl Fn(&str) -> Option<String>) -> Option<String> {
    let mut out = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        if out.len() > MAX_VARIABLE_BYTES {
            return None;
        }
        // As in a shell, `\$` is a dollar.
        if out.ends_with('\\') {
            out.pop();
            out.push('$');
            rest = after;
            continue;
        }
        let is_word = |c: char| c == '_' || c.is_ascii_alphanumeric();
        let braced = after.strip_prefix('{').and_then(|text| text.split_once('}'));
        let (name, then) = match braced {
            Some((name, then)) if name.chars().all(is_word) && !name.is_empty() => (name, then),
            _ => {
                let end = after.find(|c: char| !is_word(c)).unwrap_or(after.len());
                after.split_at(end)
            }
        };
        if name.is_empty() {
            out.push('$');
        } else {
            out.push_str(&look(name).unwrap_or_default());
        }
        rest = then;
    }
    out.push_str(rest);
    (out.len() <= MAX_VARIABLE_BYTES).then_some(out)
}

/// A template's name with the tag behind it, where there is one.
///
/// # Errors
/// In words: one of them is malformed.
pub fn tagged(text: &str) -> Result<(TemplateName, Option<String>), String> {
    let (name, tag) = text.split_once(':').map_or((text, None), |(a, b)| (a, Some(b)));
    let name = TemplateName::parse(name).map_err(|why| why.to_string())?;
    Ok((name, tag.map(self::tag).transpose()?))
}

/// A tag.
///
/// # Errors
/// In words.
pub fn tag(text: &str) -> Result<String, String> {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
    let lower = text.to_ascii_lowercase();
    let fits = (1..=128).contains(&lower.len()) && lower.bytes().all(is_plain);
    fits.then_some(lower)
        .ok_or_else(|| format!("{:?} is not a tag: 1 to 128 of a-z, 0-9, . - and _", shown(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable_of(name: &str, value: &str) -> BuildVariable {
        BuildVariable { name: name.to_owned(), value: value.to_owned() }
    }

    fn step(kind: &str, args: &[&str], files: Option<&str>) -> Result<BuildStep, String> {
        let args = args.iter().map(|text| (*text).to_owned()).collect();
        let files = files.map(str::to_owned);
        RawStep { kind: kind.to_owned(), args, files, force: false }.parse()
    }

    #[test]
    fn a_step_is_taken_or_refused_in_words() {
        let hash = "a".repeat(64);
        assert!(matches!(step("RUN", &["ls"], None), Ok(BuildStep::Run { user: None, .. })));
        let run = step("RUN", &["ls", "root"], None).unwrap();
        assert_eq!(run, BuildStep::Run { command: "ls".into(), user: Some(TemplateUser::Root) });
        assert!(step("COPY", &["a/*.py", "/app/", "", ""], Some(&hash)).is_ok());
        assert!(step("COPY", &["a", "b", "root", "0755"], Some(&hash)).is_ok());
        let env = step("ENV", &["A", "1", "B", "2"], None).unwrap();
        assert_eq!(env, BuildStep::Env(vec![variable_of("A", "1"), variable_of("B", "2")]));
        let json = serde_json::to_string(&env).unwrap();
        assert_eq!(json, r#"{"Env":[["A","1"],["B","2"]]}"#, "layers are found by it");
        for (kind, args, files, why) in [
            ("SLEEP", &["1"][..], None, "not a type"),
            ("RUN", &[], None, "arguments"),
            ("RUN", &["a", "b", "c"], None, "arguments"),
            ("RUN", &[" "], None, "a command"),
            ("RUN", &["a\0"], None, "NUL"),
            ("RUN", &["a", "daemon"], None, "user"),
            ("COPY", &["a", "b"], None, "filesHash is missing"),
            ("COPY", &["a", "b"], Some("../x"), "SHA-256"),
            ("COPY", &["../a", "b"], Some(hash.as_str()), "leads out"),
            ("COPY", &["/a", "b"], Some(hash.as_str()), "leads out"),
            ("COPY", &["a", "b", "", "9"], Some(hash.as_str()), "octal"),
            ("COPY", &["a"], Some(hash.as_str()), "arguments"),
            ("ENV", &["A"], None, "pairs"),
            ("ENV", &[], None, "pairs"),
            ("ENV", &["1A", "x"], None, "name of a variable"),
            ("ENV", &["A=B", "x"], None, "name of a variable"),
            ("WORKDIR", &[""], None, "a path"),
            ("USER", &["nobody"], None, "user"),
        ] {
            let refused = step(kind, args, files).unwrap_err();
            assert!(refused.contains(why), "{kind} {args:?}: {refused}");
        }
    }

    #[test]
    fn a_build_names_the_step_that_it_refuses() {
        let raw = |kind: &str, arg: &str| RawStep {
            kind: kind.into(),
            args: vec![arg.into()],
            files: None,
            force: false,
        };
        let from = || BuildSource::Template("base".into());
        let of = |steps| {
            BuildPlan::parse(from(), steps, Some(String::new()), Some("true".into()), false)
        };
        let plan = of(vec![raw("RUN", "true")]).unwrap();
        assert_eq!((plan.start, plan.ready.as_deref()), (None, Some("true")));
        let refused = of(vec![raw("RUN", "true"), raw("USER", "x")]).unwrap_err();
        assert!(refused.starts_with("step 2 (USER): "), "{refused}");
        let many = (0..=MAX_STEPS).map(|_| raw("RUN", "true")).collect();
        assert!(of(many).unwrap_err().starts_with("steps: "));
    }

    #[test]
    fn a_step_that_is_to_run_has_those_after_it_run_too() {
        let of = |forced: &[bool], force| {
            let raw = |&force: &bool| RawStep {
                kind: "RUN".into(),
                args: vec!["true".into()],
                files: None,
                force,
            };
            let steps = forced.iter().map(raw).collect();
            let from = BuildSource::Template("base".into());
            BuildPlan::parse(from, steps, None, None, force).unwrap().cacheable
        };
        assert_eq!(of(&[false, false], false), 2);
        assert_eq!(of(&[false, true, false], false), 1);
        assert_eq!(of(&[false, false], true), 0);
        assert_eq!(of(&[], false), 0);
    }

    #[test]
    fn variables_see_those_before_them() {
        let mut state = BuildState::default();
        let pairs = [("A", "/x"), ("PATH", "$A/bin:${PATH}:\\$A$"), ("B", "${C}[$B]")];
        let variables = pairs.map(|(name, value)| variable_of(name, value));
        state.set(&variables, |name| (name == "PATH").then(|| "/bin".to_owned())).unwrap();
        assert_eq!(state.env["PATH"], "/x/bin:/bin:$A$");
        assert_eq!(state.env["B"], "[]");
        assert_eq!(state.absolute("a"), "/home/user/a");
        state.workdir = Some("/app".into());
        assert_eq!((state.absolute("a").as_str(), state.absolute("/b").as_str()), ("/app/a", "/b"));
    }

    #[test]
    fn a3l_a_value_of_many_variables_is_refused_before_it_is_made() {
        let mut state = BuildState::default();
        let large = "x".repeat(MAX_VARIABLE_BYTES);
        state.set(&[variable_of("A", &large)], |_| None).unwrap();
        let asked = std::cell::Cell::new(0_usize);
        let variables = [variable_of("B", &"$C".repeat(MAX_VARIABLE_BYTES / 2))];
        let look = |_: &str| {
            asked.set(asked.get() + 1);
            Some("y".repeat(MAX_VARIABLE_BYTES))
        };
        let refused = state.set(&variables, look).unwrap_err();
        assert!(refused.starts_with("B has more than"), "{refused}");
        assert_eq!(asked.get(), 2, "nothing more is looked up once the value is too large");
        assert_eq!(state.env.len(), 1);
    }

    #[test]
    fn a_name_may_have_a_tag() {
        assert_eq!(tagged("web:v1.0").unwrap().1.as_deref(), Some("v1.0"));
        assert_eq!(tagged("web").unwrap().1, None);
        for bad in ["", ":v1", "web:", "we b", "web:a b", "web:a:b"] {
            assert!(tagged(bad).is_err(), "{bad}");
        }
    }
}
