//! The index of the registry, and the command that an entry of it stands for.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde_json::Value;

/// What is read of the index. Unknown keys, and entries that cannot be read, are left out.
#[derive(Debug, Default)]
pub struct Index {
    pub entries: Vec<Entry>,
    /// The ids of entries that cannot be read, with the reason.
    pub unreadable: Vec<String>,
    /// Agents that the registry warns of, with the reason.
    pub quarantined: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
pub struct Entry {
    pub id: String,
    pub name: String,
    pub version: String,
    pub description: String,
    #[serde(default)]
    pub repository: Option<String>,
    #[serde(default)]
    pub website: Option<String>,
    #[serde(default)]
    pub license: Option<String>,
    distribution: Distribution,
}

#[derive(Debug, Deserialize)]
struct Distribution {
    npx: Option<Package>,
    uvx: Option<Package>,
    /// By platform.
    #[serde(default)]
    binary: BTreeMap<String, Binary>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Package {
    pub package: String,
    /// The program of the package, if it is not called like it.
    cmd: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Binary {
    pub archive: String,
    /// The program inside of the archive.
    pub cmd: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    pub sha256: Option<String>,
}

/// How an agent is distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Npx,
    Uvx,
    Binary,
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Kind::Npx => "npx",
            Kind::Uvx => "uvx",
            Kind::Binary => "binary",
        })
    }
}

/// What a pool runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub program: String,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
}

impl Index {
    pub fn parse(text: &str) -> Result<Index, String> {
        let file: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let agents = file["agents"].as_array().ok_or("there is no list of `agents` in it")?;
        let mut index = Index::default();
        for agent in agents {
            let entry = serde_json::from_value::<Entry>(agent.clone()).map_err(|error| error.to_string());
            match entry.and_then(Entry::checked) {
                Ok(entry) => index.entries.push(entry),
                Err(why) => {
                    let id = agent["id"].as_str().unwrap_or("an entry without an id");
                    index.unreadable.push(format!("{id}: {why}"));
                }
            }
        }
        index.quarantine(&file["quarantine"]);
        Ok(index)
    }

    /// Takes a list of agents that the registry warns of: `{ID: REASON}`.
    pub fn quarantine(&mut self, list: &Value) {
        let pairs = list.as_object().into_iter().flatten();
        self.quarantined.extend(pairs.map(|(id, why)| {
            let why = why.as_str().map_or_else(|| why.to_string(), str::to_owned);
            (id.clone(), why)
        }));
    }

    pub fn find(&self, id: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.id == id)
    }

    /// Ids that the user may have meant.
    pub fn similar(&self, id: &str) -> Vec<&str> {
        let wanted = id.to_lowercase();
        let is_similar = |entry: &&Entry| {
            entry.id.contains(&wanted)
                || wanted.contains(&entry.id)
                || entry.name.to_lowercase().contains(&wanted)
        };
        self.entries.iter().filter(is_similar).map(|entry| entry.id.as_str()).collect()
    }
}

impl Entry {
    /// An id becomes the name of a pool and of a folder, and a version that of a folder.
    fn checked(self) -> Result<Entry, String> {
        let mut letters = self.id.chars();
        let is_id = letters.next().is_some_and(|first| first.is_ascii_lowercase())
            && letters.all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-');
        if !is_id || self.id.len() > 64 {
            return Err("its id is not made of small letters, digits and dashes".to_owned());
        }
        let is_version_letter = |letter: char| letter.is_ascii_alphanumeric() || ".-+_".contains(letter);
        let is_version = !self.version.is_empty()
            && self.version.len() <= 64
            && self.version.chars().all(is_version_letter)
            && !self.version.starts_with('.');
        if !is_version {
            return Err("its version is not one".to_owned());
        }
        Ok(self)
    }

    /// The kinds that this machine could run, the one that is preferred first: packages have a pinned version and are
    /// checked by their installer.
    pub fn kinds(&self) -> Vec<Kind> {
        let Distribution { npx, uvx, .. } = &self.distribution;
        let all = [
            npx.as_ref().map(|_| Kind::Npx),
            uvx.as_ref().map(|_| Kind::Uvx),
            self.binary().map(|_| Kind::Binary),
        ];
        all.into_iter().flatten().collect()
    }

    pub fn npx(&self) -> Option<&Package> {
        self.distribution.npx.as_ref()
    }

    pub fn uvx(&self) -> Option<&Package> {
        self.distribution.uvx.as_ref()
    }

    /// The archive for this machine.
    pub fn binary(&self) -> Option<&Binary> {
        self.distribution.binary.get(&platform())
    }
}

impl Package {
    /// Fails with the reason if the package could be another one tomorrow, or if it or its program is an option of the
    /// installer.
    pub fn check_pinned(&self, kind: Kind) -> Result<(), String> {
        let name = self.package.as_str();
        if name.starts_with('-') || name.contains(char::is_whitespace) {
            return Err(format!("{name:?} is no name of a package"));
        }
        if let Some(cmd) = self.cmd.as_deref().filter(|cmd| cmd.is_empty() || cmd.starts_with('-')) {
            return Err(format!("{cmd:?} is no name of a program"));
        }
        // A scope begins with `@` as well.
        let rest = name.get(1..).unwrap_or_default();
        let at = rest.rsplit_once('@');
        let is_pinned = match kind {
            Kind::Uvx => rest.split_once("==").or(at).is_some_and(|(_, version)| is_python_version(version)),
            Kind::Npx | Kind::Binary => at.is_some_and(|(_, version)| is_npm_version(version)),
        };
        if !is_pinned {
            return Err(format!("{name} names no exact version, so it can be another program tomorrow"));
        }
        Ok(())
    }

    pub fn npx(&self) -> Launch {
        self.launch("npx", &["-y"], "--package")
    }

    pub fn uvx(&self) -> Launch {
        self.launch("uvx", &[], "--from")
    }

    fn launch(&self, program: &str, first: &[&str], from: &str) -> Launch {
        let mut args: Vec<String> = first.iter().map(|&word| word.to_owned()).collect();
        match &self.cmd {
            Some(cmd) => args.extend([from.to_owned(), self.package.clone(), cmd.clone()]),
            None => args.push(self.package.clone()),
        }
        args.extend(self.args.iter().cloned());
        Launch { program: program.to_owned(), args, env: self.env.clone() }
    }
}

impl Binary {
    /// `program` is where it was installed.
    pub fn launch(&self, program: String) -> Launch {
        Launch { program, args: self.args.clone(), env: self.env.clone() }
    }
}

/// Whether it is one version, as in `1.2.3-beta.1+5`. With fewer numbers, or an `x`, it would be a range.
fn is_npm_version(version: &str) -> bool {
    let (numbers, more) = version.split_at(version.find(['-', '+']).unwrap_or(version.len()));
    let is_more = |letter: char| letter.is_ascii_alphanumeric() || ".-+".contains(letter);
    numbers.split('.').count() == 3
        && numbers.split('.').all(is_number)
        && more.chars().all(is_more)
        && more.len() != 1
}

/// Whether it is one version, as in `0.4`, `2.1.0rc1` or `1.0.post2+local`. `1.*` would be a range.
fn is_python_version(version: &str) -> bool {
    const WORDS: [&str; 12] =
        ["a", "b", "c", "rc", "alpha", "beta", "pre", "preview", "post", "rev", "r", "dev"];
    let (public, local) = version.split_once('+').unwrap_or((version, "0"));
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "._-!".contains(letter);
    let mut words =
        public.split(|letter: char| !letter.is_ascii_alphabetic()).filter(|word| !word.is_empty());
    public.starts_with(|first: char| first.is_ascii_digit())
        && [public, local].iter().all(|part| !part.is_empty() && part.chars().all(is_letter))
        && words.all(|word| WORDS.contains(&word.to_ascii_lowercase().as_str()))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// As the registry spells it: `linux-x86_64`.
pub(super) fn platform() -> String {
    let system = if cfg!(target_os = "macos") { "darwin" } else { std::env::consts::OS };
    format!("{system}-{}", std::env::consts::ARCH)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(more: &Value) -> Value {
        let mut entry =
            json!({ "id": "an-agent", "name": "An Agent", "version": "1.2.3", "description": "d" });
        for (key, value) in more.as_object().unwrap() {
            entry[key] = value.clone();
        }
        entry
    }

    fn one(more: &Value) -> Entry {
        let index = Index::parse(&json!({ "agents": [entry(more)] }).to_string()).unwrap();
        assert!(index.unreadable.is_empty(), "{:?}", index.unreadable);
        index.entries.into_iter().next().unwrap()
    }

    fn line(launch: &Launch) -> String {
        format!("{} {}", launch.program, launch.args.join(" "))
    }

    #[test]
    fn entries_become_commands() {
        let both = one(&json!({ "distribution": {
            "npx": { "package": "@scope/p@1.2.3", "args": ["--acp"], "env": { "A": "1" } },
            "uvx": { "package": "p==1.2.3", "cmd": "p-acp" },
            "binary": { platform(): { "archive": "https://x/y.zip", "cmd": "./y", "args": ["acp"] } },
        } }));
        assert_eq!(both.kinds(), [Kind::Npx, Kind::Uvx, Kind::Binary]);
        let npx = both.npx().unwrap().npx();
        assert_eq!((line(&npx).as_str(), npx.env["A"].as_str()), ("npx -y @scope/p@1.2.3 --acp", "1"));
        assert_eq!(line(&both.uvx().unwrap().uvx()), "uvx --from p==1.2.3 p-acp");
        assert_eq!(line(&both.binary().unwrap().launch("/a/y".to_owned())), "/a/y acp");
        let elsewhere =
            json!({ "distribution": { "binary": { "plan9-mips": { "archive": "x", "cmd": "x" } } } });
        assert_eq!(one(&elsewhere).kinds(), []);
    }

    #[test]
    fn only_a_package_with_a_version_is_pinned() {
        let check = |package: &str, kind| {
            let entry = one(&json!({ "distribution": { "npx": { "package": package } } }));
            entry.npx().unwrap().check_pinned(kind)
        };
        for package in ["a@1.0.0", "@s/a@1.2.3-beta", "a@2026.8.31", "a@1.2.3-rc.1+5", "a@1.2.3+b"] {
            assert_eq!(check(package, Kind::Npx), Ok(()), "{package}");
        }
        for package in
            ["a", "@s/a", "a@latest", "-a@1.0.0", "a @1.0.0", "", "a@^1.0.0", "a@1", "a@1.x", "a@1.2.x"]
        {
            assert!(check(package, Kind::Npx).is_err(), "{package}");
        }
        for package in ["a@1||2", "a@1.0.0||2", "a@1.2", "a@1.2.3-", "a@1.2.3.4", "a@1..3", "a==1.0.0"] {
            assert!(check(package, Kind::Npx).is_err(), "{package}");
        }
        for package in
            ["a==0.1", "a[acp]==2", "a@0.5.10", "a==2.1.0rc1", "a==1!2.0.post1.dev3", "a==1.0+cpu.2"]
        {
            assert_eq!(check(package, Kind::Uvx), Ok(()), "{package}");
        }
        for package in
            ["a", "a@latest", "a==1.*", "a==1.x", "a>=1.0", "a==1.0,<2", "a===1", "a==1.0+", "a@", "-a==1"]
        {
            assert!(check(package, Kind::Uvx).is_err(), "{package}");
        }
    }

    #[test]
    fn no_program_is_an_option_of_the_installer() {
        for (cmd, is_fine) in [("a-acp", true), ("--call=sh", false), ("-c", false), ("", false)] {
            let entry = one(&json!({ "distribution": { "npx": { "package": "a@1.0.0", "cmd": cmd } } }));
            assert_eq!(entry.npx().unwrap().check_pinned(Kind::Npx).is_ok(), is_fine, "{cmd}");
        }
    }

    #[test]
    fn what_cannot_be_read_hides_nothing_else() {
        let good = entry(&json!({ "distribution": { "npx": { "package": "a@1" } }, "new": { "key": 1 } }));
        let bad_id = entry(&json!({ "id": "../x", "distribution": {} }));
        let bad_version = entry(&json!({ "version": "../1", "distribution": {} }));
        let file = json!({ "version": "1.0.0", "agents": [good, bad_id, bad_version, { "id": "short" }, 7],
            "extensions": [], "quarantine": { "an-agent": "it has a postinstall script" } });
        let index = Index::parse(&file.to_string()).unwrap();
        assert_eq!((index.entries.len(), index.unreadable.len()), (1, 4));
        assert_eq!(index.quarantined["an-agent"], "it has a postinstall script");
        assert_eq!((index.similar("agent"), index.find("agent").is_some()), (vec!["an-agent"], false));
        assert!(Index::parse("{}").unwrap_err().contains("agents"));
    }
}
