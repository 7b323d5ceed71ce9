//! Styles, and short formats for numbers.

use ratatui::style::{Color, Modifier, Style};

#[derive(Clone, Copy)]
pub(super) struct Theme {
    /// Without colour, only bold, dim and reverse are used.
    pub(super) colour: bool,
}

impl Theme {
    pub(super) fn title(self) -> Style {
        self.in_colour(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    pub(super) fn frame(self) -> Style {
        self.in_colour(Color::DarkGray)
    }

    pub(super) fn dim(self) -> Style {
        if self.colour { self.in_colour(Color::Gray) } else { Style::new().add_modifier(Modifier::DIM) }
    }

    pub(super) fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn good(self) -> Style {
        self.in_colour(Color::Green)
    }

    pub(super) fn warning(self) -> Style {
        self.in_colour(Color::Yellow)
    }

    pub(super) fn bad(self) -> Style {
        self.in_colour(Color::LightRed).add_modifier(Modifier::BOLD)
    }

    pub(super) fn sparkline(self) -> Style {
        self.in_colour(Color::LightBlue)
    }

    pub(super) fn selected_row(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// The style of a worker's state.
    pub(super) fn state(self, state: &str) -> Style {
        match state {
            "up" => self.good(),
            "broken" | "killed" => self.bad(),
            "" => self.dim(),
            _ => self.warning(),
        }
    }

    /// The style of a share between 0 and 1.
    pub(super) fn fullness(self, fraction: f64) -> Style {
        match fraction {
            fraction if fraction >= 0.9 => self.bad(),
            fraction if fraction >= 0.6 => self.warning(),
            _ => self.good(),
        }
    }

    fn in_colour(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }
}

/// The filled and the empty part of a bar with this many cells.
pub(super) fn bar(fraction: f64, cells: usize) -> (String, String) {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let fraction = if fraction.is_finite() { fraction.clamp(0.0, 1.0) } else { 0.0 };
    // Anything above zero is visible.
    let eighths = (fraction * cells as f64 * 8.0).ceil() as usize;
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

pub(super) fn or_dash(value: Option<impl ToString>) -> String {
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
    fn a_bar_always_has_its_full_width() {
        for fraction in [-1.0, 0.0, 0.001, 0.3, 0.999, 1.0, 7.0, f64::NAN, f64::INFINITY] {
            let (full, empty) = bar(fraction, 10);
            assert_eq!(full.chars().count() + empty.chars().count(), 10, "{fraction}");
        }
        assert_eq!(bar(0.001, 2), ("▏".to_owned(), "·".to_owned()));
        assert_eq!(bar(0.75, 2), ("█▌".to_owned(), String::new()));
    }
}
