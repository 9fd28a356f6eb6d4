//! The words of a summary: numbers, names, lists.

use std::fmt;

use crate::api::condition::cut;
use crate::api::image_cache::{ImageList, MatchExpression, Operator};

/// The most names in a sentence, and the most clauses of one kind.
pub const MOST_NAMED: usize = 3;

/// The longest text of a selector, in bytes.
const MAX_SELECTOR: usize = 120;

/// Names of nodes, of which a sentence tells the first.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Names<'a> {
    first: Vec<&'a str>,
    count: usize,
}

/// A number of things: `1 node`, `3 nodes`.
pub struct Counted(pub usize, pub &'static str);

/// How messages name an image list: `cacheSpec[1] (tier=backend)`.
pub struct Named<'a>(pub usize, pub &'a ImageList);

impl<'a> Names<'a> {
    pub fn add(&mut self, name: &'a str) {
        self.count += 1;
        if self.first.len() < MOST_NAMED {
            self.first.push(name);
        }
    }

    pub const fn count(&self) -> usize {
        self.count
    }
}

impl<'a> FromIterator<&'a str> for Names<'a> {
    fn from_iter<I: IntoIterator<Item = &'a str>>(names: I) -> Self {
        let mut all = Self::default();
        names.into_iter().for_each(|name| all.add(name));
        all
    }
}

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.first.join(", "))?;
        more(f, self.count - self.first.len())
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.0 == 1 { "" } else { "s" };
        write!(f, "{} {}{plural}", self.0, self.1)
    }
}

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = self.1.node_selector.iter();
        let labels = labels.map(|(key, value)| format!("{key}={value}"));
        let all: Vec<_> = labels
            .chain(self.1.match_expressions.iter().map(requirement))
            .collect();
        match all.join(",") {
            selector if selector.is_empty() => write!(f, "cacheSpec[{}] (every node)", self.0),
            selector if selector.len() > MAX_SELECTOR => {
                write!(
                    f,
                    "cacheSpec[{}] ({}…)",
                    self.0,
                    cut(&selector, MAX_SELECTOR)
                )
            }
            selector => write!(f, "cacheSpec[{}] ({selector})", self.0),
        }
    }
}

/// A requirement as kubectl's `--selector` takes it.
fn requirement(expression: &MatchExpression) -> String {
    let MatchExpression {
        key,
        operator,
        values,
    } = expression;
    let values = values.join(",");
    match operator {
        Operator::In => format!("{key} in ({values})"),
        Operator::NotIn => format!("{key} notin ({values})"),
        Operator::Exists => key.clone(),
        Operator::DoesNotExist => format!("!{key}"),
        Operator::Gt => format!("{key}>{values}"),
        Operator::Lt => format!("{key}<{values}"),
    }
}

/// Some clauses, and how many more there are.
pub fn some(mut clauses: impl Iterator<Item = String>) -> Vec<String> {
    let mut some: Vec<_> = clauses.by_ref().take(MOST_NAMED).collect();
    match clauses.count() {
        0 => {}
        left => some.push(format!("and {left} more")),
    }
    some
}

/// Has or have, are or is: the verb for so many.
pub const fn verb(count: usize, one: &'static str, several: &'static str) -> &'static str {
    if count == 1 { one } else { several }
}

fn more(f: &mut fmt::Formatter<'_>, count: usize) -> fmt::Result {
    match count {
        0 => Ok(()),
        count => write!(f, " and {count} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_names_are_told_and_the_others_counted() {
        for (names, told) in [
            (&[][..], ""),
            (&["a"], "a"),
            (&["a", "b", "c"], "a, b, c"),
            (&["a", "b", "c", "d", "e"], "a, b, c and 2 more"),
        ] {
            let names: Names = names.iter().copied().collect();
            assert_eq!(names.to_string(), told);
        }
    }

    #[test]
    fn a_list_is_named_by_its_position_and_its_selector() {
        let expression = |key: &str, operator, values: &[&str]| MatchExpression {
            key: key.to_owned(),
            operator,
            values: values.iter().map(|&value| value.to_owned()).collect(),
        };
        let mut list = ImageList::default();
        assert_eq!(Named(0, &list).to_string(), "cacheSpec[0] (every node)");
        list.node_selector
            .insert("tier".to_owned(), "backend".to_owned());
        assert_eq!(Named(1, &list).to_string(), "cacheSpec[1] (tier=backend)");
        list.match_expressions = vec![
            expression("zone", Operator::In, &["a", "b"]),
            expression("zone", Operator::NotIn, &["c"]),
            expression("gpu", Operator::Exists, &[]),
            expression("old", Operator::DoesNotExist, &[]),
            expression("cpus", Operator::Gt, &["4"]),
            expression("cpus", Operator::Lt, &["9"]),
        ];
        assert_eq!(
            Named(1, &list).to_string(),
            "cacheSpec[1] (tier=backend,zone in (a,b),zone notin (c),gpu,!old,cpus>4,cpus<9)"
        );
        list.match_expressions
            .push(expression("long", Operator::In, &[&"ä".repeat(99)]));
        let long = Named(1, &list).to_string();
        assert!(long.len() < 150 && long.ends_with("ä…)"), "{long}");
    }
}
