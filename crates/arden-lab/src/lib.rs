//! Load generation and measurement: the generator (`load`), an SMB client that costs little, workloads, what a server
//! spent on them, results and what people read of them. Knows servers only from outside: through the protocol and `/proc`.
#![forbid(unsafe_code)]

pub mod advise;
pub mod bench;
pub mod cli;
pub mod client;
pub mod compare;
pub mod cpu;
pub mod daemon;
pub mod experiment;
pub mod experiment_cli;
pub mod load;
pub mod machine;
pub mod memory;
pub mod outcome;
pub mod page;
pub mod password;
pub mod report;
pub mod run;
pub mod servers;
pub mod simulated;
pub mod source;
pub mod spaces;
pub mod stats;
pub mod sweep;
pub mod table;
pub mod view;
pub mod work;

/// What went wrong, for people.
#[derive(Debug)]
pub struct LabError(pub String);

impl std::fmt::Display for LabError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for LabError {}
impl From<std::io::Error> for LabError {
    fn from(e: std::io::Error) -> LabError {
        LabError(e.to_string())
    }
}
impl From<smb2::Error> for LabError {
    fn from(e: smb2::Error) -> LabError {
        LabError(e.to_string())
    }
}

pub type Result<T> = std::result::Result<T, LabError>;

/// An error made of a format string.
#[macro_export]
macro_rules! fail {
    ($($t:tt)*) => { return Err($crate::LabError(format!($($t)*))) };
}
