//! Requests to nodes, and who has answered them.
//!
//! A node answers at a subject that ends with its name, and the permissions of NATS let it publish to no other
//! (docs/SECURITY.md). So the subject of an answer says whose it is, whatever stands in it. The address of a request
//! has 128 random bits: whoever has not heard the request cannot answer it, also where the permissions let him.

use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::{Client, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::End;
use crate::subjects::{self, Address, shown};

/// A request that may have many answers.
pub(crate) struct Answers {
    subscriber: Subscriber,
    /// Whose answers were not believed, each of which is said once.
    doubted: BTreeSet<String>,
}

/// What has come.
#[derive(Debug)]
pub(crate) enum Answer<T> {
    /// The answer of the node that has this name.
    Of(String, T),
    /// An answer that does not say by its subject who sends it, or says something else than its subject.
    Doubtful,
    /// Nobody listens where it was asked.
    NobodyThere,
}

/// What a node says of itself in an answer.
pub(crate) trait Signed {
    /// Its name, and its address.
    fn signature(&self) -> (&str, &str);
}

/// Publishes a request of the bus that has this name.
pub(crate) async fn ask(client: &Client, name: &str, subject: Subject, body: Bytes) -> Result<Answers, End> {
    let broken = |error: &dyn std::fmt::Display| End::unavailable(format!("NATS: {error}"));
    let place = subjects::answers_to(name);
    let subscriber = client.subscribe(place.of_everybody()).await.map_err(|error| broken(&error))?;
    let published = client.publish_with_reply(subject, place.reply(), body).await;
    published.map_err(|error| broken(&error))?;
    Ok(Answers { subscriber, doubted: BTreeSet::new() })
}

impl Answers {
    /// The next answer that comes within this time.
    pub(crate) async fn next<T: Signed + DeserializeOwned>(&mut self, wait: Duration) -> Option<Answer<T>> {
        let message = timeout(wait, self.subscriber.next()).await.ok().flatten()?;
        if message.status == Some(StatusCode::NO_RESPONDERS) {
            return Some(Answer::NobodyThere);
        }
        let by = subjects::answered_by(&message.subject);
        let said = serde_json::from_slice::<T>(&message.payload).ok();
        Some(match (by, said) {
            (Some(by), Some(said)) if is_signed_by(&said, by) => Answer::Of(by.to_owned(), said),
            (by, said) => {
                let by = by.unwrap_or("somebody").to_owned();
                let claims = said.as_ref().map_or("something else", |said| said.signature().0);
                if self.doubted.len() < 8 && self.doubted.insert(by.clone()) {
                    eprintln!(
                        "stdio-bus: an answer of {by} that claims to be of {:?} is ignored",
                        shown(claims)
                    );
                }
                Answer::Doubtful
            }
        })
    }
}

/// Whether what is said and where it was said name the same node.
fn is_signed_by(said: &impl Signed, by: &str) -> bool {
    let (node, addr) = said.signature();
    node == by && Address::parse(addr, "n").is_some_and(|addr| addr.name() == by)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Claim(&'static str, String);

    impl Signed for Claim {
        fn signature(&self) -> (&str, &str) {
            (self.0, &self.1)
        }
    }

    #[test]
    fn the_name_of_an_answer_its_address_and_its_subject_are_the_same() {
        let addr = |name: &str| Address::of_node(name).as_str().to_owned();
        assert!(is_signed_by(&Claim("n1", addr("n1")), "n1"));
        assert!(!is_signed_by(&Claim("n1", addr("n1")), "evil"));
        assert!(!is_signed_by(&Claim("n1", addr("evil")), "evil"));
        assert!(!is_signed_by(&Claim("n1", addr("evil")), "n1"));
        assert!(!is_signed_by(&Claim("evil", addr("n1")), "evil"));
        assert!(!is_signed_by(&Claim("n1", "n.n1.>".to_owned()), "n1"));
    }
}
