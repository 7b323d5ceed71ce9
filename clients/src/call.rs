//! `call`: sends one request through the bus and returns its result.

use std::time::Duration;

use serde_json::value::RawValue;

use crate::connection::Connection;
use crate::{Fault, Target};

#[derive(Debug, Default)]
pub struct Call {
    pub method: String,
    /// Sent as written, except that newlines become spaces.
    pub params: Option<Box<RawValue>>,
    /// The pool to bind the connection to before the call.
    pub pool: Option<String>,
    /// `None`: waits as long as it takes.
    pub timeout: Option<Duration>,
}

/// Returns the `result` of the answer, byte for byte.
pub fn run(call: &Call, target: &Target) -> Result<Box<RawValue>, Fault> {
    let mut connection = Connection::connect(target, call.timeout)?;
    connection.hello("stdio-bus call", call.pool.as_deref())?;
    connection.request(&call.method, &call.params)
}

/// Accepts what JSON-RPC allows for `params`: an object or an array.
pub fn parse_params(text: &str) -> Result<Box<RawValue>, String> {
    let params: Box<RawValue> = serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
    if !params.get().starts_with(['{', '[']) {
        return Err("the parameters must be an object or a list".to_owned());
    }
    Ok(params)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;

    use kernel_core::config::Address;

    use super::*;
    use crate::TokenFile;
    use crate::fake_bus::FakeBus;

    /// Keeps a missing answer from hanging the test.
    const TEST_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

    fn call(method: &str, params: &str) -> Call {
        let params = Some(parse_params(params).unwrap());
        Call { method: method.to_owned(), params, pool: None, timeout: TEST_TIMEOUT }
    }

    #[test]
    fn the_result_comes_back_byte_for_byte() {
        let bus = FakeBus::answering(&[&[r#"{"jsonrpc":"2.0","id":1,"result":{ "b":1.50, "a":"\u0041" }}"#]]);
        let result = run(&call("m\"m", "{\"x\":\n 1.0}"), &bus.target()).unwrap();
        assert_eq!(result.get(), r#"{ "b":1.50, "a":"\u0041" }"#);
        assert_eq!(bus.received(), [r#"{"jsonrpc":"2.0","id":1,"method":"m\"m","params":{"x":  1.0}}"#]);
    }

    #[test]
    fn null_is_a_result_and_params_may_be_absent() {
        let bus = FakeBus::answering(&[&[r#"{"jsonrpc":"2.0","id":1,"result":null}"#]]);
        let call = Call { params: None, ..call("m", "{}") };
        assert_eq!(run(&call, &bus.target()).unwrap().get(), "null");
        assert_eq!(bus.received(), [r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#]);
    }

    #[test]
    fn an_error_answer_is_returned_verbatim() {
        for id in ["1", "null"] {
            let error = r#"{"code":-32052,"message":"x","data":{"reason":"unknown_pool"}}"#;
            let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#);
            let bus = FakeBus::answering(&[&[&line]]);
            let fault = run(&call("m", "[]"), &bus.target()).unwrap_err();
            assert_eq!((fault.to_string().as_str(), fault.exit_code()), (error, 1));
        }
    }

    #[test]
    fn a_missing_token_and_a_refused_token_are_different_faults() {
        let line = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32056,"message":"x","data":{"reason":"unauthorized"}}}"#;
        let bus = FakeBus::answering(&[&[line]]);
        let at = bus.target().addresses[0].to_string();
        let fault = run(&call("m", "{}"), &bus.target()).unwrap_err();
        let asks = format!("the bus at {at} asks for a token: name its file with --token-file");
        assert_eq!((fault.to_string(), fault.exit_code()), (asks, 77));

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "0123456789abcdef").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let bus = FakeBus::answering(&[&[line]]);
        let at = bus.target().addresses[0].to_string();
        let token = Some(TokenFile { path: path.clone(), any_host: false });
        let fault = run(&call("m", "{}"), &Target { token, ..bus.target() }).unwrap_err();
        let refuses = format!("the bus at {at} refuses the token of {}", path.display());
        assert_eq!((fault.to_string(), fault.exit_code()), (refuses, 77));
        let hello = r#""params":{"client":"stdio-bus call","token":"0123456789abcdef"}"#;
        assert_eq!(bus.received(), [format!(r#"{{"jsonrpc":"2.0","id":1,"method":"_bus/hello",{hello}}}"#)]);
    }

    #[test]
    fn messages_before_the_answer_are_skipped_and_requests_are_refused() {
        let bus = FakeBus::answering(&[
            &[
                "",
                r#"{"jsonrpc":"2.0","method":"session/update","params":{}}"#,
                r#"{"jsonrpc":"2.0","id":7,"result":"not ours"}"#,
                r#"{"jsonrpc":"2.0","id":1,"method":"fs/read_text_file","params":{}}"#,
            ],
            &[r#"{"jsonrpc":"2.0","id":1,"result":"ours"}"#],
        ]);
        assert_eq!(run(&call("m", "{}"), &bus.target()).unwrap().get(), r#""ours""#);
        let refusal =
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"this client answers no requests"}}"#;
        assert_eq!(bus.received()[1], refusal);
    }

    #[test]
    fn the_pool_is_named_in_a_hello_before_the_call() {
        let bus = FakeBus::answering(&[
            &[r#"{"jsonrpc":"2.0","id":1,"result":{}}"#],
            &[r#"{"jsonrpc":"2.0","id":2,"result":{}}"#],
        ]);
        run(&Call { pool: Some("claude".to_owned()), ..call("m", "{}") }, &bus.target()).unwrap();
        let received = bus.received();
        let hello: serde_json::Value = serde_json::from_str(&received[0]).unwrap();
        let params = serde_json::json!({ "client": "stdio-bus call", "pool": "claude" });
        assert_eq!((&hello["method"], &hello["params"]), (&"_bus/hello".into(), &params));
        assert_eq!(received[1], r#"{"jsonrpc":"2.0","id":2,"method":"m","params":{}}"#);
    }

    #[test]
    fn a_unix_socket_works_too() {
        let bus = FakeBus::answering_on_unix(&[&[r#"{"jsonrpc":"2.0","id":1,"result":1}"#]]);
        assert_eq!(run(&call("m", "{}"), &bus.target()).unwrap().get(), "1");
    }

    #[test]
    fn where_nothing_listens_the_next_address_is_tried() {
        let bus = FakeBus::answering(&[&[r#"{"jsonrpc":"2.0","id":1,"result":1}"#]]);
        let mut target = bus.target();
        target.addresses.insert(0, Address::Unix("/no/such.sock".into()));
        assert_eq!(run(&call("m", "{}"), &target).unwrap().get(), "1");
    }

    #[test]
    fn an_unreachable_bus_is_reported_with_every_address_tried() {
        let addresses = ["/no/a.sock", "/no/b.sock"].map(|path| Address::Unix(path.into())).to_vec();
        let fault = run(&call("m", "{}"), &Target { addresses, token: None, user_bus: None }).unwrap_err();
        let not_found = "(No such file or directory)";
        let expected =
            format!("no bus answers at unix:///no/a.sock {not_found}, nor at unix:///no/b.sock {not_found}");
        assert_eq!((fault.to_string(), fault.exit_code()), (expected, 69));
    }

    #[test]
    fn a_peer_that_is_not_a_bus_is_unreachable() {
        for lines in [&[][..], &["HTTP/1.1 400 Bad Request"], &["[]"]] {
            let bus = FakeBus::answering(&[lines]);
            assert_eq!(run(&call("m", "{}"), &bus.target()).unwrap_err().exit_code(), 69, "{lines:?}");
        }
    }

    #[test]
    fn the_timeout_of_the_user_ends_the_wait() {
        // The listener never accepts, so the connection stands and no answer comes.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let addresses = vec![Address::Tcp { host: "127.0.0.1".into(), port }];
        let call = Call { timeout: Some(Duration::from_millis(200)), ..call("m", "{}") };
        let fault = run(&call, &Target { addresses, token: None, user_bus: None }).unwrap_err();
        let expected = format!("no answer from tcp://127.0.0.1:{port} within 200ms");
        assert_eq!((fault.to_string(), fault.exit_code()), (expected, 1));
    }

    #[test]
    fn parameters_are_an_object_or_a_list() {
        assert!(parse_params(" {}").is_ok() && parse_params("[1]").is_ok());
        assert_eq!(parse_params("7").unwrap_err(), "the parameters must be an object or a list");
        assert!(parse_params("{").unwrap_err().starts_with("not JSON: "));
    }
}
