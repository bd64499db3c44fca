//! Trains KACE's neural network: layers of 128, 64, 32 and 1, ReLU between them, dropout 0.2.
//!
//! As in the artifact: Keras' defaults (uniform weights after Glorot and Bengio, Adam at 0.001, batches of 32), the
//! last fifth of the rows for validation, at most 250 passes, the end after 40 passes without a better validation
//! loss, and the weights of the end, not of the best pass. Dropout was added behind the output there, so that is
//! where it is.

use carma_interference::kace::network::{Network, WIDTHS};
use carma_nn::{Adam, Linear, Mat, Module, Rng, Weights, relu, relu_backward};

const EPOCHS: usize = 250;
const PATIENCE: usize = 40;
const BATCH: usize = 32;
const RATE: f32 = 1e-3;
const DROPOUT: f32 = 0.2;

/// The network while it learns.
struct Learner {
    layers: Vec<Linear>,
}

impl Module for Learner {
    fn weights(&mut self, visit: &mut dyn FnMut(&mut Weights)) {
        self.layers.iter_mut().for_each(|layer| layer.weights(visit));
    }
}

impl Learner {
    fn new(features: usize, rng: &mut Rng) -> Self {
        let mut inp = features;
        let layer = |out: usize| {
            let mut layer = Linear::new(inp, out, rng);
            let bound = (6.0 / (inp + out) as f32).sqrt();
            layer.weight = Weights::new(rng.uniform(inp * out, bound));
            layer.bias.value.fill(0.0);
            inp = out;
            layer
        };
        Self { layers: WIDTHS.map(layer).into() }
    }

    /// Outputs of all layers.
    fn forward(&self, x: Mat) -> Vec<Mat> {
        let mut all = vec![x];
        for (i, layer) in self.layers.iter().enumerate() {
            let mut y = layer.forward(&all[i]);
            if i + 1 < self.layers.len() {
                relu(&mut y);
            }
            all.push(y);
        }
        all
    }

    /// Adds to the gradients, given that of the output.
    fn backward(&mut self, outputs: &[Mat], mut grad: Mat) {
        for (i, layer) in self.layers.iter_mut().enumerate().rev() {
            grad = layer.backward(&outputs[i], &grad);
            if i > 0 {
                relu_backward(&outputs[i], &mut grad);
            }
        }
    }
}

/// Trains on normalised rows and targets.
#[must_use]
pub fn train(x: &[Vec<f64>], y: &[f64], rng: &mut Rng) -> Network {
    let features = x.first().map_or(0, Vec::len);
    let rows: Vec<Vec<f32>> = x.iter().map(|r| r.iter().map(|v| *v as f32).collect()).collect();
    let y: Vec<f32> = y.iter().map(|v| *v as f32).collect();
    let mut network = Learner::new(features, rng);
    let fit = x.len() * 4 / 5;
    let held: Vec<usize> = (fit..x.len()).collect();
    let mut order: Vec<usize> = (0..fit).collect();
    let inputs = |at: &[usize]| {
        Mat::from_samples(features, at.iter().map(|i| rows[*i].as_slice()).collect::<Vec<_>>().into_iter())
    };
    let (mut best, mut since) = (f32::INFINITY, 0);
    let mut adam = Adam::default();
    let held_inputs = inputs(&held);
    for _ in 0..EPOCHS {
        rng.shuffle(&mut order);
        for part in order.chunks(BATCH) {
            let outputs = network.forward(inputs(part));
            let mut grad = Mat::zeros(1, part.len());
            if let Some(output) = outputs.last() {
                for (s, i) in part.iter().enumerate() {
                    let kept = (rng.around_zero(0.5) + 0.5 >= DROPOUT) as u8 as f32 / (1.0 - DROPOUT);
                    grad.data[s] = 2.0 * (kept * output.at(0, s) - y[*i]) * kept / part.len() as f32;
                }
            }
            network.backward(&outputs, grad);
            adam.step(&mut network, RATE);
        }
        let outputs = network.forward(held_inputs.clone());
        let loss: f32 = match outputs.last() {
            Some(output) => held.iter().enumerate().map(|(s, i)| (output.at(0, s) - y[*i]).powi(2)).sum(),
            None => 0.0,
        };
        if loss < best {
            (best, since) = (loss, 0);
        } else {
            since += 1;
            if since >= PATIENCE {
                break;
            }
        }
    }
    Network { features, weights: network.save() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use carma_nn::check::compare_gradients;

    fn data(n: usize) -> (Vec<Vec<f64>>, Vec<f64>) {
        let mut rng = Rng::new(3, 0);
        let x: Vec<Vec<f64>> =
            (0..n).map(|_| rng.uniform(3, 1.5).into_iter().map(f64::from).collect()).collect();
        let y = x.iter().map(|r| r[0] - 0.5 * r[1]).collect();
        (x, y)
    }

    #[test]
    fn it_learns_a_sum_and_comes_back_from_a_file() {
        let (x, y) = data(200);
        let network = train(&x, &y, &mut Rng::new(1, 0));
        let (x, y) = data(230);
        let off: f64 = (200..230).map(|i| (network.predict(&x[i]) - y[i]).abs()).sum::<f64>() / 30.0;
        assert!(off < 0.2, "mean error {off}");
        let text = serde_json::to_string(&network).unwrap();
        let again: Network = serde_json::from_str(&text).unwrap();
        assert_eq!(again.predict(&x[1]), network.predict(&x[1]));
    }

    #[test]
    fn gradients_are_right() {
        let (x, _) = data(6);
        let rows: Vec<Vec<f32>> = x.iter().map(|r| r.iter().map(|v| *v as f32).collect()).collect();
        let input = Mat::from_samples(3, rows.iter().map(Vec::as_slice));
        // The wide layers would take long to compare weight by weight.
        let layers = vec![Linear::new(3, 5, &mut Rng::new(2, 1)), Linear::new(5, 1, &mut Rng::new(2, 2))];
        let mut network = Learner { layers };
        let compared = compare_gradients(&mut network, |network, back| {
            let outputs = network.forward(input.clone());
            let y = outputs.last().unwrap();
            let loss = y.data.iter().map(|v| v * v).sum::<f32>();
            if back {
                let grad = Mat { data: y.data.iter().map(|v| 2.0 * v).collect(), ..y.clone() };
                network.backward(&outputs, grad);
            }
            loss
        });
        assert!(compared.agree(), "{compared:?}");
    }

    #[test]
    fn what_was_learned_answers_as_the_learner_to_the_bit() {
        let (x, _) = data(20);
        let rows: Vec<Vec<f32>> = x.iter().map(|r| r.iter().map(|v| *v as f32).collect()).collect();
        let mut learner = Learner::new(3, &mut Rng::new(4, 0));
        learner.weights(&mut |w| w.value.iter_mut().for_each(|v| *v += 0.01));
        let outputs = learner.forward(Mat::from_samples(3, rows.iter().map(Vec::as_slice)));
        let network = Network { features: 3, weights: learner.save() };
        assert!(network.is_whole(3));
        for (s, row) in x.iter().enumerate() {
            assert_eq!(network.predict(row), f64::from(outputs.last().unwrap().at(0, s)));
        }
    }

    #[test]
    fn few_rows_are_enough_to_answer() {
        for n in 0..3 {
            let (x, y) = data(n);
            assert!(train(&x, &y, &mut Rng::new(1, 0)).predict(&[0.0; 3]).is_finite());
        }
    }
}
