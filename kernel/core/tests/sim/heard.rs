//! What the bus has just said to everybody, for the worlds whose peers read at once.

use kernel_core::id::Link;
use kernel_core::testkit::TestShell;
use serde_json::Value;

/// Carries out the actions of the bus, and returns the lines that it wrote, in order. They become part of `hash`.
pub(crate) fn heard(shell: &mut TestShell, hash: &mut u64, print: bool) -> Vec<(Link, Value)> {
    let now = shell.now;
    let mut heard = Vec::new();
    shell.act(|bus, link| {
        let bytes = bus.to_send(link).to_vec();
        bus.sent(link, bytes.len(), now);
        let text = String::from_utf8(bytes).expect("UTF-8");
        for line in text.lines() {
            for byte in line.bytes() {
                *hash = (*hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
            if print {
                println!("{:>6} {link:?} hears {line}", now.as_millis());
            }
            heard.push((link, serde_json::from_str(line).expect("JSON")));
        }
    });
    heard
}
