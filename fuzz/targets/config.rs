//! Fuzzes `kernel_shell::fuzz::config`, which checks what must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kernel_shell::fuzz::config(bytes));
