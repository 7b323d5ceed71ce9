//! Agents known by name: the commands with which those that speak ACP themselves do so.
//!
//! Data only. No version, no key, no setting: an agent finds what it needs in the user's environment.

/// How an agent is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentCommand {
    /// What the user calls it.
    pub name: String,
    pub program: String,
    pub args: Vec<String>,
}

impl AgentCommand {
    /// One without a name of its own.
    pub fn new(program: String, args: Vec<String>) -> AgentCommand {
        AgentCommand { name: program.clone(), program, args }
    }
}

/// The program of the agent that comes with this binary.
pub const ITSELF: &str = "stdio-bus";

const KNOWN: &[(&str, &str)] = &[
    ("claude", "npx -y @agentclientprotocol/claude-agent-acp"),
    ("codex", "npx -y @agentclientprotocol/codex-acp"),
    ("copilot", "copilot --acp"),
    ("cursor", "cursor-agent acp"),
    ("droid", "droid exec --output-format acp"),
    ("echo", "stdio-bus agent echo"),
    ("gemini", "gemini --acp"),
    ("hermes", "hermes acp --accept-hooks"),
    ("kimi", "kimi acp"),
    ("opencode", "opencode acp"),
    ("qwen", "qwen --acp"),
    ("vibe", "vibe-acp"),
];

/// The agent of this name. A name that is not known is itself a command.
pub fn find(name: &str) -> AgentCommand {
    let known = KNOWN.iter().find(|(known, _)| *known == name);
    let mut words = known.map_or(name, |(_, line)| line).split(' ').map(str::to_owned);
    match known {
        Some(_) => {
            let program = words.next().unwrap_or_default();
            AgentCommand { name: name.to_owned(), program, args: words.collect() }
        }
        None => AgentCommand::new(name.to_owned(), Vec::new()),
    }
}

/// For the help.
pub fn names() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_name_is_its_command_and_any_other_is_one_itself() {
        let gemini = AgentCommand::new("gemini".to_owned(), vec!["--acp".to_owned()]);
        assert_eq!(find("gemini"), gemini);
        let own = AgentCommand::new("./my agent".to_owned(), Vec::new());
        assert_eq!(find("./my agent"), own);
        assert!(names().eq({
            let mut sorted: Vec<_> = names().collect();
            sorted.sort_unstable();
            sorted
        }));
    }
}
