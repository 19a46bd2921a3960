//! The environment: rma's own variables with their meaning and defaults, and those by which other launchers are known.
//! Judges only whether rma would accept them.

use super::{peach2, verbs};
use rma::Config;
use std::collections::BTreeMap;

/// What the environment says.
#[derive(Clone, Debug)]
pub(super) struct Variables {
    /// All that rma knows, set or not.
    pub(super) own: Vec<Variable>,
    /// Set, but rma knows no such name; and the known name that was perhaps meant.
    pub(super) unknown: Vec<(String, Option<&'static str>)>,
    /// Name, value and launcher.
    pub(super) launchers: Vec<(String, String, &'static str)>,
    /// Why a program would refuse to start, and the variables that this is about.
    pub(super) refused: Vec<(String, Vec<String>)>,
}

/// One of rma's variables.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub(super) name: &'static str,
    pub(super) value: Option<String>,
    default: Option<String>,
    meaning: &'static str,
}

impl Variable {
    pub(super) fn describe(&self) -> String {
        let value = match (&self.value, &self.default) {
            (Some(_), _) if self.name == "RMA_TOKEN" => "set, not shown".into(),
            (Some(value), Some(default)) => format!("{value} (default {default})"),
            (Some(value), None) => value.clone(),
            (None, Some(default)) => format!("not set (default {default})"),
            (None, None) => "not set".into(),
        };
        format!("{value}: {}", self.meaning)
    }
}

/// The value of a variable that is set.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The variables of a backend.
pub(super) enum OfBackend {
    /// One that is built in.
    Here {
        /// Name, default, meaning.
        all: Vec<(&'static str, String, &'static str)>,
        /// Names the first that cannot be used.
        check: fn(Lookup<'_>) -> rma::Result<()>,
        /// Over what a program would refuse to start, as in "RDMA devices".
        over: &'static str,
    },
    /// One that only programs have: names that begin like this may mean something to them.
    #[cfg_attr(feature = "verbs", expect(dead_code, reason = "all backends with variables are built in"))]
    Elsewhere { prefix: &'static str },
}

impl OfBackend {
    fn all(&self) -> Vec<(&'static str, Option<String>, &'static str)> {
        let Self::Here { all, .. } = self else { return Vec::new() };
        all.iter().map(|(name, default, meaning)| (*name, Some(default.clone()), *meaning)).collect()
    }

    fn refuses(&self, variable: Lookup<'_>) -> Option<String> {
        let Self::Here { check, over, .. } = self else { return None };
        check(variable).err().map(|error| format!("{error} (over {over} only)"))
    }

    fn may_know(&self, name: &str) -> bool {
        matches!(self, Self::Elsewhere { prefix } if name.starts_with(prefix))
    }
}

/// Names that tell of a launcher or a batch system.
const LAUNCHERS: [(&str, &str); 14] = [
    ("OMPI_COMM_WORLD_SIZE", "Open MPI"),
    ("OMPI_COMM_WORLD_RANK", "Open MPI"),
    ("PMI_SIZE", "an MPI launcher, PMI"),
    ("PMI_RANK", "an MPI launcher, PMI"),
    ("PMIX_RANK", "an MPI launcher, PMIx"),
    ("MV2_COMM_WORLD_SIZE", "MVAPICH"),
    ("MV2_COMM_WORLD_RANK", "MVAPICH"),
    ("SLURM_JOB_ID", "Slurm"),
    ("SLURM_STEP_NUM_TASKS", "Slurm, srun"),
    ("SLURM_PROCID", "Slurm, srun"),
    ("PBS_JOBID", "PBS"),
    ("LSB_JOBID", "LSF"),
    ("PJM_JOBID", "PJM"),
    ("FLUX_JOB_ID", "Flux"),
];

impl Variables {
    pub(super) fn of_this_process() -> Self {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        Self::of(&std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect())
    }

    fn of(set: &BTreeMap<String, String>) -> Self {
        let backends = [verbs::variables(), peach2::variables()];
        let own: Vec<_> = known(&backends)
            .into_iter()
            .map(|(name, default, meaning)| Variable { name, value: set.get(name).cloned(), default, meaning })
            .collect();
        let elsewhere = |name: &str| backends.iter().any(|backend| backend.may_know(name));
        let is_known = |name: &str| elsewhere(name) || own.iter().any(|variable| variable.name == name);
        let unknown = set.keys().filter(|name| name.starts_with("RMA_") && !is_known(name));
        let meant = |name: &str| {
            // What a launcher sets is never what somebody meant to set by hand.
            let by_hand = own.iter().take_while(|variable| variable.name != "RMA_RANK");
            let near = by_hand.map(|variable| (distance(name, variable.name), variable.name)).min();
            near.filter(|(distance, _)| *distance <= 2).map(|(_, name)| name)
        };
        let launchers =
            LAUNCHERS.iter().filter_map(|(name, launcher)| Some((name.to_string(), set.get(*name)?.clone(), *launcher)));
        let variable = |name: &str| set.get(name).cloned();
        let always = Config::check_variables(variable).err().map(|error| error.to_string());
        let refused = always.into_iter().chain(backends.iter().filter_map(|backend| backend.refuses(&variable))).map(|text| {
            let words: Vec<_> = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
            let about = set.keys().filter(|name| words.contains(&name.as_str())).cloned().collect();
            (text, about)
        });
        Self {
            unknown: unknown.map(|name| (name.clone(), meant(name))).collect(),
            launchers: launchers.collect(),
            refused: refused.collect(),
            own,
        }
    }
}

/// Every variable of rma: name, default, meaning.
fn known(backends: &[OfBackend]) -> Vec<(&'static str, Option<String>, &'static str)> {
    let default = Config::default();
    let seconds = |time: std::time::Duration| format!("{}", time.as_secs_f64());
    let by_hand = vec![
        ("RMA_RANKS", Some("the program's".into()), "thread ranks of a program that no launcher started"),
        ("RMA_BACKEND", Some("shm on one host".into()), "backend of a program built with several, as in shm or verbs"),
        ("RMA_RAILS", Some("4 in shm, else all".into()), "rails to have"),
        ("RMA_SETUP_TIMEOUT", Some(seconds(default.setup_timeout)), "deadline of set-up and commit, seconds"),
        ("RMA_TIMEOUT", Some(default.wait_timeout.map_or("none".into(), seconds)), "deadline of a wait, seconds"),
        ("RMA_TRACE", Some("off".into()), "each rank writes what happened when to this path and .RANK.json"),
        ("RMA_FAULTS", Some("none".into()), "what goes wrong on purpose, as in seed=7,delay=100,kill=2@5; for tests"),
        ("RMA_REMOTE_SHELL", Some("ssh".into()), "command by which `rma run --hosts` runs others elsewhere"),
        ("RMA_BIND", Some("127.0.0.1".into()), "address on which a rank listens for its peers"),
    ];
    let by_launchers = vec![
        ("RMA_RANK", None, "number of this rank; from the launcher, as are all below"),
        ("RMA_SIZE", None, "number of ranks"),
        ("RMA_ROOT", None, "host and port at which rank 0 listens"),
        ("RMA_TOKEN", None, "secret of the job"),
        ("RMA_LISTEN_FD", None, "on rank 0, the descriptor that listens already"),
    ];
    let by_backends = backends.iter().flat_map(OfBackend::all);
    by_hand.into_iter().chain(by_backends).chain(by_launchers).collect()
}

/// How many letters have to be inserted, removed or replaced to make one word of the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(set: &[(&str, &str)]) -> Variables {
        Variables::of(&set.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect())
    }

    #[test]
    fn the_secret_is_not_shown() {
        let token = "00112233445566778899aabbccddeeff";
        let variables = with(&[("RMA_TOKEN", token)]);
        assert!(!variables.own.iter().any(|variable| variable.describe().contains(token)));
    }

    #[test]
    fn values_stand_beside_their_defaults() {
        let variables = with(&[("RMA_RAILS", "2")]);
        let text_of =
            |name| variables.own.iter().find(|variable| variable.name == name).map(Variable::describe).unwrap_or_default();
        for (name, text) in [
            ("RMA_RAILS", "2 (default 4 in shm, else all)"),
            ("RMA_SETUP_TIMEOUT", "not set (default 120)"),
            ("RMA_TIMEOUT", "not set (default none)"),
        ] {
            assert!(text_of(name).starts_with(text), "{name}: {:?}", text_of(name));
        }
        assert!(variables.refused.is_empty() && variables.unknown.is_empty());
    }

    #[test]
    fn an_unknown_name_is_found_with_the_one_that_was_meant() {
        let unknown = with(&[("RMA_RIALS", "2"), ("RMA_COLOUR", "red")]).unknown;
        assert_eq!(unknown, [("RMA_COLOUR".into(), None), ("RMA_RIALS".into(), Some("RMA_RAILS"))]);
    }

    #[test]
    fn what_would_be_refused_names_its_variables() {
        let (text, about) = with(&[("RMA_RAILS", "many")]).refused.remove(0);
        assert!(text.contains("RMA_RAILS") && about == ["RMA_RAILS"], "{text} {about:?}");
        let variables = with(&[("OMPI_COMM_WORLD_SIZE", "4")]);
        assert_eq!(variables.refused[0].1, ["OMPI_COMM_WORLD_SIZE"]);
        assert_eq!(variables.launchers, [("OMPI_COMM_WORLD_SIZE".into(), "4".into(), "Open MPI")]);
    }

    #[test]
    fn variables_of_peach2_are_known_and_judged_as_others_are() {
        let variables = with(&[("RMA_PEACH2_RING", "4"), ("RMA_PEACH2_CLOK", "hop_ns=300"), ("RMA_RAILS", "0")]);
        let [(always, _), (text, about)] = &variables.refused[..] else { panic!("{:?}", variables.refused) };
        assert!(always.contains("RMA_RAILS") && !always.contains("only)"), "{always}");
        assert_eq!(
            (text.as_str(), about.join(" ")),
            ("RMA_PEACH2_RING=\"4\": use 8 or 16 (over emulated PEACH2 boards only)", "RMA_PEACH2_RING".into(),)
        );
        assert_eq!(variables.unknown, [("RMA_PEACH2_CLOK".into(), Some("RMA_PEACH2_CLOCK"))]);
        let memory = variables.own.iter().find(|variable| variable.name == "RMA_PEACH2_MEMORY").map(Variable::describe);
        assert!(memory.as_ref().is_some_and(|text| text.starts_with("not set (default cpu): what windows are")), "{memory:?}");
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn variables_of_verbs_are_known_and_judged_as_others_are() {
        let variables = with(&[("RMA_VERBS_RETRIES", "9"), ("RMA_VERBS_DEVICE", "x"), ("RMA_RAILS", "0")]);
        let refused: Vec<_> = variables.refused.iter().map(|(text, about)| (text.contains(": use "), about.join(" "))).collect();
        assert_eq!(refused, [(true, "RMA_RAILS".into()), (true, "RMA_VERBS_RETRIES".into())]);
        assert_eq!(variables.unknown, [("RMA_VERBS_DEVICE".into(), Some("RMA_VERBS_DEVICES"))]);
    }

    #[cfg(not(feature = "verbs"))]
    #[test]
    fn variables_of_a_backend_that_only_programs_have_are_left_alone() {
        let variables = with(&[("RMA_VERBS_RETRIES", "9")]);
        assert!(variables.unknown.is_empty() && variables.refused.is_empty(), "{variables:?}");
    }

    #[test]
    fn distances_count_letters() {
        assert_eq!([distance("abc", "abc"), distance("abc", "ab"), distance("abc", "xbcd"), distance("", "abc")], [0, 1, 2, 3]);
    }
}
