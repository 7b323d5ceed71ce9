//! What codex's commands that need no model show, as Markdown.

use rpc::text::{rfc3339_of_millis, strip_control};
use serde_json::Value;

use super::codex_commands::skills_of;
use crate::cli::json::{count, items, string};
use crate::cli::settings::Settings;
use crate::cli::turn_events::Tokens;

/// The longest reason of a server that did not start.
const REASON_CHARS: usize = 200;

/// What the session knows of itself.
pub(super) struct Status<'a> {
    pub(super) cwd: &'a str,
    pub(super) thread: &'a str,
    pub(super) model: &'a str,
    pub(super) effort: Option<&'a str>,
    pub(super) settings: &'a Settings,
    pub(super) account: &'a Value,
    pub(super) tokens: Option<Tokens>,
    /// The tokens in the context, and its size.
    pub(super) context: Option<(u64, u64)>,
}

/// The limits are those of `account/rateLimits/read`, or null.
pub(super) fn status(status: &Status<'_>, limits: &Value) -> String {
    let effort = status.effort.map_or(String::new(), |effort| format!(", effort {effort}"));
    let param = |key: &str| status.settings.mode_params.get(key).and_then(Value::as_str).unwrap_or("default");
    let mut lines = vec![
        format!("**Model:** {}{effort}", status.model),
        format!("**Folder:** {}", status.cwd),
        format!(
            "**Mode:** {} (approval {}, sandbox {})",
            status.settings.mode,
            param("approvalPolicy"),
            param("sandbox")
        ),
        format!("**Account:** {}", account(status.account)),
        format!("**Session:** `{}`", status.thread),
    ];
    if let Some(tokens) = status.tokens {
        let usage = tokens.usage();
        lines.push(format!(
            "**Tokens:** {} ({} input, {} cached, {} output)",
            usage.total_tokens, tokens.input, tokens.cached_read, tokens.output
        ));
    }
    if let Some((used, size)) = status.context
        && size > 0
    {
        lines.push(format!("**Context:** {}% used ({used} of {size})", used * 100 / size));
    }
    let by_id = limits["rateLimitsByLimitId"].as_object().filter(|all| !all.is_empty());
    match by_id {
        Some(all) => all.values().for_each(|one| limit_lines(one, &mut lines)),
        None => limit_lines(&limits["rateLimits"], &mut lines),
    }
    // Two spaces are a line break in Markdown.
    lines.join("  \n")
}

fn account(account: &Value) -> String {
    match string(account, "type") {
        "apiKey" => "API key".to_owned(),
        "chatgpt" => format!("ChatGPT {} ({})", string(account, "planType"), string(account, "email")),
        "amazonBedrock" => "Amazon Bedrock".to_owned(),
        "" => "none".to_owned(),
        other => other.to_owned(),
    }
}

fn limit_lines(limits: &Value, lines: &mut Vec<String>) {
    let name = limits["limitName"].as_str().map_or(String::new(), |name| format!(" {name}"));
    for window in [&limits["primary"], &limits["secondary"]] {
        let Some(used) = window["usedPercent"].as_f64() else { continue };
        let time = match count(window, "windowDurationMins") {
            0 => String::new(),
            minutes if minutes % 1440 == 0 => format!(" of {} d", minutes / 1440),
            minutes if minutes % 60 == 0 => format!(" of {} h", minutes / 60),
            minutes => format!(" of {minutes} min"),
        };
        let resets = match count(window, "resetsAt") {
            0 => String::new(),
            seconds => format!(", until {}", rfc3339_of_millis(seconds.saturating_mul(1000))),
        };
        lines.push(format!("**Limit{name}{time}:** {:.0}% left{resets}", (100.0 - used).clamp(0.0, 100.0)));
    }
    let credits = &limits["credits"];
    if credits["unlimited"] == true {
        lines.push("**Credits:** unlimited".to_owned());
    } else if let Some(balance) = credits["balance"].as_str() {
        lines.push(format!("**Credits:** {balance}"));
    }
}

/// The servers of an answer to `mcpServerStatus/list`.
pub(super) fn mcp(list: &Value) -> String {
    let servers = items(list);
    if servers.is_empty() {
        return "No MCP servers are configured.".to_owned();
    }
    let mut lines = Vec::new();
    for server in servers {
        let state = match string(server, "runtimeStatus") {
            "connected" => "connected",
            "starting" => "is starting",
            "notStarted" => "not started",
            "authenticationRequired" => "needs a login",
            "failed" => "failed",
            "cancelled" => "cancelled",
            "disabled" => "turned off",
            _ => "state unknown",
        };
        let tools = server["tools"].as_object().map_or(0, serde_json::Map::len);
        let mut line = format!("- `{}`: {state}", string(server, "name").replace('`', "'"));
        if tools > 0 || state == "connected" {
            line += &format!(", {tools} {}", if tools == 1 { "tool" } else { "tools" });
        }
        if let Some(why) = server["toolsError"].as_str() {
            let why: String = strip_control(why).chars().take(REASON_CHARS).collect();
            line += &format!(" ({why})");
        }
        lines.push(line);
    }
    lines.join("\n")
}

/// The skills of an answer to `skills/list`.
pub(super) fn skills(list: &Value) -> String {
    let line = |(name, description): (&str, &str)| match description {
        "" => format!("- `${name}`"),
        description => format!("- `${name}`: {description}"),
    };
    let lines: Vec<String> = skills_of(list).map(line).collect();
    if lines.is_empty() { "There are no skills.".to_owned() } else { lines.join("\n") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_status_shows_what_is_known_and_nothing_else() {
        let settings = Settings { mode: "ask".to_owned(), ..Settings::default() };
        let mut shown = Status {
            cwd: "/work",
            thread: "t",
            model: "m",
            effort: None,
            settings: &settings,
            account: &json!({ "type": "chatgpt", "planType": "plus", "email": "a@b" }),
            tokens: None,
            context: None,
        };
        let text = status(&shown, &Value::Null);
        assert!(text.contains("**Account:** ChatGPT plus (a@b)") && !text.contains("Limit"), "{text}");
        shown.tokens = Some(Tokens { input: 10, output: 5, ..Tokens::default() });
        shown.context = Some((250, 1000));
        let limits = json!({ "rateLimits": { "limitName": "x",
            "primary": { "usedPercent": 12.4, "windowDurationMins": 300, "resetsAt": 1_700_000_000 },
            "secondary": { "usedPercent": 250, "windowDurationMins": null }, "credits": { "balance": "7" } } });
        let text = status(&shown, &limits);
        for part in [
            "**Tokens:** 15",
            "25% used",
            "**Limit x of 5 h:** 88% left, until 2023-11-14T",
            "0% left",
            "**Credits:** 7",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn servers_and_skills_are_listed_one_a_line() {
        let servers = json!([
            { "name": "a`b", "runtimeStatus": "connected", "tools": { "one": {} } },
            { "name": "c", "runtimeStatus": "failed", "toolsError": "no\u{1b}[31m", "tools": {} },
            { "name": "d", "runtimeStatus": "new" },
        ]);
        let text = mcp(&servers);
        assert_eq!(text.lines().next(), Some("- `a'b`: connected, 1 tool"));
        assert!(text.contains("- `c`: failed (no") && !text.contains('\u{1b}'), "{text}");
        assert!(text.ends_with("state unknown"), "{text}");
        assert_eq!(mcp(&json!([])), "No MCP servers are configured.");
        assert_eq!(skills(&json!([{ "skills": [{ "name": "s", "description": "d" }] }])), "- `$s`: d");
        assert_eq!(skills(&Value::Null), "There are no skills.");
    }
}
