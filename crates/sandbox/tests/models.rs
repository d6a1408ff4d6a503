//! The endpoint of models inside a sandbox, in every class: what passes, what does not, and what never leaves.

use crate::support;

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use cofferdam_contracts::model::ModelProtocol;
use cofferdam_sandbox::{ModelCall, ModelCut, ModelGateway, ModelReply};
use serde_json::json;
use support::{in_classes, sh, verified};
use tokio::sync::{Notify, mpsc};

/// Answers chat with one line now and one after somebody called responses; messages break off.
#[derive(Debug, Default)]
struct Gateway {
    calls: Mutex<Vec<ModelCall>>,
    second: Notify,
}

impl ModelGateway for Gateway {
    fn call(self: Arc<Self>, call: ModelCall) -> Pin<Box<dyn Future<Output = ModelReply> + Send>> {
        Box::pin(async move {
            self.calls.lock().unwrap().push(call.clone());
            let (pipe, body) = mpsc::channel(4);
            let say = |text: &'static str| pipe.try_send(Ok(Bytes::from_static(text.as_bytes())));
            match call.protocol {
                ModelProtocol::OpenaiChat => {
                    say("one\n").unwrap();
                    tokio::spawn(async move {
                        self.second.notified().await;
                        pipe.send(Ok(Bytes::from_static(b"two\n"))).await.unwrap();
                    });
                }
                ModelProtocol::OpenaiResponses => {
                    say("second\n").unwrap();
                    self.second.notify_one();
                }
                ModelProtocol::AnthropicMessages => {
                    say("half\n").unwrap();
                    pipe.try_send(Err(ModelCut)).unwrap();
                }
            }
            ModelReply { status: 200, headers: vec![("content-type", "text/plain".into())], body }
        })
    }

    fn models(self: Arc<Self>) -> Pin<Box<dyn Future<Output = Vec<String>> + Send>> {
        Box::pin(async { vec!["m".to_owned()] })
    }
}

#[test]
fn an_answer_passes_as_it_comes_and_nothing_that_could_be_a_key_goes_out() {
    in_classes(&[], |bench| async move {
        let fields = json!({"spec": {"models": {"providers": ["p"]}}});
        let (sandbox, plan) = bench.start(fields).await;
        let gateway = Arc::new(Gateway::default());
        sandbox.traffic().serve_models(gateway.clone());
        let script = "curl -sN -H \"authorization: Bearer $OPENAI_API_KEY\" -d '{}' $OPENAI_BASE_URL/chat/completions | \
                      { read a; curl -s -d '{}' $OPENAI_BASE_URL/responses; cat; echo $a; }";
        let said = sh(&sandbox, &plan, script).await;
        assert_eq!(said.stdout, "second\ntwo\none\n", "{}", said.stderr);
        let script = "curl -s -d '{}' $ANTHROPIC_BASE_URL/v1/messages; echo $?";
        let said = sh(&sandbox, &plan, script).await;
        // The first bytes may not have left before the end did.
        let whole = ["half\n0\n", "0\n"].contains(&said.stdout.as_str());
        assert!(!whole, "a part is not taken for the whole: {}", said.stdout);
        let script = "for p in /v1/models /v1/embeddings /; do curl -s -o /dev/null -w '%{http_code} ' $ANTHROPIC_BASE_URL$p; done; \
                      head -c 34000000 /dev/zero | curl -s -o /dev/null -w '%{http_code}' -H expect: --data-binary @- $OPENAI_BASE_URL/responses";
        let said = sh(&sandbox, &plan, script).await;
        assert_eq!(said.stdout, "200 404 404 413", "{}", said.stderr);
        // A name is as unreachable as without the endpoint.
        let said = sh(&sandbox, &plan, "curl -s -m 5 http://b.example/; echo $?").await;
        assert_ne!(said.stdout, "0\n");
        let calls = gateway.calls.lock().unwrap().clone();
        assert_eq!(calls.len(), 3);
        for call in &calls {
            assert!(call.headers.iter().all(|(name, _)| *name != "authorization"), "{call:?}");
            assert_eq!(&call.body[..], b"{}");
        }
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn without_a_gateway_every_call_is_refused() {
    in_classes(&[], |bench| async move {
        let fields = json!({"spec": {"models": {"providers": ["p"]}}});
        let (sandbox, plan) = bench.start(fields).await;
        let script = "curl -s -w '%{http_code}' -d '{}' $OPENAI_BASE_URL/chat/completions";
        let said = sh(&sandbox, &plan, script).await;
        assert!(
            said.stdout.contains("no_models") && said.stdout.ends_with("403"),
            "{}",
            said.stdout
        );
        verified(&sandbox.wipe("task-end").await);
    });
}
