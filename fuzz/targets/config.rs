//! The fuzzer of `kernel::bus::fuzz::config`, which says what must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kernel::bus::fuzz::config(bytes));
