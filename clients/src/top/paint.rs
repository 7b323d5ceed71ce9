//! Colours, and how numbers are written: short, and of the same width however large.

use ratatui::style::{Color, Modifier, Style};

#[derive(Clone, Copy)]
pub(super) struct Paint {
    /// Without colours, only bold, dim and reverse are left.
    pub(super) colour: bool,
}

impl Paint {
    pub(super) fn title(self) -> Style {
        self.in_colour(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    pub(super) fn frame(self) -> Style {
        self.in_colour(Color::DarkGray)
    }

    pub(super) fn quiet(self) -> Style {
        if self.colour { self.in_colour(Color::Gray) } else { Style::new().add_modifier(Modifier::DIM) }
    }

    pub(super) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn good(self) -> Style {
        self.in_colour(Color::Green)
    }

    pub(super) fn wary(self) -> Style {
        self.in_colour(Color::Yellow)
    }

    pub(super) fn bad(self) -> Style {
        self.in_colour(Color::LightRed).add_modifier(Modifier::BOLD)
    }

    pub(super) fn flow(self) -> Style {
        self.in_colour(Color::LightBlue)
    }

    /// The chosen line.
    pub(super) fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Of a worker.
    pub(super) fn state(self, state: &str) -> Style {
        match state {
            "up" => self.good(),
            "broken" | "killed" => self.bad(),
            "" => self.quiet(),
            _ => self.wary(),
        }
    }

    /// Of something that is so full.
    pub(super) fn fullness(self, part: f64) -> Style {
        match part {
            part if part >= 0.9 => self.bad(),
            part if part >= 0.6 => self.wary(),
            _ => self.good(),
        }
    }

    fn in_colour(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }
}

/// So many cells, filled so far.
pub(super) fn bar(part: f64, cells: usize) -> (String, String) {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
    // What is not nothing can be seen.
    let eighths = (part * cells as f64 * 8.0).ceil() as usize;
    let full = "█".repeat(eighths / 8) + EIGHTHS[eighths % 8];
    let empty = cells - eighths.div_ceil(8);
    (full, "·".repeat(empty))
}

/// At most five characters: `0`, `4.2`, `120`, `12.4k`, `3.1M`.
pub(super) fn number(value: f64) -> String {
    match value {
        value if value < 0.05 => "0".to_owned(),
        value if value < 9.95 => format!("{value:.1}"),
        value if value < 9999.5 => format!("{value:.0}"),
        value if value < 99_950.0 => format!("{:.1}k", value / 1e3),
        value if value < 999_500.0 => format!("{:.0}k", value / 1e3),
        value if value < 99_950_000.0 => format!("{:.1}M", value / 1e6),
        value => format!("{:.0}M", value / 1e6),
    }
}

/// A time in microseconds.
pub(super) fn micros(micros: u64) -> String {
    let micros = micros as f64;
    match micros {
        micros if micros < 1e3 => format!("{micros:.0} µs"),
        micros if micros < 9.95e3 => format!("{:.1} ms", micros / 1e3),
        micros if micros < 999.5e3 => format!("{:.0} ms", micros / 1e3),
        micros if micros < 99.95e6 => format!("{:.1} s", micros / 1e6),
        micros => format!("{:.0} s", micros / 1e6),
    }
}

pub(super) fn known(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_stay_short() {
        let numbers = [
            (0.0, "0"),
            (0.1, "0.1"),
            (9.96, "10"),
            (1234.0, "1234"),
            (12_345.0, "12.3k"),
            (999_400.0, "999k"),
            (3.1e6, "3.1M"),
            (4e8, "400M"),
        ];
        assert!(numbers.into_iter().all(|(value, text)| number(value) == text));
        let times = [(0, "0 µs"), (999, "999 µs"), (1200, "1.2 ms"), (84_000, "84 ms"), (1_500_000, "1.5 s")];
        assert!(times.into_iter().all(|(value, text)| micros(value) == text));
    }

    #[test]
    fn a_bar_is_as_wide_as_it_should_be_whatever_it_shows() {
        for part in [-1.0, 0.0, 0.001, 0.3, 0.999, 1.0, 7.0, f64::NAN, f64::INFINITY] {
            let (full, empty) = bar(part, 10);
            assert_eq!(full.chars().count() + empty.chars().count(), 10, "{part}");
        }
        assert_eq!(bar(0.001, 2), ("▏".to_owned(), "·".to_owned()));
        assert_eq!(bar(0.75, 2), ("█▌".to_owned(), String::new()));
    }
}
