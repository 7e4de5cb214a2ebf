//! fio as the peer: one process, direct I/O, the same files or files made alike.

use std::{path::PathBuf, process::Command};

use arden_measure::{Context, Result, fail};

use super::Sample;

/// Arguments of fio.
#[derive(Debug, Clone)]
pub struct Job<'a> {
    pub files: &'a [PathBuf],
    /// fio's name of the access: read, write, randread or randwrite.
    pub rw: &'a str,
    pub block_bytes: u32,
    pub depth: usize,
    /// Bytes used in all files together.
    pub bytes: u64,
    /// fdatasync after every write, with the engine of the least overhead.
    pub durable: bool,
    pub seconds: f64,
    /// Each of them has so many in flight; figures are of all together.
    pub processes: usize,
}

/// Whether fio is installed.
pub fn available() -> bool {
    Command::new("fio").arg("--version").output().is_ok_and(|o| o.status.success())
}

/// Runs fio once.
///
/// # Errors
/// fio cannot be started, or its output is malformed.
pub fn run(job: &Job) -> Result<Sample> {
    let names: Vec<String> = job.files.iter().map(|f| f.display().to_string().replace(':', "\\:")).collect();
    let mut c = Command::new("fio");
    c.args(["--name=bench", "--direct=1", "--time_based", "--output-format=json", "--randrepeat=0"]);
    c.arg(format!("--filename={}", names.join(":")));
    c.arg(format!("--rw={}", job.rw)).arg(format!("--bs={}", job.block_bytes)).arg(format!("--size={}", job.bytes));
    c.arg(format!("--runtime={}ms", (job.seconds * 1000.0) as u64));
    c.arg(format!("--numjobs={}", job.processes)).arg("--group_reporting");
    if job.durable {
        c.args(["--ioengine=psync", "--fdatasync=1"]);
    } else {
        c.arg("--ioengine=io_uring").arg(format!("--iodepth={}", job.depth));
    }
    let out = c.output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    let start = text.find('{').unwrap_or(0);
    let json: serde_json::Value = serde_json::from_str(&text[start..])
        .context(format_args!("fio, which said {}", String::from_utf8_lossy(&out.stderr).trim()))?;
    let j = &json["jobs"][0];
    let number = |v: &serde_json::Value| v.as_f64().unwrap_or(0.0);
    let io_s = number(&j["read"]["iops"]) + number(&j["write"]["iops"]);
    let ops = number(&j["read"]["total_ios"]) + number(&j["write"]["total_ios"]);
    if ops == 0.0 {
        fail!("fio did nothing: {}", String::from_utf8_lossy(&out.stderr));
    }
    let busy = (number(&j["usr_cpu"]) + number(&j["sys_cpu"])) / 100.0 * number(&j["job_runtime"]) * 1000.0;
    Ok(Sample { io_s, cpu_us: busy / ops })
}
