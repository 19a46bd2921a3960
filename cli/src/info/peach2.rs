//! The emulated PEACH2 board, as its backend describes it: its facts and the constants of its clock as lines.

use super::Text;
use super::probe::Probes;
use super::variables::OfBackend;
use rma::Config;
use rma::config::Place;
use rma_peach2::{Constant, Survey, survey};

/// The board of a rank here, or the option that cannot be used.
#[derive(Clone, Debug)]
pub(super) struct Peach2(Result<Survey, String>);

pub(super) fn variables() -> OfBackend {
    OfBackend::Here {
        all: rma_peach2::variables(),
        check: |variable| rma_peach2::check_variables(variable),
        over: "emulated PEACH2 boards",
    }
}

impl Peach2 {
    /// As a rank sees it, if this is one.
    pub(super) fn seen_from(place: Option<&Place>, config: &Config) -> Self {
        Self(survey(config, place.map_or(1, |place| place.size)).map_err(|error| error.to_string()))
    }

    /// Usable, or why not. The boards are memory that ranks share, as that of shm.
    pub(super) fn state(&self, probes: &Probes) -> String {
        match self.0.as_ref().map(|survey| &survey.ring) {
            Ok(Ok(_)) if probes.any_backend() => "usable: emulated, a board a rank".into(),
            Ok(Ok(_)) => "not usable: no memory that ranks share".into(),
            Ok(Err(reason)) | Err(reason) => format!("not usable: {reason}"),
        }
    }

    pub(super) fn render(&self, text: &mut Text) {
        text.section("peach2 board (emulated)");
        let survey = match &self.0 {
            Ok(survey) => survey,
            Err(reason) => return text.plain(&format!("none: {reason}")),
        };
        for (name, value) in &survey.lines {
            text.line(name, value);
        }
        text.line("clock", "RMA_PEACH2_CLOCK changes these; P3 is the paper on PEACH2");
        for (constant, value) in &survey.constants {
            text.line(&format!("  {}", constant.name), describe(constant, *value));
        }
    }
}

fn describe(constant: &Constant, value: f64) -> String {
    let Constant { default, unit, meaning, source, .. } = constant;
    let changed = if value == *default { String::new() } else { format!(" (default {default})") };
    format!("{value} {unit}{changed}: {meaning} ({source})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> Peach2 {
        let mut config = Config::default();
        config.variables.insert(name.into(), value.into());
        Peach2::seen_from(None, &config)
    }

    fn rendered(peach2: &Peach2) -> String {
        let mut text = Text::default();
        peach2.render(&mut text);
        text.0
    }

    fn probes(threads: bool) -> Probes {
        let tried = |works: bool| if works { Ok(()) } else { Err("no".to_owned()) };
        Probes { threads: tried(threads), memfd: tried(false), unix: Ok(()), tcp: Ok(()) }
    }

    #[test]
    fn a_constant_stands_with_its_unit_meaning_and_source_and_with_its_default_if_changed() {
        let text = rendered(&with("RMA_PEACH2_CLOCK", "hop_ns=300"));
        let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(&format!("    {name:<22} "))).map(str::to_owned);
        let hop = "300 ns (default 250): from one board to the next (P3: each further board 0.25 us)";
        assert_eq!(line("hop_ns").as_deref(), Some(hop), "{text}");
        let rate = "3.5 bytes/ns: between memories of processors (P3: peak 3.5 GB/s)";
        assert_eq!(line("cpu_rate").as_deref(), Some(rate), "{text}");
        for (constant, _) in &survey(&Config::default(), 1).unwrap().constants {
            assert!(line(constant.name).is_some_and(|line| line.ends_with(&format!("({})", constant.source))), "{text}");
        }
    }

    #[test]
    fn a_board_is_usable_if_its_options_and_the_machine_allow_it() {
        let usable = with("RMA_PEACH2_RING", "16");
        assert!(rendered(&usable).contains("a ring of 16;"), "{}", rendered(&usable));
        assert_eq!(usable.state(&probes(true)), "usable: emulated, a board a rank");
        assert_eq!(usable.state(&probes(false)), "not usable: no memory that ranks share");
        let refused = with("RMA_PEACH2_MEMORY", "disk");
        let reason = "RMA_PEACH2_MEMORY=\"disk\": use cpu or gpu";
        assert!(refused.state(&probes(true)).ends_with(reason) && refused.state(&probes(true)).starts_with("not usable: "));
        assert!(rendered(&refused).contains(reason), "{}", rendered(&refused));
    }

    #[test]
    fn what_only_the_job_makes_impossible_is_said_too() {
        let mut config = Config::default();
        config.rails = Some(5);
        let peach2 = Peach2::seen_from(None, &config);
        assert!(peach2.state(&probes(true)).contains("lower RMA_RAILS"), "{}", peach2.state(&probes(true)));
        assert!(rendered(&peach2).contains("none, as this job cannot be;"), "{}", rendered(&peach2));
    }
}
