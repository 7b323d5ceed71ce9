//! The figures of a bus, as Prometheus reads them.

use clients::{Target, metrics};
use hyper::StatusCode;

use crate::bus_link::BusLink;
use crate::reply::{self, Reply};

/// The figures of the bus, asked for now.
pub(crate) async fn figures(target: &Target) -> Reply {
    match BusLink::ask(target, "_bus/status").await {
        Ok(status) => {
            let status = serde_json::from_str(&status).unwrap_or_default();
            reply::with_type(StatusCode::OK, metrics::CONTENT_TYPE, metrics::describe(&status))
        }
        Err(_) => reply::text(StatusCode::SERVICE_UNAVAILABLE, "the bus does not answer"),
    }
}
