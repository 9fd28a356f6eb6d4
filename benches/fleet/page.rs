//! The page that the numbers are written to.

use std::fmt::Write;

/// One measured number beside what it should be.
pub struct Number {
    pub what: &'static str,
    /// What was measured, with its unit.
    pub measured: String,
    /// The aim, with its unit.
    pub aim: &'static str,
    pub is_met: bool,
    /// How it was measured, or why the aim was missed.
    pub note: String,
}

/// The page. `to_come` are the stages that were not run yet.
pub fn render(numbers: &[Number], to_come: &[&str]) -> String {
    let mut page = String::from(
        "# Performance\n\n\
         Written by `make bench` (as root). Ratios compare with a raw CRI client, two pulls at a time, in the same run on the same\n\
         nodes; times are medians. The nodes are three containerds (2.4, 1.7, 1.6) on one machine with a local registry, so that\n\
         absolute times say more about that machine than about yours.\n\n",
    );
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let _ = writeln!(
        page,
        "This run: {cores} cores, {}.\n",
        std::env::consts::ARCH
    );
    page.push_str("| what | measured | aim | met | how |\n|---|---|---|---|---|\n");
    for number in numbers {
        let met = if number.is_met { "yes" } else { "**no**" };
        let _ = writeln!(
            page,
            "| {} | {} | {} | {met} | {} |",
            number.what, number.measured, number.aim, number.note
        );
    }
    if !to_come.is_empty() {
        let _ = writeln!(page, "\nNot measured in this run: {}.", to_come.join(", "));
    }
    page
}
