//! A screen as an SVG, for the docs.
//!
//! Lines and blocks are drawn, so that they meet whatever font the reader has; only letters are text.

use std::fmt::Write;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

const WIDE: f64 = 8.4;
const HIGH: f64 = 18.0;
const EDGE: f64 = 14.0;
const GROUND: &str = "#11151c";
const INK: &str = "#d3d7de";

pub(super) fn svg(screen: &Buffer) -> String {
    let (columns, rows) = (screen.area.width, screen.area.height);
    let (width, height) = (f64::from(columns) * WIDE + 2.0 * EDGE, f64::from(rows) * HIGH + 2.0 * EDGE);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"ui-monospace, SFMono-Regular, Menlo, 'DejaVu Sans Mono', monospace\" font-size=\"14\" \
         shape-rendering=\"crispEdges\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{GROUND}\"/>\n"
    );
    for y in 0..rows {
        let mut x = 0;
        while x < columns {
            let run =
                (x..columns).take_while(|at| goes_on(&screen[(x, y)], &screen[(*at, y)])).count() as u16;
            let text: String = (x..x + run).map(|at| screen[(at, y)].symbol()).collect();
            draw_run(&mut svg, &screen[(x, y)], &text, x, y);
            x += run;
        }
    }
    svg + "</svg>\n"
}

/// Cells of one look, and either all of letters or all the same drawn sign.
fn goes_on(first: &Cell, other: &Cell) -> bool {
    let same_look = (first.fg, first.modifier) == (other.fg, other.modifier);
    let drawn = is_drawn(first.symbol()) || is_drawn(other.symbol());
    same_look && (!drawn || first.symbol() == other.symbol())
}

fn is_drawn(symbol: &str) -> bool {
    matches!(symbol.chars().next(), Some('\u{2500}'..='\u{259f}'))
}

fn draw_run(svg: &mut String, cell: &Cell, text: &str, x: u16, y: u16) {
    let cells = text.chars().count();
    let (left, top, width) = (EDGE + f64::from(x) * WIDE, EDGE + f64::from(y) * HIGH, cells as f64 * WIDE);
    let mut ink = ink(cell.fg);
    if cell.modifier.contains(Modifier::REVERSED) {
        block(svg, "#2f3b52", [left, top, width, HIGH]);
        ink = if cell.fg == Color::Reset { "#ffffff" } else { ink };
    }
    let sign = text.chars().next().unwrap_or(' ');
    if is_drawn(cell.symbol()) {
        return draw_sign(svg, sign, ink, [left, top, width]);
    }
    let trimmed = text.trim_end();
    let words = trimmed.trim_start();
    if words.is_empty() {
        return;
    }
    let left = left + (trimmed.chars().count() - words.chars().count()) as f64 * WIDE;
    let length = words.chars().count() as f64 * WIDE;
    let bold = if cell.modifier.contains(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" };
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace(' ', "\u{a0}");
    let base = top + HIGH * 0.74;
    let _ = writeln!(
        svg,
        "<text x=\"{left:.1}\" y=\"{base:.1}\" fill=\"{ink}\"{bold} textLength=\"{length:.1}\" \
         lengthAdjust=\"spacingAndGlyphs\">{words}</text>"
    );
}

/// A line, a corner or a block.
fn draw_sign(svg: &mut String, sign: char, ink: &str, [left, top, width]: [f64; 3]) {
    let (right, bottom) = (left + width, top + HIGH);
    let (middle, centre) = (left + WIDE / 2.0, top + HIGH / 2.0);
    let path = match sign {
        '─' => format!("M{left:.1} {centre:.1}H{right:.1}"),
        '│' => format!("M{middle:.1} {top:.1}V{bottom:.1}"),
        '╭' => format!("M{middle:.1} {bottom:.1}Q{middle:.1} {centre:.1} {right:.1} {centre:.1}"),
        '╮' => format!("M{middle:.1} {bottom:.1}Q{middle:.1} {centre:.1} {left:.1} {centre:.1}"),
        '╰' => format!("M{middle:.1} {top:.1}Q{middle:.1} {centre:.1} {right:.1} {centre:.1}"),
        '╯' => format!("M{middle:.1} {top:.1}Q{middle:.1} {centre:.1} {left:.1} {centre:.1}"),
        // Lower blocks from one eighth to all, which a sparkline is made of, and left blocks the other way round.
        '▁'..='█' => {
            let high = HIGH * f64::from(sign as u32 - '▁' as u32 + 1) / 8.0 * 0.86;
            return block(svg, ink, [left, bottom - high, width, high]);
        }
        '▉'..='▏' => {
            let wide = WIDE * f64::from('▏' as u32 - sign as u32 + 1) / 8.0;
            return block(svg, ink, [left, top + HIGH * 0.14, wide, HIGH * 0.86]);
        }
        _ => return,
    };
    let _ = writeln!(svg, "<path d=\"{path}\" stroke=\"{ink}\" fill=\"none\" shape-rendering=\"auto\"/>");
}

fn block(svg: &mut String, ink: &str, [left, top, width, height]: [f64; 4]) {
    let _ = writeln!(
        svg,
        "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{ink}\"/>"
    );
}

fn ink(colour: Color) -> &'static str {
    match colour {
        Color::Cyan => "#56c8d8",
        Color::DarkGray => "#4a5468",
        Color::Gray => "#9aa4b5",
        Color::Green => "#7bc86c",
        Color::Yellow => "#e5c07b",
        Color::LightRed => "#f0717a",
        Color::LightBlue => "#6ca8f1",
        _ => INK,
    }
}
