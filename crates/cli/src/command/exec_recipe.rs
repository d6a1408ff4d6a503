//! A command of `exec` as a recipe, so that it leaves the same records as every other work.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cofferdam_contracts::input::InputMode;
use cofferdam_contracts::project::place;
use cofferdam_contracts::recipe::EXEC_RECIPE;
use cofferdam_sandbox::USUAL_PATH;
use serde_json::{Value, json};

use super::exec_args::ExecArgs;
use super::exit::Misuse;
use super::stdin::Stdin;
use super::{host_program, project};

/// Where the command's input lies in its sandbox; no directory of the task's is there.
const STDIN: &str = "/run/cofferdam/stdin";

/// The recipe of a command with these variables and this input.
pub(crate) fn of(
    args: &ExecArgs,
    env: BTreeMap<String, String>,
    input: &Stdin,
) -> anyhow::Result<Value> {
    let escape = |text: &str| text.replace("${", "$${");
    let mut task = json!({
        "name": "exec",
        "image": args.image,
        "exec": {"run": args.cmd.iter().map(|word| escape(word)).collect::<Vec<_>>(), "timeout": args.timeout, "egress": args.egress},
        "limits": {},
        "artifacts": args.keep,
    });
    let mut set = |pointer: &str, name: &str, value: Value| {
        if let Some(object) = task.pointer_mut(pointer).and_then(Value::as_object_mut) {
            object.insert(name.to_owned(), value);
        }
    };
    if let Some(mb) = args.mem {
        set("/limits", "memMB", json!(mb));
    }
    if let Some(cpu) = args.cpu {
        set("/limits", "cpu", json!(cpu));
    }
    if let Some(pids) = args.pids {
        set("/limits", "pids", json!(pids));
    }
    if let Some(mb) = args.disk {
        set("/limits", "diskMB", json!(mb));
    }
    if let Some(class) = &args.isolation {
        set("", "isolation", json!({"class_min": class}));
    }
    if let Some(user) = &args.user {
        set("", "user", json!(escape(user.as_str())));
    }
    let mut files = Vec::new();
    let mut show = |from: &str, to: &str| {
        files.push(json!({"from": escape(from), "to": escape(to), "access": "workspace-write"}));
    };
    if let Some(dir) = &args.work {
        let dir = named("--work", dir)?;
        let place = place(&dir);
        show(&dir, place);
        if let Some(repository) = project::repository(Path::new(&dir)) {
            show(&repository, &repository);
        }
        set("/exec", "workdir", json!(escape(place)));
    }
    for dir in &args.mount {
        let dir = named("--mount", dir)?;
        if place(&dir) != dir {
            let why = format!("--mount {dir}: a sandbox has its own; name a directory in it");
            return Err(Misuse(why).into());
        }
        show(&dir, &dir);
    }
    let mut variables = BTreeMap::new();
    if args.image == "host" {
        variables = mounted_env(&args.mount);
    }
    if *input == Stdin::Terminal {
        variables.insert("TERM".to_owned(), terminal_name());
    }
    variables.extend(env);
    if !variables.is_empty() {
        let variables = variables.iter().map(|(name, value)| (name, escape(value)));
        set("/exec", "env", json!(variables.collect::<BTreeMap<_, _>>()));
    }
    match input {
        Stdin::Nothing => {}
        Stdin::Text(text) => {
            files.push(json!({"text": escape(text), "to": STDIN, "access": "read-only"}));
            set("/exec", "stdin", json!(STDIN));
        }
        Stdin::Stream(_) => set("/exec", "input", json!(InputMode::Stream)),
        Stdin::Terminal => set("/exec", "input", json!(InputMode::Terminal)),
    }
    set("", "files", json!(files));
    Ok(
        json!({"id": EXEC_RECIPE, "v": "1", "caps": {"sandbox_minutes": 1500}, "plan": {"tasks": [task]}}),
    )
}

/// A directory of this host, as a recipe names it.
fn named(flag: &str, dir: &Path) -> anyhow::Result<String> {
    let found = dir.canonicalize().map_err(|e| Misuse(format!("{flag} {}: {e}", dir.display())))?;
    if !found.is_dir() {
        return Err(Misuse(format!("{flag} {}: not a directory", dir.display())).into());
    }
    let named = found.to_str().map(str::to_owned);
    named.ok_or_else(|| Misuse(format!("{flag} {}: its name is not UTF-8", dir.display())).into())
}

/// How programs of mounted directories are found, and what rustup's need.
fn mounted_env(mounts: &[PathBuf]) -> BTreeMap<String, String> {
    let path = cofferdam_ambient::env::var("PATH").unwrap_or_default();
    let found = mounts.iter().filter_map(|dir| dir.canonicalize().ok());
    let dirs: Vec<PathBuf> = mounts.iter().cloned().chain(found).collect();
    let path = host_program::path_inside(&dirs, &path, USUAL_PATH).map(|path| ("PATH", path));
    let rustup = dirs.iter().rev().find(|dir| dir.ends_with(".rustup"));
    let rustup = rustup.map(|dir| ("RUSTUP_HOME", dir.display().to_string()));
    path.into_iter().chain(rustup).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// What this process's terminal is called, for programs that ask a database of terminals for it.
fn terminal_name() -> String {
    let own = cofferdam_ambient::env::var("TERM").unwrap_or_default();
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+');
    match !own.is_empty() && own.len() <= 64 && own.chars().all(is_name) {
        true => own,
        false => "xterm".to_owned(),
    }
}
