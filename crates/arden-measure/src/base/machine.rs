//! The machine and the time of a measurement. Holds no user name and no address.

use std::fs;

use super::units::size;
use serde::{Deserialize, Serialize};

/// The machine of the load generator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
    pub memory_bytes: u64,
    pub kernel: String,
    pub system: String,
    /// The processor reports a hypervisor.
    pub virtual_machine: bool,
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The value of `key` in lines of the form `key SEPARATOR value`.
fn value_of(text: &str, key: &str, separator: char) -> String {
    let found = text.lines().find_map(|l| {
        let (k, v) = l.split_once(separator)?;
        (k.trim() == key).then(|| v.trim().trim_matches('"').to_string())
    });
    found.unwrap_or_default()
}

impl Machine {
    /// Describes this machine.
    pub fn here() -> Machine {
        let cpu = read("/proc/cpuinfo");
        let kib: u64 = value_of(&read("/proc/meminfo"), "MemTotal", ':')
            .split_whitespace()
            .next()
            .and_then(|n| n.parse().ok())
            .unwrap_or(0);
        Machine {
            processor: Some(value_of(&cpu, "model name", ':')).filter(|m| !m.is_empty()).unwrap_or("unknown".into()),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_bytes: kib * 1024,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            system: value_of(&read("/etc/os-release"), "PRETTY_NAME", '='),
            virtual_machine: value_of(&cpu, "flags", ':').split_whitespace().any(|f| f == "hypervisor"),
        }
    }

    /// One line for display.
    pub fn describe(&self) -> String {
        format!(
            "{}, {} cores, {}, {}, Linux {}{}",
            self.processor,
            self.cores,
            size(self.memory_bytes),
            self.system,
            self.kernel,
            if self.virtual_machine { ", a virtual machine" } else { "" }
        )
    }
}

/// Seconds since 1970-01-01 UTC in the form 2026-11-20T22:30:00Z.
pub fn date(unix_s: u64) -> String {
    let (days, rest) = (unix_s / 86400, unix_s % 86400);
    // Years begin in March, in eras of 400: the leap day is then the last day of its year.
    let z = days as i64 + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let mp = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// The present time in the form of [`date`].
pub fn now() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    date(since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(1_795_217_399), "2026-11-20T23:29:59Z");
    }

    #[test]
    fn this_machine_has_memory_and_cores() {
        let m = Machine::here();
        assert!(m.cores > 0 && m.memory_bytes > 1 << 20 && !m.kernel.is_empty());
    }
}
