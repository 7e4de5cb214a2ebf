//! Aligned columns for terminals. Scripts use --json.

use crate::printable;

/// A table of text.
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// "yes" or "no".
pub fn yes(flag: bool) -> String {
    if flag { "yes".to_string() } else { String::new() }
}

impl Table {
    /// A table with this heading.
    pub fn new(head: &[&str]) -> Table {
        Table { head: head.iter().map(ToString::to_string).collect(), rows: Vec::new() }
    }

    /// A table without a heading.
    pub fn plain() -> Table {
        Table { head: Vec::new(), rows: Vec::new() }
    }

    /// Adds a row. Text from clients is escaped.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.iter().map(|c| printable::line(c).into_owned()).collect());
    }

    /// The table as text; `empty` when there are no rows.
    pub fn text(mut self, empty: &str) -> String {
        if self.rows.is_empty() {
            return format!("{empty}\n");
        }
        if !self.head.is_empty() {
            self.rows.insert(0, self.head);
        }
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |i: usize| self.rows.iter().filter_map(|r| r.get(i)).map(|c| c.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for row in &self.rows {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(c, w)| format!("{c:w$}")).collect();
            out.push_str(cells.join("  ").trim_end());
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_control_characters_do_not_pass() {
        let mut t = Table::new(&["NAME", "X"]);
        t.row(["a".into(), "1".into()]);
        t.row(["längst\x1b[1m\n".into(), "22".into()]);
        assert_eq!(t.text("none"), "NAME               X\na                  1\nlängst\\u{1b}[1m\\n  22\n");
        assert_eq!(Table::new(&["A"]).text("none"), "none\n");
    }
}
