//! The results of a command on the standard output, the one way there. Owns what happens when they cannot be written;
//! knows no command. What ranks print goes through `run::output`.

use anyhow::{Context, Result};
use std::fmt::Arguments;
use std::io::{ErrorKind, Write as _};

/// Prints a line of results. A command whose reader has gone ends well with it.
macro_rules! say {
    ($($line:tt)*) => { $crate::results::say(format_args!($($line)*)) };
}

/// Who read the results and has gone has seen enough, so the command ends well then. What cannot be written is no result.
pub(crate) fn say(line: Arguments<'_>) {
    match write(format_args!("{line}\n")) {
        Ok(true) => {}
        Ok(false) => std::process::exit(0),
        Err(error) => {
            eprintln!("rma bench: {error:#}");
            std::process::exit(1);
        }
    }
}

/// Prints results at once; whether somebody still reads them.
pub(crate) fn write(text: Arguments<'_>) -> Result<bool> {
    let mut out = std::io::stdout();
    match out.write_fmt(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true).context("writing the results"),
    }
}
