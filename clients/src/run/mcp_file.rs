//! Reads the file of `run --mcp`: MCP servers, as ACP or as the `.mcp.json` of editors spells them.

use serde_json::{Map, Value, json};

/// The servers as session/new takes them. The text is a list of such servers, or `{"mcpServers": {NAME: {..}}}`.
pub fn parse_mcp_servers(text: &str) -> Result<Vec<Value>, String> {
    let file: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match file {
        Value::Array(servers) => servers.iter().map(|server| read(server["name"].as_str(), server)).collect(),
        Value::Object(file) => match file.get("mcpServers") {
            Some(Value::Object(servers)) => {
                servers.iter().map(|(name, server)| read(Some(name), server)).collect()
            }
            _ => Err("an object must have `mcpServers`, an object of servers by their names".to_owned()),
        },
        _ => Err("neither a list of servers nor an object with `mcpServers`".to_owned()),
    }
}

fn read(name: Option<&str>, server: &Value) -> Result<Value, String> {
    let name = name.filter(|name| !name.is_empty()).ok_or("a server without a `name`")?;
    let failed = |why: &str| format!("{name}: {why}");
    if let Some(command) = server["command"].as_str() {
        let args = strings(&server["args"]).ok_or_else(|| failed("`args` must be a list of texts"))?;
        let env = pairs(&server["env"]).ok_or_else(|| failed("`env` must name texts"))?;
        return Ok(json!({ "name": name, "command": command, "args": args, "env": env }));
    }
    let url = server["url"].as_str().ok_or_else(|| failed("neither a `command` nor a `url`"))?;
    let kind = match server["type"].as_str().or(server["transport"].as_str()) {
        Some("sse") => "sse",
        None | Some("http" | "streamable-http" | "streamableHttp") => "http",
        Some(other) => return Err(failed(&format!("the type {other:?} is unknown: http and sse are known"))),
    };
    let headers = pairs(&server["headers"]).ok_or_else(|| failed("`headers` must name texts"))?;
    Ok(json!({ "type": kind, "name": name, "url": url, "headers": headers }))
}

fn strings(list: &Value) -> Option<Vec<&str>> {
    match list {
        Value::Null => Some(Vec::new()),
        list => list.as_array()?.iter().map(Value::as_str).collect(),
    }
}

/// `{NAME: VALUE}` or `[{"name", "value"}]` as the latter.
fn pairs(named: &Value) -> Option<Vec<Value>> {
    let pair = |name: &str, value: &str| json!({ "name": name, "value": value });
    match named {
        Value::Null => Some(Vec::new()),
        Value::Array(list) => {
            list.iter().map(|one| Some(pair(one["name"].as_str()?, one["value"].as_str()?))).collect()
        }
        Value::Object(map) => {
            let map: &Map<String, Value> = map;
            map.iter().map(|(name, value)| Some(pair(name, value.as_str()?))).collect()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_become_servers_of_acp() {
        let editors = r#"{"mcpServers": {
            "files": {"command": "npx", "args": ["-y", "x"], "env": {"A": "1"}},
            "web": {"url": "https://example.org/mcp", "headers": {"Authorization": "Bearer t"}},
            "old": {"type": "sse", "url": "http://localhost/sse"}
        }}"#;
        let env = json!([{ "name": "A", "value": "1" }]);
        let files = json!({ "name": "files", "command": "npx", "args": ["-y", "x"], "env": env });
        let servers = parse_mcp_servers(editors).unwrap();
        assert!(servers.contains(&files), "{servers:?}");
        let header = json!({ "name": "Authorization", "value": "Bearer t" });
        let web =
            json!({ "type": "http", "name": "web", "url": "https://example.org/mcp", "headers": [header] });
        assert!(servers.contains(&web), "{servers:?}");
        assert!(servers.iter().any(|server| server["type"] == "sse"));
        let own = Value::Array(servers.clone()).to_string();
        assert_eq!(parse_mcp_servers(&own).unwrap(), servers);
    }

    #[test]
    fn what_is_wrong_names_the_server() {
        let cases = [
            ("7", "neither a list"),
            ("{}", "must have `mcpServers`"),
            (r#"[{"command":"x"}]"#, "without a `name`"),
            (r#"[{"name":"a"}]"#, "a: neither a `command` nor a `url`"),
            (r#"[{"name":"a","command":"x","args":[1]}]"#, "a: `args`"),
            (r#"[{"name":"a","command":"x","env":{"A":1}}]"#, "a: `env`"),
            (r#"[{"name":"a","url":"x","type":"tcp"}]"#, "a: the type \"tcp\" is unknown"),
        ];
        for (text, words) in cases {
            let why = parse_mcp_servers(text).unwrap_err();
            assert!(why.contains(words), "{text}: {why}");
        }
    }
}
