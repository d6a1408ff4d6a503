//! Services that run from images of registries: their roots, users and ends, and what a tenant's store keeps.

use crate::image_server::serve;
use crate::images::{Item, file, image, item, layer, tools};
use crate::support;

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::image_reference::ImageReference;
use cofferdam_contracts::sandbox::{ErrCode, WipeStatus};
use cofferdam_sandbox::image::{ImageError, ServiceRoot, ServiceRoots, TenantImages, pin};
use cofferdam_sandbox::provision;
use serde_json::{Value, json};
use support::{Bench, fresh_id, request, sh, verified, with_bench};
use tar::EntryType;

/// Tells what a program may do beyond the rights of its user.
const RIGHTS: &str = "while read -r name value; do case $name in CapEff:|NoNewPrivs:) echo $name $value;; esac; done </proc/self/status";

fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).unwrap()
}

/// A registry with one image, and its reference by tag.
fn registry(layers: &[Vec<u8>], settings: Value) -> ImageReference {
    let (digest, blobs) = image(layers, settings);
    let named = blobs.into_iter().map(|b| (format!("sha256:{}", digest_bytes(&b)), b)).collect();
    let addr = serve("1.0", &digest, named);
    ImageReference::parse(&format!("{addr}/team/tool:1.0")).unwrap()
}

async fn pulled(bench: &Bench, reference: &ImageReference) -> ServiceRoot {
    let pinned = pin(reference).await.unwrap();
    TenantImages::of(bench.state.path(), &tenant("acme")).pull(&pinned).await.unwrap()
}

/// A service of this image whose program listens on port 7000, if `sh` can be had to.
fn service(pulled: &ServiceRoot, cmd: &str, more: Value) -> Value {
    let mut service = json!({"name": "s", "image": pulled.image.reference, "port": 7000,
                             "cmd": ["-c", cmd], "health": {"timeout_ms": 1_000}});
    for (field, value) in more.as_object().unwrap() {
        service[field] = value.clone();
    }
    json!({"spec": {"services": [service]}, "limits": {"memMB": 256, "diskMB": 64, "pids": 64}})
}

/// The last words of a service that does not come up.
async fn words(bench: &Bench, pulled: &ServiceRoot, fields: Value) -> String {
    let roots = ServiceRoots::from([("s".to_owned(), pulled.clone())]);
    let plan =
        cofferdam_sandbox::plan_with(bench.host.facts(), &request(fields), &fresh_id(), roots)
            .unwrap();
    let error = provision(&bench.host, &plan, &[]).await.unwrap_err();
    assert_eq!(error.code, ErrCode::BootFail, "{error}");
    verified(&error.evidence);
    error.message
}

#[test]
fn a_service_has_the_root_user_and_environment_of_its_image_and_leaves_nothing() {
    with_bench(|bench| async move {
        let settings = json!({"Entrypoint": ["sh"], "Env": ["PATH=/bin", "OWN=of image"], "User": "app", "WorkingDir": "/etc"});
        let pulled =
            pulled(&bench, &registry(&[tools(), layer(&[file("etc/own", "own\n")])], settings))
                .await;
        let cmd = "id -u; pwd; cat own hosts; echo $OWN $MORE; ls /dev/null /work /proc/self; echo x > /tmp.x || echo no";
        let said =
            words(&bench, &pulled, service(&pulled, cmd, json!({"env": {"MORE": "more"}}))).await;
        for part in
            ["1001\n/etc\nown\n127.0.0.1 localhost", "of image more", "/dev/null", "/work", "no"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(said.contains("No such file"), "the task's directories are not in it: {said}");
        // Root of an image writes in its own copy of it, and leaves it no more.
        let cmd = format!(
            "echo changed > /etc/own; cat /etc/own; echo x > /dev/null && echo device; id -u; {RIGHTS}"
        );
        let said = words(&bench, &pulled, service(&pulled, &cmd, json!({"user": 0}))).await;
        assert!(said.contains("changed\ndevice\n0"), "{said}");
        // Of what a sandbox's root may, it has all but the change of its root.
        assert!(said.contains("CapEff: 00000000000004fb"), "{said}");
        let own = pulled.root.root.join("etc/own");
        assert_eq!(std::fs::read_to_string(own).unwrap(), "own\n", "the image is as it was");
        // Without the image there is no plan, and another sandbox has no chroot.
        let fields = service(&pulled, "x", json!({}));
        let error = bench.host.plan(&request(fields), &fresh_id()).unwrap_err();
        assert!(error.to_string().contains("was not pulled"), "{error}");
        let (sandbox, plan) = bench.start(json!({})).await;
        let chroot = "perl -e 'chroot(\"/work\") or print \"no: $!\"'";
        assert!(sh(&sandbox, &plan, chroot).await.stdout.contains("no: Operation not permitted"));
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_service_sees_its_sandboxs_processes_and_devices_behind_the_same_masks() {
    with_bench(|bench| async move {
        let settings = json!({"Entrypoint": ["sh"], "User": "app"});
        let pulled = pulled(&bench, &registry(&[tools()], settings)).await;
        // An entry point says what it has to say in the usual places, and reads through a descriptor.
        let cmd = "echo out >/dev/stdout; echo error >/dev/stderr; echo text | cat /dev/fd/0; ls -d /dev/pts/ptmx; \
                   echo x >/proc/sys/kernel/domainname || echo read-only";
        let said = words(&bench, &pulled, service(&pulled, cmd, json!({}))).await;
        for part in ["out\n", "error\n", "text\n", "/dev/pts/ptmx\n", "read-only"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        // What is mounted below its `/proc` and `/sys` is what is mounted below the sandbox's.
        let shown = "while read -r id parent dev root at rest; do case $at in /proc*|/sys*) echo \"$at ${rest%%,*}\";; esac; done";
        let cmd = format!("{shown} </proc/self/mountinfo");
        let own = words(&bench, &pulled, service(&pulled, &cmd, json!({}))).await;
        let (sandbox, plan) = bench.start(json!({})).await;
        let its = sh(&sandbox, &plan, &cmd).await.stdout;
        verified(&sandbox.wipe("task-end").await);
        let missing: Vec<&str> = its.lines().filter(|line| !own.contains(line)).collect();
        assert!(its.lines().count() > 8 && missing.is_empty(), "{missing:?}: {own}");
    });
}

#[test]
fn links_and_set_id_bits_of_an_image_reach_nothing_of_the_task() {
    with_bench(|bench| async move {
        let settings = json!({"Entrypoint": ["sh"], "User": "app"});
        let hosts = item("etc/hosts", EntryType::Symlink, "/etc/task");
        let set_id = Item { mode: 0o4755, ..file("bin/root", "x") };
        let image = registry(&[tools(), layer(&[hosts, set_id])], settings);
        let pulled = pulled(&bench, &image).await;
        let cmd = format!("cat /etc/hosts; ls -l /bin/root; {RIGHTS}");
        let said = words(&bench, &pulled, service(&pulled, &cmd, json!({}))).await;
        for part in ["127.0.0.1 localhost", "-rws", "NoNewPrivs: 1", "CapEff: 0000000000000000"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        // A directory that is a link would lead what the worker puts there into the task's root.
        let etc = item("etc", EntryType::Symlink, "/work");
        let image = registry(&[tools(), layer(&[etc])], json!({"Entrypoint": ["sh"]}));
        let pulled = self::pulled(&bench, &image).await;
        let roots = ServiceRoots::from([("s".to_owned(), pulled.clone())]);
        let asked = request(service(&pulled, "true", json!({})));
        let plan =
            cofferdam_sandbox::plan_with(bench.host.facts(), &asked, &fresh_id(), roots).unwrap();
        let error = provision(&bench.host, &plan, &[]).await.unwrap_err();
        assert!(error.message.contains("/.cofferdam/services/s/etc is not a directory"), "{error}");
        // It never had a process.
        assert_eq!(error.evidence.status, WipeStatus::Verified, "{:#?}", error.evidence);
    });
}

/// A registry in front of another one, which breaks off in the middle of its first answer of more than 10,000 bytes.
fn unsteady(behind: std::net::SocketAddr) -> std::net::SocketAddr {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut is_whole = false;
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut asked = vec![0; 8_192];
            let count = stream.read(&mut asked).unwrap();
            let mut there = std::net::TcpStream::connect(behind).unwrap();
            there.write_all(&asked[..count]).unwrap();
            let mut answer = Vec::new();
            there.read_to_end(&mut answer).unwrap();
            if answer.len() > 10_000 && !std::mem::replace(&mut is_whole, true) {
                answer.truncate(answer.len() / 2);
            }
            let _ = stream.write_all(&answer);
        }
    });
    addr
}

#[test]
fn a_registry_that_breaks_off_leaves_nothing_half_and_is_asked_again() {
    with_bench(|bench| async move {
        let steady = registry(&[tools()], json!({"Cmd": ["sh"]}));
        let (behind, rest) =
            steady.to_string().split_once('/').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        let addr = unsteady(behind.parse().unwrap());
        let wanted = ImageReference::parse(&format!("{addr}/{rest}")).unwrap();
        let pinned = pin(&wanted).await.unwrap();
        let images = TenantImages::of(bench.state.path(), &tenant("acme"));
        let error = images.pull(&pinned).await.unwrap_err();
        assert!(!error.is_permanent() && error.to_string().contains("did not give"), "{error}");
        let store = std::fs::read_dir(bench.state.path().join("pulled")).unwrap().next().unwrap();
        let store = store.unwrap().path().join("images");
        let entries = |dir: &str| std::fs::read_dir(store.join(dir)).unwrap().count();
        assert_eq!((entries("names"), entries("roots"), entries("drafts")), (0, 0, 0));
        let found = images.pull(&pinned).await.unwrap();
        assert!(found.image.fetched_bytes > 10_000 && entries("drafts") == 0);
        // What a registry does not have, it will not have a moment later.
        let none = format!("{}@sha256:{}", wanted, "0".repeat(64));
        let error = images.pull(&ImageReference::parse(&none).unwrap()).await.unwrap_err();
        assert!(error.is_permanent(), "{error}");
    });
}

#[test]
fn a_tenants_images_are_fetched_once_by_digest_and_sixteen_stay() {
    with_bench(|bench| async move {
        let images = TenantImages::of(bench.state.path(), &tenant("acme"));
        let mut all = Vec::new();
        for n in 0..18 {
            let layers = [layer(&[file("name", &format!("{n}"))])];
            let pinned = pin(&registry(&layers, json!({"Cmd": [format!("{n}")]}))).await.unwrap();
            let found = images.pull(&pinned).await.unwrap();
            assert!(
                found.image.fetched_bytes > 0 && found.image.digest == *pinned.digest().unwrap()
            );
            assert_eq!(
                (found.cmd.concat(), found.image.reference.clone()),
                (n.to_string(), pinned.to_string())
            );
            all.push(pinned);
        }
        let newest = images.pull(&all[17]).await.unwrap();
        assert_eq!(newest.image.fetched_bytes, 0, "it was here");
        let other = TenantImages::of(bench.state.path(), &tenant("other"));
        assert!(other.pull(&all[17]).await.unwrap().image.fetched_bytes > 0, "a store of its own");
        let oldest = images.pull(&all[0]).await.unwrap();
        assert!(oldest.image.fetched_bytes > 0, "it had gone");
        let unpinned = registry(&[layer(&[])], json!({}));
        assert!(matches!(images.pull(&unpinned).await, Err(ImageError::Malformed { .. })));
        let absent = ImageReference::parse(&unpinned.to_string().replace(":1.0", ":2")).unwrap();
        let error = pin(&absent).await.unwrap_err();
        assert!(error.is_permanent() && error.to_string().contains("did not give"), "{error}");
    });
}
