//! Links that open the console.

use qrcode::QrCode;
use qrcode::render::unicode::Dense1x2;

/// The link to a door with a code. The code is behind the `#`, so that no browser sends it and no log has it.
pub fn link(at: &str, code: &str) -> String {
    format!("{at}/#c={code}")
}

/// The link as a QR code for a terminal with a dark background. `None`: it is too long.
pub fn qr(link: &str) -> Option<String> {
    let code = QrCode::new(link).ok()?;
    let drawn = code.render::<Dense1x2>().dark_color(Dense1x2::Light).light_color(Dense1x2::Dark).build();
    Some(drawn + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_has_its_code_in_the_fragment_and_fits_a_terminal() {
        let link = link("http://127.0.0.1:9001", &"x".repeat(32));
        assert!(link.starts_with("http://127.0.0.1:9001/#c=x"));
        let drawn = qr(&link).unwrap();
        assert!(drawn.lines().count() < 24 && drawn.lines().all(|line| line.chars().count() < 50), "{drawn}");
    }
}
