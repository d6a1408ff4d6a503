//! What a graph costs beside the lives of its tasks, and how long a large one is compiled.

use std::fmt::Write as _;
use std::time::Instant;

use cofferdam_contracts::plan::compile;
use cofferdam_contracts::profile::Settings;
use cofferdam_contracts::recipe::Recipe;
use cofferdam_tests::{Home, text};
use serde_json::json;

use crate::figures::{emit, median};

/// Layers, each of which waits for the one before it.
const LAYERS: usize = 20;
const TASKS: usize = 1_000;
const RUNS: usize = 5;
const TOOK: &str = "SELECT (extract(epoch FROM finished_at - created_at) * 1000)::float8 FROM app.runs WHERE id = $1";

/// A graph of engine-only tasks: what is left of its wall time is the graph's own.
fn layers(tasks: usize) -> String {
    let mut yaml = format!("id: layers\nv: \"1\"\ncaps: {{steps: {tasks}}}\nplan:\n  tasks:\n");
    for layer in 0..LAYERS {
        let needs = match layer {
            0 => String::new(),
            _ => format!(", needs: [l{}]", layer - 1),
        };
        let items: Vec<usize> = (0..tasks / LAYERS).collect();
        let _ = writeln!(
            yaml,
            "    - {{name: 'l{layer}-${{item}}', id: l{layer}, each: {items:?}{needs}, value: x}}"
        );
    }
    yaml
}

/// `graph_own_ms`: wall time of a graph of engine-only tasks by task. `graph_compile_ms`: its plan.
pub async fn run() {
    let yaml = layers(TASKS);
    let begun = Instant::now();
    let recipe = Recipe::from_yaml("layers.yaml", &yaml).expect("a recipe");
    let no_files = |_: &str, _: &str| Ok(Vec::new());
    let plan = compile(&recipe, &json!({}), &Settings::default(), &no_files).expect("a plan");
    let compiled = begun.elapsed().as_secs_f64() * 1_000.0;
    assert_eq!(plan.tasks.len(), TASKS);
    emit("graph_compile_ms", compiled, "ms", 1_000.0, json!({"tasks": TASKS, "layers": LAYERS}));
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let mut each = Vec::new();
    for _ in 0..RUNS {
        let header = server.run_recipe(&yaml, json!({}), json!({})).await;
        let run = text(&header, "runId");
        let end = server.wait_terminal(&run).await;
        assert_eq!(end["status"], "succeeded", "{end}");
        let took: f64 = sqlx::query_scalar(TOOK).bind(&run).fetch_one(&sql).await.expect("a time");
        each.push(took / TASKS as f64);
    }
    emit("graph_own_ms", median(each), "ms", 15.0, json!({"tasks": TASKS, "n": RUNS}));
}
