//! The commands of a request, each with its whole environment. Pure.

use std::collections::BTreeMap;

use cofferdam_contracts::sandbox::{DEFAULT_TIMEOUT_MS, Phase, SandboxRequest};

use crate::images::ImageRoot;
use crate::spec::command::Command;
use crate::spec::environment::environment;
use crate::spec::users::{CommandUser, CommandUsers};

/// The commands of one sandbox.
pub(crate) struct PlannedCommands {
    /// The command that runs first.
    pub build: Option<Command>,
    pub task: Command,
}

/// The commands of a request that was checked.
pub(crate) fn of(
    request: &SandboxRequest,
    image: Option<&ImageRoot>,
    workdir: &str,
    users: CommandUsers<'_>,
) -> PlannedCommands {
    let command = |argv: &[String], asked: &BTreeMap<String, String>, user: CommandUser<'_>| {
        let CommandUser { home, user, groups } = user;
        Command {
            argv: argv.to_vec(),
            env: environment(asked, image, home),
            cwd: workdir.to_owned(),
            timeout_ms: request.timeout_ms,
            phase: Phase::Exec,
            user,
            groups,
            stdin_file: None,
            jail: None,
        }
    };
    let build = request.build.as_ref().map(|build| Command {
        timeout_ms: build.timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS),
        phase: Phase::Build,
        ..command(&build.cmd, &build.env, users.build)
    });
    let task = Command {
        stdin_file: request.stdin.clone(),
        ..command(&request.cmd, &request.env, users.task)
    };
    PlannedCommands { build, task }
}
