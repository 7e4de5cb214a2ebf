//! The memory of the daemon: idle, with many idle sessions, and during large writes.

use arden_measure::{
    Result,
    base::process,
    client::{Call, Client, Protection, requests as r},
    fail,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use smb2::{msg::create::CreateDisposition, types::Command};

use crate::local::servers::Running;

const LARGE_WRITE_BYTES: usize = 8 << 20;

/// Measured memory in bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Memory {
    pub idle_bytes: u64,
    pub sessions: u64,
    pub session_bytes: u64,
    /// Rise of the peak above the idle daemon during an 8 MiB write.
    pub large_write_bytes: u64,
}

/// Raises the limit of open files to the allowed maximum.
pub fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Measures a server that has not served a client yet.
///
/// # Errors
/// A lost connection, or the server's memory cannot be read.
pub fn measure(server: &Running, sessions: usize) -> Result<Memory> {
    raise_files();
    let rss = || process::memory(server.pid, "VmRSS");
    let idle_bytes = rss()?;
    // The first client allocates what all later ones share.
    let mut first = Client::connect(&server.target, Protection::GMAC)?;
    let before = rss()?;
    let clients =
        (0..sessions).map(|_| Client::connect(&server.target, Protection::GMAC)).collect::<Result<Vec<Client>>>()?;
    // Servers keep buffers for some seconds.
    std::thread::sleep(std::time::Duration::from_secs(11));
    let session_bytes = rss()?.saturating_sub(before) / sessions.max(1) as u64;
    drop(clients);
    let large_write_bytes = large_write(server, &mut first)?;
    Ok(Memory { idle_bytes, sessions: sessions as u64, session_bytes, large_write_bytes })
}

fn large_write(server: &Running, client: &mut Client) -> Result<u64> {
    // Credits for a charge of 128 are granted after some answers.
    client.make_directory("memory")?;
    while client.credits() < 256 {
        client.make_directory("memory")?;
    }
    let id = client.open("memory\\large", 0x0012_0116, CreateDisposition::FileOverwriteIf, r::NON_DIRECTORY_FILE)?;
    let body = r::write(id, vec![0x5A; LARGE_WRITE_BYTES]);
    let call = Call { command: Command::Write, body: &body, charge: r::charge(LARGE_WRITE_BYTES) };
    let mut template = client.template(&call);
    let before = process::memory(server.pid, "VmRSS")?;
    process::reset_peak(server.pid)?;
    client.send_at(&mut template, 0)?;
    let mut status = 0;
    client.receive(|reply| status = reply.status)?;
    if status != 0 {
        fail!("8 MiB write: status 0x{status:08X}");
    }
    let peak = process::memory(server.pid, "VmHWM")?.saturating_sub(before);
    client.close(id)?;
    client.delete("memory\\large")?;
    Ok(peak)
}
