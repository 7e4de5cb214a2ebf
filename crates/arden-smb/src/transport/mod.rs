//! How frames come and go. TCP so far.

mod buffer;
mod jobs;
mod shell;
