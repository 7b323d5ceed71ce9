//! The two encodings that OTLP has over HTTP.

use crate::resource::Resource;
use crate::span::Span;
use crate::{json, protobuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Protobuf,
    Json,
}

impl Encoding {
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Encoding::Protobuf => "application/x-protobuf",
            Encoding::Json => "application/json",
        }
    }

    pub(crate) fn request(self, resource: &Resource, spans: &[Span]) -> Vec<u8> {
        match self {
            Encoding::Protobuf => protobuf::request(resource, spans),
            Encoding::Json => json::request(resource, spans),
        }
    }

    /// How many spans the answer of a collector says were refused, and why.
    pub(crate) fn rejected(self, answer: &[u8]) -> Option<(u64, String)> {
        match self {
            Encoding::Protobuf => protobuf::rejected(answer),
            Encoding::Json => json::rejected(answer),
        }
    }
}
