//! `hook git install | remove | run`: git's own hook, which runs a recipe for each commit that is pushed.
//!
//! ```text
//! a repository with a working tree: pre-push, which stops a push whose run fails
//! a bare one: post-receive, whose words git shows the one who pushes
//! ```

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use cofferdam_contracts::shell;

use super::exit::{Exit, Misuse};
use super::locations::Locations;
use super::output;
use super::run::{RunArgs, run};

/// What a hook of ours says of itself: a file that does not is another's.
const MARK: &str = "# cofferdam hook git: `cofferdam hook git remove` removes this file.";
/// Bytes of a hook that are looked at.
const MAX_HOOK_BYTES: u64 = 64 * 1024;
/// Commits of one push that run; a push of more branches is a mirror's.
const MAX_COMMITS: usize = 8;
/// Bytes of what git says of a push: 1,000 branches.
const MAX_INPUT_BYTES: u64 = 256 * 1024;

#[derive(Debug, Args)]
pub(crate) struct GitArgs {
    #[command(subcommand)]
    pub command: GitCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GitCommand {
    /// Write the hook: pre-push, or post-receive in a bare repository
    Install {
        /// A recipe file, or the id (or id@v) of an imported recipe; its form has the inputs `repo` and `commit`
        #[arg(long, default_value = "cofferdam.yaml")]
        recipe: String,
        /// HookRepository; default: the one of this directory
        #[arg(long, value_name = "DIR", default_value = ".")]
        repo: PathBuf,
        /// Replace a hook that something else wrote, or write one into a directory that other repositories share
        #[arg(long)]
        force: bool,
    },
    /// Remove the hook, if `install` wrote it
    Remove {
        /// HookRepository; default: the one of this directory
        #[arg(long, value_name = "DIR", default_value = ".")]
        repo: PathBuf,
    },
    /// Run the recipe for the commits that git names on standard input; the hook calls it
    #[command(hide = true)]
    Run {
        #[arg(long)]
        recipe: String,
        #[arg(long)]
        repo: PathBuf,
    },
}

pub(crate) async fn git(at: &Locations, args: &GitArgs) -> anyhow::Result<Exit> {
    match &args.command {
        GitCommand::Install { recipe, repo, force } => install(at, recipe, repo, *force),
        GitCommand::Remove { repo } => remove(repo),
        GitCommand::Run { recipe, repo } => pushed(at, recipe, repo).await,
    }
}

/// A repository, as git itself finds it.
struct HookRepository {
    /// What the task is shown: the working tree, or the bare repository.
    shown: PathBuf,
    hook: PathBuf,
    /// Whether the hook is of this repository alone.
    is_own: bool,
    kind: &'static str,
}

fn repository(at: &Path) -> anyhow::Result<HookRepository> {
    let said = |args: &[&str]| -> anyhow::Result<String> {
        let mut command = Command::new("git");
        let output = command.arg("-C").arg(at).args(args).output().context("git does not start")?;
        let why = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "{}: {}", at.display(), why.trim());
        let text = String::from_utf8(output.stdout)?;
        // One newline is git's; others are of a directory's name.
        Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
    };
    let is_bare = said(&["rev-parse", "--is-bare-repository"])? == "true";
    let dir = PathBuf::from(said(&["rev-parse", "--path-format=absolute", "--git-common-dir"])?);
    let shown = match is_bare {
        true => dir.clone(),
        false => PathBuf::from(said(&["rev-parse", "--show-toplevel"])?),
    };
    let kind = if is_bare { "post-receive" } else { "pre-push" };
    // core.hooksPath counts: a hook elsewhere would never run.
    let hooks = said(&["rev-parse", "--path-format=absolute", "--git-path", "hooks"])?;
    let hooks = PathBuf::from(hooks);
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let is_own = [&dir, &shown].iter().any(|own| real(&hooks).starts_with(real(own)));
    Ok(HookRepository { shown, hook: hooks.join(kind), is_own, kind })
}

/// Whether a hook is ours; `None`: there is none. A link is another's, wherever it leads.
fn is_ours(hook: &Path) -> anyhow::Result<Option<bool>> {
    let found = match fs::symlink_metadata(hook) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", hook.display())),
    };
    if !found.is_file() || found.size() > MAX_HOOK_BYTES {
        return Ok(Some(false));
    }
    let text = fs::read(hook).with_context(|| format!("cannot read {}", hook.display()))?;
    Ok(Some(String::from_utf8_lossy(&text).lines().any(|line| line == MARK)))
}

fn install(at: &Locations, recipe: &str, repo: &Path, force: bool) -> anyhow::Result<Exit> {
    let repository = repository(repo)?;
    let hook = &repository.hook;
    if is_ours(hook)? == Some(false) && !force {
        let why = format!(
            "{} exists and is another program's; add the call of cofferdam to it, or replace it with --force",
            hook.display()
        );
        return Err(Misuse(why).into());
    }
    if !repository.is_own && !force {
        let why = format!(
            "{}: core.hooksPath leads out of this repository, so every repository that uses it would run this hook; set \
             core.hooksPath of this repository alone, or write it there with --force",
            hook.display()
        );
        return Err(Misuse(why).into());
    }
    let text = script(at, recipe, &repository)?;
    let dir = hook.parent().context("a hook has a directory")?;
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    // A push that runs meanwhile reads the old file or the new one, whole.
    let draft = dir.join(format!(".{}.cofferdam-{}", repository.kind, std::process::id()));
    let write = || -> std::io::Result<()> {
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, hook)
    };
    write()
        .inspect_err(|_| drop(fs::remove_file(&draft)))
        .with_context(|| format!("cannot write {}", hook.display()))?;
    output::line(&hook.display().to_string());
    Ok(Exit::Ok)
}

/// The hook's text. What git sets for its hooks would lead every git of the run to this repository.
fn script(at: &Locations, recipe: &str, repository: &HookRepository) -> anyhow::Result<String> {
    let program = std::env::current_exe().context("this program has no path")?;
    let is_file = Path::new(recipe).is_file() || recipe.contains('/') || recipe.ends_with(".yaml");
    let recipe = match is_file {
        true => text(
            &Path::new(recipe)
                .canonicalize()
                .with_context(|| format!("cannot read the recipe {recipe}"))?,
        )?,
        false => recipe.to_owned(),
    };
    let mut words = vec![text(&program)?];
    if let Some(state) = &at.state {
        words.extend(["--state".to_owned(), text(&std::path::absolute(state)?)?]);
    }
    if let Some(server) = &at.server {
        words.extend(["--server".to_owned(), server.clone()]);
    }
    if let Some(file) = &at.key_file {
        words.extend(["--key-file".to_owned(), text(&std::path::absolute(file)?)?]);
    }
    words.extend(["hook", "git", "run", "--recipe"].map(str::to_owned));
    words.extend([recipe, "--repo".to_owned(), text(&repository.shown)?]);
    let words: Vec<String> = words.iter().map(|word| word_of(word)).collect();
    Ok(format!(
        "#!/bin/sh\n{MARK}\nunset $(git rev-parse --local-env-vars)\nexec {}\n",
        words.join(" ")
    ))
}

/// One word of a shell.
fn word_of(text: &str) -> String {
    let mut word = String::new();
    let push = |part: &str| {
        word.push_str(part);
        Ok::<_, std::convert::Infallible>(())
    };
    let Ok(()) = shell::quoted(text, push);
    word
}

fn text(path: &Path) -> anyhow::Result<String> {
    path.to_str().map(str::to_owned).with_context(|| format!("{} is not UTF-8", path.display()))
}

fn remove(repo: &Path) -> anyhow::Result<Exit> {
    let hook = repository(repo)?.hook;
    match is_ours(&hook)? {
        Some(true) => {
            fs::remove_file(&hook).with_context(|| format!("cannot remove {}", hook.display()))?;
            output::line("removed");
            Ok(Exit::Ok)
        }
        Some(false) => Err(Misuse(format!("{} is another program's", hook.display())).into()),
        None => {
            output::note(&format!("{} is not there", hook.display()));
            Ok(Exit::No)
        }
    }
}

/// The commits of a push, each once: what git writes to a hook's standard input. A branch that is deleted has none.
///
/// # Errors
/// A line that is of neither hook, with the line.
fn commits(said: &[u8]) -> anyhow::Result<Vec<String>> {
    let mut found: Vec<String> = Vec::new();
    for line in String::from_utf8_lossy(said).lines() {
        let (id, name) = update(line)
            .with_context(|| format!("git said {line:?} of the push, which is not understood"))?;
        let is_branch = name.starts_with("refs/heads/");
        if is_branch && id.bytes().any(|b| b != b'0') && !found.iter().any(|one| one == id) {
            found.push(id.to_owned());
        }
    }
    Ok(found)
}

/// The commit that a line names, and where it goes. pre-push: what was pushed, which may have spaces, its id, the remote's name, its
/// id. post-receive: the id before, the id now, the name.
fn update(line: &str) -> Option<(&str, &str)> {
    let is_id =
        |text: &str| matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit());
    let mut words = line.rsplit(' ');
    let (last, second, third) = (words.next()?, words.next()?, words.next()?);
    let (id, name) = match is_id(last) {
        true if words.next().is_some() => (third, second),
        true => return None,
        false => (second, last),
    };
    (is_id(id) && name.starts_with("refs/")).then_some((id, name))
}

/// The commits that run, and how many do not.
fn chosen(mut commits: Vec<String>) -> (Vec<String>, usize) {
    let more = commits.len().saturating_sub(MAX_COMMITS);
    commits.truncate(MAX_COMMITS);
    (commits, more)
}

async fn pushed(at: &Locations, recipe: &str, repo: &Path) -> anyhow::Result<Exit> {
    let mut said = Vec::new();
    std::io::stdin().lock().take(MAX_INPUT_BYTES + 1).read_to_end(&mut said)?;
    anyhow::ensure!(
        u64::try_from(said.len())? <= MAX_INPUT_BYTES,
        "the push names more than {MAX_INPUT_BYTES} bytes of branches; push fewer at once"
    );
    let (commits, more) = chosen(commits(&said)?);
    if more > 0 {
        output::note(&format!(
            "{} commits were pushed; the first {MAX_COMMITS} run",
            commits.len() + more
        ));
    }
    let mut exit = Exit::Ok;
    for commit in &commits {
        let inputs = vec![format!("repo={}", text(repo)?), format!("commit={commit}")];
        let ended = run(at, &RunArgs::of_commit(recipe, inputs)).await?;
        if ended != Exit::Ok {
            // The last words of a run may be of the tests that passed.
            let short: String = commit.chars().take(12).collect();
            output::note(&format!("commit {short}: its run did not succeed"));
            exit = ended;
        }
    }
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use super::{MAX_COMMITS, chosen, commits};

    #[test]
    fn a_push_names_its_commits_once_and_a_deletion_none() {
        let (a, b, none) = ("a".repeat(40), "b".repeat(40), "0".repeat(40));
        let said = format!(
            "refs/heads/x {a} refs/heads/x {none}\nrefs/heads/y {a} refs/heads/y {b}\n(delete) {none} refs/heads/z {b}\n"
        );
        assert_eq!(commits(said.as_bytes()).unwrap(), std::slice::from_ref(&a));
        let said = format!(
            "{none} {a} refs/heads/x\n{a} {b} refs/heads/y\n{a} {none} refs/heads/z\n{none} {b} refs/notes/n\n"
        );
        assert_eq!(commits(said.as_bytes()).unwrap(), [a, b]);
    }

    #[test]
    fn a_source_with_spaces_and_a_name_that_is_not_utf8_are_read() {
        let (a, none) = ("a".repeat(40), "0".repeat(40));
        let said = format!("HEAD@{{1 day ago}} {a} refs/heads/x {none}\n");
        assert_eq!(commits(said.as_bytes()).unwrap(), std::slice::from_ref(&a));
        let mut said = format!("{none} {a} refs/heads/").into_bytes();
        said.extend(b"caf\xe9\n");
        assert_eq!(commits(&said).unwrap(), [a]);
    }

    #[test]
    fn a_line_that_is_of_no_push_fails() {
        let a = "a".repeat(40);
        for said in ["odd\n", "a b refs/heads/x\n", "x y z\n", "\n"] {
            assert!(commits(said.as_bytes()).is_err(), "{said:?}");
        }
        assert!(commits(format!("{a} {a} {a}\n").as_bytes()).is_err());
        assert!(commits(format!("{a} {a} branch\n").as_bytes()).is_err());
        assert!(commits(b"").unwrap().is_empty());
    }

    #[test]
    fn a_push_of_many_branches_runs_the_first_of_them() {
        let all: Vec<String> = (0..=MAX_COMMITS).map(|n| n.to_string()).collect();
        assert_eq!(chosen(all.clone()), (all[..MAX_COMMITS].to_vec(), 1));
        assert_eq!(chosen(all[..MAX_COMMITS].to_vec()), (all[..MAX_COMMITS].to_vec(), 0));
    }
}
