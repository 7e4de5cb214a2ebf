//! Profiles: the five standard ones, and others from a TOML file.

use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    base::units::{bytes, size},
    fail,
};

/// The order of the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    Random,
    Sequential,
}

impl Access {
    /// The name in profiles and results.
    pub fn name(self) -> &'static str {
        match self {
            Access::Random => "random",
            Access::Sequential => "sequential",
        }
    }
}

/// A profile: the order of the blocks, the percentage of reads, and the block size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    pub name: String,
    pub access: Access,
    pub read_percent: u8,
    pub block_bytes: u32,
}

impl Profile {
    fn of(name: &str, access: Access, read_percent: u8, block_kib: u32) -> Profile {
        Profile { name: name.to_string(), access, read_percent, block_bytes: block_kib << 10 }
    }

    /// The five standard profiles.
    pub fn standard() -> Vec<Profile> {
        vec![
            Profile::of("file-copy", Access::Random, 50, 64),
            Profile::of("file-server", Access::Random, 67, 64),
            Profile::of("database", Access::Random, 67, 8),
            Profile::of("streaming", Access::Sequential, 100, 64),
            Profile::of("restore", Access::Sequential, 0, 64),
        ]
    }

    /// The standard profile with this name.
    pub fn named(name: &str) -> Option<Profile> {
        Profile::standard().into_iter().find(|p| p.name == name)
    }

    /// Parses profiles from TOML: each is a table whose key is its name.
    ///
    /// ```toml
    /// [mail]
    /// access = "random"      # or "sequential"
    /// read = 60              # percent
    /// block = "32k"
    /// ```
    ///
    /// # Errors
    /// The line that is malformed, or a text without a profile.
    pub fn parse(text: &str) -> Result<Vec<Profile>> {
        let mut all: Vec<Profile> = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let bad = |what: &str| Error(format!("line {}: {what}", i + 1));
            if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
                let name = name.trim().trim_matches('"');
                if name.is_empty() || all.iter().any(|p| p.name == name) {
                    return Err(bad("a profile needs a name of its own"));
                }
                all.push(Profile::of(name, Access::Random, 67, 64));
                continue;
            }
            let (key, value) = line.split_once('=').ok_or_else(|| bad("neither [name] nor key = value"))?;
            let value = value.trim().trim_matches('"');
            let profile = all.last_mut().ok_or_else(|| bad("begins without [name]"))?;
            match (key.trim(), value) {
                ("access", "random") => profile.access = Access::Random,
                ("access", "sequential") => profile.access = Access::Sequential,
                ("access", _) => return Err(bad("access is \"random\" or \"sequential\"")),
                ("read", v) => match v.parse::<u8>() {
                    Ok(n) if n <= 100 => profile.read_percent = n,
                    _ => return Err(bad("read is a percentage")),
                },
                ("block", v) => match bytes(v) {
                    Ok(n) if (512..=16 << 20).contains(&n) => profile.block_bytes = n as u32,
                    _ => return Err(bad("block is a size from 512 to 16m")),
                },
                (key, _) => return Err(bad(&format!("no key {key}: access, read and block are known"))),
            }
        }
        if all.is_empty() {
            fail!("there is no profile in it");
        }
        Ok(all)
    }

    /// A description for display: "random, 67/33, 8 KiB".
    pub fn describe(&self) -> String {
        let access = self.access.name();
        format!("{access}, {}/{}, {}", self.read_percent, 100 - self.read_percent, size(u64::from(self.block_bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn custom_profiles() {
        let all = Profile::parse("# mine\n[mail]\naccess = \"random\"\nread = 60 # percent\nblock = \"32k\"\n[log]\naccess = \"sequential\"\nread = 0\nblock = 4096\n").unwrap();
        assert_eq!(all[0].describe(), "random, 60/40, 32 KiB");
        assert_eq!(all[1], Profile::of("log", Access::Sequential, 0, 4));
        for (bad, says) in [
            ("", "no profile"),
            ("read = 5", "without [name]"),
            ("[a]\nread = 101", "line 2: read is a percentage"),
            ("[a]\nblock = 1", "line 2: block"),
            ("[a]\n[a]", "line 2"),
            ("[a]\ncolour = 3", "no key colour"),
        ] {
            let e = Profile::parse(bad).unwrap_err().to_string();
            assert!(e.contains(says), "{bad:?}: {e}");
        }
    }
}
