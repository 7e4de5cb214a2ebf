//! Whose work runs on threads that may block, and whose waits: each user has so many at once, so that nobody takes all
//! threads, all processors or all memory. In the order in which they came. Refuses to know threads.

use std::collections::{HashMap, VecDeque};

use arden_lock::{Mutex, ranks};
use arden_wire::dtyp::Sid;

pub type Work = Box<dyn FnOnce() + Send>;

/// Work of all users.
#[derive(Default)]
pub struct Jobs(Mutex<HashMap<Sid, UserJobs>, ranks::Jobs>);

#[derive(Default)]
struct UserJobs {
    running: usize,
    bytes: usize,
    waiting: VecDeque<(usize, Work)>,
}

/// Bounds of one user's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobLimits {
    pub running_max: usize,
    /// Of messages and answers; one job runs whatever it takes.
    pub bytes_max: usize,
}

impl UserJobs {
    fn fits(&self, bytes: usize, limits: JobLimits) -> bool {
        self.running == 0 || self.running < limits.running_max && self.bytes + bytes <= limits.bytes_max
    }
}

impl Jobs {
    /// Given back to be run now, where `user` may have one more; [`Jobs::done`] has to follow.
    pub fn admit(&self, user: &Sid, bytes: usize, work: Work, limits: JobLimits) -> Option<Work> {
        let mut users = self.0.lock();
        let jobs = users.entry(user.clone()).or_default();
        if !jobs.waiting.is_empty() || !jobs.fits(bytes, limits) {
            jobs.waiting.push_back((bytes, work));
            return None;
        }
        jobs.running += 1;
        jobs.bytes += bytes;
        Some(work)
    }

    /// One of the user's that took `bytes` is over. What may run now, each with its bytes.
    pub fn done(&self, user: &Sid, bytes: usize, limits: JobLimits) -> Vec<(usize, Work)> {
        let mut users = self.0.lock();
        let Some(jobs) = users.get_mut(user) else { return Vec::new() };
        jobs.running -= 1;
        jobs.bytes -= bytes;
        let mut next = Vec::new();
        while let Some((bytes, _)) = jobs.waiting.front()
            && jobs.fits(*bytes, limits)
        {
            let Some((bytes, work)) = jobs.waiting.pop_front() else { break };
            jobs.running += 1;
            jobs.bytes += bytes;
            next.push((bytes, work));
        }
        if jobs.running == 0 {
            users.remove(user);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_so_many_at_once_in_order() {
        let limits = JobLimits { running_max: 2, bytes_max: 100 };
        let (a, b) = (Sid::new(5, &[1]), Sid::new(5, &[2]));
        let jobs = Jobs::default();
        let job = || Box::new(|| {}) as Work;
        assert!(jobs.admit(&a, 500, job(), limits).is_some(), "one runs whatever it takes");
        assert!(jobs.admit(&a, 1, job(), limits).is_none());
        assert!(jobs.admit(&b, 1, job(), limits).is_some(), "others are not held up");
        assert!(jobs.admit(&a, 60, job(), limits).is_none());
        assert!(jobs.admit(&a, 60, job(), limits).is_none());
        let next = jobs.done(&a, 500, limits);
        assert_eq!(next.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 60]);
        assert!(jobs.done(&a, 1, limits).is_empty(), "60 and 60 are too many bytes");
        assert_eq!(jobs.done(&a, 60, limits).len(), 1);
        assert!(jobs.done(&a, 60, limits).is_empty());
        assert!(jobs.done(&b, 1, limits).is_empty());
        assert!(jobs.0.lock().is_empty());
    }
}
