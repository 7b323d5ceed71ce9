//! Answers to `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`, so that the `nats` tool sees nodes (`nats micro ls`). The
//! rules are those of ADR-32 of NATS.

use std::rc::Rc;

use async_nats::{Message, SubscribeError};
use rpc::text::rfc3339_of_millis;
use serde_json::{Value, json};

use super::Node;
use crate::talk::{About, to_bytes};

const SERVICE: &str = "stdio-bus";

pub(crate) async fn listen(node: &Rc<Node>) -> Result<(), SubscribeError> {
    let id = id(node);
    for subject in ["$SRV.*".to_owned(), format!("$SRV.*.{SERVICE}"), format!("$SRV.*.{SERVICE}.{id}")] {
        let asks = node.client.subscribe(subject).await?;
        let own = node.clone();
        node.hears(asks, move |message| answer(own.clone(), message));
    }
    Ok(())
}

/// The random part of the address of the link.
fn id(node: &Node) -> String {
    node.addr.as_str().rsplit('.').next().unwrap_or_default().to_owned()
}

async fn answer(node: Rc<Node>, message: Message) {
    let Some(reply) = message.reply else { return };
    let verb = message.subject.split('.').nth(1).unwrap_or_default().to_owned();
    let counts = *node.counts.borrow();
    if let Some(answer) =
        described(&verb, &id(&node), &node.about().await, (counts.asks, counts.opens, counts.refused))
    {
        let _ = node.client.publish(reply, to_bytes(&answer)).await;
    }
}

fn described(verb: &str, id: &str, about: &About, (asks, opens, refused): (u64, u64, u64)) -> Option<Value> {
    let pools: Vec<&str> = about.pools.iter().map(|pool| pool.id.as_str()).collect();
    let mut answer = json!({
        "name": SERVICE,
        "id": id,
        "version": about.version,
        "metadata": { "node": about.node, "zone": about.zone.as_deref().unwrap_or(""), "pools": pools.join(",") },
    });
    let endpoint =
        |name: &str, subject: String| json!({ "name": name, "subject": subject, "queue_group": "" });
    let mut endpoints =
        [endpoint("ask", "bus.v1.ask.*".to_owned()), endpoint("open", format!("bus.v1.open.{}", about.node))];
    match verb {
        "PING" => answer["type"] = "io.nats.micro.v1.ping_response".into(),
        "INFO" => {
            answer["type"] = "io.nats.micro.v1.info_response".into();
            answer["description"] = "A node of stdio Bus: its pools are used from other machines".into();
            answer["endpoints"] = json!(endpoints);
        }
        "STATS" => {
            answer["type"] = "io.nats.micro.v1.stats_response".into();
            answer["started"] = rfc3339_of_millis(about.started).into();
            for (endpoint, (requests, errors)) in endpoints.iter_mut().zip([(asks, 0), (opens, refused)]) {
                endpoint["num_requests"] = requests.into();
                endpoint["num_errors"] = errors.into();
                endpoint["last_error"] = "".into();
                endpoint["processing_time"] = 0.into();
                endpoint["average_processing_time"] = 0.into();
            }
            endpoints[1]["data"] = json!(about);
            answer["endpoints"] = json!(endpoints);
        }
        _ => return None,
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_verbs_are_answered_as_the_nats_tool_reads_them() {
        let about = About { node: "n17".to_owned(), version: "0.1.0".to_owned(), ..About::default() };
        let said = |verb| described(verb, "id", &about, (3, 2, 1));
        for (verb, kind) in [("PING", "ping"), ("INFO", "info"), ("STATS", "stats")] {
            let answer = said(verb).unwrap();
            assert_eq!(answer["type"], format!("io.nats.micro.v1.{kind}_response"));
            assert_eq!((&answer["name"], &answer["id"]), (&json!("stdio-bus"), &json!("id")));
            assert_eq!(answer["metadata"]["node"], "n17");
        }
        assert_eq!(said("STATS").unwrap()["endpoints"][1]["num_errors"], 1);
        assert_eq!(said("INFO").unwrap()["endpoints"][1]["subject"], "bus.v1.open.n17");
        assert!(said("SCHEMA").is_none());
    }
}
