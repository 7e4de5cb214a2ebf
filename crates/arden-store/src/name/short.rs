//! 8.3 names, [MS-FSCC] 2.1.5.2.1, of two kinds. Those that no store keeps are made from the long name alone
//! ([`short_name`]): one letter, a hash, a tilde, a letter of the hash, the extension. Two names that meet in one are told
//! apart by nobody: the short name then leads nowhere. A store that keeps them takes the first of NTFS' form
//! ([`short_candidates`]) that its directory does not have.

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

/// FNV-1a over the folded name: the same for every spelling, on every machine.
fn folded_hash(name: &str) -> u64 {
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
    hash
}

/// The 8.3 name of a name that is none; None for one that is.
pub fn short_name(name: &str) -> Option<String> {
    if is_short(name) {
        return None;
    }
    let mut hash = folded_hash(name);
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

/// Letters of the long name before the tilde, without a hash and with one.
const STEM_MAX: usize = 6;
const HASHED_STEM_MAX: usize = 2;
/// `LONGNA~1` to `LONGNA~4`; from the fifth name on the hash tells them apart.
const PLAIN_MAX: u32 = 4;
/// `LO1A2B~1` to `LO1A2B~9`, and as many with each further hash.
const DIGIT_MAX: u32 = 9;
const HASHES_MAX: u32 = 8;
/// No name has more candidates: a bound for the look-ups that giving one a short name takes.
pub const SHORT_CANDIDATES_MAX: usize = (PLAIN_MAX + DIGIT_MAX * HASHES_MAX) as usize;

/// What an 8.3 name keeps of a part of a long one: upper case, no spaces and dots, `_` for what it cannot have.
fn short_part(part: &str, max: usize) -> String {
    let kept = part.chars().filter(|c| !matches!(c, ' ' | '.'));
    kept.map(|c| if is_short_char(c) { c.to_ascii_uppercase() } else { '_' }).take(max).collect()
}

/// 8.3 names in NTFS' form for a name that is none, best first: of `Long name.text` `LONGNA~1.TEX` to `~4`, then two letters, four
/// digits of a hash and `~1` to `~9`. A name of one or two letters has a hash from the first on.
pub fn short_candidates(name: &str) -> impl Iterator<Item = String> {
    // Dots at the beginning are no extension's.
    let (base, extension) = name.trim_start_matches('.').rsplit_once('.').unwrap_or((name, ""));
    let (stem, extension) = (short_part(base, STEM_MAX), short_part(extension, EXTENSION_MAX));
    let extension = if extension.is_empty() { extension } else { format!(".{extension}") };
    let hash = folded_hash(name);
    let (plain, hashed) = ((stem.clone(), extension.clone()), (stem, extension));
    let plain_max = if plain.0.len() > HASHED_STEM_MAX { PLAIN_MAX } else { 0 };
    let plain = (1..=plain_max).map(move |n| format!("{}~{n}{}", plain.0, plain.1));
    let hashed = (0..HASHES_MAX * DIGIT_MAX).map(move |i| {
        let (round, digit) = (i / DIGIT_MAX, i % DIGIT_MAX + 1);
        // Other bits of the hash in each round; a multiplication mixes them.
        let mixed = hash.rotate_left(7 * round).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48;
        let letters = hashed.0.len().min(HASHED_STEM_MAX);
        format!("{}{mixed:04X}~{digit}{}", &hashed.0[..letters], hashed.1)
    });
    plain.chain(hashed)
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

    #[test]
    fn candidates_have_the_form_of_ntfs() {
        let first = |name: &str, n: usize| short_candidates(name).take(n).collect::<Vec<_>>();
        assert_eq!(first("Long name.text", 2), ["LONGNA~1.TEX", "LONGNA~2.TEX"]);
        assert_eq!(first("TextFile.Mine.txt", 1), ["TEXTFI~1.TXT"]);
        assert_eq!(first(".profile", 1), ["PROFIL~1"]);
        assert_eq!(first("a+b;c,d=e[f].html", 1), ["A_B_C_~1.HTM"]);
        assert_eq!(first("ünïcödé", 1), ["_N_C_D~1"]);
        assert_eq!(first("trailing.", 1), ["TRAILI~1"]);
        assert_eq!(first("no extension here", 1), ["NOEXTE~1"]);
        let fifth = &first("Long name.text", 5)[4];
        let hash = &fifth[2..6];
        assert!(fifth.starts_with("LO") && fifth.ends_with("~1.TEX"), "{fifth}");
        assert!(hash.bytes().all(|b| b.is_ascii_digit() || (b'A'..=b'F').contains(&b)), "{fifth}");
        assert!(first("a b", 1)[0].starts_with("AB") && first("a b", 1)[0].ends_with("~1"), "hashed at once");
    }

    #[test]
    fn candidates_are_8_3_names_few_and_each_once() {
        for name in
            ["A long name.text", "ünïcödé", ".profile", "...", " . ", "a.b.c", "x y", "ab.longer", &"n".repeat(255)]
        {
            let all: Vec<_> = short_candidates(name).collect();
            assert!(all.iter().all(|s| is_short(s) && *s == s.to_uppercase()), "{name}: {all:?}");
            assert!(all.len() <= SHORT_CANDIDATES_MAX);
            assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), all.len(), "{name}");
            assert_eq!(all, short_candidates(&name.to_uppercase()).collect::<Vec<_>>(), "in any case");
        }
    }
}
