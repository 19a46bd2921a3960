//! One reliable connection with a peer on a rail, shared by all queues: room for requests, and what is on its way.
//! Owns the accounting that keeps send queues and completion queues from overflowing; knows no protocol.

use crate::failure::{Breakdown, Failure};
use crate::ffi::{Depths, QueuePair, Refused, SendList};
use crate::notice::{self, What};
use crate::slot::Slot;
use rma::{Rail, Rank};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Its place in the engine's table, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ConnectionId(pub(crate) u32);

/// How many signaled requests may be on their way at once: what there is room for without allocating.
const SIGNALED: u32 = 64;

/// Requests on their way up to and including a signaled one.
#[derive(Debug)]
struct Batch {
    requests: u32,
    /// Who is told when it is complete.
    owner: Option<Rc<Slot>>,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: ConnectionId,
    pub(crate) peer: Rank,
    pub(crate) rail: Rail,
    pub(crate) pair: QueuePair,
    /// The number of the peer's end.
    pub(crate) peer_number: u32,
    /// What the own end takes.
    pub(crate) depths: Depths,
    /// How many committed queues use it.
    pub(crate) users: u32,
    /// Receives set aside for those.
    pub(crate) reserved: u32,
    pub(crate) failure: Option<Failure>,
    /// Requests that the send queue has room for.
    free: u32,
    /// Unsignaled ones since the last signaled one.
    unsignaled: u32,
    on_way: VecDeque<Batch>,
    /// A credit that waits for a list to take it along: the slot at the other end, and the epoch.
    owed: Option<(u32, u64)>,
    /// Notices that found no room, in order.
    backlog: VecDeque<u32>,
    /// Receives that were used and are not posted again yet.
    used_receives: u32,
    /// Whether the engine knows that some should be.
    thirsty: bool,
    /// Since when somebody has been waiting for the peer, as far as nothing has come meanwhile.
    awaited_since: Option<Instant>,
}

/// What is kept of the room for notices, so that a credit need not wait for long lists.
pub(crate) const NOTICES: u32 = 4;

/// After so long without a sign of a peer that is waited for, it is asked for one. A connection that has broken at the other end only
/// shows in what is sent over it.
const SILENCE: Duration = Duration::from_secs(1);

/// So many receives are posted again at once.
const RECEIVES_AT_ONCE: u32 = 4;

/// Fewer than so many are used and not posted again.
pub(crate) const USED_RECEIVES: u32 = 2 * RECEIVES_AT_ONCE;

/// After so many unsignaled requests one is signaled, so that their room comes back.
const UNSIGNALED: u32 = 8;

impl Connection {
    pub(crate) fn new(id: ConnectionId, peer: Rank, rail: Rail, pair: QueuePair, peer_number: u32, depths: Depths) -> Self {
        Self {
            id,
            peer,
            rail,
            pair,
            peer_number,
            depths,
            users: 0,
            reserved: 0,
            failure: None,
            free: depths.sends,
            unsignaled: 0,
            on_way: VecDeque::with_capacity(SIGNALED as usize),
            owed: None,
            backlog: VecDeque::with_capacity(SIGNALED as usize),
            used_receives: 0,
            thirsty: false,
            awaited_since: None,
        }
    }

    /// The number of its requests.
    pub(crate) fn request_id(id: ConnectionId) -> u64 {
        u64::from(id.0)
    }

    /// Whether a list of so many requests may be posted now.
    pub(crate) fn has_room(&self, requests: u32) -> bool {
        self.failure.is_none() && self.free >= requests + NOTICES && self.on_way.len() + (NOTICES as usize) < SIGNALED as usize
    }

    fn has_room_for_notice(&self) -> bool {
        self.failure.is_none() && self.free > 0 && self.on_way.len() < SIGNALED as usize
    }

    /// Called again and again while something of the peer is waited for: asks for a sign of it when none has come for a while.
    pub(crate) fn probe(&mut self) {
        let since = *self.awaited_since.get_or_insert_with(Instant::now);
        if since.elapsed() < SILENCE || !self.is_idle() || !self.has_room_for_notice() {
            return;
        }
        self.free -= 1;
        self.unsignaled += 1;
        self.on_way.push_back(Batch { requests: std::mem::take(&mut self.unsignaled), owner: None });
        if let Err(refused) = self.pair.post_probe(Self::request_id(self.id)) {
            self.refused(&refused);
        }
    }

    /// Posts a list that [`has_room`](Self::has_room) for.
    ///
    /// # Safety
    /// As for [`QueuePair::post`].
    #[expect(unsafe_code, reason = "passes the promise of `Committed::start` on")]
    #[inline(always)]
    pub(crate) unsafe fn post(&mut self, list: &mut SendList, owner: &Rc<Slot>) {
        let requests = list.len() + std::mem::take(&mut self.unsignaled);
        self.free -= list.len();
        self.on_way.push_back(Batch { requests, owner: Some(owner.clone()) });
        // SAFETY: the caller's promise.
        if let Err(refused) = unsafe { self.pair.post(list) } {
            self.refused(&refused);
        }
    }

    /// Holds a credit back until the next list, or until [`pay`](Self::pay).
    #[inline]
    pub(crate) fn owe(&mut self, slot: u32, epoch: u64) {
        self.pay();
        self.owed = Some((slot, epoch));
    }

    /// Sends the credit that is owed, if no list has taken it along.
    #[inline]
    pub(crate) fn pay(&mut self) {
        if let Some((slot, epoch)) = self.owed.take() {
            self.notify(notice::encode(What::Granted, slot, epoch), false);
        }
    }

    /// The immediate of a list that tells of an arrival, and of the credit that is owed.
    #[inline]
    pub(crate) fn arrival(&mut self, slot: u32, epoch: u64) -> u32 {
        if let Some(owed) = self.owed
            && let Some(both) = notice::encode_both((slot, epoch), owed)
        {
            self.owed = None;
            return both;
        }
        notice::encode(What::Arrived, slot, epoch)
    }

    /// Sends a notice, now or as soon as there is room. With `sure` its delivery is waited for by [`is_idle`](Self::is_idle).
    #[inline]
    pub(crate) fn notify(&mut self, immediate: u32, sure: bool) {
        if self.failure.is_some() {
            return;
        }
        if !self.backlog.is_empty() || !self.has_room_for_notice() {
            self.backlog.push_back(immediate);
            return;
        }
        self.send(immediate, sure);
    }

    fn send(&mut self, immediate: u32, sure: bool) {
        let signaled = sure || self.unsignaled + 1 >= UNSIGNALED;
        self.free -= 1;
        self.unsignaled += 1;
        if signaled {
            self.on_way.push_back(Batch { requests: std::mem::take(&mut self.unsignaled), owner: None });
        }
        if let Err(refused) = self.pair.post_notice(Self::request_id(self.id), immediate, signaled) {
            self.refused(&refused);
        }
    }

    /// Lets the first notices come in.
    pub(crate) fn post_receives(&mut self, count: u32) -> Result<(), Refused> {
        (0..count).try_for_each(|_| self.pair.post_receives::<1>(Self::request_id(self.id)))
    }

    /// A notice has come in, which uses up a receive. True if [`post_used_receives`](Self::post_used_receives) should be called as
    /// soon as there is nothing else to do, and that was not said before.
    #[inline]
    pub(crate) fn received(&mut self) -> bool {
        self.awaited_since = None;
        self.used_receives += 1;
        if self.used_receives < RECEIVES_AT_ONCE {
            return false;
        }
        if self.used_receives == USED_RECEIVES {
            self.post_used_receives();
            return false;
        }
        !std::mem::replace(&mut self.thirsty, true)
    }

    /// Posts receives again that notices have used up.
    pub(crate) fn post_used_receives(&mut self) {
        self.thirsty = false;
        while self.used_receives >= RECEIVES_AT_ONCE {
            self.used_receives -= RECEIVES_AT_ONCE;
            if let Err(refused) = self.pair.post_receives::<{ RECEIVES_AT_ONCE as usize }>(Self::request_id(self.id)) {
                return self.refused(&refused);
            }
        }
    }

    /// A signaled request is complete. Returns whose it was.
    #[inline]
    pub(crate) fn completed(&mut self) -> Option<Rc<Slot>> {
        self.awaited_since = None;
        let batch = self.on_way.pop_front()?;
        self.free += batch.requests;
        if !self.backlog.is_empty() {
            self.send_backlog();
        }
        batch.owner
    }

    /// Whether all that was sent for sure has been delivered, or never will be.
    pub(crate) fn is_idle(&self) -> bool {
        self.failure.is_some() || (self.on_way.is_empty() && self.backlog.is_empty())
    }

    #[cold]
    fn send_backlog(&mut self) {
        while self.has_room_for_notice()
            && let Some(immediate) = self.backlog.pop_front()
        {
            self.send(immediate, true);
        }
    }

    /// Ends it: takes note of the first thing that went wrong, or of the first that says more.
    #[cold]
    pub(crate) fn fail(&mut self, cause: Breakdown) {
        match &mut self.failure {
            None => {
                self.failure = Some(Failure { at: Instant::now(), cause });
                // From here on nothing of the peer is taken, whatever it was that went wrong.
                if let Err(refused) = self.pair.sever() {
                    tracing::warn!(peer = self.peer.0, rail = self.rail.0, "{refused}");
                }
            }
            Some(known) if known.cause.is_vague() && !cause.is_vague() => known.cause = cause,
            Some(_) => {}
        }
    }

    #[cold]
    pub(crate) fn refused(&mut self, refused: &Refused) {
        tracing::warn!(peer = self.peer.0, rail = self.rail.0, "{refused}");
        self.fail(Breakdown::Post { call: refused.call, number: refused.number().unwrap_or(0) });
    }
}
