//! Freed memory back to the system. The allocator keeps what is freed in pieces below its threshold for mappings, in the belief
//! that it is needed again soon; after a large cache was emptied it is not.
#![allow(unsafe_code)]

/// Gives the system all pages that the allocator holds and nobody uses. Takes the locks of the allocator, one after the other, for
/// some milliseconds a GiB: not for a thread that others wait for. Nothing happens where the allocator has no such call.
pub fn give_back_freed() {
    #[cfg(target_env = "gnu")]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> i32;
        }
        // SAFETY: glibc's function takes a number and refers to no memory of ours; any thread may call it at any time.
        unsafe { malloc_trim(0) };
    }
}
