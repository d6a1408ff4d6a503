//! The Debian package: who can read what it installs.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use cofferdam_tests::not_run::not_run;
use cofferdam_tests::repository;
use nix::unistd::{Group, geteuid};

/// The password of a fleet's database stands in it.
const SETTINGS: &str = "etc/default/cofferdam";

#[test]
fn the_package_keeps_its_settings_from_other_users() {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        return not_run("dpkg-deb", "it is not installed");
    }
    let out = tempfile::tempdir().unwrap();
    let dist = out.path().join("dist");
    // Any program will do for what this looks at; it is small.
    let mut command = Command::new(repository().join("scripts/dist"));
    let output = command.args(["--binary", "/bin/true", "--out"]).arg(&dist).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files = fs::read_dir(&dist).unwrap().map(|entry| entry.unwrap().path());
    let package = files.into_iter().find(|path| path.extension().is_some_and(|e| e == "deb"));
    let listed = Command::new("dpkg-deb").arg("--contents").arg(package.unwrap()).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let line = listed.lines().find(|line| line.ends_with(SETTINGS)).unwrap();
    assert!(line.starts_with("-rw-r----- root/root "), "{line}");
}

fn configured(root: &Path) {
    let mut command = Command::new("sh");
    command.arg(repository().join("packaging/postinst")).args(["configure", "0.1.0"]);
    let output = command.env("DPKG_ROOT", root).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// dpkg gives a file of settings the mode that it had.
#[test]
fn an_upgrade_takes_settings_from_other_users_and_loosens_none() {
    if !geteuid().is_root() {
        return not_run("root", "a package is installed by root");
    }
    let root = tempfile::tempdir().unwrap();
    let settings = root.path().join(SETTINGS);
    let old = root.path().join(format!("{SETTINGS}.dpkg-old"));
    fs::create_dir_all(settings.parent().unwrap()).unwrap();
    configured(root.path());
    for (before, after) in [(0o644, 0o640), (0o640, 0o640), (0o600, 0o600), (0o666, 0o640)] {
        for file in [&settings, &old] {
            fs::write(file, "DATABASE_URL=postgres://u:secret@h/d\n").unwrap();
            fs::set_permissions(file, Permissions::from_mode(before)).unwrap();
        }
        configured(root.path());
        for file in [&settings, &old] {
            let found = fs::metadata(file).unwrap();
            assert_eq!(found.mode() & 0o7777, after, "{before:o} {}", file.display());
            let group =
                Group::from_name("cofferdam").unwrap().map_or(0, |group| group.gid.as_raw());
            assert_eq!((found.uid(), found.gid()), (0, group));
        }
    }
}
