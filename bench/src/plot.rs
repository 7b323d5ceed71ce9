//! Line charts as SVG, in colours that suit a light and a dark page.
//!
//! This module knows nothing of what the lines mean.

use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 380.0;
/// Margins for the title, the legend, and the numbers at the axes.
const LEFT: f64 = 72.0;
const RIGHT: f64 = 40.0;
const TOP: f64 = 76.0;
const BOTTOM: f64 = 52.0;
const COLOURS: [&str; 6] = ["#94a3b8", "#f59e0b", "#2563eb", "#10b981", "#a855f7", "#ef4444"];
const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#475569}\
.title{font-size:16px;font-weight:600;fill:#0f172a}\
.grid{stroke:#e2e8f0}.line{fill:none;stroke-width:2.5;stroke-linejoin:round;stroke-linecap:round}.page{fill:#fff}\
@media(prefers-color-scheme:dark){text{fill:#94a3b8}.title{fill:#f1f5f9}.grid{stroke:#334155}.page{fill:#0f172a}}";

pub(crate) struct Plot<'a> {
    pub(crate) title: &'a str,
    pub(crate) x_title: &'a str,
    /// Positions and labels of the marks of the x axis, which is logarithmic. The first and the last are its ends.
    pub(crate) x_marks: Vec<(f64, String)>,
    /// Formats a value of the y axis.
    pub(crate) y_mark: fn(f64) -> String,
    /// Whether the marks are powers of ten instead of equal steps from zero.
    pub(crate) y_log: bool,
    pub(crate) lines: Vec<Line>,
}

pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

impl Plot<'_> {
    pub(crate) fn svg(&self) -> String {
        let marks = self.y_marks();
        let (y_low, y_high) = (marks[0], marks[marks.len() - 1]);
        let (x_low, x_high) = (self.x_marks[0].0, self.x_marks[self.x_marks.len() - 1].0);
        let share = |value: f64, low: f64, high: f64, log: bool| {
            let scaled = |value: f64| if log { value.ln() } else { value };
            (scaled(value) - scaled(low)) / (scaled(high) - scaled(low))
        };
        let x = |value| LEFT + (WIDTH - LEFT - RIGHT) * share(value, x_low, x_high, true);
        let y = |value| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share(value, y_low, y_high, self.y_log);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
             <title>{title}</title><style>{STYLE}</style>\n\
             <rect class=\"page\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"8\"/>\n\
             <text class=\"title\" x=\"{LEFT}\" y=\"30\">{title}</text>\n",
            title = escaped(self.title)
        );
        for mark in &marks {
            let (at, text) = (y(*mark), escaped(&(self.y_mark)(*mark)));
            let end = WIDTH - RIGHT;
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{end}\"/>");
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                LEFT - 8.0,
                at + 4.0
            );
        }
        for (mark, text) in &self.x_marks {
            let (at, under) = (x(*mark), HEIGHT - BOTTOM + 20.0);
            let text = escaped(text);
            let _ = writeln!(svg, "<text x=\"{at:.1}\" y=\"{under}\" text-anchor=\"middle\">{text}</text>");
        }
        let (middle, under, x_title) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 10.0, escaped(self.x_title));
        let _ = writeln!(svg, "<text x=\"{middle}\" y=\"{under}\" text-anchor=\"middle\">{x_title}</text>");
        let mut legend = LEFT;
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let points = line.points.iter().filter(|(at, value)| at.is_finite() && value.is_finite());
            let points = points.map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(value.max(y_low))));
            let points = points.collect::<Vec<_>>().join(" ");
            let _ = writeln!(svg, "<polyline class=\"line\" stroke=\"{colour}\" points=\"{points}\"/>");
            let _ = writeln!(
                svg,
                "<rect x=\"{legend}\" y=\"46\" width=\"14\" height=\"4\" rx=\"2\" fill=\"{colour}\"/>"
            );
            let _ = writeln!(svg, "<text x=\"{}\" y=\"53\">{}</text>", legend + 20.0, escaped(&line.name));
            legend += 44.0 + 7.5 * line.name.chars().count() as f64;
        }
        svg + "</svg>\n"
    }

    fn y_marks(&self) -> Vec<f64> {
        let values = self.lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value);
        let values: Vec<_> = values.filter(|value| value.is_finite() && *value > 0.0).collect();
        let high = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        if !self.y_log {
            let rough = high / 5.0;
            let ten = 10f64.powf(rough.log10().floor());
            let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * ten).into_iter().find(|step| *step >= rough);
            let step = step.unwrap_or(rough);
            return (0..=(high / step).ceil() as u32).map(|count| f64::from(count) * step).collect();
        }
        let low = values.iter().copied().fold(high, f64::min);
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        (first..=last.max(first + 1)).map(|power| 10f64.powi(power)).collect()
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(y_log: bool, points: &[(f64, f64)]) -> Plot<'static> {
        let x_marks = vec![(1.0, "1".to_owned()), (100.0, "100".to_owned())];
        let lines = vec![Line { name: "a<b".to_owned(), points: points.to_vec() }];
        let y_mark = |value| format!("{value}");
        Plot { title: "Title", x_title: "x", x_marks, y_mark, y_log, lines }
    }

    #[test]
    fn marks_enclose_the_values_in_steps_one_can_read() {
        assert_eq!(plot(false, &[(1.0, 3.0), (10.0, 7.2)]).y_marks(), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(plot(true, &[(1.0, 3.0), (10.0, 720.0)]).y_marks(), [1.0, 10.0, 100.0, 1000.0]);
    }

    #[test]
    fn points_stand_where_their_values_are() {
        let svg = plot(false, &[(1.0, 0.0), (10.0, 5.0), (100.0, 10.0), (100.0, f64::NAN)]).svg();
        assert!(svg.contains("points=\"72.0,328.0 376.0,202.0 680.0,76.0\""), "{svg}");
        assert!(svg.contains(">a&lt;b</text>") && svg.ends_with("</svg>\n"));
    }
}
