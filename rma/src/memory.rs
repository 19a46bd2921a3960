//! How much memory there is to be had, asked before any is touched.
//! Owns the reading of the system's texts; decides nothing.

use std::fs;

/// The bytes that can still be had on this host by this process's control group: the smaller of the two limits.
/// `None` when the system does not say.
pub(crate) fn available_bytes() -> Option<u64> {
    let host = fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_available(&text));
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| {
        let path = cgroup_path(&text)?.to_owned();
        let read = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup{path}/{name}")).ok();
        group_left(&read("memory.max")?, &read("memory.current")?, &read("memory.stat").unwrap_or_default())
    });
    host.into_iter().chain(group).min()
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn cgroup_path(cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| line.strip_prefix("0::"))
}

/// Cached file pages that nobody uses count as used by the group, but make room when it is needed.
fn group_left(max: &str, current: &str, stat: &str) -> Option<u64> {
    let (max, current): (u64, u64) = (max.trim().parse().ok()?, current.trim().parse().ok()?);
    let cached = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse().ok()).unwrap_or(0);
    Some(max.saturating_sub(current.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_texts_are_read() {
        assert_eq!(mem_available("MemTotal: 9 kB\nMemAvailable:   24374128 kB\n"), Some(24374128 * 1024));
        assert_eq!(cgroup_path("1:name=x:/y\n0::/user.slice\n"), Some("/user.slice"));
        assert_eq!(group_left("4096\n", "1000\n", ""), Some(3096));
        assert_eq!(group_left("4096\n", "1000\n", "anon 1\ninactive_file 400\n"), Some(3496));
        assert_eq!(group_left("max\n", "1000\n", ""), None);
        assert_eq!(mem_available("nonsense"), None);
    }
}
