//! What can be set from outside. The environment is read here, once, and nowhere else.
//! Knows names and defaults; knows nothing of what they steer.

use crate::fault::FaultPlan;
use crate::launcher::Foreign;
use crate::{Error, Rank, Result, trace};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::fd::IntoRawFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Options of a [`Comm`](crate::Comm).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// `RMA_RANKS`: how many threads [`Comm::launch`](crate::Comm::launch) makes, instead of the program's own number.
    pub ranks: Option<u32>,
    /// `RMA_BACKEND`: which of the [offered](crate::provider::offer) backends to use. Without it shared memory where it reaches
    /// every rank, else the first offered one that spans hosts.
    pub backend: Option<String>,
    /// `RMA_RAILS`: how many rails to have, 1 to [`MAX_RAILS`]. Without it shared memory has 4, other backends what there is.
    pub rails: Option<u16>,
    /// `RMA_SETUP_TIMEOUT` (seconds): the deadline of collective calls.
    pub setup_timeout: Duration,
    /// `RMA_TIMEOUT` (seconds): the deadline of `wait`; without it a wait has none.
    pub wait_timeout: Option<Duration>,
    /// How long a wait is silent before it first reports a stall; each further report comes after twice the time.
    pub stall_report: Duration,
    /// `RMA_TRACE`: each rank writes what happened when to `PATH.RANK.json`, for Chrome's trace viewer or Perfetto.
    pub trace: Option<PathBuf>,
    /// `RMA_FAULTS`: what is to go wrong on purpose, as in `seed=7,delay=100,kill=2@5`. For tests.
    pub faults: Option<FaultPlan>,
    /// Variables of backends, as `RMA_PEACH2_MEMORY`, that the program sets itself: they go before those of the environment.
    pub variables: BTreeMap<String, String>,
    /// The stack of each rank of [`Comm::threads`](crate::Comm::threads); `None` for the default of the standard library.
    pub stack_bytes: Option<usize>,
}

/// The most ranks a job may have.
pub const MAX_RANKS: u32 = 1 << 20;

/// The most rails a backend may have.
pub const MAX_RAILS: u16 = 64;

impl Default for Config {
    fn default() -> Self {
        Self {
            ranks: None,
            backend: None,
            rails: None,
            setup_timeout: Duration::from_secs(120),
            wait_timeout: None,
            stall_report: Duration::from_secs(10),
            trace: None,
            faults: None,
            variables: BTreeMap::new(),
            stack_bytes: None,
        }
    }
}

/// The place in a job that a launcher gave to this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// `RMA_RANK`.
    pub rank: Rank,
    /// `RMA_SIZE`.
    pub size: u32,
    /// `RMA_ROOT`: host and port at which rank 0 listens.
    pub root: String,
    /// `RMA_TOKEN`: the secret of the job, 32 hexadecimal digits.
    pub token: Token,
    /// `RMA_LISTEN_FD`: on rank 0, a descriptor that listens on `root` already. Only the environment and
    /// [`listening`](Self::listening) say so, for who takes it over closes it.
    pub(crate) listen_fd: Option<i32>,
    /// `RMA_BIND`: the address this rank listens on for its peers; loopback unless told otherwise.
    pub bind: IpAddr,
}

impl Place {
    /// The place of a rank that finds rank 0 at `root` (host and port), and listens for its peers at `bind`.
    pub fn new(rank: Rank, size: u32, root: String, token: Token, bind: IpAddr) -> Self {
        Self { rank, size, root, token, listen_fd: None, bind }
    }

    /// The same for rank 0, which listens already. The place takes the listener over, so join with it.
    pub fn listening(self, listener: TcpListener) -> Self {
        Self { listen_fd: Some(listener.into_raw_fd()), ..self }
    }
}

/// The secret of a job: who does not know it is not let in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token(pub [u8; 16]);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// A fresh one from the operating system's random numbers.
    pub fn random() -> Result<Self> {
        let mut bytes = [0; 16];
        let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(|e| Error::os("getting 16 random bytes for the job token", e))?;
        if filled != bytes.len() {
            return Err(Error::Launch(format!("the system gave {filled} of 16 random bytes for the job token; try again")));
        }
        Ok(Self(bytes))
    }

    /// As 32 hexadecimal digits, the form of `RMA_TOKEN`.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// From 32 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; 16];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl Config {
    /// The options from the environment of this process, and the place in a job if a launcher gave one. Under another launcher than
    /// `rma run` that is collective, and takes a program that was built to join its ranks ([`launcher::offer`](crate::launcher::offer)).
    pub fn from_env() -> Result<(Self, Option<Place>)> {
        let (config, start) = Self::from_variables(|name| std::env::var(name).ok())?;
        let place = match start {
            Start::Alone => None,
            Start::Place(place) => Some(place),
            Start::Foreign(foreign) => Some(foreign.place()?),
        };
        Ok((config, place))
    }

    /// The options alone, for a process that has its place from somewhere else; see [`Comm::join`](crate::Comm::join).
    pub fn options_from_env() -> Result<Self> {
        Self::from_variables(|name| std::env::var(name).ok()).map(|(config, _)| config)
    }

    /// A variable of a backend: what the program has set, else what the environment says.
    pub fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned().or_else(|| std::env::var(name).ok())
    }

    /// Names the first of these variables that cannot be used, as [`from_env`](Self::from_env) would.
    pub fn check_variables(variable: impl Fn(&str) -> Option<String>) -> Result<()> {
        match Self::from_variables(variable)?.1 {
            Start::Foreign(foreign) => foreign.joined_by().map(drop),
            Start::Alone | Start::Place(_) => Ok(()),
        }
    }

    /// The same from any source of variables.
    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<(Self, Start)> {
        let mut config = Self { ranks: parse(&variable, "RMA_RANKS", "a whole number")?, ..Self::default() };
        config.backend = variable("RMA_BACKEND").map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
        config.rails = parse(&variable, "RMA_RAILS", "a whole number")?;
        if let Some(seconds) = parse(&variable, "RMA_SETUP_TIMEOUT", "seconds, as in 30 or 0.5")? {
            config.setup_timeout = seconds_of("RMA_SETUP_TIMEOUT", seconds)?;
        }
        if let Some(seconds) = parse(&variable, "RMA_TIMEOUT", "seconds, as in 30 or 0.5")? {
            config.wait_timeout = Some(seconds_of("RMA_TIMEOUT", seconds)?);
        }
        config.trace = variable("RMA_TRACE").map(PathBuf::from);
        config.faults = match variable("RMA_FAULTS").map(|text| text.parse()) {
            None => None,
            Some(Ok(plan)) => Some(plan),
            Some(Err(reason)) => return Err(Error::Launch(format!("RMA_FAULTS: {reason}"))),
        };
        config.check()?;
        let foreign = Foreign::all(&variable)?;
        let start = match place_from(&variable)? {
            Some(place) => {
                // A launcher that started one process may have been a shell's.
                foreign.iter().filter(|foreign| foreign.is_several()).try_for_each(|foreign| foreign.check(&place))?;
                Start::Place(place)
            }
            None => foreign.into_iter().find(Foreign::is_several).map_or(Start::Alone, Start::Foreign),
        };
        Ok((config, start))
    }

    /// Names the first option that cannot be used.
    pub fn check(&self) -> Result<()> {
        if let Some(rails) = self.rails.filter(|&rails| rails == 0 || rails > MAX_RAILS) {
            return Err(Error::Launch(format!("RMA_RAILS={rails}: use 1 to {MAX_RAILS}")));
        }
        if self.stall_report.is_zero() {
            return Err(Error::Launch(
                "stall_report is 0: a stall cannot be reported without end; use 10 s, or Duration::MAX for never".into(),
            ));
        }
        self.trace.as_deref().map_or(Ok(()), trace::check_path)
    }
}

/// Who has started this process, as its environment says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Start {
    Alone,
    Place(Place),
    Foreign(Foreign),
}

fn place_from(variable: &impl Fn(&str) -> Option<String>) -> Result<Option<Place>> {
    const ALL: [&str; 4] = ["RMA_RANK", "RMA_SIZE", "RMA_ROOT", "RMA_TOKEN"];
    let missing: Vec<_> = ALL.iter().filter(|name| variable(name).is_none()).copied().collect();
    if missing.len() == ALL.len() {
        return Ok(None);
    }
    if !missing.is_empty() {
        return Err(Error::Launch(format!(
            "{} not set while others of {} are; set all of them (`rma run` does) or none",
            missing.join(", "),
            ALL.join(", ")
        )));
    }
    let number = |name| parse::<u32>(variable, name, "a whole number").map(|n| n.unwrap_or_default());
    let (rank, size) = (number("RMA_RANK")?, number("RMA_SIZE")?);
    if size > MAX_RANKS {
        return Err(Error::Launch(format!("RMA_SIZE={size}: a job has at most {MAX_RANKS} ranks")));
    }
    if rank >= size {
        return Err(Error::Launch(format!("RMA_RANK={rank} with RMA_SIZE={size}: ranks count from 0 to size - 1")));
    }
    let token = variable("RMA_TOKEN").and_then(|text| Token::from_hex(&text));
    let token =
        token.ok_or_else(|| Error::Launch("RMA_TOKEN is not 32 hexadecimal digits; give every rank the same ones".into()))?;
    Ok(Some(Place {
        rank: Rank(rank),
        size,
        root: variable("RMA_ROOT").unwrap_or_default(),
        token,
        listen_fd: parse(variable, "RMA_LISTEN_FD", "a descriptor number")?,
        bind: parse(variable, "RMA_BIND", "an IP address")?.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
    }))
}

pub(crate) fn parse<T: FromStr>(variable: &impl Fn(&str) -> Option<String>, name: &str, form: &str) -> Result<Option<T>> {
    let Some(text) = variable(name) else { return Ok(None) };
    match text.trim().parse() {
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(Error::Launch(format!("{name}={text:?}: expected {form}"))),
    }
}

fn seconds_of(name: &str, seconds: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| Error::Launch(format!("{name}={seconds}: expected more than 0 seconds")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &'static [(&'static str, &'static str)]) -> Result<(Config, Start)> {
        Config::from_variables(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    }

    const TOKEN: (&str, &str) = ("RMA_TOKEN", "000102030405060708090a0b0c0d0e0f");
    const ROOT: (&str, &str) = ("RMA_ROOT", "127.0.0.1:7");

    #[test]
    fn an_empty_environment_gives_the_defaults_and_no_place() {
        assert_eq!(with(&[]).unwrap(), (Config::default(), Start::Alone));
    }

    #[test]
    fn a_complete_place_is_read() {
        let (_, start) = with(&[("RMA_RANK", "1"), ("RMA_SIZE", "2"), ROOT, TOKEN]).unwrap();
        let Start::Place(place) = start else { panic!("{start:?}") };
        assert_eq!((place.rank, place.size, place.root.as_str()), (Rank(1), 2, "127.0.0.1:7"));
        assert_eq!(place.token.to_hex(), TOKEN.1);
        assert!(place.bind.is_loopback());
    }

    #[test]
    fn every_bad_value_is_named_with_its_mend() {
        let bad: &[(&'static [(&'static str, &'static str)], &str)] = &[
            (&[("RMA_RAILS", "0")], "RMA_RAILS=0: use 1 to 64"),
            (&[("RMA_RAILS", "65")], "RMA_RAILS=65: use 1 to 64"),
            (&[("RMA_RAILS", "many")], "RMA_RAILS=\"many\": expected a whole number"),
            (&[("RMA_TIMEOUT", "-1")], "RMA_TIMEOUT=-1: expected more than 0 seconds"),
            (&[("RMA_TIMEOUT", "nan")], "expected more than 0 seconds"),
            (&[("RMA_RANK", "1")], "RMA_SIZE, RMA_ROOT, RMA_TOKEN not set"),
            (&[("RMA_RANK", "2"), ("RMA_SIZE", "2"), ROOT, TOKEN], "ranks count from 0"),
            (&[("RMA_RANK", "0"), ("RMA_SIZE", "2"), ROOT, ("RMA_TOKEN", "xyz")], "32 hexadecimal digits"),
            (&[("RMA_RANK", "0"), ("RMA_SIZE", "4294967295"), ROOT, TOKEN], "at most 1048576 ranks"),
        ];
        for (variables, text) in bad {
            let error = with(variables).unwrap_err().to_string();
            assert!(error.contains(text), "{error:?} does not say {text:?}");
        }
    }

    #[test]
    fn a_foreign_launcher_with_another_size_is_refused() {
        let (_, start) = with(&[("OMPI_COMM_WORLD_SIZE", "4")]).unwrap();
        let Start::Foreign(foreign) = start else { panic!("{start:?}") };
        let error = foreign.place().unwrap_err().to_string();
        assert!(error.contains("rma run -n 4") && error.contains("rank 0") && error.contains("rma-mpi"), "{error}");
        let error = with(&[("PMI_SIZE", "4"), ("RMA_RANK", "1"), ("RMA_SIZE", "2"), ROOT, TOKEN]).unwrap_err().to_string();
        assert!(error.contains("PMI_SIZE=4 but RMA_SIZE=2"), "{error}");
        assert_eq!(with(&[("SLURM_STEP_NUM_TASKS", "1")]).unwrap().1, Start::Alone);
    }

    #[test]
    fn a_shell_of_a_launcher_may_start_ranks_of_its_own() {
        let (_, start) = with(&[("SLURM_STEP_NUM_TASKS", "1"), ("RMA_RANK", "1"), ("RMA_SIZE", "2"), ROOT, TOKEN]).unwrap();
        assert!(matches!(start, Start::Place(_)), "{start:?}");
    }
}
