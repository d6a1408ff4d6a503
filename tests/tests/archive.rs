//! The archive that `make dist` leaves: what is in it, what its installer refuses, and that nothing stays after an uninstall.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cofferdam_tests::not_run::not_run;
use cofferdam_tests::programs::write_program;
use cofferdam_tests::repository;
use nix::unistd::geteuid;

/// What the archive has beside its documents, examples and directories.
const FILES: [&str; 15] = [
    "SHA256SUMS",
    "install.sh",
    "bin/cofferdam",
    "lib/systemd/system/cofferdam.service",
    "lib/systemd/system/cofferdam.slice",
    "share/bash-completion/completions/cofferdam",
    "share/cofferdam/walkthrough",
    "share/doc/cofferdam/copyright",
    "share/doc/cofferdam/proofs.sql",
    "share/fish/vendor_completions.d/cofferdam.fish",
    "share/zsh/vendor-completions/_cofferdam",
    // Links to what is installed.
    "LICENSE",
    "README.md",
    "docs",
    "examples",
];
pub(crate) const PAGES: [&str; 7] = [
    "README.md",
    "ARCHITECTURE.md",
    "SPECIFICATION.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "LICENSE",
];
const DOC: &str = "share/doc/cofferdam";

/// An archive of a small program, and where it was unpacked.
struct Unpacked {
    dir: tempfile::TempDir,
    root: PathBuf,
}

impl Unpacked {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Other users look into it, too.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let mut dist = Command::new(repository().join("scripts/dist"));
        succeeded(dist.args(["--binary", "/bin/true", "--out"]).arg(dir.path().join("dist")));
        let mut tar = Command::new("tar");
        succeeded(tar.arg("-xzf").arg(packed(dir.path(), "gz")).arg("-C").arg(dir.path()));
        let archive = packed(dir.path(), "gz");
        let name = archive.file_name().unwrap().to_str().unwrap().strip_suffix(".tar.gz").unwrap();
        let root = dir.path().join(name);
        Self { dir, root }
    }

    fn prefix(&self) -> PathBuf {
        self.dir.path().join("made/prefix")
    }

    /// `install.sh` on the test's own prefix.
    fn installer(&self, args: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.arg(self.root.join("install.sh")).arg("--prefix").arg(self.prefix()).args(args);
        command
    }

    /// Refused with these words, and nothing is there.
    fn refuses(&self, command: &mut Command, words: &[&str]) {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        for word in words {
            assert!(said.contains(word), "{word:?} is not in: {said}");
        }
        assert!(!self.dir.path().join("made").exists(), "something was installed: {said}");
    }

    /// Whether an installation changes the test's own prefix alone: the packages and the user are there.
    fn stays_within(&self) -> bool {
        let plan = self.installer(&["--dry-run"]).output().unwrap();
        let said = String::from_utf8_lossy(&plan.stderr);
        geteuid().is_root() && !said.contains("packages ") && !said.contains("a system user")
    }
}

/// Whether the machine lacks a program, which is then said.
fn is_absent(program: &str) -> bool {
    let is_absent = Command::new(program).arg("--version").output().is_err();
    if is_absent {
        not_run(program, "it is not installed");
    }
    is_absent
}

fn succeeded(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The one file of `dist` with this extension.
fn packed(dir: &Path, extension: &str) -> PathBuf {
    let files = fs::read_dir(dir.join("dist")).unwrap().map(|entry| entry.unwrap().path());
    files.into_iter().find(|path| path.extension().is_some_and(|e| e == extension)).unwrap()
}

/// Files and links below a directory, by their path from it.
fn files_below(root: &Path) -> BTreeSet<String> {
    let (mut found, mut dirs) = (BTreeSet::new(), vec![root.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => dirs.push(entry.path()),
                false => {
                    let path = entry.path();
                    found.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
    }
    found
}

/// What the archive is to hold.
fn wanted() -> BTreeSet<String> {
    let mut all: BTreeSet<String> = FILES.map(str::to_owned).into();
    all.extend(PAGES.map(|page| format!("{DOC}/{page}")));
    for dir in ["docs", "examples"] {
        let below = files_below(&repository().join(dir)).into_iter();
        all.extend(below.map(|file| format!("{DOC}/{dir}/{file}")));
    }
    all
}

#[test]
fn the_archive_and_the_package_hold_exactly_what_is_listed() {
    if is_absent("dpkg-deb") {
        return;
    }
    let archive = Unpacked::new();
    let wanted = wanted();
    assert_eq!(files_below(&archive.root), wanted);
    // A sum for each file that is installed.
    let sums = fs::read_to_string(archive.root.join("SHA256SUMS")).unwrap();
    let summed: BTreeSet<String> =
        sums.lines().map(|line| line.split_once("  ").unwrap().1.to_owned()).collect();
    let installed = |file: &&String| ["bin/", "lib/", "share/"].iter().any(|d| file.starts_with(d));
    assert_eq!(summed, wanted.iter().filter(installed).cloned().collect());
    // Its first page leads to what is there.
    let readme = fs::read_to_string(archive.root.join("README.md")).unwrap();
    let targets = readme.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    for target in targets.map(|(target, _)| target).filter(|target| !target.starts_with("http")) {
        let file = target.split('#').next().unwrap();
        assert!(archive.root.join(DOC).join(file).exists(), "README.md: {target}");
    }
    // The package has it all at Debian's places, and the settings of its service.
    let mut list = Command::new("dpkg-deb");
    let listed =
        succeeded(list.arg("--fsys-tarfile").arg(packed(archive.dir.path(), "deb"))).stdout;
    let mut entries = tar::Archive::new(listed.as_slice());
    let in_package: BTreeSet<String> = entries
        .entries()
        .unwrap()
        .map(Result::unwrap)
        .filter(|entry| !entry.header().entry_type().is_dir())
        .map(|entry| entry.path().unwrap().to_str().unwrap().trim_start_matches("./").to_owned())
        .collect();
    let mut at_debian: BTreeSet<String> = wanted
        .iter()
        .filter(installed)
        .map(|file| if file.starts_with("lib/") { file.clone() } else { format!("usr/{file}") })
        .collect();
    at_debian.insert("etc/default/cofferdam".to_owned());
    assert_eq!(in_package, at_debian);
}

#[test]
fn the_installer_refuses_what_was_not_packed() {
    if is_absent("dpkg-deb") {
        return;
    }
    let archive = Unpacked::new();
    let at = |file: &str| archive.root.join(file);
    let kept = |file: &str| fs::read(at(file)).unwrap();
    let page = "share/doc/cofferdam/docs/git.md";
    let (binary, text, sums) = (kept("bin/cofferdam"), kept(page), kept("SHA256SUMS"));

    fs::write(at("bin/cofferdam"), &binary[..binary.len() / 2]).unwrap();
    archive.refuses(&mut archive.installer(&[]), &["bin/cofferdam is truncated or was changed"]);
    fs::write(at("bin/cofferdam"), &binary).unwrap();

    fs::write(at(page), [text.as_slice(), b"more\n"].concat()).unwrap();
    archive.refuses(&mut archive.installer(&[]), &["docs/git.md is truncated or was changed"]);
    fs::remove_file(at(page)).unwrap();
    archive.refuses(&mut archive.installer(&[]), &["docs/git.md is missing"]);

    // A list that fits the changed files is not the one that was packed, nor is a part of it.
    let shorter: String =
        String::from_utf8_lossy(&sums).lines().take(5).map(|line| format!("{line}\n")).collect();
    fs::write(at("SHA256SUMS"), shorter).unwrap();
    archive.refuses(&mut archive.installer(&[]), &["SHA256SUMS is not what was packed"]);
    fs::remove_file(at("SHA256SUMS")).unwrap();
    archive.refuses(&mut archive.installer(&[]), &["SHA256SUMS is missing"]);

    fs::write(at("SHA256SUMS"), &sums).unwrap();
    fs::write(at(page), &text).unwrap();
    succeeded(&mut archive.installer(&["--dry-run"]));
    assert!(!archive.dir.path().join("made").exists(), "a dry run installs nothing");

    // Half of the installer itself does nothing at all.
    let script = kept("install.sh");
    fs::write(at("install.sh"), &script[..script.len() * 9 / 10]).unwrap();
    let _ = archive.installer(&[]).output().unwrap();
    assert!(!archive.dir.path().join("made").exists());

    let mut template = Command::new("sh");
    template.arg(repository().join("packaging/install.sh"));
    archive.refuses(&mut template, &["make dist"]);
}

#[test]
fn the_installer_refuses_other_machines_and_other_users() {
    if is_absent("dpkg-deb") {
        return;
    }
    let archive = Unpacked::new();
    let programs = archive.dir.path().join("programs");
    fs::create_dir(&programs).unwrap();
    write_program(&programs.join("uname"), "#!/bin/sh\necho riscv64\n");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let other = ["is for", "this machine is riscv64"];
    archive.refuses(archive.installer(&[]).env("PATH", &path), &other);

    let mut alone = archive.installer(&[]);
    if geteuid().is_root() {
        let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh"];
        let mut command = Command::new("setpriv");
        command.args(user).args(archive.installer(&[]).get_args());
        alone = command;
    }
    archive.refuses(&mut alone, &["run it as root"]);

    for (args, words) in [
        (vec!["--prefix", "here"], "absolute"),
        (vec!["--prefix", "/usr"], "belongs to Debian's packages"),
        (vec!["--prefix", "/a b"], "only letters"),
        (vec!["--purge"], "--purge needs --uninstall"),
        (vec!["--wrong"], "unknown argument --wrong"),
    ] {
        let output = archive.installer(&args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(words), "{args:?}: {said}");
    }
}

#[test]
fn uninstalling_leaves_nothing_but_what_others_put_there() {
    if is_absent("dpkg-deb") {
        return;
    }
    let archive = Unpacked::new();
    if !archive.stays_within() {
        return not_run("PostgreSQL, crun and the user cofferdam, as root", "run scripts/setup");
    }
    let prefix = archive.prefix();
    // Twice: the second one finds all that it would make.
    for _ in 0..2 {
        succeeded(&mut archive.installer(&[]));
        succeeded(Command::new(prefix.join("bin/cofferdam")).arg("--version"));
    }
    let installed = files_below(&prefix);
    let mut wanted: BTreeSet<String> =
        wanted().into_iter().filter(|file| file.contains('/')).collect();
    wanted.extend(["install.sh", "manifest"].map(|file| format!("share/cofferdam/{file}")));
    assert_eq!(installed, wanted);
    let unit = fs::read_to_string(prefix.join("lib/systemd/system/cofferdam.service")).unwrap();
    assert!(unit.contains(&format!("ExecStart={}/bin/cofferdam up", prefix.display())), "{unit}");

    // Its own copy removes it, and knows its prefix.
    let foreign = prefix.join("share/doc/other");
    fs::write(&foreign, "another's").unwrap();
    let uninstall = || {
        let mut command = Command::new("sh");
        command.arg(prefix.join("share/cofferdam/install.sh")).arg("--uninstall");
        command
    };
    succeeded(uninstall().arg("--dry-run"));
    assert_eq!(files_below(&prefix).len(), installed.len() + 1, "a dry run removes nothing");
    succeeded(&mut uninstall());
    assert_eq!(files_below(&prefix), BTreeSet::from(["share/doc/other".to_owned()]));
    fs::remove_dir_all(archive.dir.path().join("made")).unwrap();

    succeeded(&mut archive.installer(&[]));
    succeeded(&mut archive.installer(&["--uninstall"]));
    assert!(
        !archive.dir.path().join("made").exists(),
        "the directories of its prefix are gone, too"
    );
    archive.refuses(&mut archive.installer(&["--uninstall"]), &["nothing of this installer"]);
}

#[test]
fn a_full_disk_leaves_nothing_half_installed() {
    if is_absent("dpkg-deb") {
        return;
    }
    let archive = Unpacked::new();
    if !archive.stays_within() {
        return not_run("PostgreSQL, crun and the user cofferdam, as root", "run scripts/setup");
    }
    let disk = archive.dir.path().join("disk");
    fs::create_dir(&disk).unwrap();
    // The second time, the look before it says that there is room.
    write_program(
        &archive.dir.path().join("df"),
        "#!/bin/sh\necho header\necho d 9999999 0 9999999 0% /\n",
    );
    let script = r#"mount -t tmpfs -o size=512k tmpfs "$1/disk"
        for path in "$PATH" "$1:$PATH"; do
            PATH=$path sh "$2" --prefix "$1/disk/below/it" && exit 9
            ls -A "$1/disk"
        done"#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-uc", script, "sh"]).arg(archive.dir.path());
    let output = succeeded(command.arg(archive.root.join("install.sh")));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("KiB left and"), "{said}");
    assert!(said.contains("its disk is full"), "{said}");
    assert!(output.stdout.is_empty(), "left: {}", String::from_utf8_lossy(&output.stdout));
}
