//! The agent's process: stdin, stdout and the clock.
//!
//! One thread. Everything that has been read is answered before stdout is written, and stdout is written
//! before anything is waited for: pipelined requests cost two system calls for hundreds, a lone one is
//! answered at once. Writing may block; then nothing is read either, which is how a client slows the agent.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use nix::poll::PollFlags;

use super::Options;
use super::agent::Agent;
use crate::acp::fd_wait::{wait_ready, write_all};
use crate::acp::line_reader::LineReader;

pub(super) fn run(options: Options) -> ExitCode {
    match speak(options) {
        Ok(code) => ExitCode::from(code),
        // Nobody is left to hear, least of all a complaint.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("echo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn speak(options: Options) -> io::Result<u8> {
    // As files, because std's own handles buffer in their way.
    let stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let flush_each = options.flush_each;
    let agent = Agent::new(options, Instant::now(), SystemTime::now())?;
    Talk { agent, stdout, flush_each }.until_end(stdin)
}

struct Talk<W> {
    agent: Agent,
    stdout: W,
    flush_each: bool,
}

impl<W: Write + AsFd> Talk<W> {
    /// The exit code: 0 at the end of stdin, another where a prompt asked for it.
    fn until_end(mut self, mut stdin: impl Read + AsFd) -> io::Result<u8> {
        let mut lines = LineReader::default();
        loop {
            let now = Instant::now();
            while let Some(line) = lines.next_line() {
                if let Some(code) = self.line(line, now)? {
                    return Ok(code);
                }
            }
            if let Some(code) = self.tick(now)? {
                return Ok(code);
            }
            if let Some(due) = self.agent.next_wake()
                && !wait_ready(stdin.as_fd(), PollFlags::POLLIN, Some(due))?
            {
                continue;
            }
            match lines.fill(&mut stdin) {
                Ok(0) => return self.finish(lines.unfinished()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    wait_ready(stdin.as_fd(), PollFlags::POLLIN, self.agent.next_wake())?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Stdin has ended. What needs no waiting is still said, the rest is dropped.
    fn finish(mut self, rest: &[u8]) -> io::Result<u8> {
        let now = Instant::now();
        if let Some(code) = self.line(rest, now)? {
            return Ok(code);
        }
        loop {
            if let Some(code) = self.tick(now)? {
                return Ok(code);
            }
            if self.agent.next_wake().is_none_or(|due| due > now) {
                return Ok(0);
            }
        }
    }

    fn line(&mut self, line: &[u8], now: Instant) -> io::Result<Option<u8>> {
        self.agent.line(line, now);
        if self.agent.writer.is_full() || self.agent.exit().is_some() {
            self.flush()?;
        }
        Ok(self.agent.exit())
    }

    fn tick(&mut self, now: Instant) -> io::Result<Option<u8>> {
        self.agent.tick(now);
        self.flush()?;
        Ok(self.agent.exit())
    }

    fn flush(&mut self) -> io::Result<()> {
        let bytes = self.agent.writer.bytes();
        if self.flush_each {
            for line in bytes.split_inclusive(|&byte| byte == b'\n') {
                write_all(&mut self.stdout, line)?;
            }
        } else {
            write_all(&mut self.stdout, bytes)?;
        }
        self.agent.writer.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, PipeReader, PipeWriter, pipe};
    use std::thread::{self, JoinHandle};
    use std::time::Duration;

    use nix::fcntl::{FcntlArg, OFlag, fcntl};

    use super::*;

    /// An agent that runs on a thread as it would in a process.
    struct Running {
        stdin: PipeWriter,
        stdout: BufReader<PipeReader>,
        ended: JoinHandle<io::Result<u8>>,
    }

    impl Running {
        fn new(options: Options) -> Running {
            Running::with_stdout(options, |_| {})
        }

        fn with_stdout(options: Options, prepare: impl FnOnce(&PipeWriter)) -> Running {
            let ((stdin, to_agent), (from_agent, stdout)) = (pipe().unwrap(), pipe().unwrap());
            prepare(&stdout);
            let flush_each = options.flush_each;
            let agent = Agent::new(options, Instant::now(), SystemTime::now()).unwrap();
            let ended = thread::spawn(move || Talk { agent, stdout, flush_each }.until_end(stdin));
            Running { stdin: to_agent, stdout: BufReader::new(from_agent), ended }
        }

        fn says(&mut self, text: &str) {
            self.stdin.write_all(text.as_bytes()).unwrap();
        }

        fn hears(&mut self) -> String {
            let mut line = String::new();
            self.stdout.read_line(&mut line).unwrap();
            line
        }

        fn opens_session(&mut self) -> String {
            self.says("{\"id\":0,\"method\":\"session/new\",\"params\":{\"cwd\":\"/\"}}\n");
            let answer: serde_json::Value = serde_json::from_str(&self.hears()).unwrap();
            assert!(self.hears().contains("available_commands_update"));
            answer["result"]["sessionId"].as_str().unwrap().to_owned()
        }

        /// All that is left, and the exit code.
        fn ends(self) -> (String, u8) {
            let Running { stdin, mut stdout, ended } = self;
            drop(stdin);
            let mut rest = String::new();
            stdout.read_to_string(&mut rest).unwrap();
            (rest, ended.join().unwrap().unwrap())
        }
    }

    fn prompt(session: &str, text: &str) -> String {
        let params = format!(r#"{{"sessionId":"{session}","prompt":[{{"type":"text","text":"{text}"}}]}}"#);
        format!("{{\"id\":1,\"method\":\"session/prompt\",\"params\":{params}}}\n")
    }

    #[test]
    fn a_lone_request_is_answered_at_once_and_the_last_needs_no_newline() {
        let mut agent = Running::new(Options::default());
        agent.says("{\"id\":1,\"method\":\"m\"}\n");
        assert!(agent.hears().contains("\"id\":1,"));
        agent.says("{\"id\":2,\"method\":\"m\"}\r\n\n{\"id\":3,\"method\":\"m\"}");
        let (rest, code) = agent.ends();
        assert_eq!((rest.lines().count(), code), (2, 0));
    }

    #[test]
    fn a_turn_goes_on_by_itself_while_stdin_is_silent() {
        let mut agent = Running::new(Options { delay: Duration::from_millis(2), ..Options::default() });
        let session = agent.opens_session();
        agent.says(&prompt(&session, "/tool"));
        for part in ["pending", "in_progress", "completed", "The tool has run", "end_turn"] {
            assert!(agent.hears().contains(part));
        }
        assert_eq!(agent.ends(), (String::new(), 0));
    }

    #[test]
    fn the_end_of_stdin_drops_what_waits_and_finishes_what_does_not() {
        let mut agent =
            Running::new(Options { chunks: Some(20_000), flush_each: true, ..Options::default() });
        let (long, slow) = (agent.opens_session(), agent.opens_session());
        agent.says(&prompt(&slow, "/slow 10000"));
        agent.says(&prompt(&long, "text"));
        let (rest, code) = agent.ends();
        assert_eq!((rest.lines().count(), code), (20_001, 0));
        assert!(rest.ends_with("\"end_turn\"}}\n"));
    }

    #[test]
    fn die_leaves_with_its_code_after_what_was_said_before_it() {
        let mut agent = Running::new(Options::default());
        let session = agent.opens_session();
        let die = prompt(&session, "/die 7");
        agent.says(&format!("{{\"id\":5,\"method\":\"before\"}}\n{die}{{\"id\":6,\"method\":\"after\"}}\n"));
        let (rest, code) = agent.ends();
        assert!(rest.contains("before") && !rest.contains("after"));
        assert_eq!(code, 7);
    }

    #[test]
    fn a_closed_stdout_is_a_broken_pipe_and_no_panic() {
        let Running { mut stdin, stdout, ended } = Running::new(Options::default());
        drop(stdout);
        stdin.write_all(b"{\"id\":1,\"method\":\"m\"}\n").unwrap();
        assert_eq!(ended.join().unwrap().unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_non_blocking_stdout_gets_every_byte() {
        let mut agent = Running::with_stdout(Options::default(), |stdout| {
            fcntl(stdout, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        });
        let text = "x".repeat(1 << 20);
        let line = format!("{{\"id\":1,\"method\":\"m\",\"params\":\"{text}\"}}\n");
        agent.says(&line);
        assert!(agent.hears().contains(&text));
        assert_eq!(agent.ends(), (String::new(), 0));
    }
}
