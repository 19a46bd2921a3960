//! The backend as a device: which ranks it reaches, what it can do, and the windows of MPI that all ranks make and free together.

use crate::board::Boards;
use crate::ffi::{Communicator, Turn, Window};
use crate::progress::Way;
use crate::{NAME, commit, failed, meeting, window};
use rma::backend::{Backend, Caps, Chain, Committed, WindowMem, WindowSpec};
use rma::{Bootstrap, Config, Deadline, Hosts, Rank, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Puts over MPI-3 RMA.
#[derive(Debug)]
pub struct MpiBackend {
    shared: Rc<Shared>,
    caps: Caps,
}

/// What the backend and its committed queues have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) rank: Rank,
    pub(crate) communicator: &'static Communicator,
    /// Whether more ranks than cores run here, so that waiting must give its core away.
    pub(crate) crowded: bool,
    /// The ranks that run on this host.
    ranks_here: Vec<Rank>,
    /// Whether those are all.
    one_host: bool,
    /// All windows of MPI, in the same order on every rank. Those that nobody else holds may be freed once that is so on all ranks.
    windows: RefCell<Vec<Rc<Window>>>,
    pub(crate) boards: RefCell<Boards>,
    /// What has been put and is not announced yet.
    posted: RefCell<Vec<Rc<Way>>>,
    /// How many ways all queues have together: so much can be posted at once.
    ways: Cell<usize>,
    /// Given back after all else that calls MPI has gone.
    _turn: Turn,
}

/// What most often stands in the way of a window.
const ON_ONE_HOST: &str = "MPI keeps the memory of ranks of one host in files, most often in /dev/shm: if that is full, enlarge it (`mount -o \
                           remount,size=16G /dev/shm`, or --shm-size of a container), or allocate less";
const ON_SEVERAL_HOSTS: &str = "MPI needs one-sided communication for the network between the hosts, and room in /dev/shm: Open MPI, as Debian \
                                configures it, lacks the former over TCP, and `mpirun --mca osc ^ucx ..` gives it";

/// How often a wait polls in a row: with a core each some tens of microseconds.
const POLLS_WITH_A_CORE_EACH: u32 = 2000;
const POLLS_WHEN_CROWDED: u32 = 16;

impl MpiBackend {
    /// Collective: over the communicator on which this job's ranks have met, or over `MPI_COMM_WORLD`.
    pub fn open(boot: &dyn Bootstrap, hosts: &Hosts, config: &Config, deadline: Deadline) -> Result<Self> {
        let (communicator, turn) = meeting::communicator_of(boot, hosts, deadline)?;
        let crowded = hosts.crowded();
        let mut caps = Caps::new(NAME, config.rails.unwrap_or(1));
        caps.gathers_freely = false;
        caps.polls_per_look = if crowded { POLLS_WHEN_CROWDED } else { POLLS_WITH_A_CORE_EACH };
        let shared = Rc::new(Shared {
            rank: boot.rank(),
            communicator,
            crowded,
            ranks_here: (0..boot.size()).map(Rank).filter(|&rank| hosts.is_here(rank)).collect(),
            one_host: hosts.elsewhere().is_none(),
            windows: RefCell::default(),
            boards: RefCell::default(),
            posted: RefCell::default(),
            ways: Cell::new(0),
            _turn: turn,
        });
        // Many libraries move nothing, not even what others write here, unless they are called.
        let waiting = Rc::downgrade(&shared);
        rma::bootstrap::while_waiting(move || {
            if let Some(shared) = waiting.upgrade() {
                shared.advance();
            }
        });
        Ok(Self { shared, caps })
    }
}

impl Backend for MpiBackend {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn admit(&self, spec: &WindowSpec<'_>) -> Result<()> {
        spec.check_memory(|rank| self.shared.ranks_here.contains(&rank))
    }

    fn register(&self, spec: &WindowSpec<'_>) -> Result<Rc<dyn WindowMem>> {
        window::register(&self.shared, spec)
    }

    fn commit(&self, chain: Rc<Chain>, boot: &dyn Bootstrap, deadline: Deadline) -> Result<Box<dyn Committed>> {
        commit::commit(&self.shared, &chain, boot, deadline)
    }
}

impl Shared {
    /// Collective: a window of MPI with so many bytes on this rank. It may fail on some ranks alone, but they know the same windows.
    #[expect(unsafe_code, reason = "takes memory into use that is new")]
    pub(crate) fn allocate(&self, len_bytes: usize) -> Result<Rc<Window>> {
        let told = |refused| {
            let hint = if self.one_host { ON_ONE_HOST } else { ON_SEVERAL_HOSTS };
            failed(format!("allocating a window with {len_bytes} bytes on {}; {hint}", self.rank), refused)
        };
        let window = Rc::new(Window::allocate(self.communicator, len_bytes).map_err(told)?);
        self.windows.borrow_mut().push(window.clone());
        // SAFETY: nobody knows the window yet.
        unsafe { window.take_into_use() }.map_err(told)?;
        Ok(window)
    }

    /// Collective: frees the windows that no rank uses any more. Tells the largest number, to the next power of two, that a rank
    /// gave.
    pub(crate) fn free_what_nobody_uses(&self, number: usize) -> Result<usize> {
        let mut windows = self.windows.borrow_mut();
        let mut words = vec![0u64; 1 + windows.len().div_ceil(64)];
        words[0] = if number == 0 { 0 } else { number.next_power_of_two() as u64 };
        for (index, _) in windows.iter().enumerate().filter(|(_, window)| Rc::strong_count(window) > 1) {
            words[1 + index / 64] |= 1 << (index % 64);
        }
        let words = self
            .communicator
            .any(&words)
            .map_err(|refused| failed("agreeing on the windows that are not used any more", refused))?;
        let mut index = 0;
        let unused: Vec<_> = windows
            .extract_if(.., |_| {
                let used = words[1 + index / 64] & 1 << (index % 64) != 0;
                index += 1;
                !used
            })
            .collect();
        for window in unused.into_iter().filter_map(Rc::into_inner) {
            window.free().map_err(|refused| failed("freeing a window", refused))?;
        }
        Ok(words[0].checked_ilog2().map_or(0, |bit| 1 << bit))
    }

    /// The window with this number.
    pub(crate) fn window(&self, number: u64) -> Option<Rc<Window>> {
        self.windows.borrow().iter().find(|window| window.number() == number).cloned()
    }

    /// Takes note of puts that are to be announced.
    #[inline]
    pub(crate) fn posted(&self, way: &Rc<Way>) {
        self.posted.borrow_mut().push(way.clone());
    }

    /// So that taking note of what a further queue puts allocates nothing, whatever the others have under way.
    pub(crate) fn reserve(&self, ways: usize) {
        self.ways.set(self.ways.get() + ways);
        let mut posted = self.posted.borrow_mut();
        let more = self.ways.get().saturating_sub(posted.len());
        posted.reserve(more);
    }

    /// The opposite, for a queue that has gone.
    pub(crate) fn release(&self, ways: usize) {
        self.ways.set(self.ways.get() - ways);
    }

    /// Tells the targets of all puts that are there by now, once they are: the one thing here that may wait for a target, in a
    /// library that needs its help to write its memory.
    #[inline]
    pub(crate) fn announce(&self) {
        // Whatever the library does meanwhile, it does not come back here.
        let mut posted = self.posted.borrow_mut();
        posted.drain(..).for_each(|way| way.announce());
    }

    /// Everything that this rank owes to others.
    pub(crate) fn advance(&self) {
        self.announce();
        self.communicator.progress();
    }
}
