//! The process of the agent: stdin, stdout and the clock.
//!
//! One thread answers everything that was read, then flushes stdout, then waits. So hundreds of pipelined requests
//! cost two system calls, and a single request is answered at once. A write may block, and then nothing is read:
//! that is how a client slows the agent down.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use rpc::LineReader;
use rpc::fd_wait::{PollFlags, is_ready, write_all};

use super::agent::EchoAgent;
use super::options::Options;
use crate::acp::serve::{stdin, stdout};

/// Serves a client on stdin and stdout until stdin ends.
pub fn run(options: Options) -> ExitCode {
    match serve(options) {
        Ok(code) => ExitCode::from(code),
        // The client has left, and nobody reads an error message.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("echo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: Options) -> io::Result<u8> {
    let flush_each = options.flush_each;
    let agent = EchoAgent::new(options, Instant::now(), SystemTime::now())?;
    Server { agent, stdout: stdout()?, flush_each }.run(stdin()?)
}

struct Server<W> {
    agent: EchoAgent,
    stdout: W,
    flush_each: bool,
}

impl<W: Write + AsFd> Server<W> {
    /// Returns the exit code: 0 at the end of stdin, another if a prompt asked for it.
    fn run(mut self, mut stdin: impl Read + AsFd) -> io::Result<u8> {
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
                && !is_ready(stdin.as_fd(), PollFlags::POLLIN, Some(due))?
            {
                continue;
            }
            match lines.fill(&mut stdin) {
                Ok(0) => return self.finish(lines.unread()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    is_ready(stdin.as_fd(), PollFlags::POLLIN, self.agent.next_wake())?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the last line, then finishes the turns that need no waiting and drops the others.
    fn finish(mut self, last_line: &[u8]) -> io::Result<u8> {
        let now = Instant::now();
        if let Some(code) = self.line(last_line, now)? {
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
        if self.agent.writer.is_full() || self.agent.exit_code().is_some() {
            self.flush()?;
        }
        Ok(self.agent.exit_code())
    }

    fn tick(&mut self, now: Instant) -> io::Result<Option<u8>> {
        self.agent.tick(now);
        self.flush()?;
        Ok(self.agent.exit_code())
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

    /// An agent on a thread, connected by pipes as a process would be.
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
            let (stdin, to_agent) = pipe().unwrap();
            let (from_agent, stdout) = pipe().unwrap();
            prepare(&stdout);
            let flush_each = options.flush_each;
            let agent = EchoAgent::new(options, Instant::now(), SystemTime::now()).unwrap();
            let ended = thread::spawn(move || Server { agent, stdout, flush_each }.run(stdin));
            Running { stdin: to_agent, stdout: BufReader::new(from_agent), ended }
        }

        fn send(&mut self, text: &str) {
            self.stdin.write_all(text.as_bytes()).unwrap();
        }

        fn read_line(&mut self) -> String {
            let mut line = String::new();
            self.stdout.read_line(&mut line).unwrap();
            line
        }

        fn new_session(&mut self) -> String {
            self.send("{\"id\":0,\"method\":\"session/new\",\"params\":{\"cwd\":\"/\"}}\n");
            let answer: serde_json::Value = serde_json::from_str(&self.read_line()).unwrap();
            assert!(self.read_line().contains("available_commands_update"));
            answer["result"]["sessionId"].as_str().unwrap().to_owned()
        }

        /// Closes stdin and returns the rest of stdout and the exit code.
        fn finish(self) -> (String, u8) {
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
    fn a_single_request_is_answered_at_once_and_the_last_needs_no_newline() {
        let mut agent = Running::new(Options::default());
        agent.send("{\"id\":1,\"method\":\"m\"}\n");
        assert!(agent.read_line().contains("\"id\":1,"));
        agent.send("{\"id\":2,\"method\":\"m\"}\r\n\n{\"id\":3,\"method\":\"m\"}");
        let (rest, code) = agent.finish();
        assert_eq!((rest.lines().count(), code), (2, 0));
    }

    #[test]
    fn a_turn_continues_while_stdin_is_silent() {
        let mut agent = Running::new(Options { delay: Duration::from_millis(2), ..Options::default() });
        let session = agent.new_session();
        agent.send(&prompt(&session, "/tool"));
        for part in ["pending", "in_progress", "completed", "The tool has run", "end_turn"] {
            assert!(agent.read_line().contains(part));
        }
        assert_eq!(agent.finish(), (String::new(), 0));
    }

    #[test]
    fn at_the_end_of_stdin_turns_that_wait_are_dropped_and_others_finish() {
        let mut agent =
            Running::new(Options { chunks: Some(20_000), flush_each: true, ..Options::default() });
        let (long, slow) = (agent.new_session(), agent.new_session());
        agent.send(&prompt(&slow, "/slow 10000"));
        agent.send(&prompt(&long, "text"));
        let (rest, code) = agent.finish();
        // On a slow machine the other turn has time for a dot or two before stdin ends.
        let of_long = rest.lines().filter(|line| !line.contains(&slow)).count();
        assert_eq!((of_long, code), (20_001, 0));
        assert!(rest.ends_with("\"end_turn\"}}\n"));
    }

    #[test]
    fn die_exits_with_its_code_after_earlier_responses() {
        let mut agent = Running::new(Options::default());
        let session = agent.new_session();
        let die = prompt(&session, "/die 7");
        agent.send(&format!("{{\"id\":5,\"method\":\"before\"}}\n{die}{{\"id\":6,\"method\":\"after\"}}\n"));
        let (rest, code) = agent.finish();
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
        agent.send(&line);
        assert!(agent.read_line().contains(&text));
        assert_eq!(agent.finish(), (String::new(), 0));
    }
}
