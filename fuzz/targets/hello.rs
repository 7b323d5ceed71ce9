//! The fuzzer of `kernel::bus::fuzz::hello`, which says what must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kernel::bus::fuzz::hello(bytes));
