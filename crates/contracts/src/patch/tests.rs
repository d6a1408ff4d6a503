use super::*;
use serde_json::json;

fn id(bytes: &[u8]) -> GitId {
    GitId::of_blob(ObjectFormat::Sha1, bytes)
}

fn base() -> GitId {
    GitId::parse(&"a1".repeat(20)).unwrap()
}

fn side(bytes: &[u8]) -> Option<Side> {
    Some(Side::of(FileMode::Plain, ObjectFormat::Sha1, bytes))
}

fn patch(files: Vec<(&[u8], Option<Side>, Option<Side>)>) -> Patch {
    let file =
        |(path, before, after)| PatchFile { path: PatchPath::new(path).unwrap(), before, after };
    let files = files.into_iter().map(file).collect();
    Patch {
        schema_version: 1,
        base: base(),
        files,
        refused: Vec::new(),
        unlisted: 0,
        text: digest_bytes(b""),
    }
}

/// Path, content before and after.
type Told<'a> = (&'a [u8], Option<&'a [u8]>, Option<&'a [u8]>);

/// What git in a sandbox would say of these files.
fn told(files: &[Told<'_>]) -> (Vec<u8>, Vec<u8>) {
    let none = ObjectFormat::Sha1.none();
    let (mut raw, mut batch) = (Vec::new(), Vec::new());
    for (path, before, after) in files {
        let mode = |side: &Option<&[u8]>| if side.is_some() { "100644" } else { "000000" };
        let name = |side: &Option<&[u8]>| side.map_or(none.clone(), |bytes| id(bytes).to_string());
        let status = match (before, after) {
            (None, _) => "A",
            (_, None) => "D",
            _ => "M",
        };
        raw.extend(
            format!(
                ":{} {} {} {} {status}\0",
                mode(before),
                mode(after),
                name(before),
                name(after)
            )
            .bytes(),
        );
        raw.extend(*path);
        raw.push(0);
        for bytes in [before, after].into_iter().flatten() {
            batch.extend(format!("{} blob {}\n", id(bytes), bytes.len()).bytes());
            batch.extend(*bytes);
            batch.push(b'\n');
        }
    }
    (raw, batch)
}

fn read(files: &[Told<'_>]) -> (Patch, Vec<u8>, String) {
    let (raw, batch) = told(files);
    let changed = changes(&raw, ObjectFormat::Sha1).unwrap();
    contents(&batch, &changed, &base()).unwrap()
}

#[test]
fn ids_are_gits_own() {
    assert_eq!(id(b"").as_str(), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
    assert_eq!(id(b"hello\n").as_str(), "ce013625030ba8dba906f756967f9e9ca394464a");
    for bad in ["", "HEAD", &"0".repeat(40), &"A".repeat(40), &"a".repeat(39), &"a".repeat(41)] {
        assert!(GitId::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_path_has_one_text_and_one_shown_form() {
    for (bytes, text, shown) in [
        (&b"a/b.txt"[..], "a/b.txt", "a/b.txt"),
        (b"a\tb\n", "a%09b%0A", "\"a\\tb\\n\""),
        (b"-x \"q\"\\", "-x%20%22q%22%5C", "\"-x \\\"q\\\"\\\\\""),
        (b"\xff\xc3\xa9", "%FF%C3%A9", "\"\\377\\303\\251\""),
    ] {
        let path = PatchPath::new(bytes).unwrap();
        assert_eq!(String::from(path.clone()), text);
        assert_eq!(path.shown(), shown);
        assert_eq!(PatchPath::try_from(text.to_owned()).unwrap(), path);
    }
    for bad in ["", "%61", "%ff", "%2", "a b", "a%00", "%"] {
        assert!(PatchPath::try_from(bad.to_owned()).is_err(), "{bad}");
    }
}

#[test]
fn hooks_git_directories_submodules_and_heads_are_refused_by_name() {
    for (path, why) in [
        ("/etc/passwd", PathRefusal::Outside),
        ("a//b", PathRefusal::Outside),
        ("../x", PathRefusal::Outside),
        ("a/../b", PathRefusal::Outside),
        ("a/./b", PathRefusal::Outside),
        ("a/", PathRefusal::Outside),
        ("a\\..\\b", PathRefusal::Outside),
        ("C:/x", PathRefusal::Outside),
        (".git/config", PathRefusal::GitDir),
        (".GIT/hooks/x", PathRefusal::GitDir),
        ("sub/.Git/config", PathRefusal::GitDir),
        (".git", PathRefusal::GitDir),
        (".git./config", PathRefusal::GitDir),
        (".git /config", PathRefusal::GitDir),
        ("git~1/config", PathRefusal::GitDir),
        (".git::$INDEX_ALLOCATION/x", PathRefusal::GitDir),
        (".g\u{200c}it/config", PathRefusal::GitDir),
        ("a\\.git\\config", PathRefusal::GitDir),
        (".gitmodules", PathRefusal::Submodule),
        ("sub/.GITMODULES", PathRefusal::Submodule),
        ("gitmod~1", PathRefusal::Submodule),
        ("gi7eba~1", PathRefusal::Submodule),
        ("GI7EB~12", PathRefusal::Submodule),
        ("gi7e~100", PathRefusal::Submodule),
        ("fixture/HEAD", PathRefusal::Repository),
        ("hooks/post-checkout", PathRefusal::Hook),
        (".husky/pre-commit", PathRefusal::Hook),
        ("tools/hooks/update", PathRefusal::Hook),
    ] {
        assert_eq!(why_refused(path.as_bytes()), Some(why), "{path}");
        let patch = patch(vec![(path.as_bytes(), None, side(b"x"))]);
        assert!(matches!(patch.check(), Err(PatchError::Refused { .. })), "{path}");
    }
    let long = "a/".repeat(2_048) + "b";
    assert_eq!(why_refused(long.as_bytes()), Some(PathRefusal::Outside));
    for fine in [
        ".gitignore",
        ".github/x",
        "src/hooks/use.ts",
        "a b",
        "-x",
        "...",
        "update",
        ".gitattributes",
        "gi~1",
        "gi7xb~12",
    ] {
        assert_eq!(why_refused(fine.as_bytes()), None, "{fine}");
    }
}

#[test]
fn links_and_submodules_are_listed_and_never_content() {
    let none = ObjectFormat::Sha1.none();
    let one = id(b"x");
    let raw = format!(
        ":000000 120000 {none} {one} A\0link\0:000000 160000 {none} {one} A\0sub\0\
         :120000 100644 {one} {one} T\0was\0:100644 100755 {one} {one} M\0run\0"
    );
    let changed = changes(raw.as_bytes(), ObjectFormat::Sha1).unwrap();
    assert_eq!(changed.files.len(), 1);
    let refused: Vec<_> = changed.refused.iter().map(|one| (one.path.shown(), one.why)).collect();
    let wanted =
        [("link", PathRefusal::Link), ("sub", PathRefusal::Submodule), ("was", PathRefusal::Link)];
    assert_eq!(refused, wanted.map(|(path, why)| (path.to_owned(), why)));
}

#[test]
fn what_is_opened_is_what_was_read() {
    let files: [Told<'_>; 4] = [
        (b"added\t", None, Some(b"new\n")),
        (b"changed", Some(b"a\nb\n"), Some(b"a\nc\n")),
        (b"empty", None, Some(b"")),
        (b"gone", Some(b"old\r\n"), None),
    ];
    let (patch, bin, text) = read(&files);
    let index = canonical::canonical(&patch).unwrap();
    let opened = VerifiedPatch::open(&index, bin.clone(), text.clone().into_bytes()).unwrap();
    let contents: Vec<Option<&[u8]>> = opened.files().map(|(_, bytes)| bytes).collect();
    assert_eq!(contents, files.map(|(_, _, after)| after));
    // Any other byte anywhere is refused.
    for at in 0..bin.len() {
        let mut other = bin.clone();
        other[at] ^= 1;
        assert!(VerifiedPatch::open(&index, other, text.clone().into_bytes()).is_err());
    }
    let more = [bin.as_slice(), b"x"].concat();
    assert!(VerifiedPatch::open(&index, more, text.clone().into_bytes()).is_err());
    assert_eq!(VerifiedPatch::open(&index, bin.clone(), b"other".to_vec()), Err(PatchError::Text));
    let spaced = [b" ", index.as_slice()].concat();
    assert_eq!(VerifiedPatch::open(&spaced, bin, text.into_bytes()), Err(PatchError::NotCanonical));
}

#[test]
fn a_patch_is_in_order_without_doubles_and_within_its_bounds() {
    let of = |paths: &[&str]| {
        patch(paths.iter().map(|path| (path.as_bytes(), None, side(b"x"))).collect()).check()
    };
    assert_eq!(of(&["a", "b"]), Ok(()));
    for bad in [["b", "a"], ["a", "a"], ["a", "a/b"]] {
        assert!(matches!(of(&bad), Err(PatchError::Order(_))), "{bad:?}");
    }
    // A file that becomes a directory is removed first.
    let moved = patch(vec![(b"a", side(b"x"), None), (b"a/b", None, side(b"x"))]);
    assert_eq!(moved.check(), Ok(()));
    assert!(matches!(patch(vec![(b"a", None, None)]).check(), Err(PatchError::Unchanged(_))));
    let mut large = side(b"x").unwrap();
    large.size = MAX_FILE_BYTES + 1;
    let large = patch(vec![(b"a", None, Some(large))]).check();
    assert!(matches!(large, Err(PatchError::TooLarge { .. })), "{large:?}");
    let many: Vec<String> = (0..=MAX_FILES).map(|n| format!("{n:05}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(matches!(of(&many), Err(PatchError::TooLarge { .. })));
}

#[test]
fn a_lie_of_git_in_the_sandbox_is_found() {
    let files: [Told<'_>; 1] = [(b"a", None, Some(b"hello\n"))];
    let (raw, batch) = told(&files);
    let changed = changes(&raw, ObjectFormat::Sha1).unwrap();
    let lie = String::from_utf8(batch.clone()).unwrap().replace("hello", "jello");
    assert!(contents(lie.as_bytes(), &changed, &base()).is_err());
    assert!(contents(b"", &changed, &base()).is_err());
    let size = |line: &str| fitting(line.as_bytes(), changed.clone()).map(|(_, whole)| whole);
    let one = id(b"hello\n");
    assert_eq!(size(&format!("{one} blob 6\n")), Ok(u64::try_from(batch.len()).unwrap()));
    for bad in [
        format!("{one} missing\n"),
        format!("{one} tree 6\n"),
        format!("{one} blob 6\n{one} blob 6\n"),
        String::new(),
    ] {
        assert!(size(&bad).is_err(), "{bad}");
    }
}

#[test]
fn b6_what_does_not_fit_is_named_and_the_rest_is_kept() {
    let (one, none) = (id(b"hello\n"), "0".repeat(40));
    let line = |path: &str| format!(":000000 100644 {none} {one} A\0{path}\0");
    let raw: String = (0..MAX_FILES + 3).map(|n| line(&format!("{n:05}"))).collect();
    let changed = changes(raw.as_bytes(), ObjectFormat::Sha1).unwrap();
    assert_eq!((changed.files.len(), changed.refused.len(), changed.unlisted), (MAX_FILES, 3, 0));
    assert!(changed.refused.iter().all(|one| one.why == PathRefusal::Bounds));
    let raw: String = (0..2 * MAX_FILES + 5).map(|n| line(&format!("{n:05}"))).collect();
    assert_eq!(changes(raw.as_bytes(), ObjectFormat::Sha1).unwrap().unlisted, 5);
    // An answer that was cut has whole lines up to there.
    let cut = raw.as_bytes().get(..raw.len() - 4).unwrap();
    assert_eq!(whole_lines(cut).len(), raw.len() - line("00000").len());
    assert!(whole_lines(b"").is_empty() && whole_lines(b":x").is_empty());
    // A large file, and one whose sum with the others is too large.
    let (large, small) = (id(b"large"), id(b"small"));
    let raw = format!(
        ":000000 100644 {none} {large} A\0a\0:000000 100644 {none} {small} A\0b\0\
         :000000 100644 {none} {one} A\0c\0:160000 160000 {one} {one} M\0d\0\
         :000000 160000 {none} {one} A\0d\0"
    );
    let changed = changes(raw.as_bytes(), ObjectFormat::Sha1).unwrap();
    assert_eq!(changed.refused.len(), 1, "a path is refused once");
    let sizes = |small: u64, one_size: u64| {
        let most = MAX_FILE_BYTES + 1;
        format!(
            "{large} blob {most}\n{small_id} blob {small}\n{one} blob {one_size}\n",
            small_id = id(b"small")
        )
    };
    let (kept, whole) = fitting(sizes(7, 6).as_bytes(), changed.clone()).unwrap();
    let paths =
        |kept: &RawDiff| kept.refused.iter().map(|one| one.path.shown()).collect::<Vec<_>>();
    assert_eq!((kept.files.len(), paths(&kept)), (2, vec!["a".to_owned(), "d".to_owned()]));
    assert!(whole > 13 && whole < 200, "{whole}");
    let raw: String = (0..3).map(|n| format!(":000000 100644 {none} {one} A\0{n}\0")).collect();
    let three = changes(raw.as_bytes(), ObjectFormat::Sha1).unwrap();
    let (kept, _) = fitting(format!("{one} blob {MAX_FILE_BYTES}\n").as_bytes(), three).unwrap();
    assert_eq!((kept.files.len(), paths(&kept)), (2, vec!["2".to_owned()]));
}

#[test]
fn a_receipt_names_every_file_and_no_line_of_a_file_looks_like_one_of_ours() {
    let evil = b"x\nbranch main\n\x1b[2Kdiff:\n";
    let (patch, bin, text) = read(&[(b"a\nadded 100644", None, Some(evil))]);
    let index = canonical::canonical(&patch).unwrap();
    let opened = VerifiedPatch::open(&index, bin, text.into_bytes()).unwrap();
    let run = serde_json::from_value(json!(format!("rn_{}", "0".repeat(32)))).unwrap();
    let shown = receipt(
        &opened,
        &Target {
            run: &run,
            status: crate::run::RunStatus::Succeeded,
            task: "t\nask",
            repo: "/srv/r",
            branch: "b",
            message: None,
            tasks: &[],
        },
    );
    assert!(shown.contains(opened.digest.as_str()) && shown.contains(base().as_str()));
    assert!(
        shown.contains("  added 100644 24 bytes") && shown.contains("a\\nadded 100644"),
        "{shown}"
    );
    assert!(shown.contains("\n    +branch main\n") && !shown.contains('\u{1b}'), "{shown}");
    assert_eq!(shown.lines().filter(|line| line.starts_with("branch ")).count(), 1);
}
