//! Parsing and formatting of sizes, durations and counts.

use std::time::Duration;

use crate::{Error, Result, fail};

/// Parses a size in bytes: `8k`, `64m`, `32g`, `1t` (powers of 1024) or a number.
///
/// # Errors
/// The text is not a size, is 0, or exceeds 64 bits.
pub fn bytes(text: &str) -> Result<u64> {
    let lower = text.trim().to_lowercase();
    let shift = match lower.chars().last() {
        Some('k') => 10,
        Some('m') => 20,
        Some('g') => 30,
        Some('t') => 40,
        _ => 0,
    };
    let digits = if shift == 0 { &lower[..] } else { &lower[..lower.len() - 1] };
    match digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift)) {
        Some(n) if n > 0 => Ok(n),
        _ => fail!("{text:?} is no size: 8k, 64m, 32g or bytes"),
    }
}

/// A size in KiB, MiB, GiB or TiB, for display.
pub fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (shift, unit) in units {
        if bytes >= 1 << shift {
            let value = bytes as f64 / (1u64 << shift) as f64;
            return if value.fract() == 0.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") };
        }
    }
    format!("{bytes} B")
}

/// Parses counts of outstanding requests: in `1,3,8..512` numbers, and a range whose values double.
///
/// # Errors
/// A count is not from 1 to 65536, or a range falls.
pub fn outstanding(text: &str) -> Result<Vec<usize>> {
    let mut all = Vec::new();
    let number = |s: &str| match s.trim().parse::<usize>() {
        Ok(n) if (1..=65536).contains(&n) => Ok(n),
        _ => Err(Error(format!("{s:?} is no count of outstanding requests, 1 to 65536"))),
    };
    for part in text.split(',') {
        match part.split_once("..") {
            None => all.push(number(part)?),
            Some((from, to)) => {
                let (mut n, to) = (number(from)?, number(to)?);
                if n > to {
                    fail!("{part}: from more to less");
                }
                while n <= to {
                    all.push(n);
                    n *= 2;
                }
            }
        }
    }
    Ok(all)
}

/// Parses a duration: `500ms`, `10s`, `2m`, `1h`, or seconds.
///
/// # Errors
/// The text is not a duration, or exceeds 1,000,000 seconds.
pub fn duration(text: &str) -> Result<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => fail!("{text:?} is no time: 500ms, 10s, 2m, 1h or seconds"),
    };
    match digits.parse::<f64>() {
        Ok(n) if n >= 0.0 && n * factor <= 1e6 => Ok(Duration::from_secs_f64(n * factor)),
        _ => fail!("{text:?} is no time: 500ms, 10s, 2m, 1h or seconds"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(bytes("8k").unwrap(), 8192);
        assert_eq!(bytes("2G").unwrap(), 2 << 30);
        assert!(bytes("x").is_err() && bytes("0").is_err() && bytes("99999999999t").is_err() && bytes("").is_err());
        assert_eq!(size(65536), "64 KiB");
        assert_eq!(size(1536), "1.5 KiB");
    }

    #[test]
    fn words_become_numbers() {
        assert_eq!(outstanding("1,3,8..512").unwrap(), [1, 3, 8, 16, 32, 64, 128, 256, 512]);
        assert_eq!(outstanding("4").unwrap(), [4]);
        assert!(outstanding("0").is_err() && outstanding("8..1").is_err() && outstanding("x").is_err());
        assert_eq!(duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(duration("2m").unwrap(), Duration::from_secs(120));
        assert!(duration("2 weeks").is_err() && duration("").is_err());
    }
}
