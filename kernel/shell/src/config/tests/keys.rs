//! The schema and the parser know the same keys, bounds and defaults.

use super::*;

#[test]
fn the_schema_knows_the_keys_that_the_parser_knows() {
    let schema = schema_json();
    let objects = [
        (&schema, &parse::TOP_KEYS[..]),
        (&schema["properties"]["auth"], &parse::AUTH_KEYS[..]),
        (&schema["properties"]["trace"], &parse::TRACE_KEYS[..]),
        (&schema["properties"]["web"], &web::WEB_KEYS[..]),
        (&schema["properties"]["web"]["properties"]["tls"], &web::TLS_KEYS[..]),
        (&schema["$defs"]["pool"], &parse::POOL_KEYS[..]),
        (&schema["$defs"]["limits"], &parse::LIMIT_KEYS[..]),
    ];
    for (object, known) in objects {
        let named = object["properties"].as_object().unwrap();
        let named = named.keys().map(String::as_str).collect::<BTreeSet<_>>();
        assert_eq!(named, known.iter().copied().collect());
        assert_eq!(object["additionalProperties"], false);
        assert!(object["patternProperties"]["^_"].is_object());
    }
}

#[test]
fn every_known_key_is_read() {
    let wrong = r#"{"odd":0}"#;
    for key in parse::TOP_KEYS {
        let text = if key == "pools" {
            format!(r#"{{"pools":{wrong}}}"#)
        } else {
            with_top(&format!(r#","{key}":{wrong}"#))
        };
        assert_eq!(parse(&text).unwrap_err().len(), 1, "{key}");
    }
    for key in parse::POOL_KEYS {
        let mut pool = json!({"id": "a", "command": "x"});
        pool[key] = json!({"odd": 0});
        assert_eq!(parse(&json!({"pools": [pool]}).to_string()).unwrap_err().len(), 1, "{key}");
    }
    for key in parse::LIMIT_KEYS {
        assert_eq!(parse(&with_limits(&format!(r#""{key}":{wrong}"#))).unwrap_err().len(), 1, "{key}");
    }
}

#[test]
fn the_defaults_of_the_schema_change_nothing() {
    let schema = schema_json();
    let defaults = |object: &Value| -> Value {
        let pairs = object["properties"].as_object().unwrap().iter();
        pairs.filter_map(|(key, about)| Some((key.clone(), about.get("default")?.clone()))).collect()
    };
    let limits = defaults(&schema["$defs"]["limits"]);
    assert_eq!(limits.as_object().unwrap().len(), parse::LIMIT_KEYS.len());
    let mut pool = defaults(&schema["$defs"]["pool"]);
    pool["id"] = json!("a");
    pool["command"] = json!("agent");
    let mut file = defaults(&schema);
    file["pools"] = json!([pool]);
    file["limits"] = limits;
    assert_eq!(parse(&file.to_string()).unwrap(), parse(&with_pool("")).unwrap());
}

#[test]
fn the_bounds_of_the_schema_are_those_of_the_parser() {
    let schema = schema_json();
    let in_limits = |key: &str, value: &Value| {
        // `max_held_bytes` must not be smaller, so it is raised too.
        let mut limits = json!({"max_input_buffer": 1024});
        limits[key] = value.clone();
        if key == "max_input_buffer" {
            limits["max_held_bytes"] = json!(1_u64 << 40);
        }
        json!({"pools": [{"id": "a", "command": "x"}], "limits": limits}).to_string()
    };
    let in_pool = |key: &str, value: &Value| {
        let mut pool = json!({"id": "a", "command": "x"});
        pool[key] = value.clone();
        json!({"pools": [pool]}).to_string()
    };
    let numbers = |object: &Value| -> Vec<(String, Value)> {
        let pairs = object["properties"].as_object().unwrap().iter();
        let is_number = |about: &Value| matches!(about["type"].as_str(), Some("integer" | "number"));
        pairs.filter(|(_, about)| is_number(about)).map(|(key, about)| (key.clone(), about.clone())).collect()
    };
    let accepts = |text: String| parse(&text).is_ok();
    let check = |key: &str, about: &Value, file: &dyn Fn(&str, &Value) -> String| {
        let most = about["maximum"].as_u64().unwrap();
        assert!(accepts(file(key, &json!(most))), "{key} {most}");
        assert!(!accepts(file(key, &json!(most + 1))), "{key} {most} + 1");
        let (least, too_small) = match about["exclusiveMinimum"].as_i64() {
            Some(bound) => (json!(bound as f64 + 0.001), json!(bound)),
            None => (about["minimum"].clone(), json!(about["minimum"].as_i64().unwrap() - 1)),
        };
        assert!(accepts(file(key, &least)), "{key} {least}");
        assert!(!accepts(file(key, &too_small)), "{key} {too_small}");
        assert_eq!(accepts(file(key, &json!(2000.5))), about["type"] == "number", "{key} with a fraction");
    };
    for (key, about) in numbers(&schema["$defs"]["limits"]) {
        check(&key, &about, &in_limits);
    }
    for (key, about) in numbers(&schema["$defs"]["pool"]) {
        check(&key, &about, &in_pool);
    }
}

#[test]
fn the_committed_schema_is_the_one_that_is_printed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/bus.schema.json");
    assert_eq!(fs::read_to_string(path).unwrap(), schema());
}
