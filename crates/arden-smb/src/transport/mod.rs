//! How frames come and go. TCP so far.

mod shell;
