//! A collector of our own takes the requests, refuses them, or is away.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::Sender as ChannelSender;
use std::time::SystemTime;

use serde_json::Value;

use super::*;
use crate::context::Context;
use crate::settings::Settings;
use crate::span::{Attribute, Kind};

/// A test waits this long for what must come.
const PATIENCE: Duration = Duration::from_secs(120);

struct Request {
    head: String,
    body: Vec<u8>,
}

/// Answers each request with the next of these, and the last one again and again.
fn collector(answers: &'static [&'static str]) -> (String, Receiver<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (requests_tx, requests) = channel();
    thread::spawn(move || {
        let mut nth = 0;
        for stream in listener.incoming() {
            serve(stream.unwrap(), answers, &mut nth, &requests_tx);
        }
    });
    (url, requests)
}

/// One connection has one request.
fn serve(stream: TcpStream, answers: &[&str], nth: &mut usize, requests: &ChannelSender<Request>) {
    let mut reader = BufReader::new(&stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        if let Some(text) = line.to_lowercase().strip_prefix("content-length:") {
            length = text.trim().parse().unwrap();
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let answer = answers[(*nth).min(answers.len() - 1)];
    *nth += 1;
    let _ = (&stream).write_all(answer.as_bytes());
    let _ = requests.send(Request { head, body });
}

fn span(name: &str) -> Span {
    let context = Context { trace_id: [1; 16], span_id: [2; 8], is_sampled: true, tracestate: String::new() };
    Span {
        context,
        parent: Some([3; 8]),
        name: name.to_owned(),
        kind: Kind::Client,
        start: SystemTime::UNIX_EPOCH,
        end: SystemTime::UNIX_EPOCH,
        attributes: vec![("a", Attribute::Number(-1))],
        error: None,
    }
}

fn start(url: &str, set: &'static [(&'static str, &'static str)]) -> (Exporter, Receiver<String>) {
    let variable =
        |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
    let settings = Settings::read(Some(url), &variable).unwrap();
    let (told_tx, told) = channel();
    let told_tx = Mutex::new(told_tx);
    let tell: Tell = Arc::new(move |line: &str| {
        let _ = told_tx.lock().unwrap().send(line.to_owned());
    });
    (Exporter::start(Collector::new(settings), tell), told)
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
const BUSY: &str = "HTTP/1.1 503 No\r\nRetry-After: 0\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const LATER: &str = "HTTP/1.1 429 No\r\nRetry-After: 3600\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const WRONG: &str = "HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

#[test]
fn spans_are_sent_together_with_headers_and_compressed() {
    let (url, requests) = collector(&[OK]);
    let set = &[
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
    ];
    let (exporter, _told) = start(&url, set);
    exporter.offer(vec![span("one"), span("two")]);
    let request = requests.recv_timeout(PATIENCE).unwrap();
    let head = request.head.to_lowercase();
    assert!(head.starts_with("post /v1/traces "), "{head}");
    assert!(head.contains("api-key: secret") && head.contains("content-type: application/json"), "{head}");
    let mut text = String::new();
    flate2::read::GzDecoder::new(&request.body[..]).read_to_string(&mut text).unwrap();
    let sent: Value = serde_json::from_str(&text).unwrap();
    let spans = &sent["resourceSpans"][0]["scopeSpans"][0]["spans"];
    assert_eq!((&spans[0]["name"], &spans[1]["name"]), (&"one".into(), &"two".into()));
    assert_eq!(spans[0]["parentSpanId"], "0303030303030303");
    assert_eq!(spans[0]["attributes"][0]["value"]["intValue"], "-1");
    assert_eq!(exporter.close(PATIENCE), Totals { sent: 2, dropped: 0 });
}

#[test]
fn what_a_collector_cannot_take_now_is_sent_again() {
    let (url, requests) = collector(&[BUSY, BUSY, OK]);
    let (exporter, told) = start(&url, &[]);
    exporter.offer(vec![span("one")]);
    let bodies: Vec<_> = (0..3).map(|_| requests.recv_timeout(PATIENCE).unwrap().body).collect();
    assert!(bodies[0] == bodies[1] && bodies[1] == bodies[2], "it is the same request");
    assert!(told.recv_timeout(PATIENCE).unwrap().ends_with("does not take spans: HTTP status 503"));
    assert!(told.recv_timeout(PATIENCE).unwrap().ends_with("takes spans again; 0 were dropped so far"));
    assert_eq!(exporter.close(PATIENCE), Totals { sent: 1, dropped: 0 });
}

#[test]
fn what_a_collector_refuses_for_good_is_dropped_and_counted() {
    let (url, requests) = collector(&[WRONG, OK]);
    let (exporter, told) = start(&url, &[]);
    exporter.offer(vec![span("one")]);
    requests.recv_timeout(PATIENCE).unwrap();
    assert!(told.recv_timeout(PATIENCE).unwrap().contains("404"));
    exporter.offer(vec![span("two")]);
    requests.recv_timeout(PATIENCE).unwrap();
    assert_eq!(exporter.close(PATIENCE), Totals { sent: 1, dropped: 1 });
}

#[test]
fn a_collector_that_takes_only_some_says_so() {
    const PARTLY: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n\
        {\"partialSuccess\":{\"rejectedSpans\":\"1\",\"errorMessage\":\"too\\u001bold\"}}";
    let (url, _requests) = collector(&[PARTLY]);
    let (exporter, told) = start(&url, &[("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")]);
    exporter.offer(vec![span("one"), span("two")]);
    assert!(told.recv_timeout(PATIENCE).unwrap().ends_with("has refused 1 spans: too old"));
    assert_eq!(exporter.close(PATIENCE), Totals { sent: 1, dropped: 1 });
}

#[test]
fn while_the_collector_is_away_nobody_waits_and_what_does_not_fit_is_counted() {
    let (url, requests) = collector(&[LATER]);
    let (exporter, told) = start(&url, &[]);
    exporter.offer(vec![span("one")]);
    requests.recv_timeout(PATIENCE).unwrap();
    assert!(told.recv_timeout(PATIENCE).unwrap().contains("429"));
    // It waits for as long as it was asked to, and the queue takes what comes.
    for _ in 0..MAX_QUEUED + 7 {
        exporter.offer(vec![span("more")]);
    }
    assert_eq!(exporter.shared.lock().totals, Totals { sent: 0, dropped: 7 });
    let totals = exporter.close(PATIENCE);
    assert_eq!(totals, Totals { sent: 0, dropped: MAX_QUEUED as u64 + 8 });
}

#[test]
fn a_collector_that_is_not_there_is_named_without_its_password() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let (exporter, told) = start(&format!("http://me:secret@127.0.0.1:{port}"), &[]);
    exporter.offer(vec![span("one")]);
    let line = told.recv_timeout(PATIENCE).unwrap();
    assert!(line.starts_with(&format!("http://127.0.0.1:{port}/v1/traces does not take spans: ")), "{line}");
    assert!(!line.contains("secret"), "{line}");
    assert_eq!(exporter.close(PATIENCE), Totals { sent: 0, dropped: 1 });
}
