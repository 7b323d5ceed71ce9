//! Finds a model provider of the user's own in the configuration of a CLI. A CLI with such a provider needs no login.

use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::cli::runtimes::OwnProvider;

/// Whether the CLI's configuration names a provider other than that of the CLI's maker.
pub(super) fn is_used(own: &OwnProvider) -> bool {
    let folder = env::var_os(&own.folder_env).map(PathBuf::from);
    let folder = folder.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(&own.folder)));
    let text = folder.and_then(|folder| fs::read_to_string(folder.join(&own.file)).ok());
    text.is_some_and(|text| is_named(own, &text))
}

/// Reads the key at the top of a TOML file, which comes before the first table.
fn is_named(own: &OwnProvider, text: &str) -> bool {
    let top = text.lines().map(str::trim).take_while(|line| !line.starts_with('['));
    let mut pairs = top.filter_map(|line| line.split_once('='));
    let Some((_, value)) = pairs.find(|(key, _)| key.trim() == own.key) else { return false };
    let named =
        value.trim_start().trim_start_matches(['"', '\'']).split(['"', '\'']).next().unwrap_or_default();
    !named.is_empty() && named != own.default
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_is_ones_own_if_it_is_named_at_the_top_and_is_another_one() {
        let own = OwnProvider {
            folder_env: "CODEX_HOME".to_owned(),
            folder: ".codex".to_owned(),
            file: "config.toml".to_owned(),
            key: "model_provider".to_owned(),
            default: "openai".to_owned(),
        };
        for (text, is_own) in [
            ("model = \"x\"\nmodel_provider = \"local\" # mine\n[model_providers.local]", true),
            ("model_provider='local'", true),
            ("model_provider = \"openai\"", false),
            ("[profiles.x]\nmodel_provider = \"local\"", false),
            ("model_providers = \"local\"", false),
            ("model_provider =", false),
            ("", false),
        ] {
            assert_eq!(is_named(&own, text), is_own, "{text}");
        }
    }
}
