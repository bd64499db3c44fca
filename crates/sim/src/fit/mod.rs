//! Fitting the constants of GPU models to measurements: least squares over few parameters, and what
//! the fit does not explain.

pub mod data;
