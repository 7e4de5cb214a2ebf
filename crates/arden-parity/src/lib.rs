//! Parity arithmetic: P is the XOR of the data columns, Q is the sum of g^i times column i in
//! GF(2^8) with the polynomial 0x11D and g = 2. Written so that the compiler vectorises it, and a crate of its own, so that builds for tests
//! optimise it and need not optimise what calls it.
#![forbid(unsafe_code)]

fn mul2(v: u64) -> u64 {
    let high = v & 0x8080_8080_8080_8080;
    ((v << 1) & 0xFEFE_FEFE_FEFE_FEFE) ^ ((high >> 7).wrapping_mul(0x1D))
}

fn mul(mut a: u8, mut b: u8) -> u8 {
    let mut r = 0;
    while b != 0 {
        if b & 1 != 0 {
            r ^= a;
        }
        let carry = a & 0x80 != 0;
        a <<= 1;
        if carry {
            a ^= 0x1D;
        }
        b >>= 1;
    }
    r
}

fn pow2(n: usize) -> u8 {
    (0..n).fold(1, |a, _| mul(a, 2))
}

fn inverse(a: u8) -> u8 {
    // a^254 is the inverse in a field of 256 elements.
    (0..254).fold(1, |r, _| mul(r, a))
}

fn table(c: u8) -> [u8; 256] {
    std::array::from_fn(|i| mul(i as u8, c))
}

pub fn xor_into(dst: &mut [u8], src: &[u8]) {
    for (d, s) in dst.iter_mut().zip(src) {
        *d ^= s;
    }
}

/// What a change of data column `i` means for Q.
pub fn weigh(change: &mut [u8], i: usize) {
    scale(change, pow2(i));
}

/// P of the data columns.
pub fn parity_p(data: &[&[u8]], p: &mut [u8]) {
    p.fill(0);
    data.iter().for_each(|d| xor_into(p, d));
}

/// P and Q of the data columns.
pub fn parity_pq(data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    parity_p(data, p);
    q.fill(0);
    for d in data.iter().rev() {
        for (q, d) in q.chunks_exact_mut(8).zip(d.chunks_exact(8)) {
            let mut a = [0; 8];
            a.copy_from_slice(q);
            let mut b = [0; 8];
            b.copy_from_slice(d);
            q.copy_from_slice(&(mul2(u64::from_le_bytes(a)) ^ u64::from_le_bytes(b)).to_le_bytes());
        }
    }
}

/// Restores missing columns. `columns` are the data columns followed by P and, with two
/// parities, Q; `None` marks the missing ones. False when too many are missing.
pub fn reconstruct(columns: &mut [Option<Vec<u8>>], data_columns: usize, len: usize) -> bool {
    let missing: Vec<usize> = (0..columns.len()).filter(|&i| columns[i].is_none()).collect();
    let parities = columns.len() - data_columns;
    if missing.len() > parities {
        return false;
    }
    let lost: Vec<usize> = missing.iter().copied().filter(|&i| i < data_columns).collect();
    match lost.len() {
        0 => {}
        1 if columns[data_columns].is_some() => {
            let mut v = vec![0; len];
            for c in columns.iter().take(data_columns + 1).flatten() {
                xor_into(&mut v, c);
            }
            columns[lost[0]] = Some(v);
        }
        1 => {
            let mut v = partial_q(columns, data_columns, len);
            scale(&mut v, inverse(pow2(lost[0])));
            columns[lost[0]] = Some(v);
        }
        _ => {
            // Two data columns x < y: from P, D_x + D_y = A; from Q, g^x D_x + g^y D_y = B.
            let (x, y) = (lost[0], lost[1]);
            let mut a = vec![0; len];
            for c in columns.iter().take(data_columns + 1).flatten() {
                xor_into(&mut a, c);
            }
            let mut b = partial_q(columns, data_columns, len);
            let mut gya = a.clone();
            scale(&mut gya, pow2(y));
            xor_into(&mut b, &gya);
            scale(&mut b, inverse(pow2(x) ^ pow2(y)));
            xor_into(&mut a, &b);
            columns[x] = Some(b);
            columns[y] = Some(a);
        }
    }
    let mut p = vec![0; len];
    let mut q = vec![0; len];
    {
        let data: Vec<&[u8]> = columns.iter().take(data_columns).flatten().map(Vec::as_slice).collect();
        if parities == 2 { parity_pq(&data, &mut p, &mut q) } else { parity_p(&data, &mut p) }
    }
    for i in missing.into_iter().filter(|&i| i >= data_columns) {
        columns[i] = Some(if i == data_columns { p.clone() } else { q.clone() });
    }
    true
}

/// Q plus the contributions of the data columns that are there.
fn partial_q(columns: &[Option<Vec<u8>>], data_columns: usize, len: usize) -> Vec<u8> {
    let mut v = columns.get(data_columns + 1).cloned().flatten().unwrap_or_else(|| vec![0; len]);
    for (i, c) in columns.iter().take(data_columns).enumerate() {
        if let Some(c) = c {
            let t = table(pow2(i));
            for (v, c) in v.iter_mut().zip(c) {
                *v ^= t[usize::from(*c)];
            }
        }
    }
    v
}

fn scale(v: &mut [u8], c: u8) {
    let t = table(c);
    v.iter_mut().for_each(|b| *b = t[usize::from(*b)]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use arden_block::rng::Rng;

    #[test]
    fn every_pair_of_losses_is_restored() {
        let mut rng = Rng::new(3);
        for data in 2..=8 {
            let len = 64;
            let mut cols: Vec<Vec<u8>> = (0..data).map(|_| (0..len).map(|_| rng.next_u64() as u8).collect()).collect();
            let refs: Vec<&[u8]> = cols.iter().map(Vec::as_slice).collect();
            let (mut p, mut q) = (vec![0; len], vec![0; len]);
            parity_pq(&refs, &mut p, &mut q);
            cols.push(p);
            cols.push(q);
            for a in 0..cols.len() {
                for b in a..cols.len() {
                    let mut have: Vec<Option<Vec<u8>>> = cols.iter().cloned().map(Some).collect();
                    have[a] = None;
                    have[b] = None;
                    assert!(reconstruct(&mut have, data, len));
                    assert!(have.iter().zip(&cols).all(|(h, c)| h.as_ref() == Some(c)), "{data} {a} {b}");
                }
            }
        }
    }
}
