//! The agents that `run` knows by name: the table of runtimes, and the agents of this binary.

use clients::run::{AgentCommand, THIS_BINARY};
use kernel_shell::config::nearest;
use workers::cli::runtimes::{self, Runtime};

/// Agents of this binary that need no CLI.
const OWN: [&str; 2] = ["echo", "openai"];

/// The agent with this name and further arguments. The error is for the user: it says what to install.
pub(crate) fn find_installed(name: &str, args: Vec<String>) -> Result<AgentCommand, String> {
    let (mut agent, row) = find(name)?;
    let names_program = args.iter().any(|arg| arg.starts_with("--program"));
    if let Some(row) = row.filter(|_| !names_program) {
        check_installed(&row)?;
    }
    agent.args.extend(args);
    Ok(agent)
}

fn check_installed(row: &Runtime) -> Result<(), String> {
    match (row.installed_command(), row.program()) {
        // An adapter starts without its CLI too, and would say so only at the first prompt.
        (Ok(_), None) if row.acp.is_none() => Err(row.missing()),
        (Ok(_), _) => Ok(()),
        (Err(_), None) => Err(row.missing()),
        (Err(why), Some(_)) => Err(format!("{}: {why}", row.name)),
    }
}

/// An unknown name is itself a command. Fails if the user's own runtimes.json is invalid.
fn find(name: &str) -> Result<(AgentCommand, Option<Runtime>), String> {
    if OWN.contains(&name) {
        return Ok((named(name, (THIS_BINARY.to_owned(), vec!["agent".to_owned(), name.to_owned()])), None));
    }
    let rows = runtimes::all()?;
    let row = rows.iter().find(|row| row.id == name);
    let row = row.or_else(|| rows.iter().find(|row| row.binaries.iter().any(|binary| binary == name)));
    let agent = match row {
        Some(row) => AgentCommand { log_in: row.log_in.clone(), ..named(name, row.command()) },
        None => {
            let known: Vec<_> = OWN.into_iter().chain(rows.iter().map(|row| row.id.as_str())).collect();
            let similar = nearest(name, &known).map(str::to_owned);
            AgentCommand { similar, ..AgentCommand::new(name.to_owned(), Vec::new()) }
        }
    };
    Ok((agent, row.cloned()))
}

/// All names, each with what it stands for.
pub(crate) fn names() -> Vec<(String, String)> {
    let own = OWN.map(|name| (name.to_owned(), format!("the agent {name} of the bus itself")));
    let rows = runtimes::all().unwrap_or_default().into_iter().map(|row| (row.id, row.name));
    own.into_iter().chain(rows).collect()
}

fn named(name: &str, (program, args): (String, Vec<String>)) -> AgentCommand {
    AgentCommand { name: name.to_owned(), program, args, similar: None, log_in: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str) -> String {
        let (agent, _) = find(name).unwrap();
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
        let similar = |name: &str| find(name).unwrap().0.similar;
        assert_eq!(similar("claud").as_deref(), Some("claude"));
        assert_eq!(similar("gemnii").as_deref(), Some("gemini"));
        assert_eq!(similar("ecoh").as_deref(), Some("echo"));
        assert_eq!((similar("my-own-agent"), similar("claude")), (None, None));
    }

    #[test]
    fn how_to_log_in_is_known_of_agents_in_the_table() {
        let log_in = |name: &str| find(name).unwrap().0.log_in;
        assert_eq!(log_in("claude").as_deref(), Some("claude auth login"));
        assert_eq!((log_in("echo"), log_in("my-own-agent")), (None, None));
    }
}
