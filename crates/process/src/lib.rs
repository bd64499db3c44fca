//! What a running job does, for the program that runs it: which processes it has ([`process`]), which of them are told of a signal
//! ([`catch`]), how it gets on ([`progress`]), what it takes of the host ([`usage`]), and what it does not inherit
//! ([`inherited`]).

pub mod catch;
pub mod inherited;
pub mod process;
pub mod progress;
pub mod usage;
