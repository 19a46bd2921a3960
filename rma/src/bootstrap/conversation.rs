//! What partners tell each other while something is built: every one hears something of every other, if only why there is nothing.
//! Knows neither what is told nor why.

use crate::bootstrap::Bootstrap;
use crate::{Deadline, Error, Rank, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

/// Collective: tells every partner what `mine` has for it, or why there is nothing, and hears the same of all. Takes part even when there
/// is nothing to tell. Returns the own words together with those of each partner. Words of a rank that `mine` has none for, and none of
/// one that it has, are errors, named by `what`.
pub fn conversation<T: Serialize + DeserializeOwned>(
    boot: &dyn Bootstrap,
    what: &'static str,
    partners: &[Rank],
    mine: Result<BTreeMap<Rank, T>>,
    deadline: Deadline,
) -> Result<BTreeMap<Rank, (T, T)>> {
    let words = |partner: &Rank| match &mine {
        Ok(mine) => mine.get(partner).map(Ok),
        Err(error) => Some(Err(error.full_text())),
    };
    let encode = |partner: &Rank| {
        let bytes = postcard::to_stdvec(&words(partner)?).expect("bug: words that cannot be encoded");
        Some((*partner, bytes))
    };
    let incoming = boot.exchange(partners.iter().filter_map(encode).collect(), deadline);
    let mut mine = mine?;
    let malformed = |from: Rank, reason: &str| Error::Malformed { what, from: from.to_string(), reason: reason.to_owned() };
    let mut both = BTreeMap::new();
    for (peer, bytes) in incoming? {
        let theirs: Result<T, String> = postcard::from_bytes(&bytes).map_err(|cause| malformed(peer, &cause.to_string()))?;
        let theirs = theirs.map_err(|reason| Error::CollectiveFailed { call: "commit", rank: peer, reason })?;
        let own = mine.remove(&peer).ok_or_else(|| malformed(peer, "it is no partner of this queue"))?;
        both.insert(peer, (own, theirs));
    }
    match mine.keys().next() {
        Some(&silent) => Err(malformed(silent, "there is none")),
        None => Ok(both),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::threads;
    use std::time::Duration;

    type Heard = Result<BTreeMap<Rank, (String, String)>, String>;

    /// What comes of it on each of three ranks, each with these words for others.
    fn on_three(words: impl Fn(Rank) -> Result<Vec<(u32, String)>> + Sync) -> Vec<Heard> {
        std::thread::scope(|scope| {
            let words = &words;
            let converse = move |boot: threads::ThreadsBootstrap| {
                let mine = words(boot.rank()).map(|all| all.into_iter().map(|(to, text)| (Rank(to), text)).collect());
                let partners: Vec<_> = (0..3).map(Rank).filter(|&rank| rank != boot.rank()).collect();
                let heard = conversation(&boot, "word", &partners, mine, Deadline::after(Duration::from_secs(20)));
                // Nobody leaves before all have heard.
                (boot, heard.map_err(|error| error.to_string()))
            };
            let ranks: Vec<_> = threads::group(3).into_iter().map(|boot| scope.spawn(move || converse(boot))).collect();
            let heard: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
            heard.into_iter().map(|(_, heard)| heard).collect()
        })
    }

    fn others(me: Rank) -> Vec<(u32, String)> {
        (0..3).filter(|&other| other != me.0).map(|other| (other, format!("{} to {other}", me.0))).collect()
    }

    #[test]
    fn every_partner_hears_its_own_words() {
        for (me, heard) in (0..).map(Rank).zip(on_three(|me| Ok(others(me)))) {
            let heard = heard.unwrap();
            assert_eq!(heard.len(), 2);
            for (peer, (mine, theirs)) in heard {
                assert_eq!((mine, theirs), (format!("{} to {}", me.0, peer.0), format!("{} to {}", peer.0, me.0)));
            }
        }
    }

    #[test]
    fn who_has_nothing_to_tell_says_why() {
        let heard = on_three(|me| if me == Rank(1) { Err(Error::Launch("no pigeons".into())) } else { Ok(others(me)) });
        for (me, heard) in heard.into_iter().enumerate() {
            let error = heard.unwrap_err();
            assert!(error.contains("no pigeons") && (me == 1 || error.contains("rank 1")), "rank {me}: {error}");
        }
    }

    #[test]
    fn silence_and_words_of_a_stranger_are_named() {
        let heard = on_three(|me| Ok(if me == Rank(2) { vec![(0, "2 to 0".into())] } else { others(me) }));
        assert!(heard[0].is_ok());
        assert!(heard[1].as_ref().unwrap_err().contains("word from rank 2: there is none"), "{:?}", heard[1]);
        assert!(heard[2].as_ref().unwrap_err().contains("word from rank 1: it is no partner"), "{:?}", heard[2]);
    }
}
