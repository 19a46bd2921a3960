//! What there is to say of a board to people, for `rma info`.

use crate::address::Address;
use crate::clock::{Constant, Memory};
use crate::descriptor::{DESCRIPTOR_BYTES, Placement};
use crate::device::Peach2Backend;
use crate::options::Options;
use crate::placement::{CHANNELS, INTERNAL_DESCRIPTORS, REGISTERS_A_CHANNEL};
use crate::route::{MAX_BOARDS, PACKET_PAYLOAD_BYTES, RINGS, Topology};
use rma::{Config, Result};

/// A board, in lines of a name and a text, and its clock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Survey {
    /// What it has, and how it was told to be.
    pub lines: Vec<(&'static str, String)>,
    /// The constants of the clock, each with its value here.
    pub constants: Vec<(Constant, f64)>,
    /// How many boards a ring has, or why there cannot be such a job.
    pub ring: Result<u8, String>,
}

/// The board that a rank with these options has, in a job of so many; an error names the option that cannot be used.
pub fn survey(config: &Config, size: u32) -> Result<Survey> {
    let options = Options::of(config)?;
    let memory = match options.memory {
        Memory::Cpu => "of processors",
        Memory::Gpu => "of graphics processors",
    };
    let placement = match options.placement {
        Placement::Registers => "registers first, then internal memory, then the host's",
        Placement::Internal => "internal memory first, then the host's",
        Placement::Host => "the host's memory alone",
    };
    let order = if options.pipeline { "when the one before has left" } else { "when the one before has arrived" };
    let topology = Peach2Backend::prepare(size, config).map(|(_, topology, _)| topology).map_err(|error| error.to_string());
    let boards = topology.clone().map_or("none, as this job cannot be".into(), Topology::describe);
    let lines = vec![
        ("channels", format!("{CHANNELS}; each rail is one, and a put begins {order}")),
        (
            "descriptors",
            format!(
                "{DESCRIPTOR_BYTES} bytes; {REGISTERS_A_CHANNEL} registers a channel, {INTERNAL_DESCRIPTORS} in internal memory, any \
                 number in the host's"
            ),
        ),
        ("chains", format!("in {placement}")),
        ("windows", format!("memory {memory}")),
        ("addresses", format!("8 bits of a node and {} of a place in its memory", Address::OFFSET_BITS)),
        ("boards", format!("{boards}; {MAX_BOARDS} at most, in rings of {} or {}", RINGS[0], RINGS[1])),
        ("packets", format!("{PACKET_PAYLOAD_BYTES} bytes of payload at most")),
    ];
    Ok(Survey { lines, constants: options.constants.table(), ring: topology.map(Topology::ring) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_as_long_as_the_job_needs_or_the_reason_why_there_is_none() {
        let mut config = Config::default();
        let ring = |config: &Config, size| survey(config, size).unwrap().ring;
        assert_eq!([1, 8, 9, 32].map(|size| ring(&config, size)), [8, 8, 16, 16].map(Ok));
        assert!(ring(&config, 33).unwrap_err().contains("number of PEACH2 boards"));
        config.rails = Some(5);
        assert!(ring(&config, 1).unwrap_err().contains("RMA_RAILS"));
    }
}
