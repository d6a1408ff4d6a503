//! Reply links: made with a key, followed without one.

use axum::http::StatusCode;
use cofferdam_ambient::random::secret_hex;
use cofferdam_contracts::gate::Choice;
use cofferdam_contracts::id::{GateKey, WorkflowId};
use cofferdam_contracts::link::{LinkReply, LinkRequest, LinkView};
use cofferdam_contracts::printable;

use crate::answer::{Answer, Answered, json as answer, ok};
use crate::call::Call;

/// What the page's button does. It answers where the page came from, so no address stands in it.
const SCRIPT: &str = "for (const b of document.querySelectorAll('button')) b.onclick = async () => {
  const said = document.querySelector('textarea').value;
  const payload = {choice: b.value};
  if (said) payload.rationale = said;
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

pub(crate) async fn create(mut call: Call) -> Answered {
    let gate: GateKey = call.id("gate")?;
    let run: WorkflowId = call.id("id")?;
    let request: LinkRequest = call.body()?;
    let url = &call.shared.public_url;
    let made = call.flows().link_create(&call.who, run.as_str(), &gate, &request, url).await?;
    answer(StatusCode::CREATED, &made)
}

/// A page for browsers, JSON for everything else. Changes nothing: mail scanners follow links too.
pub(crate) async fn view(call: Call) -> Answered {
    let view = call.flows().link_view(call.param("token")).await?;
    if !call.wants_page {
        return ok(&view);
    }
    let nonce = secret_hex(16);
    Ok(Answer::Page { html: page(&view, &nonce), nonce })
}

pub(crate) async fn reply(mut call: Call) -> Answered {
    let reply: LinkReply = call.body()?;
    ok(&call.flows().link_reply(call.param("token"), &reply).await?)
}

fn page(view: &LinkView, nonce: &str) -> String {
    let asks = |field: &str| view.form_schema.pointer(&format!("/properties/{field}")).is_some();
    // A grant names what and until when: more than two buttons say.
    let asks_a_choice = asks("choice") && !asks("grant");
    let button = |choice: &str| format!("<button value=\"{choice}\">{choice}</button> ");
    let buttons = match (asks_a_choice, view.choice) {
        (false, _) => String::new(),
        (true, None) => format!("{}{}", button("yes"), button("no")),
        (true, Some(Choice::Yes)) => button("yes"),
        (true, Some(Choice::No)) => button("no"),
    };
    let way = if asks_a_choice {
        format!(
            "<p><textarea rows=\"4\" cols=\"60\" maxlength=\"4000\" placeholder=\"why (optional)\"></textarea></p><p>{buttons}</p>"
        )
    } else {
        "<p>This gate asks for more than yes or no: POST its payload as JSON to this address.</p>"
            .to_owned()
    };
    let asks = view.asks.as_ref().map(|asked| {
        let (name, phase) = (escape(&asked.name), asked.phase.as_str());
        format!("<dt>Asked for<dd><code>{name}</code>, by the task's {phase} phase")
    });
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Approval</title>\
         <style nonce=\"{nonce}\">{STYLE}</style>\
         <h1>Approval for {name}</h1><dl><dt>Run<dd>{run}<dt>Gate<dd>{gate}{asks}<dt>Digest of what is approved\
         <dd><code>{digest}</code></dl>{plan}{way}<p><output></output></p>\
         <script nonce=\"{nonce}\">{SCRIPT}</script></html>",
        name = escape(&view.name),
        run = view.run_id,
        gate = view.gate_key,
        digest = view.digest,
        asks = asks.unwrap_or_default(),
        plan = plan(view),
    )
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
