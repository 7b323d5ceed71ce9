//! What a CLI wants to know of the user, as a form for the client, and what the CLI is told for the answers.
//!
//! The fields are those of the official adapters, so that a client that knows those shows the same.

use serde_json::{Map, Value, json};

use super::Form;
use crate::cli::json::{items, string};

/// The choice that says that none of codex's choices fits.
const NONE_FITS: &str = "None of the above";
/// What codex takes for a text beside its choices.
const NOTE: &str = "user_note: ";

/// Claude's questions that can be asked: those with choices.
fn asked(input: &Value) -> impl Iterator<Item = &Value> {
    let questions = items(&input["questions"]).iter();
    questions.filter(|one| one["question"].is_string() && !items(&one["options"]).is_empty())
}

/// The form for claude's tool `AskUserQuestion`. `None`: there is nothing to ask.
pub(super) fn of_claude(key: &str, call: &str, input: &Value) -> Option<Form> {
    let questions: Vec<&Value> = asked(input).collect();
    let message = match questions[..] {
        [] => return None,
        [only] => string(only, "question"),
        _ => "Please answer these questions.",
    };
    let mut fields = Map::new();
    for (number, question) in questions.iter().enumerate() {
        let mut field = json!({});
        if let Some(title) = question["header"].as_str().filter(|title| !title.is_empty()) {
            field["title"] = json!(title);
        }
        if questions.len() > 1 {
            field["description"] = question["question"].clone();
        }
        let choices: Vec<Value> = items(&question["options"]).iter().map(choice).collect();
        let takes_many = question["multiSelect"] == true;
        if takes_many {
            field["type"] = json!("array");
            field["items"] = json!({ "anyOf": choices });
        } else {
            field["type"] = json!("string");
            field["oneOf"] = json!(choices);
        }
        fields.insert(format!("question_{number}"), field);
        let what = if takes_many {
            "Your own answer, in addition to those above."
        } else {
            "Your own answer, or a note on the one above."
        };
        let own = json!({ "type": "string", "title": "Other", "description": what });
        fields.insert(format!("question_{number}_custom"), own);
    }
    let schema = json!({ "type": "object", "properties": fields });
    Some(Form { key: key.to_owned(), call: Some(call.to_owned()), message: message.to_owned(), schema })
}

fn choice(option: &Value) -> Value {
    let label = string(option, "label");
    let mut choice = json!({ "const": label, "title": label });
    if let Some(description) = option["description"].as_str().filter(|text| !text.is_empty()) {
        choice["description"] = json!(description);
    }
    choice
}

/// What claude is told. A form that was declined has no answers; one that was dismissed, or could not be shown, is a
/// refusal of the call.
pub(super) fn decision_of_claude(input: &Value, result: &Value) -> Value {
    let deny = |message: &str| json!({ "behavior": "deny", "message": message });
    match string(result, "action") {
        "accept" | "decline" => {}
        "cancel" => return deny("The user dismissed the question."),
        _ => return deny("The question could not be shown to the user."),
    }
    let (mut answers, mut notes) = (Map::new(), Map::new());
    for (number, question) in asked(input).enumerate() {
        let content = if result["action"] == "accept" { &result["content"] } else { &Value::Null };
        let own = string(content, &format!("question_{number}_custom")).trim().to_owned();
        let mut picks = texts(&content[format!("question_{number}")]);
        let text = string(question, "question").to_owned();
        if question["multiSelect"] == true {
            picks.extend(Some(own).filter(|own| !own.is_empty()));
            let quoted = |pick: &String| match pick {
                // The tool splits the answers at commas.
                pick if pick.contains(", ") || pick.contains('"') => json!(pick).to_string(),
                pick => pick.clone(),
            };
            if !picks.is_empty() {
                answers.insert(text, json!(picks.iter().map(quoted).collect::<Vec<_>>().join(", ")));
            }
        } else if picks.is_empty() {
            if !own.is_empty() {
                answers.insert(text, json!(own));
            }
        } else {
            answers.insert(text.clone(), json!(picks.join(", ")));
            if !own.is_empty() {
                notes.insert(text, json!({ "notes": own }));
            }
        }
    }
    let mut input = input.clone();
    input["answers"] = json!(answers);
    if !notes.is_empty() {
        input["annotations"] = json!(notes);
    }
    json!({ "behavior": "allow", "updatedInput": input })
}

/// The texts of a field with one or several values.
fn texts(value: &Value) -> Vec<String> {
    let text = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let all = match value {
        Value::Array(values) => values.iter().map(text).collect(),
        value => vec![text(value)],
    };
    all.into_iter().filter(|text| !text.trim().is_empty()).collect()
}

/// The form for the questions of codex's tool `request_user_input`.
pub(super) fn of_codex(key: &str, params: &Value) -> Form {
    let questions = items(&params["questions"]);
    let mut fields = Map::new();
    let mut required = Vec::new();
    for question in questions {
        let id = string(question, "id");
        let options = items(&question["options"]);
        let title = [string(question, "question"), string(question, "header"), id];
        let title = title.iter().find(|text| !text.is_empty()).copied().unwrap_or_default();
        let mut field = json!({ "type": "string", "title": title });
        if let Some(header) = question["header"].as_str().filter(|header| !header.is_empty()) {
            field["description"] = json!(header);
        }
        if !options.is_empty() {
            let mut choices: Vec<Value> = options.iter().map(choice).collect();
            if takes_note(question) && options.iter().all(|option| option["label"] != NONE_FITS) {
                choices.push(json!({ "const": NONE_FITS, "title": NONE_FITS }));
            }
            field["oneOf"] = json!(choices);
        }
        required.push(id.to_owned());
        fields.insert(id.to_owned(), field);
        if takes_note(question) {
            let note = json!({ "type": "string", "title": "Another answer, or a note" });
            fields.insert(note_field(id, questions), note);
        }
    }
    Form {
        key: key.to_owned(),
        call: params["itemId"].as_str().map(ToOwned::to_owned),
        message: "Codex needs your answer to go on.".to_owned(),
        schema: json!({ "type": "object", "properties": fields, "required": required }),
    }
}

fn takes_note(question: &Value) -> bool {
    question["isOther"] == true && !items(&question["options"]).is_empty()
}

fn note_field(id: &str, questions: &[Value]) -> String {
    let mut field = format!("{id}_note");
    while questions.iter().any(|question| question["id"] == *field) {
        field.push('_');
    }
    field
}

/// What codex is told. Without an agreement it has no answers, and decides itself.
pub(super) fn answers_of_codex(questions: &Value, result: &Value) -> Value {
    let content = if result["action"] == "accept" { &result["content"] } else { &Value::Null };
    let questions = items(questions);
    let mut answers = Map::new();
    for question in questions {
        let id = string(question, "id");
        let mut all = texts(&content[id]);
        if takes_note(question) {
            let notes = texts(&content[note_field(id, questions)]);
            all.extend(notes.iter().map(|note| format!("{NOTE}{}", note.trim())));
        }
        if !all.is_empty() {
            answers.insert(id.to_owned(), json!({ "answers": all }));
        }
    }
    json!({ "answers": answers })
}

/// Whether a server wants something filled in that a form can ask for.
pub(super) fn is_form_of_server(params: &Value) -> bool {
    params["mode"] == "form"
        && params["requestedSchema"]["properties"].as_object().is_some_and(|all| !all.is_empty())
}

/// The form of an MCP server of codex, whose schema is that of the protocol.
pub(super) fn of_server(key: &str, params: &Value) -> Form {
    let server = string(params, "serverName");
    let mut schema = params["requestedSchema"].clone();
    schema["type"] = json!("object");
    let message = format!("{server}: {}", string(params, "message"));
    Form { key: key.to_owned(), call: None, message, schema }
}

/// What codex is told for its MCP server. A form that could not be shown is cancelled.
pub(super) fn answer_of_server(result: &Value) -> Value {
    let action = string(result, "action");
    match action {
        "accept" => json!({ "action": action, "content": result["content"], "_meta": null }),
        "decline" => json!({ "action": action, "content": null, "_meta": null }),
        _ => json!({ "action": "cancel", "content": null, "_meta": null }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask() -> Value {
        json!({ "questions": [
            { "question": "Which?", "header": "Store",
              "options": [{ "label": "Redis", "description": "fast" }, { "label": "None" }] },
            { "question": "What else?", "multiSelect": true, "options": [{ "label": "a, b" }, { "label": "c" }] },
            { "question": "no choices", "options": [] },
        ] })
    }

    #[test]
    fn claude_is_told_what_was_picked_and_what_was_typed() {
        let form = of_claude("k", "t1", &ask()).unwrap();
        assert_eq!((form.key.as_str(), form.call.as_deref()), ("k", Some("t1")));
        let fields = &form.schema["properties"];
        assert_eq!(
            fields["question_0"]["oneOf"][0],
            json!({ "const": "Redis", "title": "Redis", "description": "fast" })
        );
        assert_eq!(
            (&fields["question_0"]["title"], &fields["question_1"]["type"]),
            (&json!("Store"), &json!("array"))
        );
        assert!(fields["question_1_custom"].is_object() && fields["question_2"].is_null());
        let decided = |content: Value| {
            let decision = decision_of_claude(&ask(), &json!({ "action": "accept", "content": content }));
            assert_eq!(decision["behavior"], "allow");
            let input = &decision["updatedInput"];
            assert_eq!(input["questions"], ask()["questions"]);
            (input["answers"].clone(), input["annotations"].clone())
        };
        let picked = decided(
            json!({ "question_0": "Redis", "question_1": ["a, b", "c"], "question_1_custom": " d " }),
        );
        assert_eq!(picked, (json!({ "Which?": "Redis", "What else?": "\"a, b\", c, d" }), Value::Null));
        let noted = decided(json!({ "question_0": "Redis", "question_0_custom": "7" }));
        assert_eq!(noted, (json!({ "Which?": "Redis" }), json!({ "Which?": { "notes": "7" } })));
        assert_eq!(decided(json!({ "question_0_custom": "mine" })).0, json!({ "Which?": "mine" }));
        assert_eq!(decided(Value::Null).0, json!({}));
        let declined =
            decision_of_claude(&ask(), &json!({ "action": "decline", "content": { "question_0": "x" } }));
        assert_eq!(
            (&declined["behavior"], &declined["updatedInput"]["answers"]),
            (&json!("allow"), &json!({}))
        );
        for refused in [json!({ "action": "cancel" }), Value::Null] {
            assert_eq!(decision_of_claude(&ask(), &refused)["behavior"], "deny");
        }
        let only = json!({ "questions": [ask()["questions"][0]] });
        assert_eq!(of_claude("k", "t", &only).unwrap().message, "Which?");
        for odd in [json!({}), json!({ "questions": 7 }), json!({ "questions": [{ "question": "x" }] })] {
            assert!(of_claude("k", "t", &odd).is_none());
        }
    }

    #[test]
    fn codex_is_told_the_answers_by_the_ids_of_its_questions() {
        let params = json!({ "itemId": "i", "questions": [
            { "id": "db", "question": "Which?", "header": "Store", "isOther": true, "options": [{ "label": "Redis" }] },
            { "id": "db_note", "question": "Why?", "options": null },
        ] });
        let form = of_codex("7", &params);
        let fields = &form.schema["properties"];
        assert_eq!(form.schema["required"], json!(["db", "db_note"]));
        assert_eq!(fields["db"]["oneOf"][1]["const"], NONE_FITS);
        assert_eq!((&fields["db_note"]["title"], fields["db_note_"].is_object()), (&json!("Why?"), true));
        let told = |result: Value| answers_of_codex(&params["questions"], &result)["answers"].clone();
        let content = json!({ "db": NONE_FITS, "db_note_": "Postgres", "db_note": "because" });
        assert_eq!(
            told(json!({ "action": "accept", "content": content })),
            json!({ "db": { "answers": [NONE_FITS, "user_note: Postgres"] }, "db_note": { "answers": ["because"] } })
        );
        for none in [json!({ "action": "decline" }), json!({ "action": "cancel" }), Value::Null] {
            assert_eq!(told(none), json!({}));
        }
    }

    #[test]
    fn the_form_of_a_server_is_passed_on() {
        let schema = json!({ "properties": { "name": { "type": "string" } } });
        let params =
            json!({ "serverName": "probe", "mode": "form", "message": "Who?", "requestedSchema": schema });
        assert!(is_form_of_server(&params));
        let form = of_server("7", &params);
        assert_eq!((form.message.as_str(), &form.schema["type"]), ("probe: Who?", &json!("object")));
        for odd in
            [json!({ "mode": "url" }), json!({ "mode": "form", "requestedSchema": { "properties": {} } })]
        {
            assert!(!is_form_of_server(&odd));
        }
        let accepted = answer_of_server(&json!({ "action": "accept", "content": { "name": "x" } }));
        assert_eq!(accepted["content"]["name"], "x");
        assert_eq!(answer_of_server(&Value::Null)["action"], "cancel");
    }
}
