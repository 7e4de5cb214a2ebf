//! Processor time and memory of processes, from `/proc`.

use std::{collections::HashMap, fs, time::Duration};

use crate::{Result, fail};

/// The parent, and the ticks of user and system time including ended children, from /proc/PID/stat.
fn stat(pid: u32) -> Option<(u32, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |i: usize| fields.get(i)?.parse::<u64>().ok();
    Some((field(1)? as u32, field(11)? + field(12)? + field(13)? + field(14)?))
}

/// `root` and all of its descendants.
pub fn tree(root: u32) -> Vec<u32> {
    let mut parents = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok())
            && let Some((parent, _)) = stat(pid)
        {
            parents.insert(pid, parent);
        }
    }
    let mut all = vec![root];
    let mut i = 0;
    while i < all.len() {
        let parent = all[i];
        all.extend(parents.iter().filter(|(_, p)| **p == parent).map(|(pid, _)| *pid));
        i += 1;
    }
    all
}

/// User and system time of a process and its descendants, with a resolution of 10 ms.
pub fn spent(root: u32) -> Duration {
    let ticks: u64 = tree(root).into_iter().filter_map(stat).map(|s| s.1).sum();
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// User and system time of the calling process.
pub fn own() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// The process of this machine that listens on a TCP port; `None` when it cannot be found.
pub fn listener(port: u16) -> Option<u32> {
    let mut sockets = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        for line in fs::read_to_string(table).unwrap_or_default().lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let local = fields.get(1).and_then(|a| u16::from_str_radix(a.rsplit(':').next()?, 16).ok());
            // 0A: LISTEN.
            if let (Some(inode), Some(&"0A"), true) = (fields.get(9), fields.get(3), local == Some(port)) {
                sockets.push(format!("socket:[{inode}]"));
            }
        }
    }
    let mut found: Vec<u32> = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let holds =
            fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten().any(|fd| {
                fs::read_link(fd.path()).is_ok_and(|to| sockets.iter().any(|s| to.as_os_str() == s.as_str()))
            });
        if holds {
            found.push(pid);
        }
    }
    // Processes of a server that forks share the socket: the eldest is taken.
    found.into_iter().min()
}

/// The value in bytes of a line such as VmRSS or VmHWM in /proc/PID/status.
///
/// # Errors
/// The process or the line does not exist.
pub fn memory(pid: u32, line: &str) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let found = text.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(':')?.split_whitespace().next());
    match found.and_then(|n| n.parse::<u64>().ok()) {
        Some(kib) => Ok(kib * 1024),
        None => fail!("/proc/{pid}/status has no {line}"),
    }
}

/// Resets the peak of resident memory, VmHWM.
///
/// # Errors
/// The process does not exist or belongs to another user.
pub fn reset_peak(pid: u32) -> Result<()> {
    Ok(fs::write(format!("/proc/{pid}/clear_refs"), "5")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_child_is_counted() {
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let me = std::process::id();
        let before = spent(child.id());
        std::thread::sleep(Duration::from_millis(600));
        assert!(tree(me).contains(&child.id()));
        let used = spent(child.id()) - before;
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(used >= Duration::from_millis(50), "{used:?}");
    }

    #[test]
    fn the_process_behind_a_port_is_found() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert_eq!(listener(port), Some(std::process::id()));
        drop(socket);
        assert_eq!(listener(port), None);
    }

    #[test]
    fn memory_is_read() {
        assert!(memory(std::process::id(), "VmRSS").unwrap() > 100_000);
        assert!(memory(std::process::id(), "VmNothing").is_err());
    }
}
