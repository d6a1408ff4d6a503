//! The next life of files that a tenant wrote: what its first life put in the way of directories that are ours to mount on
//! and from. By every class that this host has, with the host's own files as judge.

use std::fs;
use std::io::Cursor;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use cofferdam_guest::upper::pack;
use cofferdam_sandbox::{Class, InitialFiles, provision_filled};
use serde_json::json;

use super::kept::in_each_class;
use super::support::sh;
use super::wiped;

/// Every directory at the root that a runtime or the worker names, and one below another.
const HOSTILE: [&str; 12] = [
    ".cofferdam",
    ".cofferdam/none",
    "dev",
    "etc",
    "lib",
    "opt",
    "proc",
    "run",
    "sys",
    "tmp",
    "usr",
    "work",
];
/// A file of the host that no sandbox was given, in a directory that only root may enter.
const MARK: &str = "a-file-of-the-host";
/// Where such a link was bound: masks of sysfs, gVisor's `/tmp`, and the places themselves.
const LOOK: &str = "for dir in / /.cofferdam /.cofferdam/none /dev /etc /lib /opt /proc /run /sys /tmp /usr /work \
    /sys/firmware /sys/fs /sys/kernel /sys/dev; do ls -A $dir 2> /dev/null; cat $dir/a-file-of-the-host 2> /dev/null; \
    touch $dir/written 2> /dev/null; done; true";

#[test]
fn a3f1_a3f2_no_link_of_an_earlier_life_shows_a_directory_of_the_host() {
    let host = tempfile::tempdir().unwrap();
    fs::set_permissions(host.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(host.path().join(MARK), "of the host alone").unwrap();
    in_each_class(async |ground| {
        for dir in HOSTILE {
            let kept = tempfile::tempdir().unwrap();
            let at = kept.path().join(dir);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            symlink(host.path(), &at).unwrap();
            let mut stream = Vec::new();
            pack(kept.path(), 0, &mut stream, &|| true).unwrap();
            let plan = ground.bench.plan(ground.fields(json!({})));
            let filling = InitialFiles::new(Cursor::new(stream));
            let made = provision_filled(&ground.bench.host, &plan, &[], filling).await;
            let case = format!("{} {dir}", ground.class.as_str());
            match made {
                Ok(sandbox) => {
                    let seen = sh(&sandbox, &plan, LOOK).await;
                    assert!(!seen.stdout.contains(MARK), "{case}: {}", seen.stdout);
                    assert!(!seen.stdout.contains("of the host alone"), "{case}");
                    wiped(&sandbox.wipe("task-end").await);
                }
                Err(refused) => {
                    assert!(refused.permanent && dir != "opt", "{case}: {refused}");
                    assert!(refused.message.contains("is not a directory"), "{case}: {refused}");
                    assert!(ground.class != Class::Microvm, "{case}: a machine mounts in itself");
                }
            }
            let left: Vec<_> = fs::read_dir(host.path()).unwrap().flatten().collect();
            assert_eq!(left.len(), 1, "{case}: {left:?}");
        }
    });
}

/// A task may delete what it likes: directories of ours are made again.
#[test]
fn a_next_life_has_the_directories_that_the_first_one_deleted() {
    in_each_class(async |ground| {
        let (sandbox, plan) = ground.start(json!({})).await;
        let gone = "rm -rf /tmp /run/* /.cofferdam 2> /dev/null; echo kept > /kept";
        sh(&sandbox, &plan, gone).await;
        let (snapshotter, mut stream) = (sandbox.snapshotter().unwrap(), Vec::new());
        let still =
            tokio::task::block_in_place(|| snapshotter.snapshot(&mut stream, &|| true)).unwrap();
        tokio::task::block_in_place(|| still.end());
        wiped(&sandbox.wipe("paused").await);
        let plan = ground.bench.plan(ground.fields(json!({})));
        let filling = InitialFiles::new(Cursor::new(stream));
        let made = provision_filled(&ground.bench.host, &plan, &[], filling).await;
        // Its own agent is gone with its directory: then it is refused, and not half made.
        if let Ok(sandbox) = made {
            let again = sh(&sandbox, &plan, "cat /kept; touch /tmp/x && echo there").await;
            assert_eq!(again.stdout, "kept\nthere\n");
            wiped(&sandbox.wipe("task-end").await);
        }
    });
}
