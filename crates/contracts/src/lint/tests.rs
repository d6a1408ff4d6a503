use super::*;

/// Findings as `line:column code message`.
fn findings(text: &str) -> Vec<String> {
    let of = |finding: &LintFinding| {
        let (line, column) = (finding.line.unwrap_or(0), finding.column.unwrap_or(0));
        format!("{line}:{column} {} {}", finding.code.as_str(), finding.message)
    };
    lint(text).findings.iter().map(of).collect()
}

/// The places and codes alone.
fn places(text: &str) -> Vec<String> {
    let place = |finding: String| finding.splitn(3, ' ').take(2).collect::<Vec<_>>().join(" ");
    findings(text).into_iter().map(place).collect()
}

/// A recipe of one task with these fields, each line of them at its own.
fn task(fields: &str) -> String {
    let fields: String = fields.lines().map(|line| format!("      {line}\n")).collect();
    format!("id: a\nv: \"1\"\nplan:\n  tasks:\n    - name: t\n{fields}")
}

#[test]
fn a_recipe_that_is_as_it_should_be_has_no_findings() {
    for text in [
        task("exec: {run: make, timeout: 1m}"),
        task("exec: {run: make}\nprofile: rust"),
        task("value: x"),
        include_str!("../../../../examples/tests.yaml").to_owned(),
    ] {
        assert_eq!(findings(&text), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn every_part_that_does_not_parse_is_found_at_its_place() {
    let text = "\
id: a
v: \"1\"
titel: x
caps: {concurency: 3}
plan:
  gates: y
  tasks:
    - name: one
      exec:
        rnu: make
      limits: {cpu: 1}
    - name: two
      value: x
    - {name: three, exec: {run: make, timout: 1m}}
    - name: four
      exec: {run: make}
      limits:
        cpu: many
form: {type: object}
";
    let places = places(text);
    let wanted = ["3:1", "4:8", "6:3", "10:9", "14:39", "18:14"];
    let wanted: Vec<String> = wanted.iter().map(|at| format!("{at} recipe_invalid")).collect();
    for at in &wanted {
        assert!(places.contains(at), "{at} of {places:?}: {:?}", findings(text));
    }
    assert_eq!(places.len(), wanted.len(), "{:?}", findings(text));
}

#[test]
fn what_cannot_be_blanked_out_ends_the_search_with_what_was_found() {
    for (text, at) in [
        ("id: [", "1:"),
        ("v: \"1\"\nplan: {tasks: [{name: a, value: x}]}\n", ""),
        ("id: A B\nv: \"1\"\nplan: {tasks: [{name: a, value: x}]}\n", "1:5"),
        ("id: a\nv: \"1\"\nplan: {tasks: [{nam: a}, {name: b, valu: x}]}\n", "3:17"),
        ("- a\n- b\n", "1:1"),
        ("", ""),
    ] {
        let found = findings(text);
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        assert!(found[0].starts_with(at), "{text}: {found:?}");
    }
    let many: String = (0..100).map(|n| format!("x{n}: 1\n")).collect();
    assert_eq!(findings(&format!("id: a\n{many}")).len(), 20);
    let long = format!("id: a # {}", "x".repeat(crate::recipe::MAX_RECIPE_BYTES));
    assert!(findings(&long)[0].contains("larger than"));
}

#[test]
fn every_part_that_does_not_fit_is_found_at_its_place() {
    let text = "\
id: a
v: \"1\"
form: {type: object, properties: {w: {type: string}}}
caps: {concurrency: 0}
plan:
  tasks:
    - name: one
      exec: {run: make, timeout: 5 minutes}
    - name: two
      exec:
        run: grep ${form.w} notes
        timeout: 1m
    - name: three
      artifacts: [ok, ../x]
      exec: {run: x, timeout: 1m}
";
    let found = findings(text);
    let errors: Vec<&String> =
        found.iter().filter(|text| text.contains("recipe_invalid")).collect();
    for (at, word) in [
        ("4:1 ", "concurrency must be 1"),
        ("8:25 ", "plan.tasks[0].exec.timeout: \"5 minutes\""),
        ("11:9 ", "stands unquoted in shell text: write `${form.w | sh}`"),
        ("14:", "plan.tasks[2].artifacts[1]: \"../x\" leaves the working directory"),
    ] {
        let is_it = |text: &&&String| text.starts_with(at) && text.contains(word);
        assert!(errors.iter().any(|text| is_it(&text)), "{at}{word}: {found:#?}");
    }
    assert_eq!(errors.len(), 4, "{found:#?}");
}

#[test]
fn a_name_that_nothing_fills_in_is_an_error_where_it_stands() {
    let closed = "form: {type: object, additionalProperties: false, required: [w], properties: {w: {type: string}}}\n";
    let of = |fields: &str| {
        let text = format!("{}{closed}", task(fields));
        let mut found = findings(&text);
        found.retain(|text| !text.contains("input-unused"));
        found
    };
    for (fields, word) in [
        ("exec: {run: make, timeout: 1m, env: {A: \"${HOME}\"}}", "unknown name \"HOME\""),
        ("exec: {run: make, timeout: 1m, env: {A: \"${form.x}\"}}", "the recipe takes w"),
        ("exec: {run: make, timeout: 1m, env: {A: \"${item}\"}}", "within a task with `each`"),
        (
            "each: [\"${item}\"]\nexec: {run: 'make ${item}', timeout: 1m}",
            "within a task with `each`",
        ),
        ("each: ${range(form.n)}\nexec: {run: 'make ${item}', timeout: 1m}", "form.n"),
        ("exec: {run: make, timeout: 1m, env: {A: \"${form.w\"}}", "without `}`"),
    ] {
        let found = of(fields);
        assert_eq!(found.len(), 1, "{fields}: {found:#?}");
        assert!(found[0].contains(" recipe_invalid ") && found[0].contains(word), "{found:?}");
        assert!(!found[0].starts_with("0:"), "it has a place: {found:?}");
    }
    // Names of pipelines, and a shell's own in an escape.
    let good = "exec: {run: \"echo $${HOME}\", timeout: 1m, env: {A: \"${form.w}\"}}";
    assert_eq!(of(good), Vec::<String>::new());
    let open = task("exec: {run: make, timeout: 1m, env: {A: \"${form.x}\"}}");
    let open = format!("{open}form: {{type: object, properties: {{w: {{}}}}}}\n");
    assert!(findings(&open).iter().any(|text| text.contains("input-undeclared")), "{open}");
}

#[test]
fn a_start_with_the_defaults_is_tried() {
    let names = task("each: [1, 2]\nexec: {run: 'echo ${item}', timeout: 1m}");
    let found = findings(&names);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("two tasks are named"), "{found:?}");
    let many = task("each: ${range(300)}\nexec: {run: 'echo ${item}', timeout: 1m}")
        .replace("name: t", "name: t-${item}");
    assert!(findings(&many)[0].contains(" queue_policy_violation "), "{:?}", findings(&many));
    let glob =
        task("each: ${glob(\"/srv\", \"*\")}\nexec: {run: 'echo ${item | sh}', timeout: 1m}");
    assert_eq!(findings(&glob), Vec::<String>::new(), "files are not listed here");
    let relative = task("files: [{from: src, to: /work}]\nexec: {run: make, timeout: 1m}");
    assert_eq!(findings(&relative), Vec::<String>::new(), "the command line makes it absolute");
}

#[test]
fn each_rule_warns_of_what_is_probably_not_meant() {
    let exec = "exec: {run: make, timeout: 1m}";
    for (rule, fields) in [
        ("each-unused", format!("each: [a]\n{exec}")),
        ("artifacts-of-everything", format!("artifacts: ['**']\n{exec}")),
        ("timeout-missing", "exec: {run: make}".to_owned()),
        ("timeout-missing", format!("build: {{run: make}}\n{exec}")),
        ("image-by-name", format!("image: image:debian\n{exec}")),
        ("secret-in-text", "exec: {run: make, timeout: 1m, env: {API_KEY: hunter22}}".to_owned()),
        (
            "secret-in-text",
            format!("exec: {{run: 'curl -H ghp_{} x', timeout: 1m}}", "a".repeat(30)),
        ),
        (
            "expression-literal",
            format!(
                "services: [{{name: w, cmd: [w], port: 1, env: {{A: '${{form.x}}'}}}}]\n{exec}"
            ),
        ),
        (
            "number-shortened",
            "matrix: {py: [3.9, 3.10]}\nexec: {run: 'py ${matrix.py}', timeout: 1m}".to_owned(),
        ),
        (
            "files-overlap",
            format!("files: [{{text: a, to: /work/a}}, {{text: b, to: /work/a}}]\n{exec}"),
        ),
    ] {
        let text = task(&fields).replace(
            "name: t",
            if rule.starts_with("number") { "name: t-${index}" } else { "name: t" },
        );
        let found = findings(&text);
        assert_eq!(found.len(), 1, "{rule} of {text}: {found:#?}");
        assert!(found[0].contains(&format!(" {rule} ")), "{found:?}");
        assert!(!found[0].starts_with("0:"), "it has a place: {found:?}");
        let report = lint(&text);
        assert_eq!(
            (report.count(LintSeverity::Error), report.count(LintSeverity::Warning)),
            (0, 1)
        );
    }
    let gathered = "files: [{from: 'task://a/*', to: /work/a}, {from: 'task://b/*', to: /work/a}]";
    let found = findings(&task(&format!("{gathered}\n{exec}")));
    assert!(!found.iter().any(|one| one.contains("files-overlap")), "{found:?}");
    let form = "form: {type: object, properties: {deploy_token: {type: string}}}\n";
    let places = places(&format!("{}{form}", task(exec)));
    assert_eq!(places, ["7:1 form-open", "7:35 input-unused", "7:35 secret-in-text"]);
    let form =
        "form: {type: object, additionalProperties: false, properties: {w: {type: string}}}\n";
    let text = task("exec: {run: make, timeout: 1m, env: {W: \"${form.w}\"}}");
    let optional = findings(&format!("{text}{form}"));
    assert_eq!(optional.len(), 1, "{optional:?}");
    assert!(optional[0].contains(" input-optional form.properties.w: "), "{optional:?}");
    for fine in [
        "exec: {run: make, timeout: 1m, env: {TOKENIZERS_PARALLELISM: 'false', KEY: value, PASSWORD_FILE: /run/p}}",
        "exec: {run: make, timeout: 1m, env: {TOKEN: ''}}",
    ] {
        assert_eq!(findings(&task(fine)), Vec::<String>::new());
    }
}

#[test]
fn a_service_that_no_host_knows_is_an_error_before_a_run() {
    let exec = "exec: {run: make, timeout: 1m}";
    let found = findings(&task(&format!("services: [postgres, mysql]\n{exec}")));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains(" recipe_invalid plan.tasks[0].services[1]: "), "{found:?}");
    let own = format!("services: [{{name: mysql, cmd: [mysqld], port: 3306}}]\n{exec}");
    assert_eq!(findings(&task(&own)), Vec::<String>::new());
}

#[test]
fn tasks_whose_names_mean_one_are_both_named() {
    let text = "id: a\nv: \"1\"\nplan:\n  tasks:\n    - {name: a b, value: x}\n    - {name: a_b, value: y}\n";
    let found = findings(text);
    assert!(
        found.iter().any(|one| one.contains("the tasks \"a b\" and \"a_b\" have one name")),
        "{found:?}"
    );
}

#[test]
fn findings_are_bounded_and_errors_come_before_warnings() {
    let one = "    - {name: t, artifacts: ['**', '**/*'], exec: {run: make}}\n";
    let text = format!("id: a\nv: \"1\"\nplan:\n  tasks:\n{}", one.repeat(200));
    let report = lint(&text);
    assert_eq!(report.findings.len(), MAX_LINT_FINDINGS);
    assert_eq!(report.more, 601 - MAX_LINT_FINDINGS);
    assert_eq!(report.count(LintSeverity::Error), 1, "two tasks of one name");
}

#[test]
fn a_report_is_read_back_as_it_was_written() {
    let report = lint(&task("exec: {run: make}"));
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<LintReport>(&text).unwrap(), report);
    assert!(text.contains("\"code\":\"timeout-missing\""), "{text}");
    for rule in LintRule::ALL {
        assert_eq!(LintRule::parse(rule.as_str()), Some(*rule));
    }
}
