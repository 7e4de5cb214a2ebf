//! The error of measuring: a sentence for the user. No code distinguishes kinds of errors.

use std::fmt::Display;

/// An error as a sentence for the user.
#[derive(Debug)]
pub struct Error(pub String);

impl Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Error {}
impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Error {
        Error(e.to_string())
    }
}
impl From<smb2::Error> for Error {
    fn from(e: smb2::Error) -> Error {
        Error(e.to_string())
    }
}

/// A result whose error is a sentence.
pub type Result<T> = std::result::Result<T, Error>;

/// Adds to an error the operation that failed.
pub trait Context<T> {
    /// Turns the error into "`what`: error".
    ///
    /// # Errors
    /// The original error with `what` before it.
    fn context(self, what: impl Display) -> Result<T>;
}

impl<T, E: Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl Display) -> Result<T> {
        self.map_err(|e| Error(format!("{what}: {e}")))
    }
}

/// Returns an error made of a format string.
#[macro_export]
macro_rules! fail {
    ($($t:tt)*) => { return Err($crate::base::error::Error(format!($($t)*))) };
}
