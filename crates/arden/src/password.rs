//! The password of a user, from the option, the terminal without echo, or standard input.

use std::io::{BufRead, IsTerminal, Write};

use arden_admin::{AdminError, error::Result};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::cli::Password;

/// Returns the password of the option or of standard input; else asks for it twice at the terminal.
///
/// # Errors
/// Invalid, when there is none or the two differ; failed, when it cannot be read.
pub fn get(options: &Password, user: &str) -> Result<String> {
    if let Some(password) = &options.password {
        return Ok(password.clone());
    }
    if options.password_stdin || !std::io::stdin().is_terminal() {
        return line("read the password");
    }
    let first = ask(&format!("Password for {user}: "))?;
    let second = ask("Again: ")?;
    if first != second {
        return Err(AdminError::invalid("the two passwords differ", "try again"));
    }
    Ok(first)
}

fn line(what: &str) -> Result<String> {
    let mut text = String::new();
    let failed = |e: std::io::Error| AdminError::failed(format!("cannot {what}: {e}"), "");
    std::io::stdin().lock().read_line(&mut text).map_err(failed)?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() {
        return Err(AdminError::invalid(
            "there is no password",
            "use --password, type it, or put it on standard input",
        ));
    }
    Ok(text.to_string())
}

/// Asks on the terminal with echo off. Echo is restored in every case.
fn ask(prompt: &str) -> Result<String> {
    eprint!("{prompt}");
    let _ = std::io::stderr().flush();
    let stdin = std::io::stdin();
    let before =
        tcgetattr(&stdin).map_err(|e| AdminError::failed(format!("the terminal: {e}"), "use --password-stdin"))?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    let set = |modes| tcsetattr(std::io::stdin(), OptionalActions::Flush, modes);
    set(&silent).map_err(|e| AdminError::failed(format!("the terminal: {e}"), "use --password-stdin"))?;
    let answer = line("read the password");
    let _ = set(&before);
    eprintln!();
    answer
}
