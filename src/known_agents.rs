//! The agents that `run` knows by name: the table of runtimes, and the agents of this binary.

use clients::run::{AgentCommand, THIS_BINARY};
use kernel_shell::config::nearest;
use workers::cli::runtimes;

/// Agents of this binary that need no CLI.
const OWN: [&str; 2] = ["echo", "openai"];

/// An unknown name is itself a command. Fails if the user's own runtimes.json is invalid.
pub(crate) fn find(name: &str) -> Result<AgentCommand, String> {
    if OWN.contains(&name) {
        return Ok(named(name, (THIS_BINARY.to_owned(), vec!["agent".to_owned(), name.to_owned()])));
    }
    let rows = runtimes::all()?;
    let row = rows.iter().find(|row| row.id == name);
    let row = row.or_else(|| rows.iter().find(|row| row.binaries.iter().any(|binary| binary == name)));
    Ok(match row {
        Some(row) => named(name, row.command()),
        None => {
            let known: Vec<_> = OWN.into_iter().chain(rows.iter().map(|row| row.id.as_str())).collect();
            let similar = nearest(name, &known).map(str::to_owned);
            AgentCommand { similar, ..AgentCommand::new(name.to_owned(), Vec::new()) }
        }
    })
}

/// All names, each with what it stands for.
pub(crate) fn names() -> Vec<(String, String)> {
    let own = OWN.map(|name| (name.to_owned(), format!("the agent {name} of the bus itself")));
    let rows = runtimes::all().unwrap_or_default().into_iter().map(|row| (row.id, row.name));
    own.into_iter().chain(rows).collect()
}

fn named(name: &str, (program, args): (String, Vec<String>)) -> AgentCommand {
    AgentCommand { name: name.to_owned(), program, args, similar: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str) -> String {
        let agent = find(name).unwrap();
        assert_eq!(agent.name, name);
        format!("{} {}", agent.program, agent.args.join(" "))
    }

    #[test]
    fn an_unknown_name_is_itself_a_command() {
        assert_eq!(line("gemini"), "gemini --acp");
        assert_eq!(line("hermes"), "hermes acp --accept-hooks");
        assert_eq!(line("vibe"), "vibe-acp ");
        assert_eq!(line("claude"), "stdio-bus agent cli --runtime claude");
        assert_eq!(line("echo"), "stdio-bus agent echo");
        assert_eq!(line("traecli"), "traecli acp serve");
        assert_eq!(line("./my agent"), "./my agent ");
    }

    #[test]
    fn a_typo_finds_the_agent_that_was_meant() {
        let similar = |name: &str| find(name).unwrap().similar;
        assert_eq!(similar("claud").as_deref(), Some("claude"));
        assert_eq!(similar("gemnii").as_deref(), Some("gemini"));
        assert_eq!(similar("ecoh").as_deref(), Some("echo"));
        assert_eq!((similar("my-own-agent"), similar("claude")), (None, None));
    }
}
