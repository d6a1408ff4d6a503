use super::*;
use serde_json::json;

fn row(key: &str, scope: ConfigScope, version: u32, value: Value) -> ConfigRow {
    ConfigRow { key: key.parse().unwrap(), scope, version, value }
}

#[test]
fn a_key_reads_as_it_is_written_and_an_unknown_one_is_refused() {
    for key in ConfigKey::all() {
        assert_eq!(key.to_string().parse::<ConfigKey>().unwrap(), key);
    }
    for bad in ["", "profile", "profile.", "profile.cobol", "PROFILE.python", "limits"] {
        assert_eq!(bad.parse::<ConfigKey>().unwrap_err().code, ErrorCode::InvalidId, "{bad}");
    }
}

#[test]
fn the_tenants_value_stands_before_the_hosts_and_null_takes_it_back() {
    let value = |ms: u64| json!({"buildTimeoutMs": ms, "execTimeoutMs": ms, "limits": {}});
    let global = row("profile.go", ConfigScope::Global, 3, value(3_000));
    let tenant = row("profile.go", ConfigScope::Tenant, 5, value(5_000));
    let back = ConfigRow { version: 6, value: Value::Null, ..tenant.clone() };
    for (rows, scope, version, ms) in [
        (vec![tenant.clone(), global.clone()], ConfigScope::Tenant, 5, 5_000),
        (vec![back.clone(), global.clone()], ConfigScope::Global, 3, 3_000),
        (vec![back], ConfigScope::Default, 0, 600_000),
    ] {
        let settings = settings(&rows, &TenantId::parse("acme").unwrap()).unwrap();
        let found = settings.profile(Language::Go).unwrap();
        assert_eq!((found.source.scope, found.source.version), (scope, version));
        assert_eq!(found.value.exec_timeout_ms, ms);
        let entry = entries(&rows).into_iter().find(|e| e.key == rows[0].key).unwrap();
        assert_eq!((entry.scope, entry.version), (scope, version));
    }
}

#[test]
fn a_tenants_number_is_never_above_its_hosts() {
    let key = ConfigKey::PauseRest;
    let own = |seconds: u64| row("pause.rest_s", ConfigScope::Tenant, 1, json!(seconds));
    let host = |seconds: u64| row("pause.rest_s", ConfigScope::Global, 1, json!(seconds));
    assert_eq!(lower_of_both(key, &[]), DEFAULT_REST_S);
    assert_eq!(lower_of_both(key, &[own(0)]), 0);
    assert_eq!(lower_of_both(key, &[own(900)]), DEFAULT_REST_S);
    assert_eq!(lower_of_both(key, &[own(900), host(60)]), 60);
    assert_eq!(lower_of_both(key, &[host(3_600)]), 3_600);
    assert!(check(&key, &json!(3_601)).is_err() && check(&key, &json!(-1)).is_err());
}

#[test]
fn a_tenants_word_comes_before_its_hosts_and_neither_is_off() {
    let key = ConfigKey::E2bInternet;
    let own = |value: Value| row("e2b.internet", ConfigScope::Tenant, 1, value);
    let host = |value: Value| row("e2b.internet", ConfigScope::Global, 1, value);
    for (rows, wanted) in [
        (vec![], false),
        (vec![host(json!(true))], true),
        (vec![host(json!(true)), own(json!(false))], false),
        (vec![host(json!(true)), own(Value::Null)], true),
        (vec![own(json!(true))], true),
    ] {
        assert_eq!(is_on(key, &rows), wanted, "{rows:?}");
    }
    assert!(check(&key, &json!("true")).is_err());
}

#[test]
fn a_value_has_one_name_for_each_field_when_it_is_stored() {
    let key = ConfigKey::Ceiling;
    let kept = check(&key, &json!({"limits": {"mem_mb": 100}})).unwrap();
    assert_eq!(kept, json!({"limits": {"memMB": 100}}));
    for (bad, path) in [
        (json!({"limits": {"memMB": 1}}), "/value/limits/memMB"),
        (json!({"limits": {"memMB": 100, "mem_mb": 100}}), "/value"),
        (json!({"limits": {"nofile": 1.5}}), "/value/limits/nofile"),
        (json!({"surprise": 1}), "/value"),
        (json!([]), "/value"),
        (json!("null"), "/value"),
    ] {
        let refusal = check(&key, &bad).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::SchemaViolation, "{bad}");
        assert_eq!(refusal.details.unwrap()[0]["instancePath"], path, "{bad}");
    }
}

#[test]
fn a_list_of_names_is_held_to_what_a_recipe_may_list_and_stored_in_one_spelling() {
    let key = ConfigKey::ExecAllowed;
    let stored = check(&key, &json!(["A.Example", "@pip"])).unwrap();
    assert_eq!(stored, json!(["a.example", "@pip"]));
    for bad in ["127.1", "a..b", "*.example.org", "localhost", "@maven", "a.example:443"] {
        let refused = check(&key, &json!([bad])).unwrap_err();
        assert!(refused.message.contains("/value/0"), "{refused}");
        assert!(refused.message.contains(&format!("{bad:?}")), "{refused}");
    }
}
