//! Resolves what bus.json refers to: relative paths, `~/` and `${VAR}`.
//!
//! The environment and the token are passed in as functions, so that tests can replace them. No message holds the
//! value of a variable.

use std::env::{self, VarError};
use std::path::{Path, PathBuf};

use super::file::read_token;
use crate::process::command::DEFAULT_PATH;

/// What references are resolved against: the folder of bus.json, and the environment.
#[derive(Clone, Copy)]
pub(super) struct Resolver<'a> {
    /// The folder of bus.json, an absolute path.
    pub(super) folder: &'a Path,
    pub(super) variable: &'a dyn Fn(&str) -> Result<String, VarError>,
    /// Reads the token in this file; the error says why it cannot be used.
    pub(super) token: &'a dyn Fn(&Path) -> Result<String, String>,
}

impl<'a> Resolver<'a> {
    /// Uses the environment and the disk of this machine.
    pub(super) fn of_machine(folder: &'a Path) -> Resolver<'a> {
        Resolver { folder, variable: &variable_or_path, token: &read_token }
    }
}

/// A PATH that is not set is the one in which programs are looked for then.
fn variable_or_path(name: &str) -> Result<String, VarError> {
    match env::var(name) {
        Err(VarError::NotPresent) if name == "PATH" => Ok(DEFAULT_PATH.to_owned()),
        found => found,
    }
}

impl Resolver<'_> {
    /// The absolute path that `text` names.
    pub(super) fn path(&self, text: &str) -> Result<PathBuf, String> {
        if text.contains('\0') {
            return Err("must not hold a NUL character".to_owned());
        }
        if text.is_empty() {
            return Err("must not be empty".to_owned());
        }
        let path = match text.strip_prefix("~/") {
            Some(rest) => Path::new(&self.value_of("HOME")?).join(rest),
            None if text == "~" => PathBuf::from(self.value_of("HOME")?),
            None => PathBuf::from(text),
        };
        // Collecting the components drops the dot of `./agent`.
        Ok(self.folder.join(path).components().collect())
    }

    /// Replaces each `${NAME}` in `text` by the variable of that name. `$${` stands for `${`.
    pub(super) fn expand(&self, text: &str) -> Result<String, String> {
        let mut expanded = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            if let Some(before) = rest[..at].strip_suffix('$') {
                expanded.push_str(before);
                expanded.push_str("${");
                rest = &rest[at + 2..];
                continue;
            }
            expanded.push_str(&rest[..at]);
            let Some(length) = rest[at + 2..].find('}') else {
                return Err("\"${\" without its \"}\" (a plain \"${\" is written \"$${\")".to_owned());
            };
            let name = &rest[at + 2..at + 2 + length];
            if !is_variable_name(name) {
                return Err("\"${...}\" must hold the name of a variable".to_owned());
            }
            expanded.push_str(&self.value_of(name)?);
            rest = &rest[at + 2 + length + 1..];
        }
        expanded.push_str(rest);
        Ok(expanded)
    }

    fn value_of(&self, name: &str) -> Result<String, String> {
        (self.variable)(name).map_err(|error| match error {
            VarError::NotPresent => {
                format!("the environment variable {name} is not set; set it where the bus is started")
            }
            VarError::NotUnicode(_) => format!("the environment variable {name} is not UTF-8"),
        })
    }
}

fn is_variable_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str) -> Result<String, VarError> {
        match name {
            "HOME" => Ok("/home/ann".to_owned()),
            "KEY" => Ok("s3cret".to_owned()),
            "ODD" => Ok("${KEY}".to_owned()),
            "LATIN" => Err(VarError::NotUnicode("s3cret".into())),
            _ => Err(VarError::NotPresent),
        }
    }

    fn resolver() -> Resolver<'static> {
        let token = &|_: &Path| Err("there is none".to_owned());
        Resolver { folder: Path::new("/srv/bus"), variable: &variable, token }
    }

    #[test]
    fn every_path_becomes_absolute() {
        let cases = [
            ("agent", "/srv/bus/agent"),
            ("./bin/agent", "/srv/bus/bin/agent"),
            ("../agent", "/srv/bus/../agent"),
            (".", "/srv/bus"),
            ("/opt/agent", "/opt/agent"),
            ("~/bin/agent", "/home/ann/bin/agent"),
            ("~", "/home/ann"),
            ("~ben/x", "/srv/bus/~ben/x"),
        ];
        for (text, path) in cases {
            assert_eq!(resolver().path(text), Ok(PathBuf::from(path)), "{text}");
        }
        assert_eq!(resolver().path(""), Err("must not be empty".to_owned()));
        assert_eq!(resolver().path("a\0b"), Err("must not hold a NUL character".to_owned()));
        let homeless = Resolver { variable: &|_| Err(VarError::NotPresent), ..resolver() };
        assert_eq!(
            homeless.path("~/x"),
            Err("the environment variable HOME is not set; set it where the bus is started".to_owned())
        );
    }

    #[test]
    fn only_a_braced_name_is_replaced_and_only_once() {
        let cases = [
            ("plain", "plain"),
            ("$KEY $ $$ {KEY}", "$KEY $ $$ {KEY}"),
            ("${KEY}", "s3cret"),
            ("a${KEY}b${KEY}", "as3cretbs3cret"),
            ("${ODD}", "${KEY}"),
            ("$${KEY}", "${KEY}"),
            ("$$${KEY}", "$${KEY}"),
            ("Zoë ${KEY} é", "Zoë s3cret é"),
        ];
        for (text, expanded) in cases {
            assert_eq!(resolver().expand(text).as_deref(), Ok(expanded), "{text}");
        }
    }

    #[test]
    fn a_bad_reference_is_reported_without_its_value() {
        let cases = [
            ("${GONE}", "the environment variable GONE is not set; set it where the bus is started"),
            ("${LATIN}", "the environment variable LATIN is not UTF-8"),
            ("${}", "\"${...}\" must hold the name of a variable"),
            ("${s3cret with spaces}", "\"${...}\" must hold the name of a variable"),
            ("s3cret${KEY", "\"${\" without its \"}\" (a plain \"${\" is written \"$${\")"),
        ];
        for (text, message) in cases {
            assert_eq!(resolver().expand(text), Err(message.to_owned()), "{text}");
        }
    }
}
