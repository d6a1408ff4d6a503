//! The steps of a build, in its sandbox.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_ambient::random::secret_hex;
use cofferdam_contracts::id::{Digest, TemplateId};
use cofferdam_contracts::template_build::{BuildState, BuildStep, MAX_BUILD_S, TemplateUser};
use cofferdam_sandbox::inside::{CommandExit, ExecRequest, Unpack};
use cofferdam_sandbox::{AgentError, CommandEvent, ExecOptions, USUAL_PATH};

use crate::accounts::Account;
use crate::handle::LiveHandle;
use crate::live::Live;
use crate::template::build::Contents;
use crate::template::build_log::BuildLog;
use crate::template::program::request;
use crate::template::uploads::Uploads;

/// How often output is written to the ledger.
const FLUSH: Duration = Duration::from_millis(200);
/// Entries of one archive.
const MAX_ENTRIES: u64 = 200_000;
/// Copies what was unpacked, as Docker's COPY does: a directory's content, a file under its new name or into a directory,
/// several into a directory. `$1` is a path or a pattern, which is expanded and never executed.
const COPY: &str = r#"
set -eu -o pipefail
shopt -s globstar dotglob nullglob
cd -- "$4"
IFS=
case $1 in *[*?[]*) all=($1) ;; *) all=("$1") ;; esac
found=() dirs=()
for one in "${all[@]}"; do
  one=${one%/}
  [ -e "$one" ] || [ -L "$one" ] || continue
  for dir in "${dirs[@]}"; do [ "${one#"$dir"/}" = "$one" ] || continue 2; done
  [ -L "$one" ] || ! [ -d "$one" ] || dirs+=("$one")
  found+=("$one")
done
[ "${#found[@]}" -gt 0 ] || { echo "no file of the upload matches $1" >&2; exit 1; }
[ -z "$3" ] || chmod -R -- "$3" "${found[@]}"
into() { [ -d "$1" ] || { mkdir -p -- "$1"; chown -- "$2" "$1"; }; }
for one in "${found[@]}"; do
  if [ -d "$one" ] && ! [ -L "$one" ]; then
    into "$2" "$5"
    inner=("$one"/*)
    [ "${#inner[@]}" -eq 0 ] || printf '%s\0' "${inner[@]}" | xargs -0 cp -a -t "$2" --
  elif [ "${#found[@]}" -gt 1 ] || [ -d "$2" ] || [ "${2%/}" != "$2" ]; then
    into "$2" "$5"
    cp -a -- "$one" "$2/"
  else
    mkdir -p -- "$(dirname -- "$2")"
    cp -a -T -- "$one" "$2"
  fi
done
"#;

/// A step as the log has it. Pure.
pub(crate) fn line(step: &BuildStep) -> String {
    match step {
        BuildStep::Run { command, .. } => format!("RUN {command}"),
        BuildStep::Copy { from, to, .. } => format!("COPY {from} {to}"),
        BuildStep::Env(variables) => {
            let names: Vec<&str> =
                variables.iter().map(|variable| variable.name.as_str()).collect();
            // Not their values, which may be secrets.
            format!("ENV {}", names.join(" "))
        }
        BuildStep::Workdir(dir) => format!("WORKDIR {dir}"),
        BuildStep::User(user) => format!("USER {}", user.as_str()),
    }
}

/// The ms that a build has left for its next command, at least one: that one ends at once, and says why. Pure.
fn left_ms(since: Duration) -> u64 {
    let left = Duration::from_secs(MAX_BUILD_S).saturating_sub(since);
    u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Runs steps one after the other.
pub(crate) struct Steps<'a> {
    pub live: &'a Live,
    pub held: &'a Arc<LiveHandle>,
    pub template: &'a TemplateId,
    pub contents: &'a Contents,
    pub state: BuildState,
    pub log: &'a mut BuildLog,
    pub since: Stopwatch,
}

impl Steps<'_> {
    /// Runs one step.
    ///
    /// # Errors
    /// In words.
    pub(crate) async fn run(&mut self, step: &BuildStep) -> Result<(), String> {
        self.log.say("info", &line(step));
        match step {
            BuildStep::Run { command, user } => {
                let state =
                    BuildState { user: user.unwrap_or(self.state.user), ..self.state.clone() };
                let request = request(&state, command, &self.held.env(), self.left_ms());
                self.command(request, "the command").await
            }
            BuildStep::Copy { from, to, user, mode, files } => {
                let user = user.unwrap_or(self.state.user);
                self.copy(from, to, user, mode.as_deref(), files).await
            }
            BuildStep::Env(variables) => {
                let (home, user) = (self.state.user.home(), self.state.user.as_str());
                let env = self.held.env();
                let look = move |name: &str| match name {
                    "PATH" => Some(USUAL_PATH.to_owned()),
                    "HOME" => Some(home.to_owned()),
                    "USER" => Some(user.to_owned()),
                    _ => env.get(name).cloned(),
                };
                self.state.set(variables, look)
            }
            BuildStep::Workdir(dir) => {
                let dir = self.state.absolute(dir);
                let owner = Account::of(self.state.user).user;
                let script =
                    "if ! [ -d \"$1\" ]; then mkdir -p -- \"$1\" && chown -- \"$2\" \"$1\"; fi";
                let owner = format!("{}:{}", owner.uid, owner.gid);
                self.as_root(script, &[&dir, &owner], "the directory").await?;
                self.state.workdir = Some(dir);
                Ok(())
            }
            BuildStep::User(user) => {
                self.state.user = *user;
                Ok(())
            }
        }
    }

    fn left_ms(&self) -> u64 {
        left_ms(self.since.elapsed())
    }

    async fn copy(
        &mut self,
        from: &str,
        to: &str,
        user: TemplateUser,
        mode: Option<&str>,
        files: &Digest,
    ) -> Result<(), String> {
        let most = self.held.facts.limits.disk_mb.unwrap_or(u64::MAX).saturating_mul(1_024 * 1_024);
        let tenant = &self.held.facts.tenant;
        let content = self.contents.get(files).cloned().flatten();
        let tar = Uploads::of(self.live).tar(tenant, self.template, files, content, most).await;
        let tar = tar.map_err(|error| error.refusal().message)?;
        let (agent, owner) = (&self.held.agent, Account::of(user).user);
        let place = format!("/tmp/.copy-{}", secret_hex(8));
        let failed = |error: AgentError| format!("the files: {error}");
        agent.files().mkdir(&place, 0o700, None).await.map_err(failed)?;
        let into = Unpack {
            path: place.clone(),
            max_bytes: most,
            max_entries: MAX_ENTRIES,
            owner: Some(owner),
        };
        let unpacked = agent.files().unpack(&into, tar).await.map_err(failed);
        let copied = match unpacked {
            Ok(()) => {
                let to = self.state.absolute(to);
                let owner = format!("{}:{}", owner.uid, owner.gid);
                let args = [from, &to, mode.unwrap_or(""), &place, &owner];
                self.as_root(COPY, &args, "the copy").await
            }
            Err(why) => Err(why),
        };
        let removed = self.held.agent.files().remove(&place, true).await.map_err(failed);
        copied.and(removed)
    }

    /// Runs a script of ours as the sandbox's root.
    async fn as_root(&mut self, script: &str, args: &[&str], what: &str) -> Result<(), String> {
        let root = BuildState { user: TemplateUser::Root, ..BuildState::default() };
        let mut request = request(&root, "", &self.held.env(), self.left_ms());
        let words = ["/bin/bash", "-c", script, "build"].into_iter().chain(args.iter().copied());
        request.argv = words.map(str::to_owned).collect();
        "/".clone_into(&mut request.cwd);
        self.command(request, what).await
    }

    /// Runs a command to its end, and all that it leaves; its output is in the log.
    async fn command(&mut self, request: ExecRequest, what: &str) -> Result<(), String> {
        let running = self.held.agent.start(request, ExecOptions::default()).await;
        let mut running = running.map_err(|error| format!("{what}: {error}"))?;
        let mut written = Stopwatch::start();
        let end = loop {
            match tokio::time::timeout(FLUSH, running.next()).await {
                Err(_) => {}
                Ok(Ok(CommandEvent::Output(stream, piece))) => self.log.feed(stream, &piece),
                Ok(Ok(CommandEvent::End(end))) => break end,
                Ok(Err(error)) => return Err(format!("{what} was cut off: {error}")),
            }
            if self.log.is_due() || written.elapsed() >= FLUSH {
                self.log.flush(self.live).await;
                written = Stopwatch::start();
            }
        };
        self.log.ends();
        self.log.flush(self.live).await;
        match end.ended {
            _ if end.timed_out => Err(format!("{what} ran longer than a build may")),
            CommandExit::Exit(0) => Ok(()),
            CommandExit::Exit(code) => {
                let said = self.log.last_words();
                Err(format!("{what} failed with exit status {code}{said}"))
            }
            CommandExit::Signal(signal) => Err(format!("{what} was ended by signal {signal}")),
            CommandExit::Unstarted(why) => Err(format!("{what} did not start: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_what_is_left_of_its_builds_hour() {
        let s = Duration::from_secs;
        assert_eq!(left_ms(s(0)), 3_600_000);
        assert_eq!(left_ms(s(3_599)), 1_000);
        assert_eq!((left_ms(s(3_600)), left_ms(s(10_000))), (1, 1));
    }
}
