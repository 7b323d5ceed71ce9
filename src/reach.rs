//! Which address of the web door another device, such as a phone, can reach, and what is missing if none.

use std::net::IpAddr;

use kernel_core::config::WebConfig;
use nix::ifaddrs::getifaddrs;

/// A door as other devices see it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// They reach it at this URL.
    At(String),
    /// Only this machine reaches it. What to do about that.
    Nowhere(String),
}

/// `public` is the URL that the door gives itself, `web` the part of bus.json that describes it.
pub(crate) fn reach(public: &str, web: Option<&WebConfig>) -> Reach {
    reach_from(public, web, &machine_addresses())
}

fn reach_from(public: &str, web: Option<&WebConfig>, addresses: &[IpAddr]) -> Reach {
    let host = host_of(public);
    let ip = host.parse::<IpAddr>().ok();
    let is_here = host.eq_ignore_ascii_case("localhost") || ip.is_some_and(|ip| ip.is_loopback());
    if !is_here && !ip.is_some_and(|ip| ip.is_unspecified()) {
        return Reach::At(public.to_owned());
    }
    // A proxy in front of the door, such as Tailscale, has a name of its own.
    let is_far = |origin: &&String| origin.starts_with("https://") && !is_loopback_url(origin);
    if let Some(proxy) = web.and_then(|web| web.origins.iter().find(is_far)) {
        return Reach::At(proxy.trim_end_matches('/').to_owned());
    }
    let port = public.rsplit_once(':').map_or("9001", |(_, port)| port);
    let shown: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    if !is_here {
        let names = if shown.is_empty() { "its name".to_owned() } else { format!("\"{}\"", shown[0]) };
        return Reach::Nowhere(format!(
            "{public} is no address that a phone can open. Name this machine in bus.json, as its certificate does: \
             \"web\": {{ \"hosts\": [{names}], ... }}"
        ));
    }
    let own = shown.first().map_or("ADDRESS", String::as_str);
    Reach::Nowhere(format!(
        "This link opens on this machine alone: the door listens at {public}. For a phone, one of these:\n\
         - Tailscale: `tailscale serve --bg {port}`, and in bus.json, with the name that it prints: \
         \"web\": {{ \"listen\": \"{public}\", \"hosts\": [\"NAME\"], \"origins\": [\"https://NAME\"] }}\n\
         - the same network: a certificate for {own}, and \"web\": {{ \"listen\": \"https://0.0.0.0:{port}\", \
         \"hosts\": [\"{own}\"], \"tls\": {{ \"cert\": FILE, \"key\": FILE }} }}\n\
         - an ssh app on the phone that forwards its port {port} to {} here: then this link is good there\n\
         Then `stdio-bus reload`, and ask for a link again. docs/WEB.md has each step by step.",
        public.split_once("://").map_or(public, |(_, rest)| rest)
    ))
}

fn is_loopback_url(url: &str) -> bool {
    let host = host_of(url);
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The host of a URL, without its port and without the brackets of an IPv6 address.
fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split('/').next().unwrap_or_default();
    match rest.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        Some((host, _)) => host,
        None => rest.rsplit_once(':').map_or(rest, |(host, _)| host),
    }
}

/// The addresses of this machine at which others may reach it, IPv4 first.
fn machine_addresses() -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    for interface in getifaddrs().into_iter().flatten() {
        let Some(address) = interface.address else { continue };
        if let Some(v4) = address.as_sockaddr_in() {
            found.push(v4.ip().into());
        } else if let Some(v6) = address.as_sockaddr_in6() {
            found.push(v6.ip().into());
        }
    }
    let is_link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfe80);
    found.retain(|ip| !ip.is_loopback() && !ip.is_unspecified() && !is_link_local(ip));
    found.sort_by_key(IpAddr::is_ipv6);
    found
}

#[cfg(test)]
mod tests {
    use kernel_shell::config::parse_web;

    use super::*;

    #[test]
    fn a_phone_gets_an_address_that_it_can_open_or_the_user_hears_what_is_missing() {
        let door = |origins: &[&str]| {
            let mut web = parse_web("http://127.0.0.1:9001").unwrap();
            web.origins = origins.iter().map(|origin| (*origin).to_owned()).collect();
            web
        };
        let own = ["192.168.1.7".parse().unwrap()];
        let asked = |public: &str, origins: &[&str]| reach_from(public, Some(&door(origins)), &own);
        let at = |url: &str| Reach::At(url.to_owned());
        assert_eq!(asked("https://bus.example:9443", &[]), at("https://bus.example:9443"));
        assert_eq!(asked("https://10.0.0.7:9443", &[]), at("https://10.0.0.7:9443"));
        let proxied = asked("http://127.0.0.1:9001", &["http://localhost:3000", "https://box.tail.ts.net/"]);
        assert_eq!(proxied, at("https://box.tail.ts.net"));
        let Reach::Nowhere(missing) = asked("http://[::1]:9001", &[]) else { panic!("it is loopback") };
        for word in ["tailscale serve --bg 9001", "192.168.1.7", "[::1]:9001 here", "stdio-bus reload"] {
            assert!(missing.contains(word), "{missing}");
        }
        let Reach::Nowhere(missing) = asked("https://0.0.0.0:9443", &[]) else { panic!("it is no address") };
        assert!(missing.contains("\"hosts\": [\"192.168.1.7\"]"), "{missing}");
    }
}
