//! Selects the messages of a request: the system prompt, then the newest whole turns that fit the limit.
//!
//! A turn is never split, because every server rejects a tool result without its call. Two prompts in a row (the first
//! was cancelled or failed) are joined, because many chat templates need alternating roles. For the same reason the
//! model is said to have stopped where a prompt follows a tool result.

use super::wire::{Content, Message, Part};

/// A rough cost of an image.
const IMAGE_TOKENS: u64 = 1000;
/// A common estimate, good enough for a limit.
const BYTES_PER_TOKEN: usize = 4;
/// What the model said last in a turn that was stopped after a tool call.
const STOPPED: &str = "[stopped]";
const LEFT_OUT: &str = "[the rest is left out: the conversation is too long]";

/// The first turn that is sent: another than before only if all from there on is longer than the limit. Then there is
/// room again, so that the next requests begin alike and the server can use its cache.
pub(super) fn first_in_window(history: &[Message], before: usize, limit_tokens: u64) -> usize {
    // A refused turn may have been taken back.
    let before = before.min(history.len());
    if estimate_all(&history[before..]) <= limit_tokens {
        return before;
    }
    before.max(first_selected(history, limit_tokens / 4 * 3))
}

/// The length of the history up to the model's last answer, without prompts and results of tools that it has never
/// answered. A call goes with its results: no server takes one without the other.
pub(super) fn answered_length(history: &[Message]) -> usize {
    let last = history.iter().enumerate().rev().find_map(|(at, message)| match message {
        Message::Assistant { tool_calls, .. } => Some(if tool_calls.is_empty() { at + 1 } else { at }),
        _ => None,
    });
    last.unwrap_or(0)
}

/// Leaves tool results out, the oldest first, until the messages fit the limit. Those that the model has not seen yet
/// are only cut. Returns whether there was anything to do.
pub(super) fn shorten_results(messages: &mut [Message], limit_tokens: u64) -> bool {
    let mut tokens = estimate_all(messages);
    if tokens <= limit_tokens {
        return false;
    }
    let is_seen = |message: &Message| matches!(message, Message::Assistant { .. });
    let first_unseen = messages.iter().rposition(is_seen).unwrap_or(0);
    let mut is_shorter = false;
    for (at, message) in messages.iter_mut().enumerate() {
        let before = estimate(message);
        let Message::Tool { content, .. } = message else { continue };
        let keep = if at < first_unseen { 0 } else { (limit_tokens / 4) as usize * BYTES_PER_TOKEN };
        if tokens <= limit_tokens || content.len() <= keep + LEFT_OUT.len() {
            continue;
        }
        content.truncate(beginning(content, keep).len());
        content.push_str(LEFT_OUT);
        is_shorter = true;
        tokens = tokens.saturating_sub(before).saturating_add(estimate(message));
    }
    is_shorter
}

pub(super) fn messages_to_send(
    system_prompt: Option<&str>,
    history: &[Message],
    limit_tokens: Option<u64>,
) -> Vec<Message> {
    let selected = &history[first_selected(history, limit_tokens.unwrap_or(u64::MAX))..];
    let mut messages: Vec<Message> = Vec::with_capacity(selected.len() + 1);
    messages.extend(system_prompt.map(|text| Message::System { content: text.to_owned() }));
    for message in selected {
        match (messages.last_mut(), message) {
            (Some(Message::User { content: before }), Message::User { content }) => {
                let first = std::mem::replace(before, Content::Parts(Vec::new()));
                *before = joined(first, content.clone());
            }
            (Some(Message::Tool { .. }), Message::User { .. }) => {
                let content = Some(STOPPED.to_owned());
                messages.push(Message::Assistant { content, tool_calls: Vec::new() });
                messages.push(message.clone());
            }
            _ => messages.push(message.clone()),
        }
    }
    messages
}

/// The start of the oldest turn that fits. The newest turn always fits.
fn first_selected(history: &[Message], limit_tokens: u64) -> usize {
    let mut first = history.len();
    let mut tokens = 0u64;
    for (at, message) in history.iter().enumerate().rev() {
        tokens = tokens.saturating_add(estimate(message));
        if tokens > limit_tokens && first < history.len() {
            break;
        }
        if matches!(message, Message::User { .. }) {
            first = at;
        }
    }
    first
}

/// At most this much of a text, cut at a character boundary.
pub(super) fn beginning(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

pub(super) fn estimate_all(messages: &[Message]) -> u64 {
    messages.iter().map(estimate).fold(0, u64::saturating_add)
}

/// The tokens of a text.
pub(super) fn estimate_text(text: &str) -> u64 {
    (text.len() / BYTES_PER_TOKEN) as u64
}

fn estimate(message: &Message) -> u64 {
    let text_tokens = estimate_text;
    match message {
        Message::System { content } | Message::Tool { content, .. } => text_tokens(content),
        Message::User { content: Content::Text(text) } => text_tokens(text),
        Message::User { content: Content::Parts(parts) } => {
            let part_tokens = |part: &Part| match part {
                Part::Text { text } => text_tokens(text),
                Part::ImageUrl { .. } => IMAGE_TOKENS,
            };
            parts.iter().map(part_tokens).sum()
        }
        Message::Assistant { content, tool_calls } => {
            let calls = tool_calls.iter().map(|call| text_tokens(&call.function.arguments));
            text_tokens(content.as_deref().unwrap_or_default()) + calls.sum::<u64>()
        }
    }
}

fn joined(first: Content, second: Content) -> Content {
    match (first, second) {
        (Content::Text(first), Content::Text(second)) => Content::Text(format!("{first}\n\n{second}")),
        (first, second) => {
            Content::Parts(first.into_parts().into_iter().chain(second.into_parts()).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::wire::{ImageUrl, ToolCall};
    use super::*;

    fn user(text: &str) -> Message {
        Message::User { content: Content::Text(text.to_owned()) }
    }

    fn assistant(text: &str) -> Message {
        Message::Assistant { content: Some(text.to_owned()), tool_calls: Vec::new() }
    }

    fn call(id: &str) -> Message {
        let calls = vec![ToolCall::new(id.to_owned(), "f".to_owned(), "{}".to_owned())];
        Message::Assistant { content: None, tool_calls: calls }
    }

    fn result(id: &str) -> Message {
        Message::Tool { tool_call_id: id.to_owned(), content: "x".repeat(400) }
    }

    #[test]
    fn the_system_prompt_is_first_and_the_rest_in_order() {
        let history = [user("a"), assistant("b"), user("c")];
        let system = Message::System { content: "s".to_owned() };
        assert_eq!(messages_to_send(Some("s"), &history, None), [&[system], &history[..]].concat());
        assert_eq!(messages_to_send(None, &history, None), history);
    }

    #[test]
    fn prompts_in_a_row_are_joined() {
        assert_eq!(
            messages_to_send(None, &[user("a"), user("b"), assistant("c")], None),
            [user("a\n\nb"), assistant("c")]
        );
        let image = Part::ImageUrl { image_url: ImageUrl { url: "u".to_owned() } };
        let picture = Message::User { content: Content::Parts(vec![image.clone()]) };
        let both = Content::Parts(vec![Part::Text { text: "a".to_owned() }, image]);
        assert_eq!(messages_to_send(None, &[user("a"), picture], None), [Message::User { content: both }]);
    }

    #[test]
    fn a_turn_that_was_stopped_after_a_tool_call_ends_with_a_word_of_the_model() {
        let history = [user("a"), call("1"), result("1"), user("b")];
        let sent = messages_to_send(None, &history, None);
        assert_eq!(sent, [&history[..3], &[assistant(STOPPED)], &history[3..]].concat());
    }

    #[test]
    fn what_has_no_answer_is_told_from_what_has_one() {
        let history = [user("a"), assistant("A"), user("b"), call("1"), result("1"), user("c"), user("d")];
        for (length, answered) in [(0, 0), (1, 0), (2, 2), (3, 2), (5, 3), (7, 3)] {
            assert_eq!(answered_length(&history[..length]), answered, "{length}");
        }
    }

    #[test]
    fn old_turns_are_left_out_whole_and_the_newest_is_always_sent() {
        let history =
            [user("old"), call("1"), result("1"), assistant("done"), user("new"), call("2"), result("2")];
        assert_eq!(messages_to_send(None, &history, Some(150)), history[4..]);
        assert_eq!(messages_to_send(None, &history, Some(0)), history[4..]);
        assert_eq!(messages_to_send(None, &history, Some(1000)), history);
    }

    #[test]
    fn the_window_moves_by_whole_turns_and_not_with_every_turn() {
        let turn = |text: &str| [user(text), call("1"), result("1"), assistant("done")];
        let mut history: Vec<_> = ["a", "b", "c", "d"].iter().flat_map(|text| turn(text)).collect();
        assert_eq!(first_in_window(&history, 0, 1000), 0);
        let first = first_in_window(&history, 0, 390);
        assert_eq!(first, 8, "two turns fit three quarters");
        history.extend(turn("e"));
        assert_eq!(first_in_window(&history, first, 390), first, "there is room again");
        assert_eq!(first_in_window(&history[..2], first, 390), 2, "a turn was taken back");
        assert_eq!(first_in_window(&history, first, 0), 16, "the newest turn is always sent");
    }

    #[test]
    fn old_results_of_a_long_turn_are_left_out_and_new_ones_are_cut() {
        let mut turn = vec![user("a"), call("1"), result("1"), call("2"), result("2")];
        assert!(!shorten_results(&mut turn, 300));
        assert!(shorten_results(&mut turn, 120));
        assert!(matches!(&turn[2], Message::Tool { content, .. } if content == LEFT_OUT));
        assert_eq!(turn[4], result("2"));
        assert!(shorten_results(&mut turn, 40));
        assert!(matches!(&turn[4], Message::Tool { content, .. } if content.len() == 40 + LEFT_OUT.len()));
        assert!(!shorten_results(&mut turn, 0) || estimate_all(&turn) < 60);
        assert!(!shorten_results(&mut [user("a long prompt")], 0));
    }

    proptest! {
        #[test]
        fn the_messages_begin_with_a_prompt_and_end_with_the_newest(
            turns in prop::collection::vec((".{0,40}", ".{0,40}"), 1..12),
            limit in prop::option::of(0u64..60),
        ) {
            let history: Vec<_> = turns.iter().flat_map(|(a, b)| [user(a), assistant(b)]).collect();
            let sent = messages_to_send(None, &history, limit);
            let begins_with_a_prompt = matches!(sent[0], Message::User { .. });
            prop_assert!(begins_with_a_prompt);
            prop_assert_eq!(sent.last(), history.last());
            prop_assert_eq!(&sent[..], &history[history.len() - sent.len()..]);
        }
    }
}
