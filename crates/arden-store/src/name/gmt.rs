//! The name of a state of the past in a path, `@GMT-YYYY.MM.DD-HH.MM.SS`: [MS-SMB2] 1.1, "@GMT token". Always UTC.

use arden_wire::FileTime;

const SECOND: i64 = 1;
const DAY: i64 = 86_400 * SECOND;
/// Years that four digits can write, as far back as file times go.
const YEARS: std::ops::RangeInclusive<i64> = 1601..=9999;

/// Days from 1970-01-01 to a day of the Gregorian calendar. Years are counted from March, so that the odd day is the last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + (month * 153 + 2) / 5 + day
        - 719_469
}

fn days_in(year: i64, month: i64) -> i64 {
    if month == 12 { 31 } else { days(year, month + 1, 1) - days(year, month, 1) }
}

/// The token for a time; what is less than a second is left out.
pub fn gmt_token(time: FileTime) -> String {
    let (secs, _) = time.to_unix();
    let (day, second) = (secs.div_euclid(DAY), secs.rem_euclid(DAY));
    let mut year = 1970 + day.max(0) / 366 + day.min(0).div_euclid(365);
    while days(year + 1, 1, 1) <= day {
        year += 1;
    }
    let mut month = 1;
    while month < 12 && days(year, month + 1, 1) <= day {
        month += 1;
    }
    let date = day - days(year, month, 1) + 1;
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("@GMT-{year:04}.{month:02}.{date:02}-{h:02}.{m:02}.{s:02}")
}

/// None for what is no such token.
pub fn parse_gmt_token(text: &str) -> Option<FileTime> {
    const FORM: &[u8] = b"@GMT-0000.00.00-00.00.00";
    let fits = |(c, form): (u8, &u8)| if *form == b'0' { c.is_ascii_digit() } else { c.eq_ignore_ascii_case(form) };
    if text.len() != FORM.len() || !text.bytes().zip(FORM).all(fits) {
        return None;
    }
    let number = |from: usize, to: usize| text[from..to].parse::<i64>().ok();
    let (year, month, day) = (number(5, 9)?, number(10, 12)?, number(13, 15)?);
    let (h, m, s) = (number(16, 18)?, number(19, 21)?, number(22, 24)?);
    let valid = YEARS.contains(&year)
        && (1..=12).contains(&month)
        && (1..=days_in(year, month)).contains(&day)
        && h < 24
        && m < 60
        && s < 60;
    valid.then(|| FileTime::from_unix(days(year, month, day) * DAY + h * 3600 + m * 60 + s, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_times() {
        let time = parse_gmt_token("@GMT-2024.02.29-23.59.58").unwrap();
        assert_eq!(time.to_unix(), (1_709_251_198, 0));
        assert_eq!(gmt_token(time), "@GMT-2024.02.29-23.59.58");
        assert_eq!(parse_gmt_token("@gmt-1970.01.01-00.00.00"), Some(FileTime::from_unix(0, 0)));
        let mut secs = -11_644_473_600;
        while secs < 253_402_300_799 {
            let time = FileTime::from_unix(secs, 0);
            assert_eq!(parse_gmt_token(&gmt_token(time)), Some(time));
            secs += 86_400 * 13 + 4_321;
        }
        for bad in
            ["@GMT-2023.02.29-00.00.00", "@GMT-2024.13.01-00.00.00", "@GMT-2024.01.01-24.00.00", "@GMT-2024.1.01"]
        {
            assert_eq!(parse_gmt_token(bad), None, "{bad}");
        }
        assert_eq!(parse_gmt_token("@GMT-2024.01.01-00.00.0é"), None);
    }
}
