//! Renders a screen as SVG for the docs.
//!
//! Lines and blocks are drawn as shapes, so that they join in any font; only letters are text.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};

const CELL_WIDTH: f64 = 8.4;
const CELL_HEIGHT: f64 = 18.0;
const MARGIN: f64 = 14.0;
const BACKGROUND: &str = "#11151c";
const TEXT_COLOUR: &str = "#d3d7de";

/// Checks that docs/ has this picture. `GOLDEN=write` writes it.
pub(crate) fn is_current(name: &str, screen: &Buffer) {
    let made = svg(screen);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    if std::env::var_os("GOLDEN").is_some_and(|wish| wish == "write") {
        fs::write(&path, &made).expect("the folder of the docs is there");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "docs/{name} is stale; GOLDEN=write cargo test -p clients picture writes it anew");
}

/// What a terminal shows, down to its last line that is not empty.
pub(crate) fn of_terminal(screen: &vt100::Screen) -> Buffer {
    let (rows, columns) = screen.size();
    let (rows, columns) = (rows.get(), columns.get());
    let used = screen.rows(0, columns).enumerate().filter(|(_, text)| !text.trim().is_empty());
    let height = used.last().map_or(1, |(at, _)| at as u16 + 1).min(rows);
    let mut buffer = Buffer::empty(Rect::new(0, 0, columns, height));
    for (y, x) in (0..height).flat_map(|y| (0..columns).map(move |x| (y, x))) {
        let Some(shown) = screen.cell(y, x) else { continue };
        let cell = &mut buffer[(x, y)];
        if shown.has_contents() {
            cell.set_symbol(shown.contents());
        }
        cell.fg = match shown.fgcolor() {
            vt100::Color::Idx(1 | 9) => Color::LightRed,
            vt100::Color::Idx(2 | 10) => Color::Green,
            vt100::Color::Idx(3 | 11) => Color::Yellow,
            vt100::Color::Idx(4 | 12) => Color::LightBlue,
            vt100::Color::Idx(6 | 14) => Color::Cyan,
            _ if shown.dim() => Color::Gray,
            _ => Color::Reset,
        };
        cell.modifier.set(Modifier::BOLD, shown.bold());
    }
    buffer
}

fn svg(screen: &Buffer) -> String {
    let (columns, rows) = (screen.area.width, screen.area.height);
    let (width, height) =
        (f64::from(columns) * CELL_WIDTH + 2.0 * MARGIN, f64::from(rows) * CELL_HEIGHT + 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"ui-monospace, SFMono-Regular, Menlo, 'DejaVu Sans Mono', monospace\" font-size=\"14\" \
         shape-rendering=\"crispEdges\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n"
    );
    for y in 0..rows {
        let mut x = 0;
        while x < columns {
            let run =
                (x..columns).take_while(|at| same_run(&screen[(x, y)], &screen[(*at, y)])).count() as u16;
            let text: String = (x..x + run).map(|at| screen[(at, y)].symbol()).collect();
            draw_run(&mut svg, &screen[(x, y)], &text, x, y);
            x += run;
        }
    }
    svg + "</svg>\n"
}

/// Cells of one style that are either all text or all the same drawn symbol.
fn same_run(first: &Cell, other: &Cell) -> bool {
    let same_look = (first.fg, first.modifier) == (other.fg, other.modifier);
    let drawn = is_drawn(first.symbol()) || is_drawn(other.symbol());
    same_look && (!drawn || first.symbol() == other.symbol())
}

fn is_drawn(symbol: &str) -> bool {
    matches!(symbol.chars().next(), Some('\u{2500}'..='\u{259f}'))
}

fn draw_run(svg: &mut String, cell: &Cell, text: &str, x: u16, y: u16) {
    let cells = text.chars().count();
    let (left, top, width) =
        (MARGIN + f64::from(x) * CELL_WIDTH, MARGIN + f64::from(y) * CELL_HEIGHT, cells as f64 * CELL_WIDTH);
    let mut colour_code = colour_code(cell.fg);
    if cell.modifier.contains(Modifier::REVERSED) {
        block(svg, "#2f3b52", [left, top, width, CELL_HEIGHT]);
        colour_code = if cell.fg == Color::Reset { "#ffffff" } else { colour_code };
    }
    let symbol = text.chars().next().unwrap_or(' ');
    if is_drawn(cell.symbol()) {
        return draw_symbol(svg, symbol, colour_code, [left, top, width]);
    }
    let trimmed = text.trim_end();
    let words = trimmed.trim_start();
    if words.is_empty() {
        return;
    }
    let left = left + (trimmed.chars().count() - words.chars().count()) as f64 * CELL_WIDTH;
    let length = words.chars().count() as f64 * CELL_WIDTH;
    let bold = if cell.modifier.contains(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" };
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace(' ', "\u{a0}");
    let base = top + CELL_HEIGHT * 0.74;
    let _ = writeln!(
        svg,
        "<text x=\"{left:.1}\" y=\"{base:.1}\" fill=\"{colour_code}\"{bold} textLength=\"{length:.1}\" \
         lengthAdjust=\"spacingAndGlyphs\">{words}</text>"
    );
}

/// Draws a line, a corner or a block.
fn draw_symbol(svg: &mut String, symbol: char, colour_code: &str, [left, top, width]: [f64; 3]) {
    let (right, bottom) = (left + width, top + CELL_HEIGHT);
    let (middle, centre) = (left + CELL_WIDTH / 2.0, top + CELL_HEIGHT / 2.0);
    let path = match symbol {
        '─' => format!("M{left:.1} {centre:.1}H{right:.1}"),
        '│' => format!("M{middle:.1} {top:.1}V{bottom:.1}"),
        '╭' => format!("M{middle:.1} {bottom:.1}Q{middle:.1} {centre:.1} {right:.1} {centre:.1}"),
        '╮' => format!("M{middle:.1} {bottom:.1}Q{middle:.1} {centre:.1} {left:.1} {centre:.1}"),
        '╰' => format!("M{middle:.1} {top:.1}Q{middle:.1} {centre:.1} {right:.1} {centre:.1}"),
        '╯' => format!("M{middle:.1} {top:.1}Q{middle:.1} {centre:.1} {left:.1} {centre:.1}"),
        // Lower blocks, which sparklines are made of, grow with the code point; left blocks shrink.
        '▁'..='█' => {
            let high = CELL_HEIGHT * f64::from(symbol as u32 - '▁' as u32 + 1) / 8.0 * 0.86;
            return block(svg, colour_code, [left, bottom - high, width, high]);
        }
        '▉'..='▏' => {
            let wide = CELL_WIDTH * f64::from('▏' as u32 - symbol as u32 + 1) / 8.0;
            return block(svg, colour_code, [left, top + CELL_HEIGHT * 0.14, wide, CELL_HEIGHT * 0.86]);
        }
        _ => return,
    };
    let _ =
        writeln!(svg, "<path d=\"{path}\" stroke=\"{colour_code}\" fill=\"none\" shape-rendering=\"auto\"/>");
}

fn block(svg: &mut String, colour_code: &str, [left, top, width, height]: [f64; 4]) {
    let _ = writeln!(
        svg,
        "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour_code}\"/>"
    );
}

fn colour_code(colour: Color) -> &'static str {
    match colour {
        Color::Cyan => "#56c8d8",
        Color::DarkGray => "#4a5468",
        Color::Gray => "#9aa4b5",
        Color::Green => "#7bc86c",
        Color::Yellow => "#e5c07b",
        Color::LightRed => "#f0717a",
        Color::LightBlue => "#6ca8f1",
        _ => TEXT_COLOUR,
    }
}
