//! How frames come and go. TCP so far.

mod buffer;
pub mod jobs;
mod shell;
