//! The clock of the emulated boards: what everything takes, and nothing of what the machine below takes. Pure.
//!
//! It is a clock for each flow by itself: messages that share a cable do not slow each other down. Puts of one channel do.

use crate::descriptor::{Placement, Shape};
use crate::route::packets;
use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// Virtual time, in picoseconds: a byte takes less than a nanosecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time(pub(crate) u64);

impl Time {
    pub(crate) fn of_ns(ns: f64) -> Self {
        // As a cast saturates, no constant makes it wrap.
        Self((ns * 1e3).round() as u64)
    }

    pub(crate) const fn duration(self) -> Duration {
        // Also the last of all times, without an overflow.
        Duration::from_nanos(self.0 / 1000 + (self.0 % 1000 >= 500) as u64)
    }
}

impl Add for Time {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// In microseconds.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.3}", self.0 as f64 / 1e6))
    }
}

/// What the windows of the boards are: memory of the processors, or of graphics processors, which is read more slowly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Of the processors.
    #[default]
    Cpu,
    /// Of graphics processors.
    Gpu,
}

/// A row of the table of constants.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Constant {
    /// By which `RMA_PEACH2_CLOCK` changes it.
    pub name: &'static str,
    /// Its value where nothing else is said.
    pub default: f64,
    /// `ns`, `ns/byte`, `bytes` or `bytes/ns` (which is GB/s).
    pub unit: &'static str,
    /// What it is.
    pub meaning: &'static str,
    /// Where it comes from: P3, the paper on PEACH2, or assumed.
    pub source: &'static str,
}

macro_rules! constants {
    ($($name:ident = $default:literal $unit:literal, $meaning:literal, $source:literal;)*) => {
        /// Everything that the clock rests on.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(crate) struct Constants {
            $(pub(crate) $name: f64,)*
        }

        impl Default for Constants {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl Constants {
            /// The constant of this name.
            pub(crate) fn named(&mut self, name: &str) -> Option<&mut f64> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }

            /// Every constant with its value here.
            pub(crate) fn table(&self) -> Vec<(Constant, f64)> {
                vec![$((Constant {
                    name: stringify!($name), default: $default, unit: $unit, meaning: $meaning, source: $source
                }, self.$name),)*]
            }
        }
    };
}

constants! {
    pio_ns = 550.0 "ns", "a store of the processor to another board, without its hops", "P3: 0.8 us to the next board";
    hop_ns = 250.0 "ns", "from one board to the next", "P3: each further board 0.25 us";
    fetch_register_ns = 0.0 "ns", "reading a descriptor from a register", "P3: none";
    fetch_internal_ns = 0.0 "ns", "reading a descriptor from internal memory", "P3: none";
    fetch_host_ns = 650.0 "ns", "reading a descriptor from host memory, a PCIe read", "assumed: 0.5 to 0.8 us";
    cpu_start_ns = 1450.0 "ns", "from a descriptor to its first bytes, from memory of processors", "P3: 8 bytes in 1.8 us, less a hop and the end";
    gpu_start_ns = 1660.0 "ns", "the same from memory of graphics processors", "P3: 2.01 us, less a hop and the end";
    end_ns = 100.0 "ns", "the flag at the target, and the engine's knowing of it", "assumed, a part of P3's totals";
    cpu_rate = 3.5 "bytes/ns", "between memories of processors", "P3: peak 3.5 GB/s";
    gpu_small_ns_per_byte = 0.085 "ns/byte", "a byte between graphics processors, to 2 KiB", "P3: 8.5e-5 us/B";
    gpu_medium_ns = 1950.0 "ns", "what a put takes before its bytes, 4 to 512 KiB", "P3: 1.95 us + S/2,585 MB/s";
    gpu_medium_rate = 2.585 "bytes/ns", "between graphics processors, 4 to 512 KiB", "P3: 1.95 us + S/2,585 MB/s";
    gpu_large_rate = 2.345 "bytes/ns", "between graphics processors, from 1 MiB", "P3: S/2,345 MB/s";
    stride_ns = 43.0 "ns", "each further block of a stride", "P3: 0.043 us";
    link_rate = 4.0 "bytes/ns", "over a cable, headers included", "P3: 3.66 GB/s of 4.0";
    packet_overhead = 24.0 "bytes", "around the 256 bytes at most of a packet", "P3: 256 B in 280 B packets";
}

/// What a message takes from when its descriptor is taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Until its last packet has left.
    pub(crate) sent: Time,
    /// Until it has arrived and its target can know.
    pub(crate) arrived: Time,
}

const KIB: f64 = 1024.0;

impl Constants {
    /// A put over so many hops, its descriptor in this memory.
    pub(crate) fn message(&self, memory: Memory, placement: Placement, shape: &Shape, hops: u32) -> Cost {
        let fetch_ns = match placement {
            Placement::Registers => self.fetch_register_ns,
            Placement::Internal => self.fetch_internal_ns,
            Placement::Host => self.fetch_host_ns,
        };
        let bytes = shape.total_bytes() as f64;
        let start_ns = match memory {
            Memory::Cpu => self.cpu_start_ns,
            Memory::Gpu => self.gpu_start_ns,
        };
        let strides_ns = f64::from(shape.count.saturating_sub(1)) * self.stride_ns;
        let read_ns = start_ns + self.payload_ns(memory, bytes) + strides_ns;
        // Packets leave while the bytes behind them are still read. That P3's small puts between graphics processors take less than
        // their packets would shows that this begins with the start, so a cable only counts where it is slower than all of that.
        let sent_ns = fetch_ns + read_ns.max(self.wire_ns(shape));
        Cost { sent: Time::of_ns(sent_ns), arrived: Time::of_ns(sent_ns + self.hops_ns(hops) + self.end_ns) }
    }

    /// A store of the processor to a board so many hops away.
    pub(crate) fn pio(&self, hops: u32) -> Time {
        Time::of_ns(self.pio_ns + self.hops_ns(hops))
    }

    fn hops_ns(&self, hops: u32) -> f64 {
        f64::from(hops) * self.hop_ns
    }

    /// What so many bytes add.
    fn payload_ns(&self, memory: Memory, bytes: f64) -> f64 {
        if memory == Memory::Cpu {
            return bytes / self.cpu_rate;
        }
        // P3's fit in three pieces, and straight lines between them. Its first and last constants are totals to the next board.
        let total_of_none = self.gpu_start_ns + self.hop_ns + self.end_ns;
        let small = |bytes: f64| bytes * self.gpu_small_ns_per_byte;
        let medium = |bytes: f64| self.gpu_medium_ns - total_of_none + bytes / self.gpu_medium_rate;
        let large = |bytes: f64| bytes / self.gpu_large_rate - total_of_none;
        let between = |low: (f64, f64), high: (f64, f64)| low.1 + (high.1 - low.1) * (bytes - low.0) / (high.0 - low.0);
        let ns = match bytes / KIB {
            ..=2.0 => small(bytes),
            ..4.0 => between((2.0 * KIB, small(2.0 * KIB)), (4.0 * KIB, medium(4.0 * KIB))),
            ..=512.0 => medium(bytes),
            ..1024.0 => between((512.0 * KIB, medium(512.0 * KIB)), (1024.0 * KIB, large(1024.0 * KIB))),
            _ => large(bytes),
        };
        ns.max(0.0)
    }

    /// How long a cable is busy with a put.
    fn wire_ns(&self, shape: &Shape) -> f64 {
        let overhead = packets(shape.block_bytes, shape.count) as f64 * self.packet_overhead;
        (shape.total_bytes() as f64 + overhead) / self.link_rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(memory: Memory, placement: Placement, shape: Shape, hops: u32) -> f64 {
        Constants::default().message(memory, placement, &shape, hops).arrived.0 as f64 / 1e6
    }

    fn copy_us(memory: Memory, bytes: u64) -> f64 {
        us(memory, Placement::Internal, Shape::copy(bytes), 1)
    }

    #[test]
    fn times_add_up_without_wrapping_and_are_rounded_to_nanoseconds() {
        assert_eq!(Time(u64::MAX) + Time(1), Time(u64::MAX));
        assert_eq!(Time::of_ns(f64::INFINITY), Time(u64::MAX));
        assert_eq!(Time(1_499).duration(), Duration::from_nanos(1));
        assert_eq!(Time(1_500).duration(), Duration::from_nanos(2));
        assert_eq!(Time(u64::MAX).duration(), Duration::from_nanos(u64::MAX / 1000 + 1));
        assert_eq!(Time::of_ns(1802.286).to_string(), "1.802");
    }

    #[test]
    fn the_totals_are_those_of_the_paper() {
        let near = |value: f64, expected: f64| assert!((value / expected - 1.0).abs() < 0.02, "{value} instead of {expected}");
        near(copy_us(Memory::Cpu, 8), 1.8);
        near(Constants::default().pio(1).0 as f64 / 1e6, 0.8);
        near((1 << 30) as f64 / copy_us(Memory::Cpu, 1 << 30) / 1e3, 3.5);
        for bits in 3..=22 {
            let bytes = 1u64 << bits;
            let expected = match bytes {
                ..=2048 => 2.01 + 8.5e-5 * bytes as f64,
                4096..=524_288 => 1.95 + bytes as f64 / 2585.0,
                _ => bytes as f64 / 2345.0,
            };
            near(copy_us(Memory::Gpu, bytes), expected);
        }
    }

    #[test]
    fn more_bytes_never_take_less() {
        for memory in [Memory::Cpu, Memory::Gpu] {
            let mut last = 0.0;
            for bytes in (0..3_000_000).step_by(97) {
                let now = copy_us(memory, bytes);
                assert!(now >= last, "{memory:?} {bytes}: {now} after {last}");
                last = now;
            }
        }
    }

    #[test]
    fn a_slow_cable_is_what_a_put_waits_for() {
        let slow = Constants { link_rate: 0.28, ..Constants::default() };
        let cost = slow.message(Memory::Cpu, Placement::Internal, &Shape::copy(1 << 20), 1);
        // 4,096 packets of 280 bytes.
        assert_eq!(cost.sent, Time::of_ns(4096.0 * 1000.0));
        assert_eq!(cost.arrived, cost.sent + Time::of_ns(350.0));
    }

    #[test]
    fn every_constant_has_its_row_and_can_be_changed_by_name() {
        let table = Constants::default().table();
        assert_eq!(size_of::<Constants>(), table.len() * size_of::<f64>());
        for (constant, value) in table {
            assert_eq!(constant.default, value);
            assert!(constant.source.starts_with("P3") || constant.source.starts_with("assumed"), "{constant:?}");
            let mut changed = Constants::default();
            *changed.named(constant.name).unwrap() += 1.0;
            let differing = changed.table().iter().filter(|(constant, value)| *value != constant.default).count();
            assert_eq!(differing, 1, "{}", constant.name);
        }
        assert_eq!(Constants::default().named("hop_us"), None);
    }
}
