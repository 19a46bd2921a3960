//! The facts: cores, memory and limits as this process has them. Reads files and asks the kernel; judges nothing.

use super::parse::{and_above, cgroup_path, chosen, cpu_list, cpu_max, meminfo, number_or_max, quota};
use anyhow::Result;
use rustix::process::{Resource, getrlimit};

/// What a process has here. What could not be found out, or is not limited, is `None`.
#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    pub(super) cores_online: Option<usize>,
    pub(super) cores_allowed: Vec<usize>,
    /// Cores' worth of time.
    pub(super) cpu_quota: Option<f64>,
    /// In bytes, as are all sizes here.
    pub(super) memory_total: Option<u64>,
    pub(super) memory_available: Option<u64>,
    pub(super) memory_limit: Option<u64>,
    pub(super) page_bytes: u64,
    pub(super) huge_pages: Option<String>,
    pub(super) huge_pages_shared: Option<String>,
    pub(super) locked_memory: Limit,
    pub(super) open_files: Limit,
    pub(super) processes: Limit,
    pub(super) threads_max: Option<u64>,
    /// The lowest limit of processes of a cgroup, and the file that says so.
    pub(super) pids_max: Option<(u64, String)>,
}

/// A limit of this process; `None` for unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) soft: Option<u64>,
    /// What the soft one can be raised to without privileges.
    pub(super) hard: Option<u64>,
}

impl Limit {
    fn of(resource: Resource) -> Self {
        let limit = getrlimit(resource);
        Self { soft: limit.current, hard: limit.maximum }
    }
}

impl Machine {
    pub(super) fn of_this_process() -> Result<Self> {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let memory = read("/proc/meminfo").unwrap_or_default();
        let choice = |path| read(path).as_deref().and_then(chosen).map(str::to_owned);
        Ok(Self {
            cores_online: read("/sys/devices/system/cpu/online").as_deref().and_then(cpu_list).map(|cores| cores.len()),
            cores_allowed: crate::run::allowed_cores()?,
            cpu_quota: cpu_quota(read),
            memory_total: meminfo(&memory, "MemTotal"),
            memory_available: meminfo(&memory, "MemAvailable"),
            memory_limit: lowest(read, "memory.max", ("memory", "memory.limit_in_bytes"))
                .map(|(limit, _)| limit)
                // The kernel's "no limit" of cgroup v1 is a number beyond any memory.
                .filter(|&limit| limit < 1 << 60),
            page_bytes: rustix::param::page_size() as u64,
            huge_pages: choice("/sys/kernel/mm/transparent_hugepage/enabled"),
            huge_pages_shared: choice("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
            locked_memory: Limit::of(Resource::Memlock),
            open_files: Limit::of(Resource::Nofile),
            processes: Limit::of(Resource::Nproc),
            threads_max: read("/proc/sys/kernel/threads-max").as_deref().and_then(number_or_max),
            pids_max: lowest(read, "pids.max", ("pids", "pids.max")),
        })
    }
}

/// Where a file of this process's cgroup and of those above it may be: version 2, then version 1.
fn cgroup_directories(read: impl Fn(&str) -> Option<String>, v1_controller: &str) -> (Vec<String>, Vec<String>) {
    let own = read("/proc/self/cgroup").unwrap_or_default();
    let below = |mount: String, path: Option<&str>| -> Vec<String> {
        path.map_or_else(Vec::new, |path| and_above(path).map(|path| format!("{mount}{path}")).collect())
    };
    let v1 = below(format!("/sys/fs/cgroup/{v1_controller}"), cgroup_path(&own, Some(v1_controller)));
    (below("/sys/fs/cgroup".into(), cgroup_path(&own, None)), v1)
}

fn cpu_quota(read: impl Fn(&str) -> Option<String>) -> Option<f64> {
    let (v2, v1) = cgroup_directories(&read, "cpu");
    let v2 = v2.iter().filter_map(|directory| cpu_max(&read(&format!("{directory}/cpu.max"))?));
    let v1 = v1.iter().filter_map(|directory| {
        quota(&read(&format!("{directory}/cpu.cfs_quota_us"))?, &read(&format!("{directory}/cpu.cfs_period_us"))?)
    });
    v2.chain(v1).min_by(f64::total_cmp)
}

/// The lowest number in a file of the cgroups, and which file that is.
fn lowest(read: impl Fn(&str) -> Option<String>, v2_file: &str, v1: (&str, &str)) -> Option<(u64, String)> {
    let (v2_directories, v1_directories) = cgroup_directories(&read, v1.0);
    let v2 = v2_directories.iter().map(|directory| format!("{directory}/{v2_file}"));
    let v1 = v1_directories.iter().map(|directory| format!("{directory}/{}", v1.1));
    v2.chain(v1).filter_map(|file| Some((number_or_max(&read(&file)?)?, file))).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<String> {
        move |path| files.iter().find(|(name, _)| *name == path).map(|(_, text)| text.to_string())
    }

    #[test]
    fn the_lowest_quota_on_the_way_up_counts() {
        let v2 = tree(&[
            ("/proc/self/cgroup", "0::/job/step\n"),
            ("/sys/fs/cgroup/job/step/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/job/cpu.max", "250000 100000\n"),
            ("/sys/fs/cgroup/cpu.max", "400000 100000\n"),
        ]);
        assert_eq!(cpu_quota(v2), Some(2.5));
        let v1 = tree(&[
            ("/proc/self/cgroup", "3:cpu,cpuacct:/job\n"),
            ("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n"),
            ("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(cpu_quota(v1), Some(0.5));
        assert_eq!(cpu_quota(tree(&[])), None);
    }

    #[test]
    fn the_lowest_limit_names_its_file() {
        let read = tree(&[
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/sys/fs/cgroup/a/b/pids.max", "max\n"),
            ("/sys/fs/cgroup/a/pids.max", "77\n"),
            ("/sys/fs/cgroup/pids.max", "78\n"),
        ]);
        assert_eq!(lowest(read, "pids.max", ("pids", "pids.max")), Some((77, "/sys/fs/cgroup/a/pids.max".into())));
    }
}
