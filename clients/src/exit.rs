//! Exit codes of sysexits.h. 1 is any other failure, and 2 bad usage.

/// EX_UNAVAILABLE: who is wanted does not answer.
pub const UNAVAILABLE: u8 = 69;
/// EX_SOFTWARE: a supervisor may start it again.
pub const INTERNAL: u8 = 70;
/// EX_CANTCREAT: what was to be made cannot be made, or is there already.
pub const CANNOT_CREATE: u8 = 73;
/// EX_TEMPFAIL: later it may work.
pub const TRY_LATER: u8 = 75;
/// EX_NOPERM: who is asked does not let us, or is not to be trusted.
pub const NOT_ALLOWED: u8 = 77;
/// EX_CONFIG: starting again will not help.
pub const BAD_CONFIGURATION: u8 = 78;
