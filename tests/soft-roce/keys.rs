//! Keys that do not fit: what the device of a target refuses, and how both sides learn of it.
//! Owns a backend around the real one that alters the keys of the first queue of rank 0 that writes to rank 2.

use crate::links::{Loss, others_go_on_while_two_lose_each_other};
use anyhow::Result;
use rma::backend::{Backend, Caps, Chain, Committed, Put, WindowMem, WindowSpec};
use rma::provider::Provider;
use rma::{Bootstrap, Comm, Config, Deadline, Hosts, Rank};
use rma_verbs::VerbsBackend;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What `RMA_BACKEND` calls it: the remote key is another.
pub(crate) const WRONG_KEY: &str = "verbs-wrong-key";
/// The address is far behind the window.
pub(crate) const OUT_OF_RANGE: &str = "verbs-out-of-range";

/// Offers both.
#[allow(unsafe_code, reason = "a backend that breaks its contract on purpose")]
pub(crate) fn offer() {
    for provider in [&Tampering { name: WRONG_KEY, alter: alter_key }, &Tampering { name: OUT_OF_RANGE, alter: alter_address }] {
        // SAFETY: the real backend keeps its contract, and what a device is told to refuse is written nowhere.
        unsafe { rma::provider::offer(provider) };
    }
}

#[derive(Debug)]
struct Tampering {
    name: &'static str,
    alter: fn(&mut [u8]),
}

/// Postcard's form of a number: 7 bits a byte, the lowest first. The last bytes are the highest bits of the key of the last rail.
fn alter_key(key: &mut [u8]) {
    if let Some(last) = key.last_mut() {
        *last ^= 1;
    }
}

/// The first bytes are the address: bits 28 to 34 are in its fifth.
fn alter_address(key: &mut [u8]) {
    key[4] ^= 0x10;
}

impl Provider for Tampering {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(&self, boot: &Arc<dyn Bootstrap>, hosts: &Hosts, config: &Config, deadline: Deadline) -> rma::Result<Rc<dyn Backend>> {
        let inner = VerbsBackend::open(boot, hosts, config, deadline)?;
        Ok(Rc::new(Tampered { inner, rank: boot.rank(), alter: self.alter, done: AtomicBool::new(false) }))
    }
}

struct Tampered {
    inner: VerbsBackend,
    rank: Rank,
    alter: fn(&mut [u8]),
    done: AtomicBool,
}

impl Backend for Tampered {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn admit(&self, window: &WindowSpec<'_>) -> rma::Result<()> {
        self.inner.admit(window)
    }

    fn register(&self, window: &WindowSpec<'_>) -> rma::Result<Rc<dyn WindowMem>> {
        self.inner.register(window)
    }

    fn commit(&self, chain: Rc<Chain>, boot: &dyn Bootstrap, deadline: Deadline) -> rma::Result<Box<dyn Committed>> {
        let concerned = self.rank == Rank(0) && chain.targets() == [Rank(2)];
        // Relaxed: a rank commits on one thread.
        if !concerned || self.done.swap(true, Ordering::Relaxed) {
            return self.inner.commit(chain, boot, deadline);
        }
        let mut chain = (*chain).clone();
        for Put { key, .. } in &mut chain.puts {
            let mut altered = key.to_vec();
            (self.alter)(&mut altered);
            *key = altered.into();
        }
        self.inner.commit(Rc::new(chain), boot, deadline)
    }
}

/// Whichever part of the key is wrong.
pub(crate) fn what_a_device_refuses_is_named_on_both_sides_and_other_queues_go_on(comm: &Comm) -> Result<()> {
    let origin: &[&str] = &["remote access error", "the peer's device refused the write"];
    let target: &[&str] = &["work request flushed", "the peer ended the connection"];
    let loss = Loss { after: 0, part: &|| Ok(()), join: &|| Ok(()), causes: [origin, &[], target] };
    others_go_on_while_two_lose_each_other(comm, &loss)
}
