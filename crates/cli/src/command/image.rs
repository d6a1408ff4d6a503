//! `image import | pull | build | ls | rm`: the images of this host's state directory.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use cofferdam_sandbox::image::{
    BuildNote, ImageError, ImageFile, ImageName, ImageRecord, Images, build,
};
use cofferdam_sandbox::{HostError, Stream};
use serde_json::json;

use super::exit::{Exit, Negative};
use super::locations::Locations;
use super::table::{self, extra, key, usual};
use super::{output, state};

#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    pub command: ImageCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Import an OCI layout (directory or tar) or a tar of `docker save`
    Import {
        file: PathBuf,
        /// Name of the image; default: the name in the file
        #[arg(long)]
        name: Option<String>,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Pull an image from a registry: HOST/PATH:TAG or HOST/PATH@sha256:HEX
    Pull {
        reference: String,
        /// Name of the image; default: the reference
        #[arg(long)]
        name: Option<String>,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Build an image from a list of steps; `copy` reads the file's own directory
    Build {
        /// YAML: from, steps (run, copy, env, workdir, user, cmd), limits, timeout_ms
        file: PathBuf,
        /// Name of the image, as in `image: image:NAME`
        #[arg(long)]
        name: String,
        /// crun, runc, an absolute path or docker; default: the best installed runtime
        #[arg(long)]
        runtime: Option<String>,
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// List images with their digests
    Ls {
        #[arg(long, help = super::flag::JSON)]
        json: bool,
    },
    /// Remove an image and the blobs that no other image uses; refused while a template is made of it
    Rm { name: String },
}

const MIB: u64 = 1024 * 1024;

pub(crate) async fn image(at: &Locations, args: &ImageArgs) -> anyhow::Result<Exit> {
    // A root file system has files of every owner, and nobody else may look into it.
    if !rustix::process::geteuid().is_root() {
        return Err(HostError::NotRoot.into());
    }
    let images = Images::open(&state::dir(at)?)?;
    match act(&images, &args.command).await {
        Ok(()) => Ok(Exit::Ok),
        Err(error) => Err(expected(error)),
    }
}

async fn act(images: &Images, command: &ImageCommand) -> anyhow::Result<()> {
    match command {
        ImageCommand::Import { file, name, json } => {
            let name = parsed(name.as_deref())?;
            say(&images.import(file, name.as_ref())?, *json);
        }
        ImageCommand::Pull { reference, name, json } => {
            let name = parsed(name.as_deref())?;
            say(&images.pull(reference, name.as_ref()).await?, *json);
        }
        ImageCommand::Build { file, name, runtime, json } => {
            let name = ImageName::parse(name)?;
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            let steps = ImageFile::parse(&file.display().to_string(), &text)?;
            let context = match file.parent() {
                Some(dir) if dir != Path::new("") => dir,
                _ => Path::new("."),
            };
            let made = build(images, runtime.clone(), &steps, context, &name, show).await?;
            say(&made, *json);
        }
        ImageCommand::Ls { json } => list(&images.list()?, *json),
        ImageCommand::Rm { name } => {
            images.image_remove(&ImageName::parse(name)?)?;
            output::line("removed");
        }
    }
    Ok(())
}

fn parsed(name: Option<&str>) -> Result<Option<ImageName>, ImageError> {
    name.map(ImageName::parse).transpose()
}

/// Shows what a build says, on stderr.
pub(crate) fn show(note: BuildNote<'_>) {
    match note {
        BuildNote::Step { number, of, text } => output::note(&format!("[{number}/{of}] {text}")),
        // stdout is the command's data: the image. What a step prints is about what is going on.
        BuildNote::Output(Stream::Stdout | Stream::Stderr, bytes) => {
            output::raw_err(bytes);
        }
    }
}

/// An error of the store, for the exit status.
pub(crate) fn judged(error: ImageError) -> anyhow::Error {
    expected(error.into())
}

/// What is not here, or in use, is an expected no.
fn expected(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<ImageError>() {
        Some(
            ImageError::Unknown(_)
            | ImageError::InUse(_)
            | ImageError::OfTemplates { .. }
            | ImageError::Moved { .. },
        ) => Negative(error.to_string()).into(),
        _ => error,
    }
}

fn say(image: &ImageRecord, as_json: bool) {
    if as_json {
        output::json(&json!({"schemaVersion": 1, "image": image}));
    } else {
        output::line(&format!("image:{}@sha256:{}", image.name, image.digest));
    }
}

fn list(images: &[ImageRecord], as_json: bool) {
    if as_json {
        return output::json(&json!({"schemaVersion": 1, "images": images}));
    }
    let rows = images.iter().map(|image| {
        vec![
            image.name.clone(),
            format!("sha256:{}", image.digest),
            image.layers.to_string(),
            image.bytes.div_ceil(MIB).to_string(),
            output::time(image.created_at_ms),
            image.source.clone(),
        ]
    });
    table::print(
        &[
            key("NAME").least(12),
            usual("DIGEST").least(19),
            extra("LAYERS"),
            usual("MIB"),
            extra("CREATED (UTC)"),
            extra("SOURCE").least(16),
        ],
        rows,
    );
}
