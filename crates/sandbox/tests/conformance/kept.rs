//! Files of a running sandbox, kept where its class can, and another sandbox that begins with them.

use std::io::Cursor;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use cofferdam_contracts::sandbox::{WipeEvidence, WipeMethod, WipeStatus};
use cofferdam_sandbox::{Class, InitialFiles, enter_private_mounts, provision_filled};
use serde_json::json;

use super::support::not_run::left_out;
use super::support::{Bench, KEEPING, STANDING, sh};
use super::{Ground, runtime_of, wiped};

/// Of every class that this host has, by a real sandbox, which goes on.
#[test]
fn files_are_kept_of_every_class_and_the_sandbox_goes_on() {
    in_each_class(async |ground| {
        let (sandbox, plan) = ground.start(json!({})).await;
        assert!(KEEPING.contains(&ground.class));
        let snapshotter = sandbox.snapshotter().unwrap();
        let still =
            tokio::task::block_in_place(|| snapshotter.snapshot(&mut std::io::sink(), &|| true));
        drop(still.unwrap());
        let stood = snapshotter.freeze_for_pause().unwrap();
        // Its layer can be held while it goes on, where it lies in memory of this host.
        assert_eq!(stood.is_some(), STANDING.contains(&ground.class));
        if let Some((still, layer)) = stood {
            assert!(layer.sizes().unwrap().about > 0);
            layer.let_go();
            drop(still);
        }
        // One whose end is asked for meanwhile is not kept, and goes on all the same.
        let stopped =
            tokio::task::block_in_place(|| snapshotter.snapshot(&mut std::io::sink(), &|| false));
        assert!(stopped.is_err());
        assert_eq!(sh(&sandbox, &plan, "exit 3").await.outcome.exit, 3);
        wiped(&sandbox.wipe("task-end").await);
    });
}

/// Nothing is left of a sandbox but its layer, which is a pause's.
fn kept(evidence: &WipeEvidence) {
    let left: Vec<_> = evidence.checks.iter().filter(|check| !check.ok).collect();
    assert_eq!(
        (evidence.status, evidence.method),
        (WipeStatus::Verified, WipeMethod::LayerKept),
        "{left:#?}"
    );
}

/// A start that fails on the layer of a pause, while the pause's sealer reads that by the very mount: the layer stays the
/// pause's, and what was made for the start is gone beyond doubt.
#[test]
fn a3f7_a_start_that_fails_on_the_layer_of_a_pause_is_wiped_while_a_sealer_reads_it() {
    in_classes(&[Class::Container], async |ground| {
        let (mut sandbox, plan) = ground.start(json!({})).await;
        assert_eq!(sh(&sandbox, &plan, "echo kept > /kept").await.outcome.exit, 0);
        let (still, layer) = sandbox.snapshotter().unwrap().freeze_for_pause().unwrap().unwrap();
        let layer = Arc::new(layer);
        sandbox.leave(&layer);
        tokio::task::block_in_place(|| still.end());
        kept(&sandbox.wipe("paused").await);
        let sealer = layer.descriptor().unwrap();
        let files = format!("/proc/self/fd/{}/upper", sealer.as_raw_fd());
        let files = std::path::Path::new(&files);
        // No sandbox begins with these, and the next one with the same layer does.
        for round in 0..3 {
            std::os::unix::fs::symlink("nowhere", files.join("srv-tmp")).unwrap();
            let _ = std::fs::remove_dir(files.join("tmp"));
            std::fs::rename(files.join("srv-tmp"), files.join("tmp")).unwrap();
            let plan = ground.bench.plan(ground.fields(json!({})));
            let filling = InitialFiles::Layer(Arc::clone(&layer));
            let failed = provision_filled(&ground.bench.host, &plan, &[], filling).await;
            let failed = failed.expect_err("/tmp is a link");
            assert!(failed.message.contains("/tmp"), "{round} {}", failed.message);
            kept(&failed.evidence);
            std::fs::remove_file(files.join("tmp")).unwrap();
        }
        drop(sealer);
        let plan = ground.bench.plan(ground.fields(json!({})));
        let filling = InitialFiles::Layer(Arc::clone(&layer));
        let mut sandbox = provision_filled(&ground.bench.host, &plan, &[], filling).await.unwrap();
        layer.let_go();
        sandbox.has_begun();
        assert_eq!(sh(&sandbox, &plan, "cat /kept").await.stdout, "kept\n");
        wiped(&sandbox.wipe("task-end").await);
    });
}

/// Everything that a layer may have: modes, owners, times, links, holes, pipes, names that are no text, and what was deleted.
const CHANGES: &str = "set -e; mkdir -p /kept/deep/er; cd /kept; printf one > a; chmod 4751 a; ln a b; \
    ln -s nowhere link; chown -h 7:8 link; chown 1000:1000 deep; mkfifo pipe; truncate -s 3000000 holes; \
    printf x | dd of=holes bs=1 seek=2000000 conv=notrunc 2> /dev/null; \
    head -c 3000000 /dev/urandom > large; touch \"$(printf 'odd\\377')\"; touch -d @1000000.5 a deep; \
    rm -rf /etc/skel; rm -rf /etc/profile.d; mkdir /etc/profile.d; touch /etc/profile.d/mine; chmod 500 deep/er";
/// What is seen of them. gVisor's kernel tells other numbers of links and times of what was just written, has pipes of its own
/// that nobody keeps, and its `ls` fails.
const SEEN: &str = "export LC_ALL=C; (find /kept /etc/profile.d ! -type d ! -type p -printf '%p %y %m %U:%G %s %l\n'; \
    find /kept/* -type d -printf '%p %m %U:%G\n'; find /kept/a /kept/deep -maxdepth 0 -printf '%p %T@\n') | sort; \
    find /kept -samefile /kept/a | sort; sha256sum /kept/a /kept/b /kept/large /kept/holes; test -e /etc/skel || echo gone";

/// What was kept in a class begins a sandbox of each other.
#[test]
fn a_sandbox_of_each_class_begins_with_what_was_kept_in_another() {
    let kept = std::sync::Mutex::new(Vec::new());
    in_each_class(async |ground| {
        let (sandbox, plan) = ground.start(json!({})).await;
        let changed = sh(&sandbox, &plan, CHANGES).await;
        assert_eq!(changed.outcome.exit, 0, "{}", changed.stderr);
        let seen = sh(&sandbox, &plan, SEEN).await.stdout;
        assert!(seen.lines().count() == 18 && seen.ends_with("gone\n"), "{seen}");
        let snapshotter = sandbox.snapshotter().unwrap();
        let mut stream = Vec::new();
        let still =
            tokio::task::block_in_place(|| snapshotter.snapshot(&mut stream, &|| true)).unwrap();
        // Nothing runs after the moment that was kept.
        tokio::task::block_in_place(|| still.end());
        wiped(&sandbox.wipe("paused").await);
        kept.lock().unwrap().push((ground.class, stream, seen));
    });
    in_each_class(async |ground| {
        let kept = kept.lock().unwrap().clone();
        for (class, stream, seen) in kept {
            let fields = ground.fields(json!({}));
            let plan = ground.bench.plan(fields);
            let filling = InitialFiles::new(Cursor::new(stream));
            let sandbox = provision_filled(&ground.bench.host, &plan, &[], filling).await;
            let sandbox = sandbox.unwrap_or_else(|why| panic!("{}: {why:?}", class.as_str()));
            let again = sh(&sandbox, &plan, SEEN).await;
            let between = format!("{} begins with {}", ground.class.as_str(), class.as_str());
            assert_eq!(again.stdout, seen, "{between}");
            let pipe = sh(&sandbox, &plan, "test -p /kept/pipe").await.outcome.exit;
            assert!(pipe == 0 || [class, ground.class].contains(&Class::Gvisor), "{between}");
            // It is a sandbox as any other.
            let more = "echo two >> /kept/a && cat /kept/b && touch /etc/skel && rm -r /kept && ls -A /kept";
            let more = sh(&sandbox, &plan, more).await;
            assert!(
                more.stdout == "onetwo\n" && more.outcome.exit != 0,
                "{between} {}",
                more.stdout
            );
            wiped(&sandbox.wipe("task-end").await);
        }
    });
}

/// Two files that are written by turns are one step apart at most in what is kept, again and again while it goes on.
#[test]
fn what_is_kept_of_each_class_is_of_one_moment() {
    in_each_class(async |ground| {
        let (sandbox, plan) = ground.start(json!({})).await;
        let script = "i=1000000; while [ ! -e /stop ]; do i=$((i+1)); echo $i 1<> /first-of-two; echo $i 1<> /last-of-two; done";
        let looks = async {
            for _ in 0..3 {
                let mut stream = Vec::new();
                let snapshotter = sandbox.snapshotter().unwrap();
                let still =
                    tokio::task::block_in_place(|| snapshotter.snapshot(&mut stream, &|| true));
                drop(still.unwrap());
                let number = |name: &str| {
                    // Its name, how many there are, its head, the offset and the size of its one extent.
                    let at = stream.windows(name.len()).position(|part| part == name.as_bytes());
                    let begin = at.unwrap() + name.len() + 28 + 12;
                    let text = String::from_utf8_lossy(&stream[begin..begin + 7]).into_owned();
                    text.parse::<u64>().unwrap_or_else(|_| panic!("{text:?}"))
                };
                let (first, last) = (number("first-of-two"), number("last-of-two"));
                assert!(first == last || first == last + 1, "{first} {last}");
            }
            sandbox.agent().files().put("/stop", 0o644, bytes::Bytes::new()).await.unwrap();
        };
        let begun = async {
            while sandbox.agent().files().read("/last-of-two", 100).await.is_err() {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            looks.await;
        };
        let (ran, ()) = tokio::join!(sh(&sandbox, &plan, script), begun);
        assert_eq!(ran.outcome.exit, 0);
        wiped(&sandbox.wipe("task-end").await);
    });
}

/// The agent of a machine goes on while the files are read, and changes none of them.
#[test]
fn what_is_written_from_outside_waits_until_the_files_are_kept() {
    in_each_class(async |ground| {
        let (sandbox, plan) = ground.start(json!({})).await;
        let snapshotter = sandbox.snapshotter().unwrap();
        let still =
            tokio::task::block_in_place(|| snapshotter.snapshot(&mut std::io::sink(), &|| true));
        let (agent, (pieces, tar)) = (sandbox.agent().clone(), tokio::sync::mpsc::channel(1));
        let unpack = cofferdam_guest::archive::Unpack {
            path: "/".to_owned(),
            max_bytes: 10,
            max_entries: 10,
            owner: None,
        };
        let writing = tokio::spawn(async move {
            let (put, unpacked) = tokio::join!(
                agent.files().put("/put", 0o644, "x".into()),
                agent.files().unpack(&unpack, tar)
            );
            put.unwrap();
            unpacked.unwrap();
        });
        pieces.send(bytes::Bytes::from(vec![0; 1024])).await.unwrap();
        drop(pieces);
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        assert!(!writing.is_finished(), "{} goes on", ground.class.as_str());
        drop(still.unwrap());
        writing.await.unwrap();
        assert_eq!(sh(&sandbox, &plan, "cat /put").await.stdout, "x");
        wiped(&sandbox.wipe("task-end").await);
    });
}

/// What a task puts into the way of a machine's init is taken for nothing but a file.
#[test]
fn a_link_in_the_place_of_the_inits_own_directory_leads_nowhere() {
    in_classes(&[Class::Microvm], async |ground| {
        let (sandbox, plan) = ground.start(json!({})).await;
        let link = "rm -rf /.cofferdam && ln -s /cgroups /.cofferdam && echo kept > /kept";
        assert_eq!(sh(&sandbox, &plan, link).await.outcome.exit, 0);
        let (snapshotter, mut stream) = (sandbox.snapshotter().unwrap(), Vec::new());
        let still = tokio::task::block_in_place(|| snapshotter.snapshot(&mut stream, &|| true));
        drop(still.unwrap());
        wiped(&sandbox.wipe("task-end").await);
        let plan = ground.bench.plan(ground.fields(json!({})));
        let filling = InitialFiles::new(Cursor::new(stream));
        let sandbox = provision_filled(&ground.bench.host, &plan, &[], filling).await.unwrap();
        assert_eq!(sh(&sandbox, &plan, "cat /kept").await.stdout, "kept\n");
        wiped(&sandbox.wipe("task-end").await);
    });
}

/// What a task can put in the place of a directory that this host or a runtime uses: how, as `rm -rf NAME` and a link. Where a
/// mount keeps the directory in its first life the name is written in the stream, which may come from anywhere.
const PLACES: [(&str, &str); 6] = [
    (".cofferdam", ".cofferdax"),
    ("dev", "dex"),
    ("proc", "prox"),
    ("sys", "syx"),
    ("tmp", "tmx"),
    ("usr", "usx"),
];
const MARK: &str = "a-file-of-the-host";
/// Looks for the file of the host where anything is mounted and at the root, and writes there.
const LOOK: &str = "export LC_ALL=C; for at in /* /.cofferdam /.cofferdam/none $(cut -d' ' -f5 /proc/self/mountinfo); do \
    [ -e $at/a-file-of-the-host ] && echo the host at $at; \
    case $at in /proc*|/sys*) ;; *) echo written > $at/written ;; esac; done 2> /dev/null; \
    for at in /sys/firmware /sys/kernel/slab /sys/fs/ext4; do [ -d $at ] && ls -A $at; done; echo looked";

/// A stream of a sandbox of this class that ran a script.
async fn kept_after(ground: &Ground, script: &str) -> Vec<u8> {
    let (sandbox, plan) = ground.start(json!({})).await;
    let done = sh(&sandbox, &plan, script).await;
    assert_eq!(done.outcome.exit, 0, "{script}: {}", done.stderr);
    let (snapshotter, mut stream) = (sandbox.snapshotter().unwrap(), Vec::new());
    let still = tokio::task::block_in_place(|| snapshotter.snapshot(&mut stream, &|| true));
    tokio::task::block_in_place(|| still.unwrap().end());
    wiped(&sandbox.wipe("paused").await);
    stream
}

#[test]
fn a3f1_a_link_in_the_place_of_a_directory_of_the_root_begins_no_sandbox_of_any_class() {
    let host = tempfile::tempdir().unwrap();
    std::fs::write(host.path().join(MARK), "the host's").unwrap();
    let streams = std::sync::Mutex::new(Vec::new());
    in_classes(&[Class::Container], async |ground| {
        for (name, written) in PLACES {
            let link = format!("ln -s {} /{written}", host.path().display());
            let mut stream = kept_after(ground, &link).await;
            let at = stream.windows(written.len()).position(|part| part == written.as_bytes());
            let at = at.unwrap();
            // The name of the link, as long as the other.
            let (head, last) = written.split_at(written.len() - 1);
            assert!(name.starts_with(head) && last == "x");
            stream[at..at + name.len()].copy_from_slice(name.as_bytes());
            streams.lock().unwrap().push((name, stream));
        }
    });
    let streams = streams.into_inner().unwrap();
    in_classes(&[Class::Container, Class::Gvisor, Class::Docker], async |ground| {
        for (name, stream) in streams.clone() {
            let plan = ground.bench.plan(ground.fields(json!({})));
            let filling = InitialFiles::new(Cursor::new(stream));
            let begun = provision_filled(&ground.bench.host, &plan, &[], filling).await;
            let refused = begun.map(|_| name).unwrap_err();
            assert!(
                refused.permanent
                    && refused.message.contains(&format!("/{name} is not a directory")),
                "{}: {refused}",
                ground.class.as_str()
            );
            assert_eq!(refused.evidence.status, WipeStatus::Verified);
        }
    });
    let left: Vec<_> =
        std::fs::read_dir(host.path()).unwrap().map(|one| one.unwrap().file_name()).collect();
    assert_eq!(left, [MARK]);
}

#[test]
fn a3f2_no_second_life_shows_the_host_whatever_its_first_put_in_the_root() {
    let host = tempfile::tempdir().unwrap();
    let mark = host.path().join(MARK);
    std::fs::write(&mark, "the host's").unwrap();
    let to = host.path().display();
    let mut scripts = vec![
        format!("rm -rf /.cofferdam/none; ln -s {to} /.cofferdam/none"),
        "rm -rf /.cofferdam/none; mkdir /.cofferdam/none; echo mine > /.cofferdam/none/mine"
            .to_owned(),
        // What is absent is made again.
        "rm -rf /tmp".to_owned(),
    ];
    for name in ["etc", "home", "mnt", "opt", "root", "run", "srv", "var"] {
        scripts.push(format!(
            "mv /{name} /.was-{name} 2> /dev/null; rm -rf /{name}; ln -s {to} /{name}"
        ));
    }
    let streams = std::sync::Mutex::new(Vec::new());
    in_classes(&[Class::Container], async |ground| {
        for script in &scripts {
            let kept = kept_after(ground, script).await;
            streams.lock().unwrap().push((script.clone(), kept));
        }
    });
    let streams = streams.into_inner().unwrap();
    in_classes(&[Class::Container, Class::Gvisor, Class::Docker], async |ground| {
        for (script, stream) in streams.clone() {
            let plan = ground.bench.plan(ground.fields(json!({})));
            let filling = InitialFiles::new(Cursor::new(stream));
            match provision_filled(&ground.bench.host, &plan, &[], filling).await {
                Ok(sandbox) => {
                    let seen = sh(&sandbox, &plan, LOOK).await.stdout;
                    assert_eq!(seen, "looked\n", "{} after {script}", ground.class.as_str());
                    wiped(&sandbox.wipe("task-end").await);
                }
                // The host's own /etc/alternatives are shown in no other directory.
                Err(refused) => {
                    assert!(script.contains("/etc"), "{script}: {refused}");
                    assert_eq!(refused.evidence.status, WipeStatus::Verified);
                }
            }
            let left = std::fs::read_dir(host.path()).unwrap().count();
            assert_eq!(
                (left, std::fs::read_to_string(&mark).unwrap().as_str()),
                (1, "the host's"),
                "{script}"
            );
        }
    });
}

/// Once in each class that this host has; the others are named.
pub(super) fn in_each_class(test: impl AsyncFn(&Ground)) {
    in_classes(&Class::LOCAL, test);
}

fn in_classes(classes: &[Class], test: impl AsyncFn(&Ground)) {
    enter_private_mounts().expect("these tests need root: run them as root");
    let found = Bench::new(None);
    for class in classes.iter().copied() {
        if left_out(class.as_str()) || !found.has_class(class) {
            continue;
        }
        let ground = Ground { bench: Arc::new(Bench::new(runtime_of(class))), class };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(test(&ground));
        drop(runtime);
        ground.bench.assert_clean();
    }
}
