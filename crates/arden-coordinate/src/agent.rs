//! Fence agents: programs that cut a node off, with the calling convention of the fence-agents project. Options are lines
//! `name=value` on standard input. Off is believed when `action=off` succeeded and `action=status` then says off. Refuses programs
//! that others than root and the daemon's user could change: who can talk to etcd names the program, but not its content.

use std::{
    io::Write,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use arden_admin::{AdminError, error::Result};

/// One call of an agent may take so long.
const CALL_WAIT: Duration = Duration::from_secs(60);
/// Exit statuses of `action=status`.
const OFF: i32 = 2;

/// How holders of a pool are fenced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fence {
    /// Nothing is taken over by itself.
    None,
    /// Reservations of the pool's disks.
    Disks(Reserve),
    Agent {
        program: PathBuf,
        options: Vec<String>,
    },
}

/// Whose reservations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    /// Of SCSI disks, which outlive a loss of power.
    Scsi,
    /// Of NVMe namespaces. `volatile`: also where a loss of power ends them.
    Nvme { volatile: bool },
}

impl Reserve {
    /// The name of the fence.
    pub fn name(self) -> &'static str {
        match self {
            Reserve::Scsi => "scsi",
            Reserve::Nvme { .. } => "nvme",
        }
    }
}

impl Fence {
    /// Whose reservations it is, if it is one on the disks.
    pub fn on_disks(&self) -> Option<Reserve> {
        match self {
            Fence::Disks(reserve) => Some(*reserve),
            Fence::None | Fence::Agent { .. } => None,
        }
    }

    /// Parses `none`, `scsi`, `nvme` or `agent:PATH`.
    ///
    /// # Errors
    /// Invalid, with what is wrong.
    pub fn parse(text: &str, options: &[String]) -> Result<Fence> {
        match text.split_once(':') {
            None if text == "none" && options.is_empty() => Ok(Fence::None),
            None if text == "none" => Err(AdminError::invalid("no fence has no options", "leave --fence-option out")),
            None if text == "scsi" && options.is_empty() => Ok(Fence::Disks(Reserve::Scsi)),
            None if text == "scsi" => {
                Err(AdminError::invalid("the fence scsi has no options", "leave --fence-option out"))
            }
            None if text == "nvme" => Ok(Fence::Disks(Reserve::Nvme { volatile: parse_volatile(options)? })),
            Some(("agent", program)) if Path::new(program).is_absolute() => {
                options.iter().try_for_each(|o| check_option(o))?;
                Ok(Fence::Agent { program: program.into(), options: options.to_vec() })
            }
            Some(("agent", _)) => {
                Err(AdminError::invalid("the agent needs its full path", "agent:/usr/sbin/fence_..."))
            }
            _ => Err(AdminError::invalid(format!("{text:?} is no fence"), "one of none, scsi, nvme, agent:PATH")),
        }
    }
}

/// The one option of the fence `nvme`.
fn parse_volatile(options: &[String]) -> Result<bool> {
    match options {
        [] => Ok(false),
        [one] if one == "volatile=yes" => Ok(true),
        [one] if one == "volatile=no" => Ok(false),
        _ => Err(AdminError::invalid("the fence nvme has one option, volatile=yes or volatile=no", "")),
    }
}

fn check_option(option: &str) -> Result<()> {
    let (name, value) = option.split_once('=').unwrap_or(("", ""));
    let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if !plain || value.chars().any(char::is_control) {
        return Err(AdminError::invalid("an option of the agent is not NAME=VALUE", "for example ipaddr=10.0.0.9"));
    }
    if ["action", "port", "plug", "nodename"].contains(&name) {
        return Err(AdminError::invalid(format!("the option {name} is set by Arden"), "leave it out"));
    }
    Ok(())
}

/// Whether the program can be changed by root and this user alone.
fn check_program(program: &Path) -> std::result::Result<(), String> {
    let m = std::fs::metadata(program).map_err(|e| format!("{}: {e}", program.display()))?;
    let mine = rustix::process::geteuid().as_raw();
    if !m.is_file() || (m.uid() != 0 && m.uid() != mine) || m.mode() & 0o022 != 0 {
        return Err(format!("{} can be changed by others than root and the daemon's user", program.display()));
    }
    Ok(())
}

/// Cuts a node off, and makes sure of it.
///
/// # Errors
/// Why it may still be on.
pub fn fence(program: &Path, options: &[String], node: &str) -> std::result::Result<(), String> {
    check_program(program)?;
    match call(program, options, node, "off")? {
        0 => {}
        status => return Err(format!("the agent could not switch {node} off: exit {status}")),
    }
    match call(program, options, node, "status")? {
        OFF => Ok(()),
        status => Err(format!("the agent does not confirm that {node} is off: exit {status} of action=status")),
    }
}

/// One call; its exit status.
fn call(program: &Path, options: &[String], node: &str, action: &str) -> std::result::Result<i32, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", program.display());
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .spawn()
        .map_err(failed)?;
    let mut lines = format!("action={action}\nnodename={node}\nport={node}\nplug={node}\n");
    options.iter().for_each(|o| lines += &format!("{o}\n"));
    if let Some(mut stdin) = child.stdin.take() {
        // An agent that does not read them all says so by its status.
        let _ = stdin.write_all(lines.as_bytes());
    }
    wait(&mut child, program)
}

fn wait(child: &mut Child, program: &Path) -> std::result::Result<i32, String> {
    let end = Instant::now() + CALL_WAIT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status.code().unwrap_or(-1)),
            Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(5)),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{} did not end within {} s", program.display(), CALL_WAIT.as_secs()));
            }
            Err(e) => return Err(format!("{}: {e}", program.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn script(name: &str, text: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("arden-agent-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("agent");
        std::fs::write(
            &path,
            format!("#!/bin/bash\nwhile read -r line; do eval \"${{line%%=*}}='${{line#*=}}'\"; done\n{text}\n"),
        )
        .unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn off_is_believed_when_status_says_so() {
        let good =
            script("good", "[[ $nodename == n1 && $secret == x ]] || exit 1; [[ $action == off ]] && exit 0; exit 2");
        let options = ["secret=x".to_string()];
        assert_eq!(fence(&good, &options, "n1"), Ok(()));
        assert!(fence(&good, &options, "n2").unwrap_err().contains("could not switch n2 off"));
        let still_on = script("on", "exit 0");
        assert!(fence(&still_on, &[], "n1").unwrap_err().contains("does not confirm"));
        let fails = script("fails", "[[ $action == off ]] && exit 1; exit 2");
        assert!(fence(&fails, &[], "n1").is_err(), "off before somebody else's off is not ours");
    }

    #[test]
    fn a_program_that_others_can_change_is_not_run() {
        let open = script("open", "exit 0");
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(fence(&open, &[], "n1").unwrap_err().contains("can be changed by others"));
        assert!(fence(Path::new("/nonexistent"), &[], "n1").is_err());
    }

    #[test]
    fn fences_by_name() {
        let agent = Fence::Agent { program: "/a".into(), options: vec!["ip=1".into()] };
        assert_eq!(Fence::parse("agent:/a", &["ip=1".into()]), Ok(agent));
        assert_eq!(Fence::parse("none", &[]), Ok(Fence::None));
        assert_eq!(Fence::parse("scsi", &[]), Ok(Fence::Disks(Reserve::Scsi)));
        assert!(Fence::parse("scsi", &["a=b".into()]).is_err());
        let nvme = |options: &[&str]| {
            let options: Vec<String> = options.iter().map(ToString::to_string).collect();
            Fence::parse("nvme", &options).ok().and_then(|f| f.on_disks())
        };
        assert_eq!(nvme(&[]), Some(Reserve::Nvme { volatile: false }));
        assert_eq!(nvme(&["volatile=no"]), Some(Reserve::Nvme { volatile: false }));
        assert_eq!(nvme(&["volatile=yes"]), Some(Reserve::Nvme { volatile: true }));
        assert_eq!((nvme(&["volatile"]), nvme(&["volatile=yes", "volatile=no"]), nvme(&["a=b"])), (None, None, None));
        for (text, option) in [("agent:a", ""), ("what", ""), ("agent:/a", "action=on"), ("agent:/a", "a=b\nc=d")] {
            let options: Vec<String> = Some(option).filter(|o| !o.is_empty()).map(String::from).into_iter().collect();
            assert!(Fence::parse(text, &options).is_err(), "{text} {option:?}");
        }
    }
}
