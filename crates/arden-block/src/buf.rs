//! Page-aligned buffers without unsafe code: a vector one page too long, and the aligned part
//! of it. `Buf` has one owner; `SharedBuf` is a cheap slice that several copies of a write can
//! hold at once. Freed memory of common sizes is kept in bounded lists: small pieces per thread, large ones for all threads,
//! because who fills them and who writes them out are different threads.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::Mutex;

const ALIGN: usize = 4096;
/// Sizes up to this are recycled.
const RECYCLE_BYTES_MAX: usize = 1 << 20;
/// Of at least this much the system takes longer to make a new one than threads to agree.
const SHARED_BYTES_MIN: usize = 64 << 10;
/// At most this much lies in one thread's list, and this much in the shared one.
const THREAD_LIST_BYTES_MAX: usize = 8 << 20;
const SHARED_LIST_BYTES_MAX: usize = 16 << 20;

struct FreeList {
    bytes: usize,
    bytes_max: usize,
    classes: Vec<Vec<Vec<u8>>>,
}

impl FreeList {
    const fn new(bytes_max: usize) -> FreeList {
        FreeList { bytes: 0, bytes_max, classes: Vec::new() }
    }

    fn take(&mut self, class: usize) -> Option<Vec<u8>> {
        let mem = self.classes.get_mut(class)?.pop()?;
        self.bytes -= mem.len();
        Some(mem)
    }

    fn put(&mut self, class: usize, mem: Vec<u8>) {
        if self.bytes + mem.len() > self.bytes_max {
            return;
        }
        if self.classes.len() <= class {
            self.classes.resize_with(class + 1, Vec::new);
        }
        self.bytes += mem.len();
        self.classes[class].push(mem);
    }
}

thread_local! {
    static FREE: RefCell<FreeList> = const { RefCell::new(FreeList::new(THREAD_LIST_BYTES_MAX)) };
}

static SHARED: Mutex<FreeList> = Mutex::new(FreeList::new(SHARED_LIST_BYTES_MAX));

/// Does `work` with the list of what has `bytes`. None in a thread that ends.
fn with_list<T>(bytes: usize, work: impl FnOnce(&mut FreeList) -> T) -> Option<T> {
    if bytes >= SHARED_BYTES_MIN {
        Some(work(&mut SHARED.lock()))
    } else {
        FREE.try_with(|f| work(&mut f.borrow_mut())).ok()
    }
}

fn class_of(len: usize) -> usize {
    len.max(ALIGN).next_power_of_two().trailing_zeros() as usize
}

/// An owned buffer whose first byte lies on a page boundary.
pub struct Buf {
    mem: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buf {
    /// A buffer of `len` bytes with unspecified (but initialised) content.
    pub fn new(len: usize) -> Buf {
        let class = class_of(len);
        let recycled = len <= RECYCLE_BYTES_MAX;
        let mem = recycled.then(|| with_list(1 << class, |list| list.take(class))).flatten().flatten();
        let mem = mem.unwrap_or_else(|| vec![0; Buf::memory_of(len)]);
        let start = mem.as_ptr().align_offset(ALIGN);
        debug_assert!(start < ALIGN && start + len <= mem.len());
        Buf { mem, start, len }
    }

    /// A buffer of `len` zeros.
    pub fn zeroed(len: usize) -> Buf {
        let mut b = Buf::new(len);
        b.fill(0);
        b
    }

    /// A buffer with the bytes of `data`.
    pub fn copy_of(data: &[u8]) -> Buf {
        let mut b = Buf::new(data.len());
        b.copy_from_slice(data);
        b
    }

    /// The memory that a buffer of `len` bytes takes.
    pub fn memory_of(len: usize) -> usize {
        ALIGN + if len <= RECYCLE_BYTES_MAX { 1 << class_of(len) } else { len }
    }

    /// The memory that it takes.
    pub fn memory(&self) -> usize {
        self.mem.len()
    }

    /// From now on it has so many bytes; those that were not in it before are unspecified (but initialised).
    pub fn resize(&mut self, len: usize) {
        assert!(len <= self.mem.len() - ALIGN, "no room for it");
        self.len = len;
    }

    /// Cuts the buffer to its first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Makes the buffer read-only, with any number of owners.
    pub fn share(self) -> SharedBuf {
        let len = self.len;
        SharedBuf { buf: Arc::new(self), start: 0, len }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let mem = std::mem::take(&mut self.mem);
        let cap = mem.len().saturating_sub(ALIGN);
        if !cap.is_power_of_two() || cap > RECYCLE_BYTES_MAX {
            return;
        }
        let class = class_of(cap);
        with_list(cap, |list| list.put(class, mem));
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.mem[self.start..self.start + self.len]
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.mem[self.start..self.start + self.len]
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

/// A read-only slice of a buffer that others may hold too.
#[derive(Clone, Debug)]
pub struct SharedBuf {
    buf: Arc<Buf>,
    start: usize,
    len: usize,
}

impl SharedBuf {
    /// The part `start..start + len`. Panics when it is out of bounds.
    pub fn slice(&self, start: usize, len: usize) -> SharedBuf {
        assert!(start + len <= self.len, "slice out of bounds");
        SharedBuf { buf: self.buf.clone(), start: self.start + start, len }
    }

    /// The whole buffer, where nobody else holds any of it.
    pub fn into_whole(self) -> Option<Buf> {
        Arc::try_unwrap(self.buf).ok()
    }

    /// The bytes with one owner; copies when somebody else holds them.
    pub fn into_buf(self) -> Buf {
        if self.start == 0 {
            match Arc::try_unwrap(self.buf) {
                Ok(mut b) => {
                    b.truncate(self.len);
                    return b;
                }
                Err(arc) => return Buf::copy_of(&arc[..self.len]),
            }
        }
        Buf::copy_of(&self)
    }
}

impl Deref for SharedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buf[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_is_used_again_has_the_new_length() {
        let shared = Buf::copy_of(&[1; 5000]).share();
        assert!(shared.clone().into_whole().is_none(), "somebody else reads it");
        let mut again = shared.into_whole().unwrap();
        assert_eq!((again.memory(), Buf::memory_of(5000)), (8192 + ALIGN, 8192 + ALIGN));
        again.resize(8192);
        assert_eq!((again.len(), &again[..2]), (8192, &[1, 1][..]));
    }

    #[test]
    fn buffers_are_aligned_and_recycled() {
        for len in [1, 4096, 5000, 65536, 3 << 20] {
            let b = Buf::zeroed(len);
            assert_eq!(b.as_ptr() as usize % ALIGN, 0);
            assert_eq!(b.len(), len);
            assert!(b.iter().all(|&x| x == 0));
        }
        let mut b = Buf::new(8192);
        b.fill(7);
        let s = b.share();
        let t = s.slice(4096, 4096);
        drop(s);
        assert_eq!(&t.into_buf()[..], &[7u8; 4096][..]);
    }
}
