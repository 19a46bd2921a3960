//! The benchmarks as a user starts them: what they print, on which ranks, and what they refuse. Times are not looked at.

mod common;

use common::{Finished, finish, rma};

const QUICK: [&str; 6] = ["--repeats", "1", "--batch-ms", "1", "--no-bind", "--csv"];

/// The fields of every line of a benchmark's CSV, by the names in its header.
fn rows(done: &Finished) -> Vec<Vec<(String, String)>> {
    assert_eq!(done.code, 0, "{done:?}");
    let out = done.out();
    let mut lines = out.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
    let header = lines.next().unwrap_or_else(|| panic!("no header: {done:?}"));
    let row = |fields: Vec<String>| {
        assert_eq!(fields.len(), header.len(), "{done:?}");
        header.iter().cloned().zip(fields).collect()
    };
    lines.map(row).collect()
}

fn field<'a>(row: &'a [(String, String)], name: &str) -> &'a str {
    row.iter().find(|(column, _)| column == name).map(|(_, field)| field.as_str()).unwrap_or_else(|| panic!("no {name}: {row:?}"))
}

fn bench(args: &[&str]) -> Finished {
    finish(rma(&[&["bench"], args, &QUICK].concat()))
}

#[test]
fn old_columns_stay_where_they_are_and_new_ones_follow() {
    let done = bench(&["put", "--bytes", "8"]);
    let header = done.out().lines().next().unwrap_or_default().to_owned();
    assert!(header.starts_with("bench,backend,mode,ranks,rails,bytes,iterations,median_us,min_us,max_us,puts"), "{header}");
    let row = &rows(&done)[0];
    assert_eq!((field(row, "puts"), field(row, "rails")), ("1", "1"));
    assert_eq!(field(row, "median_us"), field(row, "per_put_us"));
    assert!(header.ends_with(",puts,per_put_us,mb_per_s,virtual_us"), "{header}");
}

#[test]
fn times_by_the_clock_of_an_emulated_device_stand_beside_the_real_ones() {
    // A put of 8 bytes to the next board takes 1.8023 us. The six of a halo follow each other, and its credit comes 0.8 us after them.
    for (kind, virtual_us) in [("put", 1.8023), ("halo", 6.0 * 1.8023 + 0.8)] {
        for mode in ["threads", "processes"] {
            let done = bench(&[kind, "--bytes", "8", "--backend", "peach2", "--rails", "1", "--mode", mode]);
            let row = &rows(&done)[0];
            let time: f64 = field(row, "virtual_us").parse().unwrap_or_else(|_| panic!("{row:?}"));
            assert!((time - virtual_us).abs() < 0.002, "{kind}: {time} instead of {virtual_us}");
        }
    }
    let row = &rows(&bench(&["stream", "--bytes", "8", "--puts", "3", "--backend", "peach2"]))[0];
    assert!(field(row, "virtual_us").parse::<f64>().is_ok_and(|time| time > 0.0), "{row:?}");
    assert_eq!(field(&rows(&bench(&["put", "--bytes", "8"]))[0], "virtual_us"), "");
}

#[test]
fn the_table_has_virtual_times_where_there_are_some() {
    let table = |backend| {
        let quick = ["--repeats", "1", "--batch-ms", "1"];
        finish(rma(&[&["bench", "put", "--bytes", "8", "--backend", backend], &quick[..]].concat())).out()
    };
    let peach2 = table("peach2");
    let lines: Vec<_> = peach2.lines().skip(1).collect();
    let time = lines[1].rsplit(' ').next().and_then(|time| time.parse::<f64>().ok());
    assert!(lines[0].ends_with("    virtual us") && time.is_some_and(|time| (time - 1.8023).abs() < 0.002), "{peach2}");
    assert!(!table("shm").contains("virtual"), "{}", table("shm"));
}

#[test]
fn chains_of_puts_run_there_and_back_on_threads_and_processes() {
    for mode in ["threads", "processes"] {
        let done = bench(&["put", "--mode", mode, "--puts", "5", "--bytes", "0,8,129", "--rails", "3"]);
        let rows = rows(&done);
        assert_eq!(rows.iter().map(|row| field(row, "bytes")).collect::<Vec<_>>(), ["0", "8", "129"]);
        for row in &rows {
            let fields = ["bench", "mode", "puts", "rails"].map(|name| field(row, name));
            assert_eq!(fields, ["put", mode, "5", "3"]);
            let [chain, put] = ["median_us", "per_put_us"].map(|name| field(row, name).parse::<f64>().unwrap());
            assert!((chain / 5.0 - put).abs() <= 0.001, "{row:?}");
        }
    }
}

#[test]
fn a_stream_goes_one_way_on_threads_and_processes() {
    for mode in ["threads", "processes"] {
        let more: &[&str] = if mode == "threads" { &[] } else { &["--expose-at-start", "--rails", "2"] };
        let done = bench(&[&["stream", "--mode", mode, "--puts", "7", "--bytes", "64,4K"], more].concat());
        let rows = rows(&done);
        assert_eq!(rows.len(), 2);
        for row in &rows {
            assert_eq!((field(row, "bench"), field(row, "puts")), ("stream", "7"));
            assert!(field(row, "mb_per_s").parse::<f64>().is_ok_and(|rate| rate > 0.0), "{row:?}");
        }
    }
}

#[test]
fn a_halo_counts_its_six_puts() {
    let row = &rows(&bench(&["halo", "--bytes", "64"]))[0];
    assert_eq!((field(row, "bench"), field(row, "puts")), ("halo", "6"));
}

#[test]
fn six_messages_in_segments_fill_four_rails_of_emulated_boards() {
    let ways = ["--cut", "whole,segmented,balanced,auto", "--stepping", "streamed,fenced"];
    let seven = ["neighbor", "--backend", "peach2", "--ranks", "7", "--rails", "4", "--bytes", "8,1M"];
    let rows = rows(&bench(&[&seven[..], &ways].concat()));
    assert_eq!(rows.len(), 2 * 2 * 4);
    let find = |bytes: &str, cut: &str, stepping: &str| {
        let wanted = [("bytes", bytes), ("cut", cut), ("stepping", stepping)];
        rows.iter()
            .find(|row| wanted.iter().all(|(name, value)| field(row, name) == *value))
            .unwrap_or_else(|| panic!("no {wanted:?}"))
    };
    let number =
        |row: &[(String, String)], name: &str| field(row, name).parse::<f64>().unwrap_or_else(|_| panic!("{name}: {row:?}"));
    for stepping in ["streamed", "fenced"] {
        // Two rounds of whole messages, or three of halves; halves of a few bytes take a step more.
        assert!((1.3..1.34).contains(&number(find("1048576", "segmented", stepping), "gain")), "{rows:?}");
        assert!(number(find("8", "segmented", stepping), "gain") < 1.0, "{rows:?}");
        assert_eq!(field(find("8", "auto", stepping), "chosen"), "whole");
        assert_ne!(field(find("1048576", "auto", stepping), "chosen"), "whole");
        for cut in ["whole", "segmented"] {
            let row = find("1048576", cut, stepping);
            assert_eq!((field(row, "chosen"), field(row, "neighbors"), field(row, "rails")), (cut, "6", "4"));
            assert!((number(row, "model_us") / number(row, "virtual_us") - 1.0).abs() < 0.02, "{row:?}");
            let rate = 6.0 * 1048576.0 / number(row, "virtual_us") / 1e3;
            assert!((number(row, "gb_per_s") / rate - 1.0).abs() < 0.001, "{row:?}");
        }
    }
}

#[test]
fn a_neighbor_exchange_runs_on_threads_and_processes_with_any_number_of_messages() {
    for (mode, more) in [("threads", &["--rails", "3"][..]), ("processes", &["--expose-at-start"])] {
        let done = bench(&[&["neighbor", "--mode", mode, "--ranks", "3", "--neighbors", "7", "--bytes", "0,65"], more].concat());
        let rows = rows(&done);
        let ways: Vec<_> = rows.iter().map(|row| ["bytes", "cut", "chosen"].map(|name| field(row, name))).collect();
        let expected = ["0", "65"]
            .into_iter()
            .flat_map(|bytes| [[bytes, "whole", "whole"], [bytes, "segmented", "segmented"], [bytes, "auto", "whole"]]);
        assert_eq!(ways, expected.collect::<Vec<_>>());
        assert!(rows.iter().all(|row| field(row, "virtual_us").is_empty() && field(row, "mode") == mode), "{rows:?}");
    }
    let more = ["--repeats", "1", "--batch-ms", "1", "--bytes", "8", "--stepping", "fenced", "--rails", "2"];
    let table = finish(rma(&[&["bench", "neighbor"], &more[..]].concat())).out();
    assert!(table.contains("6 messages a rank on 2 rails") && table.contains("fenced: segments gain"), "{table}");
}

#[test]
fn the_table_has_the_time_of_a_put_where_a_chain_has_several() {
    let table = |puts| finish(rma(&["bench", "put", "--puts", puts, "--bytes", "8", "--repeats", "1", "--batch-ms", "1"])).out();
    assert!(table("2").contains("us per put") && table("2").contains("a chain of 2 puts"), "{}", table("2"));
    assert!(!table("1").contains("per put"), "{}", table("1"));
}

#[test]
fn the_backend_is_chosen_by_name_and_an_unknown_one_is_told_what_there_is() {
    for mode in ["threads", "processes"] {
        let mut command = rma(&[&["bench", "put", "--bytes", "8", "--backend", "shm", "--mode", mode], &QUICK[..]].concat());
        // The command line is asked first.
        command.env("RMA_BACKEND", "carrier-pigeon");
        assert_eq!(field(&rows(&finish(command))[0], "backend"), "shm");
        let done = bench(&["put", "--mode", mode, "--backend", "carrier-pigeon"]);
        assert_eq!((done.code, done.out().as_str()), (2, ""));
        let verbs = if cfg!(feature = "verbs") { ", verbs" } else { "" };
        let mpi = if cfg!(feature = "mpi") { ", mpi, mpi-two-sided" } else { "" };
        let built_with = format!("was built with shm, peach2{verbs}{mpi};");
        assert!(done.err().contains("carrier-pigeon") && done.err().contains(&built_with), "{}", done.err());
        let mut command = rma(&["bench", "put", "--mode", mode]);
        command.env("RMA_BACKEND", "carrier-pigeon");
        let done = finish(command);
        assert_ne!(done.code, 0);
        assert!(done.err().contains("RMA_BACKEND=carrier-pigeon: this program has no such backend, but shm"), "{}", done.err());
    }
}

#[test]
fn what_cannot_be_timed_is_refused_with_its_numbers() {
    let refused: &[(&[&str], &str)] = &[
        (&["put", "--ranks", "3"], "--ranks 3: a ping-pong has 2 ranks"),
        (&["stream", "--ranks", "3"], "--ranks 3: a stream has 2 ranks"),
        (&["put", "--puts", "0"], "1..=1048576"),
        (&["stream", "--rails", "65"], "1..=64"),
        (&["stream", "--puts", "1M"], "invalid digit"),
        (&["neighbor", "--cut", "halves"], "no such cut; use whole, segmented, balanced, auto"),
        (&["neighbor", "--stepping", "halves"], "no such stepping; use streamed, fenced"),
        (&["neighbor", "--neighbors", "0"], "1..=4096"),
        (&["put", "--puts", "1000", "--bytes", "99999999999999999"], "1000 puts of 99999999999999999 bytes"),
    ];
    for (args, text) in refused {
        let done = bench(args);
        assert!(done.code != 0 && done.err().contains(text), "{args:?}: {done:?}");
    }
}

/// What a put takes from one board to another by the paper's fits, in ns.
fn by_the_paper(row: &[(String, String)]) -> f64 {
    let bytes: f64 = field(row, "bytes").parse().unwrap();
    let hops: f64 = field(row, "hops").parse().unwrap();
    let to_the_next = match (field(row, "memory"), bytes) {
        ("cpu", _) => 1800.0 + bytes / 3.5,
        (_, ..=2048.0) => 2010.0 + 0.085 * bytes,
        _ => 1950.0 + bytes / 2.585,
    };
    let fetch = if field(row, "placement") == "host" { 650.0 } else { 0.0 };
    to_the_next + 250.0 * (hops - 1.0) + fetch
}

fn peach2(args: &[&str]) -> Finished {
    finish(rma(&[&["bench", "peach2", "--csv"], args].concat()))
}

#[test]
fn every_memory_placement_and_size_of_emulated_boards_is_there_once_with_the_time_of_the_paper() {
    let run = || rows(&peach2(&["--bytes", "8,4K"]));
    let (rows, again) = (run(), run());
    let mut found: Vec<_> = rows.iter().map(|row| ["memory", "placement", "bytes"].map(|name| field(row, name))).collect();
    found.sort_unstable();
    let all = ["cpu", "gpu"].into_iter().flat_map(|memory| {
        let placements = ["host", "internal", "registers"].into_iter();
        placements.flat_map(move |placement| ["4096", "8"].map(|bytes| [memory, placement, bytes]))
    });
    assert_eq!(found, all.collect::<Vec<_>>());
    for (row, again) in rows.iter().zip(&again) {
        let us: f64 = field(row, "virtual_us").parse().unwrap();
        assert!((us - by_the_paper(row) / 1e3).abs() < 0.0011, "{} ns expected: {row:?}", by_the_paper(row));
        let bytes: f64 = field(row, "bytes").parse().unwrap();
        let rate: f64 = field(row, "virtual_mb_per_s").parse().unwrap();
        assert!((rate / (bytes / us) - 1.0).abs() < 0.001, "{row:?}");
        assert!(field(row, "real_us").parse::<f64>().is_ok_and(|us| us > 0.0), "{row:?}");
        for (this, that) in row.iter().zip(again).filter(|((name, _), _)| name != "real_us") {
            assert_eq!(this, that, "{row:?}");
        }
    }
}

#[test]
fn boards_further_on_take_longer_and_puts_of_a_chain_follow_each_other() {
    let quick = ["--bytes", "8", "--memories", "cpu", "--placements", "registers,host"];
    for hops in ["2", "5", "8"] {
        for row in rows(&peach2(&[&["--hops", hops], &quick[..]].concat())) {
            let us: f64 = field(&row, "virtual_us").parse().unwrap();
            assert_eq!(field(&row, "hops"), hops);
            assert!((us - by_the_paper(&row) / 1e3).abs() < 0.0011, "{row:?}");
        }
    }
    for row in rows(&peach2(&[&["--puts", "3"], &quick[..]].concat())) {
        let us: f64 = field(&row, "virtual_us").parse().unwrap();
        assert!((us - 3.0 * by_the_paper(&row) / 1e3).abs() < 0.0011, "{row:?}");
    }
}

#[test]
fn what_variables_say_of_boards_holds_but_for_what_the_options_say() {
    let mut command = rma(&["bench", "peach2", "--csv", "--bytes", "8", "--memories", "cpu", "--placements", "host"]);
    command.env("RMA_PEACH2_CLOCK", "fetch_host_ns=500").env("RMA_BACKEND", "shm");
    command.env("RMA_PEACH2_MEMORY", "gpu").env("RMA_PEACH2_PLACEMENT", "internal");
    let rows = rows(&finish(command));
    assert_eq!((rows.len(), field(&rows[0], "virtual_us")), (1, "2.302"));
}

#[test]
fn boards_that_cannot_be_are_refused_with_their_numbers() {
    let refused: &[(&[&str], &str)] = &[
        (&["--hops", "9"], "--hops 9: boards of a ring of 16 are at most 8 apart; use 1 to 8\n"),
        (&["--hops", "0"], "0 is not in 1.."),
        (&["--puts", "0"], "1..=1048576"),
        (&["--placements", "disk"], "possible values: registers, internal, host"),
        (&["--memories", "disk"], "possible values: cpu, gpu"),
        (&["--bytes", "99999999999999999"], "--bytes 99999999999999999: window length"),
    ];
    for (args, text) in refused {
        let done = peach2(args);
        assert!(done.code != 0 && done.err().contains(text), "{args:?}: {done:?}");
    }
    let short_ring = |hops| {
        let mut command = rma(&["bench", "peach2", "--csv", "--bytes", "8", "--hops", hops]);
        command.env("RMA_PEACH2_RING", "8");
        finish(command)
    };
    assert_eq!(short_ring("4").code, 0);
    let error = short_ring("5").err();
    assert!(error.contains("ring of 8 are at most 4 apart; use 1 to 4, or set RMA_PEACH2_RING=16"), "{error}");
    let done = finish(rma(&["run", "-n", "2", "--", env!("CARGO_BIN_EXE_rma"), "bench", "peach2"]));
    assert!(done.code != 0 && done.err().contains("start it without `rma run`"), "{done:?}");
}
