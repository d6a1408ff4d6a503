//! What a second run saves by the dependency cache, without network: its build copies and compiles a part
//! of Python's own library, as an installer would.

use cofferdam_tests::Home;
use serde_json::json;

use crate::figures::{emit, median};
use crate::runs::{ended, import, submit};

const DEPS: &str = r#"
id: deps
v: "1"
plan:
  tasks:
    - name: work
      files: [{text: "LOCK", to: /work/lock.txt}]
      build:
        run: |
          for d in json email http asyncio unittest xml urllib logging; do cp -r /usr/lib/python3/../python3.*/$d /deps/; done
          find /deps -name __pycache__ -prune -exec rm -r {} +
          python3 -m compileall -q /deps
        cache: lock.txt
        timeout: 2m
      exec: {run: [/bin/true], timeout: 30s}
"#;
const PAIRS: usize = 9;

/// Time to the first command of the task: its dependencies and its sandbox.
pub(super) async fn second_run() {
    let home = Home::new();
    let server = home.up();
    let sql = server.sql().await;
    let (mut ratios, mut firsts, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        let recipe =
            DEPS.replace("LOCK", &pair.to_string()).replace("id: deps", &format!("id: deps{pair}"));
        let recipe = import(&server, &recipe).await;
        let mut times = Vec::new();
        for (round, want) in ["kept", "hit"].into_iter().enumerate() {
            let run = submit(&server, &recipe, &format!("c{pair}-{round}")).await;
            ended(&sql, &run).await;
            let (ms, outcome): (f64, Option<String>) = sqlx::query_as(
                "SELECT ((metrics->>'bootMs')::int + coalesce((metrics->>'buildMs')::int, 0))::float8,
                        response #>> '{cache,outcome}' FROM app.sbx_runs WHERE run_id = $1",
            )
            .bind(&run)
            .fetch_one(&sql)
            .await
            .expect("its task");
            assert_eq!(outcome.as_deref(), Some(want), "the cache of round {round}");
            times.push(ms.max(1.0));
        }
        ratios.push(times[0] / times[1]);
        firsts.push(times[0]);
        seconds.push(times[1]);
    }
    emit(
        "cache_second_run",
        median(ratios),
        "times faster to the first command",
        3.0,
        json!({"n": PAIRS, "first_ms": median(firsts), "second_ms": median(seconds)}),
    );
    sql.close().await;
}
