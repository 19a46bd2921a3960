//! What can be set from outside, beside what every backend takes. The environment is read here and nowhere else in this crate.

use rma::{Config, Error, Result};
use std::str::FromStr;

/// Options of this backend.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// `RMA_VERBS_DEVICES`: the ports to use as rails, in this order, as in `mlx5_0,mlx5_1:2`. `{rank}` and `{local}` stand for the
    /// number of the rank in the job and on its host. Without it every active port is a rail, in the order of the names.
    pub devices: Vec<String>,
    /// `RMA_VERBS_GID_INDEX`: the entry of the ports' tables of addresses to use, instead of the one with the best score.
    pub gid_index: Option<u8>,
    /// `RMA_VERBS_TIMEOUT`: one try takes 4.096 us times two to the power of this, 1 to 31.
    pub timeout: u8,
    /// `RMA_VERBS_RETRIES`: how often is tried again, 0 to 6; some devices take 7 for ever.
    pub retries: u8,
    /// `RMA_VERBS_RNR_RETRIES`: how often is tried again when the peer has no receive posted, 0 to 6; 7 is for ever.
    pub not_ready_retries: u8,
    /// `RMA_VERBS_RNR_TIMER`: the code of the time in between, 0 to 31.
    pub not_ready_timer: u8,
    /// `RMA_VERBS_SENDS`: how many requests a connection takes at once.
    pub sends: u32,
    /// `RMA_VERBS_RECEIVES`: how many notices a connection can receive at once.
    pub receives: u32,
    /// `RMA_VERBS_PIECES`: how many pieces of the source one request gathers.
    pub pieces: u32,
    /// `RMA_VERBS_INLINE`: up to how many bytes travel in the request itself.
    pub inline_bytes: u32,
    /// `RMA_VERBS_MTU`: the most bytes of a packet; without it what both ports can.
    pub mtu_bytes: Option<u32>,
    /// `RMA_VERBS_SERVICE_LEVEL`: 0 to 15.
    pub service_level: u8,
    /// `RMA_VERBS_TRAFFIC_CLASS`: 0 to 255; RoCE networks choose their lossless class by it.
    pub traffic_class: u8,
}

/// About 0.5 s a try and 4 s in all: a link that is down for a second is survived, a machine that died is named.
const DEFAULT_TIMEOUT: u8 = 17;
const DEFAULT_RETRIES: u8 = 6;
/// For ever: with credits a receive is always posted, and without them a target may rightly be late.
const DEFAULT_NOT_READY_RETRIES: u8 = 7;
/// 0.64 ms.
const DEFAULT_NOT_READY_TIMER: u8 = 12;

impl Default for Options {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            gid_index: None,
            timeout: DEFAULT_TIMEOUT,
            retries: DEFAULT_RETRIES,
            not_ready_retries: DEFAULT_NOT_READY_RETRIES,
            not_ready_timer: DEFAULT_NOT_READY_TIMER,
            sends: 256,
            receives: 128,
            pieces: 16,
            inline_bytes: 128,
            mtu_bytes: None,
            service_level: 0,
            traffic_class: 0,
        }
    }
}

/// Every variable: name, default, meaning.
pub fn variables() -> Vec<(&'static str, String, &'static str)> {
    let Options { timeout, retries, not_ready_retries, not_ready_timer, sends, receives, pieces, inline_bytes, .. } =
        Options::default();
    vec![
        (
            "RMA_VERBS_DEVICES",
            "all active ports".into(),
            "ports that are rails, as in mlx5_0,mlx5_1:2; {rank} and {local} are replaced",
        ),
        ("RMA_VERBS_GID_INDEX", "the best".into(), "entry of the ports' address tables to use"),
        ("RMA_VERBS_TIMEOUT", timeout.to_string(), "one try takes 4.096 us * 2^this, 1 to 31"),
        ("RMA_VERBS_RETRIES", retries.to_string(), "tries after the first, 0 to 6"),
        ("RMA_VERBS_RNR_RETRIES", not_ready_retries.to_string(), "tries when the peer has no receive posted, 0 to 6, 7 for ever"),
        ("RMA_VERBS_RNR_TIMER", not_ready_timer.to_string(), "code of the time between those, 0 to 31 (12: 0.64 ms)"),
        ("RMA_VERBS_SENDS", sends.to_string(), "requests of a connection, 16 to 65536"),
        ("RMA_VERBS_RECEIVES", receives.to_string(), "notices a connection can receive at once, 16 to 65536"),
        ("RMA_VERBS_PIECES", pieces.to_string(), "pieces that one request gathers, 1 to 32"),
        ("RMA_VERBS_INLINE", inline_bytes.to_string(), "bytes that travel in the request itself, 0 to 1024"),
        ("RMA_VERBS_MTU", "what both ports can".into(), "bytes of a packet: 256, 512, 1024, 2048 or 4096"),
        ("RMA_VERBS_SERVICE_LEVEL", "0".into(), "InfiniBand service level, 0 to 15"),
        ("RMA_VERBS_TRAFFIC_CLASS", "0".into(), "RoCE traffic class, 0 to 255"),
    ]
}

impl Options {
    /// The options from the environment of this process.
    pub fn from_env() -> Result<Self> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// The options of a job: what the program has set, else what the environment says.
    pub fn of(config: &Config) -> Result<Self> {
        Self::from_variables(|name| config.variable(name))
    }

    /// Names the first of these variables that cannot be used, as [`from_env`](Self::from_env) would.
    pub fn check_variables(variable: impl Fn(&str) -> Option<String>) -> Result<()> {
        Self::from_variables(variable).map(|_| ())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let mut options = Self::default();
        if let Some(text) = variable("RMA_VERBS_DEVICES") {
            options.devices = text.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
        }
        let set = |name, value: &mut u8, least, most| number(&variable, name, value, least, most);
        set("RMA_VERBS_TIMEOUT", &mut options.timeout, 1, 31)?;
        set("RMA_VERBS_RETRIES", &mut options.retries, 0, 6)?;
        set("RMA_VERBS_RNR_RETRIES", &mut options.not_ready_retries, 0, 7)?;
        set("RMA_VERBS_RNR_TIMER", &mut options.not_ready_timer, 0, 31)?;
        set("RMA_VERBS_SERVICE_LEVEL", &mut options.service_level, 0, 15)?;
        set("RMA_VERBS_TRAFFIC_CLASS", &mut options.traffic_class, 0, 255)?;
        let set = |name, value: &mut u32, least, most| number(&variable, name, value, least, most);
        set("RMA_VERBS_SENDS", &mut options.sends, 16, 65536)?;
        set("RMA_VERBS_RECEIVES", &mut options.receives, 16, 65536)?;
        set("RMA_VERBS_PIECES", &mut options.pieces, 1, 32)?;
        set("RMA_VERBS_INLINE", &mut options.inline_bytes, 0, 1024)?;
        if variable("RMA_VERBS_GID_INDEX").is_some() {
            number(&variable, "RMA_VERBS_GID_INDEX", options.gid_index.insert(0), 0, 255)?;
        }
        if variable("RMA_VERBS_MTU").is_some() {
            let mtu_bytes = options.mtu_bytes.insert(0);
            number(&variable, "RMA_VERBS_MTU", mtu_bytes, 256, 4096)?;
            if !mtu_bytes.is_power_of_two() {
                return Err(Error::Launch(format!("RMA_VERBS_MTU={mtu_bytes}: use 256, 512, 1024, 2048 or 4096")));
            }
        }
        Ok(options)
    }
}

fn number<T: FromStr + PartialOrd + std::fmt::Display + Copy>(
    variable: &impl Fn(&str) -> Option<String>,
    name: &str,
    value: &mut T,
    least: T,
    most: T,
) -> Result<()> {
    let Some(text) = variable(name) else { return Ok(()) };
    match text.trim().parse() {
        Ok(number) if (least..=most).contains(&number) => *value = number,
        _ => return Err(Error::Launch(format!("{name}={text:?}: use {least} to {most}"))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<Options> {
        Options::from_variables(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn every_variable_is_read() {
        let default = Options::default();
        for (name, _, _) in variables() {
            let value = match name {
                "RMA_VERBS_DEVICES" => "a, b:2",
                "RMA_VERBS_MTU" => "512",
                "RMA_VERBS_RNR_RETRIES" | "RMA_VERBS_RETRIES" | "RMA_VERBS_GID_INDEX" => "3",
                "RMA_VERBS_SENDS" | "RMA_VERBS_RECEIVES" => "32",
                _ => "11",
            };
            assert_ne!(with(name, value).unwrap(), default, "{name}");
        }
        assert_eq!(with("RMA_VERBS_DEVICES", "a, b:2").unwrap().devices, ["a", "b:2"]);
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
    fn a_bad_value_is_named_with_its_limits() {
        for (name, value, text) in [
            ("RMA_VERBS_RETRIES", "7", "RMA_VERBS_RETRIES=\"7\": use 0 to 6"),
            ("RMA_VERBS_TIMEOUT", "0", "use 1 to 31"),
            ("RMA_VERBS_SENDS", "-1", "use 16 to 65536"),
            ("RMA_VERBS_MTU", "1500", "use 256, 512, 1024, 2048 or 4096"),
            ("RMA_VERBS_GID_INDEX", "x", "use 0 to 255"),
        ] {
            let error = with(name, value).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
