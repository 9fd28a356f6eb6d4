//! Go's `filepath.Match`, which the kubelet matches the parts of host names with.

use std::iter::Peekable;
use std::str::Chars;

enum Token {
    /// Any number of characters.
    Star,
    /// One character, whichever.
    Any,
    /// One character in one of these ranges; or, if negated, in none.
    Set(bool, Vec<(char, char)>),
}

/// Whether the whole name matches the pattern: `*` stands for any number of characters, `?` for one, `[a-c]` and `[^a-c]` for one
/// of a set, and `\` takes the next character as it is. A malformed pattern matches nothing.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    tokens(pattern).is_some_and(|tokens| matches_all(&tokens, &name))
}

fn tokens(pattern: &str) -> Option<Vec<Token>> {
    let mut chars = pattern.chars().peekable();
    let mut tokens = Vec::new();
    while let Some(c) = chars.next() {
        tokens.push(match c {
            '*' => Token::Star,
            '?' => Token::Any,
            '[' => set(&mut chars)?,
            '\\' => exactly(chars.next()?),
            other => exactly(other),
        });
    }
    Some(tokens)
}

fn exactly(c: char) -> Token {
    Token::Set(false, vec![(c, c)])
}

/// What follows a `[`: at least one character or range, up to the `]`.
fn set(chars: &mut Peekable<Chars<'_>>) -> Option<Token> {
    let negated = chars.next_if_eq(&'^').is_some();
    let mut ranges = Vec::new();
    loop {
        if !ranges.is_empty() && chars.next_if_eq(&']').is_some() {
            return Some(Token::Set(negated, ranges));
        }
        let low = member(chars)?;
        let high = match chars.next_if_eq(&'-') {
            Some(_) => member(chars)?,
            None => low,
        };
        ranges.push((low, high));
    }
}

fn member(chars: &mut Peekable<Chars<'_>>) -> Option<char> {
    match chars.next()? {
        '-' | ']' => None,
        '\\' => chars.next(),
        other => Some(other),
    }
}

/// One star to come back to is enough: what an earlier one could take, the last one can.
fn matches_all(tokens: &[Token], name: &[char]) -> bool {
    let (mut at, mut from) = (0, 0);
    let mut star = None;
    loop {
        match (tokens.get(at), name.get(from)) {
            (None, None) => return true,
            (Some(Token::Star), _) => {
                star = Some((at + 1, from));
                at += 1;
            }
            (Some(token), Some(c)) if is_one(token, *c) => (at, from) = (at + 1, from + 1),
            _ => match star {
                Some((after, taken)) if taken < name.len() => {
                    star = Some((after, taken + 1));
                    (at, from) = (after, taken + 1);
                }
                _ => return false,
            },
        }
    }
}

fn is_one(token: &Token, c: char) -> bool {
    match token {
        Token::Star => false,
        Token::Any => true,
        Token::Set(negated, ranges) => {
            let is_in = ranges.iter().any(|(low, high)| (*low..=*high).contains(&c));
            is_in != *negated
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of Go's own test that have no slash in them, which no part of a host name has.
    #[test]
    fn it_matches_as_go_does() {
        for (pattern, name, expected) in [
            ("abc", "abc", true),
            ("*", "abc", true),
            ("*c", "abc", true),
            ("a*", "a", true),
            ("a*", "abc", true),
            ("a*b*c*d*e*", "axbxcxdxe", true),
            ("a*b*c*d*e*", "axbxcxdxexxx", true),
            ("a*b?c*x", "abxbbxdbxebxczzx", true),
            ("a*b?c*x", "abxbbxdbxebxczzy", false),
            ("ab[c]", "abc", true),
            ("ab[b-d]", "abc", true),
            ("ab[e-g]", "abc", false),
            ("ab[^c]", "abc", false),
            ("ab[^b-d]", "abc", false),
            ("ab[^e-g]", "abc", true),
            (r"a\*b", "a*b", true),
            (r"a\*b", "ab", false),
            ("a?b", "a☺b", true),
            ("a[^a]b", "a☺b", true),
            ("a???b", "a☺b", false),
            ("[a-ζ]*", "α", true),
            ("*[a-ζ]", "A", false),
            (r"[\]a]", "]", true),
            (r"[\-]", "-", true),
            (r"[x\-]", "x", true),
            (r"[x\-]", "z", false),
            (r"[\-x]", "a", false),
            ("[]a]", "]", false),
            ("[-]", "-", false),
            ("[x-]", "x", false),
            ("[-x]", "x", false),
            (r"\", "a", false),
            ("[a-b-c]", "a", false),
            ("[", "a", false),
            ("[^", "a", false),
            ("[^bc", "a", false),
            ("a[", "a", false),
            ("a[", "ab", false),
            ("*x", "xxx", true),
            ("", "", true),
            ("*", "", true),
            ("?", "", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} ~ {name}");
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        let pattern = "*a".repeat(200);
        assert!(!matches(&pattern, &"a".repeat(199)));
        assert!(matches(&pattern, &"a".repeat(5000)));
    }
}
