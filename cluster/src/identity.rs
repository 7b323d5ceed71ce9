//! Who this process is to NATS: the key in a `.creds` or an nkey file. The file is read again for each connection, so
//! that credentials that were renewed meanwhile count.
//!
//! The async client signs with a key of a file only once, when its options are made, so its auth callback is used and
//! what that must return is made here.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use async_nats::{Auth, AuthError};
use kernel_core::config::ClusterConfig;
use kernel_shell::config::read_secret;
use log::warn;
use rustls::SignatureScheme;
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::sign::SigningKey;

/// What stands before the 32 bytes of an Ed25519 key in PKCS #8.
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// The first letters of keys are `S` for a seed and `U` for a user, each in the upper five bits.
const SEED: u8 = 18 << 3;
pub(crate) const USER: u8 = 20 << 3;
const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// The file that says who this process is.
enum Source {
    Creds(PathBuf),
    Nkey(PathBuf),
}

impl Source {
    /// `Err`: why the file does not say it. No secret is in the words.
    fn read(&self) -> Result<Identity, String> {
        match self {
            Source::Creds(path) => Identity::of_creds(&read_secret(path)?)
                .ok_or_else(|| format!("{} is no .creds file", path.display())),
            Source::Nkey(path) => Identity::of_seed(read_secret(path)?.trim())
                .ok_or_else(|| format!("{} does not hold the seed of an nkey of a user", path.display())),
        }
    }
}

/// What a process shows to a server.
#[derive(Clone)]
pub(crate) struct Identity {
    /// What an account says of the user of the key. `None`: the server knows the key itself.
    jwt: Option<String>,
    key: Arc<dyn SigningKey>,
}

impl Identity {
    /// Reads the lines between the marks of a `.creds` file: the first is the JWT, the second the seed.
    fn of_creds(text: &str) -> Option<Identity> {
        let is_mark = |line: &str| line.starts_with("---") && line.ends_with("---");
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let marked = lines.windows(3).filter(|lines| is_mark(lines[0]) && is_mark(lines[2]));
        let mut marked = marked.map(|lines| lines[1]).filter(|line| !line.is_empty());
        let (jwt, seed) = (marked.next()?, marked.next()?);
        Some(Identity { jwt: Some(jwt.to_owned()), ..Identity::of_seed(seed)? })
    }

    pub(crate) fn of_seed(seed: &str) -> Option<Identity> {
        let bytes = decode(seed)?;
        let (prefix, seed) = bytes.split_at_checked(2)?;
        let is_of_user = prefix[0] & 0xf8 == SEED && ((prefix[0] & 7) << 5 | prefix[1] >> 3) == USER;
        if !is_of_user || seed.len() != 32 {
            return None;
        }
        let der = PrivatePkcs8KeyDer::from([&PKCS8_PREFIX[..], seed].concat());
        Some(Identity { jwt: None, key: any_eddsa_type(&der).ok()? })
    }

    /// Proves to the server that has sent these bytes who this is.
    fn prove(&self, nonce: &[u8]) -> Option<Auth> {
        let signer = self.key.choose_scheme(&[SignatureScheme::ED25519])?;
        let mut auth = Auth::new();
        auth.signature = Some(signer.sign(nonce).ok()?);
        match &self.jwt {
            Some(jwt) => auth.jwt = Some(jwt.clone()),
            None => auth.nkey = Some(self.public_key()?),
        }
        Some(auth)
    }

    /// The key as a server has it in its configuration.
    pub(crate) fn public_key(&self) -> Option<String> {
        let info = self.key.public_key()?;
        // The key itself stands at the end.
        let key = info.as_ref().last_chunk::<32>()?;
        Some(encode(&[&[USER][..], &key[..]].concat()))
    }
}

/// Proves for each connection of this process who it is, with what its file says then.
pub(crate) struct Prover {
    source: Source,
    last_good: Mutex<Identity>,
}

impl Prover {
    /// `None`: the servers are told nothing.
    pub(crate) fn new(cluster: &ClusterConfig) -> Result<Option<Prover>, String> {
        let source = match (&cluster.creds, &cluster.nkey) {
            (Some(path), _) => Source::Creds(path.clone()),
            (None, Some(path)) => Source::Nkey(path.clone()),
            (None, None) => return Ok(None),
        };
        let last_good = Mutex::new(source.read()?);
        Ok(Some(Prover { source, last_good }))
    }

    pub(crate) fn prove(&self, nonce: &[u8]) -> Result<Auth, AuthError> {
        let mut identity = self.last_good.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match self.source.read() {
            Ok(read) => *identity = read,
            Err(why) => warn!("{why}: the credentials that were read before are used"),
        }
        identity.prove(nonce).ok_or_else(|| AuthError::new("the key cannot sign"))
    }
}

/// The bytes of a key, without the checksum at their end.
fn decode(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for letter in text.bytes() {
        let value = LETTERS.iter().position(|known| *known == letter)? as u32;
        bits = (bits << 5 | value) & 0xfff;
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    let checksum = bytes.split_off(bytes.len().checked_sub(2)?);
    (crc16(&bytes).to_le_bytes()[..] == checksum[..]).then_some(bytes)
}

/// The seed of a key of this kind, as text.
pub(crate) fn spelled_seed(kind: u8, seed: &[u8; 32]) -> String {
    encode(&[&[SEED | kind >> 5, kind << 3], &seed[..]].concat())
}

/// A key as text, with its checksum.
fn encode(key: &[u8]) -> String {
    let (mut text, mut bits, mut count) = (String::new(), 0_u32, 0);
    for byte in key.iter().copied().chain(crc16(key).to_le_bytes()) {
        bits = (bits << 8 | u32::from(byte)) & 0xfff;
        count += 8;
        while count >= 5 {
            count -= 5;
            text.push(char::from(LETTERS[(bits >> count & 31) as usize]));
        }
    }
    if count > 0 {
        text.push(char::from(LETTERS[(bits << (5 - count) & 31) as usize]));
    }
    text
}

/// The checksum of keys (CRC-16/XMODEM).
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(
            crc ^ u16::from(*byte) << 8,
            |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
            },
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use rpc::text::hex;
    use tempfile::TempDir;

    use super::*;

    /// The seed of 32 times the byte 1, its public key and its signature of "nonce", made by another implementation.
    const SEED_OF_1: &str = "SUAACAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAN7EY";
    const KEY_OF_1: &str = "UCFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVZ45L";
    const SIGNATURE_OF_1: &str = "733e538c3481b691c7e6c3c7839691d0ad7b4a31caf4f4ef99513130899b128b\
                                  c5ff4afd9f9bed96809c37ae18208449cc46eff684df728b750028f23165a309";
    const SEED_OF_8: &str = "SUAAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCHYGE";
    const KEY_OF_8: &str = "UAJZR5RMNUNEK7CRXJVEWXZ5XUXWT7FJGILCDDOITF7EC26RPWJ4VH26";

    fn write(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    }

    #[test]
    fn a_seed_has_the_key_and_the_signature_that_other_programs_make_of_it() {
        let identity = Identity::of_seed(SEED_OF_1).unwrap();
        let auth = identity.prove(b"nonce").unwrap();
        assert_eq!((auth.nkey.as_deref(), auth.jwt), (Some(KEY_OF_1), None));
        assert_eq!(hex(&auth.signature.unwrap()), SIGNATURE_OF_1);
        assert_eq!(spelled_seed(USER, &[1; 32]), SEED_OF_1);
        let other = Identity::of_seed(SEED_OF_8).unwrap();
        assert_eq!(other.public_key().as_deref(), Some(KEY_OF_8));
        let mistyped = SEED_OF_1.replace("SUAAC", "SUAAD");
        for bad in ["", "S", "SUAA", KEY_OF_1, &mistyped, &SEED_OF_1[..40], "SUAA ü", &"A".repeat(500)] {
            assert!(Identity::of_seed(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_creds_file_has_a_jwt_and_a_seed_and_nothing_else_is_one() {
        let creds = |jwt: &str, seed: &str| {
            format!(
                "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n*** IMPORTANT ***\n\n\
                 -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n\n***\n"
            )
        };
        for text in [creds("eyJ0.e30.x", SEED_OF_1), creds("eyJ0.e30.x", SEED_OF_1).replace('\n', "\r\n")] {
            let auth = Identity::of_creds(&text).unwrap().prove(b"nonce").unwrap();
            assert_eq!((auth.jwt.as_deref(), auth.nkey), (Some("eyJ0.e30.x"), None));
            assert_eq!(hex(&auth.signature.unwrap()), SIGNATURE_OF_1);
        }
        let half = &creds("eyJ0.e30.x", SEED_OF_1)[..120];
        for bad in [half, SEED_OF_1, "", "---\n---\n---", &creds("", SEED_OF_1), &creds("eyJ0", "SUAA")] {
            assert!(Identity::of_creds(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn each_connection_has_what_the_file_says_then_and_else_what_it_said_last() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("n1.nk");
        let cluster =
            ClusterConfig { nkey: Some(path.clone()), ..ClusterConfig::at("nats://127.0.0.1:4222") };
        assert!(Prover::new(&cluster).is_err(), "there is no file");
        write(&path, &format!("{SEED_OF_1}\n"));
        let prover = Prover::new(&cluster).unwrap().unwrap();
        let key = || prover.prove(b"nonce").unwrap().nkey.unwrap();
        assert_eq!(key(), KEY_OF_1);
        write(&path, "half of a");
        assert_eq!(key(), KEY_OF_1);
        fs::remove_file(&path).unwrap();
        assert_eq!(key(), KEY_OF_1);
        write(&path, SEED_OF_8);
        assert_eq!(key(), KEY_OF_8);
        assert!(Prover::new(&ClusterConfig::at("nats://127.0.0.1:4222")).unwrap().is_none());
    }
}
