//! What one request to the model contains: as much of the session as fits the model's context window.
//!
//! A request that the server finds too long is made shorter: by whole turns, the oldest first, and then by results of
//! tools in the newest turn. The client is told.

use std::path::Path;

use serde_json::Value;

use super::config::Config;
use super::convert::agent_thought;
use super::history::{estimate_all, estimate_text, first_in_window, messages_to_send, shorten_results};
use super::mcp_calls::offered_mcp_tools;
use super::refusal::Refusal;
use super::session::TurnEnded;
use super::tools;
use super::turn::Turn;
use super::wire::{Message, Quirks, Request};

/// What is kept free for the answer, unless the user bounds it.
const ANSWER_TOKENS_MAX: u64 = 8192;

/// What one request needs to know of the session.
pub(super) struct RequestContext {
    pub(super) model: String,
    window_tokens: Option<u64>,
    tools: Vec<Value>,
    messages: Vec<Message>,
    /// All of it, estimated.
    tokens: u64,
}

impl RequestContext {
    pub(super) fn request<'a>(&'a self, config: &'a Config) -> Request<'a> {
        Request {
            model: &self.model,
            messages: &self.messages,
            max_tokens: config.max_tokens,
            temperature: config.temperature,
            tools: &self.tools,
            extra: &config.extra_body,
        }
    }
}

impl Turn {
    pub(super) fn request_context(&mut self) -> Result<RequestContext, TurnEnded> {
        let config = &self.shared.config;
        let mut guard = self.session.lock_for(self.number)?;
        let state = &mut *guard;
        let record = &state.record;
        let model = self.shared.model_of(record);
        let client_tools = self.shared.client_tools(record.mode);
        let mut tools = tools::declarations(client_tools, Path::new(&record.cwd), &state.directories);
        let mcp_tools = offered_mcp_tools(state.mcp.as_deref(), record.mode);
        tools.extend(mcp_tools.into_iter().map(|tool| tool.declaration));
        let system_prompt = config.system_prompt.as_deref();
        let fixed_tokens = estimate_text(system_prompt.unwrap_or_default())
            + tools.iter().map(|tool| estimate_text(&tool.to_string())).sum::<u64>();
        let window_tokens = self.shared.window_tokens(&model);
        let most = window_tokens.map(|window| window - answer_tokens(window, config.max_tokens));
        let limit = [most, self.limit_tokens].into_iter().flatten().min().unwrap_or(u64::MAX);
        let limit = limit.saturating_sub(fixed_tokens);
        let first = first_in_window(&record.history, state.first_sent, limit);
        let left_out = &record.history[state.first_sent.min(first)..first];
        let mut messages = messages_to_send(system_prompt, &record.history[first..], config.history_tokens);
        let has_shortened = shorten_results(&mut messages, limit);
        if let Some(note) = trimmed(&model, window_tokens, left_out, has_shortened && !self.has_shortened) {
            self.shared.writer.update(&self.session.id, agent_thought(&note));
        }
        state.first_sent = first;
        self.has_shortened |= has_shortened;
        let tokens = fixed_tokens + estimate_all(&messages);
        Ok(RequestContext { model, window_tokens, tools, messages, tokens })
    }

    /// What to send instead of a request that is too long. `None`: it is not, or nothing more can be left out.
    pub(super) fn shorter_context(
        &mut self,
        context: &RequestContext,
        status: u16,
        refusal: &Refusal,
    ) -> Result<Option<RequestContext>, TurnEnded> {
        if !refusal.is_too_long(Some(status)) {
            return Ok(None);
        }
        let named = refusal.window_tokens();
        if named.is_some() && named != context.window_tokens {
            self.shared.add_quirks(&context.model, Quirks { window_tokens: named, ..Quirks::default() });
        }
        let max_tokens = self.shared.config.max_tokens;
        let most = named.or(context.window_tokens).map(|window| window - answer_tokens(window, max_tokens));
        // If the estimate fits the window, it is too low.
        let limit = most.filter(|most| *most < context.tokens).unwrap_or(context.tokens / 3 * 2);
        self.limit_tokens = Some(limit);
        let shorter = self.request_context()?;
        Ok((shorter.tokens < context.tokens).then_some(shorter))
    }
}

/// How much of the context window is kept free for the answer.
fn answer_tokens(window_tokens: u64, max_tokens: Option<u64>) -> u64 {
    // Many users set the longest answer as high as the window, and the servers do not mind.
    max_tokens.map_or(ANSWER_TOKENS_MAX.min(window_tokens / 4), |most| most.min(window_tokens / 2))
}

/// Tells the user what the model does not see any more.
fn trimmed(
    model: &str,
    window_tokens: Option<u64>,
    left_out: &[Message],
    has_shortened: bool,
) -> Option<String> {
    let turns = left_out.iter().filter(|message| matches!(message, Message::User { .. })).count();
    let what = match (turns, has_shortened) {
        (0, false) => return None,
        (0, true) => "older results of tools are not sent any more".to_owned(),
        (1, _) => "the oldest turn is not sent any more".to_owned(),
        (turns, _) => format!("the {turns} oldest turns are not sent any more"),
    };
    let size = window_tokens.map_or_else(String::new, |size| format!(" ({size} tokens)"));
    Some(format!("The conversation is longer than the context window of {model}{size}: {what}.\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_least_half_of_the_window_is_for_the_conversation() {
        assert_eq!((answer_tokens(1000, None), answer_tokens(200_000, None)), (250, ANSWER_TOKENS_MAX));
        assert_eq!((answer_tokens(1000, Some(100)), answer_tokens(1000, Some(9000))), (100, 500));
    }
}
