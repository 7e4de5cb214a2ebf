//! Sources of a load by name: the files, disks and shares of `arden-measure`, spaces and volumes of a daemon
//! (`daemon`), and spaces on simulated disks (`simulated`).

pub mod daemon;
pub mod simulated;

use arden_measure::{
    Result, fail,
    source::{
        Source,
        disk::Disk,
        null::Null,
        share::{Share, Wire, share},
    },
};

use self::{
    daemon::{Home, SpaceSource, VolumeSource},
    simulated::Simulated,
};

/// Parses the name of a source: `null`, `smb://user@host[:port]/share[/path]`, `space:NAME`, `volume:NAME[/path]`,
/// `sim:...`, or a path. Nothing is opened.
///
/// # Errors
/// The name is malformed or incomplete.
pub fn parse(text: &str, wire: &Wire, home: &Home) -> Result<Box<dyn Source>> {
    if text == "null" {
        return Ok(Box::new(Null));
    }
    if let Some(name) = text.strip_prefix("space:") {
        return Ok(Box::new(SpaceSource::new(name, home)?));
    }
    if let Some(name) = text.strip_prefix("volume:") {
        return Ok(Box::new(VolumeSource::new(name, home, wire)?));
    }
    if let Some(setup) = text.strip_prefix("sim:") {
        return Ok(Box::new(Simulated::parse(setup)?));
    }
    if let Some(rest) = text.strip_prefix("smb://") {
        return Ok(Box::new(Share::new(&share(rest, wire)?)));
    }
    if text.contains("://") {
        fail!("{text}: only smb:// is known");
    }
    Ok(Box::new(Disk::new(text)))
}

#[cfg(test)]
mod tests {
    use arden_measure::client::Protection;

    use super::*;

    #[test]
    fn only_smb_urls_are_known() {
        let wire = Wire { protection: Protection::Plain, channels: 1, password: Some("pw".into()) };
        assert!(parse("ftp://x", &wire, &Home::default()).is_err());
        assert_eq!(
            parse("smb://a@127.0.0.1/s/f", &wire, &Home::default()).unwrap().name(),
            "smb://a@127.0.0.1:445/s/f"
        );
        assert_eq!(parse("/srv/x", &wire, &Home::default()).unwrap().name(), "/srv/x");
    }
}
