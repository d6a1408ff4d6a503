//! The recipes of `examples/` are what people begin with: they have nothing that the linter finds, and an editor knows their schema.

use std::fs;
use std::path::Path;

use cofferdam_contracts::lint::lint;

const SCHEMA: &str = "# yaml-language-server: $schema=";

#[test]
fn the_examples_have_no_findings_and_name_the_schema_beside_them() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let below = |dir: &Path| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut count = 0;
    for path in below(&directory).chain(below(&directory.join("projects"))) {
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let schema = text.lines().next().and_then(|line| line.strip_prefix(SCHEMA));
        let schema =
            schema.unwrap_or_else(|| panic!("{}: begin with `{SCHEMA}..`", path.display()));
        let beside = path.parent().unwrap();
        assert!(beside.join(schema).is_file(), "{}: {schema} is not there", path.display());
        let report = lint(&text);
        assert_eq!(report.findings, vec![], "{}", path.display());
        assert!(report.recipe.is_some());
        count += 1;
    }
    assert!(count >= 22, "only {count} examples were found");
}
