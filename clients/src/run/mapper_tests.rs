//! The rules of the mapper, one test per rule.
//!
//! Ids are never compared with fixed values, only with each other and with their format.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::*;

/// A mapper and all its envelopes as JSON.
struct Story {
    mapper: Mapper,
    envelopes_out: Vec<Value>,
    now_ms: u64,
}

impl Story {
    fn new() -> Story {
        Story::with(false)
    }

    fn streaming() -> Story {
        Story::with(true)
    }

    fn with(stream: bool) -> Story {
        Story { mapper: Mapper::new(Cuids::new([1; 32]), stream), envelopes_out: Vec::new(), now_ms: 1_000 }
    }

    fn note(&mut self, envelopes: Vec<Envelope>) -> &mut Story {
        self.envelopes_out.extend(envelopes.iter().map(|one| serde_json::to_value(one).unwrap()));
        self
    }

    fn running(&mut self) -> &mut Story {
        let envelopes = self.mapper.start_turn(self.now_ms);
        self.note(envelopes)
    }

    fn turn_ended(&mut self, status: Status) -> &mut Story {
        let envelopes = self.mapper.end_turn(status, &Value::Null, self.now_ms);
        self.note(envelopes)
    }

    fn idle(&mut self) -> &mut Story {
        self.turn_ended(Status::Completed)
    }

    fn update(&mut self, update: Value) -> &mut Story {
        let envelopes = self.mapper.update(&update, self.now_ms);
        self.note(envelopes)
    }

    fn text(&mut self, text: &str) -> &mut Story {
        let content = json!({ "type": "text", "text": text });
        self.update(json!({ "sessionUpdate": "agent_message_chunk", "content": content }))
    }

    fn thought(&mut self, text: &str) -> &mut Story {
        let content = json!({ "type": "text", "text": text });
        self.update(json!({ "sessionUpdate": "agent_thought_chunk", "content": content }))
    }

    fn tool_call(&mut self, id: &str) -> &mut Story {
        self.update(json!({
            "sessionUpdate": "tool_call", "toolCallId": id, "title": "List files", "kind": "execute",
            "rawInput": { "command": "ls" },
        }))
    }

    fn tool_result(&mut self, id: &str) -> &mut Story {
        self.update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": id, "status": "completed" }))
    }

    fn asks_permission(&mut self, id: &str) -> &mut Story {
        let call = json!({ "toolCallId": id, "title": "rm -rf", "kind": "execute" });
        let envelopes = self.mapper.permission(&call, self.now_ms);
        self.note(envelopes)
    }

    /// The kinds of all envelopes.
    fn kinds(&self) -> Vec<&str> {
        self.envelopes_out.iter().map(|one| one["ev"]["t"].as_str().unwrap()).collect()
    }

    fn turns(&self) -> HashSet<&str> {
        self.envelopes_out.iter().map(|one| one["turn"].as_str().expect("a turn")).collect()
    }
}

fn is_cuid2(id: &Value) -> bool {
    let Some(id) = id.as_str() else { return false };
    id.len() == 24
        && id.starts_with(|one: char| one.is_ascii_lowercase())
        && id.chars().all(|one| one.is_ascii_lowercase() || one.is_ascii_digit())
}

#[test]
fn running_emits_one_turn_start_with_a_cuid2_turn() {
    let mut story = Story::new();
    story.running();
    assert_eq!(story.kinds(), ["turn-start"]);
    assert_eq!(story.envelopes_out[0]["ev"], json!({ "t": "turn-start" }));
    assert!(is_cuid2(&story.envelopes_out[0]["turn"]) && is_cuid2(&story.envelopes_out[0]["id"]));
    assert_eq!(story.envelopes_out[0]["role"], "agent");
}

#[test]
fn running_then_idle_completes_the_turn() {
    let mut story = Story::new();
    story.running().idle();
    assert_eq!(story.kinds(), ["turn-start", "turn-end"]);
    assert_eq!(story.envelopes_out[1]["ev"]["status"], "completed");
    assert_eq!(story.turns().len(), 1);
}

#[test]
fn running_then_error_fails_the_turn() {
    let mut story = Story::new();
    story.running().turn_ended(Status::Failed);
    assert_eq!(story.envelopes_out[1]["ev"], json!({ "t": "turn-end", "status": "failed" }));
    assert_eq!(story.turns().len(), 1);
}

#[test]
fn running_then_stopped_cancels_the_turn() {
    let mut story = Story::new();
    story.running().turn_ended(Status::Cancelled);
    assert_eq!(story.envelopes_out[1]["ev"], json!({ "t": "turn-end", "status": "cancelled" }));
    assert_eq!(story.turns().len(), 1);
}

#[test]
fn an_image_is_named_on_a_line_of_its_own() {
    let image = json!({ "type": "image", "mimeType": "image/png", "data": "QUJD" });
    let said = json!({ "sessionUpdate": "agent_message_chunk", "content": image });
    let mut story = Story::new();
    story.running().text("Here").update(said.clone()).text("and on").idle();
    assert_eq!(story.envelopes_out[1]["ev"]["text"], "Here\n[image image/png, 3 bytes]\nand on");
    let mut story = Story::streaming();
    story.running().update(said);
    assert_eq!(story.envelopes_out[1]["ev"]["text"], "\n[image image/png, 3 bytes]\n");
}

#[test]
fn running_twice_starts_one_turn() {
    let mut story = Story::new();
    story.running().running();
    assert_eq!(story.kinds(), ["turn-start"]);
}

#[test]
fn idle_without_prior_running_says_nothing() {
    let mut story = Story::new();
    story.idle();
    assert!(story.envelopes_out.is_empty());
}

#[test]
fn idle_twice_ends_one_turn() {
    let mut story = Story::new();
    story.running().idle().idle();
    assert_eq!(story.kinds(), ["turn-start", "turn-end"]);
}

#[test]
fn two_cycles_are_two_turns() {
    let mut story = Story::new();
    story.running().idle().running().idle();
    assert_eq!(story.kinds(), ["turn-start", "turn-end", "turn-start", "turn-end"]);
    assert_eq!(story.envelopes_out[0]["turn"], story.envelopes_out[1]["turn"]);
    assert_eq!(story.envelopes_out[2]["turn"], story.envelopes_out[3]["turn"]);
    assert_eq!(story.turns().len(), 2);
}

#[test]
fn starting_is_ignored() {
    let mut story = Story::new();
    story.update(json!({ "sessionUpdate": "available_commands_update", "availableCommands": [] }));
    story.update(json!({ "sessionUpdate": "current_mode_update", "currentModeId": "code" }));
    story.update(json!({ "sessionUpdate": "a_thing_to_come" })).update(json!(7)).update(Value::Null);
    assert!(story.envelopes_out.is_empty());
}

#[test]
fn model_output_during_a_turn_is_text_of_that_turn() {
    let mut story = Story::new();
    story.running().text("Hello").idle();
    assert_eq!(story.kinds(), ["turn-start", "text", "turn-end"]);
    assert_eq!(story.envelopes_out[1]["ev"], json!({ "t": "text", "text": "Hello" }));
    assert_eq!(story.turns().len(), 1);
}

#[test]
fn model_output_without_a_turn_is_text_without_turn() {
    let mut story = Story::new();
    story.text("early").idle();
    assert_eq!(story.kinds(), ["text"]);
    assert!(story.envelopes_out[0].get("turn").is_none());
    story.text("late").running();
    assert_eq!(story.kinds(), ["text", "text", "turn-start"]);
    assert!(story.envelopes_out[1].get("turn").is_none());
}

#[test]
fn an_empty_text_delta_is_no_envelope() {
    for mut story in [Story::new(), Story::streaming()] {
        story.running().text("").idle();
        assert_eq!(story.kinds(), ["turn-start", "turn-end"]);
    }
}

#[test]
fn text_is_kept_until_something_else_comes_and_trimmed_of_newlines() {
    let mut story = Story::new();
    story.running().text("\n\nHel").text("lo\n").text(" world\n\n");
    assert_eq!(story.kinds(), ["turn-start"]);
    story
        .tool_call("a")
        .text("\n\n")
        .tool_result("a")
        .text("done")
        .thought("hm")
        .thought("m")
        .text("x")
        .idle();
    let texts: Vec<_> =
        story.envelopes_out.iter().filter(|one| one["ev"]["t"] == "text").map(|one| &one["ev"]).collect();
    let thinking = json!({ "t": "text", "text": "hmm", "thinking": true });
    assert_eq!(*texts[0], json!({ "t": "text", "text": "Hello\n world" }));
    assert_eq!(*texts[1], json!({ "t": "text", "text": "done" }));
    assert_eq!((texts[2], texts.len()), (&thinking, 4), "only newlines are no text");
    assert_eq!(story.kinds()[1..4], ["text", "tool-call-start", "tool-call-end"]);
}

#[test]
fn a_stream_passes_each_delta_on_as_it_is() {
    let mut story = Story::streaming();
    story.running().text("\nHel").text("lo\n").thought("hm");
    assert_eq!(story.kinds(), ["turn-start", "text", "text", "text"]);
    assert_eq!(story.envelopes_out[1]["ev"]["text"], "\nHel");
    assert_eq!(story.envelopes_out[3]["ev"], json!({ "t": "text", "text": "hm", "thinking": true }));
}

#[test]
fn a_tool_call_starts_with_a_cuid2_call_and_all_its_fields() {
    let mut story = Story::new();
    story.running().tool_call("native id");
    let ev = &story.envelopes_out[1]["ev"];
    assert!(is_cuid2(&ev["call"]));
    let expected = json!({
        "t": "tool-call-start", "call": ev["call"], "name": "execute", "title": "List files",
        "description": "Running execute", "args": { "command": "ls" },
    });
    assert_eq!(*ev, expected);
}

#[test]
fn a_tool_result_ends_the_call_of_the_same_id() {
    let mut story = Story::new();
    story.running().tool_call("a").tool_result("a");
    assert_eq!(story.kinds(), ["turn-start", "tool-call-start", "tool-call-end"]);
    assert_eq!(story.envelopes_out[1]["ev"]["call"], story.envelopes_out[2]["ev"]["call"]);
    assert_eq!(story.envelopes_out[2]["ev"].as_object().unwrap().len(), 2);
}

#[test]
fn many_tool_calls_are_told_apart_and_paired() {
    let mut story = Story::new();
    story.running().tool_call("a").tool_call("b").tool_result("b").tool_result("a");
    let call = |at: usize| &story.envelopes_out[at]["ev"]["call"];
    assert_ne!(call(1), call(2));
    assert_eq!((call(3), call(4)), (call(2), call(1)));
}

#[test]
fn a_tool_result_for_an_unknown_call_starts_and_ends_one_with_a_new_cuid2() {
    let mut story = Story::new();
    story.running().tool_result("never seen");
    assert_eq!(story.kinds(), ["turn-start", "tool-call-start", "tool-call-end"]);
    assert!(is_cuid2(&story.envelopes_out[2]["ev"]["call"]));
    assert_eq!(story.envelopes_out[1]["ev"]["call"], story.envelopes_out[2]["ev"]["call"]);
}

#[test]
fn all_tool_envelopes_carry_the_turn() {
    let mut story = Story::new();
    story.running().tool_call("a").tool_result("a").tool_result("b").asks_permission("c").idle();
    assert_eq!(story.turns().len(), 1);
}

#[test]
fn a_call_that_comes_completed_starts_and_ends_and_does_so_once() {
    let mut story = Story::new();
    let done =
        json!({ "sessionUpdate": "tool_call", "toolCallId": "a", "title": "t", "status": "completed" });
    story.running().update(done.clone()).update(done).tool_result("a").tool_call("a").idle();
    assert_eq!(story.kinds(), ["turn-start", "tool-call-start", "tool-call-end", "turn-end"]);
}

#[test]
fn a_call_first_seen_in_a_permission_request_starts_there() {
    let mut story = Story::new();
    story.running().text("I will").asks_permission("a").tool_call("a").tool_result("a").idle();
    assert_eq!(story.kinds(), ["turn-start", "text", "tool-call-start", "tool-call-end", "turn-end"]);
    assert_eq!(story.envelopes_out[2]["ev"]["title"], "rm -rf");
}

#[test]
fn a_call_whose_input_is_still_written_starts_when_it_is_known() {
    let announced = |id: &str| json!({ "sessionUpdate": "tool_call", "toolCallId": id, "status": "pending" });
    let details = json!({
        "sessionUpdate": "tool_call_update", "toolCallId": "a", "title": "ls", "rawInput": { "command": "ls" },
    });
    let mut story = Story::new();
    story.running().text("I look.").update(announced("a"));
    assert_eq!(story.kinds(), ["turn-start"]);
    story.update(details);
    assert_eq!(story.kinds(), ["turn-start", "text", "tool-call-start"]);
    assert_eq!(
        (&story.envelopes_out[2]["ev"]["title"], &story.envelopes_out[2]["ev"]["args"]),
        (&json!("ls"), &json!({ "command": "ls" }))
    );
    // A call is held back only until something else comes.
    story.tool_result("a").update(announced("b")).text("meanwhile").update(announced("c")).idle();
    let kinds = story.kinds();
    assert_eq!(kinds[3..7], ["tool-call-end", "tool-call-start", "text", "tool-call-start"]);
    assert_eq!(kinds[7..], ["tool-call-end", "tool-call-end", "turn-end"]);
}

#[test]
fn open_calls_are_closed_before_the_turn_ends_and_forgotten_after_it() {
    let mut story = Story::new();
    story.running().tool_call("a").tool_call("b").tool_result("a").turn_ended(Status::Cancelled);
    let kinds =
        ["turn-start", "tool-call-start", "tool-call-start", "tool-call-end", "tool-call-end", "turn-end"];
    assert_eq!(story.kinds(), kinds);
    assert_eq!(story.envelopes_out[2]["ev"]["call"], story.envelopes_out[4]["ev"]["call"]);
    story.running().tool_call("a");
    assert_ne!(story.envelopes_out[1]["ev"]["call"], story.envelopes_out[7]["ev"]["call"]);
}

#[test]
fn thinking_is_text_marked_so_with_the_turn() {
    let mut story = Story::new();
    story.running().thought("Let me see").idle();
    assert_eq!(story.envelopes_out[1]["ev"], json!({ "t": "text", "text": "Let me see", "thinking": true }));
    assert_eq!(story.turns().len(), 1);
}

#[test]
fn thinking_with_empty_text_is_no_envelope() {
    let mut story = Story::new();
    story.running().thought("").idle();
    assert_eq!(story.kinds(), ["turn-start", "turn-end"]);
}

#[test]
fn a_permission_request_for_a_known_call_is_no_envelope() {
    let mut story = Story::new();
    story.running().tool_call("a").asks_permission("a");
    assert_eq!(story.kinds(), ["turn-start", "tool-call-start"]);
}

#[test]
fn a_permission_response_is_no_envelope() {
    let mut story = Story::new();
    let waits = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "a", "status": "in_progress" });
    story.running().tool_call("a").asks_permission("a").update(waits);
    assert_eq!(story.kinds(), ["turn-start", "tool-call-start"]);
}

#[test]
fn a_token_count_is_no_envelope_but_stands_on_the_turn_end() {
    let mut story = Story::new();
    story.running().update(json!({ "sessionUpdate": "usage_update", "used": 9, "size": 100 }));
    assert_eq!(story.kinds(), ["turn-start"]);
    let usage = json!({ "inputTokens": 5, "outputTokens": 4, "totalTokens": 9 });
    let envelopes = story.mapper.end_turn(Status::Completed, &usage, 0);
    story.note(envelopes);
    let expected = json!({ "input_tokens": 5, "output_tokens": 4, "context_window": 100 });
    assert_eq!(story.envelopes_out[1]["usage"], expected);
    story.running().idle();
    assert!(story.envelopes_out[3].get("usage").is_none(), "each turn has its own");
}

#[test]
fn an_fs_edit_is_no_envelope() {
    let mut story = Story::new();
    let diff = json!([{ "type": "diff", "path": "/a", "oldText": null, "newText": "x" }]);
    story.running().tool_call("a");
    story.update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": "a", "content": diff }));
    assert_eq!(story.kinds(), ["turn-start", "tool-call-start"]);
}

#[test]
fn terminal_output_is_no_envelope() {
    let mut story = Story::new();
    let terminal = json!([{ "type": "terminal", "terminalId": "t1" }]);
    story.running().tool_call("a");
    story.update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": "a", "content": terminal }));
    story.update(json!({ "sessionUpdate": "plan", "entries": [] }));
    assert_eq!(story.kinds(), ["turn-start", "tool-call-start"]);
}

#[test]
fn the_runner_speaks_as_a_service_in_its_place() {
    let mut story = Story::new();
    story.running().text("Hel");
    let envelopes = story.mapper.service("the agent ended", story.now_ms);
    story.note(envelopes).turn_ended(Status::Failed);
    assert_eq!(story.kinds(), ["turn-start", "text", "service", "turn-end"]);
    assert_eq!(story.envelopes_out[2]["ev"], json!({ "t": "service", "text": "the agent ended" }));
}

#[test]
fn time_increases_strictly_whatever_the_clock_does() {
    let mut story = Story::new();
    story.running();
    story.now_ms = 500;
    story.tool_call("a");
    story.now_ms = 2_000;
    story.tool_result("a").idle();
    let times: Vec<_> = story.envelopes_out.iter().map(|one| one["time"].as_u64().unwrap()).collect();
    assert_eq!(times, [1_000, 1_001, 2_000, 2_001]);
}

#[test]
fn ids_are_consistent_across_a_full_sequence() {
    let mut story = Story::new();
    story.running().text("I look.").tool_call("a").tool_result("a").text("Done.").idle();
    let kinds = ["turn-start", "text", "tool-call-start", "tool-call-end", "text", "turn-end"];
    assert_eq!(story.kinds(), kinds);
    assert_eq!(story.turns().len(), 1);
    assert_eq!(story.envelopes_out[2]["ev"]["call"], story.envelopes_out[3]["ev"]["call"]);
    assert!(story.envelopes_out.iter().all(|one| is_cuid2(&one["id"]) && is_cuid2(&one["turn"])));
    story.running().idle();
    assert_eq!(story.turns().len(), 2, "the turn changes between turns");
    let ids: HashSet<_> = story.envelopes_out.iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), story.envelopes_out.len(), "every id is its own");
}

#[test]
fn a_subagent_starts_and_stops_within_the_call_that_made_it() {
    let mut story = Story::new();
    let of_a = json!({ "claudeCode": { "parentToolUseId": "a", "toolName": "Bash" } });
    let words = json!({ "type": "text", "text": "I look." });
    story.running().text("I ask another.").tool_call("a");
    story.update(json!({ "sessionUpdate": "agent_message_chunk", "content": words, "_meta": of_a }));
    let call = json!({ "sessionUpdate": "tool_call", "toolCallId": "b", "title": "ls", "_meta": of_a });
    story.update(call).tool_result("b").tool_result("a").text("It says.").idle();
    let kinds = [
        "turn-start",
        "text",
        "tool-call-start",
        "start",
        "text",
        "tool-call-start",
        "tool-call-end",
        "stop",
        "tool-call-end",
        "text",
        "turn-end",
    ];
    assert_eq!(story.kinds(), kinds);
    let subagent = &story.envelopes_out[3]["subagent"];
    assert!(is_cuid2(subagent));
    for (at, envelope) in story.envelopes_out.iter().enumerate() {
        let within = (3..=7).contains(&at);
        assert_eq!(envelope.get("subagent"), within.then_some(subagent), "{envelope}");
    }
    assert_eq!(story.envelopes_out[3]["ev"], json!({ "t": "start", "title": "List files" }));
}

#[test]
fn a_subagent_ends_with_the_turn_at_the_latest() {
    let mut story = Story::new();
    let of_a = json!({ "parentToolUseId": "a" });
    story.running().tool_call("a");
    story.update(json!({ "sessionUpdate": "tool_call", "toolCallId": "b", "title": "ls", "_meta": of_a }));
    story.turn_ended(Status::Cancelled);
    let kinds = [
        "turn-start",
        "tool-call-start",
        "start",
        "tool-call-start",
        "tool-call-end",
        "stop",
        "tool-call-end",
        "turn-end",
    ];
    assert_eq!(story.kinds(), kinds);
    // One that nobody knows is told too.
    let of_x = json!({ "vendor": { "parentToolUseId": "x" } });
    story.running();
    story.update(json!({ "sessionUpdate": "tool_call", "toolCallId": "c", "title": "ls", "_meta": of_x }));
    story.idle();
    let kinds = ["turn-start", "start", "tool-call-start", "tool-call-end", "stop", "turn-end"];
    assert_eq!(story.kinds()[8..], kinds);
}

#[test]
fn the_turn_end_says_how_long_the_first_output_took() {
    let mut story = Story::new();
    story.running();
    story.now_ms += 150;
    story.update(json!({ "sessionUpdate": "available_commands_update", "availableCommands": [] }));
    story.now_ms += 100;
    story.thought("hm");
    story.now_ms += 1_000;
    story.text("It is so.").idle();
    assert_eq!(story.envelopes_out.last().unwrap()["ttft_ms"], 250);
    story.running().idle();
    assert!(story.envelopes_out.last().unwrap().get("ttft_ms").is_none(), "nothing was said");
}

#[test]
fn a_pending_call_of_which_only_the_folder_is_known_waits_for_its_command() {
    let mut story = Story::new();
    let call = |status: &str, title: &str, input: Value| {
        json!({ "sessionUpdate": "tool_call_update", "toolCallId": "a", "status": status, "title": title,
            "kind": "execute", "rawInput": input })
    };
    story.running().update(call("pending", "bash", json!({ "cwd": "/w" })));
    assert_eq!(story.kinds(), ["turn-start"]);
    story.update(call("in_progress", "ls -l", json!({ "cwd": "/w", "command": "ls -l" })));
    let start = &story.envelopes_out[1]["ev"];
    assert_eq!((&start["title"], &start["args"]["command"]), (&json!("ls -l"), &json!("ls -l")));
}

#[test]
fn a_pending_call_that_only_gets_a_title_still_waits_for_its_input() {
    let mut story = Story::new();
    let update = |more: Value| {
        let mut update = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "a" });
        update.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        update
    };
    story.running().update(update(json!({ "title": "Bash", "status": "pending", "rawInput": {} })));
    story.update(update(json!({ "title": "ls -l" })));
    assert_eq!(story.kinds(), ["turn-start"]);
    story.update(update(json!({ "rawInput": { "command": "ls -l" } })));
    let start = &story.envelopes_out[1]["ev"];
    assert_eq!((&start["title"], &start["args"]["command"]), (&json!("ls -l"), &json!("ls -l")));
    // A status that says more releases it, with or without an input.
    story.update(json!({ "sessionUpdate": "tool_call", "toolCallId": "b", "status": "pending" }));
    assert_eq!(story.kinds().len(), 2);
    story.update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": "b", "status": "in_progress" }));
    assert_eq!(story.kinds()[2..], ["tool-call-start"]);
}

#[test]
fn each_message_is_a_text_of_its_own() {
    let chunk = |id: Value, text: &str| {
        let content = json!({ "type": "text", "text": text });
        json!({ "sessionUpdate": "agent_message_chunk", "messageId": id, "content": content })
    };
    let mut story = Story::new();
    story.running().update(chunk(json!("m1"), "The first ")).update(chunk(json!(null), "is cut"));
    story.update(chunk(json!("m2"), "The ")).update(chunk(json!("m2"), "second")).idle();
    let texts: Vec<_> = story.envelopes_out.iter().filter_map(|one| one["ev"]["text"].as_str()).collect();
    assert_eq!(texts, ["The first is cut", "The second"]);
}
