//! Fuzzes `cluster::fuzz::frame`, which checks what must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cluster::fuzz::frame(bytes));
