//! Every kind of update leaves something for people to read, or there is a reason why not.

use serde_json::json;
use serde_json::value::to_raw_value;

use super::*;
use crate::entry::Header;
use crate::export::{Format, document};
use crate::primer::primer;

fn entry(by: &str, message: &Value) -> Entry {
    let what = What::Message(to_raw_value(message).unwrap());
    Entry { at: "t".to_owned(), by: by.to_owned(), n: None, cut: None, what }
}

fn tells(update: &Value) -> Entry {
    entry(AGENT, &json!({ "method": "session/update", "params": { "sessionId": "s", "update": update } }))
}

fn text(words: &str) -> Value {
    json!({ "type": "text", "text": words })
}

fn story(entries: &[Entry]) -> Story {
    let mut story = Story::default();
    entries.iter().for_each(|entry| story.tell(entry));
    story
}

/// Where something of an update is.
enum Where {
    /// In the document and among what is searched for.
    Found(&'static str),
    /// In the document only.
    Shown(&'static str),
    /// The title of the whole.
    Title(&'static str),
    /// Nowhere, for this reason.
    Nowhere(&'static str),
}
use Where::{Found, Nowhere, Shown, Title};

/// The kinds of updates that ACP has in its versions, as tests/interop/methods.py lists them, each with one of its
/// kind. One that has no words of its own follows the one that it belongs to.
fn kinds() -> Vec<(Value, Where)> {
    let content = |words: &str| json!([{ "type": "content", "content": text(words) }]);
    let of = |kind: &str, mut members: Value| {
        members["sessionUpdate"] = kind.into();
        members
    };
    let plan = json!({ "type": "markdown", "planId": "p", "content": "planned prose" });
    vec![
        (of("user_message_chunk", json!({ "content": text("user chunk") })), Found("user chunk")),
        (
            of("user_message", json!({ "messageId": "u", "content": [text("whole user")] })),
            Found("whole user"),
        ),
        (of("agent_message_chunk", json!({ "content": text("agent chunk") })), Found("agent chunk")),
        (
            of("agent_message", json!({ "messageId": "a", "content": [text("whole agent")] })),
            Found("whole agent"),
        ),
        (of("agent_thought_chunk", json!({ "content": text("thought chunk") })), Shown("thought chunk")),
        (
            of("agent_thought", json!({ "messageId": "t", "content": [text("whole thought")] })),
            Shown("whole thought"),
        ),
        (
            of(
                "tool_call",
                json!({ "toolCallId": "c", "title": "tool title", "locations": [{ "path": "/srv/a.rs" }] }),
            ),
            Found("/srv/a.rs"),
        ),
        (
            of("tool_call_update", json!({ "toolCallId": "c", "content": content("put out") })),
            Shown("put out"),
        ),
        (
            of("tool_call_content_chunk", json!({ "toolCallId": "c", "content": content("and more")[0] })),
            Shown("put outand more"),
        ),
        (of("terminal_update", json!({ "terminalId": "x", "command": "make all" })), Found("make all")),
        (
            of("terminal_output_chunk", json!({ "terminalId": "x", "data": "bWFkZSBpdC4=" })),
            Shown("made it."),
        ),
        (
            of("plan", json!({ "entries": [{ "content": "first step", "status": "pending" }] })),
            Found("first step"),
        ),
        (of("plan_update", json!({ "plan": plan })), Found("planned prose")),
        (of("plan_removed", json!({ "planId": "p" })), Found("plan p was withdrawn")),
        (
            of("available_commands_update", json!({ "availableCommands": [{ "name": "zz" }] })),
            Nowhere("it says what can be said, and not what was said"),
        ),
        (of("current_mode_update", json!({ "currentModeId": "careful" })), Shown("the mode is now careful")),
        (
            of("config_option_update", json!({ "configOptions": [{ "id": "zz", "currentValue": 1 }] })),
            Nowhere("it repeats all options; what a client sets is a request of its own"),
        ),
        (of("session_info_update", json!({ "title": "session title" })), Title("session title")),
        (of("usage_update", json!({ "used": 1, "size": 2 })), Nowhere("it is counted, and shown by `usage`")),
        (
            of("notice", json!({ "severity": "warning", "title": "low", "description": "disk" })),
            Found("low: disk"),
        ),
        (
            of("compaction_update", json!({ "compactionId": "k", "status": "in_progress" })),
            Found("summed up"),
        ),
        (
            of("compaction_summary_chunk", json!({ "compactionId": "k", "content": text("in short") })),
            Found("in short"),
        ),
        (of("subagent_update", json!({ "sessionId": "s2", "title": "a helper" })), Found("a helper")),
        (of("session_message", json!({ "messageId": "m", "content": [text("to you")] })), Found("to you")),
        (
            of("session_message_chunk", json!({ "messageId": "m", "content": text(" and back") })),
            Found("to you and back"),
        ),
        (
            of("state_update", json!({ "state": "idle", "stopReason": "refusal" })),
            Shown("the turn ended: refusal"),
        ),
        (of("_example.com/other", json!({ "words": "zz" })), Nowhere("nobody knows what it means")),
    ]
}

#[test]
fn every_kind_of_update_is_shown_or_there_is_a_reason_why_not() {
    let all: Vec<Entry> = kinds().iter().map(|(update, _)| tells(update)).collect();
    let told = story(&all);
    let searched: Vec<String> = told.parts.iter().map(Part::words).collect();
    let header = Header::default();
    for format in [Format::Md, Format::Html] {
        let document = document(format, &header, &all);
        for (update, place) in kinds() {
            let kind = &update["sessionUpdate"];
            let is_found = |words: &str| searched.iter().any(|text| text.contains(words));
            match place {
                Found(words) => assert!(document.contains(words) && is_found(words), "{kind}: {document}"),
                Shown(words) => assert!(document.contains(words) && !is_found(words), "{kind}: {document}"),
                Title(words) => {
                    assert!(document.contains(words) && told.title.as_deref() == Some(words), "{kind}");
                }
                Nowhere(why) => {
                    let alone = story(&[tells(&update)]);
                    assert!(
                        alone.parts.is_empty() && alone.title.is_none(),
                        "{kind} is shown, although {why}"
                    );
                }
            }
        }
    }
    // What a session is continued with has the words of both versions, and what was planned and summed up.
    let primer = primer(&all);
    for words in ["whole user", "whole agent", "first step", "in short", "tool title", "make all"] {
        assert!(primer.contains(words), "{words}: {primer}");
    }
    assert!(!primer.contains("whole thought") && !primer.contains("put out"), "{primer}");
}

#[test]
fn a_whole_message_replaces_what_was_told_of_it_before() {
    let chunk = |id: &str, words: &str| {
        let update =
            json!({ "sessionUpdate": "agent_message_chunk", "messageId": id, "content": text(words) });
        tells(&update)
    };
    let whole = |content: Value| {
        tells(&json!({ "sessionUpdate": "agent_message", "messageId": "1", "content": content }))
    };
    let told = |entries: &[Entry]| story(entries).parts.iter().map(Part::words).collect::<Vec<_>>();
    let draft = [chunk("1", "Hel"), chunk("2", "Other"), chunk("1", "p")];
    assert_eq!(told(&draft), ["Help", "Other"]);
    let all = [&draft[..], &[whole(json!([text("Hello")])), chunk("1", "!")]].concat();
    assert_eq!(told(&all), ["Hello!", "Other"]);
    assert_eq!(told(&[chunk("1", "a"), whole(json!([]))]), [""]);
    // One without content only changes what else is known of it.
    let bare = tells(&json!({ "sessionUpdate": "agent_message", "messageId": "1" }));
    assert_eq!(told(&[chunk("1", "a"), bare]), ["a"]);
    let prompts = json!({ "sessionUpdate": "user_message", "messageId": "9", "content": [text("Hi")] });
    let said = story(&[tells(&prompts), tells(&prompts)]);
    assert_eq!((said.prompts, said.first_words.as_deref(), said.parts.len()), (1, Some("Hi"), 1));
}

#[test]
fn a_diff_of_the_second_version_names_its_files_and_shows_its_patch() {
    let change = json!([{ "operation": "move", "oldPath": "/old.rs", "path": "/new.rs" }]);
    let content = json!([{ "type": "diff", "changes": change, "patch": { "text": "+one line" } }]);
    let entries = [tells(&json!({ "sessionUpdate": "tool_call", "toolCallId": "c", "content": content }))];
    let words = story(&entries).parts[0].words();
    assert!(words.contains("/old.rs") && words.contains("/new.rs") && !words.contains("one line"), "{words}");
    assert!(document(Format::Md, &Header::default(), &entries).contains("+one line"));
}

#[test]
fn what_is_said_while_the_agent_works_and_what_is_set_is_shown() {
    let steers =
        json!({ "id": 1, "method": "_session/steering", "params": { "prompt": [text("Stop that")] } });
    let injects = json!({ "id": 2, "method": "session/inject", "params": { "prompt": "By the way" } });
    let sets =
        |id: u64, mode: &str| json!({ "id": id, "method": "session/set_mode", "params": { "modeId": mode } });
    let option = json!({ "configId": "net", "value": true });
    let told = story(&[
        entry("ann", &steers),
        entry("ben", &injects),
        entry("ann", &sets(3, "plan")),
        entry(AGENT, &json!({ "id": 3, "result": {} })),
        entry("ben", &sets(4, "wild")),
        entry(AGENT, &json!({ "id": 4, "error": { "code": -1, "message": "no such mode" } })),
        entry("ben", &json!({ "id": 5, "method": "session/set_config_option", "params": option })),
    ]);
    let note = |text: &str| Part::Note { at: "t".to_owned(), text: text.to_owned() };
    let words = |by: &str, text: &str| Part::Words { at: "t".into(), by: by.into(), text: text.into() };
    assert_eq!(
        told.parts,
        [
            words("ann", "Stop that"),
            words("ben", "By the way"),
            note("ann set the mode to plan"),
            note("ben set the mode to wild, which was refused: no such mode"),
            note("ben set net to true"),
        ]
    );
    assert_eq!(told.prompts, 0);
}
