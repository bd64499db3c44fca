//! The A100-40GB: published figures, and policies of AEGIS replayed on the traces of CARMA.

use super::data::{self, Powered, Together};
use super::{Error, Fitting, Places, power, progress, replay, sharing, write};
use carma_interference::share::{Demand, Mode, Tenant};

pub(super) fn fit(fitting: &mut Fitting, places: Places<'_>) -> Result<(), Error> {
    fitting.data.push("published figures, quoted in lab/gpu-models/src/data.rs".to_owned());
    let exponent = fitting.model.gract_exponent;
    let active =
        |smact: f64, dram: f64| Demand { gract: smact.powf(exponent), sm: smact, dram, ..Demand::default() };
    let mut rows = Vec::new();
    for (policy, traces) in data::AEGIS_POWER {
        for (trace, (smact, dram, watts)) in data::AEGIS_TRACES.iter().zip(traces) {
            rows.push(Powered {
                label: format!("AEGIS {trace}, {policy}"),
                families: vec![(*trace).to_owned()],
                activity: active(smact, dram),
                watts,
                clock: None,
            });
        }
    }
    // DRAM activity of H60 is not published: AEGIS' mean of its exclusive rows, and of the rows of its own
    // two policies.
    let mut h60 = Vec::new();
    for ((policy, gpus), dram) in data::H60_POWER.into_iter().zip([0.257, 0.370]) {
        for (at, (smact, watts)) in gpus.into_iter().enumerate() {
            h60.push(Powered {
                label: format!("CARMA H60 GPU {at}, {policy}"),
                families: vec!["H60".to_owned()],
                activity: active(smact, dram),
                watts,
                clock: None,
            });
        }
    }
    let miso = places.shared().and_then(|shared| data::miso_power(&shared, exponent)).unwrap_or_default();
    let keys = vec![
        fitting.key("power.gract", 0.0, 1.0),
        fitting.key("power.smact", 0.0, 1.0),
        fitting.key("power.dram", 0.0, 2.5),
    ];
    let mut part = power(
        fitting,
        "Power: AEGIS, means over active samples, GRACT guessed from SMACT",
        keys,
        &rows,
        "trace",
        &[
            ("CARMA's H60, digitised, DRAM guessed: held out on purpose", &h60, true),
            (
                "MISO's tasks alone on another A100 board (nvidia-smi utilisation): held out on purpose",
                &miso,
                false,
            ),
        ],
    );
    part.notes.push("Tensor activity is not published: its factor is 0".to_owned());
    let source = "fitted by `carma lab fit a100` to 15 published rows of AEGIS (SMACT, DRAM active, watts)";
    fitting.take(part, source);
    fitting.changes.push(write::Change {
        key: "power.tensor".to_owned(),
        value: 0.0,
        source: "assumed: no published A100 row has tensor activity and power".to_owned(),
    });
    fitting.model.power.tensor = 0.0;

    let task = |smact: f64| Tenant::new(active(smact, 0.0));
    let set = |label: &str, mode, smact: f64, k: usize, total: f64| Together {
        label: label.to_owned(),
        families: vec![label.to_owned()],
        mode,
        tenants: vec![task(smact); k],
        progress: vec![total / k as f64; k],
    };
    let small = |mode| data::RESNET26_X7.iter().find(|row| row.0 == mode).map_or(0.0, |row| row.1);
    let rows = [
        set("ResNet26 x7, MPS", Mode::Mps, data::RESNET26_SMACT, 7, small("MPS")),
        set(
            "ResNet152 x2, best mode taken for MPS",
            Mode::Mps,
            data::RESNET152_SMACT,
            2,
            data::RESNET152_BEST,
        ),
    ];
    let euromlsys = rows;
    let keys = vec![fitting.key("mps.sm", 0.5, 1.6)];
    let mut part = sharing(fitting, "MPS: EuroMLSys 2024 (not taken)", keys, &euromlsys, &[]);
    part.notes.push(
        "Two rows, whose solo activity is not published and taken from AEGIS' nearest tasks: shown, not taken. They \
         contradict what the simulated policies say below"
            .to_owned(),
    );
    if let Some(slice) = fitting.model.slice("1g.5gb") {
        let alone = progress(&slice, Mode::TimeSlice, &[task(data::RESNET26_SMACT)]);
        let total = 7.0 * alone.first().copied().unwrap_or(0.0);
        part.notes.push(format!(
            "MIG, 7 x 1g with one ResNet26 each: model {total:.2}, published {:.2}. Nothing was fitted to it",
            small("MIG 7 x 1g")
        ));
    }
    fitting.show(part);
    replay::fit(fitting, places, &euromlsys)?;

    let rows = [set("ResNet26 x7, streams", Mode::TimeSlice, data::RESNET26_SMACT, 7, small("streams"))];
    let keys = vec![fitting.key("time_slice.gract", 0.5, 1.5)];
    let mut part = sharing(fitting, "Time-slice: EuroMLSys 2024 (not taken)", keys, &rows, &[]);
    part.notes.push(
        "Streams of one process are not processes in turns, and GRACT is guessed: the value is shown, not taken. \
         The model keeps the mean of what was measured on V100 and H200"
            .to_owned(),
    );
    fitting.show(part);
    Ok(())
}
