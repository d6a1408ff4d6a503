//! `gitlab-executor config | prepare | run | cleanup`: the four stages of GitLab Runner's custom executor. A job is one long-lived
//! sandbox, found again by a label of the job; its clean-up answers once the wipe is verified.

use std::fs;

use anyhow::Context;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use cofferdam_ambient::env;
use cofferdam_contracts::live::{LiveState, LiveView};
use serde_json::{Value, json};

use super::client::{Client, segment};
use super::connection::{Connection, within};
use super::envd::{Envd, answered};
use super::exit::Exit;
use super::locations::Locations;
use super::output;
use super::sandbox_cp::{CpArgs, cp};
use super::sandbox_shell::{Frames, framed};

/// Label of a job's sandbox.
const LABEL: &str = "gitlab-job";
/// Seconds that a sandbox outlives its job's own limit: the clean-up comes after it.
const SPARE_S: u64 = 600;
/// GitLab's usual limit of a job, in seconds.
const USUAL_S: u64 = 3_600;
/// The longest life of a sandbox, in seconds.
const MOST_S: u64 = 86_400;
/// Where jobs lie inside: below the home of the template's user.
const BUILDS: &str = "/home/user/builds";
const CACHE: &str = "/home/user/cache";
/// Where a stream goes here.
type Outlet = fn(&[u8]);
/// The streams of a command, each with its outlet.
const STREAMS: [(&str, Outlet); 2] = [("stdout", output::raw), ("stderr", output::raw_err)];

#[derive(Debug, Args)]
pub(crate) struct GitlabArgs {
    #[command(subcommand)]
    pub command: GitlabCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GitlabCommand {
    /// config_exec: say where jobs lie, as JSON
    Config,
    /// prepare_exec: create the sandbox of the job
    Prepare {
        /// Template, as `cofferdam template ls` lists them
        #[arg(long, default_value = "base")]
        template: String,
        /// Host that it may reach (repeatable), GitLab's own among them; default: no network
        #[arg(long = "allow", value_name = "HOST")]
        allow: Vec<String>,
        /// Weakest isolation class accepted: container, gvisor, microvm
        #[arg(long)]
        class: Option<String>,
    },
    /// run_exec: run one script of the job in its sandbox
    Run {
        script: String,
        /// Part of the job, such as build_script
        stage: String,
    },
    /// cleanup_exec: kill the sandbox and verify its wipe
    Cleanup,
}

/// What GitLab Runner says of the job by its environment.
struct Job {
    label: String,
    lives_s: u64,
    build_failure: u8,
    system_failure: u8,
}

impl Job {
    fn from_env() -> anyhow::Result<Self> {
        let said =
            |name: &str| env::var(&format!("CUSTOM_ENV_{name}")).filter(|value| !value.is_empty());
        // The runner's own file stands before variables, which a job may set.
        let own = env::var("JOB_RESPONSE_FILE").and_then(|path| job_id(&fs::read(path).ok()?));
        let id = own
            .or_else(|| said("CI_JOB_ID"))
            .context("CUSTOM_ENV_CI_JOB_ID is not set: GitLab Runner calls this command")?;
        let host = said("CI_SERVER_HOST").unwrap_or_default();
        let limit = said("CI_JOB_TIMEOUT").and_then(|limit| limit.parse().ok()).unwrap_or(USUAL_S);
        Ok(Self {
            label: format!("{host}/{id}"),
            lives_s: limit.saturating_add(SPARE_S).min(MOST_S),
            build_failure: code("BUILD_FAILURE_EXIT_CODE", 1),
            system_failure: code("SYSTEM_FAILURE_EXIT_CODE", 2),
        })
    }

    /// Its sandboxes, the newest first, and those that ended too: a runner that prepares again has several.
    async fn sandboxes(&self, client: &Client) -> anyhow::Result<Vec<LiveView>> {
        let label = segment(&format!("{LABEL}={}", self.label));
        client.get(&format!("/api/sandboxes?label={label}&limit=1000")).await
    }
}

/// The id of the job that the runner was given, of its answer's JSON.
fn job_id(response: &[u8]) -> Option<String> {
    let response: Value = serde_json::from_slice(response).ok()?;
    Some(response.get("id")?.as_u64()?.to_string())
}

/// An exit code that the runner tells us to use.
fn code(name: &str, usual: u8) -> u8 {
    env::var(name).and_then(|text| text.parse().ok()).unwrap_or(usual)
}

pub(crate) async fn gitlab_executor(at: &Locations, args: &GitlabArgs) -> anyhow::Result<Exit> {
    let done = stage(at, &args.command).await;
    // Any other code is a failure that the runner does not know.
    done.or_else(|error| {
        output::failure(&error);
        Ok(Exit::Of(code("SYSTEM_FAILURE_EXIT_CODE", 2)))
    })
}

async fn stage(at: &Locations, command: &GitlabCommand) -> anyhow::Result<Exit> {
    if let GitlabCommand::Config = command {
        let version = env!("CARGO_PKG_VERSION");
        output::json_line(&json!({
            "builds_dir": BUILDS, "cache_dir": CACHE, "builds_dir_is_shared": false,
            "driver": {"name": "cofferdam", "version": format!("v{version}")},
        }));
        return Ok(Exit::Ok);
    }
    let job = Job::from_env()?;
    within(Connection::reading(at), async |session| {
        let client = &session.client;
        match command {
            GitlabCommand::Prepare { template, allow, class } => {
                prepare(client, &job, template, allow, class.as_deref()).await
            }
            GitlabCommand::Run { script, stage } => run(client, &job, script, stage).await,
            GitlabCommand::Config | GitlabCommand::Cleanup => cleanup(client, &job).await,
        }
    })
    .await
}

async fn prepare(
    client: &Client,
    job: &Job,
    template: &str,
    allow: &[String],
    class: Option<&str>,
) -> anyhow::Result<Exit> {
    let mut body =
        json!({"template": template, "timeoutS": job.lives_s, "metadata": {LABEL: job.label}});
    if let Some(fields) = body.as_object_mut() {
        if !allow.is_empty() {
            fields.insert("net".into(), json!(allow));
        }
        if let Some(class) = class {
            fields.insert("classMin".into(), json!(class));
        }
    }
    let made: LiveView = client.post("/api/sandboxes", &body).await?;
    output::note(&format!("sandbox {} of run {}", made.id, made.run_id));
    Ok(Exit::Ok)
}

/// Runs a script as the user of the template, and shows what it writes as it is written.
async fn run(client: &Client, job: &Job, script: &str, stage: &str) -> anyhow::Result<Exit> {
    let sandboxes = job.sandboxes(client).await?;
    let sandbox = sandboxes.into_iter().find(|one| one.state == LiveState::Running);
    let sandbox =
        sandbox.context("the job has no sandbox: prepare failed, or its time was over")?;
    let name: String =
        stage.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(64).collect();
    let inside = format!("/tmp/gitlab-{name}.sh");
    let to = format!("{}:{inside}", sandbox.id);
    cp(client, &CpArgs { from: script.to_owned(), to, user: "user".to_owned(), force: false })
        .await?;
    let envd = Envd::of(client, sandbox.id.as_str()).await?;
    let message = json!({"process": {"cmd": "/bin/bash", "args": [inside]}});
    let request = envd
        .request(reqwest::Method::POST, "/process.Process/Start")
        .header("authorization", format!("Basic {}", STANDARD.encode("user:")))
        .header("content-type", "application/connect+json")
        .header("keepalive-ping-interval", "30")
        .body(framed(&message));
    let mut frames = Frames::of(answered(request).await?);
    while let Some(message) = frames.next().await? {
        for (stream, write) in STREAMS {
            let text = message.pointer(&format!("/event/data/{stream}")).and_then(Value::as_str);
            if let Some(text) = text {
                write(&STANDARD.decode(text).context("the server's answer")?);
            }
        }
        if let Some(end) = message.pointer("/event/end") {
            let exit = end.get("exitCode").and_then(Value::as_i64).unwrap_or(0);
            let by_signal = end.get("exited").and_then(Value::as_bool) == Some(false);
            return ended(job, if by_signal { 128 } else { exit });
        }
    }
    anyhow::bail!("the connection to the sandbox ended before the script did")
}

/// The runner's code for a script that failed; its own goes to the file that the runner names.
fn ended(job: &Job, exit: i64) -> anyhow::Result<Exit> {
    if exit == 0 {
        return Ok(Exit::Ok);
    }
    if let Some(file) = env::var("BUILD_EXIT_CODE_FILE").filter(|file| !file.is_empty()) {
        fs::write(&file, exit.to_string()).with_context(|| format!("cannot write {file}"))?;
    }
    Ok(Exit::Of(job.build_failure))
}

async fn cleanup(client: &Client, job: &Job) -> anyhow::Result<Exit> {
    let mut exit = Exit::Ok;
    for sandbox in job.sandboxes(client).await? {
        let path = format!("/api/sandboxes/{}", segment(sandbox.id.as_str()));
        // One that ended by itself, at its time limit, has to be wiped as well.
        let view: LiveView = match sandbox.state {
            LiveState::Ended => sandbox,
            _ => client.delete(&path).await?,
        };
        if view.wiped {
            output::note(&format!("sandbox {} is wiped", view.id));
        } else {
            output::note(&format!(
                "the wipe of sandbox {} is not verified; `cofferdam session ls` shows it held",
                view.id
            ));
            exit = Exit::Of(job.system_failure);
        }
    }
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_the_one_that_the_runner_was_given() {
        assert_eq!(job_id(br#"{"id": 17, "variables": []}"#).as_deref(), Some("17"));
        for bad in ["", "{}", r#"{"id": "17"}"#, r#"{"id": -1}"#] {
            assert_eq!(job_id(bad.as_bytes()), None, "{bad}");
        }
    }
}
