//! An exec credential provider for the tests, which does what its first argument says.
//!
//! It notes the image of each request in the file `PLUGIN_LOG`, knows the password that is in `PLUGIN_PASSWORD`, tells the ID of a
//! child in the file `PLUGIN_CHILD`, and fails for as long as there is a file `PLUGIN_FAILS`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::env::{self, var};
use std::fs::{self, OpenOptions};
use std::io::{Write, stdin};
use std::path::Path;
use std::process::{Command, exit};

use serde_json::{Value, json};

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let request: Value = serde_json::from_reader(stdin()).expect("a request");
    let image = request.get("image").and_then(Value::as_str).unwrap();
    let mut log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(var("PLUGIN_LOG").expect("PLUGIN_LOG"))
        .unwrap();
    writeln!(log, "{image}").unwrap();
    // A file is read anew at each run.
    let password = var("PLUGIN_PASSWORD").expect("PLUGIN_PASSWORD");
    let password = fs::read_to_string(&password).unwrap_or(password);
    let fails = Path::new(&var("PLUGIN_FAILS").expect("PLUGIN_FAILS")).exists();
    match arguments.as_slice() {
        ["fail"] => fail(&password),
        _ if fails => fail(&password),
        ["answer", scope, duration, registry] => {
            let answer = json!({
                "kind": "CredentialProviderResponse",
                "apiVersion": request.get("apiVersion"),
                "cacheKeyType": scope,
                "cacheDuration": duration,
                "auth": {*registry: {"username": "alice", "password": password}},
            });
            println!("{answer}");
        }
        ["garble"] => println!("{{\"password\": {password}"),
        ["flood"] => println!("{}", password.repeat(1 << 20)),
        ["hang"] => {
            let mut child = Command::new("sleep").arg("600").spawn().unwrap();
            let file = var("PLUGIN_CHILD").expect("PLUGIN_CHILD");
            fs::write(format!("{file}.new"), child.id().to_string()).unwrap();
            fs::rename(format!("{file}.new"), file).unwrap();
            child.wait().unwrap();
        }
        other => panic!("{other:?}"),
    }
}

fn fail(password: &str) -> ! {
    println!("{{\"password\": \"{password}\"}}");
    eprintln!("cannot log in as alice:{password} with password for alice which is hunter");
    eprintln!("the second line has {password} too");
    exit(3);
}
