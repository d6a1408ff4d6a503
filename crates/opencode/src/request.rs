//! What may be sent. A prompt is one text: there is no type here for another session above it, for a task, or for
//! another kind of part, so none can be sent. `architecture::children` holds that only this module serializes.

use serde::Serialize;
use serde_json::Value;

use crate::ids::{Ids, SessionId};

/// Whose turn it is. The wrapper decides, never a caller's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Agent {
    /// Reads and plans; its edits and commands are denied.
    Plan,
    /// Edits and runs commands.
    Build,
}

/// A model as the daemon's configuration names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Model {
    /// The provider's key in the configuration.
    #[serde(rename = "providerID")]
    pub provider: String,
    /// The model's key there.
    #[serde(rename = "modelID")]
    pub model: String,
}

/// One prompt, and who answers it: its agent, model and answer's schema.
#[derive(Debug, Clone)]
pub struct Prompt<'a> {
    /// Its ids, which the caller has stored.
    pub ids: &'a Ids,
    /// Whose turn it is.
    pub agent: Agent,
    /// The model that answers.
    pub model: &'a Model,
    /// What the agent is asked.
    pub text: &'a str,
    /// JSON Schema of the answer. The daemon passes it to the model and does not validate: the caller does.
    pub schema: Option<&'a Value>,
}

#[derive(Serialize)]
struct Body<'a> {
    #[serde(rename = "messageID")]
    message: &'a str,
    agent: Agent,
    model: &'a Model,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<Format<'a>>,
    parts: [Text<'a>; 1],
}

#[derive(Serialize)]
struct Format<'a> {
    r#type: &'static str,
    schema: &'a Value,
}

#[derive(Serialize)]
struct Text<'a> {
    id: &'a str,
    r#type: &'static str,
    text: &'a str,
}

#[derive(Serialize)]
struct Create<'a> {
    id: &'a str,
    agent: Agent,
    location: Location<'a>,
}

#[derive(Serialize)]
struct Location<'a> {
    directory: &'a str,
}

#[derive(Serialize)]
struct Permit<'a> {
    permission: [Rule; 2],
    title: &'a str,
}

#[derive(Serialize)]
struct Rule {
    permission: &'static str,
    pattern: &'static str,
    action: &'static str,
}

#[derive(Serialize)]
struct PermissionReply {
    reply: &'static str,
}

fn bytes(value: &impl Serialize) -> Vec<u8> {
    // Texts, numbers and JSON values always have a form.
    serde_json::to_vec(value).unwrap_or_default()
}

pub(crate) fn prompt(prompt: &Prompt<'_>) -> Vec<u8> {
    let format = prompt.schema.map(|schema| Format { r#type: "json_schema", schema });
    let part = Text { id: prompt.ids.part(), r#type: "text", text: prompt.text };
    let (message, agent, model) = (prompt.ids.message(), prompt.agent, prompt.model);
    bytes(&Body { message, agent, model, format, parts: [part] })
}

pub(crate) fn create(session: &SessionId, agent: Agent, directory: &str) -> Vec<u8> {
    bytes(&Create { id: session.as_str(), agent, location: Location { directory } })
}

/// Denied for the session too, so that a configuration of the project cannot allow it.
pub(crate) fn permit(title: &str) -> Vec<u8> {
    let deny = |permission| Rule { permission, pattern: "*", action: "deny" };
    bytes(&Permit { permission: [deny("task"), deny("question")], title })
}

pub(crate) fn permission(once: bool) -> Vec<u8> {
    bytes(&PermissionReply { reply: if once { "once" } else { "reject" } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_prompt_is_one_text_and_has_no_word_for_a_child() {
        let session = SessionId::derive("s").unwrap();
        let ids = Ids::derive(&session, "ExecuteST", 1).unwrap();
        let model = Model { provider: "proxy".to_owned(), model: "m".to_owned() };
        let schema = json!({"type": "object"});
        let text = "{\"type\":\"subtask\"}";
        let sent =
            Prompt { ids: &ids, agent: Agent::Plan, model: &model, text, schema: Some(&schema) };
        let body: Value = serde_json::from_slice(&prompt(&sent)).unwrap();
        assert_eq!(
            body,
            json!({"messageID": ids.message(), "agent": "plan",
                "model": {"providerID": "proxy", "modelID": "m"},
                "format": {"type": "json_schema", "schema": schema},
                "parts": [{"id": ids.part(), "type": "text", "text": text}]})
        );
        let body: Value = serde_json::from_slice(&create(&session, Agent::Plan, "/work")).unwrap();
        assert_eq!(body.as_object().unwrap().len(), 3, "{body}");
    }
}
