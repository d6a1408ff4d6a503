//! Images: taken in whole or not at all, run, built, pulled, removed; hostile ones refused.
//! One file: each test changes one thing of the same small image.

use crate::support;

use std::fs;
use std::path::{Path, PathBuf};

use crate::image_server::serve;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::TemplateName;
use cofferdam_contracts::template_build::TemplateUser;
use cofferdam_sandbox::image::{ImageError, ImageFile, ImageName, Images, StoreBounds, build};
use cofferdam_sandbox::templates::{TemplateProgram, templates};
use cofferdam_sandbox::{Sandbox, provision};
use serde_json::{Value, json};
use support::{Bench, fresh_id, request, sh, verified, with_bench};
use tar::{Builder, EntryType, Header};

/// One entry of a layer.
pub struct Item {
    pub path: &'static str,
    pub kind: EntryType,
    pub link: &'static str,
    pub bytes: Vec<u8>,
    pub mode: u32,
}

pub fn item(path: &'static str, kind: EntryType, link: &'static str) -> Item {
    Item { path, kind, link, bytes: Vec::new(), mode: 0o755 }
}

pub fn file(path: &'static str, text: &str) -> Item {
    Item { bytes: text.into(), mode: 0o644, ..item(path, EntryType::Regular, "") }
}

fn dir(path: &'static str) -> Item {
    item(path, EntryType::Directory, "")
}

/// The names are written raw: a library would refuse to write what a hostile one sends.
pub fn layer(items: &[Item]) -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    for item in items {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..item.path.len()].copy_from_slice(item.path.as_bytes());
        header.as_old_mut().linkname[..item.link.len()].copy_from_slice(item.link.as_bytes());
        header.set_entry_type(item.kind);
        header.set_mode(item.mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000);
        header.set_size(item.bytes.len().try_into().unwrap());
        header.set_cksum();
        tar.append(&header, item.bytes.as_slice()).unwrap();
    }
    tar.into_inner().unwrap()
}

/// A shell and a few tools of this host with their libraries: a root file system for tests.
pub fn tools() -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    let mut paths = std::collections::BTreeSet::new();
    for tool in ["sh", "cat", "rm", "id", "mkdir", "ls", "chmod"] {
        let path = format!("/bin/{tool}");
        let listed = std::process::Command::new("ldd").arg(&path).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        paths.extend(listed.split_whitespace().filter(|w| w.starts_with('/')).map(str::to_owned));
        paths.insert(path);
    }
    for path in paths {
        tar.append_path_with_name(fs::canonicalize(&path).unwrap(), &path[1..]).unwrap();
    }
    let passwd = "root:x:0:0::/root:/bin/sh\napp:x:1001:1001::/srv:/bin/sh\n";
    let mut header = Header::new_gnu();
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(passwd.len().try_into().unwrap());
    tar.append_data(&mut header, "etc/passwd", passwd.as_bytes()).unwrap();
    tar.into_inner().unwrap()
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

/// Blobs of an image: its layers, configuration and manifest, whose digest comes first.
pub fn image(layers: &[Vec<u8>], settings: Value) -> (String, Vec<Vec<u8>>) {
    let sum = |bytes: &[u8]| format!("sha256:{}", digest_bytes(bytes));
    let diff_ids: Vec<String> = layers.iter().map(|layer| sum(layer)).collect();
    let config = json!({"architecture": architecture(), "os": "linux", "config": settings,
                        "rootfs": {"type": "layers", "diff_ids": diff_ids}});
    let config = serde_json::to_vec(&config).unwrap();
    let described = |kind: &str, bytes: &[u8]| json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "digest": sum(bytes), "size": bytes.len()});
    let listed: Vec<Value> = layers.iter().map(|layer| described("layer.v1.tar", layer)).collect();
    let manifest = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                          "config": described("config.v1+json", &config), "layers": listed});
    let manifest = serde_json::to_vec(&manifest).unwrap();
    let digest = digest_bytes(&manifest).to_string();
    let mut blobs = layers.to_vec();
    blobs.extend([config, manifest]);
    (digest, blobs)
}

/// An OCI layout on disk.
fn layout(at: &Path, layers: &[Vec<u8>], settings: Value) -> String {
    let (digest, blobs) = image(layers, settings);
    fs::create_dir_all(at.join("blobs/sha256")).unwrap();
    for blob in &blobs {
        fs::write(at.join("blobs/sha256").join(digest_bytes(blob).as_str()), blob).unwrap();
    }
    let size = blobs.last().unwrap().len();
    let index = json!({"schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": format!("sha256:{digest}"), "size": size}]});
    fs::write(at.join("index.json"), index.to_string()).unwrap();
    digest
}

fn name(text: &str) -> ImageName {
    ImageName::parse(text).unwrap()
}

fn images(bench: &Bench) -> Images {
    Images::open(bench.state.path()).unwrap()
}

fn import(bench: &Bench, layers: &[Vec<u8>], settings: Value, as_name: &str) -> String {
    let at = tempfile::tempdir().unwrap();
    let digest = layout(at.path(), layers, settings);
    images(bench).import(at.path(), Some(&name(as_name))).unwrap();
    digest
}

async fn start(bench: &Bench, fields: Value) -> (Sandbox, cofferdam_sandbox::Plan) {
    let plan = bench.host.plan(&request(fields), &fresh_id()).unwrap();
    let sandbox = provision(&bench.host, &plan, &[]).await.unwrap();
    (sandbox, plan)
}

/// Everything below the store but the lock, as relative paths.
fn kept(bench: &Bench) -> Vec<PathBuf> {
    let dir = bench.state.path().join("images");
    let mut found = Vec::new();
    for place in ["blobs", "roots", "names", "drafts"] {
        for entry in fs::read_dir(dir.join(place)).unwrap() {
            found.push(Path::new(place).join(entry.unwrap().file_name()));
        }
    }
    found.sort();
    found
}

#[test]
fn a_sandbox_runs_from_an_imported_image_and_its_record_is_pinned() {
    with_bench(|bench| async move {
        let upper = layer(&[file("etc/motd", "second\n"), file(".wh.gone", ""), dir("srv/app")]);
        let lower = layer(&[dir("etc"), file("etc/motd", "first\n"), file("gone", "x")]);
        let settings =
            json!({"Env": ["PATH=/bin", "A=image"], "WorkingDir": "/srv/app", "User": "1001"});
        let digest = import(&bench, &[tools(), lower, upper], settings, "base:1");
        for fields in [
            json!({"envRef": "image:base:1"}),
            json!({"envRef": format!("image:base:1@sha256:{digest}")}),
        ] {
            let (sandbox, plan) = start(&bench, fields).await;
            assert_eq!(sandbox.effective().image, format!("image:base:1@sha256:{digest}"));
            let script =
                "cat /etc/motd; echo $A $HOME; ls -d /gone; id -u; cat /proc/self/cwd/x; pwd";
            let said = sh(&sandbox, &plan, script).await;
            assert_eq!(said.stdout, "second\nimage /srv\n1001\n/srv/app\n", "{}", said.stderr);
            let evidence = sandbox.wipe("task-end").await;
            verified(&evidence);
            assert!(evidence.base_before.is_some() && evidence.base_before == evidence.base_after);
        }
        // What the request says goes before what the image says.
        let fields = json!({"envRef": "image:base:1", "env": {"A": "task"}, "workdir": "/etc"});
        let (sandbox, plan) = start(&bench, fields).await;
        assert_eq!(sh(&sandbox, &plan, "echo $A; pwd").await.stdout, "task\n/etc\n");
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a3f1_an_image_whose_directories_are_links_is_refused_when_it_is_filled() {
    with_bench(|bench| async move {
        for at in ["tmp", "usr", ".cofferdam"] {
            for bad in [item(at, EntryType::Symlink, "srv"), file(at, "no directory")] {
                let dir = tempfile::tempdir().unwrap();
                layout(dir.path(), &[layer(&[bad])], json!({}));
                let refused = images(&bench).import(dir.path(), Some(&name("bad"))).unwrap_err();
                assert!(refused.to_string().contains("no sandbox begins with it"), "{refused}");
            }
        }
        assert!(!kept(&bench).iter().any(|at| at.starts_with("names") || at.starts_with("roots")));
        import(&bench, &[layer(&[dir("tmp"), dir("usr")])], json!({}), "good");
    });
}

#[test]
fn what_is_not_here_is_refused_by_the_name_of_the_field() {
    with_bench(|bench| async move {
        let digest = import(&bench, &[layer(&[dir("a")])], json!({}), "small");
        let zeros = "0".repeat(64);
        for bad in ["none", "small:2", "", "../x", &format!("small@sha256:{zeros}"), "small@x"] {
            let fields = json!({"envRef": format!("image:{bad}")});
            let error = bench.host.plan(&request(fields), &fresh_id()).unwrap_err();
            assert_eq!(error.field, "envRef", "{bad}");
        }
        let fields = json!({"envRef": format!("image:small@sha256:{digest}")});
        assert!(bench.host.plan(&request(fields), &fresh_id()).is_ok());
        // A damaged store is no image either.
        let roots = bench.state.path().join("images/roots");
        fs::remove_dir_all(fs::read_dir(&roots).unwrap().next().unwrap().unwrap().path()).unwrap();
        let fields = json!({"envRef": "image:small"});
        assert_eq!(bench.host.plan(&request(fields), &fresh_id()).unwrap_err().field, "envRef");
    });
}

#[test]
fn hostile_layers_are_refused_and_leave_no_image() {
    with_bench(|bench| async move {
        let outside = bench.shared("outside");
        fs::write(&outside, "untouched").unwrap();
        let link = |path, to| item(path, EntryType::Symlink, to);
        let hard = |path, to| item(path, EntryType::Link, to);
        let target: &'static str = outside.to_str().unwrap().to_owned().leak();
        let holder: &'static str = bench.shared.path().to_str().unwrap().to_owned().leak();
        for (why, items) in [
            ("has a `..`", vec![file("../escape", "x")]),
            ("has a `..`", vec![file("a/../../escape", "x")]),
            ("is absolute", vec![file("/escape", "x")]),
            ("through a symbolic link", vec![link("a", holder), file("a/outside", "x")]),
            ("through a symbolic link", vec![link("a", ".."), dir("a/b")]),
            ("through a symbolic link", vec![link("a", holder), file("a/.wh.outside", "")]),
            ("through a symbolic link", vec![link("a", holder), hard("b", "a/outside")]),
            ("is absolute", vec![hard("b", target)]),
            ("has a `..`", vec![hard("b", "../../outside")]),
            ("hard link to what is no file", vec![hard("b", "missing")]),
            ("is a device", vec![item("null", EntryType::Char, "")]),
            ("is a device", vec![item("disk", EntryType::Block, "")]),
            ("is a whiteout of nothing", vec![file(".wh...", "")]),
            ("below what is no directory", vec![file("a", "x"), file("a/b", "x")]),
        ] {
            let at = tempfile::tempdir().unwrap();
            layout(at.path(), &[layer(&items)], json!({}));
            let error = images(&bench).import(at.path(), Some(&name("bad"))).unwrap_err();
            assert!(matches!(error, ImageError::Hostile { .. }), "{why}: {error}");
            assert!(error.to_string().contains(why), "{why}: {error}");
        }
        assert_eq!(fs::read_to_string(&outside).unwrap(), "untouched");
        let left: Vec<PathBuf> =
            kept(&bench).into_iter().filter(|p| !p.starts_with("blobs")).collect();
        assert!(left.is_empty(), "{left:?}");
        assert!(images(&bench).list().unwrap().is_empty());
        // The blobs that no name needs go with the next removal. A program that another test starts in this process has
        // the lock of an import until it is executed, and such a removal sweeps nothing.
        for _ in 0..20 {
            import(&bench, &[layer(&[dir("a")])], json!({}), "good");
            images(&bench).remove(&name("good")).unwrap();
            if kept(&bench).is_empty() {
                break;
            }
        }
        assert!(kept(&bench).is_empty(), "{:?}", kept(&bench));
    });
}

#[test]
fn a_link_of_an_image_leads_nowhere_but_into_its_sandbox() {
    with_bench(|bench| async move {
        // A link may point anywhere, because only a sandbox follows it.
        let links = layer(&[item("secret", EntryType::Symlink, "/etc/shadow")]);
        import(&bench, &[tools(), links], json!({"Env": ["PATH=/bin"]}), "linked");
        let (sandbox, plan) = start(&bench, json!({"envRef": "image:linked"})).await;
        assert_ne!(sh(&sandbox, &plan, "cat /secret").await.outcome.exit, 0);
        verified(&sandbox.wipe("task-end").await);
        // Nobody but root looks into the store.
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(bench.state.path().join("images")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    });
}

#[test]
fn bombs_stop_at_the_bounds() {
    with_bench(|bench| async move {
        let mut bounds = StoreBounds { layer_entries: 10, ..StoreBounds::default() };
        (bounds.blob_bytes, bounds.layer_bytes) = (2_000_000, 100_000);
        let store = Images::bounded(bench.state.path(), bounds).unwrap();
        let big = Item { bytes: vec![0; 1_000_000], ..file("big", "") };
        let many = (0..20).map(|n| file(format!("f{n}").leak(), "")).collect::<Vec<_>>();
        let huge = Item { bytes: vec![0; 3_000_000], ..file("huge", "") };
        for items in [vec![big], many, vec![huge]] {
            let at = tempfile::tempdir().unwrap();
            layout(at.path(), &[layer(&items)], json!({}));
            let error = store.import(at.path(), Some(&name("bomb"))).unwrap_err();
            assert!(matches!(error, ImageError::TooLarge { .. }), "{error}");
        }
        // Compressed: a thousandth of what comes out, and the trailing zeros of no file at all.
        let mut bomb = layer(&[file("small", "x")]);
        bomb.resize(5_000_000, 0);
        let at = tempfile::tempdir().unwrap();
        layout(at.path(), std::slice::from_ref(&bomb), json!({}));
        let blob = at.path().join("blobs/sha256").join(digest_bytes(&bomb).as_str());
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut gzip, &bomb).unwrap();
        let packed = gzip.finish().unwrap();
        fs::remove_file(blob).unwrap();
        let renamed = digest_bytes(&packed);
        fs::write(at.path().join("blobs/sha256").join(renamed.as_str()), &packed).unwrap();
        repoint(at.path(), digest_bytes(&bomb).as_ref(), renamed.as_str(), packed.len());
        let error = store.import(at.path(), Some(&name("bomb"))).unwrap_err();
        assert!(matches!(error, ImageError::TooLarge { .. }), "{error}");
        // Layers that are small one by one, where the bounds are those of all together.
        let zeros = |n| {
            let mut zeros = layer(&[file("small", n)]);
            zeros.resize(90_000, 0);
            zeros
        };
        layout(at.path(), &[zeros("1"), zeros("2")], json!({}));
        let error = |of_all_layers| {
            let store =
                Images::bounded(bench.state.path(), StoreBounds { of_all_layers, ..bounds });
            store.unwrap().import(at.path(), Some(&name("bombs"))).map(|_| ())
        };
        assert!(matches!(error(true), Err(ImageError::TooLarge { .. })));
        let left: Vec<PathBuf> =
            kept(&bench).into_iter().filter(|p| !p.starts_with("blobs")).collect();
        assert!(left.is_empty(), "{left:?}");
        error(false).unwrap();
    });
}

/// Makes the manifest of a layout name another layer blob, and the index that manifest.
fn repoint(at: &Path, from: &str, to: &str, size: usize) {
    let mut index: Value =
        serde_json::from_slice(&fs::read(at.join("index.json")).unwrap()).unwrap();
    let old = index["manifests"][0]["digest"].as_str().unwrap()[7..].to_owned();
    let blobs = at.join("blobs/sha256");
    let mut manifest: Value = serde_json::from_slice(&fs::read(blobs.join(old)).unwrap()).unwrap();
    assert_eq!(manifest["layers"][0]["digest"], format!("sha256:{from}"));
    manifest["layers"][0]["digest"] = json!(format!("sha256:{to}"));
    manifest["layers"][0]["size"] = json!(size);
    let bytes = serde_json::to_vec(&manifest).unwrap();
    let digest = digest_bytes(&bytes);
    fs::write(blobs.join(digest.as_str()), &bytes).unwrap();
    index["manifests"][0]["digest"] = json!(format!("sha256:{digest}"));
    fs::write(at.join("index.json"), index.to_string()).unwrap();
}

#[test]
fn bytes_that_are_not_what_they_are_called_are_refused() {
    with_bench(|bench| async move {
        let good = layer(&[file("a", "good")]);
        let other = layer(&[file("a", "evil")]);
        // A blob under the name of another.
        let at = tempfile::tempdir().unwrap();
        layout(at.path(), std::slice::from_ref(&good), json!({}));
        fs::write(at.path().join("blobs/sha256").join(digest_bytes(&good).as_str()), &other)
            .unwrap();
        let error = images(&bench).import(at.path(), Some(&name("x"))).unwrap_err();
        assert!(matches!(error, ImageError::Digest { what: "a blob", .. }), "{error}");
        // A layer whose diff id the configuration does not know.
        let at = tempfile::tempdir().unwrap();
        layout(at.path(), std::slice::from_ref(&good), json!({}));
        let renamed = digest_bytes(&other);
        fs::write(at.path().join("blobs/sha256").join(renamed.as_str()), &other).unwrap();
        repoint(at.path(), digest_bytes(&good).as_ref(), renamed.as_str(), other.len());
        let error = images(&bench).import(at.path(), Some(&name("x"))).unwrap_err();
        assert!(matches!(error, ImageError::Digest { what: "a layer", .. }), "{error}");
        assert!(images(&bench).list().unwrap().is_empty());
    });
}

#[test]
fn a_tar_of_a_layout_and_a_docker_save_are_taken_too() {
    with_bench(|bench| async move {
        let one = layer(&[file("a", "1")]);
        let at = tempfile::tempdir().unwrap();
        let digest = layout(at.path(), std::slice::from_ref(&one), json!({}));
        let packed = bench.shared("layout.tar");
        let mut tar = Builder::new(fs::File::create(&packed).unwrap());
        tar.append_dir_all(".", at.path()).unwrap();
        tar.finish().unwrap();
        let got = images(&bench).import(&packed, Some(&name("tarred"))).unwrap();
        assert_eq!(got.digest.to_string(), digest);
        let saved = tempfile::tempdir().unwrap();
        let (_, blobs) = image(&[one], json!({}));
        fs::write(saved.path().join("layer.tar"), &blobs[0]).unwrap();
        fs::write(saved.path().join("config.json"), &blobs[1]).unwrap();
        let list = json!([{"Config": "config.json", "RepoTags": ["team/tool:1"], "Layers": ["layer.tar"]}]);
        fs::write(saved.path().join("manifest.json"), list.to_string()).unwrap();
        let got = images(&bench).import(saved.path(), None).unwrap();
        assert_eq!((got.name.as_str(), got.layers), ("team/tool:1", 1));
        // What the list names cannot lead out of the file.
        for bad in ["../../../etc/passwd", "/etc/passwd", "link"] {
            let list = json!([{"Config": bad, "RepoTags": null, "Layers": []}]);
            fs::write(saved.path().join("manifest.json"), list.to_string()).unwrap();
            let _ = std::os::unix::fs::symlink("/etc/passwd", saved.path().join("link"));
            assert!(images(&bench).import(saved.path(), Some(&name("bad"))).is_err(), "{bad}");
        }
        assert_eq!(images(&bench).list().unwrap().len(), 2);
    });
}

#[test]
fn eight_imports_at_once_are_one_image() {
    with_bench(|bench| async move {
        let at = tempfile::tempdir().unwrap();
        layout(at.path(), &[tools()], json!({}));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| images(&bench).import(at.path(), Some(&name("same"))).unwrap());
            }
        });
        assert_eq!(images(&bench).list().unwrap().len(), 1);
        let of = |place: &str| kept(&bench).iter().filter(|p| p.starts_with(place)).count();
        assert_eq!((of("roots"), of("names"), of("drafts"), of("blobs")), (1, 1, 0, 3));
    });
}

#[test]
fn an_image_in_use_is_not_removed_and_what_others_share_stays() {
    with_bench(|bench| async move {
        let base = tools();
        import(&bench, std::slice::from_ref(&base), json!({"Env": ["PATH=/bin"]}), "a");
        import(&bench, &[base, layer(&[file("b", "b")])], json!({"Env": ["PATH=/bin"]}), "b");
        let (sandbox, plan) = start(&bench, json!({"envRef": "image:b"})).await;
        let error = images(&bench).remove(&name("b")).unwrap_err();
        assert!(matches!(error, ImageError::InUse(_)), "{error}");
        assert_eq!(sh(&sandbox, &plan, "cat /b").await.stdout, "b");
        verified(&sandbox.wipe("task-end").await);
        // The second root was made with hard links of the first one's files.
        images(&bench).remove(&name("a")).unwrap();
        let (sandbox, plan) = start(&bench, json!({"envRef": "image:b"})).await;
        assert_eq!(sh(&sandbox, &plan, "cat /b").await.stdout, "b");
        verified(&sandbox.wipe("task-end").await);
        images(&bench).remove(&name("b")).unwrap();
        assert!(kept(&bench).is_empty(), "{:?}", kept(&bench));
        let error = images(&bench).remove(&name("b")).unwrap_err();
        assert!(matches!(error, ImageError::Unknown(_)), "{error}");
        // A plan that was made before is not run on what is gone.
        let stale = provision(&bench.host, &plan, &[]).await.unwrap_err();
        assert!(stale.message.contains("image"), "{stale}");
    });
}

#[test]
fn an_image_stays_while_a_template_is_made_of_it_and_goes_with_the_last() {
    with_bench(|bench| async move {
        import(&bench, &[tools()], json!({}), "template/own");
        import(&bench, &[layer(&[file("b", "b")])], json!({}), "other");
        let (store, user, ports) = (images(&bench), TemplateUser::User, Vec::new());
        let begin = TemplateProgram { start: None, ready: None, ports, user, mem_mb: None };
        let named = |text: &str| TemplateName::parse(text).unwrap();
        let left = || (store.list().unwrap().len(), templates(bench.state.path()).unwrap().len());
        for (one, of) in [("own", "template/own"), ("second", "template/own"), ("third", "other")] {
            store.template_add(&named(one), of, &begin).unwrap();
        }
        for (image, of) in [("template/own", "made of: own, second;"), ("other", "of: third;")] {
            let refused = store.image_remove(&name(image)).unwrap_err().to_string();
            assert!(refused.contains(of), "{refused}");
        }
        // The image that was built for one template is what another is made of.
        for (one, after) in [("own", (2, 2)), ("second", (2, 1)), ("third", (2, 0))] {
            assert!(store.template_remove(&named(one)).unwrap());
            assert_eq!(left(), after, "{one}");
        }
        store.template_add(&named("own"), "template/own", &begin).unwrap();
        assert!(store.template_remove(&named("own")).unwrap());
        assert_eq!(left(), (1, 0), "what is built for a template goes with it");
        store.image_remove(&name("other")).unwrap();
    });
}

#[test]
fn steps_are_built_in_sandboxes_and_their_layers_add_up() {
    with_bench(|bench| async move {
        let digest = import(
            &bench,
            &[tools(), layer(&[file("old", "x")])],
            json!({"Env": ["PATH=/bin"]}),
            "base",
        );
        let context = tempfile::tempdir().unwrap();
        support::write(&context.path().join("src/main.txt"), "source");
        support::write(&context.path().join("src/sub/more.txt"), "more");
        let text = "from: base\nlimits: {memMB: 128, diskMB: 64}\ntimeout_ms: 20000\nsteps:\n\
            - workdir: /app\n- copy: {from: src, to: /app/src}\n- env: {WHO: built}\n\
            - run: 'cat src/main.txt > joined && echo $WHO >> joined && rm /old && mkdir own && chmod 711 own'\n\
            - run: [/bin/sh, -c, 'echo two > two; ls /dev/null; [ -e /.cofferdam/agent ]']\n\
            - user: app\n- cmd: [cat, joined]\n";
        let file = ImageFile::parse("steps", text).unwrap();
        let mut steps = 0;
        let made = build(&images(&bench), None, &file, context.path(), &name("made"), |note| {
            steps += usize::from(matches!(note, cofferdam_sandbox::image::BuildNote::Step { .. }));
        })
        .await
        .unwrap();
        assert_eq!((steps, made.layers), (7, 6));
        let (sandbox, plan) = start(&bench, json!({"envRef": "image:made"})).await;
        let script = "pwd; cat joined; cat two; cat src/sub/more.txt; ls -a; ls -d /old; id -u";
        let said = sh(&sandbox, &plan, script).await;
        assert_eq!(
            said.stdout, "/app\nsourcebuilt\ntwo\nmore.\n..\njoined\nown\nsrc\ntwo\n1001\n",
            "{}",
            said.stderr
        );
        verified(&sandbox.wipe("task-end").await);
        // The base is as it was, and no root without a name is left.
        let again = images(&bench).resolve("base").unwrap();
        assert!(again.pinned.ends_with(&digest) && again.root.join("old").exists());
        assert_eq!(kept(&bench).iter().filter(|p| p.starts_with("roots")).count(), 2);
    });
}

#[test]
fn a_step_that_fails_names_itself_and_makes_no_image() {
    with_bench(|bench| async move {
        import(&bench, &[tools()], json!({"Env": ["PATH=/bin"]}), "base");
        let context = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", context.path().join("out")).unwrap();
        for (steps, part) in [
            ("- run: 'echo x > /x'\n- run: exit 3", "step 2 (run exit 3) failed: exit status 3"),
            ("- copy: {from: out, to: /x}", "leads out"),
            ("- copy: {from: none, to: /x}", "none"),
            ("- user: who", "who"),
            ("- run: 'cat < /dev/tcp/127.0.0.1/1'", "step 1"),
        ] {
            let file = ImageFile::parse("x", &format!("from: base\nsteps:\n{steps}\n")).unwrap();
            let error =
                build(&images(&bench), None, &file, context.path(), &name("new"), |_| {}).await;
            let error = error.unwrap_err().to_string();
            assert!(error.contains(part), "{steps}: {error}");
        }
        let file = ImageFile::parse("x", "from: missing\n").unwrap();
        let error = build(&images(&bench), None, &file, context.path(), &name("new"), |_| {}).await;
        assert!(matches!(error.unwrap_err(), ImageError::Unknown(_)));
        assert_eq!(images(&bench).list().unwrap().len(), 1);
        assert_eq!(kept(&bench).iter().filter(|p| p.starts_with("roots")).count(), 1);
    });
}

#[test]
fn an_image_comes_from_a_registry_and_is_pinned() {
    with_bench(|bench| async move {
        let (digest, blobs) = image(&[tools()], json!({"Env": ["PATH=/bin"]}));
        let mut named: Vec<(String, Vec<u8>)> =
            blobs.into_iter().map(|b| (format!("sha256:{}", digest_bytes(&b)), b)).collect();
        let addr = serve("1.0", &digest, named.clone());
        let reference = format!("{addr}/team/tool:1.0");
        let got = images(&bench).pull(&reference, None).await.unwrap();
        assert_eq!(
            (got.name.as_str(), got.digest.to_string()),
            (reference.as_str(), digest.clone())
        );
        let (sandbox, plan) = start(&bench, json!({"envRef": format!("image:{reference}")})).await;
        assert_eq!(sh(&sandbox, &plan, "echo pulled").await.stdout, "pulled\n");
        assert!(sandbox.effective().image.ends_with(&digest));
        verified(&sandbox.wipe("task-end").await);
        // By digest; and what is not there, or is something else, is no image.
        let pinned = format!("{addr}/team/tool@sha256:{digest}");
        images(&bench).pull(&pinned, Some(&name("pinned"))).await.unwrap();
        let error = images(&bench).pull(&format!("{addr}/team/tool:2"), None).await.unwrap_err();
        assert!(matches!(error, ImageError::Registry { .. }), "{error}");
        // A registry that answers with another layer than its manifest names.
        named[0].1[600] ^= 1;
        let addr = serve("1.0", &digest, named);
        let other = Images::open(bench.shared.path()).unwrap();
        let error = other.pull(&format!("{addr}/team/tool:1.0"), Some(&name("forged"))).await;
        assert!(error.is_err() && other.list().unwrap().is_empty());
        assert_eq!(images(&bench).list().unwrap().len(), 2);
    });
}
