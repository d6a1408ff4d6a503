//! The dependency cache in real sandboxes: what is kept, who gets it, and that nobody changes it.

use crate::support;

use std::fs;
use std::os::unix::fs::symlink;

use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::sandbox::AccessMode;
use cofferdam_sandbox::{
    BaseLookup, BaseRequest, CacheBase, CacheBounds, Caches, Class, Input, Plan, Promotion,
    Removal, Sandbox, plan, provision_on,
};
use serde_json::{Value, json};
use support::{
    Bench, fresh_id, host, in_classes, in_words, removed, request, run, sh, verified, with_bench,
    write,
};

fn cached(build: &str) -> Value {
    json!({
        "build": {"cmd": ["/bin/sh", "-c", build]},
        "spec": {"cache": {"repo": "r", "paths": ["req.txt"]}},
    })
}

fn lock(text: &str) -> Input {
    Input::Bytes { path: "/work/req.txt".into(), bytes: text.into(), mode: 0o644 }
}

fn org(text: &str) -> TenantId {
    TenantId::parse(text).unwrap()
}

async fn wanted(bench: &Bench, plan: &Plan, inputs: &[Input], tenant: &str) -> BaseRequest {
    bench.host.base_request(plan, inputs, &org(tenant)).await.unwrap().unwrap()
}

fn caches(bench: &Bench) -> Caches {
    Caches::open(bench.state.path()).unwrap()
}

/// Builds, and asks for what it left to be kept.
async fn build(bench: &Bench, plan: &Plan, inputs: &[Input]) -> (Sandbox, BaseRequest) {
    let want = wanted(bench, plan, inputs, "acme").await;
    let sandbox = provision_on(&bench.host, plan, inputs, None).await.unwrap();
    let said = run(&sandbox, plan.build.as_ref().unwrap()).await;
    assert_eq!(said.outcome.exit, 0, "{}", said.stderr);
    (sandbox, want)
}

async fn keep(bench: &Bench, plan: &Plan, inputs: &[Input]) -> (BaseRequest, Box<CacheBase>) {
    let (sandbox, want) = build(bench, plan, inputs).await;
    let Promotion::Kept(base) = sandbox.promote(&caches(bench), &want).await.unwrap() else {
        panic!("nobody else builds")
    };
    verified(&sandbox.wipe("task-end").await);
    (want, base)
}

fn find(bench: &Bench, base: &CacheBase) -> BaseLookup {
    caches(bench).find(base.key(), base.digest()).unwrap()
}

#[test]
fn what_a_build_left_is_the_next_tasks_base_and_no_task_can_change_it() {
    in_classes(&[], |bench| async move {
        let plan =
            bench.plan(cached("mkdir /deps/lib && echo one > /deps/lib/a && ln -s lib/a /deps/l"));
        let inputs = [lock("a==1")];
        let (want, base) = keep(&bench, &plan, &inputs).await;
        assert_eq!((base.entries(), base.key()), (3, &want.key));
        for _ in 0..2 {
            // A sandbox takes a plan, so each has one of its own.
            let plan = bench
                .plan(cached("mkdir /deps/lib && echo one > /deps/lib/a && ln -s lib/a /deps/l"));
            assert_eq!(wanted(&bench, &plan, &inputs, "acme").await, want);
            let BaseLookup::Base(held) = find(&bench, &base) else { panic!("it is there") };
            let sandbox = provision_on(&bench.host, &plan, &inputs, Some(*held)).await.unwrap();
            let script = "cat /deps/l; echo /deps/lib/*; echo two > /deps/lib/a; touch /deps/lib/b; \
                          rm /deps/l; cat /deps/lib/a; grep ' /deps ' /proc/self/mountinfo";
            let said = sh(&sandbox, &plan, script).await;
            assert!(
                said.stdout.starts_with("one\n/deps/lib/a\ntwo\n"),
                "{}{}",
                said.stdout,
                said.stderr
            );
            let mounted = said.stdout.lines().last().unwrap();
            if bench.class == Class::Container {
                assert!(mounted.contains("nosuid") && mounted.contains("nodev"), "{mounted}");
                assert!(mounted.contains(" - overlay "), "{mounted}");
            }
            // What runs on a base is never kept: the command has run.
            let again = sandbox.promote(&caches(&bench), &want).await.unwrap();
            assert!(matches!(again, Promotion::Late));
            let evidence = sandbox.wipe("task-end").await;
            verified(&evidence);
            assert!(evidence.checks.iter().any(|check| check.kind() == "cache-base" && check.ok));
            assert!(evidence.cache_before.is_some());
            assert_eq!(evidence.cache_before, evidence.cache_after);
        }
        assert!(matches!(caches(&bench).verify(base.key()).unwrap(), BaseLookup::Base(_)));
    });
}

#[test]
fn a_base_that_changed_under_a_task_fails_its_wipe() {
    in_classes(&[], |bench| async move {
        let plan = bench.plan(cached("echo one > /deps/a"));
        let inputs = [lock("a==1")];
        let (_, base) = keep(&bench, &plan, &inputs).await;
        let plan = bench.plan(cached("echo one > /deps/a"));
        let BaseLookup::Base(held) = find(&bench, &base) else { panic!("it is there") };
        let sandbox = provision_on(&bench.host, &plan, &inputs, Some(*held)).await.unwrap();
        let dir = bench.state.path().join("cache/bases").join(base.key().as_str());
        fs::write(dir.join("layer/0/a"), "changed").unwrap();
        let evidence = sandbox.wipe("task-end").await;
        let failed: Vec<_> = evidence.checks.iter().filter(|check| !check.ok).collect();
        assert_eq!(failed.len(), 1, "{failed:#?}");
        assert_eq!(failed[0].kind().as_str(), "cache-base");
        assert_ne!(evidence.cache_before, evidence.cache_after);
    });
}

#[test]
fn the_key_holds_everything_that_the_base_depends_on() {
    with_bench(|bench| async move {
        let inputs = [lock("a==1")];
        let same = |bench: &Bench| bench.plan(cached("true"));
        let first = wanted(&bench, &same(&bench), &inputs, "acme").await;
        assert_eq!(wanted(&bench, &same(&bench), &inputs, "acme").await, first);
        fs::create_dir_all(bench.shared("root")).unwrap();
        let root = format!("dir:{}", bench.shared("root").display());
        let others = [
            json!({"build": {"cmd": ["/bin/sh", "-c", "false"]}}),
            json!({"build": {"cmd": ["/bin/sh", "-c", "true"], "net": ["a.example"]}}),
            json!({"build": {"cmd": ["/bin/sh", "-c", "true"], "env": {"A": "1"}}}),
            json!({"workdir": "/tmp", "spec": {"cache": {"repo": "r", "paths": ["/work/req.txt"]}}}),
            json!({"envRef": root}),
            json!({"spec": {"cache": {"repo": "s", "paths": ["req.txt"]}}}),
            json!({"spec": {"cache": {"repo": "r", "paths": ["req.txt"], "dirs": ["/opt/deps"]}}}),
        ];
        let mut keys = vec![first.key.clone()];
        for other in others {
            let mut fields = cached("true");
            fields.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
            let plan = bench.plan(fields);
            keys.push(wanted(&bench, &plan, &inputs, "acme").await.key);
        }
        keys.push(wanted(&bench, &same(&bench), &[lock("a==2")], "acme").await.key);
        keys.push(wanted(&bench, &same(&bench), &inputs, "zenith").await.key);
        let count = keys.len();
        keys.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        keys.dedup();
        assert_eq!(keys.len(), count);
        // What the task does later is no part of it: the next task's command differs.
        let mut later = cached("true");
        later["cmd"] = json!(["false"]);
        later["timeoutMs"] = json!(1_000);
        // Nor what it sees: a shard's number is no reason for a base of its own.
        later["env"] = json!({"SHARD": "1"});
        assert_eq!(wanted(&bench, &bench.plan(later), &inputs, "acme").await, first);
    });
}

#[test]
fn another_tenant_finds_nothing_even_with_the_same_request() {
    with_bench(|bench| async move {
        let inputs = [lock("a==1")];
        let plan = bench.plan(cached("echo secret > /deps/a"));
        let (want, base) = keep(&bench, &plan, &inputs).await;
        let theirs = wanted(&bench, &plan, &inputs, "zenith").await;
        assert_eq!(theirs.lock_hash, want.lock_hash);
        assert_ne!(theirs.key, want.key);
        let found = caches(&bench).find(&theirs.key, base.digest()).unwrap();
        assert!(matches!(found, BaseLookup::Missing));
        // Even where the files were put under their key by hand.
        let bases = bench.state.path().join("cache/bases");
        fs::rename(bases.join(want.key.as_str()), bases.join(theirs.key.as_str())).unwrap();
        let found = caches(&bench).find(&theirs.key, base.digest()).unwrap();
        assert!(matches!(found, BaseLookup::Damaged(_)), "{found:?}");
    });
}

#[test]
fn a_lock_file_is_read_as_the_task_sees_it_and_never_through_a_link() {
    with_bench(|bench| async move {
        write(&bench.shared("repo/req.txt"), "a==1");
        write(&bench.shared("repo/sub/req.txt"), "a==2");
        write(&bench.shared("outside.txt"), "a==1");
        let plan = bench.plan(cached("true"));
        let repo = || host("/work", bench.shared("repo"), AccessMode::WorkspaceWrite);
        let by_bytes = wanted(&bench, &plan, &[lock("a==1")], "acme").await;
        assert_eq!(wanted(&bench, &plan, &[repo()], "acme").await, by_bytes, "same bytes");
        let hidden = wanted(&bench, &plan, &[repo(), lock("a==3")], "acme").await;
        assert_ne!(hidden, by_bytes, "what is written hides what is mounted");
        let file = host("/work/req.txt", bench.shared("repo/req.txt"), AccessMode::ReadOnly);
        assert_eq!(wanted(&bench, &plan, &[file], "acme").await, by_bytes);
        let refused = async |inputs: &[Input]| {
            bench.host.base_request(&plan, inputs, &org("acme")).await.unwrap_err()
        };
        assert_eq!(refused(&[]).await.field, "spec.cache.paths[0]");
        fs::remove_file(bench.shared("repo/req.txt")).unwrap();
        for target in ["../outside.txt", "sub/req.txt", "/etc/passwd"] {
            symlink(target, bench.shared("repo/req.txt")).unwrap();
            let error = refused(&[repo()]).await;
            assert_eq!(error.field, "spec.cache.paths[0]", "{target}: {error}");
            fs::remove_file(bench.shared("repo/req.txt")).unwrap();
        }
        let outside = host("/work", "/etc".into(), AccessMode::ReadOnly);
        assert!(refused(&[outside]).await.message.contains("may be given"));
    });
}

#[test]
fn a_build_whose_leftovers_no_base_may_hold_is_not_kept() {
    in_classes(&[], |bench| async move {
        let inputs = [lock("a==1")];
        // A machine's agent says it, and packs no deeper than it can.
        let deep = match bench.class {
            Class::Microvm => "nested directories",
            _ => "too deep",
        };
        for (script, why) in [
            ("mkfifo /deps/p", "a device, a pipe or a socket"),
            (
                "perl -MSocket -e 'socket(S,AF_UNIX,SOCK_STREAM,0); bind(S,sockaddr_un(\"/deps/s\"))'",
                "a device",
            ),
            ("truncate -s 1T /deps/sparse", "bytes"),
            ("d=/deps; for i in $(seq 210); do d=$d/d; done; mkdir -p $d", deep),
            ("touch \"/deps/$(printf '\\377')\"", "UTF-8"),
        ] {
            let (sandbox, want) = build(&bench, &bench.plan(cached(script)), &inputs).await;
            let error = in_words(&sandbox.promote(&caches(&bench), &want).await.unwrap_err());
            assert!(error.contains(why), "{script}: {error}");
            verified(&sandbox.wipe("task-end").await);
        }
        let few =
            Caches::bounded(bench.state.path(), CacheBounds { bytes: 100, entries: 3 }).unwrap();
        for (script, why) in [
            ("touch /deps/1 /deps/2 /deps/3 /deps/4", "entries"),
            ("head -c 101 /dev/zero > /deps/z", "bytes"),
        ] {
            let (sandbox, want) = build(&bench, &bench.plan(cached(script)), &inputs).await;
            let error = in_words(&sandbox.promote(&few, &want).await.unwrap_err());
            assert!(error.contains(why), "{script}: {error}");
            verified(&sandbox.wipe("task-end").await);
        }
        assert!(caches(&bench).keys().unwrap().is_empty());
        let drafts = fs::read_dir(bench.state.path().join("cache/drafts")).unwrap();
        assert_eq!(drafts.count(), 0, "what was begun is gone");
    });
}

#[test]
fn links_out_hard_links_and_set_user_id_bits_do_no_harm() {
    use std::os::unix::fs::MetadataExt as _;
    in_classes(&[], |bench| async move {
        let inputs = [lock("a==1")];
        let script = "ln -s /etc/shadow /deps/out; ln -s ../../../../.. /deps/up; ln -s up /deps/dir; \
                      echo x > /deps/a; ln /deps/a /deps/b; cp /bin/true /deps/su; \
                      chmod 6755 /deps/su; mkdir /deps/g; chmod 3777 /deps/g; chmod 0 /deps/a";
        let (want, base) = keep(&bench, &bench.plan(cached(script)), &inputs).await;
        let layer = bench.state.path().join("cache/bases").join(want.key.as_str()).join("layer/0");
        let meta = |name: &str| fs::symlink_metadata(layer.join(name)).unwrap();
        for name in ["out", "up", "dir"] {
            assert!(meta(name).is_symlink(), "{name} is kept as what it is");
        }
        assert_eq!(meta("su").mode() & 0o7777, 0o755);
        assert_eq!(meta("g").mode() & 0o7777, 0o1777);
        assert_ne!(meta("a").ino(), meta("b").ino(), "each is a file of its own");
        assert_eq!(meta("a").mode() & 0o7777, 0);
        assert_eq!(base.entries(), 7);
        let outside = fs::symlink_metadata(bench.state.path().join("cache")).unwrap();
        assert_eq!(outside.mode() & 0o777, 0o700, "nobody but root looks in");
        assert_eq!(caches(&bench).remove(&want.key).unwrap(), Removal::InUse);
        drop(base);
        assert_eq!(removed(&caches(&bench), &want.key), Removal::Removed);
        assert!(std::path::Path::new("/etc/shadow").exists());
    });
}

#[test]
fn a_request_whose_cache_cannot_be_kept_is_refused_by_the_field() {
    with_bench(|bench| async move {
        let build = json!({"cmd": ["true"]});
        let cases = [
            ("spec.cache", json!({"spec": {"cache": {"repo": "r", "paths": ["l"]}}})),
            (
                "spec.cache.repo",
                json!({"build": build, "spec": {"cache": {"repo": "", "paths": ["l"]}}}),
            ),
            (
                "spec.cache.repo",
                json!({"build": build, "spec": {"cache": {"repo": "a\nb", "paths": ["l"]}}}),
            ),
            ("spec.cache.paths", json!({"build": build, "spec": {"cache": {"repo": "r"}}})),
            (
                "spec.cache.paths",
                json!({"build": build, "spec": {"cache": {"repo": "r", "paths": vec!["l"; 17]}}}),
            ),
            (
                "spec.cache.dirs",
                json!({"build": build, "spec": {"cache": {"repo": "r", "paths": ["l"],
                    "dirs": (0..9).map(|n| format!("/d{n}")).collect::<Vec<_>>()}}}),
            ),
            (
                "spec.cache.paths[0]",
                json!({"build": build, "spec": {"cache": {"repo": "r", "paths": ["../l"]}}}),
            ),
            (
                "spec.cache.dirs[0]",
                json!({"build": build, "spec": {"cache": {"repo": "r", "paths": ["l"], "dirs": ["deps"]}}}),
            ),
            (
                "spec.cache.dirs[0]",
                json!({"build": build, "spec": {"cache": {"repo": "r", "paths": ["l"], "dirs": ["/proc/x"]}}}),
            ),
            (
                "spec.cache.dirs[0]",
                json!({"build": build, "spec": {"cache": {"repo": "r", "paths": ["l"], "dirs": ["/a", "/a/b"]}}}),
            ),
            (
                "spec.cache.dirs[0]",
                json!({"build": build, "filesIn": [{"path": "/work/l", "inline": ""}],
                "spec": {"cache": {"repo": "r", "paths": ["l"], "dirs": ["/work"]}}}),
            ),
        ];
        for (field, fields) in cases {
            let error =
                plan(&request(fields.clone()), &fresh_id(), bench.host.facts()).unwrap_err();
            assert_eq!(error.field, field, "{fields}: {error}");
        }
    });
}
