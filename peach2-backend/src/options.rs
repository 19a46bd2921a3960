//! What can be set from outside, beside what every backend takes.

use crate::clock::{Constants, Memory};
use crate::descriptor::Placement;
use crate::route::RINGS;
use rma::{Bootstrap, Config, Deadline, Error, Rank, Result};

/// Options of this backend.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    /// `RMA_PEACH2_MEMORY`.
    pub(crate) memory: Memory,
    /// `RMA_PEACH2_PLACEMENT`: the fastest memory that chains may lie in.
    pub(crate) placement: Placement,
    /// `RMA_PEACH2_PIPELINE`: whether a put is begun when the one before it on its channel has left.
    pub(crate) pipeline: bool,
    /// `RMA_PEACH2_RING`: the boards of a ring; without it the shortest ring that will do.
    pub(crate) ring: Option<u8>,
    /// `RMA_PEACH2_CLOCK`: constants of the clock.
    pub(crate) constants: Constants,
}

impl Default for Options {
    fn default() -> Self {
        Self { memory: Memory::Cpu, placement: Placement::Registers, pipeline: false, ring: None, constants: Constants::default() }
    }
}

/// Every variable: name, default, meaning.
pub fn variables() -> Vec<(&'static str, String, &'static str)> {
    vec![
        ("RMA_PEACH2_MEMORY", "cpu".into(), "what windows are for the clock: cpu or gpu memory"),
        ("RMA_PEACH2_PLACEMENT", "registers".into(), "fastest memory that chains may lie in: registers, internal or host"),
        ("RMA_PEACH2_PIPELINE", "off".into(), "on: a channel begins a put when the one before has left, not when it has arrived"),
        ("RMA_PEACH2_RING", "as the ranks need".into(), "boards of a ring: 8 or 16"),
        ("RMA_PEACH2_CLOCK", "as `rma info` lists".into(), "constants of the clock, as in hop_ns=300,fetch_host_ns=500"),
    ]
}

/// Names the first of the variables that cannot be used, as opening the backend would.
pub fn check_variables(variable: impl Fn(&str) -> Option<String>) -> Result<()> {
    Options::from_variables(variable).map(|_| ())
}

impl Options {
    /// The options of a job: what the program has set, else what the environment says.
    pub(crate) fn of(config: &Config) -> Result<Self> {
        Self::from_variables(|name| config.variable(name))
    }

    /// Collective: refuses ranks with other options, whose clocks would not be of one machine.
    pub(crate) fn check_others(&self, boot: &dyn Bootstrap, deadline: Deadline) -> Result<()> {
        let mine = format!("{self:?}");
        let all = boot.allgather(mine.as_bytes(), deadline)?;
        match (0..).map(Rank).zip(&all).find(|(_, theirs)| **theirs != mine.as_bytes()) {
            None => Ok(()),
            Some((rank, theirs)) => Err(Error::Launch(format!(
                "the options of the boards are {mine} on {} and {} on {rank}: give every rank the same RMA_PEACH2 variables",
                boot.rank(),
                String::from_utf8_lossy(theirs)
            ))),
        }
    }

    pub(crate) fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let mut options = Self::default();
        let set = |name: &str| variable(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        if let Some(text) = set("RMA_PEACH2_MEMORY") {
            options.memory = one_of("RMA_PEACH2_MEMORY", &text, &[("cpu", Memory::Cpu), ("gpu", Memory::Gpu)])?;
        }
        if let Some(text) = set("RMA_PEACH2_PLACEMENT") {
            let all = [("registers", Placement::Registers), ("internal", Placement::Internal), ("host", Placement::Host)];
            options.placement = one_of("RMA_PEACH2_PLACEMENT", &text, &all)?;
        }
        if let Some(text) = set("RMA_PEACH2_PIPELINE") {
            options.pipeline = one_of("RMA_PEACH2_PIPELINE", &text, &[("on", true), ("off", false)])?;
        }
        if let Some(text) = set("RMA_PEACH2_RING") {
            let lengths = RINGS.map(|length| (length.to_string(), length));
            let lengths: Vec<_> = lengths.iter().map(|(name, length)| (name.as_str(), *length)).collect();
            options.ring = Some(one_of("RMA_PEACH2_RING", &text, &lengths)?);
        }
        for part in set("RMA_PEACH2_CLOCK").iter().flat_map(|text| text.split(',')).filter(|part| !part.trim().is_empty()) {
            set_constant(&mut options.constants, part.trim())?;
        }
        Ok(options)
    }
}

fn one_of<T: Copy>(name: &str, text: &str, all: &[(&str, T)]) -> Result<T> {
    let found = all.iter().find(|(known, _)| known.eq_ignore_ascii_case(text)).map(|(_, value)| *value);
    let names: Vec<_> = all.iter().map(|(known, _)| *known).collect();
    found.ok_or_else(|| Error::Launch(format!("{name}={text:?}: use {}", names.join(" or "))))
}

fn set_constant(constants: &mut Constants, part: &str) -> Result<()> {
    let refused = |reason: String| Err(Error::Launch(format!("RMA_PEACH2_CLOCK: {part:?}: {reason}")));
    let Some((name, text)) = part.split_once('=') else {
        return refused("use NAME=NUMBER, as in hop_ns=300".into());
    };
    let Some(value) = constants.named(name.trim()) else {
        return refused("there is no such constant; `rma info` lists them".into());
    };
    // A rate of 0 would take for ever, and what is far beyond all time is no time.
    const MOST: f64 = 1e15;
    let least = if name.contains("rate") { 1.0 / MOST } else { 0.0 };
    match text.trim().parse::<f64>() {
        Ok(number) if (least..=MOST).contains(&number) => *value = number,
        _ => return refused(format!("use a number {} 0, and {MOST:e} at most", if least > 0.0 { "above" } else { "not below" })),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ranks_with_other_options_are_told_both() {
        let boots = rma::bootstrap::threads::group(3);
        let told: Vec<_> = std::thread::scope(|scope| {
            let check = |boot: rma::bootstrap::threads::ThreadsBootstrap| {
                let ring = (boot.rank() == Rank(2)).then_some(8);
                let checked = Options { ring, ..Options::default() }.check_others(&boot, Deadline::after(Duration::from_secs(20)));
                (boot, checked.map_err(|error| error.to_string()))
            };
            let ranks: Vec<_> = boots.into_iter().map(|boot| scope.spawn(move || check(boot))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap().1).collect()
        });
        for (told, (here, there)) in told.into_iter().zip([(0, 2), (1, 2), (2, 0)]) {
            let error = told.unwrap_err();
            let named = error.contains(&format!("on rank {here} and ")) && error.contains(&format!("on rank {there}: give"));
            assert!(named && error.contains("ring: None") && error.contains("ring: Some(8)"), "{error}");
        }
    }

    fn with(name: &'static str, value: &'static str) -> Result<Options> {
        Options::from_variables(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn every_variable_is_read() {
        for (name, _, _) in variables() {
            let value = match name {
                "RMA_PEACH2_MEMORY" => "GPU",
                "RMA_PEACH2_PLACEMENT" => "host",
                "RMA_PEACH2_PIPELINE" => "on",
                "RMA_PEACH2_RING" => " 16 ",
                _ => "hop_ns=300, pio_ns=1e3,",
            };
            assert_ne!(with(name, value).unwrap(), Options::default(), "{name}");
        }
        let constants = with("RMA_PEACH2_CLOCK", "hop_ns=300, pio_ns=1e3,").unwrap().constants;
        assert_eq!(constants, Constants { hop_ns: 300.0, pio_ns: 1000.0, ..Constants::default() });
    }

    #[test]
    fn the_readme_has_every_variable_with_its_default() {
        let readme = include_str!("../../README.md");
        for (name, default, _) in variables() {
            assert!(
                readme.contains(&format!("| `{name}` | {default} | ")),
                "{name} with its default {default} is not in README.md"
            );
        }
    }

    #[test]
    fn a_bad_value_is_named_with_what_would_do() {
        for (name, value, text) in [
            ("RMA_PEACH2_MEMORY", "disk", "RMA_PEACH2_MEMORY=\"disk\": use cpu or gpu"),
            ("RMA_PEACH2_PLACEMENT", "x", "use registers or internal or host"),
            ("RMA_PEACH2_PIPELINE", "1", "use on or off"),
            ("RMA_PEACH2_RING", "4", "use 8 or 16"),
            ("RMA_PEACH2_CLOCK", "hop_ns", "\"hop_ns\": use NAME=NUMBER"),
            ("RMA_PEACH2_CLOCK", "hop_us=1", "\"hop_us=1\": there is no such constant; `rma info` lists them"),
            ("RMA_PEACH2_CLOCK", "hop_ns=-1", "use a number not below 0"),
            ("RMA_PEACH2_CLOCK", "hop_ns=inf", "use a number not below 0"),
            ("RMA_PEACH2_CLOCK", "cpu_rate=0", "use a number above 0"),
        ] {
            let error = with(name, value).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
