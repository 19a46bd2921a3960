//! Reads the texts of /proc and cgroups. Pure: a text in, what it says out; opens no file.

/// The numbers in a list like "0-3,8".
pub(super) fn cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(cores)
}

/// Ascending numbers as a list like "0-3,8".
pub(super) fn to_cpu_list(cores: &[usize]) -> String {
    let runs = cores.chunk_by(|a, b| a + 1 == *b).filter_map(|run| match run {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// A field of /proc/meminfo, in bytes.
pub(super) fn meminfo(text: &str, field: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The choice in a text like `always [madvise] never`.
pub(super) fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0)
}

/// A number, or nothing for "max".
pub(super) fn number_or_max(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The cores' worth of time in `cpu.max`, "QUOTA PERIOD" in microseconds (cgroup v2); nothing for "max".
pub(super) fn cpu_max(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace();
    quota(words.next()?, words.next()?)
}

/// The same from `cpu.cfs_quota_us` and `cpu.cfs_period_us` (cgroup v1); nothing for -1.
pub(super) fn quota(quota: &str, period: &str) -> Option<f64> {
    let (quota, period) = (quota.trim().parse::<u64>().ok()?, period.trim().parse::<u64>().ok()?);
    (period > 0).then(|| quota as f64 / period as f64)
}

/// The path of this process below the mount of a controller, from /proc/self/cgroup: with no controller the one of cgroup v2
/// ("0::/path"), else that of v1 ("4:cpu,cpuacct:/path").
pub(super) fn cgroup_path<'a>(text: &'a str, controller: Option<&str>) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let found = match controller {
            None => controllers.is_empty(),
            Some(name) => controllers.split(',').any(|one| one == name),
        };
        found.then_some(path)
    })
}

/// A path and all above it, "/a/b", "/a", "": a limit of each holds for what is below.
pub(super) fn and_above(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path.trim_end_matches('/')), |path| path.rfind('/').map(|slash| &path[..slash]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read_and_written() {
        assert_eq!(cpu_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(cpu_list("\n"), Some(vec![]));
        assert_eq!((cpu_list("0-x"), cpu_list("a")), (None, None));
        assert_eq!(to_cpu_list(&[0, 1, 2, 3, 8, 10, 11]), "0-3,8,10-11");
        assert_eq!(to_cpu_list(&[]), "");
    }

    #[test]
    fn meminfo_is_in_bytes_and_a_prefix_is_not_a_field() {
        let text = "MemTotal:       16384 kB\nMemAvailable:    8 kB\nHugePages_Total:       0\n";
        assert_eq!(meminfo(text, "MemTotal"), Some(16_777_216));
        assert_eq!(meminfo(text, "MemAvailable"), Some(8192));
        assert_eq!((meminfo(text, "Mem"), meminfo(text, "HugePages_Total"), meminfo(text, "SwapTotal")), (None, None, None));
    }

    #[test]
    fn the_choice_in_brackets_is_found() {
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!((chosen("always"), chosen("[open")), (None, None));
    }

    #[test]
    fn quotas_are_in_cores_and_max_is_none() {
        assert_eq!(cpu_max("150000 100000\n"), Some(1.5));
        assert_eq!((cpu_max("max 100000\n"), cpu_max(""), cpu_max("1 0")), (None, None, None));
        assert_eq!((quota("200000\n", "100000\n"), quota("-1\n", "100000\n")), (Some(2.0), None));
        assert_eq!((number_or_max("33\n"), number_or_max("max\n")), (Some(33), None));
    }

    #[test]
    fn the_cgroup_of_each_version_is_found() {
        let text = "12:pids:/user\n4:cpu,cpuacct:/slice/a:b\n1:name=systemd:/x\n0::/user.slice/s\n";
        assert_eq!(cgroup_path(text, None), Some("/user.slice/s"));
        assert_eq!(cgroup_path(text, Some("cpu")), Some("/slice/a:b"));
        assert_eq!(cgroup_path(text, Some("memory")), None);
    }

    #[test]
    fn limits_above_a_cgroup_hold_for_it() {
        assert_eq!(and_above("/a/b").collect::<Vec<_>>(), ["/a/b", "/a", ""]);
        assert_eq!(and_above("/").collect::<Vec<_>>(), [""]);
    }
}
