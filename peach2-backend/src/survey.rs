//! What there is to say of a board to people, for `rma info`.

use crate::address::Address;
use crate::clock::{Constant, Memory};
use crate::descriptor::{DESCRIPTOR_BYTES, Placement};
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
    let ring = Topology::of(size, options.ring).map_or("too many ranks for two rings".into(), Topology::describe);
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
        ("boards", format!("{ring}; {MAX_BOARDS} at most, in rings of {} or {}", RINGS[0], RINGS[1])),
        ("packets", format!("{PACKET_PAYLOAD_BYTES} bytes of payload at most")),
    ];
    Ok(Survey { lines, constants: options.constants.table() })
}
