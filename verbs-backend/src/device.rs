//! The backend as a device: which ports are rails, what they can do, and the making and ending of it.

use crate::engine::Engine;
use crate::ffi::{CompletionQueue, Depths, DeviceLimits, Domain, PortState, QueuePair, Refused};
use crate::gid::Gid;
use crate::options::Options;
use crate::ports::{self, Port};
use crate::{NAME, commit, window};
use rma::backend::{Backend, Caps, Chain, Committed, WindowMem, WindowSpec};
use rma::bootstrap::Objection;
use rma::{Bootstrap, Config, Deadline, Error, Hosts, Rank, Result};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Puts over RDMA devices.
#[derive(Debug)]
pub struct VerbsBackend {
    shared: Rc<Shared>,
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
    engine: RefCell<Engine>,
    pub(crate) rails: Vec<RailDevice>,
}

/// What ranks tell each other of their devices.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Card {
    rails: u16,
    /// The most that every device can register at once.
    window_bytes: u64,
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
    pub(crate) domain: Rc<Domain>,
    pub(crate) completions: Rc<CompletionQueue>,
    /// Completions that connections may have at once; the queue has room for as many.
    pub(crate) room: Cell<Room>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) entries: u32,
    pub(crate) taken: u32,
}

/// How often a wait polls in a row: with a core each for some 100 us, before the clock is looked at, which is dear where it is emulated;
/// else giving the core away in between.
const POLLS_WITH_A_CORE_EACH: u32 = 5000;
const POLLS_WHEN_CROWDED: u32 = 16;
/// Completions that there is room for at first: enough for some partners, as not every device can make room later.
const FIRST_ROOM: u32 = 4096;
/// How long the end of a rank waits for the delivery of its last notices.
const FAREWELL: Duration = Duration::from_secs(2);

impl VerbsBackend {
    /// Collective: opens this rank's devices. All ranks must have the same number of rails.
    pub fn open(boot: &Arc<dyn Bootstrap>, hosts: &Hosts, config: &Config, deadline: Deadline) -> Result<Self> {
        let opened = Options::of(config).and_then(|options| {
            let rails = ports::rails(&options, boot.rank(), hosts.local_rank(), config.rails)?;
            let rails = rails.into_iter().map(RailDevice::open).collect::<Result<Vec<_>>>()?;
            for (index, rail) in rails.iter().enumerate() {
                tracing::info!(rank = boot.rank().0, "rail {index} is {}, {} bytes a packet", rail.name, rail.state.mtu_bytes);
            }
            Ok((options, rails))
        });
        let objection = boot.agree(opened.as_ref().err().map(Error::full_text), deadline);
        let (options, rails) = opened?;
        if let Some(Objection { rank, reason }) = objection? {
            return Err(Error::CollectiveFailed { call: "opening the RDMA devices", rank, reason });
        }
        let window_bytes = rails.iter().map(|rail| rail.limits.region_bytes).min().unwrap_or(0);
        let mine = Card { rails: rails.len() as u16, window_bytes };
        let card = postcard::to_stdvec(&mine).expect("bug: a card cannot be encoded");
        let mut caps = Caps::new(NAME, mine.rails);
        for (peer, theirs) in (0..).map(Rank).zip(boot.allgather(&card, deadline)?) {
            let theirs: Card = postcard::from_bytes(&theirs).map_err(|cause| Error::Malformed {
                what: "card of devices",
                from: peer.to_string(),
                reason: cause.to_string(),
            })?;
            if theirs.rails != mine.rails {
                return Err(Error::Launch(format!(
                    "{} has {} rails and {peer} has {}: rail r of one goes to rail r of the other, so give all ranks as many with \
                     RMA_RAILS, or name their ports with RMA_VERBS_DEVICES",
                    boot.rank(),
                    mine.rails,
                    theirs.rails
                )));
            }
            // The same limit on every rank, as all must refuse a window or none.
            caps.max_window_bytes = caps.max_window_bytes.min(theirs.window_bytes);
        }
        let crowded = hosts.crowded();
        caps.rails_work_in_parallel = rails.len() > 1;
        caps.polls_per_look = if crowded { POLLS_WHEN_CROWDED } else { POLLS_WITH_A_CORE_EACH };
        let shared = Shared {
            rank: boot.rank(),
            options,
            crowded,
            hosts_here: (0..boot.size()).map(Rank).filter(|&rank| hosts.is_here(rank)).collect(),
            boot: boot.clone(),
            engine: RefCell::default(),
            rails,
        };
        Ok(Self { shared: Rc::new(shared), caps })
    }
}

impl Backend for VerbsBackend {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn admit(&self, spec: &WindowSpec<'_>) -> Result<()> {
        window::admit(&self.shared, spec)
    }

    fn register(&self, spec: &WindowSpec<'_>) -> Result<Rc<dyn WindowMem>> {
        window::register(&self.shared, spec)
    }

    fn commit(&self, chain: Rc<Chain>, boot: &dyn Bootstrap, deadline: Deadline) -> Result<Box<dyn Committed>> {
        commit::commit(&self.shared, &chain, boot, deadline)
    }
}

impl Shared {
    #[inline]
    pub(crate) fn engine(&self) -> RefMut<'_, Engine> {
        self.engine.borrow_mut()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The last notices must be delivered before the queue pairs go: a partner may wait for them.
        let engine = self.engine.get_mut();
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
    /// Makes what all connections on the rail have in common.
    fn open(port: Port) -> Result<Self> {
        let Port { context, name, number: port, limits, state, gids, .. } = port;
        let domain = Domain::new(&context).map_err(|refused| failed(format!("making a protection domain on {name}"), refused))?;
        let entries = FIRST_ROOM.min(limits.completions);
        let completions = CompletionQueue::new(&context, entries)
            .map_err(|refused| failed(format!("making a completion queue of {entries} entries on {name}"), refused))?;
        let room = Cell::new(Room { entries, taken: 0 });
        Ok(Self { name, port, state, limits, gids, domain, completions, room })
    }

    /// Makes room for all completions that one more connection may have at once: when it breaks, every request ends with one.
    pub(crate) fn take_room(&self, entries: u32) -> Result<()> {
        let mut room = self.room.get();
        let needed = room.taken + entries;
        if needed > self.limits.completions {
            return Err(Error::Limit {
                what: "the number of completions that the connections on a rail may have at once,",
                asked: needed.into(),
                limit: self.limits.completions.into(),
                mend: format!(
                    "{} has no more; have fewer partners a rank, or lower RMA_VERBS_SENDS and RMA_VERBS_RECEIVES",
                    self.name
                ),
            });
        }
        if needed > room.entries {
            let entries = needed.next_power_of_two().min(self.limits.completions);
            self.completions.resize(entries).map_err(|refused| {
                failed(format!("making room for {entries} completions on {} (now {})", self.name, room.entries), refused)
            })?;
            room.entries = entries;
        }
        self.room.set(Room { taken: needed, ..room });
        Ok(())
    }

    pub(crate) fn give_room_back(&self, entries: u32) {
        let room = self.room.get();
        self.room.set(Room { taken: room.taken - entries, ..room });
    }

    /// What a new end of a connection is to take.
    pub(crate) fn depths(&self, options: &Options) -> Depths {
        Depths {
            sends: options.sends.min(self.limits.requests),
            receives: options.receives.min(self.limits.requests),
            pieces: options.pieces.min(self.limits.pieces).max(1),
            inline_bytes: options.inline_bytes,
        }
    }

    /// A new end of a connection, ready to be connected.
    pub(crate) fn new_pair(&self, asked: Depths) -> Result<(QueuePair, Depths)> {
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

/// A request and its connections must fit: what one port sends at once.
pub(crate) fn message_bytes(state: &PortState) -> u64 {
    // The lengths of pieces have 32 bits.
    u64::from(state.message_bytes).clamp(1, 1 << 30)
}
