//! The error of all of administration: the fault, and what to do about it. The API turns it into an HTTP status, the command
//! line into an exit code.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kind of an error, which decides the HTTP status and the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The request is malformed or asks for something that cannot be.
    Invalid,
    NotFound,
    Exists,
    /// The request is well-formed, but the present state forbids it.
    Conflict,
    /// Nobody listens on the socket.
    NotRunning,
    /// The daemon or its disk failed.
    Failed,
}

impl ErrorKind {
    pub fn http_status(self) -> u16 {
        match self {
            ErrorKind::Invalid => 400,
            ErrorKind::NotFound => 404,
            ErrorKind::Exists | ErrorKind::Conflict => 409,
            ErrorKind::NotRunning => 503,
            ErrorKind::Failed => 500,
        }
    }

    /// Exit codes of the command line, documented in its `--help`.
    pub fn exit_code(self) -> u8 {
        match self {
            ErrorKind::Failed => 1,
            ErrorKind::Invalid => 2,
            ErrorKind::NotRunning => 3,
            ErrorKind::NotFound => 4,
            ErrorKind::Exists => 5,
            ErrorKind::Conflict => 6,
        }
    }
}

/// `error` says what is wrong, `hint` what to do next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Error")]
pub struct AdminError {
    /// The kind of the error.
    pub kind: ErrorKind,
    /// What is wrong.
    pub error: String,
    /// What to do about it.
    pub hint: String,
}

pub type Result<T> = std::result::Result<T, AdminError>;

impl AdminError {
    pub fn new(kind: ErrorKind, error: impl Into<String>, hint: impl Into<String>) -> AdminError {
        AdminError { kind, error: error.into(), hint: hint.into() }
    }
    pub fn invalid(error: impl Into<String>, hint: impl Into<String>) -> AdminError {
        AdminError::new(ErrorKind::Invalid, error, hint)
    }
    pub fn failed(error: impl Into<String>, hint: impl Into<String>) -> AdminError {
        AdminError::new(ErrorKind::Failed, error, hint)
    }
    /// `what` is the noun that the command line uses, which lists what there is.
    pub fn not_found(what: &str, name: &str) -> AdminError {
        let hint = format!("`arden {what} list` shows what there is");
        AdminError::new(ErrorKind::NotFound, format!("there is no {what} {name:?}"), hint)
    }
    pub fn exists(what: &str, name: &str, hint: impl Into<String>) -> AdminError {
        AdminError::new(ErrorKind::Exists, format!("{what} {name:?} exists already"), hint)
    }
}

impl std::fmt::Display for AdminError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.error)?;
        if self.hint.is_empty() { Ok(()) } else { write!(f, " ({})", self.hint) }
    }
}

impl std::error::Error for AdminError {}
