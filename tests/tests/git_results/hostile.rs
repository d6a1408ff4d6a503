//! Tasks and repositories that want more than a patch may do.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use cofferdam_tests::programs::write_program;
use cofferdam_tests::text;
use serde_json::{Value, json};

use super::world::{World, git, git_in, said};

#[tokio::test(flavor = "multi_thread")]
async fn links_submodules_hooks_and_git_paths_are_refused_by_name() {
    let world = World::new();
    let before = world.state();
    for (script, path, why) in [
        ("ln -s /etc/passwd link", "link", "link"),
        ("mkdir d && ln -s ../.. d/up", "d/up", "link"),
        ("printf '[submodule \"x\"]\\n' >.gitmodules", ".gitmodules", "submodule"),
        (
            "mkdir sub && cd sub && git init -q && git -c user.name=t -c user.email=t commit -q --allow-empty -m x",
            "sub",
            "submodule",
        ),
        ("mkdir hooks && echo x >hooks/post-checkout", "hooks/post-checkout", "hook"),
        ("mkdir git~1 && echo x >git~1/config", "git~1/config", "git-directory"),
        (
            "mkdir -p bare/objects bare/refs && echo 'ref: refs/heads/x' >bare/HEAD",
            "bare/HEAD",
            "repository",
        ),
        ("printf x >'..\\x'", "\"..\\\\\\\\x\"", "outside"),
    ] {
        let run = world.done(&format!("{script}; cd /work; echo more >>README")).await;
        let refused = world.apply(&run, &["--yes"]);
        let words = said(&refused);
        assert_eq!(refused.status.code(), Some(1), "{script}: {words}");
        assert!(words.contains("refused") && words.contains(why), "{script}: {words}");
        assert!(words.contains(path) || path.starts_with('"'), "{script}: {words}");
        // The rest can still be read.
        assert!(said(&world.home.run(&["patch", &run])).contains("+more"), "{script}");
    }
    // Another spelling of git's directory is what git itself adds nowhere.
    let header = world.run("mkdir -p f/.GIT && echo x >f/.GIT/config").await;
    assert_ne!(header["status"], "succeeded", "{header}");
    assert!(header.to_string().contains("invalid path 'f/.GIT/config'"), "{header}");
    assert_eq!(world.state(), before);
    assert_eq!(world.up.get("/api/hitl/inbox").await.1, json!([]), "nobody was asked");
}

/// Edits below a submodule are in the patch, whether it was fetched or not, and its path says why `apply` refuses them.
#[tokio::test(flavor = "multi_thread")]
async fn b6_edits_below_a_submodule_are_not_lost() {
    let mut world = World::new();
    let (repo, library) = (world.repo(), world.beside("library"));
    fs::create_dir(&library).unwrap();
    git(&library, &["init", "-q"]);
    fs::write(library.join("kept"), "one\n").unwrap();
    git(&library, &["add", "."]);
    git(&library, &["commit", "-q", "-m", "one"]);
    let url = library.to_str().unwrap();
    git(&repo, &["-c", "protocol.file.allow=always", "submodule", "-q", "add", url, "sub dir"]);
    git(&repo, &["commit", "-q", "-m", "a submodule"]);
    world.base = git(&repo, &["rev-parse", "HEAD"]);
    let before = world.state();
    // Left alone, it changes nothing.
    let run = world.done("echo more >>README").await;
    let patch = world.home.run_json(&["patch", &run, "--json"]);
    assert_eq!(patch["refused"], json!([]), "{patch}");
    let fetched = "git init -q; git fetch -q /repo/.git/modules/sub* HEAD; git checkout -q FETCH_HEAD; echo two >>kept";
    for (script, paths, line) in [
        ("mkdir 'sub dir/a'; echo new >'sub dir/a/b'", "sub%20dir/a/b", "+new"),
        (&format!("cd 'sub dir'; {fetched}"), "sub%20dir/kept", " one"),
        ("cd 'sub dir'; git init -q; echo odd >odd", "sub%20dir/odd", "+odd"),
    ] {
        let run = world.done(script).await;
        let patch = world.home.run_json(&["patch", &run, "--json"]);
        let files = patch["files"].as_array().unwrap();
        let files: Vec<String> = files.iter().map(|file| text(file, "path")).collect();
        assert_eq!(files, [paths], "{script}");
        assert_eq!(
            patch["refused"],
            json!([{"path": "sub%20dir", "why": "submodule"}]),
            "{script}"
        );
        let words = said(&world.home.run(&["patch", &run]));
        assert!(words.contains(&format!("\n{line}\n")), "{script}: {words}");
        let refused = world.apply(&run, &["--yes"]);
        assert!(said(&refused).contains("sub dir (submodule)"), "{}", said(&refused));
    }
    assert_eq!(world.state(), before);
}

/// A link of the repository stays what it is: nothing is written through it.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_of_the_repository_leads_nowhere() {
    let mut world = World::new();
    let (repo, outside) = (world.repo(), world.beside("outside"));
    fs::create_dir(&outside).unwrap();
    symlink(&outside, repo.join("out")).unwrap();
    git(&repo, &["add", "out"]);
    git(&repo, &["commit", "-q", "-m", "a link"]);
    world.base = git(&repo, &["rev-parse", "HEAD"]);
    let before = world.state();
    // The link becomes a directory in the sandbox: to git that is a removed link and a file.
    let run = world.done("rm out && mkdir out && echo owned >out/file").await;
    let refused = world.apply(&run, &["--yes"]);
    assert!(said(&refused).contains("out (link)"), "{}", said(&refused));
    // Left alone it stays a link in the result.
    let run = world.done("echo x >>README").await;
    let commit = world.applied(&run, "result");
    assert!(git(&repo, &["ls-tree", &commit, "out"]).starts_with("120000"));
    git(&repo, &["branch", "-q", "-D", "result"]);
    assert_eq!(world.state(), before);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

/// Programs that a repository names for nearly every command of git.
fn arm(repo: &Path, canary: &Path) {
    let program = repo.join(".git/evil.sh");
    let script = format!("#!/bin/sh\ntouch {}/$$\ncat 2>/dev/null\n", canary.display());
    write_program(&program, &script);
    let evil = program.to_str().unwrap();
    let hooks = repo.join(".git/hooks");
    let _ = fs::create_dir(&hooks);
    for hook in [
        "reference-transaction",
        "post-index-change",
        "post-checkout",
        "pre-auto-gc",
        "post-commit",
        "pre-commit",
        "applypatch-msg",
        "pre-applypatch",
        "post-applypatch",
        "post-rewrite",
        "update",
    ] {
        fs::copy(&program, hooks.join(hook)).unwrap();
    }
    fs::write(
        repo.join(".git/more"),
        format!("[core]\n\tfsmonitor = {evil}\n\thooksPath = {}\n", hooks.display()),
    )
    .unwrap();
    let included = format!("includeIf.gitdir:{}/.path", repo.join(".git").display());
    let more = repo.join(".git/more");
    for (name, value) in [
        ("core.fsmonitor", evil),
        ("core.sshCommand", evil),
        ("core.pager", evil),
        ("core.editor", evil),
        ("core.alternateRefsCommand", evil),
        ("filter.evil.clean", evil),
        ("filter.evil.smudge", evil),
        ("filter.evil.process", evil),
        ("filter.evil.required", "true"),
        ("diff.evil.textconv", evil),
        ("diff.evil.command", evil),
        ("diff.external", evil),
        ("merge.evil.driver", evil),
        ("gpg.program", evil),
        ("commit.gpgSign", "true"),
        ("uploadpack.packObjectsHook", evil),
        ("credential.helper", evil),
        ("remote.origin.url", "ext::sh -c true"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.partialclonefilter", "blob:none"),
        ("protocol.ext.allow", "always"),
        ("alias.rev-parse", format!("!{evil}").as_str()),
        (included.as_str(), more.to_str().unwrap()),
    ] {
        git(repo, &["config", name, value]);
    }
    fs::create_dir_all(repo.join(".git/info")).unwrap();
    fs::write(repo.join(".git/info/attributes"), "* filter=evil diff=evil merge=evil\n").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_repository_names_runs_on_the_host_of_the_worker_or_of_who_applies() {
    let mut world = World::new();
    let (repo, canary) = (world.repo(), world.beside("canary"));
    fs::write(repo.join(".gitattributes"), "* filter=evil diff=evil\n").unwrap();
    git(&repo, &["add", ".gitattributes"]);
    git(&repo, &["commit", "-q", "-m", "attributes"]);
    world.base = git(&repo, &["rev-parse", "HEAD"]);
    fs::create_dir(&canary).unwrap();
    arm(&repo, &canary);
    let count = || fs::read_dir(&canary).unwrap().count();
    // The trap works: git as everybody uses it runs the repository's programs.
    git_in(&repo, &["status"], b"");
    assert!(count() > 0, "nothing was armed");
    fs::remove_dir_all(&canary).unwrap();
    fs::create_dir(&canary).unwrap();
    // The task arms its own copy, too.
    let run = world
        .done("echo x >>README; git config core.fsmonitor 'touch /work/ran; false'; git config filter.evil.clean 'tr a-z A-Z'")
        .await;
    let commit = world.applied(&run, "result");
    let done = world.apply(&run, &["--yes", "--branch", "result"]);
    assert!(done.status.success(), "{}", said(&done));
    assert_eq!(count(), 0, "a program of the repository ran");
    let shown = std::process::Command::new("git")
        .args(["-c", "core.fsmonitor=false", "cat-file", "blob", &format!("{commit}:README")])
        .current_dir(&repo)
        .output()
        .unwrap();
    assert_eq!(shown.stdout, b"one\ntwo\nthree\nx\n");
    let names = world.home.run(&["patch", &run, "--json"]);
    assert!(!said(&names).contains("ran"), "{}", said(&names));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_whose_directories_lead_out_or_never_end_is_refused() {
    let world = World::new();
    let run = world.done("echo x >>README").await;
    let (repo, outside) = (world.repo(), world.beside("outside"));
    fs::create_dir(&outside).unwrap();
    let refused = |branch: &str, why: &str| {
        let refused = world.apply(&run, &["--yes", "--branch", branch]);
        assert!(said(&refused).contains(why), "{why}: {}", said(&refused));
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        assert_eq!(world.branch(branch), None);
    };
    symlink(&outside, repo.join(".git/refs/heads/dir")).unwrap();
    refused("dir/x", "is a symbolic link");
    fs::remove_file(repo.join(".git/refs/heads/dir")).unwrap();
    let fan =
        (0..=255).map(|n| repo.join(format!(".git/objects/{n:02x}"))).find(|dir| !dir.exists());
    let fan = fan.unwrap();
    symlink(&outside, &fan).unwrap();
    refused("b", "is a symbolic link");
    fs::remove_file(fan).unwrap();
    nix::unistd::mkfifo(&repo.join(".git/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    git(&repo, &["config", "include.path", repo.join(".git/pipe").to_str().unwrap()]);
    let refused = world.apply(&run, &["--yes", "--branch", "b"]);
    assert!(said(&refused).contains("git did not end within"), "{}", said(&refused));
}

/// A git of the task's own may say whatever it wants: what is not a patch is refused, what is one is what it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_git_that_lies_is_found_or_says_only_what_could_have_been_done() {
    let world = World::new();
    let before = world.state();
    let fake = |said: &str| {
        let script = format!(
            "mkdir /tmp/bin && cat >/tmp/bin/git <<'EOF'\n#!/bin/sh\ncase \"$*\" in\n{said}\n\
             *) exec /usr/bin/git \"$@\";;\nesac\nEOF\nchmod +x /tmp/bin/git; echo x >>README"
        );
        let mut recipe: Value = serde_json::from_str(&world.recipe(&script)).unwrap();
        // The task chooses where its git is looked for.
        recipe["plan"]["tasks"][0]["build"] =
            json!({"run": "true", "env": {"PATH": "/tmp/bin:/usr/bin:/bin"}});
        recipe.to_string()
    };
    let one = "ce013625030ba8dba906f756967f9e9ca394464a";
    let none = "0".repeat(40);
    let raw = |path: &str| {
        format!(
            "diff-tree*-z*) printf ':000000 100644 {none} {one} A\\0{path}\\0';;\ndiff-tree*) printf ':000000 100644 {none} {one} A\\tx\\n';;"
        )
    };
    let size = format!("*batch-check*) printf '{one} blob 6\\n';;");
    let batch = format!("*--batch*) printf '{one} blob 6\\nhello\\n\\n';;");
    let honest = format!("{}\n{size}\n{batch}", raw("../../etc/cron.d/x"));
    let (mut refused, mut failed) = (0, 0);
    for (said_by, why) in [
        (honest, "outside"),
        (
            format!("{}\n{size}\n*--batch*) printf '{one} blob 6\\njello\\n\\n';;", raw("x")),
            "does not have its id",
        ),
        (
            format!("{}\n{size}\n*--batch*) printf '{one} blob 99\\nhello\\n\\n';;", raw("x")),
            "answer",
        ),
        (format!("{}\n*batch-check*) printf '{one} blob 1073741824\\n';;", raw("x")), "x (bounds)"),
        ("diff-tree*-z*) printf 'no diff';;".to_owned(), "git in the sandbox answered"),
        ("diff-tree*-z*) cat /dev/zero | head -c 30000000;;".to_owned(), "answered an empty line"),
        // A change of a file that the base does not have so: the target says what it has.
        (
            format!(
                "diff-tree*-z*) printf ':100644 100644 {one} e69de29bb2d1d6434b8b29ae775ad8c2e48c5391 M\\0README\\0';;\n*batch-check*) printf '{one} blob 6\\ne69de29bb2d1d6434b8b29ae775ad8c2e48c5391 blob 0\\n';;\n*--batch*) printf '{one} blob 6\\nhello\\n\\ne69de29bb2d1d6434b8b29ae775ad8c2e48c5391 blob 0\\n\\n';;"
            ),
            "does not have what the patch changes",
        ),
    ] {
        let run = world.up.run_recipe(&fake(&said_by), json!({}), json!({})).await;
        let run = text(&run, "runId");
        let header = world.up.wait_terminal(&run).await;
        if header["status"] == "succeeded" {
            let words = said(&world.apply(&run, &["--yes"]));
            assert!(words.contains(why), "{why}: {words}");
            refused += 1;
        } else {
            let shown = said(&world.home.run(&["show", &run, "--steps"]));
            assert!(format!("{header}{shown}").contains(why), "{why}: {header} {shown}");
            failed += 1;
        }
    }
    assert!(refused >= 2 && failed >= 4, "{refused} {failed}");
    assert_eq!(world.state(), before);
}
