//! Collective calls compare what every rank means before any memory or message moves. Owns the words; knows no arrays.

use rma::{Comm, Deadline, Error, Rank, Result};

/// Collective: `mine`, unless a rank has an error, or wants something else. `lines` say what this one wants, to be compared one by one.
pub(crate) fn agree<T>(comm: &Comm, call: &'static str, mine: Result<T>, lines: impl FnOnce(&T) -> Vec<String>) -> Result<T> {
    let deadline = Deadline::after(comm.config().setup_timeout);
    let wish = mine.as_ref().map(lines).map_err(Error::to_string);
    let said = comm.bootstrap().allgather(&encode(&wish), deadline)?;
    let mine = mine?;
    let ours = wish.unwrap_or_default();
    for (peer, theirs) in (0..).map(Rank).zip(said) {
        let theirs = decode(&theirs).ok_or_else(|| Error::Malformed {
            what: call,
            from: peer.to_string(),
            reason: "neither lines nor a reason".into(),
        })?;
        let theirs = theirs.map_err(|reason| Error::CollectiveFailed { call, rank: peer, reason })?;
        let differs = (0..ours.len().max(theirs.len())).find(|&line| ours.get(line) != theirs.get(line));
        if let Some(line) = differs {
            let say = |lines: &[String]| format!("{call} with {}", lines.get(line).map_or("nothing more", String::as_str));
            return Err(Error::CollectiveMismatch { rank: comm.rank(), ours: say(&ours), peer, theirs: say(&theirs) });
        }
    }
    Ok(mine)
}

fn encode(wish: &Result<Vec<String>, String>) -> Vec<u8> {
    match wish {
        Ok(lines) => format!("+{}", lines.join("\n")),
        Err(error) => format!("-{error}"),
    }
    .into_bytes()
}

fn decode(said: &[u8]) -> Option<Result<Vec<String>, String>> {
    let said = std::str::from_utf8(said).ok()?;
    match said.split_at_checked(1)? {
        ("+", lines) => Some(Ok(lines.lines().map(Into::into).collect())),
        ("-", reason) => Some(Err(reason.into())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_named_on_every_rank() {
        let errors = Comm::threads(3, |comm| {
            let width = if comm.rank() == Rank(1) { 2 } else { 1 };
            let lines = |width: &i32| vec!["cells [4, 4]".into(), format!("ghosts {width}")];
            agree(&comm, "field", Ok(width), lines).unwrap_err().to_string()
        });
        for (rank, error) in errors.unwrap().into_iter().enumerate() {
            let (one, two) = (error.contains("field with ghosts 1"), error.contains("field with ghosts 2"));
            assert!(one && two && !error.contains("cells"), "rank {rank}: {error}");
        }
    }

    #[test]
    fn what_one_rank_cannot_is_said_to_all() {
        let errors = Comm::threads(3, |comm| {
            let mine =
                if comm.rank() == Rank(2) { Err(Error::Invalid { what: "field", reason: "3 is too wide".into() }) } else { Ok(()) };
            agree(&comm, "field", mine, |()| vec!["x".into()]).unwrap_err().to_string()
        });
        assert!(errors.unwrap().iter().all(|error| error.contains("3 is too wide")));
    }
}
