//! How the demo speaks: titles, sentences, commands as they were given, and what they answered.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Instant;

use anyhow::Result;

/// Standard output, with colours where a person sees it as it comes.
pub(crate) struct Terminal {
    colours: bool,
}

impl Terminal {
    /// Colours only on a terminal, and not where `NO_COLOR` asks for none.
    pub(crate) fn new() -> Self {
        let asked_for_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            colours: io::stdout().is_terminal() && !asked_for_none,
        }
    }

    /// The next part of the story.
    pub(crate) fn title(&self, text: &str) {
        println!("\n{}", self.paint("1;36", &format!("── {text}")));
    }

    /// What there is to see.
    pub(crate) fn say(&self, text: &str) {
        println!("{}", self.paint("3", text));
    }

    /// A fact worth remembering.
    pub(crate) fn result(&self, text: &str) {
        println!("{} {text}", self.paint("1;32", "✓"));
    }

    /// A command, before it is run.
    pub(crate) fn command(&self, line: &str) {
        println!("\n{} {}", self.paint("32", "$"), self.paint("1", line));
    }

    /// What a command or a file says, without the lines of white space around it.
    pub(crate) fn output(text: &str) {
        println!("{}", text.trim_matches('\n'));
    }

    /// Something that takes a while: says what, then how long it took.
    pub(crate) async fn step<T>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        print!("  {what} ... ");
        io::stdout().flush()?;
        let start = Instant::now();
        let done = work.await;
        match &done {
            Ok(_) => println!("{}", self.paint("2", &seconds(start))),
            Err(_) => println!(),
        }
        done
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colours {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}

/// The time since then, as people say it.
pub(crate) fn seconds(since: Instant) -> String {
    format!("{:.1} s", since.elapsed().as_secs_f64())
}
