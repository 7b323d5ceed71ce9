//! Fuzzes `kernel_core::fuzz::splicer`, which checks what must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kernel_core::fuzz::splicer(bytes));
