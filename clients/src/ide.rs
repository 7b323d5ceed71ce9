//! `ide`: the settings with which an IDE starts `stdio-bus connect`.
//!
//! All settings contain the same three things: a name, a command and its arguments.

mod settings;

use std::env;
use std::fmt::Write;
use std::path::PathBuf;

use serde_json::Value;

pub use settings::{Change, write};

/// An IDE or another ACP client.
pub struct Ide {
    pub name: &'static str,
    pub title: &'static str,
    /// The file that the settings are written to.
    pub location: &'static str,
    /// The same file below the home folder, if it is JSON, which a program may change.
    file: Option<&'static str>,
    render: fn(&Command) -> String,
}

/// The command that the IDE starts.
pub struct Command {
    /// An absolute path: an IDE started from a desktop has another PATH than a shell.
    pub program: String,
    pub args: Vec<String>,
    /// The name that the user sees in the IDE.
    pub title: String,
    /// The settings are called after it, so that those of several pools stand side by side.
    pub pool: Option<String>,
}

impl Command {
    /// What the settings are called where a name is no title: `BASE`, with the pool behind it.
    fn name(&self, base: &str, separator: char) -> String {
        // In Lisp the name is a word without quotes.
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { separator };
        match &self.pool {
            Some(pool) => format!("{base}{separator}{}", pool.chars().map(plain).collect::<String>()),
            None => base.to_owned(),
        }
    }
}

pub const IDES: [Ide; 11] = [
    Ide {
        name: "zed",
        title: "Zed",
        location: "~/.config/zed/settings.json",
        file: Some(".config/zed/settings.json"),
        render: zed,
    },
    Ide {
        name: "jetbrains",
        title: "JetBrains IDEs",
        location: "~/.jetbrains/acp.json",
        file: Some(".jetbrains/acp.json"),
        render: jetbrains,
    },
    Ide {
        name: "vscode",
        title: "VS Code, extension ACP Client",
        location: "settings.json of VS Code (Preferences: Open User Settings (JSON))",
        file: Some(if cfg!(target_os = "macos") {
            "Library/Application Support/Code/User/settings.json"
        } else {
            ".config/Code/User/settings.json"
        }),
        render: vscode,
    },
    Ide {
        name: "codecompanion",
        title: "neovim, CodeCompanion",
        location: "the setup of codecompanion.nvim",
        file: None,
        render: codecompanion,
    },
    Ide {
        name: "avante",
        title: "neovim, avante",
        location: "the opts of avante.nvim",
        file: None,
        render: lua_provider,
    },
    Ide {
        name: "agentic",
        title: "neovim, agentic",
        location: "the opts of agentic.nvim",
        file: None,
        render: lua_provider,
    },
    Ide {
        name: "agent-shell",
        title: "Emacs, agent-shell",
        location: "your init.el",
        file: None,
        render: agent_shell,
    },
    Ide {
        name: "acpx",
        title: "acpx",
        location: "~/.acpx/config.json",
        file: Some(".acpx/config.json"),
        render: acpx,
    },
    Ide {
        name: "qtcreator",
        title: "Qt Creator",
        location: "Preferences > AI > ACP Servers > Add, with the template <Custom>",
        file: None,
        render: qt_creator,
    },
    Ide { name: "toad", title: "toad", location: "a terminal, as a command", file: None, render: toad },
    Ide {
        name: "marimo",
        title: "Marimo",
        location: "a terminal, as a command that Marimo connects to",
        file: None,
        render: marimo,
    },
];

/// The agents that Marimo knows, and the ports at which it looks for them.
const MARIMO_PORTS: [(&str, u16); 5] =
    [("claude", 3017), ("gemini", 3019), ("codex", 3021), ("opencode", 3023), ("cursor", 3025)];

pub fn by_name(name: &str) -> Option<&'static Ide> {
    IDES.iter().find(|ide| ide.name == name)
}

/// Lists the IDEs, one per line.
pub fn list() -> String {
    let mut text = String::new();
    for Ide { name, title, location, .. } in &IDES {
        let _ = writeln!(text, "{name:<14} {title:<30} {location}");
    }
    text
}

impl Ide {
    /// The settings, ready to be pasted.
    pub fn snippet(&self, command: &Command) -> String {
        (self.render)(command)
    }

    /// The settings file of this user, which may not exist yet.
    pub fn settings_file(&self) -> Result<PathBuf, String> {
        let Some(file) = self.file else {
            return Err(format!(
                "the settings of {} are in no file that can be merged: `stdio-bus ide {}` prints what to add to {}",
                self.title, self.name, self.location
            ));
        };
        let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        // Where the variable is set, Zed and VS Code look there.
        let of_system = (!cfg!(target_os = "macos")).then(|| absolute("XDG_CONFIG_HOME")).flatten();
        if let (Some(folder), Some(below)) = (of_system, file.strip_prefix(".config/")) {
            return Ok(folder.join(below));
        }
        Ok(absolute("HOME").ok_or("HOME must be set")?.join(file))
    }
}

fn zed(command: &Command) -> String {
    let Command { program, title, .. } = command;
    let server = format!(
        r#"{}: {{
      "type": "custom",
      "command": {},
      "args": [{}],
      "env": {{}}
    }}"#,
        quoted(title),
        quoted(program),
        quoted_args(command, ", ")
    );
    format!("{{\n  \"agent_servers\": {{\n    {server}\n  }}\n}}\n")
}

fn jetbrains(command: &Command) -> String {
    zed(command).replace("      \"type\": \"custom\",\n", "")
}

fn vscode(command: &Command) -> String {
    let Command { program, title, .. } = command;
    format!(
        r#"{{
  "acp.agents": {{
    {}: {{ "command": {}, "args": [{}], "env": {{}} }}
  }}
}}
"#,
        quoted(title),
        quoted(program),
        quoted_args(command, ", ")
    )
}

fn codecompanion(command: &Command) -> String {
    let name = quoted(&command.name("stdio_bus", '_'));
    format!(
        r#"require("codecompanion").setup({{
  adapters = {{
    acp = {{
      [{name}] = function()
        return require("codecompanion.adapters").extend("goose", {{
          name = {name},
          formatted_name = {},
          commands = {{ default = {{ {}, {} }} }},
        }})
      end,
    }},
  }},
  interactions = {{ chat = {{ adapter = {name} }} }},
}})
"#,
        quoted(&command.title),
        quoted(&command.program),
        quoted_args(command, ", ")
    )
}

fn lua_provider(command: &Command) -> String {
    let name = quoted(&command.name("stdio-bus", '-'));
    format!(
        r#"{{
  provider = {name},
  acp_providers = {{
    [{name}] = {{
      name = {},
      command = {},
      args = {{ {} }},
      env = {{}},
    }},
  }},
}}
"#,
        quoted(&command.title),
        quoted(&command.program),
        quoted_args(command, ", ")
    )
}

fn agent_shell(command: &Command) -> String {
    let name = command.name("stdio-bus", '-');
    let title = quoted(&command.title);
    let prompt = quoted(&format!("{}> ", command.title));
    format!(
        r#"(with-eval-after-load 'agent-shell
  (add-to-list 'agent-shell-agent-configs
               (agent-shell-make-agent-config
                :identifier '{name}
                :mode-line-name {title}
                :buffer-name {title}
                :shell-prompt {prompt}
                :shell-prompt-regexp (regexp-quote {prompt})
                :client-maker (lambda (buffer)
                                (acp-make-client
                                 :command {}
                                 :command-params '({})
                                 :context-buffer buffer)))))
"#,
        quoted(&command.program),
        quoted_args(command, " ")
    )
}

fn acpx(command: &Command) -> String {
    let line = std::iter::once(&command.program).chain(&command.args).map(|word| shell_quoted(word));
    let line = line.collect::<Vec<_>>().join(" ");
    // acpx makes small letters of the name that it is told.
    let name = quoted(&command.name("bus", '-').to_lowercase());
    format!("{{\n  \"agents\": {{\n    {name}: {{ \"command\": {} }}\n  }}\n}}\n", quoted(&line))
}

/// The fields of its dialog.
fn qt_creator(command: &Command) -> String {
    let args: Vec<String> = command.args.iter().map(|word| posix_quoted(word)).collect();
    format!(
        "Name:       {}\nExecutable: {}\nArguments:  {}\n",
        command.title,
        command.program,
        args.join(" ")
    )
}

/// The command line, as a single argument.
fn as_argument(command: &Command) -> String {
    let words = std::iter::once(&command.program).chain(&command.args).map(|word| posix_quoted(word));
    posix_quoted(&words.collect::<Vec<_>>().join(" "))
}

fn toad(command: &Command) -> String {
    format!("toad acp {} --title {}\n", as_argument(command), posix_quoted(&command.title))
}

/// Marimo has a fixed list of agents, so the pool takes the place of the one of its name, else of the first.
fn marimo(command: &Command) -> String {
    let pool = command.pool.as_deref().unwrap_or_default();
    let (agent, port) = MARIMO_PORTS.into_iter().find(|(agent, _)| *agent == pool).unwrap_or(MARIMO_PORTS[0]);
    let line = as_argument(command);
    format!("# in Marimo's panel of agents this is {agent}\nnpx stdio-to-ws {line} --port {port}\n")
}

/// The arguments, each in quotes.
fn quoted_args(command: &Command, separator: &str) -> String {
    command.args.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(separator)
}

/// JSON, Lua and Lisp share this syntax, except for control characters.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A word as a shell reads it, and whatever splits a line as a shell does.
fn posix_quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else if !word.contains('\'') {
        format!("'{word}'")
    } else if !word.contains(['"', '$', '`', '\\', '!']) {
        format!("\"{word}\"")
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// acpx splits a command line as a shell does.
fn shell_quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,[]".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { quoted(word) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        let args = ["connect", "--config", "/home/me/my \"bus\".json", "--pool", "claude"];
        Command {
            program: "/opt/stdio bus".to_owned(),
            args: args.map(str::to_owned).to_vec(),
            title: "stdio Bus (claude)".to_owned(),
            pool: Some("claude".to_owned()),
        }
    }

    #[test]
    fn json_settings_parse_and_start_the_command() {
        let expected = serde_json::json!(command().args);
        for (name, path) in [
            ("zed", "/agent_servers/stdio Bus (claude)"),
            ("jetbrains", "/agent_servers/stdio Bus (claude)"),
            ("vscode", "/acp.agents/stdio Bus (claude)"),
        ] {
            let settings: Value = by_name(name).unwrap().snippet(&command()).parse().unwrap();
            let server = settings.pointer(path).unwrap();
            assert_eq!(
                (&server["command"], &server["args"]),
                (&"/opt/stdio bus".into(), &expected),
                "{name}"
            );
        }
        let settings: Value = by_name("acpx").unwrap().snippet(&command()).parse().unwrap();
        let line = r#""/opt/stdio bus" connect --config "/home/me/my \"bus\".json" --pool claude"#;
        assert_eq!(settings["agents"]["bus-claude"]["command"], line);
    }

    #[test]
    fn other_settings_quote_every_argument() {
        for name in ["codecompanion", "avante", "agentic", "agent-shell"] {
            let text = by_name(name).unwrap().snippet(&command());
            for word in command().args.iter().chain([&command().program]) {
                assert!(text.contains(&quoted(word)), "{name}: {word}: {text}");
            }
            let count = |letters: [char; 2]| letters.map(|letter| text.matches(letter).count());
            for pair in [['(', ')'], ['{', '}'], ['[', ']']] {
                let [open, close] = count(pair);
                assert_eq!(open, close, "{name}: {text}");
            }
        }
    }

    #[test]
    fn commands_are_read_by_a_shell_as_they_were_meant() {
        let snippet = |name: &str, command: &Command| by_name(name).unwrap().snippet(command);
        let args = ["connect", "--config", "/home/me/bus.json"].map(str::to_owned).to_vec();
        let plain = Command { program: "/bin/bus".to_owned(), args, ..command() };
        let line = "/bin/bus connect --config /home/me/bus.json";
        assert_eq!(snippet("toad", &plain), format!("toad acp '{line}' --title 'stdio Bus (claude)'\n"));
        assert!(snippet("marimo", &plain).ends_with(&format!("\nnpx stdio-to-ws '{line}' --port 3017\n")));
        let codex = Command { pool: Some("codex".to_owned()), ..plain };
        assert!(snippet("marimo", &codex).ends_with("--port 3021\n"));
        assert!(
            snippet("marimo", &Command { pool: Some("own".to_owned()), ..codex }).contains(" is claude\n")
        );
        // The shell reads what it is given, and the program that is started reads that once more.
        let read = |script: &str| {
            let out = std::process::Command::new("sh").args(["-c", script]).output().unwrap();
            String::from_utf8(out.stdout).unwrap()
        };
        let once = read(&format!("printf %s {}", as_argument(&command())));
        let words = read(&format!("printf '%s\\n' {once}"));
        let expected: Vec<String> = std::iter::once(command().program).chain(command().args).collect();
        assert_eq!(words.lines().collect::<Vec<_>>(), expected);
        for odd in ["", "it's", "a\"'b$c`d\\e", "$HOME", "a b"] {
            assert_eq!(read(&format!("printf %s {}", posix_quoted(odd))), odd);
        }
        assert_eq!(
            snippet("qtcreator", &command()),
            "Name:       stdio Bus (claude)\nExecutable: /opt/stdio bus\n\
             Arguments:  connect --config '/home/me/my \"bus\".json' --pool claude\n"
        );
    }

    #[test]
    fn each_pool_has_settings_of_its_own_name() {
        for (ide, of_pool, of_none) in [
            ("codecompanion", "[\"stdio_bus_claude\"] = ", "[\"stdio_bus\"] = "),
            ("avante", "[\"stdio-bus-claude\"] = ", "[\"stdio-bus\"] = "),
            ("agentic", "provider = \"stdio-bus-claude\"", "provider = \"stdio-bus\""),
            ("agent-shell", ":identifier 'stdio-bus-claude\n", ":identifier 'stdio-bus\n"),
            ("acpx", "\"bus-claude\": ", "\"bus\": "),
        ] {
            let ide = by_name(ide).unwrap();
            assert!(ide.snippet(&command()).contains(of_pool), "{}", ide.name);
            assert!(ide.snippet(&Command { pool: None, ..command() }).contains(of_none), "{}", ide.name);
            let odd = Command { pool: Some("a) (b".to_owned()), ..command() };
            assert!(!ide.snippet(&odd).contains("a) (b"), "{}", ide.name);
        }
    }

    #[test]
    fn the_list_has_one_line_per_ide() {
        assert_eq!(list().lines().count(), IDES.len());
        assert!(list().starts_with("zed "), "{}", list());
        assert!(by_name("notepad").is_none());
    }
}
