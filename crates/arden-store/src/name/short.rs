//! 8.3 names, [MS-FSCC] 2.1.5.2.1: made from the long name alone, so nothing has to be kept. One letter, a hash, a
//! tilde, a letter of the hash, the extension. Two names that meet in one are told apart by nobody: the short name
//! then leads nowhere.

use super::fold_char;

const DIGITS: &[u8; 36] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const BASE_MAX: usize = 8;
const EXTENSION_MAX: usize = 3;

fn is_short_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-~$!#%&@^(){}'`".contains(c)
}

/// Whether a name is an 8.3 name itself.
pub fn is_short(name: &str) -> bool {
    let (base, extension) = match name.rsplit_once('.') {
        Some((_, "")) => return false,
        Some(parts) => parts,
        None => (name, ""),
    };
    // The length first: it settles most names.
    let fits = |s: &str, max| s.len() <= max && s.chars().all(is_short_char);
    !base.is_empty() && fits(base, BASE_MAX) && fits(extension, EXTENSION_MAX)
}

/// The 8.3 name of a name that is none; None for one that is.
pub fn short_name(name: &str) -> Option<String> {
    if is_short(name) {
        return None;
    }
    // FNV-1a over the folded name: every spelling has the same short name, on every machine.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut take = |b: u8| hash = (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
    if name.is_ascii() {
        name.bytes().for_each(|b| take(b.to_ascii_uppercase()));
    } else {
        let mut utf8 = [0; 4];
        for c in name.chars() {
            fold_char(c).encode_utf8(&mut utf8).bytes().for_each(&mut take);
        }
    }
    let first = name.chars().find(char::is_ascii_alphanumeric).unwrap_or('_').to_ascii_uppercase();
    let mut out = String::with_capacity(12);
    out.push(first);
    for i in 0..6 {
        if i == 5 {
            out.push('~');
        }
        out.push(DIGITS[(hash % 36) as usize] as char);
        hash /= 36;
    }
    let extension = name.rsplit_once('.').map_or("", |(_, e)| e);
    for (i, c) in extension.chars().filter(char::is_ascii_alphanumeric).take(EXTENSION_MAX).enumerate() {
        if i == 0 {
            out.push('.');
        }
        out.push(c.to_ascii_uppercase());
    }
    Some(out)
}

/// Whether `name` has the form of what [`short_name`] makes.
pub fn may_be_made_short(name: &str) -> bool {
    name.len() <= BASE_MAX + 1 + EXTENSION_MAX && name.as_bytes().get(6) == Some(&b'~') && is_short(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_short_and_stable() {
        for name in ["A long name.text", "ünïcödé", ".profile", "trailing.", "two words", "a.b.c", "no extension here"]
        {
            let short = short_name(name).unwrap();
            assert!(is_short(&short) && may_be_made_short(&short), "{name}: {short}");
            assert_eq!(short_name(&name.to_uppercase()).as_ref(), Some(&short), "{name}");
        }
        assert_eq!(short_name("A long name.text").unwrap(), short_name("a LONG name.text").unwrap());
        for name in ["README", "FILE.TXT", "a.b", "X~1"] {
            assert_eq!(short_name(name), None, "{name}");
        }
    }
}
