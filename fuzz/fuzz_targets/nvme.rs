//! See `crates/arden-fuzz`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| arden_fuzz::run("nvme", data));
