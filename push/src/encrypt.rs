//! The encryption of a push (RFC 8291, which uses `aes128gcm` of RFC 8188): the browser that has subscribed can read
//! it, and the service that carries it cannot.

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral};
use ring::error::Unspecified;
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::rand::SecureRandom;

/// How long a public key is, as a point that is not compressed.
pub const KEY_BYTES: usize = 65;
/// How long the secret of a subscription is.
pub const AUTH_BYTES: usize = 16;
const SALT_BYTES: usize = 16;
const CEK_BYTES: usize = 16;
/// Push services take no more than this in all.
const RECORD_BYTES: usize = 4096;
/// What may be said in one push: without the header, the delimiter and the tag.
pub const PLAIN_BYTES_MAX: usize = RECORD_BYTES - SALT_BYTES - 4 - 1 - KEY_BYTES - 1 - 16;
/// The last record, which is the only one, ends with this.
const LAST: u8 = 2;

/// What a browser tells of itself when it subscribes.
pub struct Receiver<'a> {
    pub key: &'a [u8],
    pub auth: &'a [u8],
}

/// The body of a push. It fails if the key of the receiver is none, or if the text is too long.
pub fn encrypted(
    text: &[u8],
    receiver: &Receiver<'_>,
    random: &dyn SecureRandom,
) -> Result<Vec<u8>, Unspecified> {
    let mut salt = [0; SALT_BYTES];
    random.fill(&mut salt)?;
    let own = EphemeralPrivateKey::generate(&ECDH_P256, random)?;
    let own_key = own.compute_public_key()?;
    let theirs = UnparsedPublicKey::new(&ECDH_P256, receiver.key);
    agree_ephemeral(own, &theirs, |shared| sealed(text, receiver, own_key.as_ref(), shared, salt))?
}

/// The same with all that is random given.
fn sealed(
    text: &[u8],
    receiver: &Receiver<'_>,
    own_key: &[u8],
    shared: &[u8],
    salt: [u8; SALT_BYTES],
) -> Result<Vec<u8>, Unspecified> {
    if text.len() > PLAIN_BYTES_MAX {
        return Err(Unspecified);
    }
    let about = [b"WebPush: info\0", receiver.key, own_key].concat();
    let key_material = derived::<32>(receiver.auth, shared, &about)?;
    let key = derived::<CEK_BYTES>(&salt, &key_material, b"Content-Encoding: aes128gcm\0")?;
    let nonce = derived::<NONCE_LEN>(&salt, &key_material, b"Content-Encoding: nonce\0")?;
    let mut record = [text, &[LAST]].concat();
    // The key is used for this one record.
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key)?);
    key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut record)?;
    let mut body = salt.to_vec();
    body.extend_from_slice(&(RECORD_BYTES as u32).to_be_bytes());
    body.push(KEY_BYTES as u8);
    body.extend_from_slice(own_key);
    body.extend_from_slice(&record);
    Ok(body)
}

/// HKDF of SHA-256.
fn derived<const BYTES: usize>(salt: &[u8], secret: &[u8], about: &[u8]) -> Result<[u8; BYTES], Unspecified> {
    struct Length(usize);

    impl KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }

    let mut out = [0; BYTES];
    let secret = Salt::new(HKDF_SHA256, salt).extract(secret);
    secret.expand(&[about], Length(BYTES))?.fill(&mut out)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
    use ring::rand::SystemRandom;

    use super::*;

    const THEIR_KEY: &str =
        "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
    const AUTH: &str = "BTBZMqHH6r4Tts7J_aSIgg";

    fn bytes(text: &str) -> Vec<u8> {
        BASE64.decode(text).unwrap()
    }

    #[test]
    fn the_example_of_the_standard_comes_out() {
        let (key, auth) = (bytes(THEIR_KEY), bytes(AUTH));
        let own =
            bytes("BP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A8");
        let shared = bytes("kyrL1jIIOHEzg3sM2ZWRHDRB62YACZhhSlknJ672kSs");
        let salt = bytes("DGv6ra1nlYgDCS1FRnbzlw").try_into().unwrap();
        let receiver = Receiver { key: &key, auth: &auth };
        let body =
            sealed(b"When I grow up, I want to be a watermelon", &receiver, &own, &shared, salt).unwrap();
        let expected = "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLoc\
             InmYWAmS6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_\
             Qulcy4a-fN";
        assert_eq!(BASE64.encode(body), expected);
    }

    #[test]
    fn each_push_has_a_key_of_its_own_and_what_cannot_be_sealed_is_refused() {
        let (key, auth) = (bytes(THEIR_KEY), bytes(AUTH));
        let (receiver, random) = (Receiver { key: &key, auth: &auth }, SystemRandom::new());
        let push = |text: &[u8]| encrypted(text, &receiver, &random);
        assert_ne!(push(b"hello").unwrap(), push(b"hello").unwrap());
        assert_eq!(push(&[b'a'; PLAIN_BYTES_MAX]).unwrap().len(), RECORD_BYTES);
        assert!(push(&[b'a'; PLAIN_BYTES_MAX + 1]).is_err());
        let mut odd = key.clone();
        odd[64] ^= 1;
        assert!(encrypted(b"hello", &Receiver { key: &odd, auth: &auth }, &random).is_err());
    }
}
