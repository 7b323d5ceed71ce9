//! A command that the agent asks `run --hands` to run: how it is read, shown to the user, and started.
//!
//! The user allows what is shown. So the question has the folder and the variables too, and variables that decide what
//! really runs are asked about on their own.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

use rpc::text::quoted;
use serde_json::Value;

/// How much of a value is shown.
const SHOWN_CHARS: usize = 200;
/// How many harmless variables are shown.
const SHOWN_VARIABLES: usize = 20;

#[derive(Debug)]
pub(super) struct CommandRequest {
    program: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    cwd: PathBuf,
    /// How many bytes of the output are kept.
    pub(super) output_limit: Option<u64>,
}

impl CommandRequest {
    /// Reads the params of `terminal/create`. The error says what is wrong with them.
    pub(super) fn parse(params: &Value, cwd: PathBuf) -> Result<CommandRequest, String> {
        let program = params["command"].as_str().unwrap_or_default().to_owned();
        let args = params["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let mut args: Vec<_> = args.map(str::to_owned).collect();
        // Agents that pass no arguments often mean a shell command line.
        let (program, args) = if args.is_empty() && program.contains(char::is_whitespace) {
            args.extend(["-c".to_owned(), program]);
            ("sh".to_owned(), args)
        } else {
            (program, args)
        };
        let pairs = params["env"].as_array().into_iter().flatten();
        let pairs = pairs.filter_map(|pair| Some((pair["name"].as_str()?, pair["value"].as_str()?)));
        let env: Vec<_> = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        // Such a name would set another variable than the one that is shown.
        if let Some((name, _)) = env.iter().find(|(name, _)| name.is_empty() || name.contains(['=', '\0'])) {
            return Err(format!("{name:?} is not the name of a variable"));
        }
        Ok(CommandRequest { program, args, env, cwd, output_limit: params["outputByteLimit"].as_u64() })
    }

    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .current_dir(&self.cwd)
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// The program and its arguments on one line, as a shell would take them.
    pub(super) fn line(&self) -> String {
        let words: Vec<_> = [&self.program].into_iter().chain(&self.args).map(|word| quoted(word)).collect();
        words.join(" ")
    }

    /// The folder and the variables, each on a line of its own.
    pub(super) fn surroundings(&self) -> String {
        let mut text = format!("\n  in {}", quoted(&self.cwd.display().to_string()));
        // Those that matter come first, so that no number of others can hide them.
        let (risky, others): (Vec<_>, Vec<_>) =
            self.env.iter().partition(|(name, _)| decides_what_runs(name));
        for (name, value) in risky.iter().chain(others.iter().take(SHOWN_VARIABLES)) {
            let _ = write!(text, "\n  with {}", assignment(name, value));
        }
        if others.len() > SHOWN_VARIABLES {
            let _ = write!(text, "\n  and {} more variables", others.len() - SHOWN_VARIABLES);
        }
        text
    }

    /// The question about variables that decide what really runs. `None`: there are none.
    pub(super) fn second_question(&self) -> Option<String> {
        let risky = self.env.iter().filter(|(name, _)| decides_what_runs(name));
        let lines = risky.map(|(name, value)| format!("\n  {}", assignment(name, value))).collect::<String>();
        if lines.is_empty() {
            return None;
        }
        let what = "This can make another program run, or more than one. Set it";
        Some(format!("For {} the agent sets{lines}\n{what}, and run it?", self.line()))
    }
}

fn assignment(name: &str, value: &str) -> String {
    let cut: String = value.chars().take(SHOWN_CHARS).collect();
    let left = value.chars().count().saturating_sub(SHOWN_CHARS);
    let more = if left > 0 { format!(" and {left} more characters") } else { String::new() };
    format!("{}={}{more}", name.escape_debug(), quoted(&cut))
}

/// Whether programs take this variable for where to find programs or code, or for what to start. Asking too often does
/// less harm than asking too seldom.
pub fn decides_what_runs(name: &str) -> bool {
    const NAMES: [&str; 30] = [
        "AR",
        "AS",
        "BROWSER",
        "CC",
        "CLASSPATH",
        "CXX",
        "EDITOR",
        "ENV",
        "EXINIT",
        "HOME",
        "IFS",
        "INPUTRC",
        "LD",
        "LESSCLOSE",
        "LESSOPEN",
        "LUA_INIT",
        "MAKE",
        "MAKEFILES",
        "MANPAGER",
        "PAGER",
        "PHPRC",
        "PS4",
        "R_PROFILE",
        "RUSTC",
        "SHELL",
        "TERMCAP",
        "TERMINFO",
        "VIMINIT",
        "VISUAL",
        "ZDOTDIR",
    ];
    const PREFIXES: [&str; 14] = [
        "BASH",
        "CARGO_",
        "DYLD_",
        "GIT_",
        "LD_",
        "NODE_",
        "NPM_CONFIG_",
        "PERL",
        "PROMPT_",
        "PYTHON",
        "RUBY",
        "RUSTC_",
        "XDG_CONFIG_",
        "XDG_DATA_",
    ];
    const SUFFIXES: [&str; 11] = [
        "_ASKPASS", "_COMMAND", "_EDITOR", "_PAGER", "_PRELOAD", "_WRAPPER", "FLAGS", "OPT", "OPTIONS",
        "OPTS", "PATH",
    ];
    // Some programs take the names of their variables in small letters too.
    let name = name.to_ascii_uppercase();
    NAMES.contains(&name.as_str())
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(params: Value) -> CommandRequest {
        CommandRequest::parse(&params, "/work".into()).unwrap()
    }

    #[test]
    fn a_command_line_without_arguments_runs_in_a_shell_and_is_shown_so() {
        let words = |params: Value| {
            let request = request(params);
            let command = request.command();
            let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
            (command.get_program().to_string_lossy().into_owned(), args, request.line())
        };
        assert_eq!(words(json!({ "command": "ls" })), ("ls".into(), vec![], "ls".into()));
        assert_eq!(
            words(json!({ "command": "a b", "args": ["c"] })),
            ("a b".into(), vec!["c".into()], "'a b' c".into())
        );
        assert_eq!(
            words(json!({ "command": "ls | wc" })),
            ("sh".into(), vec!["-c".into(), "ls | wc".into()], "sh -c 'ls | wc'".into())
        );
    }

    #[test]
    fn folder_and_variables_are_shown_with_their_values_escaped_and_cut() {
        let long = "x".repeat(300);
        let request = request(json!({ "command": "ls\u{202e}", "args": ["a\nb"], "env": [
            { "name": "A", "value": "1\u{1b}[2J" }, { "name": "B", "value": long }, { "name": "no value" },
        ] }));
        assert_eq!(request.line(), r"'ls\u{202e}' 'a\nb'");
        let expected = format!(
            "\n  in /work\n  with A='1\\u{{1b}}[2J'\n  with B={} and 100 more characters",
            &long[..200]
        );
        assert_eq!(request.surroundings(), expected);
        assert_eq!(request.second_question(), None);
    }

    #[test]
    fn no_number_of_variables_hides_the_one_that_matters() {
        let mut env: Vec<_> = (0..1000).map(|at| json!({ "name": format!("V{at}"), "value": "" })).collect();
        env.push(json!({ "name": "PATH", "value": "/evil" }));
        let request = request(json!({ "command": "ls", "env": env }));
        let shown = request.surroundings();
        assert!(shown.starts_with("\n  in /work\n  with PATH=/evil\n  with V0=''\n"), "{shown}");
        assert!(shown.ends_with("\n  and 980 more variables"), "{shown}");
        let question = request.second_question().unwrap();
        assert!(question.starts_with("For ls the agent sets\n  PATH=/evil\n"), "{question}");
    }

    #[test]
    fn a_name_that_would_set_another_variable_is_refused() {
        for name in ["", "PATH=/evil", "A\0"] {
            let params = json!({ "command": "ls", "env": [{ "name": name, "value": "x" }] });
            assert!(CommandRequest::parse(&params, "/".into()).is_err(), "{name:?}");
        }
    }

    #[test]
    fn variables_that_lead_to_other_programs_are_known() {
        let known = "PATH LD_PRELOAD DYLD_INSERT_LIBRARIES GIT_SSH_COMMAND GIT_DIR SOMETHING_PRELOAD BASH_ENV \
                     BASH_FUNC_ls%% ENV IFS PYTHONPATH PYTHONSTARTUP NODE_OPTIONS PERL5OPT RUBYOPT EDITOR VISUAL \
                     PAGER JAVA_TOOL_OPTIONS RUSTC_WRAPPER npm_config_script_shell SSH_ASKPASS HOME";
        for name in known.split_whitespace() {
            assert!(decides_what_runs(name), "{name}");
        }
        for name in ["LANG", "TERM", "CI", "NO_COLOR", "TZ", "API_URL", "DEBUG", "COLUMNS"] {
            assert!(!decides_what_runs(name), "{name}");
        }
    }
}
