//! What budgets make of a call: one that asks for more than they hold, and one that counts.

use cofferdam_tests::Home;
use serde_json::{Value, json};

use super::{calls, outcomes, provider, ran};
use crate::support::assert_proven;
use crate::support::fake_model::FakeModel;

/// Agents ask for the most that a model writes: a small budget has room for their first call all the same.
#[tokio::test(flavor = "multi_thread")]
async fn agents_b2_a_call_is_sent_with_the_output_that_its_budget_has_room_for() {
    let (home, fake) = (Home::new(), FakeModel::new());
    let up = home.up();
    provider(&up, &fake, json!({})).await;
    let body = r#"{"model":"m","max_tokens":32000,"messages":[{"role":"user","content":"do:ok"}]}"#;
    let ask = format!(
        "curl -s -o /tmp/a -w '%{{http_code}}\\n' -d '{body}' $ANTHROPIC_BASE_URL/v1/messages; "
    );
    let budget = "{providers: [fake], budget: {tokens: 6000}}";
    let (run, out) = ran(&home, &up, budget, &ask.repeat(2)).await;
    assert_eq!(out, ["200", "200"]);
    let sent: Vec<Value> = fake.heard().iter().map(|one| one.body["max_tokens"].clone()).collect();
    // The second has what the first left: 15 tokens were paid.
    assert_eq!(sent, [json!(6_000 - body.len()), json!(5_985 - body.len())]);
    assert!(calls(&up, &run).await.iter().all(|call| call["tokens"] == 15));
    let (run, out) = ran(&home, &up, "{providers: [fake], budget: {tokens: 4000}}", &ask).await;
    assert_eq!((out, outcomes(&calls(&up, &run).await)), (vec!["403".to_owned()], vec!["refused"]));
    assert_eq!(fake.heard().len(), 2, "what has room for too little is not sent");
    let roomy = "{providers: [fake], budget: {tokens: 100000}}";
    ran(&home, &up, roomy, &ask).await;
    assert_eq!(fake.heard()[2].body["max_tokens"], 32_000, "and what fits stays as it is");
    assert_proven(&home);
}

/// A count sends the context to the provider, so it is a call on record; nothing is set aside for it, and nothing is paid.
#[tokio::test(flavor = "multi_thread")]
async fn agents_b11_tokens_are_counted_by_the_provider_and_cost_nothing() {
    let (home, fake) = (Home::new(), FakeModel::new());
    let up = home.up();
    provider(&up, &fake, json!({})).await;
    let count = |model: &str, word: &str| {
        let text = format!("do:{word} {}", "long ".repeat(100));
        let body = json!({"model": model, "messages": [{"role": "user", "content": text}]});
        format!(
            "curl -s -o /tmp/a -w '%{{http_code}}\\n' -d '{body}' $ANTHROPIC_BASE_URL/v1/messages/count_tokens; "
        )
    };
    let script = [
        count("m", "ok"),
        "cat /tmp/a; echo; ".to_owned(),
        count("m", "429"),
        count("other", "ok"),
    ];
    let budget = "{providers: [fake], budget: {tokens: 50, calls: 2}}";
    let (run, out) = ran(&home, &up, budget, &script.concat()).await;
    assert_eq!(out, ["200", "{\"input_tokens\":2095}", "429", "403"]);
    let calls = calls(&up, &run).await;
    assert_eq!(outcomes(&calls), ["counted", "provider_error", "refused"]);
    assert!(calls.iter().all(|call| call["tokens"] == 0 && call["micros"] == 0), "{calls:?}");
    let lines: Vec<String> = fake.heard().into_iter().map(|one| one.line).collect();
    assert_eq!(lines, vec!["POST /v1/messages/count_tokens HTTP/1.1"; 2]);
    assert_proven(&home);
}
