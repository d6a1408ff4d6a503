//! The parsers of what people send to gates: whatever comes in, they answer, and what they accept is
//! within its bounds.

use cofferdam_contracts::consent::edited;
use cofferdam_contracts::delegation::DelegationRequest;
use cofferdam_contracts::gate::{HitlEvent, ReplyRequest, choice_of, plan_form};
use cofferdam_contracts::gate_spec::GateSpec;
use cofferdam_contracts::schema::{Validator, parse_json, schema_of};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        prop_oneof![
            Just("yes"),
            Just("no"),
            Just("approve-plan"),
            Just("human:approve-plan"),
            Just("manual")
        ]
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        let names = prop_oneof![
            Just("payload"),
            Just("dedupeKey"),
            Just("origin"),
            Just("topic"),
            Just("choice"),
            Just("approved"),
            Just("decision"),
            Just("rationale"),
            Just("edits"),
            Just("key"),
            Just("quorum"),
            Just("group"),
            Just("on_timeout"),
            Just("escalate"),
            Just("wait"),
            Just("to"),
            Just("ttlS"),
            Just("workflowId"),
            Just("gateKey"),
            Just("surprise"),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((names, inner), 0..6).prop_map(|fields| {
                Value::Object(
                    fields.into_iter().map(|(n, v)| (n.to_owned(), v)).collect::<Map<_, _>>(),
                )
            }),
        ]
    })
}

/// What the type takes although its schema does not, for these bodies.
fn beyond<T: serde::de::DeserializeOwned + serde::Serialize + schemars::JsonSchema>(
    validator: &Validator,
    body: &Value,
) -> Option<String> {
    let parsed = serde_json::from_value::<T>(body.clone());
    match (validator.check(body), parsed) {
        (Ok(()), Err(e)) => Some(format!("the schema takes {body}, the type says {e}")),
        (Ok(()), Ok(value)) => {
            let again = serde_json::to_value(&value).unwrap();
            validator.check(&again).err().map(|e| format!("{body} came back as {again}: {e}"))
        }
        (Err(_), _) => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_json_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Err(refusal) = parse_json(&bytes) {
            prop_assert_eq!(refusal.code.status(), 400);
        }
    }

    #[test]
    fn what_a_schema_takes_its_type_takes_and_gives_back(body in any_json()) {
        let reply = Validator::compile(&schema_of::<ReplyRequest>()).unwrap();
        let event = Validator::compile(&schema_of::<HitlEvent>()).unwrap();
        let delegation = Validator::compile(&schema_of::<DelegationRequest>()).unwrap();
        prop_assert_eq!(beyond::<ReplyRequest>(&reply, &body), None);
        prop_assert_eq!(beyond::<HitlEvent>(&event, &body), None);
        prop_assert_eq!(beyond::<DelegationRequest>(&delegation, &body), None);
    }

    #[test]
    fn a_payload_that_fits_the_form_is_a_choice(body in any_json()) {
        let form = Validator::compile(&plan_form()).unwrap();
        if form.check(&body).is_ok() {
            prop_assert!(choice_of(&body).is_ok(), "{}", body);
        }
        let _ = edited(&json!({"n": 1}), &body);
    }

    #[test]
    fn a_gates_law_that_parses_is_written_as_it_was_read(body in any_json()) {
        if let Ok(spec) = serde_json::from_value::<GateSpec>(body.clone()) {
            let written = serde_json::to_value(&spec).unwrap();
            prop_assert_eq!(serde_json::from_value::<GateSpec>(written).unwrap(), spec.clone());
            let _ = spec.check(Some(&json!({"type": "object", "properties": {}})));
        }
    }
}
