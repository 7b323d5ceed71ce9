//! Links that open the console.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use kernel_core::config::WebConfig;
use qrcode::QrCode;
use qrcode::render::unicode::Dense1x2;

/// The link to a door with a code. The code is behind the `#`, so that no browser sends it and no log has it.
pub fn link(at: &str, code: &str) -> String {
    format!("{at}/#c={code}")
}

/// Where people reach a door that listens at this port. One at "any address" is reached by the first of its names.
pub(crate) fn public_url(web: &WebConfig, port: u16) -> String {
    let is_any = web.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    match web.hosts.first().filter(|_| is_any) {
        Some(host) if host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']')) => {
            format!("{}://{host}", web.scheme())
        }
        Some(host) => format!("{}://{host}:{port}", web.scheme()),
        None => WebConfig { port, ..web.clone() }.to_string(),
    }
}

/// An address by which this machine reaches who listens at `address`. "Any address" is none to connect to.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// The link as a QR code for a terminal with a dark background. `None`: it is too long.
pub fn qr(link: &str) -> Option<String> {
    let code = QrCode::new(link).ok()?;
    let drawn = code.render::<Dense1x2>().dark_color(Dense1x2::Light).light_color(Dense1x2::Dark).build();
    Some(drawn + "\n")
}

#[cfg(test)]
mod tests {
    use kernel_shell::config::parse_web;

    use super::*;

    #[test]
    fn a_link_names_a_host_that_can_be_reached() {
        let url = |listen: &str, hosts: &[&str]| {
            let mut web = parse_web(listen).unwrap();
            web.hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
            public_url(&web, 9443)
        };
        assert_eq!(url("http://127.0.0.1:0", &["proxy.example"]), "http://127.0.0.1:9443");
        assert_eq!(url("https://0.0.0.0:0", &["bus.example"]), "https://bus.example:9443");
        assert_eq!(url("https://[::]:0", &["bus.example:443"]), "https://bus.example:443");
        assert_eq!(url("https://0.0.0.0:0", &[]), "https://0.0.0.0:9443");
    }

    #[test]
    fn a_door_at_any_address_is_reached_on_loopback() {
        let from = |address: &str| reachable(address.parse().unwrap()).to_string();
        assert_eq!(from("0.0.0.0:9443"), "127.0.0.1:9443");
        assert_eq!(from("[::]:9443"), "[::1]:9443");
        assert_eq!(from("10.0.0.7:9443"), "10.0.0.7:9443");
    }

    #[test]
    fn a_link_has_its_code_in_the_fragment_and_fits_a_terminal() {
        let link = link("http://127.0.0.1:9001", &"x".repeat(32));
        assert!(link.starts_with("http://127.0.0.1:9001/#c=x"));
        let drawn = qr(&link).unwrap();
        assert!(drawn.lines().count() < 24 && drawn.lines().all(|line| line.chars().count() < 50), "{drawn}");
    }
}
