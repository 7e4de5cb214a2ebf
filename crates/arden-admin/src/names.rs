//! Valid names of users, groups and shares, and how names compare.

use crate::error::{AdminError, Result};

/// The key under which a name of a user, group or share is compared: the name in lower case.
pub fn key(name: &str) -> String {
    name.to_lowercase()
}

/// Checks the name of an account, [MS-SAMR] 3.1.1.6: none of `" / \ [ ] : ; | = , + * ? < >`, no control characters. A
/// user has at most 20 characters, a group more.
///
/// # Errors
/// Invalid, with the rule that the name breaks.
pub fn check_account(what: &str, name: &str, chars_max: usize) -> Result<()> {
    let bad = |c: char| c.is_control() || "\"/\\[]:;|=,+*?<>@".contains(c);
    if name.is_empty()
        || name.chars().count() > chars_max
        || name.contains(bad)
        || name.trim_matches([' ', '.']) != name
    {
        return Err(AdminError::invalid(
            format!("{name:?} cannot be a {what} name"),
            format!(
                "use 1 to {chars_max} characters without \" / \\ [ ] : ; | = , + * ? < > @ and without dots or spaces at the ends"
            ),
        ));
    }
    if key(name) == "everyone" || name.starts_with("S-1-") {
        return Err(AdminError::invalid(format!("{name:?} is reserved"), "choose another name"));
    }
    Ok(())
}

/// Checks the name of a share, [MS-SRVS] 2.2.4.22 and [MS-SMB2] 2.2.9: at most 80 characters, none with a meaning in
/// paths.
///
/// # Errors
/// Invalid, with the rule that the name breaks.
pub fn check_share(name: &str) -> Result<()> {
    let bad = |c: char| c.is_control() || "\"/\\[]:|<>+=;,*?".contains(c);
    if name.is_empty() || name.chars().count() > 80 || name.contains(bad) || name.trim_matches([' ', '.']) != name {
        return Err(AdminError::invalid(
            format!("{name:?} cannot be a share name"),
            "use 1 to 80 characters without \" / \\ [ ] : | < > + = ; , * ? and without dots or spaces at the ends",
        ));
    }
    if ["ipc$", "pipe", "mailslot", "global"].contains(&key(name).as_str()) {
        return Err(AdminError::invalid(format!("{name:?} is reserved by the protocol"), "choose another name"));
    }
    Ok(())
}

/// Checks a NetBIOS name: 1 to 15 characters of letters, digits and `-`.
///
/// # Errors
/// Invalid, with the rule that the name breaks.
pub fn check_server(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > 15 || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Err(AdminError::invalid(
            format!("{name:?} cannot be the server's name"),
            "use 1 to 15 letters, digits and hyphens",
        ));
    }
    Ok(())
}

/// Checks a machine SID of the form S-1-5-21-x-y-z, [MS-DTYP] 2.4.2.1.
///
/// # Errors
/// Invalid for any other text.
pub fn check_machine_sid(sid: &str) -> Result<()> {
    let parts: Vec<&str> = sid.strip_prefix("S-1-5-21-").unwrap_or_default().split('-').collect();
    let number = |p: &&str| p.parse::<u32>().is_ok_and(|n| n.to_string() == **p);
    if parts.len() != 3 || !parts.iter().all(number) {
        return Err(AdminError::invalid(
            format!("{sid:?} is no machine's SID"),
            "it looks like S-1-5-21-1004336348-1177238915-682003330; Samba shows its own with `net getlocalsid`",
        ));
    }
    Ok(())
}

/// The host's name as a NetBIOS name.
pub fn host_server_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let short = host.trim().split('.').next().unwrap_or("");
    let name: String =
        short.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(15).collect::<String>().to_uppercase();
    if name.is_empty() { "ARDEN".to_string() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_client_could_not_use_are_refused() {
        for bad in ["", "a/b", "a\\b", "a:b", "x\n", "ends.", " starts", "S-1-5-7", "everyone", &"x".repeat(21)] {
            assert!(check_account("user", bad, 20).is_err(), "{bad:?}");
        }
        for good in ["alice", "Jürgen Groß", "svc-backup", "a.b"] {
            assert!(check_account("user", good, 20).is_ok(), "{good:?}");
        }
        for bad in ["", "IPC$", "a|b", "dot.", "pipe", &"x".repeat(81)] {
            assert!(check_share(bad).is_err(), "{bad:?}");
        }
        for good in ["docs", "C$", "Öffentlich", "a b"] {
            assert!(check_share(good).is_ok(), "{good:?}");
        }
        assert!(check_server("FILES-01").is_ok() && check_server("a_b").is_err());
        assert!(check_server(&host_server_name()).is_ok());
    }
}
