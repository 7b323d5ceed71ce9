//! The official Rust SDK as a client of the web door, told what to do line by line on stdin.
//!
//!     client-rust --web URL TOKEN         ws:// or http://
//!
//! Takes the same orders as client_python.py and prints the same answers and events.

use std::env;
use std::io::Write;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    CancelNotification, CloseSessionRequest, ContentBlock, InitializeRequest, LoadSessionRequest,
    NewSessionRequest, PromptRequest, RequestPermissionOutcome, RequestPermissionRequest,
    RequestPermissionResponse, SelectedPermissionOutcome, SessionNotification, TextContent,
};
use agent_client_protocol::{Agent, Client, Error};
use agent_client_protocol_http::HttpClient;
use reqwest::header::{AUTHORIZATION, HeaderMap};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};

fn say(message: &Value) {
    let _ = writeln!(std::io::stdout(), "{message}");
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = env::args().collect();
    let [_, _, url, token] = &arguments[..] else { return Err("client-rust --web URL TOKEN".into()) };
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, format!("Bearer {token}").parse()?);
    let transport = HttpClient::builder_with_endpoint(url)
        .configure_http(|http| http.default_headers(headers).no_proxy())
        .build()?;
    Client
        .v1()
        .on_receive_notification(
            async move |notification: SessionNotification, _connection| {
                let told = json!(notification);
                let update = &told["update"];
                say(&json!({
                    "event": "update",
                    "session": told["sessionId"],
                    "kind": update["sessionUpdate"],
                    "text": update["content"]["text"],
                    "status": update["status"],
                }));
                Ok(())
            },
            agent_client_protocol::on_receive_notification!(),
        )
        .on_receive_request(
            async move |request: RequestPermissionRequest, responder, _connection| {
                let options: Vec<Value> =
                    request.options.iter().map(|option| json!(option)["kind"].clone()).collect();
                say(&json!({ "event": "permission", "session": request.session_id, "options": options }));
                let chosen = request.options[0].option_id.clone();
                let outcome = RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(chosen));
                responder.respond(RequestPermissionResponse::new(outcome))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .connect_with(transport, async move |agent: ConnectionTo<Agent>| {
            let mut orders = BufReader::new(stdin()).lines();
            while let Ok(Some(line)) = orders.next_line().await {
                let order: Value = serde_json::from_str(&line).map_err(Error::into_internal_error)?;
                let agent = agent.clone();
                tokio::spawn(async move {
                    let answer = match obey(&agent, &order).await {
                        Ok(ok) => json!({ "n": order["n"], "ok": ok }),
                        Err(fault) => json!({ "n": order["n"], "error": fault }),
                    };
                    say(&answer);
                });
            }
            Ok(())
        })
        .await?;
    Ok(())
}

async fn obey(agent: &ConnectionTo<Agent>, order: &Value) -> Result<Value, Error> {
    let text = |key: &str| order[key].as_str().unwrap_or_default().to_owned();
    match order["do"].as_str() {
        Some("initialize") => {
            let answer = agent.send_request(InitializeRequest::new(ProtocolVersion::V1)).block_task().await?;
            Ok(json!({ "version": answer.protocol_version, "agent": answer.agent_info }))
        }
        Some("new") => {
            let opened = agent.send_request(NewSessionRequest::new(text("cwd"))).block_task().await?;
            Ok(json!({ "session": opened.session_id }))
        }
        Some("load") => {
            agent.send_request(LoadSessionRequest::new(text("session"), text("cwd"))).block_task().await?;
            Ok(json!({}))
        }
        Some("prompt") => {
            let prompt = vec![ContentBlock::Text(TextContent::new(text("text")))];
            let answer = agent.send_request(PromptRequest::new(text("session"), prompt)).block_task().await?;
            Ok(json!({ "stop": answer.stop_reason }))
        }
        Some("cancel") => {
            agent.send_notification(CancelNotification::new(text("session")))?;
            Ok(Value::Null)
        }
        Some("close") => {
            agent.send_request(CloseSessionRequest::new(text("session"))).block_task().await?;
            Ok(json!({}))
        }
        _ => Err(Error::method_not_found()),
    }
}
