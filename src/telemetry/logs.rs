//! Logs: one line for each fact, on standard error, for people or for machines.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

/// How a line looks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

/// Which lines are written: a level such as `debug`, or directives such as `info,kube=debug`.
#[derive(Clone, Debug)]
pub struct Level(String);

impl Level {
    /// Nothing.
    #[must_use]
    pub fn off() -> Self {
        Self("off".to_owned())
    }

    /// What the agent did, and none of its libraries' words.
    #[must_use]
    pub fn info() -> Self {
        Self::of("info")
    }

    /// The libraries' own words only when they are asked for: the agent says what failed, and says it once.
    fn of(level: &str) -> Self {
        let libraries = if matches!(level, "debug" | "trace") {
            "warn"
        } else {
            "off"
        };
        Self(format!("{libraries},imagecache_agent={level}"))
    }

    /// Reads a level or directives.
    pub fn parse(text: &str) -> Result<Self, String> {
        const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
        let level = text.trim().to_ascii_lowercase();
        if LEVELS.contains(&level.as_str()) {
            return Ok(Self::of(&level));
        }
        match EnvFilter::builder().parse(text) {
            Ok(_) if text.contains('=') => Ok(Self(text.to_owned())),
            _ => Err("one of off, error, warn, info, debug, trace, or directives such as info,kube=debug".to_owned()),
        }
    }

    fn filter(&self) -> EnvFilter {
        EnvFilter::new(&self.0)
    }
}

/// Starts writing to standard error. What was started before stays.
pub fn start(format: Format, level: &Level) {
    let terminal = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let _ = subscriber(format, level, terminal, io::stderr).try_init();
}

fn subscriber<W>(
    format: Format,
    level: &Level,
    colours: bool,
    writer: W,
) -> Box<dyn tracing::Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt()
        .with_env_filter(level.filter())
        .with_target(false)
        .with_ansi(colours)
        // They would go to standard error too, and end the process if that cannot be written.
        .log_internal_errors(false)
        .with_writer(OneLine(writer));
    match format {
        Format::Human => Box::new(lines.finish()),
        Format::Json => Box::new(
            lines
                .json()
                .flatten_event(true)
                .with_current_span(false)
                .with_span_list(false)
                .finish(),
        ),
    }
}

/// Writes each event as one line: a runtime's message can hold the line breaks of a registry's answer.
struct OneLine<W>(W);

impl<'w, W: MakeWriter<'w>> MakeWriter<'w> for OneLine<W> {
    type Writer = OneLine<W::Writer>;

    fn make_writer(&'w self) -> Self::Writer {
        OneLine(self.0.make_writer())
    }
}

impl<W: Write> Write for OneLine<W> {
    /// An event comes in one call, with a line break at its end.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let line = event.strip_suffix(b"\n").unwrap_or(event);
        let mut out = Vec::with_capacity(event.len());
        for byte in line {
            match byte {
                b'\n' => out.extend(br"\n"),
                b'\r' => out.extend(br"\r"),
                byte => out.push(*byte),
            }
        }
        out.push(b'\n');
        self.0.write_all(&out).map(|()| event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(format: Format, level: &str, act: impl FnOnce()) -> String {
        let buffer = Buffer::default();
        let into = buffer.clone();
        let subscriber = subscriber(format, &Level::parse(level).unwrap(), false, move || {
            into.clone()
        });
        tracing::subscriber::with_default(subscriber, act);
        let bytes = buffer.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    fn pull_failed() {
        let error = "unexpected status\n<html>\r\n</html>";
        tracing::warn!(image = "docker.io/library/a:1", %error, attempt = 2, "pull failed");
    }

    #[test]
    fn an_event_is_one_line_whatever_it_holds() {
        let text = written(Format::Human, "info", pull_failed);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(
            text.ends_with("WARN pull failed image=\"docker.io/library/a:1\" error=unexpected status\\n<html>\\r\\n</html> attempt=2\n"),
            "{text}"
        );
    }

    #[test]
    fn a_json_line_has_the_fields_beside_the_message() {
        let text = written(Format::Json, "info", pull_failed);
        let line: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
        assert_eq!(line.get("message").unwrap(), "pull failed");
        assert_eq!(line.get("level").unwrap(), "WARN");
        assert_eq!(line.get("attempt").unwrap(), 2);
        assert_eq!(
            line.get("error").unwrap(),
            "unexpected status\n<html>\r\n</html>"
        );
    }

    #[test]
    fn a_level_is_about_the_agent_and_not_about_its_libraries() {
        let act = || {
            tracing::debug!("debug of the agent");
            tracing::info!("info of the agent");
            tracing::error!(target: "kube_client::client", "error of a library");
        };
        let text = written(Format::Human, "info", act);
        assert_eq!(text.lines().count(), 1, "{text}");
        let text = written(Format::Human, "off,kube_client=error", act);
        assert!(text.ends_with("error of a library\n"), "{text}");
    }

    #[test]
    fn a_level_that_is_none_is_refused() {
        for text in ["verbose", "", "a=b=c", "imagecache_agent=loud"] {
            assert!(Level::parse(text).unwrap_err().contains("debug"), "{text}");
        }
    }
}
