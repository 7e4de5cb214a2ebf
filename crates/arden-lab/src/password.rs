//! Where the password of a share's user comes from: a file, a variable, or the terminal without echo. Never the command
//! line, which others can read.

use std::{
    io::{BufRead, IsTerminal, Write},
    path::Path,
};

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::{Result, fail};

pub const VARIABLE: &str = "ARDEN_LAB_PASSWORD";

pub fn get(file: Option<&Path>, user: &str) -> Result<String> {
    if let Some(path) = file {
        let text = std::fs::read_to_string(path).map_err(|e| crate::LabError(format!("{}: {e}", path.display())))?;
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
    let before = tcgetattr(&stdin).map_err(|e| crate::LabError(format!("the terminal: {e}")))?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&stdin, OptionalActions::Flush, &silent).map_err(|e| crate::LabError(format!("the terminal: {e}")))?;
    let mut line = String::new();
    let read = stdin.lock().read_line(&mut line);
    let _ = tcsetattr(&stdin, OptionalActions::Flush, &before);
    eprintln!();
    read?;
    Ok(line.trim_end_matches(['\r', '\n']).to_string())
}
