//! Fuzzes `history::fuzz::transcript`, which checks what must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| history::fuzz::transcript(bytes));
