//! Names and paths: parsing, validity, case folding, wildcards ([MS-FSCC] 2.1.5, [MS-FSA] 2.1.4.4).
//! Refuses to know where a name is stored.

mod fold;
mod gmt;
mod pattern;
mod short;

use crate::error::StoreError;
use arden_wire::{FileTime, names::name_units};

pub use fold::{eq_fold, fold, fold_char, is_folded_ascii};
pub use gmt::{gmt_token, parse_gmt_token};
pub use pattern::{PATTERN_UNITS_MAX, Pattern};
pub use short::{SHORT_CANDIDATES_MAX, is_short, may_be_made_short, short_candidates, short_name};

/// A component or stream name has at most this many UTF-16 units, [MS-FSCC] 2.1.5.
pub const NAME_UNITS_MAX: usize = 255;
/// A path as a whole, in UTF-16 units: what a counted string of 65,535 bytes holds.
pub const PATH_UNITS_MAX: usize = 32_767;

const SEPARATORS: [char; 2] = ['\\', '/'];

/// A path relative to the root of a share: valid components, and the stream it ends in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct NtPath {
    /// Empty for the root.
    pub components: Vec<String>,
    /// `name` of `file:name:$DATA`; None for the unnamed stream.
    pub stream: Option<String>,
    /// The path named a type explicitly, `::$DATA` or `::$INDEX_ALLOCATION`, or ended in a separator.
    pub wants: PathWants,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PathWants {
    #[default]
    Any,
    /// `::$DATA` or a named stream: a directory will not do unless a stream is named.
    Data,
    /// `::$INDEX_ALLOCATION`: has to be a directory.
    Directory,
}

impl NtPath {
    /// Parses the wire form: backslashes, no leading one; a slash separates too, because clients on Unix send it and
    /// peers take it. `.` is the directory that it is in and `..` the one above, [MS-FSCC] 2.1.5.1. A path that goes on
    /// where a `..` led to the root of the share is `InvalidParameter`, [MS-SMB2] 3.3.5.9 <303>, and one that leaves the share
    /// `PathAboveRoot`. `InvalidName` for what may not be a name, `InvalidParameter` for a leading backslash.
    pub fn parse(path: &str) -> Result<NtPath, StoreError> {
        if path.is_empty() {
            return Ok(NtPath::default());
        }
        if path.starts_with(SEPARATORS) {
            return Err(StoreError::InvalidParameter);
        }
        if path.len() > PATH_UNITS_MAX && name_units(path) > PATH_UNITS_MAX {
            return Err(StoreError::InvalidName);
        }
        let (path, trailing) = match path.strip_suffix(SEPARATORS) {
            Some(rest) => (rest, true),
            None => (path, false),
        };
        let (parents, last) = match path.rfind(SEPARATORS) {
            Some(at) => (Some(&path[..at]), &path[at + 1..]),
            None => (None, path),
        };
        let mut out = NtPath {
            components: Vec::with_capacity(
                1 + parents.map_or(0, |p| p.bytes().filter(|b| matches!(b, b'\\' | b'/')).count() + 1),
            ),
            ..NtPath::default()
        };
        for component in parents.into_iter().flat_map(|p| p.split(SEPARATORS)) {
            match component {
                // Redundant separators are stripped, [MS-FSA] 2.1.5.1 phase 3.
                "." | "" => {}
                ".." => {
                    out.go_up()?;
                    if out.components.is_empty() {
                        return Err(StoreError::InvalidParameter);
                    }
                }
                _ => {
                    check_component(component)?;
                    out.components.push(component.to_owned());
                }
            }
        }
        if last == ".." {
            out.go_up()?;
            out.wants = PathWants::Directory;
            return Ok(out);
        }
        let base = match last.split_once(':') {
            None => last,
            Some((base, stream)) => {
                (out.stream, out.wants) = parse_stream(stream)?;
                base
            }
        };
        // `:stream` alone names a stream of the root.
        if !(base.is_empty() && parents.is_none() && (out.stream.is_some() || out.wants != PathWants::Any)) {
            check_component(base)?;
            out.components.push(base.to_owned());
        }
        if trailing {
            if out.wants == PathWants::Data {
                return Err(StoreError::InvalidName);
            }
            out.wants = PathWants::Directory;
        }
        Ok(out)
    }

    /// Takes the name of a state of the past out of the path, wherever it stands, [MS-SMB2] 1.1, "@GMT token".
    pub fn take_gmt_token(&mut self) -> Option<FileTime> {
        let (at, time) = self.components.iter().enumerate().find_map(|(i, c)| Some((i, parse_gmt_token(c)?)))?;
        self.components.remove(at);
        Some(time)
    }

    fn go_up(&mut self) -> Result<(), StoreError> {
        self.components.pop().map(|_| ()).ok_or(StoreError::PathAboveRoot)
    }
}

/// What follows the first colon of the last component: `stream`, `stream:$TYPE` or `:$TYPE`.
fn parse_stream(text: &str) -> Result<(Option<String>, PathWants), StoreError> {
    let invalid = StoreError::InvalidName;
    let (name, kind) = match text.split_once(':') {
        None => (text, None),
        Some((name, kind)) => (name, Some(kind)),
    };
    let directory = match kind {
        None => false,
        Some(k) if k.eq_ignore_ascii_case("$DATA") => false,
        Some(k) if k.eq_ignore_ascii_case("$INDEX_ALLOCATION") => true,
        Some(_) => return Err(invalid),
    };
    if directory {
        return match name {
            "" => Ok((None, PathWants::Directory)),
            n if n.eq_ignore_ascii_case("$I30") => Ok((None, PathWants::Directory)),
            _ => Err(StoreError::InvalidParameter),
        };
    }
    if name.is_empty() {
        return if kind.is_some() { Ok((None, PathWants::Data)) } else { Err(invalid) };
    }
    check_stream_name(name)?;
    Ok((Some(name.to_owned()), PathWants::Data))
}

/// Whether `name` may be the name of a file or directory. `.` and `..` are not.
pub fn check_component(name: &str) -> Result<(), StoreError> {
    match name {
        "" | "." | ".." => return Err(StoreError::InvalidName),
        _ => {}
    }
    if name.bytes().any(|b| INVALID_IN_NAME[b as usize]) || too_long(name) {
        return Err(StoreError::InvalidName);
    }
    Ok(())
}

/// Whether a name found on disk can be shown to clients.
pub fn is_presentable(name: &str) -> bool {
    check_component(name).is_ok()
}

/// Stream names may hold control characters and wildcards, [MS-FSCC] 2.1.5.3.
pub fn check_stream_name(name: &str) -> Result<(), StoreError> {
    if name.is_empty() || name.bytes().any(|b| matches!(b, 0 | b'\\' | b'/' | b':')) || too_long(name) {
        return Err(StoreError::InvalidName);
    }
    Ok(())
}

fn too_long(name: &str) -> bool {
    // UTF-8 has at least as many bytes as UTF-16 has units.
    name.len() > NAME_UNITS_MAX && name_units(name) > NAME_UNITS_MAX
}

/// Control characters and `"*/:<>?\|`; bytes above 0x7f belong to other characters, all valid.
static INVALID_IN_NAME: [bool; 256] = {
    let mut t = [false; 256];
    let mut i = 0;
    while i < 0x20 {
        t[i] = true;
        i += 1;
    }
    let chars = b"\"*/:<>?\\|";
    let mut i = 0;
    while i < chars.len() {
        t[chars[i] as usize] = true;
        i += 1;
    }
    t
};

#[cfg(test)]
mod tests;
