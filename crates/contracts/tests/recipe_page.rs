//! `docs/reference/recipe.md`: every field of a recipe, from the schema of its types. The examples are fields of the
//! recipes in `tests/recipes`, which are parsed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

use cofferdam_contracts::recipe::{MAX_RECIPE_BYTES, Recipe};
use cofferdam_contracts::schema::schema_of;
use serde_json::Value;

use crate::golden;
use crate::golden::page::{anchor, begun, code, link, wrapped};
use crate::golden::schema::{Field, Types, description, fields, flow, unopened};

const WRITES: &str = "UPDATE_GOLDENS=1 cargo test --workspace --test contracts recipe_md";

/// Recipes that have every field between them: title, text.
const RECIPES: [(&str, &str); 4] = [
    ("The shortest", include_str!("recipes/shortest.yaml")),
    ("Every field", include_str!("recipes/every-field.yaml")),
    ("A repository", include_str!("recipes/repository.yaml")),
    ("A coding agent", include_str!("recipes/agent.yaml")),
];

/// What an example may have of a line.
const EXAMPLE: usize = 72;

/// An object of a recipe: where it is, and its schema.
struct Section<'a> {
    path: String,
    schema: &'a Value,
    about: String,
}

/// YAML as it was written, by the parser of recipes: as the default of a form, which may be anything.
fn written(text: &str) -> Value {
    let indented: String = text.lines().map(|line| format!("    {line}\n")).collect();
    let around = format!(
        "id: r\nv: \"1\"\nform:\n  type: object\n  default:\n{indented}plan: {{tasks: [{{name: a, value: x}}]}}\n"
    );
    let recipe = Recipe::from_yaml("example", &around).unwrap();
    recipe.form.unwrap()["default"].clone()
}

/// The first value at a path such as `plan.tasks[].exec.run`.
fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    let Some(first) = path.split(['.', '[']).next().filter(|first| !first.is_empty()) else {
        return match path.strip_prefix("[]") {
            Some(rest) => {
                let each = value.as_array()?;
                each.iter().find_map(|one| at(one, rest))
            }
            None if path.is_empty() => Some(value),
            None => at(value, path.strip_prefix('.')?),
        };
    };
    at(value.get(first)?, &path[first.len()..])
}

/// What the recipes have at a path, as short as it can be shown.
fn example(recipes: &[Value], path: &str) -> Option<String> {
    let all = recipes.iter().filter_map(|recipe| at(recipe, path)).map(flow);
    all.min_by_key(|text| (text.chars().count() > EXAMPLE, text.starts_with(['[', '{'])))
}

/// The objects that a field may hold, each with what follows the field's name in its path.
fn objects<'a>(types: &Types<'a>, schema: &'a Value) -> Vec<(&'static str, &'a Value)> {
    let mut found = Vec::new();
    for one in types.alternatives(schema) {
        if one.get("properties").is_some() {
            found.push(("", one));
        }
        if let Some(items) = one.get("items") {
            let each = types.alternatives(items).into_iter();
            found.extend(each.filter(|one| one.get("properties").is_some()).map(|one| ("[]", one)));
        }
    }
    found
}

/// Every object, each where it is found first; and where each schema is, by its text.
fn sections<'a>(
    types: &Types<'a>,
    root: &'a Value,
) -> (Vec<Section<'a>>, BTreeMap<String, String>) {
    let (mut found, mut places) = (Vec::new(), BTreeMap::new());
    let about = "The document itself.".to_owned();
    let mut next = VecDeque::from([Section { path: String::new(), schema: root, about }]);
    while let Some(section) = next.pop_front() {
        for field in fields(section.schema) {
            for (each, object) in objects(types, field.schema) {
                let path = section.path_of(field.name) + each;
                if let std::collections::btree_map::Entry::Vacant(place) =
                    places.entry(object.to_string())
                {
                    place.insert(path.clone());
                    let about = description(object);
                    next.push_back(Section { path, schema: object, about });
                }
            }
        }
        found.push(section);
    }
    found.sort_by(|one: &Section<'_>, other| one.path.cmp(&other.path));
    (found, places)
}

impl Section<'_> {
    /// The heading, as a page shows it.
    fn title(&self) -> String {
        if self.path.is_empty() { "The recipe".to_owned() } else { code(&self.path) }
    }

    /// The path of one of its fields.
    fn path_of(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }
}

fn line<'a>(page: &mut String, types: &Types<'a>, field: &Field<'a>, told: &Told<'_>) {
    let object = |schema: &Value| match told.places.get(&schema.to_string()) {
        Some(path) => link(&code(path), path),
        None => unopened(schema),
    };
    let mut line = types.line(&code(field.name), field, &object);
    match &told.example {
        Some(example) if example.chars().count() <= EXAMPLE => {
            write!(line, " Example: `{}: {example}`.", field.name).unwrap();
        }
        _ => write!(line, " Example: {}.", link("below", told.below)).unwrap(),
    }
    page.push_str(&wrapped(&line, "* ", "  "));
}

/// What is known of a field beside its schema.
struct Told<'a> {
    places: &'a BTreeMap<String, String>,
    example: Option<String>,
    /// The recipe that has it, where it is too long for a line.
    below: &'static str,
}

fn page() -> String {
    let schema = schema_of::<Recipe>();
    let types = Types { definitions: schema["$defs"].as_object().unwrap() };
    let recipes = RECIPES.map(|(_, text)| written(text));
    let (sections, places) = sections(&types, &schema);
    let mut page = begun("Recipe", WRITES);
    let about = format!(
        "Every field of a recipe with its type, bounds, default and an example. A recipe is YAML of at most {} KiB; an unknown \
         field is refused with its line. A duration is a number with its unit: `90s`, `5m`, `1h`. Text in `${{..}}` is filled in \
         from the form and from `each`. `cofferdam check FILE` finds what is wrong with a recipe, and `cofferdam schema recipe` prints the JSON Schema for editors.",
        MAX_RECIPE_BYTES / 1024
    );
    page.push_str(&wrapped(&about, "", ""));
    page.push('\n');
    for section in &sections {
        writeln!(page, "* {}", link(&section.title(), &section.title())).unwrap();
    }
    for (title, _) in RECIPES {
        writeln!(page, "* Example: {}", link(&title.to_lowercase(), title)).unwrap();
    }
    for section in &sections {
        write!(page, "\n## {}\n\n", section.title()).unwrap();
        if !section.about.is_empty() {
            page.push_str(&wrapped(&section.about, "", ""));
            page.push('\n');
        }
        for field in fields(section.schema) {
            let path = section.path_of(field.name);
            let has_it = recipes.iter().position(|recipe| at(recipe, &path).is_some());
            let (below, _) = RECIPES[has_it.unwrap_or_default()];
            let told = Told { places: &places, example: example(&recipes, &path), below };
            line(&mut page, &types, &field, &told);
        }
    }
    for (title, text) in RECIPES {
        write!(page, "\n## {title}\n\n```yaml\n{}\n```\n", text.trim_end()).unwrap();
    }
    page
}

#[test]
fn recipe_md_is_what_a_recipe_may_say() {
    let path = "../../docs/reference/recipe.md";
    golden::hold_text(env!("CARGO_MANIFEST_DIR"), path, &page(), WRITES);
}

#[test]
fn every_field_of_a_recipe_has_an_example_that_is_parsed() {
    for (title, text) in RECIPES {
        Recipe::from_yaml(title, text).unwrap_or_else(|error| panic!("{error}"));
    }
    let schema = schema_of::<Recipe>();
    let types = Types { definitions: schema["$defs"].as_object().unwrap() };
    let recipes = RECIPES.map(|(_, text)| written(text));
    let (sections, _) = sections(&types, &schema);
    let mut missing = Vec::new();
    let mut names = BTreeSet::new();
    for section in &sections {
        assert!(names.insert(anchor(&section.path)), "two headings: {}", section.path);
        for field in fields(section.schema) {
            let path = section.path_of(field.name);
            let Some(value) = recipes.iter().find_map(|recipe| at(recipe, &path)) else {
                missing.push(path);
                continue;
            };
            let text = format!("{}: {}\n", field.name, flow(value));
            assert_eq!(written(&text)[field.name], *value, "{path}: {text}");
        }
    }
    assert!(missing.is_empty(), "add them to a recipe in tests/recipes: {missing:#?}");
    assert!(sections.len() >= 20, "only {} objects were found", sections.len());
}

#[test]
fn a_path_leads_to_the_first_value_there() {
    let recipe = written("a: {b: [text, {c: 1}]}\n");
    assert_eq!(at(&recipe, "a.b[].c"), Some(&Value::from(1)));
    assert_eq!(at(&recipe, "a.d"), None);
    assert_eq!(at(&recipe, ""), Some(&recipe));
}
