//! `image build`: steps in sandboxes, what each of them writes as a layer.
//!
//! ```text
//! root so far --plan, provision--> sandbox --run, or files from the agent--> its upper directory
//!      ^                                                                          |
//!      +----------- root of all layers so far <--- layer, by digest <-------------+
//! ```
//! The sandboxes of a build are ordinary ones, without a network, under limits, wiped and looked
//! for. They lie in a state directory of their own, so that a worker that starts meanwhile does not
//! take them for orphans; one build at a time, and what a killed one left is destroyed by the next.

mod copies;
mod steps;

use std::fs::{self, File};
use std::path::Path;

use cofferdam_ambient::file_lock::FileLock;
use cofferdam_ambient::random;
use cofferdam_contracts::error::error_chain;
use cofferdam_contracts::id::{Digest, SandboxId};
use cofferdam_contracts::sandbox::{ErrCode, SandboxRequest, WipeStatus};

use crate::agent::Stream;
use crate::host::task::blocking;
use crate::images::ServiceRoots;
use crate::images::error::{ImageError, at};
use crate::images::manifest::{
    CONFIG, Config, Descriptor, LAYER, MAX_DOCUMENT, Manifest, RootFs, Settings, architecture,
    written,
};
use crate::images::name::{ImageName, ImageRef, text_of};
use crate::images::resolve::ImageRoot;
use crate::images::store::{ImageRecord, Images};
use crate::life::{Host, HostConfig, provision, reconcile};
use crate::plan::plan_on;
use crate::spec::input::Input;
use crate::spec::users::Accounts;
pub(crate) use copies::CopyRoot;
use copies::files;
use steps::SCRATCH;
pub use steps::{CopyStep, ImageFile, Step};

/// Put into a directory so that the agent makes it; never part of a layer.
const MARKER: &str = ".cofferdam-made";

/// What a build says while it runs.
#[derive(Debug)]
pub enum BuildNote<'a> {
    /// A step begins.
    Step {
        /// Number of the step in the build file, from 1 to `of`.
        number: usize,
        /// How many there are.
        of: usize,
        /// The step in one line.
        text: &'a str,
    },
    /// A `run` step prints.
    Output(Stream, &'a [u8]),
}

/// The image so far.
pub(crate) struct PartialImage {
    pub layers: Vec<Descriptor>,
    pub diff_ids: Vec<Digest>,
    pub settings: Settings,
}

/// Builds an image and gives it a name. `context` is the directory that `copy` reads from.
///
/// The calling thread needs private mounts, like everybody who makes sandboxes.
pub async fn build(
    images: &Images,
    runtime: Option<String>,
    file: &ImageFile,
    context: &Path,
    name: &ImageName,
    note: impl FnMut(BuildNote<'_>) + Send,
) -> Result<ImageRecord, ImageError> {
    build_from(images, runtime, file, CopyRoot::Given(context), name, note).await
}

/// Builds an image whose `copy` steps read from this root.
pub(crate) async fn build_from(
    images: &Images,
    runtime: Option<String>,
    file: &ImageFile,
    from: CopyRoot<'_>,
    name: &ImageName,
    mut note: impl FnMut(BuildNote<'_>) + Send,
) -> Result<ImageRecord, ImageError> {
    let state_dir = images.dir.join("build");
    fs::create_dir_all(&state_dir).map_err(at(&state_dir))?;
    let path = state_dir.join("lock");
    let lock = File::create(&path).map_err(at(&path))?;
    let _one_at_a_time = blocking(move || FileLock::exclusive(lock)).await.map_err(at(&path))?;
    let adding = images.lock.adding()?;
    let host = Host::detect(HostConfig { state_dir, runtime, ..HostConfig::default() })
        .map_err(|error| ImageError::malformed("this host", error.to_string()))?;
    reconcile(&host, |_| false).await;
    let mut build = Build { images, host: &host, file, from, note: &mut note };
    let made = build.all().await;
    host.leave();
    let named = match made {
        Ok(made) => store(images, made, name, "build"),
        Err(error) => Err(error),
    };
    drop(adding);
    // Roots between the steps have no name.
    images.sweep()?;
    named
}

/// Gives a name to an image whose layers are blobs of the store.
pub(crate) fn store(
    images: &Images,
    made: PartialImage,
    name: &ImageName,
    source: &str,
) -> Result<ImageRecord, ImageError> {
    let config = Config {
        architecture: architecture().to_owned(),
        os: "linux".to_owned(),
        config: made.settings,
        rootfs: RootFs {
            kind: "layers".to_owned(),
            diff_ids: made.diff_ids.iter().map(text_of).collect(),
        },
    };
    let (bytes, _) = written(&config)?;
    let (digest, size) = images.blobs.copy(bytes.as_slice(), None, MAX_DOCUMENT)?;
    let (bytes, _) = written(&Manifest::new(Descriptor::new(CONFIG, &digest, size), made.layers))?;
    let (manifest, _) = images.blobs.copy(bytes.as_slice(), None, MAX_DOCUMENT)?;
    images.admit(&manifest, name, source)
}

struct Build<'a, N> {
    images: &'a Images,
    host: &'a Host,
    file: &'a ImageFile,
    from: CopyRoot<'a>,
    note: &'a mut N,
}

impl<N: FnMut(BuildNote<'_>) + Send> Build<'_, N> {
    async fn all(&mut self) -> Result<PartialImage, ImageError> {
        let mut made = self.base()?;
        let of = self.file.steps.len();
        for (index, step) in self.file.steps.iter().enumerate() {
            let (number, text) = (index + 1, steps::line(step));
            (self.note)(BuildNote::Step { number, of, text: &text });
            let failed = |why: String| ImageError::Step { number, step: text.clone(), why };
            match step {
                Step::Run(cmd) => self.layer(&mut made, &steps::argv(cmd), Vec::new(), true).await,
                Step::Copy(copy) => match files(self.from, copy) {
                    Ok(files) => self.layer(&mut made, &[], files, false).await,
                    Err(error) => Err(error_chain(&error)),
                },
                Step::Workdir(dir) => {
                    made.settings.working_dir.clone_from(dir);
                    let path = format!("{}/{MARKER}", dir.trim_end_matches('/'));
                    let marker = Input::Bytes { path, bytes: Vec::new(), mode: 0o600 };
                    self.layer(&mut made, &[], vec![marker], false).await
                }
                Step::Env(env) => {
                    let settings = &mut made.settings;
                    let named = |pair: &String, name: &str| {
                        pair.split_once('=').is_some_and(|(n, _)| n == name)
                    };
                    settings.env.retain(|pair| !env.keys().any(|name| named(pair, name)));
                    settings.env.extend(env.iter().map(|(name, value)| format!("{name}={value}")));
                    Ok(())
                }
                Step::User(user) => {
                    made.settings.user.clone_from(user);
                    self.root(&made).map(|_| ()).map_err(|error| error_chain(&error))
                }
                Step::Cmd(argv) => {
                    made.settings.cmd.clone_from(argv);
                    made.settings.entrypoint.clear();
                    Ok(())
                }
            }
            .map_err(failed)?;
        }
        Ok(made)
    }

    fn base(&self) -> Result<PartialImage, ImageError> {
        if self.file.from == SCRATCH {
            return Ok(PartialImage {
                layers: Vec::new(),
                diff_ids: Vec::new(),
                settings: Settings::default(),
            });
        }
        let named = self.images.names.find(&ImageRef::parse(&self.file.from)?)?;
        let (manifest, config) = self.images.blobs.image(&named.manifest)?;
        let diff_ids = config.diff_ids(manifest.layers.len())?;
        Ok(PartialImage { layers: manifest.layers, diff_ids, settings: config.config })
    }

    fn root(&self, made: &PartialImage) -> Result<ImageRoot, ImageError> {
        let root = self.images.roots.make(&made.layers, &made.diff_ids)?;
        ImageRoot::new(format!("image:{}", self.file.from), root, &made.settings)
    }

    /// One sandbox; what it wrote becomes a layer. Why not, in words.
    async fn layer(
        &mut self,
        made: &mut PartialImage,
        argv: &[String],
        inputs: Vec<Input>,
        run: bool,
    ) -> Result<(), String> {
        let root = self.root(made).map_err(|error| error_chain(&error))?;
        let cmd = if run { argv.to_vec() } else { vec!["true".to_owned()] };
        let request = SandboxRequest {
            limits: self.file.limits,
            ..SandboxRequest::plain(&root.pinned, cmd, self.file.timeout_ms)
        };
        let id = SandboxId::parse(&format!("sb{}", random::secret_hex(10)))
            .map_err(|error| error.to_string())?;
        let plan = plan_on(
            &request,
            &id,
            self.host.facts(),
            Some(&root),
            &Accounts::new(),
            &ServiceRoots::new(),
        )
        .map_err(|error| error.to_string())?;
        let sandbox = provision(self.host, &plan, &inputs).await.map_err(|error| error.message)?;
        let outcome = if run {
            let note = &mut *self.note;
            let ran =
                sandbox.exec(&plan.task, |stream, bytes| note(BuildNote::Output(stream, bytes)));
            match ran.await {
                Ok(outcome) if outcome.err_code == ErrCode::None => Ok(()),
                Ok(outcome) => Err(outcome.cause.unwrap_or_else(|| "it failed".to_owned())),
                Err(error) => Err(error.to_string()),
            }
        } else {
            Ok(())
        };
        let upper = plan.traces.layer.join("upper");
        let layer = match outcome {
            Ok(()) => {
                let (images, first) = (self.images.clone(), sandbox.first_id());
                blocking(move || images.layer_of(&upper, MARKER, first))
                    .await
                    .map_err(|error| error_chain(&error))
            }
            Err(why) => Err(why),
        };
        let evidence = sandbox.wipe("task-end").await;
        let (digest, size) = layer?;
        if evidence.status != WipeStatus::Verified {
            return Err("its sandbox could not be wiped; see the log".to_owned());
        }
        // Not compressed: the layer is its own diff.
        made.layers.push(Descriptor::new(LAYER, &digest, size));
        made.diff_ids.push(digest);
        Ok(())
    }
}
