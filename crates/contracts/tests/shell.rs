//! What the rule on shell text lets through, read by a real shell: a hostile value stays one word.

use std::process::Command;

use cofferdam_contracts::plan;
use cofferdam_contracts::profile::Settings;
use cofferdam_contracts::recipe::Recipe;
use cofferdam_contracts::work::Work;
use serde_json::json;

const HOSTILE: &[&str] = &[
    "plain",
    "",
    "it's",
    "'",
    "''",
    "'; echo INJECTED; #",
    "\\'; echo INJECTED; '",
    "$(echo INJECTED)",
    "`echo INJECTED`",
    "a\n; echo INJECTED\nb",
    "\"; echo INJECTED; \"",
    "} ; echo INJECTED ; {",
    "EOF\necho INJECTED",
    "\\",
    "* ? ~ !! $HOME ${HOME} | & ; < > ( ) # \t \u{1b}",
];

/// Each prints the value and nothing else.
const TEXTS: &[&str] = &[
    "printf %s ${form.w | sh}",
    "x=${form.w | sh}; printf %s \"$x\"",
    "(printf %s ${form.w | sh})",
    "if true; then printf %s ${form.w | sh}; fi",
    "true 'a \"b' \"c 'd\" # it's a comment \"\nprintf %s ${form.w | sh}",
    "x=$(printf %sX ${form.w | sh}); printf %s \"$${x%X}\"",
    "printf '%s' \\\n  ${form.w | sh}",
    "set -- ${form.w | sh}; printf %s \"$1\"",
];

#[test]
fn m7_a_real_shell_reads_one_word_whatever_it_holds() {
    let none = |_: &str, _: &str| Ok(Vec::new());
    for text in TEXTS {
        let recipe: Recipe = serde_json::from_value(json!({
            "id": "r", "v": "1",
            "form": {"type": "object", "properties": {"w": {"type": "string"}}},
            "plan": {"tasks": [{"name": "t", "exec": {"run": text}}]},
        }))
        .unwrap();
        recipe.check().unwrap_or_else(|why| panic!("{text}: {why}"));
        for value in HOSTILE {
            let form = json!({"w": value});
            let plan = plan::compile(&recipe, &form, &Settings::default(), &none).unwrap();
            let Work::Sandbox(request) = &plan.tasks[0].work else { panic!("a sandbox") };
            let output = Command::new(&request.cmd[0]).args(&request.cmd[1..]).output().unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            assert_eq!(said, **value, "{text}: {}", request.cmd[2]);
        }
    }
}
