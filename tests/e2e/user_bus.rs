//! The first ten minutes of a user: an empty home, no environment, no terminal, and a bus that every command finds in
//! every folder.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{BUS, PATIENCE, Program, initialize, looks_again, run, write_script, write_token};

/// A user who has nothing but the bus and one agent CLI.
struct User {
    home: TempDir,
}

impl User {
    fn new() -> User {
        let home = TempDir::with_prefix("user").expect("a temporary folder");
        for folder in ["bin", "project", "elsewhere", "run"] {
            fs::create_dir(home.path().join(folder)).expect("the folder is ours");
        }
        let user = User { home };
        symlink(BUS, user.path("bin/stdio-bus")).expect("the folder is ours");
        // It needs a program that lies beside it, as a script of npm needs node.
        write_script(&user.path("bin"), "beside", "exec stdio-bus agent echo");
        let gemini = "case \"$1\" in --version) echo 0.61.0;; --acp) exec beside;; esac";
        write_script(&user.path("bin"), "gemini", gemini);
        user
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn config(&self) -> PathBuf {
        self.path(".config/stdio-bus/bus.json")
    }

    fn command(&self, folder: &str, args: &[&str]) -> Command {
        let mut command = Command::new(self.path("bin/stdio-bus"));
        command.args(args).current_dir(self.path(folder)).env_clear().stdin(Stdio::null());
        command
            .env("HOME", self.home.path())
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("PATH", "/usr/bin:/bin");
        command
    }

    fn runs(&self, folder: &str, args: &[&str]) -> Output {
        self.command(folder, args).output().expect("it runs")
    }

    /// What a command that succeeds prints.
    fn says(&self, folder: &str, args: &[&str]) -> String {
        let out = self.runs(folder, args);
        assert!(out.status.success(), "{args:?}\n{}\n{}", text(&out), self.log());
        text(&out)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path(".local/state/stdio-bus/bus.log")).unwrap_or_default()
    }

    /// Lets the bus of this file listen at a free port.
    fn uses_free_port(&self, file: &Path) {
        let written = fs::read_to_string(file).expect("a file");
        fs::write(file, written.replacen('{', "{\n  \"listen\": [\"tcp://127.0.0.1:0\"],", 1))
            .expect("a file");
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = self.runs("elsewhere", &["stop", "--now"]);
    }
}

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

#[test]
fn a_user_begins_with_an_empty_home_and_finds_the_bus_in_every_folder() {
    let user = User::new();
    let out = user.runs("project", &["status"]);
    assert_eq!(out.status.code(), Some(78));
    assert!(text(&out).contains("`stdio-bus detect --write`"), "{}", text(&out));

    let mut detect = user.command("project", &["detect", "--write"]);
    let path = format!("{}:/usr/bin:/bin", user.path("bin").display());
    let said = text(&detect.env("PATH", path).output().expect("it runs"));
    assert!(said.contains("added gemini") && said.contains("`stdio-bus start` runs the bus"), "{said}");
    let config: Value =
        serde_json::from_str(&fs::read_to_string(user.config()).expect("a file")).expect("JSON");
    assert_eq!(config["pools"][0]["command"], user.path("bin/gemini").display().to_string());
    assert!(!user.path("project/bus.json").exists());

    user.uses_free_port(&user.config());
    let said = user.says("project", &["start", "--web", "http://127.0.0.1:0"]);
    assert!(said.contains("stdio-bus/bus.json") && said.contains("pools gemini"), "{said}");
    let said = user.says("elsewhere", &["start"]);
    assert!(said.starts_with("the bus runs already"), "{said}");

    // This process has a PATH without the folder of the agent.
    let said = user.says("elsewhere", &["run", "--once", "--pool", "gemini", "hello from elsewhere"]);
    assert!(said.contains("hello from elsewhere"), "{said}");
    assert!(user.says("elsewhere", &["status"]).contains("gemini/0"));
    assert!(user.says("elsewhere", &["sessions"]).contains("no sessions"));
    user.says("elsewhere", &["logs"]);
    user.says("elsewhere", &["metrics"]);
    let deadline = Instant::now() + PATIENCE;
    while !user.runs("elsewhere", &["web", "url"]).status.success() {
        assert!(Instant::now() < deadline, "no door opens\n{}", user.log());
        looks_again();
    }
    let link = user.says("elsewhere", &["web", "url"]);
    assert!(link.contains("http://127.0.0.1:"), "{link}");
    // A phone cannot open that, and the user hears what is missing.
    let for_phone = user.says("elsewhere", &["web", "url", "--scope", "approve", "--qr"]);
    assert!(
        for_phone.contains("opens on this machine alone") && for_phone.contains("tailscale serve"),
        "{for_phone}"
    );
    // Not even the home is needed.
    let mut bare = user.command("elsewhere", &["status"]);
    let out = bare.env_remove("HOME").env_remove("PATH").output().expect("it runs");
    assert!(out.status.success(), "{}", text(&out));

    let said = user.says("elsewhere", &["stop"]);
    assert!(said.contains("has stopped"), "{said}");
    assert!(!user.path("run/stdio-bus/bus.sock").exists() && !user.path("run/stdio-bus/bus.json").exists());
    let out = user.runs("elsewhere", &["run", "--once", "--pool", "gemini", "hi"]);
    assert!(!out.status.success() && text(&out).contains("`stdio-bus start`"), "{}", text(&out));
}

#[test]
fn an_editor_a_screen_and_an_agent_of_a_registry_find_the_bus_of_the_user() {
    let user = User::new();
    fs::create_dir_all(user.path(".config/stdio-bus")).expect("the folder is ours");
    let echo = json!({ "id": "mine", "command": "stdio-bus", "args": ["agent", "echo"] });
    fs::write(user.config(), json!({ "pools": [echo] }).to_string()).expect("a file");
    user.uses_free_port(&user.config());
    user.says("project", &["start"]);

    // What an editor is told to start is found from everywhere, and answers.
    let told = user.says("elsewhere", &["ide", "zed", "--pool", "mine"]);
    assert!(told.contains("\"connect\"") && told.contains("\"mine\""), "{told}");
    let mut editor = user.command("elsewhere", &["connect", "--pool", "mine"]);
    let mut editor = editor.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut says = editor.stdin.take().expect("piped");
    writeln!(says, "{}", initialize(1, json!({}))).expect("it reads");
    drop(says);
    let out = editor.wait_with_output().expect("it is our child");
    let answer: Value = serde_json::from_slice(&out.stdout).expect("one answer");
    assert_eq!((&answer["id"], &answer["result"]["protocolVersion"]), (&json!(1), &json!(1)), "{answer}");

    // The live screen wants a terminal, and says what programs use in its place.
    let out = user.runs("elsewhere", &["top"]);
    assert!(
        out.status.code() == Some(2) && text(&out).contains("`stdio-bus status --json`"),
        "{}",
        text(&out)
    );
    let mut screen = Program::plan(&[]).command_is("top");
    for (name, path) in [("HOME", ""), ("XDG_RUNTIME_DIR", "run"), ("XDG_CONFIG_HOME", ".config")] {
        screen = screen.env(name, &user.path(path).display().to_string());
    }
    let mut screen = screen.at_terminal();
    screen.shows("mine");
    screen.types("q");
    assert_eq!(screen.ends(), 0);

    // No registry is asked before the user has named one; its agents become pools of the user's bus.
    let out = user.runs("elsewhere", &["add", "other", "--yes"]);
    assert!(!out.status.success() && text(&out).contains("--registry URL or FILE"), "{}", text(&out));
    let npx = json!({ "npx": { "package": "other@1.2.3" } });
    let agent = json!({ "id": "other", "name": "Another", "version": "1.2.3", "description": "It does things.",
        "license": "MIT", "distribution": npx });
    let index = json!({ "version": "1.0.0", "agents": [agent] }).to_string();
    fs::write(user.path("elsewhere/registry.json"), index).expect("a file");
    write_script(&user.path("bin"), "npx", "exec stdio-bus agent echo");
    let mut add = user.command("elsewhere", &["add", "other", "--yes", "--registry", "registry.json"]);
    let path = format!("{}:/usr/bin:/bin", user.path("bin").display());
    let out = add.env("PATH", path).output().expect("it runs");
    assert!(out.status.success() && text(&out).contains("`stdio-bus reload`"), "{}", text(&out));
    assert!(!user.path("elsewhere/bus.json").exists());
    assert!(user.says("project", &["reload"]).contains("other"));
    assert!(user.says("project", &["run", "--once", "--pool", "other", "hello"]).contains("hello"));
}

#[test]
fn a_folder_with_a_bus_json_has_a_bus_of_its_own() {
    let user = User::new();
    let echo = |id: &str| json!({ "id": id, "command": "stdio-bus", "args": ["agent", "echo"] });
    let config = |id: &str| json!({ "pools": [echo(id)] }).to_string();
    fs::create_dir_all(user.path(".config/stdio-bus")).expect("the folder is ours");
    fs::write(user.config(), config("of-user")).expect("a file");
    user.uses_free_port(&user.config());
    user.says("elsewhere", &["start"]);
    // No bus of the folder runs: a look finds that of the user, but nothing of it is ended by mistake.
    fs::write(user.path("project/bus.json"), config("of-folder")).expect("a file");
    let socket = format!("\"unix://{}\"", user.path("project/own.sock").display());
    let own = config("of-folder").replacen('{', &format!("{{\"listen\":[{socket}],"), 1);
    fs::write(user.path("project/bus.json"), own).expect("a file");
    assert!(user.says("project", &["status"]).contains("of-user/0"));
    for command in ["stop", "reload"] {
        let out = user.runs("project", &[command]);
        assert_eq!(out.status.code(), Some(69), "{command}: {}", text(&out));
    }
    let said = user.says("project", &["start"]);
    assert!(said.contains("pools of-folder"), "{said}");
    assert!(user.says("project", &["status"]).contains("of-folder/0"));
    assert!(user.says("elsewhere", &["status"]).contains("of-user/0"));
    user.says("project", &["stop"]);
    assert!(user.says("elsewhere", &["status"]).contains("of-user/0"));
    // What is added goes to the user's file, unless the user says otherwise.
    let mut detect = user.command("project", &["detect", "--write", "--here"]);
    let path = format!("{}:/usr/bin:/bin", user.path("bin").display());
    let said = text(&detect.env("PATH", &path).output().expect("it runs"));
    assert!(said.contains("bus.json: added gemini"), "{said}");
    assert!(fs::read_to_string(user.path("project/bus.json")).expect("a file").contains("gemini"));
    let mut detect = user.command("project", &["detect", "--write"]);
    let said = text(&detect.env("PATH", path).output().expect("it runs"));
    assert!(said.contains("`stdio-bus reload` makes the running bus use it"), "{said}");
    assert!(user.says("elsewhere", &["reload"]).contains("gemini"));
}

#[test]
fn a_bus_that_asks_for_a_token_is_found_with_its_token() {
    let user = User::new();
    let pool = json!({ "id": "echo", "command": "stdio-bus", "args": ["agent", "echo"] });
    let config = json!({ "auth": { "token_file": "token" }, "pools": [pool] }).to_string();
    fs::write(user.path("project/bus.json"), config).expect("a file");
    user.uses_free_port(&user.path("project/bus.json"));
    write_token(&user.path("project/token"), "0123456789abcdef");
    user.says("project", &["start"]);
    assert!(user.says("elsewhere", &["status"]).contains("echo/0"));
}

#[test]
fn doctor_says_what_is_wrong_and_what_to_do() {
    let user = User::new();
    let doctor = |user: &User| {
        let out = user.runs("elsewhere", &["doctor"]);
        (out.status.code(), text(&out))
    };
    let (code, said) = doctor(&user);
    assert!(code == Some(1) && said.contains("`stdio-bus detect --write`"), "{said}");
    fs::create_dir_all(user.path(".config/stdio-bus")).expect("the folder is ours");
    let gone = json!({ "id": "gone", "command": "/no/such/agent" });
    fs::write(user.config(), json!({ "pools": [gone] }).to_string()).expect("a file");
    user.uses_free_port(&user.config());
    let (code, said) = doctor(&user);
    assert!(code == Some(1) && said.contains("pool gone: /no/such/agent"), "{said}");
    let echo = json!({ "id": "echo", "command": "stdio-bus", "args": ["agent", "echo"] });
    fs::write(user.config(), json!({ "pools": [echo] }).to_string()).expect("a file");
    user.uses_free_port(&user.config());
    let (code, said) = doctor(&user);
    assert!(code == Some(0) && said.contains("no bus runs") && said.contains("stdio-bus start"), "{said}");
    user.says("elsewhere", &["start"]);
    let (code, said) = doctor(&user);
    assert!(code == Some(0) && said.contains("good  bus "), "{said}");
    let out = user.runs("elsewhere", &["doctor", "--json"]);
    let found: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert!(found.as_array().is_some_and(|all| all.iter().all(|one| one["level"] != "bad")), "{found}");
}

#[test]
fn status_and_doctor_say_why_a_pool_does_not_start() {
    let user = User::new();
    let crash = json!({ "id": "crash", "command": "sh", "args": ["-c", "exit 3"] });
    fs::create_dir_all(user.path(".config/stdio-bus")).expect("the folder is ours");
    fs::write(user.config(), json!({ "pools": [crash] }).to_string()).expect("a file");
    user.uses_free_port(&user.config());
    user.says("elsewhere", &["start"]);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = user.says("elsewhere", &["status"]);
        if said.lines().any(|line| line == "crash/0: exited with code 3") {
            break;
        }
        assert!(Instant::now() < deadline, "{said}");
        looks_again();
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = text(&user.runs("elsewhere", &["doctor"]));
        if said.contains("pool crash is ") {
            assert!(
                said.contains(": exited with code 3\n") && said.contains("stdio-bus logs crash"),
                "{said}"
            );
            break;
        }
        assert!(Instant::now() < deadline, "{said}");
        looks_again();
    }
}

#[test]
fn a_service_of_systemd_gets_the_environment_by_name() {
    let user = User::new();
    let pool = json!({ "id": "echo", "command": "stdio-bus", "args": ["agent", "echo"] });
    fs::create_dir_all(user.path(".config/stdio-bus")).expect("the folder is ours");
    fs::write(user.config(), json!({ "pools": [pool] }).to_string()).expect("a file");
    user.uses_free_port(&user.config());
    fs::create_dir_all(user.path("run/systemd/private")).expect("the folder is ours");
    let stand_in = "echo \"$*\" > \"$HOME/asked\"; while [ \"$1\" != -- ]; do shift; done; shift\n\
                    exec setsid \"$@\" > /dev/null 2>&1 &";
    write_script(&user.path("bin"), "systemd-run", stand_in);
    let mut start = user.command("elsewhere", &["start"]);
    let path = format!("{}:/usr/bin:/bin", user.path("bin").display());
    let out = start.env("PATH", path).env("A_KEY", "s3cret").output().expect("it runs");
    assert!(out.status.success() && text(&out).contains("journalctl --user -u stdio-bus"), "{}", text(&out));
    let asked = fs::read_to_string(user.path("asked")).expect("it was asked");
    assert!(asked.contains("--unit=stdio-bus") && asked.contains("--setenv=A_KEY "), "{asked}");
    assert!(!asked.contains("s3cret"), "{asked}");
}

#[test]
fn version_is_a_command_too() {
    let one = run(Path::new("/tmp"), &["version"], "").stdout;
    assert_eq!(one, run(Path::new("/tmp"), &["--version"], "").stdout);
    assert!(one.starts_with(b"stdio-bus "));
}
