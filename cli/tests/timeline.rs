//! What `rma timeline` is given that it cannot draw.

mod common;

use common::{TemporaryDirectory, finish, rma};

#[test]
fn files_that_are_no_traces_or_of_different_runs_are_refused_by_name() {
    let directory = TemporaryDirectory::new("timeline");
    let write = |name: &str, text: String| {
        let path = directory.path.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let trace = |rank: u32, of: u32| {
        let name = format!(r#"{{"name":"process_name","ph":"M","pid":{rank},"args":{{"name":"rank {rank} of {of}"}}}}"#);
        let event = format!(r#"{{"name":"flight","ph":"X","ts":{rank}00,"dur":9.0,"pid":{rank},"tid":0,"args":{{"epoch":1}}}}"#);
        write(&format!("job.{rank}.json"), format!("[{name},\n{event}\n]\n"))
    };
    let (one, other, old) = (trace(0, 2), trace(1, 2), trace(2, 4));
    let said = |files: &[&str]| {
        let done = finish(rma(&[&["timeline"], files].concat()));
        (done.code, done.out() + &done.err())
    };
    let (code, drawn) = said(&[&one, &other]);
    assert!(code == 0 && drawn.contains("rank 1 queue 0"), "{drawn}");
    let (code, refused) = said(&[&one, &other, &old]);
    assert!(code == 1 && refused.contains("of a run of 2 ranks") && refused.contains("job.2.json of one of 4"), "{refused}");
    let (code, refused) = said(&[&write("notes.md", "# Notes\n".into())]);
    assert!(code == 1 && refused.contains("notes.md is no trace that RMA_TRACE wrote"), "{refused}");
}
