//! How long one call of the share law takes: `cargo run --release -p carma-interference --example share_speed`.

use carma_interference::group::GpuType;
use carma_interference::share::{Demand, Mode, Scratch, Tenant, share_into};
use std::hint::black_box;
use std::time::Instant;

const CALLS: u32 = 2_000_000;

fn main() {
    let capacities = GpuType::named("H200").capacities;
    println!("mode        k  load       ns");
    for mode in [Mode::TimeSlice, Mode::Mps] {
        for k in [1, 2, 4, 8] {
            for (load, sm) in [("fits", 0.1), ("too much", 0.7)] {
                let tenants: Vec<Tenant> = (0..k)
                    .map(|i| {
                        let sm = sm + 0.01 * f64::from(i);
                        Tenant::new(Demand { gract: sm + 0.02, sm, dram: sm / 3.0, tensor: 0.05, pcie: 0.02 })
                    })
                    .collect();
                let (mut scratch, mut progress) = (Scratch::default(), Vec::new());
                let mut sum = 0.0;
                let begin = Instant::now();
                for _ in 0..CALLS {
                    let capacities = black_box(&capacities);
                    let used = share_into(mode, black_box(&tenants), capacities, &mut scratch, &mut progress);
                    sum += used.sm;
                }
                let ns = begin.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS);
                black_box(sum);
                println!("{:<10} {k:>2}  {load:<8} {ns:>5.0}", format!("{mode:?}"));
            }
        }
    }
}
