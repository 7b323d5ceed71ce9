//! Who pushes (VAPID, RFC 8292): a key pair of the door, and a token for one push service that is signed with it.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use ring::error::Unspecified;
use ring::rand::SecureRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::json;

/// How long a token is good. The standard allows a day.
const LIFE_SEC: u64 = 12 * 60 * 60;

/// The key pair of a door.
pub struct Signer {
    pair: EcdsaKeyPair,
}

impl Signer {
    /// A fresh key pair, as it is kept.
    pub fn generate(random: &dyn SecureRandom) -> Result<String, Unspecified> {
        let pair = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, random)?;
        Ok(BASE64.encode(pair))
    }

    /// The key pair that was kept. `None`: it is none.
    pub fn read(kept: &str, random: &dyn SecureRandom) -> Option<Signer> {
        let kept = BASE64.decode(kept).ok()?;
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &kept, random).ok()?;
        Some(Signer { pair })
    }

    /// What browsers and push services know the door by.
    pub fn public_key(&self) -> String {
        BASE64.encode(self.pair.public_key())
    }

    /// The header `Authorization` for the push service at this origin. `subject` is where its operator can complain.
    pub fn authorization(
        &self,
        origin: &str,
        subject: &str,
        unix_sec: u64,
        random: &dyn SecureRandom,
    ) -> Result<String, Unspecified> {
        let header = BASE64.encode(json!({ "typ": "JWT", "alg": "ES256" }).to_string());
        let claims = json!({ "aud": origin, "exp": unix_sec + LIFE_SEC, "sub": subject });
        let signed = format!("{header}.{}", BASE64.encode(claims.to_string()));
        let signature = BASE64.encode(self.pair.sign(random, signed.as_bytes())?);
        Ok(format!("vapid t={signed}.{signature}, k={}", self.public_key()))
    }
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_token_is_for_one_service_and_signed_with_the_key_that_is_shown() {
        let random = SystemRandom::new();
        let signer = Signer::read(&Signer::generate(&random).unwrap(), &random).unwrap();
        let header = signer.authorization("https://a.example", "https://b.example", 100, &random).unwrap();
        let (token, key) = header.strip_prefix("vapid t=").unwrap().split_once(", k=").unwrap();
        assert_eq!(key, signer.public_key());
        let parts: Vec<&str> = token.split('.').collect();
        let read = |part: &str| serde_json::from_slice::<Value>(&BASE64.decode(part).unwrap()).unwrap();
        assert_eq!(read(parts[0])["alg"], "ES256");
        let expected = json!({ "aud": "https://a.example", "exp": 43_300, "sub": "https://b.example" });
        assert_eq!(read(parts[1]), expected);
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, BASE64.decode(key).unwrap());
        let signed = format!("{}.{}", parts[0], parts[1]);
        key.verify(signed.as_bytes(), &BASE64.decode(parts[2]).unwrap()).unwrap();
    }

    #[test]
    fn what_is_no_key_pair_is_none() {
        let random = SystemRandom::new();
        assert!(Signer::read("", &random).is_none() && Signer::read("AAAA", &random).is_none());
    }
}
