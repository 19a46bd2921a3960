//! The backends a program was built with, besides shared memory, and which of them a job uses.
//! Owns the table of offers and the choice; knows nothing of what is behind an offer.

use crate::backend::Backend;
use crate::config::Token;
use crate::shm::{ShmBackend, ThreadSpace};
use crate::{Bootstrap, Config, Deadline, Error, Hosts, Purpose, Result};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// A kind of backend that a program can be built with.
pub trait Provider: Send + Sync {
    /// What `RMA_BACKEND` calls it.
    fn name(&self) -> &'static str;

    /// Whether it reaches ranks on other hosts. Then a job on several takes it by itself; else only where `RMA_BACKEND` names it.
    fn spans_hosts(&self) -> bool {
        true
    }

    /// Collective: this rank's backend.
    fn open(&self, boot: &Arc<dyn Bootstrap>, hosts: &Hosts, config: &Config, deadline: Deadline) -> Result<Rc<dyn Backend>>;
}

/// What was offered, in order.
static OFFERS: Mutex<Offers> = Mutex::new(Offers(Vec::new()));

/// Lets this program use a backend: [`Comm::from_env`](crate::Comm::from_env), [`Comm::launch`](crate::Comm::launch) and the others
/// take it when `RMA_BACKEND` names it, and when the ranks are on several hosts, which shared memory does not reach across but it
/// [does](Provider::spans_hosts).
/// Offering it again changes nothing. Backends have a safe function of the same name that offers them.
///
/// # Safety
/// As for [`Comm::new`](crate::Comm::new): what the provider opens keeps the contract of [`backend`](crate::backend).
#[allow(unsafe_code, reason = "declares a contract; contains no unsafe operation")]
pub unsafe fn offer(provider: &'static dyn Provider) {
    OFFERS.lock().unwrap_or_else(PoisonError::into_inner).add(provider);
}

/// The names of all backends that this program has, shared memory first.
pub fn names() -> Vec<&'static str> {
    offers().names()
}

/// Collective, for ranks that are threads of one process and share `space`: the backend that the options name, else shared memory.
pub(crate) fn open_for_threads(boot: &Arc<dyn Bootstrap>, space: &Arc<ThreadSpace>, config: &Config) -> Result<Rc<dyn Backend>> {
    let Some(provider) = offers().named(config.backend.as_deref())? else {
        return Ok(Rc::new(ShmBackend::threads(space, boot.rank(), config)));
    };
    let deadline = Deadline::after(config.setup_timeout).of(Purpose::SetUp);
    let hosts = Hosts::gather(&**boot, config.backend.as_deref(), deadline)?.of_threads(space);
    provider.open(boot, &hosts, config, deadline)
}

/// Collective, for ranks that are processes: the backend that the options name; without a name shared memory where it reaches
/// every rank, else the first offer that spans hosts.
pub(crate) fn open_for_processes(boot: &Arc<dyn Bootstrap>, config: &Config, token: Token) -> Result<Rc<dyn Backend>> {
    let deadline = Deadline::after(config.setup_timeout).of(Purpose::SetUp);
    let hosts = Hosts::gather(&**boot, config.backend.as_deref(), deadline)?;
    match offers().for_hosts(config.backend.as_deref(), &hosts)? {
        Some(provider) => provider.open(boot, &hosts, config, deadline),
        None => Ok(Rc::new(ShmBackend::processes(&**boot, &hosts, token, config, deadline)?)),
    }
}

/// A copy, so that nothing is locked while a backend opens.
fn offers() -> Offers {
    OFFERS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

#[derive(Clone)]
struct Offers(Vec<&'static dyn Provider>);

impl Offers {
    fn add(&mut self, provider: &'static dyn Provider) {
        if provider.name() != crate::shm::NAME && self.0.iter().all(|other| other.name() != provider.name()) {
            self.0.push(provider);
        }
    }

    fn names(&self) -> Vec<&'static str> {
        std::iter::once(crate::shm::NAME).chain(self.0.iter().map(|offer| offer.name())).collect()
    }

    /// `None`, asked and answered, is shared memory.
    fn for_hosts(&self, name: Option<&str>, hosts: &Hosts) -> Result<Option<&'static dyn Provider>> {
        match name {
            None if hosts.elsewhere().is_some() => Ok(self.0.iter().find(|offer| offer.spans_hosts()).copied()),
            name => self.named(name),
        }
    }

    /// The offer of this name; `None`, asked and answered, is shared memory.
    fn named(&self, name: Option<&str>) -> Result<Option<&'static dyn Provider>> {
        let Some(name) = name.filter(|&name| name != crate::shm::NAME) else { return Ok(None) };
        let found = self.0.iter().find(|offer| offer.name() == name).copied();
        found.map(Some).ok_or_else(|| {
            Error::Launch(format!(
                "RMA_BACKEND={name}: this program has no such backend, but {}; build it with the crate of the one you want (rma-verbs for \
                 RDMA devices, rma-mpi, rma-peach2 for emulated boards) and have it call that crate's `offer()` first",
                self.names().join(", ")
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rank;
    use crate::bootstrap::threads;
    use std::time::Duration;

    /// Opens nothing; the error says that it was asked to.
    struct Named(&'static str);

    impl Provider for Named {
        fn name(&self) -> &'static str {
            self.0
        }

        fn spans_hosts(&self) -> bool {
            self.0 != "abacus"
        }

        fn open(&self, _: &Arc<dyn Bootstrap>, _: &Hosts, _: &Config, _: Deadline) -> Result<Rc<dyn Backend>> {
            Err(Error::Launch(format!("{} was opened", self.0)))
        }
    }

    fn offers(names: &[&'static str]) -> Offers {
        let mut offers = Offers(Vec::new());
        names.iter().for_each(|name| offers.add(Box::leak(Box::new(Named(name)))));
        offers
    }

    /// The name of what was chosen; for shared memory its own.
    fn chosen(offers: &Offers, name: Option<&str>, hosts: &[&str]) -> Result<&'static str, String> {
        let hosts = Hosts::of_names(Rank(0), hosts);
        let chosen = offers.for_hosts(name, &hosts).map_err(|error| error.to_string())?;
        Ok(chosen.map_or(crate::shm::NAME, |provider| provider.name()))
    }

    #[test]
    fn every_name_is_there_once_in_the_order_of_the_offers_and_shared_memory_first() {
        assert_eq!(offers(&[]).names(), ["shm"]);
        assert_eq!(offers(&["pigeon", "verbs", "pigeon", "shm"]).names(), ["shm", "pigeon", "verbs"]);
    }

    #[test]
    fn without_a_name_shared_memory_is_taken_on_one_host_and_the_first_offer_that_spans_them_on_several() {
        let offers = offers(&["abacus", "pigeon", "verbs"]);
        assert_eq!(chosen(&offers, None, &["a", "a"]), Ok("shm"));
        assert_eq!(chosen(&offers, None, &["a", "a", "b"]), Ok("pigeon"));
    }

    #[test]
    fn a_name_is_taken_wherever_the_ranks_are() {
        let offers = offers(&["pigeon", "verbs", "abacus"]);
        assert_eq!(chosen(&offers, Some("abacus"), &["a", "b"]), Ok("abacus"));
        for hosts in [&["a", "a"][..], &["a", "b"]] {
            assert_eq!(chosen(&offers, Some("verbs"), hosts), Ok("verbs"));
            assert_eq!(chosen(&offers, Some("shm"), hosts), Ok("shm"));
        }
    }

    #[test]
    fn an_unknown_name_is_told_which_there_are_and_how_to_get_it() {
        let error = chosen(&offers(&["pigeon"]), Some("verbs"), &["a"]).unwrap_err();
        assert!(error.starts_with("RMA_BACKEND=verbs: this program has no such backend, but shm, pigeon;"), "{error}");
        assert!(error.contains("rma-verbs") && error.contains("offer()"), "{error}");
    }

    /// Calls on every rank of a group of threads, with the options that each of them has.
    fn each_with<T: Send>(names: &[Option<&str>], call: impl Fn(Arc<dyn Bootstrap>, Config) -> T + Sync) -> Vec<T> {
        let boots = threads::group(names.len() as u32);
        std::thread::scope(|scope| {
            let call = &call;
            let ranks: Vec<_> = boots
                .into_iter()
                .zip(names)
                .map(|(boot, name)| {
                    let backend = name.map(str::to_owned);
                    let config = Config { backend, setup_timeout: Duration::from_secs(20), ..Config::default() };
                    scope.spawn(move || call(Arc::new(boot), config))
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn ranks_that_were_told_different_names_are_both_named_everywhere() {
        let errors = each_with(&[None, Some("shm"), None], |boot, config| {
            let gathered = open_for_processes(&boot, &config, Token([1; 16])).map(|_| ());
            // Nobody leaves before all have their error.
            (boot, gathered.unwrap_err().to_string())
        });
        for (boot, error) in errors {
            let named = error.contains("RMA_BACKEND is ") && error.contains("not set on ") && error.contains("shm on rank 1");
            assert!(named && error.contains("give every rank the same"), "{}: {error}", boot.rank());
        }
    }

    #[test]
    fn several_hosts_without_an_offer_are_refused_with_what_to_build() {
        let errors = each_with(&[None, None], |boot, config| {
            let hosts = Hosts::of_names(boot.rank(), &["a", "b"]);
            assert!(offers(&[]).for_hosts(None, &hosts).unwrap().is_none());
            let deadline = Deadline::after(config.setup_timeout);
            ShmBackend::processes(&*boot, &hosts, Token([1; 16]), &config, deadline).map(|_| ()).unwrap_err().to_string()
        });
        for (error, pair) in
            errors.into_iter().zip(["rank 0 runs on another host than rank 1", "rank 1 runs on another host than rank 0"])
        {
            assert!(error.starts_with(pair) && error.contains("rma-verbs") && error.contains("unset RMA_BACKEND"), "{error}");
        }
    }

    /// The one test that touches the program's own offers; a name that no other test uses keeps it independent of them.
    #[test]
    #[allow(unsafe_code, reason = "offers a backend that opens nothing")]
    fn what_a_program_offers_is_found_by_its_threads_and_processes() {
        const NAME: &str = "opens-nothing";
        static OFFERED: Named = Named(NAME);
        for _ in 0..2 {
            // SAFETY: it opens nothing, so nothing it opens can break a contract.
            unsafe { offer(&OFFERED) };
        }
        assert_eq!(names().iter().filter(|&&name| name == NAME).count(), 1);
        for threads in [true, false] {
            let errors = each_with(&[Some(NAME), Some(NAME)], |boot, config| {
                let opened = if threads {
                    open_for_threads(&boot, &ThreadSpace::new(2), &config)
                } else {
                    open_for_processes(&boot, &config, Token([1; 16]))
                };
                opened.map(|_| ()).unwrap_err().to_string()
            });
            assert_eq!(errors, ["opens-nothing was opened"; 2]);
        }
    }
}
