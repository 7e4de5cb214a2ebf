//! The password of a share's user, from a file, a variable, or the terminal without echo. It is never an argument,
//! because other users can read those.

use std::{
    io::{BufRead, IsTerminal, Write},
    path::Path,
};

use arden_measure::{Context, Result, fail};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

/// The environment variable that may hold the password.
pub const VARIABLE: &str = "ARDEN_LAB_PASSWORD";

/// The password of `user`: from the first line of `file`, else from the variable, else from the terminal.
///
/// # Errors
/// There is none of the three, or it cannot be read.
pub fn get(file: Option<&Path>, user: &str) -> Result<String> {
    if let Some(path) = file {
        let text = std::fs::read_to_string(path).context(path.display())?;
        return Ok(text.lines().next().unwrap_or_default().to_string());
    }
    if let Ok(password) = std::env::var(VARIABLE) {
        return Ok(password);
    }
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        fail!("no password for {user}: --password-file FILE, or the variable {VARIABLE}");
    }
    eprint!("Password for {user}: ");
    let _ = std::io::stderr().flush();
    let before = tcgetattr(&stdin).context("the terminal")?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&stdin, OptionalActions::Flush, &silent).context("the terminal")?;
    let mut line = String::new();
    let read = stdin.lock().read_line(&mut line);
    let _ = tcsetattr(&stdin, OptionalActions::Flush, &before);
    eprintln!();
    read?;
    Ok(line.trim_end_matches(['\r', '\n']).to_string())
}
