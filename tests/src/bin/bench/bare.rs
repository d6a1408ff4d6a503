//! What our classes are compared with: the same command by the bare runtimes, bubblewrap and docker.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use cofferdam_ambient::random;
use serde_json::{Value, json};

use super::life::ms;

/// A name of our own: it is removed again, whatever else the engine holds.
const IMAGE: &str = "cofferdam-bench:true";

/// The ids of the bundle that has some of its own: as many as a sandbox of ours has.
const IDS: u32 = 65_536;
const FIRST_ID: u32 = 0x6fff_0000;

/// Whose ids the processes of a bundle have.
#[derive(Clone, Copy, PartialEq)]
enum Ids {
    /// The host's: root in it is root.
    Host,
    /// A user namespace that the runtime makes, and `/usr` by an idmapped mount.
    Own,
    /// The same on the configuration that the runtime itself proposes (`crun spec`): its masks, its read-only paths and its
    /// mounts, but no call filter and no limit.
    OwnBySpec,
}

/// One way of running `/usr/bin/true` in isolation.
pub enum Bare {
    /// An OCI runtime on a bundle of its own.
    Oci {
        name: String,
        path: PathBuf,
        bundle: PathBuf,
    },
    Bubblewrap(PathBuf),
    /// An engine with an image of our own.
    Docker(PathBuf),
}

impl Drop for Bare {
    fn drop(&mut self) {
        if let Self::Docker(docker) = self {
            let _ = quiet(docker).args(["image", "rm", "--force", IMAGE]).status();
        }
    }
}

impl Bare {
    /// The one of this name; where it is absent, that is said in place of a figure.
    pub fn named(state: &Path, name: &str, figure: &str) -> Option<Self> {
        let mut all = Self::all(state).into_iter();
        let found = all.find_map(|(its, bare)| bare.ok().filter(|_| its == name));
        if found.is_none() {
            println!("{}", json!({"name": figure, "absent": name}));
        }
        found
    }

    /// All that could be compared with, each present or with the reason of its absence.
    pub fn all(state: &Path) -> Vec<(&'static str, Result<Self, String>)> {
        // A container's own root has to get to its files.
        fs::set_permissions(state, fs::Permissions::from_mode(0o711)).unwrap();
        let oci = |name: &'static str, ids: Ids| match find(name) {
            Some(path) => {
                let folder = match ids {
                    Ids::Host => format!("bare-{name}"),
                    Ids::Own => format!("bare-{name}-ids"),
                    Ids::OwnBySpec => format!("bare-{name}-spec-ids"),
                };
                let bundle = bundle(&state.join(folder), &path, ids);
                Self::Oci { name: name.to_owned(), bundle, path }.tried()
            }
            None => Err("not installed".to_owned()),
        };
        vec![
            ("runc run", oci("runc", Ids::Host)),
            ("crun run", oci("crun", Ids::Host)),
            ("crun run with own ids", oci("crun", Ids::Own)),
            ("crun run of crun spec with own ids", oci("crun", Ids::OwnBySpec)),
            ("runsc run", oci("runsc", Ids::Host)),
            ("bwrap", find("bwrap").map(Self::Bubblewrap).ok_or("not installed".to_owned())),
            ("docker run", docker()),
        ]
    }

    /// What cannot run here is absent, with its own words.
    fn tried(self) -> Result<Self, String> {
        let output =
            self.command().stdin(Stdio::piped()).output().map_err(|why| why.to_string())?;
        match output.status.success() {
            true => Ok(self),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }

    /// Milliseconds of one run.
    pub fn run(&self) -> f64 {
        let mut command = self.command();
        // No device of the host: crun gives its standard streams to the root of a user namespace.
        command.stdin(Stdio::piped());
        let clock = Instant::now();
        let output = command.output().expect("it starts");
        let took = ms(clock);
        assert!(output.status.success(), "{command:?}: {output:?}");
        took
    }

    fn command(&self) -> Command {
        match self {
            Self::Oci { name, path, bundle } => {
                let mut command = Command::new(path);
                command.args(match name.as_str() {
                    "crun" => &["--cgroup-manager=cgroupfs"][..],
                    "runsc" => &["--network=none", "--ignore-cgroups"],
                    _ => &[],
                });
                command.arg("--root").arg(bundle.join("state")).args(["run", "--bundle"]);
                command.arg(bundle).arg(format!("bare-{}", random::secret_hex(8)));
                command
            }
            Self::Bubblewrap(path) => {
                let mut command = Command::new(path);
                command.args(["--unshare-all", "--ro-bind", "/usr", "/usr"]);
                for (name, target) in links() {
                    command.arg("--symlink").arg(target).arg(Path::new("/").join(name));
                }
                command.args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]);
                command.arg("/usr/bin/true");
                command
            }
            Self::Docker(path) => {
                let mut command = Command::new(path);
                command.args(["run", "--rm", "--network=none", IMAGE, "/usr/bin/true"]);
                command
            }
        }
    }
}

fn quiet(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Searched beside `PATH`: an account often lacks the `sbin` directories.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"])
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.is_file())
}

/// Links of a merged root directory.
fn links() -> Vec<(&'static str, PathBuf)> {
    let names = ["bin", "sbin", "lib", "lib64"].into_iter();
    names.filter_map(|name| Some((name, fs::read_link(Path::new("/").join(name)).ok()?))).collect()
}

fn bundle(bundle: &Path, runtime: &Path, ids: Ids) -> PathBuf {
    let root = bundle.join("root");
    for name in ["usr", "proc", "dev", "tmp", "sys"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    for (name, target) in links() {
        symlink(target, root.join(name)).unwrap();
    }
    let range = json!([{"containerID": 0, "hostID": FIRST_ID, "size": IDS}]);
    if ids == Ids::OwnBySpec {
        return by_spec(bundle, runtime, &root, &range);
    }
    let mut linux = json!({});
    let mut namespaces = vec!["pid", "network", "ipc", "uts", "mount"];
    let mut shown = vec!["bind", "ro"];
    let mut mounts = vec![json!({"destination": "/proc", "type": "proc", "source": "proc"})];
    if ids == Ids::Own {
        namespaces.push("user");
        shown.push("idmap");
        // Its root makes no device in a directory of the host's.
        mounts.push(json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                           "options": ["nosuid", "mode=755"]}));
        linux = json!({"uidMappings": range, "gidMappings": range});
    }
    let namespaces = namespaces.into_iter().map(|kind| json!({"type": kind}));
    linux["namespaces"] = namespaces.collect();
    mounts.push(json!({"destination": "/usr", "type": "bind", "source": "/usr", "options": shown}));
    let config = json!({
        "ociVersion": "1.0.0",
        "process": {"user": {"uid": 0, "gid": 0}, "args": ["/usr/bin/true"], "cwd": "/", "env": []},
        "root": {"path": root},
        "mounts": mounts,
        "linux": linux,
    });
    fs::write(bundle.join("config.json"), config.to_string()).unwrap();
    bundle.to_owned()
}

/// What the runtime proposes, for the same command with the same ids.
fn by_spec(bundle: &Path, runtime: &Path, root: &Path, range: &Value) -> PathBuf {
    let proposed = Command::new(runtime).arg("spec").current_dir(bundle).status();
    assert!(proposed.is_ok_and(|status| status.success()), "{} spec", runtime.display());
    let path = bundle.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["process"]["terminal"] = json!(false);
    config["process"]["args"] = json!(["/usr/bin/true"]);
    config["root"] = json!({"path": root});
    config["linux"]["uidMappings"] = range.clone();
    config["linux"]["gidMappings"] = range.clone();
    let push = |list: &mut Value, item: Value| list.as_array_mut().unwrap().push(item);
    push(&mut config["linux"]["namespaces"], json!({"type": "user"}));
    let shown = json!({"destination": "/usr", "type": "bind", "source": "/usr",
                       "options": ["bind", "ro", "idmap"]});
    push(&mut config["mounts"], shown);
    fs::write(&path, config.to_string()).unwrap();
    bundle.to_owned()
}

/// An image of `true` and its libraries, made of this host's files: no registry is asked.
fn docker() -> Result<Bare, String> {
    let docker = find("docker").ok_or("not installed")?;
    if !quiet(&docker).arg("info").status().is_ok_and(|status| status.success()) {
        return Err("no engine answers".to_owned());
    }
    let failed = |error: std::io::Error| error.to_string();
    let files = Command::new("sh")
        .args(["-c", "ldd /usr/bin/true | grep -o '/[^ ]*'; echo /usr/bin/true"])
        .output()
        .map_err(failed)?;
    let mut packed = Command::new("tar");
    packed.args(["--create", "--dereference", "--directory=/"]);
    for file in String::from_utf8_lossy(&files.stdout).lines() {
        packed.arg(file.trim_start_matches('/'));
    }
    let packed = packed.output().map_err(failed)?;
    let mut import = quiet(&docker)
        .args(["import", "-", IMAGE])
        .stdin(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    import.stdin.take().ok_or("no pipe")?.write_all(&packed.stdout).map_err(failed)?;
    match import.wait().map_err(failed)?.success() {
        true => Ok(Bare::Docker(docker)),
        false => Err("the engine took no image".to_owned()),
    }
}
