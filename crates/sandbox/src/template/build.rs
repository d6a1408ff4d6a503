//! The two templates that this host can build by itself.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use cofferdam_ambient::file_lock::FileLock;
use cofferdam_ambient::random;
use cofferdam_contracts::id::TemplateName;
use cofferdam_contracts::live::BASE_TEMPLATE;
use cofferdam_contracts::recipe::Cmd;
use cofferdam_contracts::sandbox::Limits;
use cofferdam_contracts::template_build::TemplateUser;
use cofferdam_guest::removal::remove_tree;

use super::{Template, TemplateProgram, bootstrap, image_name, packages};
use crate::build::{
    BuildNote, CopyRoot, CopyStep, ImageFile, PartialImage, Step, build_from, store,
};
use crate::host::task::blocking;
use crate::images::error::{ImageError, at};
use crate::images::manifest::{Descriptor, LAYER, Settings};
use crate::images::store::Images;

/// Templates with a recipe of their own.
pub const BUILDS: [&str; 2] = [BASE_TEMPLATE, INTERPRETER];
/// What the clients of E2B's code interpreter ask for.
const INTERPRETER: &str = "code-interpreter-v1";
/// Where those clients expect it.
const INTERPRETER_PORT: u16 = 49_999;
/// MiB of a sandbox with an interpreter: a kernel with pandas and a plot has 200, the layer three quarters.
const INTERPRETER_MEM_MB: u64 = 1_024;
const START: &str = "exec python3 /usr/local/lib/interpreter/server.py";
const READY: &str = "curl --silent --fail --noproxy '*' http://127.0.0.1:49999/health";
/// Of the steps: the packages are 500 MiB in two copies, and their bytes compiled half of that again.
const STEP_LIMITS: Limits = Limits {
    cpu: None,
    mem_mb: Some(2_048),
    pids: None,
    disk_mb: Some(1_024),
    output_bytes: None,
    nofile: None,
};
/// Compiling every module takes a minute of one core.
const STEP_TIMEOUT_MS: u64 = 900_000;
/// The lower layer is read-only and common: what each sandbox would compile and look for is there once. The font list
/// of matplotlib lies in the user's home, where it looks for one.
const WARM: &str = "python3 -m compileall -q -j 2 --invalidation-mode unchecked-hash /usr/local/lib >/dev/null; \
    export HOME=/home/user; \
    python3 -c 'import jupyter_client, ipykernel, bash_kernel, pandas, e2b_charts, matplotlib.font_manager' && \
    chown -R 1000:1000 /home/user && chmod 0644 /usr/local/lib/interpreter/*.py";
/// Our own files below `/usr/local`.
const FILES: [(&str, &str); 7] = [
    ("lib/interpreter/server.py", include_str!("interpreter/server.py")),
    ("lib/interpreter/contexts.py", include_str!("interpreter/contexts.py")),
    ("lib/interpreter/forked.py", include_str!("interpreter/forked.py")),
    ("lib/interpreter/zygote.py", include_str!("interpreter/zygote.py")),
    ("lib/interpreter/startup.py", include_str!("interpreter/startup.py")),
    ("etc/ipython/ipython_kernel_config.py", include_str!("interpreter/ipython_kernel_config.py")),
    ("share/jupyter/kernels/bash/kernel.json", include_str!("interpreter/kernel-bash.json")),
];

/// What a build of a template says while it runs.
#[derive(Debug)]
pub enum TemplateNote<'a> {
    /// A part of the work begins.
    Part(&'a str),
    /// A program of this host says a line.
    Line(&'a str),
    /// A step in a sandbox.
    Build(BuildNote<'a>),
}

/// A directory of a build, removed with it.
struct BuildDir(PathBuf);

impl Drop for BuildDir {
    fn drop(&mut self) {
        let _ = remove_tree(&self.0);
    }
}

/// Builds one of [`BUILDS`] from Debian's packages and PyPI's, as this machine's apt and pip are configured, and
/// registers it. `code-interpreter-v1` builds `base` first where it is not there.
///
/// The packages' own scripts run as root of this host, in the new root: as an installation of them here would. Every
/// later step runs in a sandbox.
///
/// # Errors
/// Another name, a machine without apt, mmdebstrap or pip, or a step that fails.
pub async fn build_template(
    images: &Images,
    runtime: Option<String>,
    name: &TemplateName,
    mut note: impl FnMut(TemplateNote<'_>) + Send,
) -> Result<Template, ImageError> {
    if !BUILDS.contains(&name.as_str()) {
        let why = format!(
            "only {} have a build; `cofferdam template add` takes any image",
            BUILDS.join(" and ")
        );
        return Err(ImageError::malformed(format!("template {name}"), why));
    }
    let dir = images.templates_dir()?;
    let path = dir.join("lock");
    let lock = File::create(&path).map_err(at(&path))?;
    let _one_at_a_time = blocking(move || FileLock::exclusive(lock)).await.map_err(at(&path))?;
    clear(&dir)?;
    let base = TemplateName::parse(BASE_TEMPLATE)
        .map_err(|error| ImageError::malformed("the base's name", error.to_string()))?;
    let is_base = *name == base;
    if is_base || super::read(&dir.join("base.json"))?.is_none() {
        let made = build_base(images, &dir, &base, &mut note).await?;
        if is_base {
            return Ok(made);
        }
    }
    build_interpreter(images, &dir, runtime, name, &base, &mut note).await
}

/// What a killed build left.
fn clear(dir: &Path) -> Result<(), ImageError> {
    for entry in fs::read_dir(dir).map_err(at(dir))? {
        let path = entry.map_err(at(dir))?.path();
        if path.extension().is_some_and(|extension| extension == "room") {
            remove_tree(&path).map_err(at(&path))?;
        }
    }
    Ok(())
}

fn room(dir: &Path) -> Result<BuildDir, ImageError> {
    let path = dir.join(random::secret_hex(8)).with_extension("room");
    DirBuilder::new().mode(0o700).create(&path).map_err(at(&path))?;
    Ok(BuildDir(path))
}

async fn build_base(
    images: &Images,
    dir: &Path,
    name: &TemplateName,
    note: &mut (impl FnMut(TemplateNote<'_>) + Send),
) -> Result<Template, ImageError> {
    let room = room(dir)?;
    let tar = room.0.join("root.tar");
    note(TemplateNote::Part("base: Debian's packages"));
    bootstrap::bootstrap(&tar, &mut |line: &str| note(TemplateNote::Line(line))).await?;
    note(TemplateNote::Part("base: the image"));
    let (store_of, image) = (images.clone(), image_name(name)?);
    let taken = blocking(move || {
        let _adding = store_of.lock.adding()?;
        let file = File::open(&tar).map_err(at(&tar))?;
        let (digest, size) = store_of.blobs.copy(file, None, store_of.bounds.blob_bytes)?;
        let made = PartialImage {
            layers: vec![Descriptor::new(LAYER, &digest, size)],
            // Not compressed: the layer is its own diff.
            diff_ids: vec![digest],
            settings: Settings::default(),
        };
        store(&store_of, made, &image, "template build")
    });
    let image = taken.await?;
    let nothing = TemplateProgram {
        start: None,
        ready: None,
        ports: Vec::new(),
        user: TemplateUser::User,
        mem_mb: None,
    };
    images.template_add(name, &image.name, &nothing)
}

async fn build_interpreter(
    images: &Images,
    dir: &Path,
    runtime: Option<String>,
    name: &TemplateName,
    base: &TemplateName,
    note: &mut (impl FnMut(TemplateNote<'_>) + Send),
) -> Result<Template, ImageError> {
    let room = room(dir)?;
    let base = image_name(base)?;
    let python = packages::python_of(&images.resolve(base.as_str())?.root)?;
    let (local, large) = (room.0.join("local"), room.0.join("large"));
    let below = format!("lib/python{python}/dist-packages");
    let (lib, large_lib) = (local.join(&below), large.join(&below));
    for dir in [&lib, &large_lib] {
        fs::create_dir_all(dir).map_err(at(dir))?;
    }
    note(TemplateNote::Part("code-interpreter-v1: packages of PyPI"));
    packages::install(&python, &lib, &mut |line: &str| note(TemplateNote::Line(line))).await?;
    packages::part(&lib, &large_lib)?;
    for (path, text) in FILES {
        let path = local.join(path);
        let parent = path.parent().unwrap_or(&local);
        fs::create_dir_all(parent).map_err(at(parent))?;
        fs::write(&path, text).map_err(at(&path))?;
    }
    let file = ImageFile {
        from: base.as_str().to_owned(),
        limits: STEP_LIMITS,
        timeout_ms: STEP_TIMEOUT_MS,
        steps: vec![
            Step::Copy(CopyStep { from: "local".to_owned(), to: "/usr/local".to_owned() }),
            Step::Copy(CopyStep { from: "large".to_owned(), to: "/usr/local".to_owned() }),
            Step::Run(Cmd::Shell(WARM.to_owned())),
        ],
    };
    note(TemplateNote::Part("code-interpreter-v1: the image"));
    let image = image_name(name)?;
    let from = CopyRoot::Own(&room.0);
    build_from(images, runtime, &file, from, &image, |said| note(TemplateNote::Build(said)))
        .await?;
    let begin = TemplateProgram {
        start: Some(START.to_owned()),
        ready: Some(READY.to_owned()),
        ports: vec![INTERPRETER_PORT],
        user: TemplateUser::User,
        mem_mb: Some(INTERPRETER_MEM_MB),
    };
    images.template_add(name, image.as_str(), &begin)
}
