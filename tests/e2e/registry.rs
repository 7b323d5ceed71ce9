//! `add` and `agents`: agents of a registry become pools, after the user has seen what will run.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{BUS, Program, write_script};

fn entry(id: &str, distribution: &Value) -> Value {
    json!({ "id": id, "name": format!("The {id}"), "version": "1.2.3", "description": "It does things.",
        "license": "MIT", "distribution": distribution })
}

/// A folder with an index, and with programs in place of npx and uvx.
fn folder(agents: &[Value]) -> TempDir {
    let folder = TempDir::with_prefix("registry").expect("a folder");
    let index = json!({ "version": "1.0.0", "agents": agents }).to_string();
    fs::write(folder.path().join("registry.json"), index).expect("a file");
    fs::write(folder.path().join("quarantine.json"), r#"{"warned":"it has a postinstall script"}"#).unwrap();
    write_script(folder.path(), "npx", &format!("exec {BUS} agent echo"));
    folder
}

fn stdio_bus(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(BUS);
    command.args(args).current_dir(folder).env_clear().env("PATH", folder).env("HOME", folder);
    command.env("XDG_RUNTIME_DIR", folder);
    command.output().expect("it runs")
}

fn add(folder: &Path, args: &[&str]) -> (Option<i32>, String) {
    let out = stdio_bus(folder, &[&["add", "--here", "--registry", "registry.json"], args].concat());
    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
}

fn pools(folder: &Path) -> Value {
    let text = fs::read_to_string(folder.join("bus.json")).expect("a bus.json");
    serde_json::from_str::<Value>(&text).expect("JSON")["pools"].clone()
}

fn npx(package: &str) -> Value {
    json!({ "npx": { "package": package, "args": ["--acp"], "env": { "MODE": "a${b}" } } })
}

#[test]
fn a_package_becomes_a_pool_that_runs_after_it_was_shown() {
    let folder = folder(&[entry("good", &npx("@scope/good@1.2.3"))]);
    let path = folder.path();
    let (code, shown) = add(path, &["good"]);
    assert_eq!(code, Some(2), "{shown}");
    assert!(shown.contains("npx -y @scope/good@1.2.3 --acp\n  with MODE='a${b}'"), "{shown}");
    assert!(shown.contains("there is no terminal to ask at"), "{shown}");
    assert!(!path.join("bus.json").exists(), "nothing is done before the user has said yes");
    let (code, shown) = add(path, &["good", "--yes"]);
    assert_eq!(code, Some(0), "{shown}");
    let program = path.join("npx").display().to_string();
    let pool = json!({ "id": "good", "command": program, "args": ["-y", "@scope/good@1.2.3", "--acp"],
        "warm": false, "env": { "MODE": "a$${b}" } });
    assert_eq!(pools(path), json!([pool]));
    let probed = stdio_bus(path, &["check", "--probe"]);
    assert!(probed.status.success(), "{}", String::from_utf8_lossy(&probed.stderr));
    // The address of the index is remembered, and a pool is not added twice.
    let again = stdio_bus(path, &["add", "good", "--yes", "--here"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("has a pool \"good\" already"));
    assert_eq!(again.status.code(), Some(0));
    assert_eq!(stdio_bus(path, &["add", "good", "--yes", "--here", "--as", "other"]).status.code(), Some(0));
    assert_eq!(pools(path)[1]["id"], "other");
}

#[test]
fn no_registry_is_asked_before_the_user_has_chosen_one() {
    let folder = TempDir::with_prefix("registry").expect("a folder");
    let out = stdio_bus(folder.path(), &["add", "gemini", "--yes", "--here"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let public = "https://cdn.agentclientprotocol.com/registry/v1/latest/registry.json";
    assert!(said.contains("which registry?") && said.contains(public), "{said}");
    assert_eq!(out.status.code(), Some(1), "{said}");
}

#[test]
fn what_is_not_safe_needs_force_and_what_is_missing_is_named() {
    let risky = json!({ "npx": { "package": "x@1.0.0", "env": { "LD_PRELOAD": "x.so" } } });
    let elsewhere = json!({ "binary": { "plan9-mips": { "archive": "https://x/y.zip", "cmd": "y" } } });
    let folder = folder(&[
        entry("warned", &npx("x@1.0.0")),
        entry("loose", &npx("x@latest")),
        entry("range", &npx("x@1")),
        entry("option", &json!({ "npx": { "package": "x@1.0.0", "cmd": "--call=sh" } })),
        entry("risky", &risky),
        entry("python", &json!({ "uvx": { "package": "x==1" } })),
        entry("elsewhere", &elsewhere),
    ]);
    let path = folder.path();
    let cases = [
        ("warned", "the registry warns of warned: it has a postinstall script"),
        ("loose", "x@latest names no exact version"),
        ("range", "x@1 names no exact version"),
        ("option", "\"--call=sh\" is no name of a program"),
        ("risky", "sets LD_PRELOAD"),
        ("python", "python needs uvx (of uv), which is not in PATH"),
        ("elsewhere", "elsewhere is not available on this machine"),
        ("warn", "no agent \"warn\"; did you mean warned?"),
        ("zzz", "`stdio-bus agents` lists what there is"),
    ];
    for (id, words) in cases {
        let (code, said) = add(path, &[id, "--yes"]);
        assert_eq!(code, Some(1), "{id}: {said}");
        assert!(said.contains(words), "{id}: {said}");
    }
    assert!(!path.join("bus.json").exists());
    for id in ["warned", "loose", "risky"] {
        assert_eq!(add(path, &[id, "--yes", "--force"]).0, Some(0), "{id}");
    }
    assert_eq!(pools(path).as_array().map(Vec::len), Some(3));
    let listed = stdio_bus(path, &["agents"]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("not for this machine") && listed.contains("warns of it"), "{listed}");
    let listed = stdio_bus(path, &["agents", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    assert_eq!(
        (&listed[0]["quarantined"], &listed[5]["kinds"]),
        (&json!("it has a postinstall script"), &json!(["uvx"]))
    );
}

#[test]
fn a_binary_is_installed_in_a_folder_of_its_own_if_it_is_the_published_one() {
    let work = TempDir::new().expect("a folder");
    fs::create_dir(work.path().join("tool")).unwrap();
    write_script(&work.path().join("tool"), "agent", &format!("exec {BUS} agent echo"));
    let archive = work.path().join("tool.tar.gz");
    let packed =
        Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(work.path()).arg("tool").status();
    assert!(packed.expect("tar runs").success());
    let sum = Command::new("sha256sum").arg(&archive).output().expect("sha256sum runs");
    let sum = String::from_utf8_lossy(&sum.stdout).split(' ').next().unwrap().to_owned();
    let binary = |sha256: Option<&str>| {
        let url = format!("file://{}", archive.display());
        let platform = format!("linux-{}", std::env::consts::ARCH);
        json!({ "binary": { platform: { "archive": url, "cmd": "./tool/agent", "sha256": sha256 } } })
    };
    let wrong = sum.replace('0', "1");
    let folder = folder(&[
        entry("right", &binary(Some(&sum))),
        entry("wrong", &binary(Some(&wrong))),
        entry("unknown", &binary(None)),
    ]);
    let path = folder.path();
    let (code, said) = add(path, &["wrong", "--yes"]);
    assert!(code == Some(1) && said.contains("not the published one"), "{said}");
    let (code, said) = add(path, &["unknown", "--yes"]);
    assert!(code == Some(1) && said.contains(&sum), "{said}");
    let (code, said) = add(path, &["right", "--yes"]);
    assert_eq!(code, Some(0), "{said}");
    let program = pools(path)[0]["command"].as_str().expect("a program").to_owned();
    let installed = path.join(".local/share/stdio-bus/agents");
    assert!(
        Path::new(&program).starts_with(&installed) && program.ends_with("/right/1.2.3/tool/agent"),
        "{program}"
    );
    let left: Vec<_> = fs::read_dir(&installed).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 1, "no quarantine is left: {left:?}");
    assert!(stdio_bus(path, &["check", "--probe"]).status.success());
}

#[test]
fn an_index_of_the_web_is_kept_and_used_while_it_cannot_be_asked_for() {
    let folder = folder(&[]);
    let path = folder.path();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/registry.json", listener.local_addr().unwrap());
    let body = json!({ "agents": [entry("web", &npx("web@1.0.0"))] }).to_string();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        let _ = stream.read(&mut request);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).unwrap();
    });
    let first = stdio_bus(path, &["agents", "--registry", &url]);
    assert!(String::from_utf8_lossy(&first.stdout).contains("web"), "{first:?}");
    server.join().unwrap();
    // Nobody listens there any more.
    let kept = stdio_bus(path, &["agents"]);
    assert!(String::from_utf8_lossy(&kept.stdout).contains("web") && kept.stderr.is_empty(), "{kept:?}");
    let old = stdio_bus(path, &["agents", "--refresh"]);
    assert!(String::from_utf8_lossy(&old.stdout).contains("web"), "{old:?}");
    assert!(String::from_utf8_lossy(&old.stderr).contains("using an old copy of the index"), "{old:?}");
    let none = stdio_bus(path, &["agents", "--registry", "http://example.org/registry.json"]);
    assert!(String::from_utf8_lossy(&none.stderr).contains("only https is safe"), "{none:?}");
}

#[test]
fn at_a_terminal_the_user_is_asked() {
    let folder = folder(&[entry("good", &npx("good@1.2.3"))]);
    let index = folder.path().join("registry.json");
    let start = || {
        let args = ["good", "--registry", index.to_str().unwrap(), "--config", "@dir/bus.json"];
        let plan = Program::plan(&args).command_is("add");
        let search = format!("{}:/usr/bin:/bin", folder.path().display());
        plan.env("HOME", folder.path().to_str().unwrap()).env("PATH", &search).at_terminal()
    };
    let mut asked = start();
    asked.shows("[y/N]");
    asked.types("\n");
    assert_eq!(asked.ends(), 5);
    assert!(!asked.folder().join("bus.json").exists());
    let mut asked = start();
    asked.shows("[y/N]");
    asked.types("y\n");
    assert_eq!(asked.ends(), 0);
    let pool = pools(asked.folder())[0].clone();
    assert_eq!(pool["command"], folder.path().join("npx").display().to_string());
    assert_eq!(pool["warm"], false, "it starts when it is first used");
}

#[test]
fn a_login_runs_the_agent_with_what_its_method_adds() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path();
    let script = r#"case "$2" in
        --login) echo "$1 $KEY" > done; exit 0;;
        --fail) exit 3;;
    esac
    while read line; do case "$line" in
        *'"terminal":true'*) echo '{"id":1,"result":{"protocolVersion":1,"authMethods":[{"id":"key","name":"Key"},
            {"id":"term","name":"In the terminal","type":"terminal","args":["--login"],"env":{"KEY":"k"}},
            {"id":"bad","name":"Bad","type":"terminal","args":["--fail"]}]}}' | tr -d '\n'; echo;;
        *authenticate*'"key"'*) echo '{"id":2,"result":{}}';;
        *) echo '{"id":1,"result":{"protocolVersion":1}}';;
    esac; done"#;
    write_script(path, "agent", script);
    let pool = json!({ "id": "a", "command": "./agent", "args": ["base"] });
    fs::write(path.join("bus.json"), json!({ "pools": [pool] }).to_string()).unwrap();
    let login = |more: &[&str]| {
        let mut command = Command::new(BUS);
        command.args(["agents", "login", "a"]).args(more).current_dir(path);
        let out = command.env_remove("STDIO_BUS_CONFIG").output().expect("it runs");
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (code, said) = login(&[]);
    assert!(said.starts_with("asking the agent of the pool a how to log in"), "{said}");
    assert!(code == Some(0) && said.contains("agent base --login"), "{said}");
    assert_eq!(fs::read_to_string(path.join("done")).unwrap(), "base k\n");
    let (code, said) = login(&["--method", "bad"]);
    assert!(code == Some(1) && said.contains("exit status: 3"), "{said}");
    let (code, said) = login(&["--method", "key"]);
    assert!(code == Some(0) && said.contains("logged in (Key)"), "{said}");
    let (code, said) = login(&["--method", "none"]);
    assert!(code == Some(1) && said.contains("the agent offers key, term, bad"), "{said}");
}

#[test]
fn a_login_behind_agent_env_has_the_terminal() {
    let login = Program::plan(&["login", "a", "--config", "@dir/bus.json"]).command_is("agents");
    let script = r#"case "$1" in --login) test -t 0 && echo "at a terminal"; read key; exit 0;; esac
    method='{"id":"t","name":"T","type":"terminal","args":["--login"]}'
    while read line; do
        echo '{"id":1,"result":{"protocolVersion":1,"authMethods":['"$method"']}}'
    done"#;
    write_script(login.folder(), "agent", script);
    let agent = login.folder().join("agent");
    let args = json!(["agent", "env", "--allow", "A_*", "--", agent]);
    let pool = json!({ "id": "a", "command": "stdio-bus", "args": args });
    fs::write(login.folder().join("bus.json"), json!({ "pools": [pool] }).to_string()).unwrap();
    let mut login = login.at_terminal();
    login.shows("at a terminal");
    login.types("k\n");
    login.shows("logged in");
    assert_eq!(login.ends(), 0);
}

#[test]
fn our_own_entry_installs_our_own_binary() {
    let folder = folder(&[]);
    let path = folder.path();
    let bus = Path::new(BUS);
    let name = format!("stdio-bus-linux-{}.tar.gz", std::env::consts::ARCH);
    let mut tar = Command::new("tar");
    tar.args(["-I", "gzip -1", "-cf"])
        .arg(path.join(&name))
        .arg("-C")
        .arg(bus.parent().unwrap())
        .arg("stdio-bus");
    assert!(tar.status().expect("tar runs").success());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/registry/entry");
    let made = Command::new(script).arg(format!("file://{}", path.display())).arg(path.join(&name)).output();
    let entry: Value = serde_json::from_slice(&made.expect("it runs").stdout).expect("JSON");
    assert_eq!(entry["version"], env!("CARGO_PKG_VERSION"));
    fs::write(path.join("registry.json"), json!({ "agents": [entry] }).to_string()).unwrap();
    let (code, said) = add(path, &["stdio-bus", "--yes"]);
    assert_eq!(code, Some(0), "{said}");
    let probed = stdio_bus(path, &["check", "--probe"]);
    assert!(probed.status.success(), "{}", String::from_utf8_lossy(&probed.stderr));
}
