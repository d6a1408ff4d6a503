//! Services that run from images of registries: their roots, users and ends, and what a tenant's store keeps.

use crate::images::{file, image, layer, serve, tools};
use crate::support;

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::image_reference::ImageReference;
use cofferdam_contracts::sandbox::ErrCode;
use cofferdam_sandbox::image::{ImageError, ServiceRoot, ServiceRoots, TenantImages, pin};
use cofferdam_sandbox::provision;
use serde_json::{Value, json};
use support::{Bench, fresh_id, request, sh, verified, with_bench};

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
    let plan = bench.host.plan_with(&request(fields), &fresh_id(), roots).unwrap();
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
        let cmd = "echo changed > /etc/own; cat /etc/own; echo x > /dev/null && echo device; id -u";
        let said = words(&bench, &pulled, service(&pulled, cmd, json!({"user": 0}))).await;
        assert!(said.contains("changed\ndevice\n0"), "{said}");
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
