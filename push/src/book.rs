//! Who wants to be told, as it is kept: the key pair of the door, and the subscriptions of each token.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde::{Deserialize, Serialize};

use crate::encrypt::{AUTH_BYTES, KEY_BYTES, Receiver};
use crate::endpoint::origin_of;

/// One token has this many subscriptions at most. The oldest give way.
pub const PER_TOKEN: usize = 8;
/// A book has this many in all.
const IN_ALL: usize = 256;

/// What is in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Book {
    /// The key pair, see [`crate::vapid::Signer`].
    pub key: String,
    /// The newest is the last.
    pub subscriptions: Vec<Subscription>,
}

/// One browser that wants to be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    /// The id of the token by which it has come in, and with which it goes.
    pub token: String,
    pub endpoint: String,
    p256dh: String,
    auth: String,
}

/// What a browser tells when it subscribes.
#[derive(Deserialize)]
struct Offer {
    endpoint: String,
    keys: Keys,
}

#[derive(Deserialize)]
struct Keys {
    p256dh: String,
    auth: String,
}

impl Subscription {
    /// Reads what a browser with this token has sent. `may_be_near`: see [`origin_of`].
    pub fn read(json: &[u8], token: &str, may_be_near: bool) -> Result<Subscription, &'static str> {
        // A list would be taken for the fields in their order.
        let json = json.trim_ascii_start().starts_with(b"{").then_some(json);
        let offer = json.and_then(|json| serde_json::from_slice::<Offer>(json).ok());
        let Offer { endpoint, keys: Keys { p256dh, auth } } =
            offer.ok_or("endpoint, keys.p256dh and keys.auth are needed")?;
        origin_of(&endpoint, may_be_near)?;
        let read = Subscription { token: token.to_owned(), endpoint, p256dh, auth };
        let is_good = read.decoded().is_some_and(|(key, auth)| {
            key.len() == KEY_BYTES && key.first() == Some(&4) && auth.len() == AUTH_BYTES
        });
        if is_good { Ok(read) } else { Err("keys.p256dh or keys.auth is none") }
    }

    fn decoded(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let bytes = |text: &str| BASE64.decode(text.trim_end_matches('=')).ok();
        Some((bytes(&self.p256dh)?, bytes(&self.auth)?))
    }

    /// Calls this with whom a push is encrypted for.
    pub fn with_receiver<T>(&self, then: impl FnOnce(&Receiver<'_>) -> T) -> Option<T> {
        let (key, auth) = self.decoded()?;
        Some(then(&Receiver { key: &key, auth: &auth }))
    }

    /// The origin of its push service.
    pub fn origin(&self) -> &str {
        // It was looked at when it was read.
        origin_of(&self.endpoint, true).unwrap_or_default()
    }
}

impl Book {
    /// Adds a subscription. The same browser has one for each token.
    pub fn add(&mut self, fresh: Subscription) {
        let is_same = |one: &Subscription| one.token == fresh.token && one.endpoint == fresh.endpoint;
        self.subscriptions.retain(|one| !is_same(one));
        let own = self.subscriptions.iter().filter(|one| one.token == fresh.token).count();
        if own >= PER_TOKEN
            && let Some(oldest) = self.subscriptions.iter().position(|one| one.token == fresh.token)
        {
            self.subscriptions.remove(oldest);
        }
        self.subscriptions.push(fresh);
        let surplus = self.subscriptions.len().saturating_sub(IN_ALL);
        self.subscriptions.drain(..surplus);
    }

    pub fn has(&self, token: &str) -> bool {
        self.subscriptions.iter().any(|one| one.token == token)
    }

    /// Each browser once: several of its pages may have come in by tokens of their own.
    pub fn browsers(&self) -> impl Iterator<Item = &Subscription> {
        self.subscriptions.iter().enumerate().filter_map(|(at, one)| {
            let is_first = self.subscriptions[..at].iter().all(|before| before.endpoint != one.endpoint);
            is_first.then_some(one)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KEY: &str =
        "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
    const AUTH: &str = "BTBZMqHH6r4Tts7J_aSIgg";

    fn offer(endpoint: &str, key: &str, auth: &str) -> Vec<u8> {
        json!({ "endpoint": endpoint, "expirationTime": null, "keys": { "p256dh": key, "auth": auth } })
            .to_string()
            .into_bytes()
    }

    fn subscription(token: &str, number: usize) -> Subscription {
        let endpoint = format!("https://push.example/{number}");
        Subscription::read(&offer(&endpoint, KEY, AUTH), token, false).unwrap()
    }

    #[test]
    fn a_subscription_has_an_endpoint_and_good_keys() {
        let read = |json: &[u8]| Subscription::read(json, "t", false);
        let good = read(&offer("https://push.example/a", &format!("{KEY}="), AUTH)).unwrap();
        assert_eq!(good.origin(), "https://push.example");
        assert_eq!(good.with_receiver(|receiver| (receiver.key.len(), receiver.auth.len())), Some((65, 16)));
        for bad in [
            offer("http://push.example/a", KEY, AUTH),
            offer("https://push.example/a", AUTH, AUTH),
            offer("https://push.example/a", KEY, KEY),
            offer("https://push.example/a", KEY, "?"),
            b"[\"https://push.example/a\",[\"\",\"\"]]".to_vec(),
            b"{}".to_vec(),
        ] {
            assert!(read(&bad).is_err(), "{}", String::from_utf8_lossy(&bad));
        }
    }

    #[test]
    fn a_token_has_a_bounded_number_of_subscriptions_and_a_browser_is_told_once() {
        let mut book = Book::default();
        for number in 0..2 * PER_TOKEN {
            book.add(subscription("a", number));
        }
        assert_eq!(book.subscriptions.len(), PER_TOKEN);
        assert_eq!(book.subscriptions[0].endpoint, format!("https://push.example/{PER_TOKEN}"));
        book.add(subscription("a", 2 * PER_TOKEN - 1));
        assert_eq!(book.subscriptions.len(), PER_TOKEN, "the same one is there once");
        book.add(subscription("b", 2 * PER_TOKEN - 1));
        assert!(book.has("b") && !book.has("c"));
        assert_eq!((book.subscriptions.len(), book.browsers().count()), (PER_TOKEN + 1, PER_TOKEN));
        for token in 0..IN_ALL {
            book.add(subscription(&token.to_string(), token));
        }
        assert_eq!(book.subscriptions.len(), IN_ALL);
    }
}
