//! The evaluation of the predictor: every number with its interval, and the target beside it.

mod kace;
mod set;
mod stats;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kace::{Artifact, protocol, score};

    #[test]
    fn scratch() {
        let artifact = Artifact::new("../../../shared/data/nba556677go__KACE-artifact");
        let t = kace::Tables::read(&artifact).unwrap();
        for nsight in [true] {
            let columns = kace::Columns::of(&t.pairs, nsight).unwrap();
            let online = kace::Online { columns: &columns, gpu: kace::gpu(), shuffle: None };
            let splits = artifact.splits(&t.pairs).unwrap();
            let seen = protocol::seen(&t.pairs, &splits);
            let scored = score::evaluate(&online, &seen, 2).unwrap();
            for n in 2..=10 {
                let s: Vec<_> = scored.iter().filter(|s| s.n_occur == Some(n)).cloned().collect();
                print!("{n}:{:.3} ", score::mean_of(&s));
            }
            println!();
            for (name, table) in [("k2", &t.pairs), ("k3", &t.triples), ("k4", &t.quadruples)] {
                let columns = kace::Columns::of(table, nsight).unwrap();
                for shuffle in [None, Some(1), Some(2)] {
                    let online = kace::Online { columns: &columns, gpu: kace::gpu(), shuffle };
                    let sound = table.without(|w| !protocol::is_sound(w));
                    for t in [table, &sound] {
                        let p = protocol::unseen(name, t).unwrap();
                        print!("{name} {:.3} ", score::mean_of(&score::evaluate(&online, &p, 2).unwrap()));
                    }
                }
                println!();
                let set = kace::sound_set(table, nsight).unwrap();
                let show = |name: &str, e: &set::Errors| {
                    println!(
                        "  {name}: mape {:.3} median {:.3} covered {:.3} width {:.2} n {}",
                        e.error.mean().unwrap().mean,
                        e.error.median(),
                        e.covered.mean().unwrap().mean,
                        e.width.median(),
                        e.error.mean().unwrap().n
                    );
                };
                show("prior", &set.prior());
                show("cold", &set.cold(3));
                if std::env::var("BY").is_ok() {
                    set.cold(3).error.by();
                }
                show("online 50", &set.online(50, 8));
            }
        }
    }
}
