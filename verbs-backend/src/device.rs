//! The backend as a device: which ports are rails, what they can do, and the making and ending of it.

use crate::engine::Engine;
use crate::ffi::{self, CompletionQueue, Context, Depths, DeviceLimits, Domain, PortState, QueuePair, Refused};
use crate::gid::{Gid, Kind};
use crate::options::Options;
use crate::{NAME, commit, window};
use rma::backend::{Backend, Caps, Chain, Committed, WindowMem, WindowSpec};
use rma::bootstrap::Objection;
use rma::{Bootstrap, Config, Deadline, Error, Hosts, Rank, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Puts over RDMA devices.
#[derive(Debug)]
pub struct VerbsBackend {
    shared: Arc<Shared>,
    caps: Caps,
}

/// What the backend and its committed queues have in common.
pub(crate) struct Shared {
    pub(crate) rank: Rank,
    pub(crate) options: Options,
    /// Whether more ranks than cores run here, so that waiting must give its core away.
    pub(crate) crowded: bool,
    /// The ranks that run on this host.
    pub(crate) hosts_here: Vec<Rank>,
    pub(crate) boot: Arc<dyn Bootstrap>,
    /// Only ever contended by a program that moves parts of a rank between threads.
    engine: Mutex<Engine>,
    pub(crate) rails: Vec<RailDevice>,
}

/// A port that is a rail.
#[derive(Debug)]
pub(crate) struct RailDevice {
    /// As in `mlx5_0`, or `mlx5_0:2` for another port than the first.
    pub(crate) name: String,
    pub(crate) port: u8,
    pub(crate) state: PortState,
    pub(crate) limits: DeviceLimits,
    pub(crate) gids: Vec<Gid>,
    pub(crate) domain: Arc<Domain>,
    pub(crate) completions: Arc<CompletionQueue>,
    /// Completions that connections may have at once; the queue has room for as many.
    pub(crate) room: Mutex<Room>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) entries: u32,
    pub(crate) taken: u32,
}

/// How often a wait polls in a row: with a core each for about 100 us, else giving it away in between.
const POLLS_WITH_A_CORE_EACH: u32 = 500;
const POLLS_WHEN_CROWDED: u32 = 16;
/// Completions that there is room for at first.
const FIRST_ROOM: u32 = 1024;
/// How long the end of a rank waits for the delivery of its last notices.
const FAREWELL: Duration = Duration::from_secs(2);

impl VerbsBackend {
    /// Collective: opens this rank's devices. All ranks must have the same number of rails.
    pub fn open(boot: &Arc<dyn Bootstrap>, hosts: &Hosts, config: &Config, deadline: Deadline) -> Result<Self> {
        let opened = Options::from_env().and_then(|options| {
            let rails = open_rails(&options, boot.rank(), hosts.local_rank(), config.rails)?;
            Ok((options, rails))
        });
        let objection = boot.agree(opened.as_ref().err().map(Error::full_text), deadline);
        let (options, rails) = opened?;
        if let Some(Objection { rank, reason }) = objection? {
            return Err(Error::CollectiveFailed { call: "opening the RDMA devices", rank, reason });
        }
        let counts = boot.allgather(&(rails.len() as u16).to_le_bytes(), deadline)?;
        let mine = (rails.len() as u16).to_le_bytes();
        if let Some((peer, theirs)) = (0..).map(Rank).zip(&counts).find(|(_, count)| **count != mine) {
            let theirs = theirs.as_slice().try_into().map(u16::from_le_bytes).unwrap_or_default();
            return Err(Error::Launch(format!(
                "{} has {} rails and {peer} has {theirs}: rail r of one goes to rail r of the other, so give all ranks as many with \
                 RMA_RAILS, or name their ports with RMA_VERBS_DEVICES",
                boot.rank(),
                rails.len()
            )));
        }
        let crowded = hosts.crowded();
        let mut caps = Caps::new(NAME, rails.len() as u16);
        caps.rails_work_in_parallel = rails.len() > 1;
        caps.polls_per_look = if crowded { POLLS_WHEN_CROWDED } else { POLLS_WITH_A_CORE_EACH };
        caps.max_window_bytes = rails.iter().map(|rail| rail.limits.region_bytes).fold(caps.max_window_bytes, u64::min);
        let shared = Shared {
            rank: boot.rank(),
            options,
            crowded,
            hosts_here: (0..boot.size()).map(Rank).filter(|&rank| hosts.is_here(rank)).collect(),
            boot: boot.clone(),
            engine: Mutex::default(),
            rails,
        };
        Ok(Self { shared: Arc::new(shared), caps })
    }
}

impl Backend for VerbsBackend {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn admit(&self, spec: &WindowSpec<'_>) -> Result<()> {
        window::admit(&self.shared, spec)
    }

    fn register(&self, spec: &WindowSpec<'_>) -> Result<Arc<dyn WindowMem>> {
        window::register(&self.shared, spec)
    }

    fn commit(&self, chain: Arc<Chain>, boot: &dyn Bootstrap, deadline: Deadline) -> Result<Box<dyn Committed>> {
        commit::commit(&self.shared, &chain, boot, deadline)
    }
}

impl Shared {
    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The last notices must be delivered before the queue pairs go: a partner may wait for them.
        let engine = self.engine.get_mut().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        while !engine.is_idle() && begun.elapsed() < FAREWELL {
            if !engine.drain(&self.rails) {
                let departed = self.boot.departed();
                let gone = engine.busy_peers().into_iter().filter(|peer| departed.iter().any(|(rank, _)| rank == peer));
                gone.collect::<Vec<_>>().into_iter().for_each(|peer| engine.sever(peer));
                std::thread::yield_now();
            }
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.rails.iter().map(|rail| &rail.name).collect();
        write!(f, "Shared({}, {names:?})", self.rank)
    }
}

impl RailDevice {
    /// Makes room for completions of one more connection.
    pub(crate) fn take_room(&self, entries: u32) -> Result<()> {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let needed = room.taken + entries;
        if needed > self.limits.completions {
            return Err(Error::Limit {
                what: "the number of completions that the connections on a rail may have at once,",
                asked: needed.into(),
                limit: self.limits.completions.into(),
                mend: format!("{} has no more; have fewer partners a rank, or lower RMA_VERBS_RECEIVES", self.name),
            });
        }
        if needed > room.entries {
            let entries = needed.next_power_of_two().min(self.limits.completions);
            self.completions.resize(entries).map_err(|refused| {
                failed(format!("making room for {entries} completions on {} (now {})", self.name, room.entries), refused)
            })?;
            room.entries = entries;
        }
        room.taken = needed;
        Ok(())
    }

    pub(crate) fn give_room_back(&self, entries: u32) {
        self.room.lock().unwrap_or_else(PoisonError::into_inner).taken -= entries;
    }

    /// A new end of a connection, ready to be connected.
    pub(crate) fn new_pair(&self, options: &Options) -> Result<(QueuePair, Depths)> {
        let asked = Depths {
            sends: options.sends.min(self.limits.requests),
            receives: options.receives.min(self.limits.requests),
            pieces: options.pieces.min(self.limits.pieces).max(1),
            inline_bytes: options.inline_bytes,
        };
        // A device that cannot have so much inline refuses instead of giving less.
        let made = QueuePair::new(&self.domain, &self.completions, asked)
            .or_else(|_| QueuePair::new(&self.domain, &self.completions, Depths { inline_bytes: 0, ..asked }));
        made.map_err(|refused| {
            let Depths { sends, receives, pieces, .. } = asked;
            failed(
                format!(
                    "making a queue pair on {} for {sends} sends of {pieces} pieces and {receives} receives (the device can have {} \
                     queue pairs of {} requests); lower RMA_VERBS_SENDS and RMA_VERBS_RECEIVES, or raise `ulimit -l`",
                    self.name, self.limits.queue_pairs, self.limits.requests
                ),
                refused,
            )
        })
    }
}

/// An error of this backend with what was tried.
pub(crate) fn failed(doing: String, refused: Refused) -> Error {
    Error::Backend { backend: NAME, doing, cause: Box::new(refused) }
}

/// A device and a port of it, as an option names them.
fn parse_port(text: &str) -> Result<(&str, u8)> {
    match text.split_once(':') {
        None => Ok((text, 1)),
        Some((name, port)) => match port.parse() {
            Ok(port) if port > 0 => Ok((name, port)),
            _ => Err(Error::Launch(format!("RMA_VERBS_DEVICES: {text:?}: the port after the colon is a number from 1 on"))),
        },
    }
}

fn open_rails(options: &Options, rank: Rank, local_rank: u32, most: Option<u16>) -> Result<Vec<RailDevice>> {
    let names = ffi::device_names().map_err(|refused| {
        failed(
            "looking for RDMA devices: is libibverbs (rdma-core) installed, and the kernel module ib_uverbs loaded?".into(),
            refused,
        )
    })?;
    let mut rails = Vec::new();
    let mut unusable = Vec::new();
    if options.devices.is_empty() {
        let mut sorted = names.clone();
        sorted.sort();
        for name in &sorted {
            let context = open(name)?;
            let limits = context.limits().map_err(|refused| failed(format!("asking {name} what it can do"), refused))?;
            for port in 1..=limits.ports {
                let label = if port == 1 { name.clone() } else { format!("{name}:{port}") };
                match open_rail(&context, &label, port, limits, options) {
                    Ok(rail) => rails.push(rail),
                    Err(error) => unusable.push(error.full_text()),
                }
            }
        }
    } else {
        for pattern in &options.devices {
            let label = pattern.replace("{rank}", &rank.0.to_string()).replace("{local}", &local_rank.to_string());
            let (name, port) = parse_port(&label)?;
            if !names.iter().any(|other| other == name) {
                let there = if names.is_empty() { "none".into() } else { names.join(", ") };
                return Err(Error::Launch(format!(
                    "RMA_VERBS_DEVICES={}: there is no RDMA device {name} on this host, but {there}; `rma info` lists them",
                    options.devices.join(",")
                )));
            }
            let context = open(name)?;
            let limits = context.limits().map_err(|refused| failed(format!("asking {name} what it can do"), refused))?;
            rails.push(open_rail(&context, &label, port, limits, options)?);
        }
    }
    if rails.is_empty() {
        let why = if names.is_empty() { "there is no RDMA device".into() } else { unusable.join("; ") };
        return Err(Error::Launch(format!(
            "no port of an RDMA device can be used on this host: {why}; `rma info` says more, and RMA_BACKEND=shm does without"
        )));
    }
    if let Some(most) = most {
        if usize::from(most) > rails.len() {
            return Err(Error::Limit {
                what: "RMA_RAILS",
                asked: most.into(),
                limit: rails.len() as u64,
                mend: "that is how many active ports there are; `rma info` lists them".into(),
            });
        }
        rails.truncate(most.into());
    }
    rails.truncate(rma::config::MAX_RAILS.into());
    for (index, rail) in rails.iter().enumerate() {
        tracing::info!(rank = rank.0, "rail {index} is {}, {} bytes a packet", rail.name, rail.state.mtu_bytes);
    }
    Ok(rails)
}

fn open(name: &str) -> Result<Arc<Context>> {
    let context = Context::open(name)
        .map_err(|refused| failed(format!("opening {name}: may this user read and write /dev/infiniband/uverbs*?"), refused))?;
    context.ok_or_else(|| Error::Launch(format!("the RDMA device {name} has just gone")))
}

fn open_rail(context: &Arc<Context>, name: &str, port: u8, limits: DeviceLimits, options: &Options) -> Result<RailDevice> {
    if port > limits.ports {
        return Err(Error::Launch(format!("{name}: the device has {} port(s)", limits.ports)));
    }
    let state = context.port(port).map_err(|refused| failed(format!("asking for the state of {name}"), refused))?;
    if !state.active {
        return Err(Error::Launch(format!(
            "{name} is not active (state {}): is the link up? `rdma link` and `ip link` show it",
            state.state
        )));
    }
    let gids = gids(context, name, port, &state, options)?;
    let domain = Domain::new(context).map_err(|refused| failed(format!("making a protection domain on {name}"), refused))?;
    let entries = FIRST_ROOM.min(limits.completions);
    let completions = CompletionQueue::new(context, entries)
        .map_err(|refused| failed(format!("making a completion queue of {entries} entries on {name}"), refused))?;
    let room = Mutex::new(Room { entries, taken: 0 });
    Ok(RailDevice { name: name.into(), port, state, limits, gids, domain, completions, room })
}

/// The addresses of a port that may be used.
fn gids(context: &Context, name: &str, port: u8, state: &PortState, options: &Options) -> Result<Vec<Gid>> {
    let table = context.gids(port).map_err(|refused| failed(format!("reading the addresses (GIDs) of {name}"), refused))?;
    let interfaces = ffi::interface_addresses();
    let gids = table.iter().filter(|entry| entry.index <= u8::MAX.into()).map(|entry| Gid {
        index: entry.index,
        address: entry.gid,
        kind: match (entry.kind, state.ethernet) {
            (_, false) => Kind::InfiniBand,
            (2, true) => Kind::RoceV2,
            (_, true) => Kind::RoceV1,
        },
        prefix_bits: interfaces
            .iter()
            .find(|(index, address, _)| *index == entry.interface && *address == entry.gid)
            .map(|(_, _, bits)| *bits),
    });
    let gids: Vec<_> = gids.collect();
    match options.gid_index {
        None => Ok(gids),
        Some(index) => {
            let chosen: Vec<_> = gids.iter().filter(|gid| gid.index == u32::from(index)).copied().collect();
            if chosen.is_empty() {
                let there: Vec<_> = gids.iter().map(Gid::to_string).collect();
                return Err(Error::Launch(format!("RMA_VERBS_GID_INDEX={index}: {name} has {}", there.join(", "))));
            }
            Ok(chosen)
        }
    }
}

/// A request and its connections must fit: what one port sends at once.
pub(crate) fn message_bytes(state: &PortState) -> u64 {
    // The lengths of pieces have 32 bits.
    u64::from(state.message_bytes).clamp(1, 1 << 30)
}
