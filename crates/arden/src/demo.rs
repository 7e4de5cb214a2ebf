//! The demonstration of `arden serve --demo DIR`: a share and a user, both `demo`, and how to connect.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
};

use arden_admin::{
    AdminError, State,
    error::Result,
    model::{NewUser, Share, ShareChange, UserChange},
    secret,
};

const NAME: &str = "demo";

/// Makes directory, share and user where they are missing. The password is new each time, because only
/// its hash is kept; it is returned to be printed.
pub fn prepare(state: &State, dir: &Path) -> Result<String> {
    let failed =
        |e: std::io::Error| AdminError::failed(format!("{}: {e}", dir.display()), "choose another --demo directory");
    std::fs::create_dir_all(dir).map_err(failed)?;
    let dir = std::fs::canonicalize(dir).map_err(failed)?;
    let readme = dir.join("Welcome.txt");
    if !readme.exists() {
        std::fs::write(&readme, "This file comes from Arden.\r\n").map_err(failed)?;
    }
    let password = secret::random_password()?;
    state.change(|s| {
        if s.user(NAME).is_ok() {
            let change =
                UserChange { password: Some(password.clone()), disabled: Some(false), ..UserChange::default() };
            s.change_user(NAME, &change)?;
        } else {
            let full_name = "Demonstration".to_string();
            let (name, password) = (NAME.to_string(), password.clone());
            s.add_user(&NewUser { name, password, full_name, groups: Vec::new(), disabled: false })?;
        }
        if s.share(NAME).is_ok() {
            s.change_share(NAME, &ShareChange { path: Some(dir.clone()), ..ShareChange::default() })?;
        } else {
            let share = serde_json::json!({"name": NAME, "path": dir, "comment": "Demonstration"});
            let share: Share = serde_json::from_value(share)
                .map_err(|e| AdminError::invalid(format!("{}: {e}", dir.display()), "use a path in UTF-8"))?;
            s.add_share(&share)?;
        }
        Ok(())
    })?;
    Ok(password)
}

/// Ready lines for each kind of client.
pub fn how_to_connect(state: &Path, address: SocketAddr, password: &str) -> String {
    let port = address.port();
    let host = match address.ip() {
        ip if ip.is_unspecified() => "127.0.0.1".to_string(),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    let local = address.ip().is_loopback();
    let other = if local {
        "\n(from another machine: start with --listen 0.0.0.0:4450 and use this machine's address)"
    } else {
        ""
    };
    let state = state.display();
    format!(
        "
Arden serves \\\\{host}\\{NAME} on port {port}.

  user      {NAME}
  password  {password}

smbclient:
  smbclient //{host}/{NAME} -p {port} -U {NAME}%{password}
Linux:
  mount -t cifs //{host}/{NAME} /mnt -o port={port},username={NAME},password={password},vers=3.1.1
Windows 11 24H2 or Server 2025 (PowerShell; older ones know only port 445):
  New-SmbMapping -RemotePath \\\\{host}\\{NAME} -TcpPort {port} -UserName {NAME} -Password {password}{other}
Administration:
  arden --state {state} status

Ctrl-C stops the daemon.
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_can_be_prepared_again_and_again() {
        let dir = std::env::temp_dir().join(format!("arden-demo-{}", secret::hex(&secret::random::<8>().unwrap())));
        let state = State::open(&dir.join("state")).unwrap();
        let first = prepare(&state, &dir.join("files")).unwrap();
        let second = prepare(&state, &dir.join("files")).unwrap();
        assert_ne!(first, second);
        let s = state.snapshot();
        assert_eq!(s.user(NAME).unwrap().nt_hash, secret::hex(&secret::nt_hash(&second)));
        assert_eq!(s.shares.len(), 1);
        let text = how_to_connect(&dir, "127.0.0.1:4450".parse().unwrap(), &second);
        assert!(text.contains(&format!("smbclient //127.0.0.1/demo -p 4450 -U demo%{second}")));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
