//! Connections to the bus of this node.

use std::io;
use std::time::Duration;

use clients::Target;
use memchr::memchr;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::local::Local;
use crate::subjects::shown;

/// How long the bus may take to accept a connection, and to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// An answer of the bus itself is not longer.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Connects to the bus, and says who we are. `pool` is what the connection is for.
pub(crate) async fn connect(target: &Target, client: &str, pool: Option<&str>) -> Result<Local, String> {
    let target = target.clone();
    let dialled = spawn_blocking(move || clients::dial_for(&target, ANSWER_TIMEOUT)).await;
    let (stream, token) = dialled.map_err(|error| error.to_string())?.map_err(|fault| fault.to_string())?;
    let local = Local::of_stream(stream).map_err(|error| error.to_string())?;
    let mut params = json!({ "client": client });
    if let Some(pool) = pool {
        // Whatever the edge says later, the bus lets it have this pool and its own sessions, and nothing else.
        (params["pool"], params["role"]) = (pool.into(), "pipe".into());
    }
    if let Some(token) = token {
        params["token"] = token.into();
    }
    ask(&local, "_bus/hello", params).await?;
    Ok(local)
}

/// Asks the bus something on a connection on which nothing else is said.
pub(crate) async fn ask(local: &Local, method: &str, params: Value) -> Result<Value, String> {
    let request = json!({ "jsonrpc": "2.0", "id": "link", "method": method, "params": params });
    let asked = async {
        write(local, format!("{request}\n").as_bytes()).await?;
        read_line(local).await
    };
    let line = match timeout(ANSWER_TIMEOUT, asked).await {
        Ok(line) => line.map_err(|error| format!("the bus of this node: {error}"))?,
        Err(_) => return Err("the bus of this node does not answer".to_owned()),
    };
    let mut answer: Value = serde_json::from_slice(&line).unwrap_or_default();
    match answer["result"].take() {
        Value::Null => Err(shown(answer["error"]["message"].as_str().unwrap_or("what answers is no bus"))),
        result => Ok(result),
    }
}

async fn write(local: &Local, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match local.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => local.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads up to the end of a line. Nothing comes behind it that was not asked for.
async fn read_line(local: &Local) -> io::Result<Vec<u8>> {
    let (mut line, mut piece) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        match local.try_read(&mut piece) {
            Ok(0) => {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has closed the connection"));
            }
            Ok(count) => {
                let end = memchr(b'\n', &piece[..count]);
                line.extend_from_slice(&piece[..end.unwrap_or(count)]);
                if end.is_some() {
                    return Ok(line);
                }
                if line.len() > ANSWER_BYTES_MAX {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer is too long"));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => local.readable().await?,
            Err(error) => return Err(error),
        }
    }
}
