//! Where a span stands in a trace: its ids, and the `traceparent` of W3C Trace Context that others send.

/// The longest `tracestate` that is passed on, in bytes, as the standard asks for at least.
const TRACESTATE_BYTES: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) trace_id: [u8; 16],
    pub(crate) span_id: [u8; 8],
    /// Whether the span is wanted. Whoever has begun the trace decides it.
    pub(crate) is_sampled: bool,
    pub(crate) tracestate: String,
}

impl Context {
    /// `None`: it is not a `traceparent`, and the trace begins here.
    pub(crate) fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Context> {
        let mut parts = traceparent.split('-');
        let (version, trace_id) = (bytes::<1>(parts.next()?)?, bytes::<16>(parts.next()?)?);
        let (span_id, flags) = (bytes::<8>(parts.next()?)?, bytes::<1>(parts.next()?)?);
        // Later versions may have more parts; this one has none.
        let is_known = version[0] != 0xff && (version[0] > 0 || parts.next().is_none());
        if !is_known || trace_id == [0; 16] || span_id == [0; 8] {
            return None;
        }
        let tracestate = tracestate.filter(|state| state.len() <= TRACESTATE_BYTES && is_printable(state));
        let is_sampled = flags[0] & 1 == 1;
        Some(Context { trace_id, span_id, is_sampled, tracestate: tracestate.unwrap_or_default().to_owned() })
    }
}

fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
}

/// This many bytes, as lowercase hex digits.
fn bytes<const N: usize>(hex: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if hex.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    #[test]
    fn a_traceparent_names_trace_and_parent_and_whether_it_is_wanted() {
        let context = Context::parse(&format!("00-{TRACE}-b7ad6b7169203331-01"), Some("a=1")).unwrap();
        assert_eq!(
            (hex(&context.trace_id), hex(&context.span_id)),
            (TRACE.into(), "b7ad6b7169203331".into())
        );
        assert_eq!((context.is_sampled, context.tracestate.as_str()), (true, "a=1"));
        assert!(!Context::parse(&format!("00-{TRACE}-b7ad6b7169203331-00"), None).unwrap().is_sampled);
        assert!(Context::parse(&format!("01-{TRACE}-b7ad6b7169203331-01-later"), None).is_some());
    }

    #[test]
    fn anything_else_is_none() {
        let zeros = "0".repeat(32);
        for wrong in [
            String::new(),
            "00".to_owned(),
            format!("00-{TRACE}-b7ad6b7169203331"),
            format!("00-{TRACE}-b7ad6b7169203331-01-more"),
            format!("ff-{TRACE}-b7ad6b7169203331-01"),
            format!("00-{}-b7ad6b7169203331-01", TRACE.to_uppercase()),
            format!("00-{zeros}-b7ad6b7169203331-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{TRACE}é-b7ad6b716920333-01"),
        ] {
            assert_eq!(Context::parse(&wrong, None), None, "{wrong}");
        }
        let context = Context::parse(&format!("00-{TRACE}-b7ad6b7169203331-01"), Some("a\u{1b}=1")).unwrap();
        assert_eq!(context.tracestate, "");
    }
}
