//! The results of a command on the standard output, the one way there. Owns what happens when they cannot be written;
//! knows no command. What ranks print goes through `run::output`.

use anyhow::{Context, Result};
use std::fmt::Arguments;
use std::io::{ErrorKind, Write as _};

/// Prints results at once; whether somebody still reads them.
pub(crate) fn write(text: Arguments<'_>) -> Result<bool> {
    let mut out = std::io::stdout();
    match out.write_fmt(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true).context("writing the results"),
    }
}
