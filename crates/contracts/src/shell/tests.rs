//! The rule, held against commands of recipes.

use super::*;
use crate::profile::Settings;

const FORM: &str = "
form:
  type: object
  properties:
    w: {type: string}
    free: {type: string}
    n: {type: integer}
    pick: {enum: [a, 'b c']}
    slug: {type: string, pattern: '^[a-z][a-z0-9-]{0,9}$'}
    loose: {type: string, pattern: '^[a-z]'}
    dotted: {type: string, pattern: '^.+$'}
    list: {type: array, items: {type: string}}
    nums: {type: array, items: {type: integer}}
    ref: {$ref: '#/$defs/slug'}
    deep: {type: object, properties: {x: {type: string}, y: {type: number}}}
  $defs: {slug: {type: string, pattern: '^[A-Za-z0-9_./+-]+$'}}
";

fn recipe(task: &str, gate: &str) -> Result<Recipe, String> {
    let yaml = format!("id: r\nv: '1'\n{FORM}plan:\n{gate}  tasks:\n    - {task}\n");
    Recipe::from_yaml("r", &yaml).map_err(|refusal| refusal.message)
}

fn run(text: &str) -> Result<Recipe, String> {
    recipe(&format!("{{name: a, exec: {{run: {}}}}}", serde_json::json!(text)), "")
}

#[test]
fn m7_a_value_that_a_shell_may_read_is_refused_unquoted_with_its_remedy() {
    let why = run("echo word=${form.w}").unwrap_err();
    for part in ["plan.tasks[0].exec.run", "`${form.w}`", "| sh}", "env: {W:", "| raw}"] {
        assert!(why.contains(part), "{part}: {why}");
    }
    for bad in [
        "echo ${form.loose}",
        "echo ${form.dotted}",
        "echo ${form.list}",
        "echo ${form.deep.x}",
        "echo ${form.deep}",
        "echo ${form}",
        "echo '${form.w}'",
        "${form.w} ${form.n}",
    ] {
        assert!(run(bad).is_err(), "{bad}");
    }
    for good in [
        "${form.w}",
        "  ${form.w}\n",
        "echo ${form.w | sh}",
        "echo a=${form.w|sh} 'x' \"y\" | grep ${form.free | sh} # ${form.n}\nls ${form.w | sh}",
        "x=$(cat ${form.w | sh})",
        "echo $${HOME} ${form.w | sh}",
        "echo ${form.n} ${form.pick} ${form.slug} ${form.ref} ${form.deep.y}",
        "make ${form.w | raw}",
        "echo \"${form.n}\"",
    ] {
        run(good).unwrap_or_else(|why| panic!("{good}: {why}"));
    }
}

#[test]
fn m7_a_quoted_word_is_refused_where_a_shell_does_not_read_it_as_one() {
    for (bad, place) in [
        ("echo '${form.w | sh}'", "inside quotes"),
        ("echo \"${form.w | sh}\"", "inside quotes"),
        ("echo \"a 'b' ${form.w | sh}\"", "inside quotes"),
        ("echo `cat ${form.w | sh}`", "backquote"),
        ("cat <<EOF\n${form.w | sh}\nEOF", "here-document"),
        ("echo $((${form.w | sh}))", "arithmetic"),
        ("true # ${form.w | sh}", "comment"),
        ("echo \\${form.w | sh}", "backslash"),
        ("echo $${X:-${form.w | sh}}", "parameter"),
        ("echo \"$(echo \"x\" ${form.w | sh})\"", "command substitution"),
        ("eval echo ${form.w | sh}", "eval"),
        ("echo $'a' ${form.w | sh}", "not every shell"),
    ] {
        let why = run(bad).unwrap_err();
        assert!(why.contains(place) && why.contains("env: {W:"), "{bad}: {why}");
    }
}

#[test]
fn m7_what_an_approver_may_edit_is_never_raw_and_held_at_a_start_too() {
    let gate = "  gate: {key: approve-plan, edit: [w, list]}\n";
    let of = |text: &str| {
        recipe(&format!("{{name: a, exec: {{run: {}}}}}", serde_json::json!(text)), gate)
    };
    assert!(of("make ${form.w | raw}").unwrap_err().contains("may edit"));
    assert!(!of("make ${form.w}").unwrap_err().contains("| raw"));
    of("${form.w}").unwrap();
    of("echo ${form.free | raw} ${form.w | sh}").unwrap();
    // As it was stored before the rule.
    let stored = |text: &str| {
        let mut recipe = of("true").unwrap();
        recipe.plan.tasks[0].exec.as_mut().unwrap().run = Cmd::Shell(text.into());
        check(&recipe, RuleScope::Editable)
    };
    assert!(stored("echo ${form.w}").is_err() && stored("echo ${form}").is_err());
    stored("echo ${form.free}").unwrap();
    let each = "{name: 'a-${index}', each: '${form.list}', exec: {run: 'echo ${item}'}}";
    assert!(recipe(each, gate).unwrap_err().contains("may edit"));
}

#[test]
fn m7_items_are_held_by_where_they_come_from() {
    let each = |each: &str| {
        recipe(
            &format!("{{name: 'a-${{index}}', each: {each}, exec: {{run: 'echo ${{item}}'}}}}"),
            "",
        )
    };
    for good in ["'${range(3)}'", "[a, 'b c']", "'${form.nums}'"] {
        each(good).unwrap_or_else(|why| panic!("{good}: {why}"));
    }
    for bad in ["'${form.list}'", "'${glob(form.w, \"*\")}'"] {
        assert!(each(bad).is_err(), "{bad}");
    }
}

#[test]
fn m7_an_argv_is_never_read_by_a_shell_unless_it_names_one() {
    let of = |argv: &str| recipe(&format!("{{name: a, exec: {{run: {argv}}}}}"), "");
    of(r#"[echo, "${form.w}"]"#).unwrap();
    of(r#"[sh, -c, 'echo "$1"', x, "${form.w}"]"#).unwrap();
    of(r#"[/bin/bash, -ec, "${form.w}"]"#).unwrap();
    assert!(of(r#"[/bin/bash, -ec, "echo ${form.w}"]"#).is_err());
    assert!(of(r#"[sh, -c, "echo '${form.w | sh}'"]"#).is_err());
}

const GATE: &str = "  gate: {key: approve-plan, edit: [w, slug, pick]}\n";

#[test]
fn s19_a_value_in_an_argument_is_the_argument_or_refused_for_every_program() {
    let of = |argv: &str| recipe(&format!("{{name: a, exec: {{run: {argv}}}}}"), GATE);
    for bad in [
        r#"[sh, -c, --, "echo ${form.w}"]"#,
        r#"[sh, -c, -e, "echo ${form.w}"]"#,
        r#"[env, sh, -c, "echo ${form.w}"]"#,
        r#"[/usr/bin/env, -S, "sh -c ${form.w}"]"#,
        r#"[timeout, "5", sh, -c, "echo ${form.w | sh}"]"#,
        r#"[python3, -c, "print('${form.w}')"]"#,
        r#"[python3, "-cprint('${form.w}')"]"#,
        r#"[node, -e, "console.log('${form.w}')"]"#,
        r#"[node, --eval, "${form.w}"]"#,
        r#"[perl, -ne, "${form.w}"]"#,
        r#"[awk, "/${form.w}/"]"#,
        r#"[awk, "${form.w}", notes]"#,
        r#"[xargs, "${form.w}"]"#,
        r#"[ssh, host, "${form.w}"]"#,
        r#"[find, ., -exec, "${form.w}", ;]"#,
        r#"[make, "X=${form.w}"]"#,
        r#"[make, "${form.w}"]"#,
        r#"[unknown-program, "--x=${form.w}"]"#,
        r#"["${form.w}", x]"#,
        r#"[env, A=b, "${form.w}"]"#,
        r#"[timeout, "5", "${form.w}"]"#,
        r#"[echo, "a ${form.w | raw}"]"#,
        r#"[echo, "a ${form.free}"]"#,
    ] {
        let why = of(bad).unwrap_err();
        for part in ["plan.tasks[0].exec.run: argument ", "form.", "env: {"] {
            assert!(why.contains(part), "{bad}: {why}");
        }
    }
    for good in [
        r#"[grep, --, "${form.w}", notes]"#,
        r#"[sh, -c, 'echo "$1"', x, "${form.w}"]"#,
        r#"[python3, tool.py, "${form.w}"]"#,
        r#"[python3, -c, "import sys; print(sys.argv[1])", "${form.w}"]"#,
        r#"[timeout, "5", grep, "${form.w}"]"#,
        r#"[make, "N=${form.n}", "S=${form.slug}", "P=${form.pick}"]"#,
        r#"[echo, "a ${form.free | raw}"]"#,
        r#"[bash, -c, "grep -- ${form.w | sh} notes"]"#,
    ] {
        of(good).unwrap_or_else(|why| panic!("{good}: {why}"));
    }
    // Stored before the rule: only what may be edited is held.
    let stored = |argv: &[&str]| {
        let mut recipe = of("[echo]").unwrap();
        let argv = argv.iter().map(|arg| (*arg).to_owned()).collect();
        recipe.plan.tasks[0].build = Some(build(Cmd::Argv(argv)));
        check(&recipe, RuleScope::Editable)
    };
    stored(&["echo", "a ${form.free}"]).unwrap();
    assert!(stored(&["echo", "a ${form.w}"]).unwrap_err().starts_with("plan.tasks[0].build.run"));
}

fn build(run: Cmd) -> crate::recipe::BuildSpec {
    let yaml = "id: r\nv: '1'\nplan: {tasks: [{name: a, build: {run: [x]}, exec: {run: x}}]}\n";
    let mut recipe = Recipe::from_yaml("r", yaml).unwrap();
    let mut build = recipe.plan.tasks.remove(0).build.unwrap();
    build.run = run;
    build
}

#[test]
fn s19_a_quoted_word_is_refused_where_it_is_read_a_second_time() {
    for (bad, place) in [
        ("[[ ${form.w | sh} -eq 1 ]]", "`[[`"),
        ("if [[ -n x && ${form.w | sh} -eq 1 ]]; then id; fi", "`[[`"),
        ("python3 -c ${form.w | sh}", "`-c`"),
        ("python3 -c${form.w | sh}", "`-c`"),
        ("node --eval=${form.w | sh}", "`--eval=`"),
        ("env sh -c ${form.w | sh}", "`-c`"),
        ("find . -exec ${form.w | sh} \\;", "`-exec`"),
        ("ssh host ls ${form.w | sh}", "`ssh`"),
        ("ls | /usr/bin/awk ${form.w | sh}", "`awk`"),
        ("make X=${form.w | sh}", "`make`"),
        ("trap ${form.w | sh} EXIT", "`trap`"),
        ("${form.w | sh} x", "the program"),
        ("true && ${form.w | sh} x", "the program"),
        ("if true; then ${form.w | sh} x; fi", "the program"),
        ("A=b timeout -k 1 5 ${form.w | sh}", "`timeout`"),
    ] {
        let why = run(bad).unwrap_err();
        assert!(why.contains(place) && why.contains("env: {W:"), "{bad}: {why}");
    }
    for good in [
        "W=${form.w | sh} tool",
        "W=${form.w | sh}; tool",
        "awk 1 notes; grep -- ${form.w | sh} notes",
        "[[ -n x ]] && echo ${form.w | sh}",
        "python3 -c 'import sys' ${form.w | sh}",
        "for x in ${form.w | sh} b; do echo $x; done",
        "timeout 5 grep ${form.w | sh} notes",
        "case ${form.w | sh} in a) true;; esac",
        "tool --word=${form.w | sh} > ${form.free | sh}",
    ] {
        run(good).unwrap_or_else(|why| panic!("{good}: {why}"));
    }
}

#[test]
fn s62_what_may_be_edited_is_no_variable_that_programs_take_code_from() {
    let of = |name: &str, value: &str| {
        let exec = serde_json::json!({"run": "true", "env": {name: value}});
        recipe(&format!("{{name: a, exec: {exec}}}"), GATE)
    };
    for bad in ["PATH", "LD_PRELOAD", "BASH_ENV", "GIT_SSH_COMMAND", "NODE_OPTIONS", "PYTHONPATH"] {
        let why = of(bad, "/x:${form.w}").unwrap_err();
        assert!(why.contains("plan.tasks[0].exec.env") && why.contains(bad), "{why}");
        of(bad, "${form.pick}").unwrap();
        of(bad, "/usr/bin").unwrap();
    }
    of("W", "${form.w}").unwrap();
    of("PATH", "${form.free}").unwrap();
}

#[test]
fn s63_what_may_be_edited_becomes_no_option() {
    let gate = "  gate: {key: approve-plan, edit: [w, n, pick]}\n";
    let of = |argv: &str, form: Value| {
        let recipe = recipe(&format!("{{name: a, exec: {{run: {argv}}}}}"), gate).unwrap();
        let no_files = |_: &str, _: &str| Ok(Vec::new());
        let plan = crate::plan::compile(&recipe, &form, &Settings::default(), &no_files);
        plan.map(|_| ()).map_err(|error| error.refusal().message)
    };
    let option = serde_json::json!({"w": "-exec", "n": -3, "pick": "a", "free": "-x"});
    let why = of(r#"[grep, "${form.w}"]"#, option.clone()).unwrap_err();
    assert!(why.contains("exec.run: argument 1") && why.contains("`--`"), "{why}");
    for argv in [
        r#"[grep, --, "${form.w}"]"#,
        r#"[head, "${form.n}"]"#,
        r#"[head, "${form.pick}"]"#,
        r#"[head, "${form.free}"]"#,
    ] {
        of(argv, option.clone()).unwrap_or_else(|why| panic!("{argv}: {why}"));
    }
    of(r#"[grep, "${form.w}"]"#, serde_json::json!({"w": "a-b"})).unwrap();
}

#[test]
fn s69_what_may_be_edited_is_no_place_of_a_file() {
    let of = |to: &str| {
        recipe(&format!("{{name: a, files: [{{text: x, to: '{to}'}}], exec: {{run: [x]}}}}"), GATE)
    };
    let why = of("/work/${form.w}").unwrap_err();
    assert!(why.contains("plan.tasks[0].files.to") && why.contains("`enum`"), "{why}");
    of("/work/${form.slug}").unwrap();
    of("/work/${form.free}").unwrap();
}
