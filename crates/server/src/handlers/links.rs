//! Reply links: made with a key, followed without one.

use axum::http::StatusCode;
use cofferdam_ambient::random::secret_hex;
use cofferdam_contracts::gate::Choice;
use cofferdam_contracts::id::GateKey;
use cofferdam_contracts::link::{LinkReply, LinkRequest, LinkView};
use cofferdam_contracts::model::{BudgetAsk, BudgetMetric, MICROS};
use cofferdam_contracts::printable;

use crate::answer::{Answer, AnswerResult, json as answer, ok};
use crate::call::Call;

/// What the page's button does. It answers where the page came from, so no address stands in it.
const SCRIPT: &str = "for (const b of document.querySelectorAll('button')) b.onclick = async () => {
  const said = document.querySelector('textarea').value;
  const payload = {choice: b.value};
  if (said) payload.rationale = said;
  const fields = [...document.querySelectorAll('input')].filter(f => f.value !== '');
  if (b.value === 'yes' && fields.length) payload.grant = {};
  for (const f of payload.grant ? fields : [])
    payload.grant[f.name] = f.type === 'hidden' ? f.value : f.name === 'until' ? Date.now() + 60000 * f.value
      : Math.round(f.value * (f.dataset.of ?? 1));
  if (b.value === 'yes' && document.querySelector('input[type=number]') && !fields.some(f => f.type === 'number')) {
    document.querySelector('output').textContent = 'Fill in how much to grant.';
    return;
  }
  for (const x of document.querySelectorAll('button')) x.disabled = true;
  const answer = await fetch(location.pathname, {method: 'POST', headers: {'content-type': 'application/json'},
    body: JSON.stringify({payload})}).catch(() => null);
  const body = answer ? await answer.json().catch(() => ({})) : {error: 'the server does not answer'};
  // What acts, hides or reorders is shown, as on the rest of the page.
  const shown = String(body.error).replace(/\\p{C}/gu, c => '\\\\u{' + c.codePointAt(0).toString(16) + '}');
  document.querySelector('output').textContent = answer && answer.ok ? 'Recorded: ' + b.value + '.' : shown;
};";

/// A long line is read without scrolling, and goes on further in than any line of ours begins: no text of a task
/// looks like one.
const STYLE: &str = "body{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em}\
    pre{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid;padding:1em}\
    pre div{padding-left:9em;text-indent:-8em}dd{overflow-wrap:anywhere}";

pub(crate) async fn create(mut call: Call) -> AnswerResult {
    let gate: GateKey = call.id("gate")?;
    let run = call.run_or_workflow().await?;
    let request: LinkRequest = call.body()?;
    let url = &call.shared.public_url;
    let made = call.flows().gates.link(&call.who, &run, &gate, &request, url).await?;
    answer(StatusCode::CREATED, &made)
}

/// A page for browsers, JSON for everything else. Changes nothing: mail scanners follow links too.
pub(crate) async fn view(call: Call) -> AnswerResult {
    let view = call.flows().gates.link_view(call.param("token")).await?;
    if !call.wants_page {
        return ok(&view);
    }
    let nonce = secret_hex(16);
    Ok(Answer::Page { html: page(&view, &nonce), nonce })
}

pub(crate) async fn reply(mut call: Call) -> AnswerResult {
    let reply: LinkReply = call.body()?;
    ok(&call.flows().gates.link_reply(call.param("token"), &reply).await?)
}

fn page(view: &LinkView, nonce: &str) -> String {
    let asks = |field: &str| view.form_schema.pointer(&format!("/properties/{field}")).is_some();
    let grant = grant(view);
    let asks_a_choice = asks("choice") && (grant.is_some() || !asks("grant"));
    let button = |choice: &str| format!("<button value=\"{choice}\">{choice}</button> ");
    let buttons = match (asks_a_choice, view.choice) {
        (false, _) => String::new(),
        (true, None) => format!("{}{}", button("yes"), button("no")),
        (true, Some(Choice::Yes)) => button("yes"),
        (true, Some(Choice::No)) => button("no"),
    };
    let way = if asks_a_choice {
        format!(
            "{grant}<p><textarea rows=\"4\" cols=\"60\" maxlength=\"4000\" placeholder=\"why (optional)\"></textarea></p><p>{buttons}</p>",
            grant = grant.filter(|_| view.choice != Some(Choice::No)).unwrap_or_default()
        )
    } else {
        "<p>This gate asks for more than yes or no: POST its payload as JSON to this address.</p>"
            .to_owned()
    };
    let asks = view.asks.as_ref().map(|asked| {
        let (name, phase) = (escape(&asked.name), asked.phase.as_str());
        format!("<dt>Asked for<dd><code>{name}</code>, by the task's {phase} phase")
    });
    let reached = view
        .budget
        .as_ref()
        .map(|budget| format!("<dt>Budget of models reached<dd>{}", escape(&budget.words())));
    let start = view.start.as_ref().map(|start| {
        let lines: Vec<String> = start.lines().iter().map(|line| escape(line)).collect();
        format!("<dt>What would start, with what<dd><pre>{}</pre>", lines.join("\n"))
    });
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Approval</title>\
         <style nonce=\"{nonce}\">{STYLE}</style>\
         <h1>Approval for {name}</h1><dl><dt>Run<dd>{run}<dt>Gate<dd>{gate}{asks}{reached}{start}<dt>Digest of what is approved\
         <dd><code>{digest}</code></dl>{plan}{way}<p><output></output></p>\
         <script nonce=\"{nonce}\">{SCRIPT}</script></html>",
        name = escape(&view.name),
        run = view.run_id,
        gate = view.gate_key,
        digest = view.digest,
        asks = asks.unwrap_or_default(),
        reached = reached.unwrap_or_default(),
        start = start.unwrap_or_default(),
        plan = plan(view),
    )
}

/// The fields of what a yes grants, where a running task asked.
fn grant(view: &LinkView) -> Option<String> {
    if let Some(asked) = &view.asks {
        return Some(format!(
            "<input type=\"hidden\" name=\"name\" value=\"{}\"><p><label>Minutes to allow it \
             <input type=\"number\" name=\"until\" min=\"1\" max=\"1440\" value=\"10\"></label></p>",
            escape(&asked.name)
        ));
    }
    view.budget.as_ref().map(more)
}

/// A field for each bound that a grant may raise; the one that was reached is filled in.
fn more(budget: &BudgetAsk) -> String {
    let field = |metric: &BudgetMetric| {
        let (label, unit) = match metric {
            BudgetMetric::Calls => ("More calls", 1),
            BudgetMetric::Tokens => ("More tokens", 1),
            BudgetMetric::Micros => ("More money", MICROS),
        };
        let step = if unit == 1 { "1" } else { "0.000001" };
        let is_reached = *metric == budget.metric;
        let again = if is_reached { suggested(budget, unit) } else { String::new() };
        format!(
            "<p><label>{label} <input type=\"number\" name=\"{}\" min=\"0\" step=\"{step}\" data-of=\"{unit}\" \
             value=\"{again}\"></label></p>",
            metric.as_str()
        )
    };
    BudgetMetric::ALL.iter().map(field).collect()
}

/// As much again as the bound had, and at least what the waiting call may use, in whole units.
fn suggested(budget: &BudgetAsk, unit: u64) -> String {
    let again = budget.limit.max(budget.wanted.unwrap_or(1)).max(1);
    again.div_ceil(unit).to_string()
}

/// The plan as it stands, and how much of it is not here: nobody should take a part for the whole.
fn plan(view: &LinkView) -> String {
    if view.plan.is_empty() && view.plan_left_out == 0 {
        return String::new();
    }
    let lines: String =
        view.plan.iter().map(|line| format!("<div>{}</div>", escape(line))).collect();
    let more = match view.plan_left_out {
        0 => String::new(),
        n => format!(
            "<p><strong>{n} more lines of the plan do not fit here.</strong> All of it: \
             <code>cofferdam gate show {}</code></p>",
            view.run_id
        ),
    };
    format!("<h2>Plan</h2><pre>{lines}</pre>{more}")
}

fn escape(text: &str) -> String {
    printable::line(text).chars().fold(String::with_capacity(text.len()), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::gate::plan_form;
    use serde_json::json;

    fn shown(choice: serde_json::Value, form: serde_json::Value) -> String {
        let view = json!({
            "runId": format!("rn_{}", "a".repeat(32)), "gateKey": "g", "for": "<b>Ada & \"co\"</b>",
            "digest": "b".repeat(64), "choice": choice, "expiresAt": 1, "formSchema": form,
        });
        page(&serde_json::from_value(view).unwrap(), "n0")
    }

    #[test]
    fn h9_a_page_shows_what_would_reorder_or_hide_its_text() {
        let view = json!({
            "runId": format!("rn_{}", "a".repeat(32)), "gateKey": "g", "for": "Ada\u{202e}<b\u{200b}>",
            "digest": "b".repeat(64), "choice": null, "expiresAt": 1, "formSchema": plan_form(),
        });
        let page = page(&serde_json::from_value(view).unwrap(), "n0");
        assert!(page.contains("Approval for Ada\\u{202e}&lt;b\\u{200b}&gt;"), "{page}");
    }

    #[test]
    fn agents_a1_a_page_asks_how_much_of_a_budget_or_how_long_a_name_is_granted() {
        let view = |field: &str, asked: serde_json::Value, form: serde_json::Value| {
            let mut view = json!({
                "runId": format!("rn_{}", "a".repeat(32)), "gateKey": "g", "for": "Ada",
                "digest": "b".repeat(64), "choice": null, "expiresAt": 1, "formSchema": form,
            });
            view[field] = asked;
            page(&serde_json::from_value(view).unwrap(), "n0")
        };
        let over = json!({"metric": "micros", "limit": 800_000, "observed": 3, "wanted": 812_345});
        let budget = view("budget", over, cofferdam_contracts::model::grant_form());
        assert!(budget.contains("money: 0.000003 of 0.800000 used"), "{budget}");
        for field in [
            "name=\"calls\"",
            "name=\"tokens\"",
            "data-of=\"1000000\" value=\"1\"",
            "value=\"yes\"",
        ] {
            assert!(budget.contains(field), "{field}: {budget}");
        }
        let asked = json!({"name": "a.example", "phase": "exec"});
        let form = cofferdam_contracts::egress::grant_form("a.example");
        let name = view("asks", asked, form);
        assert!(name.contains("name=\"name\" value=\"a.example\""), "{name}");
        assert!(name.contains("name=\"until\"") && !name.contains("POST its payload"), "{name}");
    }

    #[test]
    fn a_page_offers_what_the_link_may_choose_and_no_markup_of_others() {
        let both = shown(json!(null), plan_form());
        assert!(both.contains("value=\"yes\"") && both.contains("value=\"no\""));
        assert!(
            both.contains("&lt;b&gt;Ada &amp; &quot;co&quot;&lt;/b&gt;") && !both.contains("<b>")
        );
        let no = shown(json!("no"), plan_form());
        assert!(!no.contains("value=\"yes\"") && no.contains("value=\"no\""));
        assert!(!shown(json!(null), json!({"type": "object"})).contains("<button"));
    }
}
