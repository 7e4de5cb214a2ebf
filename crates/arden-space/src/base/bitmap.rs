//! A plain bit set of fixed length. One without a bit takes no memory of its own: a pool has very many.

#[derive(Debug, Clone, Default)]
pub(crate) struct Bitmap {
    len: u32,
    /// Empty when no bit was ever set.
    words: Box<[u64]>,
}

impl Bitmap {
    pub(crate) fn new(len: usize) -> Bitmap {
        Bitmap { len: u32::try_from(len).expect("slabs, slots and regions are fewer"), words: Box::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    pub(crate) fn get(&self, i: usize) -> bool {
        i < self.len() && self.words.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 == 1)
    }

    pub(crate) fn set(&mut self, i: usize) {
        if i < self.len() {
            if self.words.is_empty() {
                self.words = vec![0; self.len().div_ceil(64)].into();
            }
            self.words[i / 64] |= 1 << (i % 64);
        }
    }

    pub(crate) fn clear(&mut self, i: usize) {
        if let Some(w) = self.words.get_mut(i / 64) {
            *w &= !(1 << (i % 64));
        }
    }

    pub(crate) fn set_all(&mut self) {
        (0..self.len()).for_each(|i| self.set(i));
    }

    pub(crate) fn clear_all(&mut self) {
        self.words = Box::default();
    }

    pub(crate) fn any(&self) -> bool {
        self.words.iter().any(|&w| w != 0)
    }

    pub(crate) fn count(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    pub(crate) fn ones(&self) -> Vec<usize> {
        let mut out = Vec::new();
        for (n, &word) in self.words.iter().enumerate() {
            let mut left = word;
            while left != 0 {
                out.push(n * 64 + left.trailing_zeros() as usize);
                left &= left - 1;
            }
        }
        out
    }

    pub(crate) fn first_clear(&self) -> Option<usize> {
        let at = match self.words.iter().position(|&w| w != u64::MAX) {
            Some(n) => n * 64 + self.words[n].trailing_ones() as usize,
            None => self.words.len() * 64,
        };
        (at < self.len()).then_some(at)
    }

    /// The words, when a bit is set.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    pub(crate) fn from_words(len: usize, mut words: Vec<u64>) -> Option<Bitmap> {
        if words.len() != len.div_ceil(64) {
            return None;
        }
        if let (Some(last), 1..) = (words.last_mut(), len % 64) {
            *last &= (1 << (len % 64)) - 1;
        }
        Some(Bitmap { len: u32::try_from(len).ok()?, words: words.into() })
    }
}
