//! What every program takes for granted: threads, and children that share memory until they execute.

use crate::support;

use cofferdam_sandbox::{Offer, plan, provision};
use serde_json::json;
use support::not_run::not_run;
use support::{fresh_id, least, request, with_bench};

/// A library begins each of these with `clone3` and falls back to `clone` only where that is absent.
const PROGRAM: &str = "\
import os, threading
said = []
thread = threading.Thread(target=said.append, args=['thread'])
thread.start()
thread.join()
child = os.posix_spawn('/usr/bin/true', ['true'], {})
print(said[0], os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
";

#[test]
fn a_task_starts_threads_and_children_in_every_class() {
    with_bench(|bench| async move {
        for fact in &bench.host.facts().classes {
            if let Offer::Absent { why, .. } = &fact.offer {
                not_run(&format!("the class {}", fact.class.as_str()), why);
                continue;
            }
            let class = least(fact.class);
            let request = request(json!({
                "cmd": ["/usr/bin/python3", "-c", PROGRAM], "limits": {"memMB": 256},
                "spec": {"isolation": {"class_min": class}},
            }));
            let plan = plan(&request, &fresh_id(), bench.host.facts()).unwrap();
            let sandbox = provision(&bench.host, &plan, &[]).await.unwrap();
            let mut said = Vec::new();
            let ended = sandbox.exec(&plan.task, |_, bytes| said.extend_from_slice(bytes)).await;
            sandbox.wipe("task-end").await;
            let said = String::from_utf8_lossy(&said).into_owned();
            assert_eq!(said.trim(), "thread 0", "{class}: {ended:?}");
        }
    });
}
