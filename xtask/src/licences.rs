//! The licences of every dependency against a list of those that are allowed; deny.toml holds the same list.
//! An SPDX expression is evaluated here: `OR` needs one side, `AND` both, and `WITH` makes a licence of its own.

use crate::metadata::Metadata;
use anyhow::{Result, bail, ensure};

/// What a dependency may be licensed under. To be kept equal to `allow` in deny.toml.
const ALLOWED: [&str; 8] =
    ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "ISC", "Unicode-3.0", "Zlib"];

/// Says how many packages were looked at; an error names those that are not allowed.
pub(crate) fn check(metadata: &Metadata) -> Result<String> {
    let mut refused = Vec::new();
    for package in &metadata.packages {
        let verdict = match &package.license {
            None => Some("no licence is given".into()),
            Some(licence) => match is_allowed(licence) {
                Ok(true) => None,
                Ok(false) => Some(format!("{licence} is not allowed")),
                Err(error) => Some(format!("cannot read {licence:?}: {error}")),
            },
        };
        refused.extend(verdict.map(|why| format!("{} {}: {why}", package.name, package.version)));
    }
    ensure!(refused.is_empty(), "{}\nallowed are: {}", refused.join("\n"), ALLOWED.join(", "));
    Ok(format!("{} packages", metadata.packages.len()))
}

fn is_allowed(expression: &str) -> Result<bool> {
    // The slash is how older crates spell OR.
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words: Vec<_> = spaced.split_whitespace().rev().collect();
    let allowed = any(&mut words)?;
    ensure!(words.is_empty(), "{:?} is left over", words[words.len() - 1]);
    Ok(allowed)
}

/// `all (OR all)*`. The words are in reverse, so that the next one is the last.
fn any(words: &mut Vec<&str>) -> Result<bool> {
    let mut allowed = all(words)?;
    while words.pop_if(|word| *word == "OR").is_some() {
        allowed |= all(words)?;
    }
    Ok(allowed)
}

/// `one (AND one)*`
fn all(words: &mut Vec<&str>) -> Result<bool> {
    let mut allowed = one(words)?;
    while words.pop_if(|word| *word == "AND").is_some() {
        allowed &= one(words)?;
    }
    Ok(allowed)
}

/// `( any )`, a licence, or a licence WITH an exception.
fn one(words: &mut Vec<&str>) -> Result<bool> {
    match words.pop() {
        Some("(") => {
            let allowed = any(words)?;
            ensure!(words.pop() == Some(")"), "a parenthesis is not closed");
            Ok(allowed)
        }
        None | Some(")" | "OR" | "AND" | "WITH") => bail!("a licence is missing"),
        Some(licence) if words.pop_if(|word| *word == "WITH").is_some() => match words.pop() {
            Some(exception) => Ok(ALLOWED.contains(&format!("{licence} WITH {exception}").as_str())),
            None => bail!("an exception is missing"),
        },
        Some(licence) => Ok(ALLOWED.contains(&licence)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_side_of_or_is_enough() {
        for expression in ["MIT", "MIT OR Apache-2.0", "GPL-3.0 OR MIT", "Unlicense OR MIT", "Unlicense/MIT"] {
            assert!(is_allowed(expression).unwrap(), "{expression}");
        }
        assert!(!is_allowed("GPL-3.0 OR Unlicense").unwrap());
    }

    #[test]
    fn both_sides_of_and_are_needed() {
        assert!(is_allowed("(MIT OR Apache-2.0) AND Unicode-3.0").unwrap());
        assert!(!is_allowed("MIT AND GPL-3.0").unwrap());
    }

    #[test]
    fn and_binds_tighter_than_or() {
        assert!(is_allowed("MIT OR GPL-3.0 AND GPL-2.0").unwrap());
        assert!(!is_allowed("(MIT OR GPL-3.0) AND GPL-2.0").unwrap());
    }

    #[test]
    fn an_exception_makes_a_licence_of_its_own() {
        assert!(is_allowed("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT").unwrap());
        assert!(!is_allowed("MIT WITH LLVM-exception").unwrap());
    }

    #[test]
    fn a_broken_expression_is_an_error() {
        for expression in ["", "MIT OR", "(MIT", "MIT MIT", "OR MIT", "MIT)", "MIT WITH"] {
            assert!(is_allowed(expression).is_err(), "{expression:?}");
        }
    }

    #[test]
    fn deny_toml_allows_the_same() {
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../deny.toml")).unwrap();
        let list = text.split("allow = [").nth(1).and_then(|rest| rest.split(']').next()).unwrap();
        let theirs: Vec<_> = list.split('"').skip(1).step_by(2).collect();
        assert_eq!(theirs, ALLOWED);
    }
}
