//! The door over https.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use tungstenite::Message;
use tungstenite::client::IntoClientRequest;

use super::echo_with;
use crate::harness::{BUS, Bus, PATIENCE};

type Tls = StreamOwned<ClientConnection, TcpStream>;

fn certificate(name: &str) -> String {
    format!("{}/tests/e2e/web/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn connect(host: &str, protocol: &str) -> Tls {
    let mut roots = RootCertStore::empty();
    let own = CertificateDer::from_pem_file(certificate("cert.pem")).expect("a certificate");
    roots.add(own).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = config.expect("versions").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let session =
        ClientConnection::new(Arc::new(config), "localhost".try_into().expect("a name")).expect("TLS");
    let socket = TcpStream::connect(host).expect("the door listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    StreamOwned::new(session, socket)
}

fn http(host: &str, head: &str, body: &str) -> String {
    let mut tls = connect(host, "http/1.1");
    let length = body.len();
    let request =
        format!("{head}\r\nHost: {host}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
    tls.write_all(request.as_bytes()).expect("TLS");
    let mut answer = String::new();
    let _ = tls.read_to_string(&mut answer);
    answer
}

#[test]
fn the_console_and_websockets_are_there_over_tls_and_plain_http_is_not() {
    let bus = Bus::start(echo_with(json!({
        "listen": "https://127.0.0.1:0",
        "tls": { "cert": certificate("cert.pem"), "key": certificate("key.pem") },
    })));
    let url = bus.web_door();
    let host = url.strip_prefix("https://").expect("https");
    let page = http(host, "GET / HTTP/1.1", "");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains(&format!("wss://{host};")), "{page}");
    let mut plain = TcpStream::connect(host).expect("the door listens");
    plain.write_all(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).expect("a socket");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1"), "{answer:?}");
    let mut command = std::process::Command::new(BUS);
    let link =
        command.args(["web", "url", "--config"]).arg(bus.config_path()).env("XDG_STATE_HOME", bus.folder());
    let link = String::from_utf8(link.output().expect("it runs").stdout).expect("text");
    let code = link.trim().strip_prefix(&format!("{url}/#c=")).expect("a link");
    let login = json!({ "code": code }).to_string();
    let answer = http(host, "POST /login HTTP/1.1\r\nContent-Type: application/json", &login);
    let answer: Value = serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
    let mut request = format!("wss://{host}/acp").into_client_request().expect("a URL");
    let bearer = format!("Bearer {}", answer["token"].as_str().expect("a token"));
    request.headers_mut().insert("Authorization", bearer.parse().expect("a header"));
    let (mut socket, _) = tungstenite::client(request, connect(host, "http/1.1")).expect("a WebSocket");
    socket.send(Message::text(r#"{"jsonrpc":"2.0","id":1,"method":"_bus/status"}"#)).expect("open");
    let answer: Value =
        serde_json::from_str(socket.read().expect("open").to_text().expect("text")).expect("JSON");
    assert_eq!(answer["result"]["web"]["listening"], json!(url));
    // HTTP/2 is agreed upon in the handshake of TLS; its preface is answered with settings.
    let mut two = connect(host, "h2");
    two.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").expect("TLS");
    let mut frame = [0; 9];
    two.read_exact(&mut frame).expect("a frame");
    assert_eq!((frame[3], two.conn.alpn_protocol()), (4, Some(&b"h2"[..])));
}

#[test]
fn browsers_are_told_to_keep_to_tls_by_a_name_that_is_not_shared() {
    let bus = Bus::start(echo_with(json!({
        "listen": "https://127.0.0.1:0",
        "hosts": ["bus.example"],
        "tls": { "cert": certificate("cert.pem"), "key": certificate("key.pem") },
    })));
    let url = bus.web_door();
    let host = url.strip_prefix("https://").expect("https");
    let told = |name: &str| {
        let mut tls = connect(host, "http/1.1");
        let request = format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
        tls.write_all(request.as_bytes()).expect("TLS");
        let mut answer = String::new();
        let _ = tls.read_to_string(&mut answer);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer.to_lowercase().contains("\r\nstrict-transport-security: max-age=2592000\r\n")
    };
    assert!(told("bus.example"));
    assert!(!told(host));
}

#[test]
fn a_link_is_made_for_a_name_that_is_not_known_here() {
    let bus = Bus::start(echo_with(json!({
        "listen": "https://0.0.0.0:0",
        "hosts": ["bus.invalid"],
        "tls": { "cert": certificate("cert.pem"), "key": certificate("key.pem") },
    })));
    let port = bus.web_door().rsplit_once(':').expect("a port").1.to_owned();
    let mut command = std::process::Command::new(BUS);
    let link =
        command.args(["web", "url", "--config"]).arg(bus.config_path()).env("XDG_STATE_HOME", bus.folder());
    let link = String::from_utf8(link.output().expect("it runs").stdout).expect("text");
    assert!(link.starts_with(&format!("https://bus.invalid:{port}/#c=")), "{link}");
}

#[test]
fn a_certificate_that_cannot_be_read_is_said_and_the_bus_runs() {
    let tls = json!({ "cert": "/nonexistent/cert.pem", "key": certificate("key.pem") });
    let bus = Bus::start(echo_with(json!({ "listen": "https://127.0.0.1:0", "tls": tls })));
    bus.log_has("the web door cannot open: /nonexistent/cert.pem: ");
    assert_eq!(bus.client().asks(1, "any/method", json!({}))["method"], "any/method");
    assert!(Path::new(&certificate("cert.pem")).exists());
}

#[test]
fn a_door_that_the_command_line_wants_without_a_certificate_is_refused_at_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("bus.json");
    let mut config = echo_with(json!({ "listen": "http://127.0.0.1:0" }));
    config["listen"] = json!(["tcp://127.0.0.1:0"]);
    std::fs::write(&file, config.to_string()).expect("the folder is ours");
    let out = crate::harness::run(folder.path(), &["serve", "--web", "https://127.0.0.1:0"], "");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("--web https://127.0.0.1:0 needs a certificate"), "{said}");
    assert_eq!(out.status.code(), Some(78));
}
