//! A plain bit set of fixed length.

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Bitmap {
    len: usize,
    words: Vec<u64>,
}

impl Bitmap {
    pub(crate) fn new(len: usize) -> Bitmap {
        Bitmap { len, words: vec![0; len.div_ceil(64)] }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, i: usize) -> bool {
        i < self.len && self.words[i / 64] >> (i % 64) & 1 == 1
    }

    pub(crate) fn set(&mut self, i: usize) {
        if i < self.len {
            self.words[i / 64] |= 1 << (i % 64);
        }
    }

    pub(crate) fn clear(&mut self, i: usize) {
        if i < self.len {
            self.words[i / 64] &= !(1 << (i % 64));
        }
    }

    pub(crate) fn set_all(&mut self) {
        (0..self.len).for_each(|i| self.set(i));
    }

    pub(crate) fn clear_all(&mut self) {
        self.words.fill(0);
    }

    pub(crate) fn any(&self) -> bool {
        self.words.iter().any(|&w| w != 0)
    }

    pub(crate) fn count(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    pub(crate) fn ones(&self) -> Vec<usize> {
        (0..self.len).filter(|&i| self.get(i)).collect()
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    pub(crate) fn from_words(len: usize, words: Vec<u64>) -> Option<Bitmap> {
        (words.len() == len.div_ceil(64)).then_some(Bitmap { len, words })
    }
}
