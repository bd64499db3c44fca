//! A matrix: features by samples.

/// `rows` features of `cols` samples, feature by feature.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mat {
    /// Rows: one a feature.
    pub rows: usize,
    /// Columns: one a sample.
    pub cols: usize,
    /// Feature by feature.
    pub data: Vec<f32>,
}

impl Mat {
    /// All zero.
    pub fn zeros(rows: usize, cols: usize) -> Self {
        Self { rows, cols, data: vec![0.0; rows * cols] }
    }

    /// From samples, each a list of `rows` features; missing ones are 0.
    pub fn from_samples<'a>(rows: usize, samples: impl ExactSizeIterator<Item = &'a [f32]>) -> Self {
        let mut mat = Self::zeros(rows, samples.len());
        for (s, sample) in samples.enumerate() {
            for (f, v) in sample.iter().take(rows).enumerate() {
                mat.data[f * mat.cols + s] = *v;
            }
        }
        mat
    }

    /// One feature of all samples.
    pub fn row(&self, r: usize) -> &[f32] {
        &self.data[r * self.cols..(r + 1) * self.cols]
    }

    /// One feature of all samples.
    pub fn row_mut(&mut self, r: usize) -> &mut [f32] {
        &mut self.data[r * self.cols..(r + 1) * self.cols]
    }

    /// One number.
    pub fn at(&self, r: usize, c: usize) -> f32 {
        self.data[r * self.cols + c]
    }

    /// Adds another of the same shape.
    pub fn add(&mut self, other: &Self) {
        for (a, b) in self.data.iter_mut().zip(&other.data) {
            *a += b;
        }
    }

    /// Features of `self` above those of `below`.
    pub fn stack(mut self, below: &Self) -> Self {
        self.data.extend_from_slice(&below.data);
        self.rows += below.rows;
        self
    }

    /// The first `n` features.
    pub fn top(&self, n: usize) -> Self {
        Self { rows: n, cols: self.cols, data: self.data[..n * self.cols].to_vec() }
    }
}

/// `y += a x`.
pub(crate) fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

/// Sum of products, in eight partial sums (so that it vectorises), always in the same order.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 8];
    let (ca, cb) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = ca.remainder().iter().zip(cb.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in ca.zip(cb) {
        for i in 0..8 {
            sums[i] += x[i] * y[i];
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Sum, in eight partial sums.
pub(crate) fn sum(a: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 8];
    let chunks = a.chunks_exact(8);
    let rest: f32 = chunks.remainder().iter().sum();
    for x in chunks {
        for i in 0..8 {
            sums[i] += x[i];
        }
    }
    sums.iter().sum::<f32>() + rest
}
