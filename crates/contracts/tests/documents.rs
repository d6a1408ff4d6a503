//! What the README says of recipes is what the parser accepts.

use std::fs;
use std::path::{Path, PathBuf};

use cofferdam_contracts::recipe::Recipe;
use serde_json::{Value, json};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every page that speaks to users.
fn pages() -> Vec<(String, String)> {
    let root = repository();
    let mut found = Vec::new();
    let mut dirs = vec![root.join("docs")];
    let mut files: Vec<PathBuf> = vec![root.join("README.md"), root.join("SPECIFICATION.md")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => dirs.push(path),
                false if path.extension().is_some_and(|end| end == "md") => files.push(path),
                false => {}
            }
        }
    }
    for file in files {
        found.push((file.display().to_string(), fs::read_to_string(&file).unwrap()));
    }
    found
}

/// The blocks of a page that say they are YAML.
fn blocks(page: &str) -> Vec<&str> {
    let begin = page.split("```yaml\n").skip(1);
    begin.map(|rest| rest.split("\n```").next().unwrap()).collect()
}

/// The fields of a task that a page shows in a line of its own text, without the quotes of code.
fn spans(page: &str) -> Vec<String> {
    const FIELDS: [&str; 8] =
        ["build:", "cache:", "services:", "gate:", "isolation:", "image:", "profile:", "timeout:"];
    // A span may go on in the next line; a block of code is no span.
    let outside: String = page.split("```").step_by(2).collect();
    let code = outside.split('`').skip(1).step_by(2).map(|span| span.replace('\n', " "));
    code.filter(|span| FIELDS.iter().any(|field| span.starts_with(&format!("{field} ")))).collect()
}

/// A recipe around one field, with something in the place of every ellipsis.
fn around(span: &str) -> Value {
    let text = span.replace("{.., ", "{").replace("[..]", "[x]").replace("..", "x");
    let text = text.replace("LOCKFILE", "req.txt").replace("image:NAME", "image:base");
    let said: Value = parsed(&text);
    let mut task = json!({"name": "a", "exec": {"run": "true"}});
    let mut plan = json!({});
    for (field, value) in said.as_object().unwrap() {
        match field.as_str() {
            "gate" => plan["gate"] = value.clone(),
            "timeout" => task["exec"]["timeout"] = value.clone(),
            field => task[field] = value.clone(),
        }
    }
    if let Some(build) = task.get_mut("build")
        && build.get("run").is_none()
    {
        build["run"] = json!("true");
    }
    if task.get("cache").is_some() {
        task["build"] = json!({"run": "true"});
    }
    plan["tasks"] = json!([task]);
    let form = json!({"type": "object", "properties": {"shards": {"type": "integer"}}});
    json!({"id": "r", "v": "1", "form": form, "plan": plan})
}

/// YAML of one field, by the parser of recipes: as the form's default, which may be anything.
fn parsed(text: &str) -> Value {
    let text = format!(
        "id: r\nv: \"1\"\nform:\n  type: object\n  default: {{{text}}}\nplan: {{tasks: [{{name: a, value: x}}]}}\n"
    );
    Recipe::from_yaml("span", &text).unwrap().form.unwrap()["default"].clone()
}

#[test]
fn e5_every_recipe_of_the_pages_and_examples_is_accepted() {
    let mut seen = 0;
    for (name, page) in pages() {
        for block in blocks(&page) {
            Recipe::from_yaml(&name, block).unwrap_or_else(|error| panic!("{error}"));
            seen += 1;
        }
    }
    for entry in fs::read_dir(repository().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        // The schema for editors lies beside them.
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        Recipe::from_yaml(&path.display().to_string(), &text)
            .unwrap_or_else(|error| panic!("{error}"));
        seen += 1;
    }
    assert!(seen >= 8, "{seen} recipes");
}

#[test]
fn e5_every_field_that_the_readme_shows_is_accepted() {
    let page = fs::read_to_string(repository().join("README.md")).unwrap();
    let spans = spans(&page);
    assert!(spans.iter().any(|span| span.starts_with("build: {") && span.contains("repo")));
    assert!(spans.len() >= 8, "{spans:#?}");
    for span in spans {
        let recipe = around(&span).to_string();
        Recipe::from_yaml(&span, &recipe).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn e5_a_cache_is_said_once() {
    let of = |more: &str| {
        let text = format!(
            "id: r\nv: \"1\"\nplan:\n  tasks:\n    - name: a\n      exec: {{run: x}}\n{more}\n"
        );
        Recipe::from_yaml("r", &text).map_err(|refusal| refusal.message)
    };
    let whole = "{repo: r, paths: [l], dirs: [/d]}";
    of(&format!("      build: {{run: b, cache: {whole}}}")).unwrap();
    of(&format!("      cache: {whole}\n      build: {{run: b, cache: l}}")).unwrap();
    let twice = of(&format!("      cache: {whole}\n      build: {{run: b, cache: {whole}}}"));
    assert!(twice.unwrap_err().contains("give it once"));
    let unknown = of("      build: {run: b, cache: {repo: r, path: l}}").unwrap_err();
    assert!(unknown.contains("path"), "{unknown}");
}
