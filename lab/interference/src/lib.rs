//! The laboratory of `carma-interference`: KACE trained and repeated as it was published, the baselines that it and our
//! own predictor are compared with, and the bench that compares them. Nothing that carma decides by is in here.

pub mod bench;
pub mod kace;
pub mod own;
