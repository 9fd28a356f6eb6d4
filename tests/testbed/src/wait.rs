//! Waiting for a condition with a deadline, instead of sleeping for a time that was right once.

use std::time::{Duration, Instant};

use anyhow::Result;

const POLL: Duration = Duration::from_millis(25);

/// Looks until `look` answers `Ok`, or fails after `deadline` with what it saw last.
///
/// `look` says `Err` for "not yet", with what it saw instead:
///
/// ```
/// # use std::time::Duration;
/// # async fn count() -> anyhow::Result<usize> { Ok(3) }
/// # async fn example() -> anyhow::Result<()> {
/// testbed::wait_for("three nodes", Duration::from_secs(10), async || {
///     let n = count().await?;
///     anyhow::ensure!(n == 3, "{n} nodes");
///     Ok(())
/// })
/// .await
/// # }
/// ```
pub async fn wait_for<T>(
    what: impl std::fmt::Display,
    deadline: Duration,
    mut look: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let end = Instant::now() + deadline;
    let mut seen = None;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left, look()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => seen = Some(error),
            // A look that hangs says less than the one before it.
            Err(_) => seen = seen.or_else(|| Some(anyhow::anyhow!("a look that did not end"))),
        }
        if Instant::now() + POLL >= end {
            let seen = seen.map_or_else(String::new, |e| format!("; seen last: {e:#}"));
            anyhow::bail!("waited {deadline:?} for {what}{seen}");
        }
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn a_condition_that_comes_true_ends_the_wait() {
        let mut n = 0;
        let got = wait_for("five", Duration::from_secs(5), async || {
            n += 1;
            anyhow::ensure!(n == 5, "{n}");
            Ok(n)
        });
        assert_eq!(got.await.unwrap(), 5);
    }

    #[tokio::test]
    async fn a_deadline_says_what_was_seen_last() {
        let got = wait_for::<()>("rain", Duration::from_millis(60), async || {
            anyhow::bail!("sun")
        })
        .await;
        assert_eq!(
            got.unwrap_err().to_string(),
            "waited 60ms for rain; seen last: sun"
        );
    }

    #[tokio::test]
    async fn a_look_that_hangs_does_not_outlive_the_deadline() {
        let got = wait_for::<()>("an answer", Duration::from_millis(60), async || {
            std::future::pending().await
        })
        .await;
        assert!(got.unwrap_err().to_string().contains("did not end"));
    }
}
