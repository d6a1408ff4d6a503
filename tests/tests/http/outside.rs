//! The OpenAPI document as a program of others reads it: schemathesis makes requests of it, and holds what
//! the server answers against it.

use std::process::Command;

use cofferdam_server::openapi;
use cofferdam_tests::not_run::not_run;
use cofferdam_tests::{Home, repository};

/// Examples of each operation beside those that its schema's own edges give: half a minute for all of them.
const EXAMPLES: &str = "2";
/// Webhooks with addresses of chance would be sent to.
const LEFT_OUT: &str = "/api/webhooks";
/// What hangs is ended; it takes a tenth of this.
const LIMIT_S: &str = "300";

#[tokio::test]
async fn e7_schemathesis_finds_no_answer_that_the_document_does_not_declare() {
    let program = repository().join("target/tools/bin/schemathesis");
    if !program.exists() {
        return not_run("schemathesis", "scripts/setup could not install it with pip");
    }
    let home = Home::new();
    let server = home.up();
    let document = repository().join("docs/openapi.json");
    let output = Command::new("timeout")
        .args(["--kill-after=5", LIMIT_S])
        .arg(program)
        .args(["run", document.to_str().unwrap(), "--url", &server.url])
        .args(["-H", &format!("Authorization: Bearer {}", server.key)])
        .args(["--phases", "coverage,fuzzing", "--max-examples", EXAMPLES, "--seed", "1"])
        // What a schema cannot say is refused too: an address that is no URL, a value that its setting does not take.
        .args(["--checks", "all", "--exclude-checks", "positive_data_acceptance"])
        .args(["--exclude-path-regex", &format!("^{LEFT_OUT}"), "--request-timeout", "60"])
        .args(["--no-shrink", "--continue-on-failure", "--suppress-health-check", "all"])
        .args(["--warnings", "off"])
        .current_dir(home.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    // It has really asked: every operation, and the edges of each.
    let document = openapi::document();
    let paths = document["paths"].as_object().unwrap().iter();
    let asked = paths.filter(|(path, _)| !path.starts_with(LEFT_OUT));
    let operations: usize = asked.map(|(_, methods)| methods.as_object().unwrap().len()).sum();
    assert!(said.contains(&format!("Tested: {operations}\n")), "{operations}: {said}");
    let generated = said.lines().find_map(|line| line.trim().split_once(" generated, "));
    let generated: usize = generated.unwrap().0.parse().unwrap();
    assert!(generated > 1_000, "{said}");
}
