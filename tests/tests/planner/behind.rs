//! Commands of a build that speak to their own daemon.

use serde_json::json;

use super::world::{MEND, World, approved, ended, plan, script, started, unit};
use super::{PATCHES, failed_with};
use crate::support::agents::Programs;
use crate::support::gates::number;

/// What a command of the build does with the daemon's password, which it takes from the environment of its parents.
fn behind_our_back(what: &str) -> String {
    format!(
        "python3 - <<'E'\nimport base64, glob, json, urllib.request as u\ndef has(path):\n    try: return dict(v.split('=', 1) for v in open(path).read().split('\\0') if '=' in v)\n    except OSError: return {{}}\ne = next(e for e in map(has, glob.glob('/proc/[0-9]*/environ')) if 'OPENCODE_SERVER_PASSWORD' in e)\nh = {{'authorization': 'Basic ' + base64.b64encode((e['OPENCODE_SERVER_USERNAME'] + ':' + e['OPENCODE_SERVER_PASSWORD']).encode()).decode(), 'content-type': 'application/json'}}\ndef ask(path, body=None, method=None):\n    return json.load(u.urlopen(u.Request('http://127.0.0.1:4096' + path, headers=h, method=method, data=body and json.dumps(body).encode())))\n{what}\nE"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_a_child_or_another_beside_it_ends_the_run() {
    let Some(programs) = Programs::installed() else { return };
    let world = World::new(&programs);
    let up = world.up(&[]).await;
    for what in [
        "print(ask('/session', {'parentID': ask('/session')[0]['id']}))",
        // Gone before anybody looks: no list has it.
        "one = ask('/session', {'title': 'x'})['id']\nprint(ask('/session/' + one, method='DELETE'))",
    ] {
        let command = format!("{MEND}\n{}", behind_our_back(what));
        let steps = script(&plan(&["calc.py"], &["unit"]), &command);
        let run = started(&up, &world.recipe(&steps, json!({}), unit())).await;
        approved(&up, &run).await;
        let header = ended(&up, &run).await;
        failed_with(&header, "oc_child_session");
        let sql = up.sql().await;
        assert_eq!(number(&sql, PATCHES, &run).await, 0, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_do_not_inherit_the_daemons_password() {
    let Some(programs) = Programs::installed() else { return };
    let world = World::new(&programs);
    let up = world.up(&[]).await;
    // What a tool prints goes to the provider. A file that no plan names fails the build.
    let look =
        "env | grep ^PATH= || touch blind.py; env | grep OPENCODE_SERVER_ && touch leak.py; true";
    let steps = script(&plan(&["calc.py"], &["unit"]), &format!("{MEND}; {look}"));
    let run = started(&up, &world.recipe(&steps, json!({}), unit())).await;
    approved(&up, &run).await;
    let header = ended(&up, &run).await;
    assert_eq!(header["status"], "succeeded", "{header}");
}
