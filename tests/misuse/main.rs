//! Misuse that types cannot catch: each is a named error that tells the value, the limit and the mend, and harms nothing.
#![deny(unsafe_code)]

mod arguments;
mod memory;
mod ranks;

use rma::{Comm, Config, Error};

/// A job of one rank.
fn alone() -> Comm {
    Comm::alone(Config::default()).expect("one rank needs nothing")
}

/// The error of a call that must fail; its text must have all these words.
#[track_caller]
fn refused<T>(result: rma::Result<T>, words: &[&str]) -> Error {
    let Err(error) = result else { panic!("no error where one with {words:?} is due") };
    let text = error.full_text();
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in: {text}");
    }
    // Lower case, but for the name of a variable; no full stop.
    let begins_well = text.starts_with("RMA_") || text.chars().next().is_some_and(|first| !first.is_uppercase());
    assert!(begins_well && !text.ends_with('.'), "not the style of errors: {text}");
    error
}
