//! Calls that ask for more than their budgets hold.

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
