//! Escaping of text from clients and disks in log lines, tables and errors: control characters must not reach a
//! terminal or a log. JSON answers are exact and are not escaped.

use std::{borrow::Cow, fmt::Write};

/// Whether the character is a control character, or changes the direction or appearance of the text around it.
fn is_deceptive(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

fn escape(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    let escaped = |c: char| is_deceptive(c) && !keep(c);
    if !text.contains(escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' if escaped(c) => out.push_str("\\n"),
            c if escaped(c) => {
                let _ = write!(out, "{}", c.escape_unicode());
            }
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Escapes text for one line: control characters as `\\u{1b}`, line ends as `\\n`.
pub fn line(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// Escapes text of several lines that Arden made itself: line ends and tabs stay.
pub fn lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| c == '\n' || c == '\t')
}

/// Escapes a value of a log line. A value that could be read as another field or value is put in quotes, with quotes
/// and backslashes escaped.
pub fn field(text: &str) -> Cow<'_, str> {
    let plain = |c: char| !c.is_whitespace() && c != '"' && c != '\\' && !is_deceptive(c);
    if text.chars().all(plain) {
        return Cow::Borrowed(text);
    }
    let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
    Cow::Owned(format!("\"{}\"", line(&quoted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_marks_of_direction_are_escaped() {
        assert!(matches!(line("Jürgen Groß 日本 x=1 \"q\""), Cow::Borrowed(_)));
        assert_eq!(line("a\x1b[31mb\r\n\tc\u{7f}\u{9b}"), "a\\u{1b}[31mb\\u{d}\\n\\u{9}c\\u{7f}\\u{9b}");
        assert_eq!(line("txt.\u{202e}exe"), "txt.\\u{202e}exe");
        assert_eq!(lines("a\tb\nc\x1b[0m\r\n"), "a\tb\nc\\u{1b}[0m\\u{d}\n");
    }

    #[test]
    fn a_value_is_no_second_field() {
        assert_eq!(field("alice"), "alice");
        assert_eq!(field("192.0.2.1:445"), "192.0.2.1:445");
        assert_eq!(field("a b client=10.0.0.1"), "\"a b client=10.0.0.1\"");
        assert_eq!(field("\"x\" y=\"z\""), "\"\\\"x\\\" y=\\\"z\\\"\"");
        assert_eq!(field("dir\\a\nb"), "\"dir\\\\a\\nb\"");
        assert_eq!(field(""), "");
    }
}
