//! `template build | add | ls | rm`: what long-lived sandboxes of this host are made of.

use clap::{Args, Subcommand, ValueEnum};
use cofferdam_contracts::id::TemplateName;
use cofferdam_contracts::template_build::TemplateUser;
use cofferdam_sandbox::HostError;
use cofferdam_sandbox::image::Images;
use cofferdam_sandbox::templates::{
    Template, TemplateNote, TemplateProgram, build_template, templates,
};
use serde_json::json;

use super::exit::{Exit, Misuse, Negative};
use super::locations::Locations;
use super::table::{self, extra, key, usual};
use super::{image, output, state};

#[derive(Debug, Args)]
pub(crate) struct TemplateArgs {
    #[command(subcommand)]
    pub command: TemplateCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// Build `base` or `code-interpreter-v1` from Debian's packages and PyPI's, as this machine's apt and pip are configured
    Build {
        name: String,
        /// crun, runc, an absolute path or docker; default: the best installed runtime
        #[arg(long)]
        runtime: Option<String>,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Make a template of an image of this host
    Add {
        name: String,
        /// Image: a name of `image ls`, or NAME@sha256:HEX
        #[arg(long)]
        image: String,
        /// Shell command that every sandbox begins with
        #[arg(long)]
        start: Option<String>,
        /// Shell command that succeeds once the start command's program can be used; at most 20 s later
        #[arg(long, requires = "start")]
        ready: Option<String>,
        /// Port that the program serves; repeatable
        #[arg(long = "port", value_name = "PORT")]
        ports: Vec<u16>,
        /// As whom both commands run
        #[arg(long, default_value = "user")]
        user: LoginUser,
        /// Memory in MiB that a sandbox has at least
        #[arg(long = "mem-mb", value_name = "MIB")]
        mem_mb: Option<u64>,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// List this host's templates with image, start command and creation time
    Ls {
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Remove a template, and the image that was built for it
    Rm { name: String },
}

/// A user of every long-lived sandbox.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LoginUser {
    /// uid 1000, the sandbox's ordinary user
    User,
    /// uid 0 of the sandbox
    Root,
}

pub(crate) async fn template(at: &Locations, args: &TemplateArgs) -> anyhow::Result<Exit> {
    // Images have files of every owner, and nobody else may look into them.
    if !rustix::process::geteuid().is_root() {
        return Err(HostError::NotRoot.into());
    }
    let dir = state::dir(at)?;
    let images = Images::open(&dir)?;
    match &args.command {
        TemplateCommand::Build { name, runtime, json } => {
            let name = named(name)?;
            let made = build_template(&images, runtime.clone(), &name, show).await;
            say(&made.map_err(image::judged)?, *json);
        }
        TemplateCommand::Add { name, image, start, ready, ports, user, mem_mb, json } => {
            let begin = TemplateProgram {
                start: start.clone(),
                ready: ready.clone(),
                ports: ports.clone(),
                user: match user {
                    LoginUser::User => TemplateUser::User,
                    LoginUser::Root => TemplateUser::Root,
                },
                mem_mb: *mem_mb,
            };
            let made = images.template_add(&named(name)?, image, &begin);
            say(&made.map_err(image::judged)?, *json);
        }
        TemplateCommand::Ls { json } => list(&templates(&dir)?, *json),
        TemplateCommand::Rm { name } => {
            if !images.template_remove(&named(name)?).map_err(image::judged)? {
                let why = format!(
                    "no template {name:?} on this host; `cofferdam template ls` lists them"
                );
                return Err(Negative(why).into());
            }
            output::line("removed");
        }
    }
    Ok(Exit::Ok)
}

fn named(name: &str) -> anyhow::Result<TemplateName> {
    TemplateName::parse(name).map_err(|error| Misuse(error.to_string()).into())
}

fn show(note: TemplateNote<'_>) {
    match note {
        TemplateNote::Part(text) | TemplateNote::Line(text) => output::note(text),
        TemplateNote::Build(note) => image::show(note),
    }
}

fn say(template: &Template, as_json: bool) {
    if as_json {
        output::json(&json!({"schemaVersion": 1, "template": template}));
    } else {
        output::line(&format!("{} image:{}", template.name, template.image));
    }
}

fn list(all: &[Template], as_json: bool) {
    if as_json {
        return output::json(&json!({"schemaVersion": 1, "templates": all}));
    }
    let rows = all.iter().map(|one| {
        vec![
            one.name.to_string(),
            one.image.clone(),
            one.start.clone().unwrap_or_else(|| "-".to_owned()),
            output::time(one.created_at_ms),
        ]
    });
    table::print(
        &[
            key("NAME").least(10),
            usual("IMAGE").least(16),
            usual("START").least(10),
            extra("CREATED (UTC)"),
        ],
        rows,
    );
}
