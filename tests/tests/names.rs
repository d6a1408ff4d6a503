//! Files that a task leaves under names that no text has: they are kept, at the first attempt.

use crate::support;

use std::time::Duration;

use cofferdam_tests::{Home, text};
use serde_json::{Value, json};
use support::{assert_proven, assert_wiped, count, texts, until};

const RECIPE: &str = r#"
id: names
v: "1"
plan:
  tasks:
    - name: names
      exec:
        run: |
          d=$(printf 'd\376'); mkdir -p "$d" deep
          printf raw > "$(printf '\377')"
          printf plain > %FF
          printf 'in it' > "$d/x"
          printf lines > "$(printf 'two\nlines\033[2K')"
          printf percent > '100% a%20b'
          python3 - <<'END'
          import os, random
          random.seed(7)
          path = 'deep'
          for _ in range(14):
              path += '/' + ''.join(random.choices('abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-', k=250))
          os.makedirs(path)
          open(path + '/end', 'w').write('deep')
          END
        timeout: 60s
      limits: {mem_mb: 128, disk_mb: 64}
      artifacts: ["**"]
"#;

#[tokio::test(flavor = "multi_thread")]
async fn m8_a_name_that_is_not_utf8_is_kept_at_the_first_attempt_and_said() {
    let home = Home::new();
    let up = home.up();
    let sql = up.sql().await;
    let (status, header) = up.start_recipe_as(&up.key, RECIPE, json!({}), json!({})).await;
    assert_eq!(status, 201, "{header}");
    let run = text(&header, "runId");
    until("the run has ended", Duration::from_secs(120), async || {
        let (_, seen) = up.get_as(&up.key, &format!("/api/runs/{run}")).await;
        ["SUCCESS", "ERROR"].contains(&seen["durableStatus"].as_str().unwrap_or(""))
    })
    .await;
    let responses = texts(&sql, "SELECT response::text FROM app.sbx_runs").await;
    assert_eq!(responses.len(), 1, "one attempt: {responses:#?}");
    let response: Value = serde_json::from_str(&responses[0]).unwrap();
    assert_eq!(response["errCode"], "NONE", "{response:#}");
    assert_eq!(count(&sql, "SELECT count(*) FROM app.sbx_executions").await, 1);
    let files = response["filesOut"].as_array().unwrap();
    for (name, encoded, bytes) in [
        ("%FF", true, "raw"),
        ("%25FF", true, "plain"),
        ("d%FE/x", true, "in it"),
        ("two\nlines\u{1b}[2K", false, "lines"),
        ("100% a%20b", false, "percent"),
    ] {
        let found = files.iter().find(|file| file["path"] == name);
        let found = found.unwrap_or_else(|| panic!("{name:?} is not in {files:#?}"));
        assert_eq!(found["encoded"] == true, encoded, "{found}");
        let sql_name = format!("files/{name}").replace('\'', "''");
        let inline = format!("SELECT inline FROM app.artifacts WHERE name = '{sql_name}'");
        assert_eq!(texts(&sql, &inline).await, [bytes], "{name:?}");
    }
    let deep = files.iter().filter(|file| file["path"].as_str().unwrap().ends_with("/end"));
    assert_eq!(deep.count(), 1, "a path of 3,500 bytes");
    assert_wiped(&home, &sql).await;
    assert_proven(&home);
    sql.close().await;
}
