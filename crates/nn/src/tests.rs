//! Gradients against finite differences; what else is in the batch does not enter a prediction.

use super::*;

fn check_gradients<M: Module>(module: &mut M, run: impl FnMut(&mut M, bool) -> f32) {
    let compared = check::compare_gradients(module, run);
    assert!(compared.agree(), "{compared:?}");
}

fn some(rows: usize, cols: usize, seed: u64) -> Mat {
    Mat { rows, cols, data: Rng::new(seed, 1).uniform(rows * cols, 1.5) }
}

#[test]
fn gradients_of_an_mlp_with_a_logistic_end() {
    let x = some(5, 24, 3);
    let seen: Vec<_> = (0..24)
        .map(|i| {
            let z = 0.1 * i as f32 - 1.0;
            if i % 3 == 0 { Seen::AtLeast(z) } else { Seen::Value(z) }
        })
        .collect();
    check_gradients(&mut Mlp::new(5, &[6, 4], 2, &mut Rng::new(1, 0)), |mlp, back| {
        let (y, cache) = mlp.train(x.clone());
        let (loss, grad) = Logistic::loss(&y, &seen);
        if back {
            mlp.backward(&cache, &grad);
        }
        loss
    });
}

#[test]
fn gradients_of_an_mlp_with_classes() {
    let x = some(4, 20, 5);
    let seen: Vec<_> =
        (0..20).map(|i| if i % 4 == 0 { Seen::AtLeast(i % 3) } else { Seen::Value(i % 3) }).collect();
    check_gradients(&mut Mlp::new(4, &[5], 3, &mut Rng::new(2, 0)), |mlp, back| {
        let (y, cache) = mlp.train(x.clone());
        let (loss, grad) = softmax_loss(&y, &seen);
        if back {
            mlp.backward(&cache, &grad);
        }
        loss
    });
}

/// Two samples of 4 and 3 tokens, some of them counted more than once.
fn two() -> Segments {
    Segments { ranges: vec![0..4, 4..7], count: vec![1.0, 3.0, 1.0, 2.0, 1.0, 1.0, 5.0] }
}

struct Stack(Linear, Vec<Encoder>);

impl Module for Stack {
    fn weights(&mut self, visit: &mut dyn FnMut(&mut Weights)) {
        self.0.weights(visit);
        self.1.iter_mut().for_each(|e| e.weights(visit));
    }
}

#[test]
fn gradients_of_attention_through_two_encoders_and_the_pool() {
    let (x, segments) = (some(3, 7, 8), two());
    let mut rng = Rng::new(4, 0);
    let mut stack = Stack(
        Linear::new(3, 4, &mut rng),
        vec![Encoder::new(4, 2, 5, &mut rng), Encoder::new(4, 1, 4, &mut rng)],
    );
    let target = some(4, 2, 9);
    check_gradients(&mut stack, |stack, back| {
        let (y, first) = stack.1[0].forward(stack.0.forward(&x), &segments);
        let (y, second) = stack.1[1].forward(y, &segments);
        let mut pooled = segments.pool(&y);
        pooled.data.iter_mut().zip(&target.data).for_each(|(p, t)| *p -= t);
        let loss = pooled.data.iter().map(|d| d * d).sum::<f32>();
        if back {
            pooled.data.iter_mut().for_each(|d| *d *= 2.0);
            let grad = stack.1[1].backward(&segments, &second, &segments.spread(&pooled));
            let grad = stack.1[0].backward(&segments, &first, &grad);
            stack.0.backward(&x, &grad);
        }
        loss
    });
}

#[test]
fn a_counted_token_equals_so_many_tokens() {
    let mut rng = Rng::new(6, 0);
    let encoders = [Encoder::new(4, 2, 5, &mut rng), Encoder::new(4, 2, 5, &mut rng)];
    let run = |x: &Mat, segments: &Segments| {
        let y = encoders.iter().fold(x.clone(), |x, e| e.forward(x, segments).0);
        segments.pool(&y)
    };
    let x = some(4, 7, 11);
    let counted = run(&x, &two());
    let mut columns = Vec::new();
    for (c, n) in two().count.iter().enumerate() {
        columns.extend(std::iter::repeat_n(c, *n as usize));
    }
    let mut long = Mat::zeros(4, columns.len());
    for r in 0..4 {
        for (to, from) in columns.iter().enumerate() {
            long.data[r * columns.len() + to] = x.at(r, *from);
        }
    }
    let segments = Segments { ranges: vec![0..7, 7..14], count: vec![1.0; 14] };
    for (a, b) in counted.data.iter().zip(&run(&long, &segments).data) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
}

#[test]
fn order_of_tokens_and_neighbours_in_the_batch_do_not_matter() {
    let mut rng = Rng::new(7, 0);
    let encoder = Encoder::new(4, 2, 5, &mut rng);
    let x = some(4, 7, 12);
    let both = two().pool(&encoder.forward(x.clone(), &two()).0);
    // The second sample alone, its tokens turned round.
    let order = [6, 5, 4];
    let mut alone = Mat::zeros(4, 3);
    for r in 0..4 {
        for (to, from) in order.iter().enumerate() {
            alone.data[r * 3 + to] = x.at(r, *from);
        }
    }
    let segments = Segments { ranges: std::iter::once(0..3).collect(), count: vec![5.0, 1.0, 1.0] };
    let pooled = segments.pool(&encoder.forward(alone, &segments).0);
    for r in 0..4 {
        assert!((pooled.at(r, 0) - both.at(r, 1)).abs() < 1e-5);
    }
}

#[test]
fn an_mlp_learns_a_sum() {
    let mut rng = Rng::new(1, 2);
    let x = some(3, 256, 20);
    let seen: Vec<_> = (0..256).map(|s| Seen::Value(x.at(0, s) + 0.5 * x.at(1, s) - x.at(2, s))).collect();
    let mut mlp = Mlp::new(3, &[8], 2, &mut rng);
    let mut adam = Adam::default();
    for _ in 0..400 {
        let (y, cache) = mlp.train(x.clone());
        let (_, mut grad) = Logistic::loss(&y, &seen);
        grad.data.iter_mut().for_each(|g| *g /= 256.0);
        mlp.backward(&cache, &grad);
        adam.step(&mut mlp, 0.02);
    }
    let y = mlp.infer(&x);
    let off: f32 = (0..256)
        .map(|s| match seen[s] {
            Seen::Value(z) | Seen::AtLeast(z) => (Logistic::of(&y, s).middle - z).abs(),
        })
        .sum::<f32>()
        / 256.0;
    assert!(off < 0.15, "mean error {off}");
}

#[test]
fn state_goes_out_and_comes_back() {
    let mut a = Mlp::new(3, &[4, 4], 2, &mut Rng::new(1, 0));
    let _ = a.train(some(3, 16, 2));
    let saved = a.save();
    let mut b = Mlp::new(3, &[4, 4], 2, &mut Rng::new(2, 0));
    assert!(a != b);
    assert_eq!(b.load(&saved), Some(saved.len()));
    let x = some(3, 5, 4);
    assert!(a.infer(&x) == b.infer(&x));
    assert_eq!(b.load(&saved[1..]), None);
}
