//! Where the results of commands go: to a reader who has seen enough, and to where they cannot be written.

mod common;

use common::{TemporaryDirectory, finish, finish_into, rma};
use std::fs::File;

/// Runs the commands that print results, with a trace to draw.
fn with_each_command(check: impl Fn(&[&str])) {
    let directory = TemporaryDirectory::new("results");
    let trace = directory.path.join("trace.0.json");
    let event = "{\"name\":\"flight\",\"ph\":\"X\",\"ts\":0.000,\"dur\":9.000,\"pid\":0,\"tid\":0,\"args\":{\"epoch\":1}}";
    std::fs::write(&trace, format!("[\n{event}\n]\n")).unwrap();
    let trace = trace.to_str().unwrap();
    for args in [&["timeline", trace][..], &["bench", "peach2", "--bytes", "8,16"], &["info"]] {
        check(args);
    }
}

#[test]
fn a_reader_that_has_seen_enough_ends_a_command_well() {
    with_each_command(|args| {
        let (reader, writer) = std::io::pipe().unwrap();
        // Before the command can write.
        drop(reader);
        let done = finish_into(writer, rma(args));
        assert_eq!((done.code, done.err().as_str()), (0, ""), "{args:?}");
        let done = finish(rma(args));
        assert!(done.code == 0 && done.out().lines().count() > 1, "{args:?}: {done:?}");
    });
}

#[test]
fn results_that_cannot_be_written_are_an_error() {
    with_each_command(|args| {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let done = finish_into(full, rma(args));
        let expected = format!("rma {}: writing the results: No space left on device", args[0]);
        assert!(done.code == 1 && done.err().starts_with(&expected), "{args:?}: {done:?}");
    });
}
