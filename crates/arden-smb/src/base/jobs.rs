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
    /// Of those that run, and of answers that were not sent yet.
    bytes: usize,
    waiting: VecDeque<(usize, Work)>,
}

/// Bounds of one user's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobLimits {
    pub running_max: usize,
    /// Of messages, and of answers until they are sent; one job runs whatever it takes.
    pub bytes_max: usize,
}

impl UserJobs {
    fn fits(&self, bytes: usize, limits: JobLimits) -> bool {
        let nothing = self.running == 0 && self.bytes == 0;
        nothing || self.running < limits.running_max && self.bytes + bytes <= limits.bytes_max
    }

    /// Counts those that may run now.
    fn next(&mut self, limits: JobLimits) -> Vec<Work> {
        let mut next = Vec::new();
        while let Some((bytes, _)) = self.waiting.front()
            && self.fits(*bytes, limits)
        {
            let Some((bytes, work)) = self.waiting.pop_front() else { break };
            self.running += 1;
            self.bytes += bytes;
            next.push(work);
        }
        next
    }

    fn is_unused(&self) -> bool {
        self.running == 0 && self.bytes == 0 && self.waiting.is_empty()
    }
}

impl Jobs {
    /// Given back to be run now, where `user` may have one more; [`Jobs::done`] has to follow, and [`Jobs::release`] for all of
    /// its bytes.
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

    /// One of the user's is over. What may run now.
    pub fn done(&self, user: &Sid, limits: JobLimits) -> Vec<Work> {
        self.change(user, limits, |jobs| jobs.running -= 1)
    }

    /// So many bytes of the user's are not held any more. What may run now.
    pub fn release(&self, user: &Sid, bytes: usize, limits: JobLimits) -> Vec<Work> {
        self.change(user, limits, |jobs| jobs.bytes -= bytes)
    }

    fn change(&self, user: &Sid, limits: JobLimits, change: impl FnOnce(&mut UserJobs)) -> Vec<Work> {
        let mut users = self.0.lock();
        let Some(jobs) = users.get_mut(user) else { return Vec::new() };
        change(jobs);
        let next = jobs.next(limits);
        if jobs.is_unused() {
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
        assert!(jobs.done(&a, limits).is_empty(), "its answer is not sent");
        assert_eq!(jobs.release(&a, 500, limits).len(), 2);
        jobs.done(&a, limits);
        assert!(jobs.release(&a, 1, limits).is_empty(), "60 and 60 are too many bytes");
        assert!(jobs.done(&a, limits).is_empty(), "60 are not sent");
        assert_eq!(jobs.release(&a, 60, limits).len(), 1);
        jobs.done(&a, limits);
        jobs.release(&a, 60, limits);
        jobs.done(&b, limits);
        jobs.release(&b, 1, limits);
        assert!(jobs.0.lock().is_empty());
    }
}
