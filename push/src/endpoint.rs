//! Where a push service may be. A browser names it, and whoever has a token speaks for a browser: the door must not be
//! made to knock at what only its machine can reach.

use std::net::IpAddr;

/// Those of push services have some hundred bytes.
const BYTES_MAX: usize = 1024;

/// The origin of an endpoint. `may_be_near`: it may also be on this machine or in its network.
pub fn origin_of(endpoint: &str, may_be_near: bool) -> Result<&str, &'static str> {
    if endpoint.len() > BYTES_MAX || !endpoint.bytes().all(is_url_byte) {
        return Err("the endpoint is too long, or is no URL");
    }
    let (scheme, rest) = endpoint.split_once("://").ok_or("the endpoint is no URL")?;
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let host = host_of(authority).ok_or("the endpoint names no host")?;
    let is_near = is_near(&host);
    match scheme {
        "https" if is_near && !may_be_near => return Err("a push service in this network needs an admin"),
        "https" => {}
        "http" if is_near && may_be_near => {}
        _ => return Err("the endpoint must be https"),
    }
    Ok(&endpoint[..scheme.len() + 3 + authority.len()])
}

fn is_url_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b'\\'
}

/// The host without its port. `None`: it is not spelled plainly, as with a user before it.
fn host_of(authority: &str) -> Option<String> {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (authority, "1"),
    };
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_plain = match inner {
        Some(inner) => inner.parse::<IpAddr>().is_ok(),
        None => host.chars().all(|letter| letter.is_ascii_alphanumeric() || "-.".contains(letter)),
    };
    let is_host = is_plain && !host.is_empty() && port.parse::<u16>().is_ok();
    is_host.then(|| inner.unwrap_or(host).to_ascii_lowercase())
}

/// Whether the name itself says that it is near. What a name resolves to is not looked at.
fn is_near(host: &str) -> bool {
    let Ok(ip) = host.parse::<IpAddr>() else {
        let last = host.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
        // Numbers are addresses in other spellings.
        let is_number = last.strip_prefix("0x").unwrap_or(last).bytes().all(|byte| byte.is_ascii_hexdigit());
        let has_digit = last.bytes().any(|byte| byte.is_ascii_digit());
        return !host.contains('.')
            || ["localhost", "local", "internal"].contains(&last)
            || is_number && has_digit;
    };
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            let [first, second, ..] = ip.octets();
            let is_shared = first == 100 && (64..128).contains(&second);
            ip.is_loopback()
                || ip.is_private()
                || ip.is_link_local()
                || first == 0
                || first >= 224
                || is_shared
        }
        IpAddr::V6(ip) => {
            let first = ip.segments()[0];
            ip.is_loopback() || ip.is_unspecified() || first & 0xfe00 == 0xfc00 || first & 0xff80 >= 0xfe80
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_service_is_elsewhere_and_speaks_https() {
        for (endpoint, origin) in [
            ("https://fcm.googleapis.com/fcm/send/a:b-c_d", "https://fcm.googleapis.com"),
            ("https://push.example:8443?x=1", "https://push.example:8443"),
            ("https://93.184.216.34/p", "https://93.184.216.34"),
        ] {
            assert_eq!(origin_of(endpoint, false), Ok(origin));
        }
        for bad in [
            "",
            "push.example",
            "http://push.example/",
            "ftp://push.example/",
            "https://",
            "https:///p",
            "https://user@push.example/",
            "https://push.example:x/",
            "https://push example/",
            "https://push.example/\n",
            "https://127.0.0.1\\@push.example/",
        ] {
            assert!(origin_of(bad, true).is_err(), "{bad}");
        }
        assert!(origin_of(&format!("https://push.example/{}", "a".repeat(BYTES_MAX)), false).is_err());
    }

    #[test]
    fn what_is_near_is_for_admins() {
        for near in [
            "http://127.0.0.1:9/p",
            "http://localhost:9/p",
            "http://[::1]:9/p",
            "https://10.1.2.3/p",
            "https://192.168.1.7/p",
            "https://169.254.169.254/p",
            "https://100.100.1.1/p",
            "https://0.0.0.0/p",
            "https://[fe80::1]/p",
            "https://[fd00::1]/p",
            "https://[::ffff:127.0.0.1]/p",
            "https://router/p",
            "https://nas.local/p",
            "https://2130706433/p",
            "https://127.1/p",
            "https://0x7f.0.0.1/p",
        ] {
            assert!(origin_of(near, false).is_err(), "{near}");
            assert!(origin_of(near, true).is_ok(), "{near}");
        }
        assert!(origin_of("http://93.184.216.34/p", true).is_err(), "nobody speaks http to another machine");
    }
}
