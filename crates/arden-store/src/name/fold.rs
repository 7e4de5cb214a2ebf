//! Case folding as NTFS does it: one UTF-16 unit to one, so only characters of the basic plane whose
//! uppercase is a single character of the basic plane. Characters outside ASCII never fold into it
//! (dotless i, long s): two names that differ in bytes a shell shows as different stay different.

use std::borrow::Cow;

/// The uppercase of one character.
#[inline]
pub fn fold_char(c: char) -> char {
    if c.is_ascii() { c.to_ascii_uppercase() } else { fold_wide(c) }
}

fn fold_wide(c: char) -> char {
    // Micro sign and Greek ypogegrammeni have an uppercase in Unicode that NTFS does not know.
    if c as u32 > 0xFFFF || matches!(c, '\u{B5}' | '\u{345}' | '\u{1FBE}') {
        return c;
    }
    let mut up = c.to_uppercase();
    match (up.next(), up.next()) {
        (Some(u), None) if !u.is_ascii() && u as u32 <= 0xFFFF => u,
        _ => c,
    }
}

/// The folded form: equal for names that are the same to a client.
pub fn fold(name: &str) -> Cow<'_, str> {
    if is_folded_ascii(name) {
        return Cow::Borrowed(name);
    }
    Cow::Owned(name.chars().map(fold_char).collect())
}

/// ASCII without lowercase: its own folded form.
pub fn is_folded_ascii(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii() && !b.is_ascii_lowercase())
}

/// Whether two names are the same to a client.
pub fn eq_fold(a: &str, b: &str) -> bool {
    if a == b {
        return true;
    }
    if a.is_ascii() && b.is_ascii() {
        return a.eq_ignore_ascii_case(b);
    }
    a.chars().map(fold_char).eq(b.chars().map(fold_char))
}
