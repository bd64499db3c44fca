//! Reports of simulated runs.
