//! The `arden` program: the daemon (`arden serve`) and the command line, which sends requests to a running daemon.
//! Assembly and exit codes only.
#![forbid(unsafe_code)]

mod addresses;
mod aside;
mod cli;
mod cluster;
mod commands;
mod demo;
mod exposure;
mod folders;
mod forwarding;
mod founding;
mod interfaces;
mod logging;
mod ownership;
mod password;
mod peers;
mod printable;
mod serve;
mod server;
mod shown;
mod storage;
mod table;
mod users;
mod volumes;
mod witness;

use std::process::ExitCode;

use arden_admin::AdminError;
use clap::Parser;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        // Help is no error. Without --json the parser's own message says most.
        Err(e) if !e.use_stderr() || !std::env::args_os().any(|a| a == "--json") => e.exit(),
        Err(e) => return failed(&wrong_usage(&e), true),
    };
    let json = cli.json;
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error, json),
    }
}

/// A mistake in the command line, for programs.
fn wrong_usage(error: &clap::Error) -> AdminError {
    let text = error.render().to_string();
    let (what, hint) = text.trim().split_once("\n\n").unwrap_or((text.trim(), ""));
    let hint = hint.replace("For more information, try '--help'.", "");
    AdminError::invalid(what.trim_start_matches("error: "), hint.trim())
}

fn failed(error: &AdminError, json: bool) -> ExitCode {
    if json {
        eprintln!("{}", serde_json::to_string(error).unwrap_or_default());
    } else {
        eprintln!("arden: {}", printable::lines(&error.error));
        if !error.hint.is_empty() {
            eprintln!("       {}", printable::lines(&error.hint));
        }
    }
    ExitCode::from(error.kind.exit_code())
}
