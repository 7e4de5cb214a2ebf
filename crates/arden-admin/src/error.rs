//! The error of administration: the fault, and a hint to its remedy. The API maps it to an HTTP status, the command
//! line to an exit code.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kind of an error, which decides the HTTP status and the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The request is malformed, or a value is out of its range.
    Invalid,
    NotFound,
    Exists,
    /// The request is well-formed, but the present state forbids it.
    Conflict,
    /// No daemon listens on the socket.
    NotRunning,
    /// The daemon or its disk failed.
    Failed,
}

impl ErrorKind {
    /// The HTTP status of the error.
    pub fn http_status(self) -> u16 {
        match self {
            ErrorKind::Invalid => 400,
            ErrorKind::NotFound => 404,
            ErrorKind::Exists | ErrorKind::Conflict => 409,
            ErrorKind::NotRunning => 503,
            ErrorKind::Failed => 500,
        }
    }

    /// The exit code of the command line, as its `--help` documents it.
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

/// An error of administration: `error` names the fault, `hint` the next step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Error")]
pub struct AdminError {
    /// The kind of the error.
    pub kind: ErrorKind,
    /// The fault.
    pub error: String,
    /// The next step.
    pub hint: String,
}

/// A result of administration.
pub type Result<T> = std::result::Result<T, AdminError>;

impl AdminError {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, error: impl Into<String>, hint: impl Into<String>) -> AdminError {
        AdminError { kind, error: error.into(), hint: hint.into() }
    }
    /// An error of kind `Invalid`.
    pub fn invalid(error: impl Into<String>, hint: impl Into<String>) -> AdminError {
        AdminError::new(ErrorKind::Invalid, error, hint)
    }
    /// An error of kind `Failed`.
    pub fn failed(error: impl Into<String>, hint: impl Into<String>) -> AdminError {
        AdminError::new(ErrorKind::Failed, error, hint)
    }
    /// An error of kind `NotFound`. `what` is the noun of the command line whose list shows the existing names.
    pub fn not_found(what: &str, name: &str) -> AdminError {
        let hint = format!("`arden {what} list` shows what there is");
        AdminError::new(ErrorKind::NotFound, format!("there is no {what} {name:?}"), hint)
    }
    /// An error of kind `Conflict`: a space is named that several pools have.
    pub fn several_pools(space: &str, pools: &[String]) -> AdminError {
        let error = format!("the pools {} each have a space {space:?}", pools.join(", "));
        AdminError::new(ErrorKind::Conflict, error, "say which with --pool")
    }
    /// An error of kind `Exists`.
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
