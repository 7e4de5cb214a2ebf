//! Tables for terminals: numbers are aligned right, words left.

/// A table with columns as wide as their contents.
pub fn text(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (w, cell) in widths.iter_mut().zip(row) {
            *w = (*w).max(cell.chars().count());
        }
    }
    let number = |cell: &str| cell.starts_with(|c: char| c.is_ascii_digit()) || cell == "-";
    let line = |cells: &[String]| {
        let padded: Vec<String> = cells
            .iter()
            .zip(&widths)
            .map(|(cell, w)| if number(cell) { format!("{cell:>w$}") } else { format!("{cell:<w$}") })
            .collect();
        padded.join("  ").trim_end().to_string() + "\n"
    };
    let head: Vec<String> = head
        .iter()
        .enumerate()
        .map(|(i, h)| {
            // The head of a column of numbers is aligned right too.
            let numbers = rows.first().is_some_and(|r| number(&r[i]));
            if numbers { format!("{h:>w$}", w = widths[i]) } else { h.to_string() }
        })
        .collect();
    let mut out = line(&head);
    for row in rows {
        out += &line(row);
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["a".to_string(), "5".to_string()], vec!["long".to_string(), "100".to_string()]];
        assert_eq!(super::text(&["X", "N"], &rows), "X       N\na       5\nlong  100\n");
    }
}
