//! Whether a program can be executed, found out before anything is started. Follows the rules of execvp; starts nothing.

use rustix::fs::{Access, access};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::Path;

/// A program that is not there or cannot be executed.
#[derive(Debug)]
pub(crate) struct NotRunnable {
    program: OsString,
    reason: Reason,
}

#[derive(Debug)]
enum Reason {
    NotFound,
    NotInPath { is_here: bool },
    Directory,
    NotExecutable,
}

impl NotRunnable {
    /// As a shell has it: 127 if it was not found, 126 if it cannot be executed.
    pub(crate) fn code(&self) -> u8 {
        match self.reason {
            Reason::NotFound | Reason::NotInPath { .. } => 127,
            Reason::Directory | Reason::NotExecutable => 126,
        }
    }
}

impl fmt::Display for NotRunnable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = self.program.to_string_lossy();
        write!(f, "cannot run {program:?}: ")?;
        match self.reason {
            Reason::NotFound => write!(f, "no such file"),
            Reason::NotInPath { is_here: false } => write!(f, "no such program in PATH"),
            Reason::NotInPath { is_here: true } => {
                write!(f, "no such program in PATH; for the file in this directory write ./{program}")
            }
            Reason::Directory => write!(f, "it is a directory"),
            Reason::NotExecutable => write!(f, "permission denied; if it is a program, make it executable: chmod +x {program}"),
        }
    }
}

impl std::error::Error for NotRunnable {}

/// Names the reason if the program cannot be executed. That it can now is no promise: exec has the last word.
pub(crate) fn check(program: &OsStr) -> Result<(), NotRunnable> {
    let refused = |reason| Err(NotRunnable { program: program.to_owned(), reason });
    if program.as_encoded_bytes().contains(&b'/') {
        return look_at(Path::new(program)).or_else(refused);
    }
    if program.is_empty() {
        return refused(Reason::NotInPath { is_here: false });
    }
    // The default of execvp where PATH is not set.
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let found: Vec<_> = std::env::split_paths(&path).map(|directory| look_at(&directory.join(program))).collect();
    if found.iter().any(Result::is_ok) {
        return Ok(());
    }
    let there = found.into_iter().filter_map(Result::err).find(|reason| !matches!(reason, Reason::NotFound | Reason::Directory));
    refused(there.unwrap_or_else(|| Reason::NotInPath { is_here: look_at(Path::new(program)).is_ok() }))
}

fn look_at(path: &Path) -> Result<(), Reason> {
    match path.metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(Reason::NotExecutable),
        Err(_) => Err(Reason::NotFound),
        Ok(metadata) if metadata.is_dir() => Err(Reason::Directory),
        Ok(_) => access(path, Access::EXEC_OK).map_err(|_| Reason::NotExecutable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(program: &str) -> (u8, String) {
        let error = check(OsStr::new(program)).unwrap_err();
        (error.code(), error.to_string())
    }

    #[test]
    fn a_program_in_path_and_one_by_its_path_are_found() {
        check(OsStr::new("sh")).unwrap();
        check(OsStr::new("/bin/sh")).unwrap();
        check(OsStr::new("/proc/self/exe")).unwrap();
    }

    #[test]
    fn every_reason_is_named_with_the_status_of_a_shell() {
        assert_eq!(refused("/no/such/program"), (127, "cannot run \"/no/such/program\": no such file".into()));
        assert_eq!(refused("no-such-program"), (127, "cannot run \"no-such-program\": no such program in PATH".into()));
        assert_eq!(refused(""), (127, "cannot run \"\": no such program in PATH".into()));
        assert_eq!(refused("/proc"), (126, "cannot run \"/proc\": it is a directory".into()));
        let (code, text) = refused("/proc/self/status");
        assert!(code == 126 && text.contains("chmod +x"), "{code} {text}");
    }
}
