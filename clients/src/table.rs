//! Text tables: each column is as wide as its widest cell, and two spaces apart from the next.

use anstyle::Style;

pub struct Cell {
    text: String,
    style: Style,
    aligns_right: bool,
}

impl Cell {
    pub fn new(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), style: Style::new(), aligns_right: false }
    }

    /// Aligned to the right.
    pub fn number(text: impl Into<String>) -> Cell {
        Cell { aligns_right: true, ..Cell::new(text) }
    }

    pub fn styled(self, style: Style) -> Cell {
        Cell { style, ..self }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

/// One line per row, without a newline.
pub fn lines(rows: &[Vec<Cell>]) -> Vec<String> {
    let widest = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(Cell::width).max();
    let widths: Vec<usize> = (0..).map_while(widest).collect();
    let line = |row: &Vec<Cell>| {
        let mut line = String::new();
        for (Cell { text, style, aligns_right }, width) in row.iter().zip(&widths) {
            let padded = if *aligns_right { format!("{text:>width$}") } else { format!("{text:<width$}") };
            line += &format!("{style}{padded}{style:#}  ");
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}
