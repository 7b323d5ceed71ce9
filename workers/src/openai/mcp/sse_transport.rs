//! The older HTTP transport of MCP, which the SDK no longer has: the server's messages come in one stream of events,
//! whose first names the URL that the client's messages are posted to.

use rmcp::RoleClient;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio_stream::StreamExt;
use ureq::http::{HeaderValue, Method, header};

use super::events::Events;
use super::http::{Headers, HttpClient, HttpError, join};
use crate::openai::log::log;

pub(super) struct SseTransport {
    client: HttpClient,
    /// Where messages are posted to.
    endpoint: String,
    headers: Headers,
    /// `None`: closed.
    events: Option<Events>,
}

impl SseTransport {
    pub(super) async fn connect(
        client: HttpClient,
        uri: &str,
        mut headers: Headers,
    ) -> Result<SseTransport, HttpError> {
        let mut accepting = headers.clone();
        accepting.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let mut answer = client.send(Method::GET, uri, accepting, Vec::new()).await?;
        let Some(mut events) = answer.events.take() else {
            return Err(answer.error());
        };
        while let Some(event) = events.next().await {
            let event = event.map_err(|error| HttpError(error.to_string()))?;
            if event.event.as_deref() == Some("endpoint") {
                let endpoint = join(uri, event.data.unwrap_or_default().trim())?;
                return Ok(SseTransport { client, endpoint, headers, events: Some(events) });
            }
        }
        Err(HttpError("the stream ended before it named an endpoint".to_owned()))
    }
}

impl Transport<RoleClient> for SseTransport {
    type Error = HttpError;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), HttpError>> + Send + 'static {
        let (client, endpoint, headers) = (self.client.clone(), self.endpoint.clone(), self.headers.clone());
        async move {
            let body = serde_json::to_vec(&message).map_err(|error| HttpError(error.to_string()))?;
            let answer = client.send(Method::POST, &endpoint, headers, body).await?;
            if answer.status.is_success() { Ok(()) } else { Err(answer.error()) }
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            let event = self.events.as_mut()?.next().await?.ok()?;
            if !matches!(event.event.as_deref(), None | Some("message")) {
                continue;
            }
            match serde_json::from_str(&event.data.unwrap_or_default()) {
                Ok(message) => return Some(message),
                Err(_) => log(format_args!("an MCP server sent what is no message; it is skipped")),
            }
        }
    }

    async fn close(&mut self) -> Result<(), HttpError> {
        self.events = None;
        Ok(())
    }
}
