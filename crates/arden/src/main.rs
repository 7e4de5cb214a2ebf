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

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let json = cli.json;
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if json {
                eprintln!("{}", serde_json::to_string(&error).unwrap_or_default());
            } else {
                eprintln!("arden: {}", printable::lines(&error.error));
                if !error.hint.is_empty() {
                    eprintln!("       {}", printable::lines(&error.hint));
                }
            }
            ExitCode::from(error.kind.exit_code())
        }
    }
}
