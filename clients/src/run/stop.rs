//! Why a run ends, and what an error of the agent is called.

use std::io;

use rpc::RpcError;
use serde_json::Value;

use super::envelope::Status;
use super::options::Ended;
use crate::Fault;

/// Why no more turns are run.
pub(super) enum Stop {
    Ended(Ended),
    Fault(Fault),
    /// The agent has closed its output.
    Closed,
    TimedOut,
}

/// Writing for the user failed.
impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        match error.kind() {
            // A reader that closes its end is no failure.
            io::ErrorKind::BrokenPipe => Stop::Ended(Ended::Done),
            _ => Stop::Fault(Fault::Failed(format!("cannot write to stdout: {error}"))),
        }
    }
}

/// The status that a stop reason stands for, and a remark for the user.
pub(super) fn meaning_of(stop_reason: &str) -> (Status, Option<&'static str>) {
    match stop_reason {
        "cancelled" => (Status::Cancelled, None),
        "refusal" => (Status::Completed, Some("the agent refuses to go on")),
        "max_tokens" => (Status::Completed, Some("the answer has reached the limit of tokens")),
        "max_turn_requests" => (Status::Completed, Some("the turn has reached the limit of requests")),
        _ => (Status::Completed, None),
    }
}

/// Agents leave members of an error out.
pub(super) fn rpc_error(error: &Value) -> RpcError {
    RpcError {
        code: error["code"].as_i64().and_then(|code| i32::try_from(code).ok()).unwrap_or_default(),
        message: error["message"].as_str().unwrap_or("an error without a message").to_owned(),
        data: error.get("data").cloned(),
    }
}

pub(super) fn describe_error(RpcError { message, data, .. }: &RpcError) -> String {
    let data = data.as_ref().unwrap_or(&Value::Null);
    match data["details"].as_str().or(data["message"].as_str()).or(data.as_str()) {
        Some(details) if !message.contains(details) => format!("{message} ({details})"),
        _ => message.clone(),
    }
}

/// The same, and below it what the process of the agent wrote to its stderr before it ended.
pub(super) fn describe_with_words(error: &RpcError) -> String {
    let lines = last_words(error).map(|line| format!("\n| {line}"));
    describe_error(error) + &lines.collect::<String>()
}

/// The last lines of the agent's stderr, if the bus says that its process has ended.
pub(super) fn last_words(error: &RpcError) -> impl Iterator<Item = &str> {
    error.data.iter().filter_map(|data| data["stderr"].as_str()).flat_map(str::lines)
}
