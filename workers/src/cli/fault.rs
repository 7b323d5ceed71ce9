//! Why a turn has failed, as far as a CLI says it: by a status of HTTP, else by its words.

/// What a client can do about a failed turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// The user has to log in.
    Authentication,
    /// Too many requests for now.
    RateLimit,
    /// What the account may use is used up.
    Quota,
    /// The conversation is too long for the model.
    Context,
    /// The provider is too busy.
    Overloaded,
    /// Anything else.
    Runtime,
}

/// What messages say, in small letters. The first kind of which a sign occurs counts.
const SIGNS: [(Fault, &[&str]); 5] = [
    (
        Fault::Authentication,
        &[
            "401",
            "403",
            "unauthorized",
            "authentication",
            "auth_error",
            "permission_denied",
            "invalid api key",
            "invalid x-api-key",
            "not logged in",
            "please log in",
            "set an auth method",
            "no auth type",
            "api key not found",
            "/login",
        ],
    ),
    (
        Fault::Context,
        &[
            "prompt is too long",
            "input is too long",
            "context window",
            "context length",
            "context_length",
            "maximum context",
        ],
    ),
    (
        Fault::Quota,
        &[
            "usage limit",
            "insufficient_quota",
            "current quota",
            "credit balance",
            "out of credits",
            "hit your limit",
        ],
    ),
    (Fault::RateLimit, &["rate limit", "rate_limit", "ratelimit", "too many requests", "resource_exhausted"]),
    (Fault::Overloaded, &["overloaded", "at capacity"]),
];

impl Fault {
    /// By the status with which the provider refused, or 0 if none is known.
    pub(super) fn new(status: u64, message: &str) -> Fault {
        match (status, Fault::said(message)) {
            (0, said) => said,
            (401 | 403, _) => Fault::Authentication,
            (402, _) => Fault::Quota,
            (413, _) => Fault::Context,
            (429, Fault::Quota) => Fault::Quota,
            (429, _) => Fault::RateLimit,
            (503 | 529, _) => Fault::Overloaded,
            // The words would say it of another request, such as one with the number 401 in it.
            (_, Fault::Authentication) => Fault::Runtime,
            (_, said) => said,
        }
    }

    /// By the words alone.
    pub(super) fn said(message: &str) -> Fault {
        let message = message.to_ascii_lowercase();
        let is_said = |signs: &[&str]| signs.iter().any(|sign| message.contains(sign));
        SIGNS.iter().find(|(_, signs)| is_said(signs)).map_or(Fault::Runtime, |(fault, _)| *fault)
    }

    /// Its name in `errorKind`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Fault::Authentication => "authentication",
            Fault::RateLimit => "rate_limit",
            Fault::Quota => "quota",
            Fault::Context => "context",
            Fault::Overloaded => "overloaded",
            Fault::Runtime => "runtime",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_told_by_its_status_and_else_by_its_words() {
        for (status, message, fault) in [
            (401, "no", Fault::Authentication),
            (403, "rate limit", Fault::Authentication),
            (0, "Not logged in. Please run /login", Fault::Authentication),
            (429, "slow down", Fault::RateLimit),
            (429, "You've hit your usage limit", Fault::Quota),
            (0, "Rate limit reached for gpt", Fault::RateLimit),
            (0, "Claude AI usage limit reached|1760000000", Fault::Quota),
            (400, "prompt is too long: 210000 tokens > 200000 maximum", Fault::Context),
            (0, "This model's maximum context length is 8192 tokens", Fault::Context),
            (529, "x", Fault::Overloaded),
            (0, "Overloaded", Fault::Overloaded),
            (500, "Internal server error 401", Fault::Runtime),
            (0, "it hurts", Fault::Runtime),
        ] {
            assert_eq!(Fault::new(status, message), fault, "{status} {message}");
        }
    }
}
