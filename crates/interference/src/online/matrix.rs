//! The little linear algebra that recursive least squares needs: dense, row by row, small.

/// A dense matrix.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Matrix {
    pub rows: usize,
    pub cols: usize,
    pub data: Vec<f64>,
}

impl Matrix {
    pub(crate) fn zero(rows: usize, cols: usize) -> Self {
        Self { rows, cols, data: vec![0.0; rows * cols] }
    }

    pub(crate) fn at(&self, row: usize, col: usize) -> f64 {
        self.data[row * self.cols + col]
    }

    pub(crate) fn set(&mut self, row: usize, col: usize, value: f64) {
        self.data[row * self.cols + col] = value;
    }

    pub(crate) fn row(&self, row: usize) -> &[f64] {
        &self.data[row * self.cols..(row + 1) * self.cols]
    }

    /// `self * other`.
    pub(crate) fn times(&self, other: &Self) -> Self {
        let mut out = Self::zero(self.rows, other.cols);
        for i in 0..self.rows {
            for (k, &left) in self.row(i).iter().enumerate() {
                if left != 0.0 {
                    let into = &mut out.data[i * other.cols..(i + 1) * other.cols];
                    for (value, right) in into.iter_mut().zip(other.row(k)) {
                        *value += left * right;
                    }
                }
            }
        }
        out
    }

    /// `self * other^T`.
    pub(crate) fn times_transposed(&self, other: &Self) -> Self {
        let mut out = Self::zero(self.rows, other.rows);
        for i in 0..self.rows {
            for j in 0..other.rows {
                let dot = self.row(i).iter().zip(other.row(j)).map(|(a, b)| a * b).sum();
                out.set(i, j, dot);
            }
        }
        out
    }

    /// Lower Cholesky factor of a symmetric matrix; `None` where it is not positive definite.
    pub(crate) fn cholesky(&self) -> Option<Self> {
        let n = self.rows;
        let mut l = Self::zero(n, n);
        for i in 0..n {
            for j in 0..=i {
                let dot: f64 = l.row(i)[..j].iter().zip(&l.row(j)[..j]).map(|(a, b)| a * b).sum();
                let rest = self.at(i, j) - dot;
                if i == j {
                    if !(rest.is_finite() && rest > 0.0) {
                        return None;
                    }
                    l.set(i, i, rest.sqrt());
                } else {
                    l.set(i, j, rest / l.at(j, j));
                }
            }
        }
        Some(l)
    }

    /// With `self` the lower factor of A: each row x of `rows` becomes the solution of `A y = x`.
    pub(crate) fn solve_rows(&self, rows: &mut Self) {
        let n = self.rows;
        for r in 0..rows.rows {
            let x = &mut rows.data[r * n..(r + 1) * n];
            for i in 0..n {
                let dot: f64 = self.row(i)[..i].iter().zip(&x[..i]).map(|(a, b)| a * b).sum();
                x[i] = (x[i] - dot) / self.at(i, i);
            }
            for i in (0..n).rev() {
                let dot: f64 = (i + 1..n).map(|k| self.at(k, i) * x[k]).sum();
                x[i] = (x[i] - dot) / self.at(i, i);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_is_solved() {
        let a = Matrix { rows: 3, cols: 3, data: vec![4.0, 1.0, 0.5, 1.0, 3.0, 0.2, 0.5, 0.2, 2.0] };
        let mut x = Matrix { rows: 2, cols: 3, data: vec![1.0, 2.0, 3.0, -1.0, 0.0, 5.0] };
        let want = x.clone();
        a.cholesky().unwrap().solve_rows(&mut x);
        let back = x.times(&a);
        assert!(back.data.iter().zip(&want.data).all(|(a, b)| (a - b).abs() < 1e-12), "{back:?}");
        assert_eq!(x.times_transposed(&a).data.len(), 6);
        let bad = Matrix { rows: 2, cols: 2, data: vec![1.0, 2.0, 2.0, 1.0] };
        assert_eq!(bad.cholesky(), None);
    }
}
